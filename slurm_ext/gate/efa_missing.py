"""Which EFA devices are not there: by the type's published names, else by the rhythm of the PCI buses that are there. Pure."""

from __future__ import annotations

from collections.abc import Collection

from slurm_ext.aws import efa_types
from slurm_ext.patterns import pattern

_PLACE = pattern(r"rdmap(\d+)s(\d+)")

#: Names more than this part of a type's devices, and it is one event of the node, not of single devices.
_NAMED_PART = 4

#: No stride between the groups of devices of one type is longer (p5en: 25 buses).
_STRIDE_MAX = 64


def missing(present: Collection[str], expected: int, instance_type: str = "") -> tuple[str, ...]:
    """Return the names of the devices that are not there; empty where the evidence does not tell which, or all are there."""
    lacking = expected - len(present)
    if lacking <= 0 or lacking > max(1, expected // _NAMED_PART):
        return ()
    known = efa_types.efa_names(instance_type)
    if len(known) == expected and set(present) <= set(known):
        return tuple(name for name in known if name not in present)
    return _by_rhythm(present, expected) or _by_number(present, expected)


def _by_number(present: Collection[str], expected: int) -> tuple[str, ...]:
    """Return the gaps in efa_0, efa_1, ... of older user spaces, where the last number is there."""
    numbered = [f"efa_{at}" for at in range(expected)]
    gap = set(present) <= set(numbered) and numbered[-1] in present
    return tuple(name for name in numbered if name not in present) if gap else ()


def _by_rhythm(present: Collection[str], expected: int) -> tuple[str, ...]:
    """Return the gaps in groups of neighbouring buses at one stride, where one such order alone fits what is there."""
    places = [found for name in present if (found := _PLACE.fullmatch(name))]
    slots = {int(found[2]) for found in places}
    if len(places) != len(present) or len(slots) != 1 or expected < 4:
        return ()
    buses = {int(found[1]) for found in places}
    first, last = min(buses), max(buses)
    fitting: set[frozenset[int]] = set()
    for group in (size for size in range(1, expected + 1) if expected % size == 0):
        count = expected // group
        for stride in range(group, _STRIDE_MAX if count > 1 else group + 1):
            for base in range(max(0, last - stride * (count - 1) - group + 1), first + 1):
                order = frozenset(base + stride * at + place for at in range(count) for place in range(group))
                if buses <= order:
                    fitting.add(order)
    if len(fitting) != 1:
        return ()
    slot = slots.pop()
    return tuple(f"rdmap{bus}s{slot}" for bus in sorted(next(iter(fitting)) - buses))
