"""Which blocks a job gets from topology/block: a model of Slurm's own choice, for whole nodes. Pure.

After `eval_nodes_block` of 24.05 to 26.05. A job without `--segment` is one segment of all its nodes: it must lie in one
planning block (the base or a doubling of it), so it may wait although enough nodes are free. Each segment is chosen by
itself, the block with the fewest free nodes first; of equals the one that Slurm lists last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slurm_ext.topology.advise_model import Blocks, Free, Weighed


def place(
    blocks: Blocks, free: Free, nodes: int, release: tuple[int, int], segment: int = 0, *, consolidate: bool = False
) -> list[dict[str, int]] | None:
    """Return for each segment block -> nodes that a job gets now, or None where it does not start.

    `consolidate` is `--consolidate-segments` (25.11 and later). Without `segment` the whole job is one.
    """
    if segment > nodes and release >= (25, 11):
        segment = 0
    if segment and (nodes % segment or (segment > blocks.base and release < (25, 11))):
        return None
    one = segment or nodes
    shape = _shape(blocks, one)
    left = [dict(free.get(name, {})) for name in blocks.names]
    found = []
    for number in range(nodes // one):
        wanted = nodes if consolidate and segment and not number else 0
        group = _group(blocks, nodes, shape) if wanted else 0
        chosen = _planning_block(left, shape, one, wanted, group)
        if chosen < 0:
            return None
        if wanted:
            together = chosen * shape.per_block // group
            left = [here if index // group == together else {} for index, here in enumerate(left)]
        taken = _Segment(left, shape, chosen, one).made()
        if taken is None:
            return None
        found.append({blocks.names[index]: sum(here.values()) for index, here in taken.items()})
        for index, here in taken.items():
            left[index] = {weight: many - here.get(weight, 0) for weight, many in left[index].items()}
    return found


class _Shape(NamedTuple):
    """How one segment is planned: base blocks in a planning block, base blocks in the next smaller one, and how many of those."""

    per_block: int
    level: int
    lower_level: int
    most_lower: int
    by_lower: bool


def _level(blocks: Blocks, nodes: int) -> tuple[int, int]:
    """Return the planning level that holds so many nodes (-1: only the whole topology), and the next lower one."""
    wanted = (-(-nodes // blocks.base) - 1).bit_length()
    lower = max((level for level in blocks.levels if level <= wanted - 1), default=0) if wanted > 0 else 0
    return min((level for level in blocks.levels if level >= wanted), default=-1), lower


def _shape(blocks: Blocks, nodes: int) -> _Shape:
    level, lower = _level(blocks, nodes)
    per_block = len(blocks.names) if level < 0 else 1 << level
    most = -(-nodes // (blocks.base << lower))
    return _Shape(per_block, level, lower, most, per_block != (1 << lower) * most)


def _group(blocks: Blocks, nodes: int, shape: _Shape) -> int:
    """Return how many base blocks all segments together must lie in."""
    level, _ = _level(blocks, nodes)
    return len(blocks.names) if level < 0 else shape.per_block << (level - shape.level)


def _planning_block(left: list[dict[int, int]], shape: _Shape, nodes: int, wanted: int, group: int) -> int:
    """Return the index of the planning block for a segment, -1 for none: lowest weights first, then the fewest free nodes."""
    best, best_weight, best_free = -1, 0, 0
    for index in range(-(-len(left) // shape.per_block)):
        first = index * shape.per_block
        if wanted:
            start = first // group * group
            if sum(_many(here) for here in left[start : start + group]) < wanted:
                continue
        here = left[first : first + shape.per_block]
        free = sum(map(_many, here))
        if _usable(here, shape) < nodes or not free:
            continue
        weight = min(weight for each in here for weight, many in each.items() if many)
        if best < 0 or weight < best_weight or (weight == best_weight and free <= best_free):
            best, best_weight, best_free = index, weight, free
    return best


def _usable(here: list[dict[int, int]], shape: _Shape) -> int:
    """Return how many nodes a segment may have here: those of as many smaller planning blocks as it would need at best."""
    if not shape.by_lower:
        return sum(map(_many, here))
    size = 1 << shape.lower_level
    lower = sorted((sum(map(_many, here[i : i + size])) for i in range(0, len(here), size)), reverse=True)
    return sum(lower[: shape.most_lower])


class _Segment:
    """One segment within one planning block."""

    def __init__(self, left: list[dict[int, int]], shape: _Shape, chosen: int, nodes: int) -> None:
        first = chosen * shape.per_block
        self.members = range(first, min(first + shape.per_block, len(left)))
        self.free, self.shape, self.nodes, self.most_lower = left, shape, nodes, shape.most_lower
        self.taken: dict[int, dict[int, int]] = {}
        self.required: set[int] = set()

    def made(self) -> dict[int, dict[int, int]] | None:
        last = self._lighter()
        if self.most_lower < 0:
            return None
        for index in sorted(self.required):
            self._take(index, last, self.free[index].get(last, 0))
        if self.nodes <= 0:
            return self.taken
        count = {i: self._rest(i, last) for i in self.members if i not in self.required}
        lower: dict[int, int] = {}
        for index, many in count.items():
            lower[index >> self.shape.lower_level] = lower.get(index >> self.shape.lower_level, 0) + many
        before = self.nodes + 1
        while before != self.nodes:
            before = self.nodes
            best = _Best()
            for index in self.members:
                if index not in self.required:
                    best = self._better(best, index, count, lower)
            if best.block < 0 or (self.most_lower <= 0 and not best.same):
                break
            self.required.add(best.block)
            self._take(best.block, last, count[best.block])
            if self.nodes <= 0:
                return self.taken
            if not best.same:
                self.most_lower -= 1
        return None

    def _lighter(self) -> int:
        """Take all nodes of lower weights that do not suffice; return the weight that does."""
        weights = sorted({weight for i in self.members for weight, many in self.free[i].items() if many})
        enough = weights[-1]
        for weight in weights:
            if sum(self.free[i].get(weight, 0) for i in self.members) >= self.nodes:
                enough = weight
                break
            for index in self.members:
                self._take(index, weight, self.free[index].get(weight, 0))
        before = -1
        for index in sorted(self.taken):
            self.required.add(index)
            if before < 0 or not self._together(before, index):
                self.most_lower -= 1
            before = index
        return enough

    def _rest(self, index: int, weight: int) -> int:
        return self.free[index].get(weight, 0)

    def _together(self, one: int, other: int) -> bool:
        return one >> self.shape.lower_level == other >> self.shape.lower_level

    def _better(self, best: _Best, index: int, count: Mapping[int, int], lower: Mapping[int, int]) -> _Best:
        fits, same = count[index] >= self.nodes, False
        if self.shape.by_lower and not (best.block >= 0 and self._together(best.block, index)):
            same = any(self._together(index, other) for other in self.required)
            this = _Best(index, fits, same)
            if best.block < 0 or (same and not best.same):
                return this
            if not same and best.same:
                return best
            here, there = lower[index >> self.shape.lower_level], lower[best.block >> self.shape.lower_level]
            if (here >= self.nodes) != (there >= self.nodes):
                return this if here >= self.nodes else best
            if here != there:
                # The fewest that are enough, else the most.
                return this if (here < there) == (here >= self.nodes) else best
        if (
            best.block < 0
            or (fits and not best.fits)
            or (not fits and not best.fits and count[index] >= count[best.block])
            or (fits and count[index] <= count[best.block])
        ):
            return _Best(index, fits, best.same)
        return best

    def _take(self, index: int, weight: int, most: int) -> None:
        number = min(most, self.nodes)
        if number > 0:
            here = self.taken.setdefault(index, {})
            here[weight] = here.get(weight, 0) + number
            self.nodes -= number


class _Best(NamedTuple):
    """The best base block so far. `same`: it lies in a smaller planning block that the segment already uses."""

    block: int = -1
    fits: bool = False
    same: bool = True


def _many(here: Weighed) -> int:
    return sum(here.values())


def held(free: Free, segment: int) -> int:
    """Return how many segments of a size all blocks hold together, each within one."""
    return sum(_many(here) // segment for here in free.values())
