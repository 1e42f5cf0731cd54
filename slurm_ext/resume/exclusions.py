"""Which nodes a job is kept away from, for how long, and when not. Pure.

Convicted nodes must be left out, or the job is held. Suspects only should be: two nodes that fail together convict neither,
so both are left out for this job where enough nodes remain, and for a day. What the job itself requires is never left out:
Slurm would answer with BadConstraints, and for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: Small clusters may still lose this many nodes to exclusion, as drain.max_per_hour allows for drains.
EXCLUDE_MIN = 2
#: A suspect may be used again by the same job after this long (seconds), a convicted node that is in use after so long.
SUSPECT_EXPIRES_S, CULPRIT_EXPIRES_S = 86400.0, 7 * 86400.0

#: So many names stand in a sentence; of more there is the number.
_NAMED = 4


class Ground(NamedTuple):
    """What bounds exclusions: how many nodes the job's partition has, which of them are in use at all (None: not known), how
    many it needs, the nodes it requires itself (--nodelist), and the percentage of all nodes that may be left out."""

    total: int = 0
    usable: frozenset[str] | None = None
    needed: int = 1
    required: frozenset[str] = frozenset()
    max_percent: float = 10.0


class Choice(NamedTuple):
    """Our whole list of nodes to leave out, a refusal in words where a convicted node does not fit, and what was dropped."""

    exclude: tuple[str, ...] = ()
    refused: str = ""
    notes: tuple[str, ...] = ()


def allowed(ground: Ground) -> int:
    """Return how many nodes may be left out at most; where no node is known, the small number that always may."""
    return max(EXCLUDE_MIN, math.floor(ground.total * ground.max_percent / 100))


def choose(convicted: Sequence[str], suspects: Sequence[str], former: Sequence[str], ground: Ground) -> Choice:
    """Return which nodes to leave out: the convicted, then suspects, then what was left out before, while there is room."""
    own = [node for node in dict.fromkeys([*convicted, *suspects, *former]) if node in ground.required]
    notes = [f"{_names(own)} {_are(own)} required by the job itself (--nodelist), so not left out"] if own else []
    chosen: list[str] = []
    for group, what in ((convicted, "convicted"), (suspects, "suspect"), (former, "former")):
        wanted = [node for node in dict.fromkeys(group) if node not in ground.required and node not in chosen]
        dropped = []
        for node in wanted:
            # Others may be out of use for a while only: that is no reason to take a convicted node again.
            if _leaves_room([*chosen, node], ground) and (
                what == "convicted" or _leaves_usable([*chosen, node], ground)
            ):
                chosen.append(node)
            elif what == "convicted" and ground.usable is not None and node not in ground.usable:
                notes.append(f"{node} is out of use anyway, and not left out: {_room(ground)}")
            else:
                dropped.append(node)
        if dropped and what == "convicted":
            return Choice((), _refusal(len(wanted), ground), tuple(notes))
        if dropped:
            again = " again" if what == "former" else ", though suspect"
            notes.append(f"{_names(dropped)} may be used{again}: {_room(ground)}")
    return Choice(tuple(sorted(chosen)), "", tuple(notes))


def blocking(exclude: Iterable[str], ground: Ground) -> str:
    """Return in words why a list that was set can no longer stay, empty where it can: too few other nodes are left."""
    names = sorted(exclude)
    if ground.usable is not None and len(ground.usable - set(names)) < ground.needed <= len(ground.usable):
        return f"without {_names(names)} {len(ground.usable - set(names))} nodes remain, and it needs {ground.needed}"
    return ""


def _leaves_room(names: Sequence[str], ground: Ground) -> bool:
    """Say whether the job could ever start without these nodes, and the site lets so many be left out."""
    return len(names) <= allowed(ground) and (not ground.total or ground.total - len(names) >= ground.needed)


def _leaves_usable(names: Sequence[str], ground: Ground) -> bool:
    """Say whether enough nodes remain that can be used now; a node that is out of use takes nothing away."""
    if ground.usable is None:
        return True
    taken = ground.usable & set(names)
    return not taken or len(ground.usable) - len(taken) >= ground.needed


def _refusal(count: int, ground: Ground) -> str:
    some = "1 culprit" if count == 1 else f"{count} culprits"
    return f"{some} cannot be excluded: {_room(ground)}, at most {allowed(ground)} may be left out"


def _room(ground: Ground) -> str:
    if ground.usable is None:
        return f"{ground.total} nodes, {ground.needed} needed"
    return f"{ground.total} nodes, {len(ground.usable)} usable for it, {ground.needed} needed"


def _names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + more


def _are(nodes: Sequence[str]) -> str:
    return "is" if len(nodes) == 1 else "are"
