"""How much of its time limit a job gets back for what its gate took. Pure.

Slurm lets the limit run during the prolog, and counts it in minutes.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

#: A gate of less than this (seconds) is not worth an act: it is less than what rounding gives or takes.
WORTH_S = 10.0

_SAID = re.compile(r"(\d+) min -> (\d+) min\b")


class Raise(NamedTuple):
    """A limit to set (minutes), and why in words; `parse` reads the words again."""

    limit_min: int
    said: str


def raised(*, limit_min: int, gate_s: float, partition_max_min: int, before: str = "") -> Raise | None:
    """Return the new limit for a job whose gate took `gate_s` seconds, or None where there is nothing to give.

    `limit_min` is what Slurm has now, -1 for none; `partition_max_min` is never exceeded (-1: none). `before` are the words
    of the last raise of an earlier run: what it added is no part of the limit that its owner set.
    """
    if limit_min < 0 or gate_s < WORTH_S:
        return None
    own = limit_min
    if (found := parse(before)) is not None and found[1] == limit_min:
        own = found[0]
    wanted = own + math.ceil(gate_s / 60)
    if partition_max_min >= 0:
        wanted = min(wanted, partition_max_min)
    if wanted <= limit_min:
        return None
    return Raise(wanted, f"{own} min -> {wanted} min: the gate took {gate_s:.0f} s")


def parse(said: str) -> tuple[int, int] | None:
    """Return (the owner's own limit, the limit that was set) in minutes from the words of a raise, or None."""
    found = _SAID.match(said)
    return (int(found[1]), int(found[2])) if found else None


def duration(*, start: float, seen: float | None, ended: float | None, now: float) -> float | None:
    """Return how long (seconds) a gate took that began at `start`, or None where nobody knows.

    `seen` is when the job was last seen in it, `ended` when the last of its hooks that we know of said it was done. Clocks of
    nodes differ, so neither may lie outside the run.
    """
    known = [when for when in (seen, ended) if when is not None]
    if not known or not start:
        return None
    return max(0.0, min(max(known), now) - start)
