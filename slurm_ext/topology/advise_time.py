"""How the free nodes of a partition grow as running jobs reach their time limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_ext.topology.advise_model import NEVER, NOW, Free, Situation

#: Moments that are looked at: the first ones each by itself, the rest merged into so many. A time that is merged is told as the
#: later one, so it stays an upper bound.
FIRST_MOMENTS, MERGED_MOMENTS = 32, 64


def moments(found: Situation) -> Iterator[tuple[float, Free]]:
    """Yield (seconds from now, free nodes by leaf or block and weight), now first, then each time that more are free.

    The mapping is the same object each time, changed in place.
    """
    free: dict[str, dict[int, int]] = {}
    later: list[tuple[float, str, int]] = []
    for place in found.places:
        if not place.unit:
            continue
        if place.free_at == NOW:
            _more(free, place.unit, place.weight)
        elif place.free_at != NEVER:
            later.append((max(place.free_at - found.now, 0.0), place.unit, place.weight))
    yield 0.0, free
    later.sort()
    times = sorted({when for when, _, _ in later})
    rest = times[FIRST_MOMENTS:]
    step = -(-len(rest) // MERGED_MOMENTS) or 1
    merged = [rest[min(end, len(rest) - 1)] for end in range(step - 1, len(rest) + step - 1, step)]
    index = 0
    for when in (*times[:FIRST_MOMENTS], *merged):
        while index < len(later) and later[index][0] <= when:
            _more(free, later[index][1], later[index][2])
            index += 1
        yield when, free


def everything(found: Situation, *, out: bool) -> Free:
    """Return all nodes, busy or not, by leaf or block and weight of now; with `out` also those that are down or reserved."""
    free: dict[str, dict[int, int]] = {}
    for place in found.places:
        if place.unit and (out or not place.out):
            _more(free, place.unit, place.weight_now)
    return free


def _more(free: dict[str, dict[int, int]], unit: str, weight: int) -> None:
    here = free.setdefault(unit, {})
    here[weight] = here.get(weight, 0) + 1
