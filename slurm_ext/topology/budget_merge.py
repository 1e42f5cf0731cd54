"""Which leaves of a tree are merged, and which tiers are left out, so that few switches are left and least is lost. Pure.

Leaves are merged with leaves below the same parent only: smallest with smallest, pairs before fours. A network node whose leaves
are all one is a leaf itself, and may then be merged with its own siblings. One whose leaves tell nearly all may be left out
alone. Whatever loses least for each switch saved comes first (budget_loss.py).

What is chosen changes little when nodes come and go: sizes are counted in doublings, and who goes with whom is decided by
hashes of names, nearest first, so that a leaf that appears pushes few others aside. The order of the input decides nothing.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from slurm_ext.topology.budget_loss import Shape, Sizes, loss, loss_without, sizes_of, together
from slurm_ext.topology.model import Switch


class Merged(NamedTuple):
    """What becomes of a tree: groups of siblings that are one leaf, switches that are a leaf now, and those that are left out.

    Names are those of the original tree.
    """

    groups: tuple[tuple[str, ...], ...]
    collapsed: frozenset[str]
    left_out: frozenset[str]


class _Group(NamedTuple):
    """Siblings that are one leaf. `at`: where they stand among hashes; `doubling`: the nodes, as a power of two."""

    at: int
    members: tuple[str, ...]
    doubling: int
    shape: Shape


class _Merge(NamedTuple):
    """Two groups made one, what that loses, and how many switches it saves; the last one below a parent has no `second`."""

    first: _Group
    second: _Group | None
    lost: float
    saved: int


class _Step(NamedTuple):
    """Merges that are done together, and what they lose and save."""

    merges: list[_Merge]
    lost: float
    saved: int


class _Plan:
    """Steps of all parents on a heap, the cheapest for each switch first."""

    def __init__(self, switches: Sequence[Switch], kept: Collection[str]) -> None:
        self._kept = kept
        self._below = {switch.name: switch.switches for switch in switches if switch.switches}
        self._parent = {child: name for name, children in self._below.items() for child in children}
        self._depth: dict[str, int] = {}
        for switch in switches:  # parents come first
            self._depth[switch.name] = self._depth.get(self._parent.get(switch.name, ""), -1) + 1
        self._nodes = {switch.name: len(switch.nodes) for switch in switches}
        for switch in reversed(switches):
            if switch.name in self._parent:
                self._nodes[self._parent[switch.name]] += self._nodes[switch.name]
        self._leaf: dict[str, _Group] = {}
        self._groups: dict[str, dict[tuple[str, ...], _Group]] = {}
        self._steps: dict[str, deque[_Step]] = {}
        self._waiting: dict[str, int] = {}
        self._sizes_below: dict[str, Sizes] = {}
        self._version: dict[str, int] = {}
        self._heap: list[tuple[float, int, str, int, bool]] = []
        self.collapsed: set[str] = set()
        self.left_out: set[str] = set()
        self.count = len(switches)
        by_layer: dict[int, list[int]] = {}
        for switch in switches:
            if not switch.switches and switch.name not in kept:
                self._leaf[switch.name] = self._group(switch.name, {})
            by_layer.setdefault(self._depth[switch.name], []).append(self._rounded(switch.name))
        self._fabric: Shape = {layer: sizes_of(sizes) for layer, sizes in by_layer.items()}
        for name, children in self._below.items():
            self._waiting[name] = sum(child in self._below for child in children)
        for name in self._below:
            if not self._waiting[name]:
                self._ready(name)

    def reduce(self, most: int) -> None:
        """Take the cheapest steps until at most so many switches are left, or no step is."""
        while self.count > most and self._heap:
            _, _, name, version, leave_out = heapq.heappop(self._heap)
            if version != self._version[name]:
                continue
            if leave_out:
                self._leave_out(name)
                continue
            for merge in self._steps[name].popleft().merges:
                self._merge(name, merge)
                if self.count <= most:
                    break
            self._offer(name)

    def groups(self) -> list[tuple[str, ...]]:
        """Return the groups of two and more below parents that are still there."""
        return [
            members
            for name, groups in self._groups.items()
            if name not in self.collapsed
            for members in groups
            if len(members) > 1
        ]

    def _group(self, name: str, below: Shape) -> _Group:
        nodes = self._rounded(name)
        at = int.from_bytes(hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).digest(), "big")
        return _Group(at, (name,), nodes.bit_length() - 1, {**below, self._depth[name]: ((nodes, 1),)})

    def _rounded(self, name: str) -> int:
        """Return the nodes below a switch, up to a power of two: a node more or less changes nothing then."""
        return 1 << (max(1, self._nodes[name]) - 1).bit_length()

    def _ready(self, name: str) -> None:
        """Plan the merges below a parent, all of whose children are leaves now."""
        mine = [self._leaf[child] for child in self._below[name] if child in self._leaf]
        self._groups[name] = {group.members: group for group in mine}
        merges, last = _merges(mine, self._fabric)
        # What nobody knows the place of is never merged, and where it hangs stays.
        if last is not None and len(mine) == len(self._below[name]):
            merges.append(_Merge(last, None, 0.0, 1))
        self._steps[name] = _cheapest(merges)
        self._offer(name)

    def _offer(self, name: str) -> None:
        """Put the next steps below a parent on the heap; what was there of it before counts no longer."""
        version = self._version[name] = self._version.get(name, 0) + 1
        if name in self.collapsed:
            return
        if steps := self._steps[name]:
            merges, lost, saved = steps[0]
            if name in self.left_out and merges[-1].second is None:
                # It comes back as a leaf: that saves one less, and what leaving it out lost is lost no more.
                lost, saved = lost - self._loss_without(name), saved - 1
            heapq.heappush(self._heap, (lost / saved, merges[0].first.at, name, version, False))
        groups = self._groups[name]
        if len(groups) > 1 and name in self._parent and name not in self.left_out:
            at = min(group.at for group in groups.values())
            heapq.heappush(self._heap, (self._loss_without(name), at, name, version, True))

    def _loss_without(self, name: str) -> float:
        of_leaf = 1 << max(group.doubling for group in self._groups[name].values())
        return loss_without(self._rounded(name), of_leaf, self._siblings(self._parent[name]))

    def _siblings(self, parent: str) -> Sizes:
        if parent not in self._sizes_below:
            below = (child for child in self._below[parent] if child not in self._kept)
            self._sizes_below[parent] = sizes_of(self._rounded(child) for child in below)
        return self._sizes_below[parent]

    def _leave_out(self, name: str) -> None:
        near = (self._parent[name], *self._below[name])
        if not self.left_out.isdisjoint(near):
            return
        self.left_out.add(name)
        self.count -= 1
        self._offer(name)

    def _merge(self, name: str, merge: _Merge) -> None:
        groups = self._groups[name]
        if merge.second is None:
            self._collapse(name, merge.first)
            return
        for part in (merge.first, merge.second):
            del groups[part.members]
        made = _joined(merge.first, merge.second)
        groups[made.members] = made
        self.count -= 1

    def _collapse(self, name: str, last: _Group) -> None:
        """Make a leaf of a parent whose children are one."""
        self.collapsed.add(name)
        if name in self.left_out:
            self.left_out.remove(name)
        else:
            self.count -= 1
        self._leaf[name] = self._group(name, last.shape)
        if parent := self._parent.get(name):
            self._waiting[parent] -= 1
            if not self._waiting[parent]:
                self._ready(parent)


def _merges(groups: Sequence[_Group], fabric: Shape) -> tuple[list[_Merge], _Group | None]:
    """Return the merges that make one group of all, smallest with smallest, and that group (None where there is none)."""
    pools: dict[int, list[_Group]] = {}
    for group in groups:
        pools.setdefault(group.doubling, []).append(group)
    found: list[_Merge] = []

    def merge(first: _Group, second: _Group, doubling: int) -> None:
        made = _joined(first, second)
        lost = loss(made.shape, fabric) - loss(first.shape, fabric) - loss(second.shape, fabric)
        lost = round(lost, 6)  # equals are equal, whatever they were summed of
        found.append(_Merge(first, second, lost, 1))
        pools.setdefault(max(made.doubling, doubling + 1), []).append(made)

    while pools:
        doubling = min(pools)
        pairs, alone = _pairs(pools.pop(doubling))
        for first, second in pairs:
            merge(first, second, doubling)
        if alone is None:
            continue
        if not pools:
            return found, alone
        # It is smaller than all others, and goes with the nearest of those next in size.
        others = pools[min(pools)]
        nearest = min(others, key=lambda group: (abs(group.at - alone.at), group))
        others.remove(nearest)
        if not others:
            del pools[min(pools)]
        merge(alone, nearest, nearest.doubling - 1)
    return found, None


def _pairs(groups: Iterable[_Group]) -> tuple[list[tuple[_Group, _Group]], _Group | None]:
    """Return pairs of neighbours among hashes, the nearest first, until at most one is alone."""
    left = sorted(groups)
    found: list[tuple[_Group, _Group]] = []
    while len(left) > 1:
        taken: set[int] = set()
        for place in sorted(range(len(left) - 1), key=lambda i: (left[i + 1].at - left[i].at, left[i].at)):
            if place not in taken and place + 1 not in taken:
                taken |= {place, place + 1}
                found.append((left[place], left[place + 1]))
        left = [group for place, group in enumerate(left) if place not in taken]
    return found, left[0] if left else None


def _joined(first: _Group, second: _Group) -> _Group:
    shape = together(first.shape, second.shape)
    nodes = max(sum(size * count for size, count in sizes) for sizes in shape.values())
    members = tuple(sorted((*first.members, *second.members)))
    return _Group(min(first.at, second.at), members, (nodes - 1).bit_length(), shape)


def _cheapest(merges: Iterable[_Merge]) -> deque[_Step]:
    """Return merges in steps, each of them dearer for a switch than the one before: what comes cheaper later is taken along."""
    steps: deque[_Step] = deque()
    for merge in merges:
        step = _Step([merge], merge.lost, merge.saved)
        while steps and steps[-1].lost / steps[-1].saved > step.lost / step.saved:
            before = steps.pop()
            before.merges.extend(step.merges)
            step = _Step(before.merges, before.lost + step.lost, before.saved + step.saved)
        steps.append(step)
    return steps


def merged(switches: Sequence[Switch], most: int, kept: Collection[str]) -> Merged:
    """Return how a tree (parents first) comes to have at most so many switches, as far as it can; `kept` leaves stay as they are."""
    plan = _Plan(switches, kept)
    plan.reduce(most)
    return Merged(tuple(plan.groups()), frozenset(plan.collapsed), frozenset(plan.left_out))
