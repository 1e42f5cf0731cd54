"""All figures of the burn-in, each beside what was promised of it; the last line is one JSON object.

`bench/burnin` ends within ten minutes; `--full` simulates and repeats more; `--only plan,control,gate` leaves parts out.
Exit 0 whatever was measured: a machine that is busy with other things misses promises of time, and says so.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from typing import NamedTuple

PARTS = ("plan", "control", "gate")


class Promise(NamedTuple):
    """What a figure was promised to be: at most or at least `bound`; `unit` for the reader."""

    figure: str
    bound: float | None
    at_least: bool = False
    unit: str = ""


PROMISES = (
    Promise("rendezvous_512_s", 1.0, unit="s"),
    Promise("leader_cpu_s_1024", 0.5, unit="s"),
    Promise("healthy_8x8_s", 5.0, unit="s"),
    Promise("hook_cpu_over_bare_python", 6.0, unit="x"),
    Promise("rounds_to_culprit_64", 3, unit="rounds"),
    Promise("histories", 10_000, at_least=True),
    Promise("healthy_drained", 0, unit="nodes"),
    Promise("wrong_culprit", 0, unit="histories"),
    Promise("named_percent_one_culprit", 99.0, at_least=True, unit="%"),
    Promise("cannot_tell", None),
    Promise("worst_overrun_s", 2.0, unit="s"),
)


def main() -> int:
    """Measure what is there and print it."""
    parser = argparse.ArgumentParser(prog="bench/burnin", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="simulate and repeat more")
    parser.add_argument("--only", default=",".join(PARTS), help="some of plan, control, gate, with commas")
    wanted = parser.parse_args()
    found: dict[str, float] = {}
    for part in wanted.only.split(","):
        if part not in PARTS:
            parser.error(f"--only {part}: there are {', '.join(PARTS)}")
        started = time.monotonic()
        measured = importlib.import_module(f"burnin_{part}").figures(wanted.full)
        print(f"({part}: {time.monotonic() - started:.0f} s)\n", flush=True)
        found |= measured
    print(f"{'figure':30} {'measured':>12}   promised, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for promise in PROMISES:
        _print(promise, found.get(promise.figure))
    for name in sorted(found.keys() - {promise.figure for promise in PROMISES}):
        print(f"{name:30} {found[name]:>12g}")
    print(json.dumps({"bench": "burnin", "figures": found}))
    return 0


def _print(promise: Promise, value: float | None) -> None:
    if value is None:
        print(f"{promise.figure:30} {'-':>12}   not measured here")
        return
    words = ""
    if promise.bound is not None:
        kept = value >= promise.bound if promise.at_least else value <= promise.bound
        words = f"{'at least' if promise.at_least else 'at most'} {promise.bound:g} {promise.unit}".rstrip()
        words += "" if kept else "   MISSED"
    print(f"{promise.figure:30} {value:>12g}   {words}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
