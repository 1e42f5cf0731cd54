"""Random histories of burn-ins: a hidden truth and a nasty noise (`simulate_fleet`) against the real judge and the real plan.

What a history is called by (`kind`) and how it ended (`end`):

- *named*: exactly the nodes at fault are convicted; *partly*: some of several;
- *open*: nobody is convicted, and the job does not start like this (or, where nobody is at fault, needlessly not);
- *missed*: the job may start with a node at fault (with a warning where the first run failed); *passed*: nobody was at fault;
- *wrong*: a node without a fault is convicted. This must never happen.

Time is counted, too: a burn-in that reaches its deadline ends without a conviction, as the leader does it.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import NamedTuple

from slurm_ext.burnin import plan, rules
from slurm_ext.burnin.model import HANG, OK, Decision, Past, Round, RoundResult
from slurm_ext.burnin.simulate_fleet import HEATED_S, Fault, Fleet, Weather, run, weather
from slurm_ext.verdict import FAIL, UNKNOWN, Verdict

DEADLINE_S = 90.0

#: How long (seconds) traffic is sustained in a normal burn-in.
SUSTAIN_S = 4.0

NAMED, PARTLY, OPEN, MISSED, PASSED, BAD = "named", "partly", "open", "missed", "passed", "wrong"
ENDS = (NAMED, PARTLY, OPEN, MISSED, PASSED, BAD)

#: Kinds of one node at fault, which must be named where there are four nodes or more.
SINGLE = ("slow", "rail", "sender", "receiver", "hang", "error")

#: How often each kind is drawn, in percent.
KINDS = {
    "healthy": 14, **dict.fromkeys(SINGLE, 8), "flapping": 4, "two": 8, "beside-bad-pair": 6, "bad-pair": 7, "slow-leaf": 8,
    "lone-slow": 2, "absent": 3,
}  # fmt: skip


class History(NamedTuple):
    """One burn-in: its truth, and what the plan made of it."""

    kind: str
    fleet: Fleet
    rounds: tuple[RoundResult, ...]
    decision: Decision
    seconds: float
    end: str

    @property
    def localising(self) -> int:
        """Rounds after the first failed run until the culprit was known (naming its rail comes on top)."""
        return sum(done.kind != "rails" for done in self.rounds[1:])


def draw_size(chance: random.Random) -> int:
    """Draw the number of nodes of a job, 2 to 128: many small ones, 64 often."""
    band = chance.random()
    if band < 0.35:
        return chance.randint(2, 8)
    return 64 if band < 0.42 else chance.randint(9, 64) if band < 0.75 else chance.randint(65, 128)


def draw(chance: random.Random, *, kind: str = "", count: int = 0) -> tuple[str, Fleet]:
    """Draw a truth. Where leaf switches are not known, every switch has two nodes of the job or more: with one, a bad switch
    is that node, whatever is measured. A kind that the drawn job is too small for becomes `healthy`."""
    kind = kind or chance.choices(tuple(KINDS), tuple(KINDS.values()))[0]
    count = count or draw_size(chance)
    nodes = tuple(f"n{i}" for i in range(count))
    known = chance.random() < 0.6 or kind == "lone-slow"
    switch = _place(nodes, chance, least=1 if known else 2)
    fleet = Fleet(
        nodes, chance.choice((1, 2, 2, 4)), switch, switch if known else {}, {}, speed=chance.uniform(0.95, 1.05)
    )
    return _ail(kind, fleet, chance)


def _place(nodes: tuple[str, ...], chance: random.Random, *, least: int) -> dict[str, str]:
    """Put the nodes under leaf switches of a random size, in Slurm's order or, a third of the time, without any order."""
    size = chance.choice((2, 4, 8, 16, 32) if len(nodes) <= 64 else (4, 8, 16, 32, 64))
    order = list(nodes)
    if chance.random() < 0.34:
        chance.shuffle(order)
    place: dict[str, str] = {}
    begin = number = 0
    while begin < len(order):
        end = begin + max(least, chance.randint(max(1, size // 2), size))
        if len(order) - end < least:
            end = len(order)
        place.update(dict.fromkeys(order[begin:end], f"leaf{number}"))
        begin, number = end, number + 1
    return {name: place[name] for name in nodes}


def _ail(kind: str, fleet: Fleet, chance: random.Random) -> tuple[str, Fleet]:
    nodes = fleet.nodes
    mates = {name: sum(leaf == fleet.switch[name] for leaf in fleet.switch.values()) for name in nodes}
    several = len(set(fleet.switch.values())) > 1
    if kind in SINGLE:
        name = chance.choice(nodes)
        if kind in ("slow", "rail") and fleet.leaves and several and mates[name] == 1:
            kind = "lone-slow"
        return kind, fleet._replace(faults={name: fault_of(kind, fleet, chance)})
    if kind == "lone-slow":
        lone = [name for name in nodes if mates[name] == 1]
        if several and lone:
            return kind, fleet._replace(faults={chance.choice(lone): fault_of("slow", fleet, chance)})
    elif kind == "flapping":
        fault = fault_of(chance.choice(SINGLE), fleet, chance)._replace(share=chance.uniform(0.3, 0.9))
        return kind, fleet._replace(faults={chance.choice(nodes): fault})
    elif kind == "two" and len(nodes) >= 4:
        both = chance.sample(nodes, 2)
        return kind, fleet._replace(faults={name: fault_of(chance.choice(SINGLE), fleet, chance) for name in both})
    elif kind in ("bad-pair", "beside-bad-pair") and len(nodes) >= 3:
        a, b, *_ = chance.sample(nodes, 2) if chance.random() < 0.5 else _adjacent(nodes, chance)
        bad = Fault("hang") if chance.random() < 0.3 else Fault("slow", chance.uniform(0.2, 0.72))
        fleet = fleet._replace(bad_pair=(a, b, bad))
        if kind == "bad-pair":
            return kind, fleet
        # Beside it: the culprit may be one of the two, or not.
        return kind, fleet._replace(faults={chance.choice(nodes): fault_of(chance.choice(SINGLE), fleet, chance)})
    elif kind == "slow-leaf" and several:
        leaf = fleet.switch[chance.choice(nodes)]
        return kind, fleet._replace(slow_leaf=(leaf, chance.uniform(0.2, 0.7), chance.random() < 0.3))
    elif kind == "absent" and len(nodes) >= 3:
        # The others are tested without it; it is nobody's fault and no suspect of the plan.
        gone = chance.choice(nodes)
        return kind, fleet._replace(nodes=tuple(name for name in nodes if name != gone))
    return "healthy", fleet


def _adjacent(nodes: tuple[str, ...], chance: random.Random) -> tuple[str, str]:
    index = chance.randrange(len(nodes) - 1)
    return nodes[index], nodes[index + 1]


def fault_of(kind: str, fleet: Fleet, chance: random.Random) -> Fault:
    """Draw what ails a node of one of the kinds of `SINGLE`."""
    alone = chance.random() < 0.5
    if kind == "hang":
        phase = chance.choice(("context", "init", "init-calling", "call", "run"))
        return Fault("hang", phase=phase, by_itself=alone or phase == "context")
    if kind == "error":
        return Fault("error", phase=chance.choice(("run", "remote")), by_itself=alone)
    if kind in ("sender", "receiver"):
        return Fault(kind, by_itself=alone)
    rail = chance.randrange(fleet.gpus) if kind == "rail" else -1
    return Fault("slow", chance.uniform(0.2, 0.72), by_itself=alone and kind != "rail", rail=rail)


def play(
    kind: str,
    fleet: Fleet,
    chance: random.Random,
    *,
    noise: bool = True,
    sustain_s: float = 0.0,
    next_step: Callable[..., Round | Decision] = plan.next_step,
) -> History:
    """Run one burn-in against the plan. `noise` False leaves the jitter only; `sustain_s` (seconds) of traffic are in it."""
    sky = weather(fleet, chance) if noise else Weather(None, None, still=True)
    limits = rules.limits(DEADLINE_S)
    pair_s = chance.uniform(4.0, 8.0)
    rounds: list[RoundResult] = []
    seconds = 0.0
    while True:
        step = next_step(fleet.nodes, rounds, leaves=fleet.leaves)
        whole = isinstance(step, Round) and max(map(len, step.groups)) > 8
        # As `cohort` does it: once with all nodes, and again with the others where it showed in such traffic only.
        lasts_s = sustain_s if isinstance(step, Round) and step.kind in rules.LASTING else rules.again_s(rounds)
        costs_s = pair_s * (2 if whole else 1) + lasts_s
        if isinstance(step, Round) and seconds + costs_s > DEADLINE_S:
            step = next_step(fleet.nodes, rounds, leaves=fleet.leaves, conclude=True)
            if isinstance(step, Round):
                step = Decision(Verdict(FAIL, (), "no time was left to find the culprit", "burnin.deadline"))
        if isinstance(step, Decision):
            return History(kind, fleet, tuple(rounds), step, seconds, _end(fleet, step))
        results = run(fleet, sky, len(rounds), step, chance, sustain_s=lasts_s)
        rounds.append(RoundResult(step.kind, results))
        if any(group.outcome == HANG for group in results):
            costs_s = (limits.whole_s if whole else limits.group_s) + limits.abort_s
        seconds += costs_s


def throttled(chance: random.Random, *, count: int = 0) -> History:
    """Play a burn-in with a node that is slow only once its cards are hot, while the traffic is sustained."""
    _, fleet = draw(chance, kind="healthy", count=count)
    onset_s = chance.uniform(HEATED_S + 0.2, HEATED_S + 0.7 * SUSTAIN_S)
    fault = fault_of("slow", fleet, chance)._replace(onset_s=onset_s)
    fleet = fleet._replace(faults={chance.choice(fleet.nodes): fault})
    return play("throttled", fleet, chance, sustain_s=SUSTAIN_S)


def barely(chance: random.Random, *, count: int = 0) -> History:
    """Play a burn-in with a node that is just below the floor, where noise hides it as often as not."""
    kind, fleet = draw(chance, kind=chance.choice(("slow", "rail")), count=count)
    faults = {name: fault._replace(factor=chance.uniform(0.72, 0.84)) for name, fault in fleet.faults.items()}
    return play(kind, fleet._replace(faults=faults), chance)


def second_offence(chance: random.Random, *, guilty: bool) -> History:
    """Play a node in two jobs of two nodes each, with another partner each time, and the first partner with somebody else in
    between; return the second job, judged with what the history says. `guilty`: the node is slow; else none of them is."""
    node, one, two, three = nodes = tuple(f"n{i}" for i in range(4))
    switch = _place(nodes, chance, least=4)
    fault = fault_of("slow", Fleet(nodes, 2, switch, {}, {}), chance)._replace(by_itself=False)
    fleet = Fleet(nodes, 2, switch, {}, {node: fault} if guilty else {}, speed=chance.uniform(0.95, 1.05))
    pasts: list[Past] = []
    for time, pair in enumerate(((node, one), (one, three), (node, two))):
        job = fleet._replace(nodes=pair, faults={n: f for n, f in fleet.faults.items() if n in pair})
        given = tuple(pasts)
        history = play(
            "second", job, chance, next_step=functools.partial(plan.next_step, priors=given, now=3600.0 * time)
        )
        found = history.decision
        pasts.append(
            Past(
                3600.0 * time,
                str(time),
                pair,
                found.verdict.verdict,
                found.verdict.rule,
                found.suspects,
                found.culprits,
                history.rounds[0].groups[0].busbw_gbs,
            )
        )
    return history


def _end(fleet: Fleet, decision: Decision) -> str:
    guilty = set(fleet.faults)
    named = set(decision.culprits)
    if named - guilty:
        return BAD
    if named:
        return NAMED if named == guilty else PARTLY
    stopped = decision.verdict.verdict in (FAIL, UNKNOWN)
    ailing = bool(guilty or fleet.bad_pair or fleet.slow_leaf)
    if stopped:
        return OPEN
    return MISSED if ailing else PASSED


def failed_first(history: History) -> bool:
    """Say whether the first run of a history failed."""
    return any(group.outcome != OK for group in history.rounds[0].groups)
