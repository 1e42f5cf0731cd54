"""Which leaves a job gets from topology/tree: a model of Slurm's own best fit, for whole nodes. Pure.

After `_eval_nodes_topo` of select/cons_tres (22.05 to 23.11) and of topology/tree (24.05 to 26.05). Nodes of lower weight
come first, whatever their place. Of the rest, the leaf comes first that is nearest to those taken and fits best; ties go to
the one that Slurm lists first. `--switches` changes none of that: it holds the job until this choice spans few enough leaves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from slurm_ext.topology.advise_model import Free, Switches


def place(tree: Switches, free: Free, nodes: int, release: tuple[int, int]) -> dict[str, int] | None:
    """Return leaf -> nodes that a job of so many whole nodes gets now, or None where it does not start."""
    return _Choice(tree, free, nodes, release).made()


def fewest(tree: Switches, nodes_of: Mapping[str, int], nodes: int) -> int:
    """Return how few leaves below one root could hold so many nodes, 0 where no root has them."""
    roots: dict[int, list[int]] = {}
    for leaf in tree.leaves():
        roots.setdefault(tree.above(leaf)[-1], []).append(nodes_of.get(tree.names[leaf], 0))
    return min((found for sizes in roots.values() if (found := fewest_of(sizes, nodes))), default=0)


def fewest_of(sizes: list[int], nodes: int) -> int:
    """Return how few of these sizes add up to so many nodes, 0 where all do not."""
    left = nodes
    for count, size in enumerate(sorted(sizes, reverse=True), 1):
        left -= size
        if left <= 0:
            return count
    return 0


@lru_cache(maxsize=4)  # the same tree is asked at many moments
def _paths(tree: Switches) -> Mapping[int, Sequence[int]]:
    """Return leaf -> itself and the switches above it, nearest first."""
    return {leaf: tree.above(leaf) for leaf in tree.leaves()}


class _Choice:
    def __init__(self, tree: Switches, free: Free, nodes: int, release: tuple[int, int]) -> None:
        self.tree, self.release, self.left = tree, release, nodes
        self.taken: dict[str, int] = {}
        self.paths = _paths(tree)
        names = tree.names
        # A leaf without a free node is never chosen.
        self.free = {leaf: here for leaf in self.paths if (here := free.get(names[leaf]))}
        self.distance: dict[int, float] = dict.fromkeys(self.free, 0)

    def made(self) -> dict[str, int] | None:
        top = self._top()
        if top < 0:
            return None
        self.free = {leaf: here for leaf, here in self.free.items() if top in self.paths[leaf]}
        weights = sorted({weight for here in self.free.values() for weight in here})
        lower: dict[int, int] = dict.fromkeys(self.free, 0)
        last: dict[int, int] = dict.fromkeys(self.free, 0)
        for weight in weights:
            if sum(lower.values()) + sum(last.values()) >= self.left:
                break
            for leaf, here in self.free.items():
                lower[leaf] += last[leaf]
                last[leaf] = here.get(weight, 0)
        count = [0] * len(self.tree.names)
        for leaf in self.free:
            self._add(count, leaf, lower[leaf] + last[leaf])
        required = self._required(lower)
        if self._fill_required(lower, last, count):
            return self.taken
        for switch in required:
            self._move_from(switch)
        self._fill_best(required, last, count)
        return self.taken if self.left <= 0 else None

    def _top(self) -> int:
        """Return the switch below which the job must lie, -1 for none: the highest with the lowest weights, the last of those."""
        count = [0] * len(self.tree.names)
        lightest = [math.inf] * len(self.tree.names)
        for leaf, here in self.free.items():
            for index in self.paths[leaf]:
                count[index] += sum(here.values())
                lightest[index] = min([lightest[index], *(weight for weight, number in here.items() if number)])
        top = -1
        for index, level in enumerate(self.tree.levels):
            if count[index] < self.left or not count[index]:
                continue
            if top < 0 or (level >= self.tree.levels[top] and lightest[index] <= lightest[top]):
                top = index
        return top

    def _required(self, lower: Mapping[int, int]) -> list[int]:
        """Return the switches above nodes that are taken for their weight, in Slurm's order."""
        return sorted({index for leaf, number in lower.items() if number for index in self.paths[leaf]})

    def _fill_required(self, lower: Mapping[int, int], last: Mapping[int, int], count: list[int]) -> bool:
        """Take all lighter nodes, then what else their leaves have; say whether that is enough."""
        for leaf, number in lower.items():
            self._take(leaf, number)
        if not any(lower.values()):
            return False
        moved = 0  # never set back from leaf to leaf, as in Slurm
        for leaf in sorted(leaf for leaf, number in lower.items() if number):
            more = min(last[leaf], self.left)
            self._take(leaf, more)
            if self.left <= 0:
                return True
            moved += more
            if self.release >= (24, 5):
                self._add(count, leaf, -moved)
        return False

    def _fill_best(self, required: list[int], last: Mapping[int, int], count: list[int]) -> None:
        for leaf in required:
            self.free.pop(leaf, None)
        before = self.left + 1
        while before != self.left:
            before, best = self.left, -1
            for leaf in self.free:
                best = self._better(leaf, best, count)
            if best < 0:
                return
            del self.free[best]
            self._move_from(best)
            self._take(best, min(last[best], self.left))
            if self.left <= 0:
                return
            if self.release >= (24, 5):
                self._add(count, best, -count[best])
            count[best] = 0

    def _better(self, leaf: int, best: int, count: list[int]) -> int:
        """Return the better of two leaves, `best` of equals."""
        if best < 0 or math.isinf(self.distance[leaf]) or not count[leaf]:
            return leaf if count[leaf] and not math.isinf(self.distance[leaf]) else best
        sign, fits = self._compare(leaf, best, count)
        # Before 24.05 a nearer leaf must be no worse a fit; since then it only has to fit, or lie below what does.
        nearer = fits if self.release >= (24, 5) else sign >= 0
        if (self.distance[leaf] < self.distance[best] and nearer) or (
            self.distance[leaf] == self.distance[best] and sign > 0
        ):
            return leaf
        return best

    def _compare(self, one: int, other: int, count: list[int]) -> tuple[int, bool]:
        """Return 1 where the first switch fits better, -1 for the other, 0; and whether the first, or what is above it, fits."""
        parents, levels = self.tree.parents, self.tree.levels
        while True:
            fits, other_fits = count[one] >= self.left, count[other] >= self.left
            if fits and other_fits:
                if count[one] != count[other]:
                    return (1 if count[one] < count[other] else -1), fits
                break
            if fits or other_fits:
                return (1 if fits else -1), fits
            if parents[one] == parents[other] or parents[one] < 0 or parents[other] < 0:
                break
            one, other = parents[one], parents[other]
        if count[one] != count[other]:
            return (1 if count[one] > count[other] else -1), fits
        if levels[one] != levels[other]:
            return (1 if levels[one] < levels[other] else -1), fits
        return 0, fits

    def _move_from(self, switch: int) -> None:
        """Add each leaf's distance from a switch, in links."""
        above = {index: steps for steps, index in enumerate(self.tree.above(switch))}
        for leaf in self.free:
            for up, index in enumerate(self.paths[leaf]):
                if index in above:
                    self.distance[leaf] += up + above[index]
                    break
            else:
                self.distance[leaf] = math.inf

    def _add(self, count: list[int], leaf: int, number: int) -> None:
        for index in self.paths[leaf]:
            count[index] = max(0, count[index] + number)

    def _take(self, leaf: int, number: int) -> None:
        if number > 0:
            name = self.tree.names[leaf]
            self.taken[name] = self.taken.get(name, 0) + number
            self.left -= number
