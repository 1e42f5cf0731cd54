"""How often the burn-in names the culprit: random histories under a nasty noise, each kind by itself.

`figures(full)` is what `bench/burnin` collects; by itself: `python bench/burnin_plan.py [--full] [--seed N] [--histories N]`.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from slurm_ext.burnin import simulate

HISTORIES, HISTORIES_FULL = 10_000, 100_000
SEED = 20261130

#: Where there are fewer nodes, nobody need be named.
LEAST_NODES = 4


def figures(full: bool, *, seed: int = SEED, histories: int = 0) -> dict[str, Any]:
    """Play the histories, print the table by kind, and return the figures."""
    count = histories or (HISTORIES_FULL if full else HISTORIES)
    started = time.monotonic()
    by_kind: dict[str, Counter[str]] = {}
    healthy_drained = wrong = cannot_tell = 0
    rounds_64: list[int] = []
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        kind, fleet = simulate.draw(chance)
        history = simulate.play(kind, fleet, chance)
        few = kind in simulate.SINGLE and len(fleet.nodes) < LEAST_NODES
        counts = by_kind.setdefault(f"{kind}, 2-3 nodes" if few else kind, Counter())
        counts["histories"] += 1
        counts[history.end] += 1
        innocent = set(history.decision.culprits) - set(fleet.faults)
        healthy_drained += len(innocent)
        wrong += history.end == simulate.BAD
        cannot_tell += history.end == simulate.OPEN
        if kind in simulate.SINGLE and len(fleet.nodes) == 64 and history.end == simulate.NAMED:
            rounds_64.append(history.localising)
        if innocent:
            print(f"  wrong: history {number} of seed {seed}: {kind}, {history.decision.verdict.reason}")
    single = [by_kind[kind] for kind in simulate.SINGLE if kind in by_kind]
    named = 100 * sum(c["named"] for c in single) / max(1, sum(c["histories"] for c in single))
    worst = min((100 * c["named"] / c["histories"] for c in single), default=0.0)
    _table(by_kind)
    apart = _apart(count // 10, seed)
    still, still_named = _still()
    again = _second_offences(count // 10, seed)
    quick = sum(rounds <= 3 for rounds in rounds_64)
    found = {
        "rounds_to_culprit_64": still,
        "histories": count,
        "healthy_drained": healthy_drained,
        "wrong_culprit": wrong,
        "cannot_tell": cannot_tell,
        "named_percent_one_culprit": round(named, 2),
        "named_percent_worst_kind": round(worst, 2),
        "named_percent_64_without_noise": still_named,
        "in_3_rounds_percent_64_with_noise": round(100 * quick / max(1, len(rounds_64)), 1),
        "most_rounds_64_with_noise": max(rounds_64, default=0),
        **again,
        **apart,
        "seconds": round(time.monotonic() - started, 1),
    }
    return found


def _table(by_kind: dict[str, Counter[str]]) -> None:
    print(f"{'kind':22}{'histories':>10}" + "".join(f"{end + ' %':>10}" for end in simulate.ENDS))
    for kind in sorted(by_kind):
        counts = by_kind[kind]
        shares = (100 * counts[end] / counts["histories"] for end in simulate.ENDS)
        print(f"{kind:22}{counts['histories']:10}" + "".join(f"{share:10.2f}" for share in shares))


def _apart(count: int, seed: int) -> dict[str, Any]:
    """Print and return how often nodes are named that are hard to see: just below the floor (0.72 to 0.84 of what is usual,
    the floor at 0.85), and slow only once the sustained traffic has lasted a while. Four nodes and more."""
    found: dict[str, Any] = {}
    for name, play in (("barely", simulate.barely), ("throttled", simulate.throttled)):
        ends: Counter[str] = Counter()
        innocents = 0
        for number in range(count):
            chance = random.Random(f"{seed}/{name}/{number}")
            history = play(chance, count=max(LEAST_NODES, simulate.draw_size(chance)))
            ends[history.end] += 1
            innocents += len(set(history.decision.culprits) - set(history.fleet.faults))
        shares = ", ".join(f"{end} {100 * ends[end] / max(1, count):.1f} %" for end in simulate.ENDS if ends[end])
        print(f"apart, {name}: {shares} of {count}")
        found[f"{name}_named_percent"] = round(100 * ends[simulate.NAMED] / max(1, count), 1)
        found[f"{name}_healthy_drained"] = innocents
    return found


def _still() -> tuple[int, float]:
    """Return the most rounds after the failed full run until one culprit of 64 was known, and the percentage named: each node
    in turn, each kind, with and without known leaf switches, nothing but jitter."""
    most = named = plays = 0
    for kind in simulate.SINGLE:
        for index in range(64):
            chance = random.Random(f"still/{kind}/{index}")
            _, fleet = simulate.draw(chance, kind="healthy", count=64)
            switch = {name: f"leaf{place // 8}" for place, name in enumerate(fleet.nodes)}
            fleet = fleet._replace(switch=switch, leaves=switch if index % 2 else {})
            fleet = fleet._replace(faults={f"n{index}": simulate.fault_of(kind, fleet, chance)})
            history = simulate.play(kind, fleet, chance, noise=False)
            plays += 1
            named += history.end == simulate.NAMED
            most = max(most, history.localising)
    return most, round(100 * named / plays, 2)


def _second_offences(count: int, seed: int) -> dict[str, Any]:
    """Return how often a slow node of two was named at its second offence, and how often a healthy one was."""
    ends = {
        guilty: Counter(
            simulate.second_offence(random.Random(f"{seed}/second/{guilty}/{i}"), guilty=guilty).end
            for i in range(count)
        )
        for guilty in (True, False)
    }
    return {
        "second_offence_named_percent": round(100 * ends[True]["named"] / max(1, count), 2),
        "second_offence_wrong": ends[True]["wrong"] + ends[False]["wrong"],
    }


def main() -> int:
    """Print the figures as one JSON line; exit 1 where a healthy node was convicted."""
    arguments = sys.argv[1:]
    seed = int(arguments[arguments.index("--seed") + 1]) if "--seed" in arguments else SEED
    histories = int(arguments[arguments.index("--histories") + 1]) if "--histories" in arguments else 0
    found = figures("--full" in arguments, seed=seed, histories=histories)
    print(json.dumps({"bench": "burnin_plan", "figures": found}))
    return 1 if found["wrong_culprit"] or found["second_offence_wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
