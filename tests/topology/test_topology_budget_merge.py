"""Which leaves are merged, against the best there is: every way to divide a few leaves is tried."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator

from slurm_ext.topology.budget_loss import loss, sizes_of
from slurm_ext.topology.budget_merge import merged
from slurm_ext.topology.model import Switch

SIZES = (1, 2, 3, 5, 8, 13, 16, 20, 32)


def divisions(items: list[int]) -> Iterator[list[list[int]]]:
    """Yield every way to divide some numbers into groups."""
    if not items:
        yield []
        return
    for rest in divisions(items[1:]):
        yield [[items[0]], *rest]
        for place, group in enumerate(rest):
            yield [*rest[:place], [items[0], *group], *rest[place + 1 :]]


def parent(sizes: list[int], seed: int) -> list[Switch]:
    leaves = [Switch(f"l{seed}-{i}", "", (), tuple(f"n{i}-{j}" for j in range(size))) for i, size in enumerate(sizes)]
    return [Switch("root", "", tuple(leaf.name for leaf in leaves)), *leaves]


def losses(sizes: list[int], groups: list[list[int]]) -> float:
    return sum(loss({1: sizes_of(sizes[i] for i in group)}, {1: sizes_of(sizes)}) for group in groups)


def ratios(every: list[list[int]]) -> list[float]:
    """Return by how much more than the best division ours loses, for each number of leaves that may be left."""
    found = []
    for seed, sizes in enumerate(every):
        best: dict[int, float] = {}
        for groups in divisions(list(range(len(sizes)))):
            best[len(groups)] = min(best.get(len(groups), float("inf")), losses(sizes, groups))
        for left in range(2, len(sizes)):
            names = [f"l{seed}-{i}" for i in range(len(sizes))]
            ours = [[names.index(name) for name in group] for group in merged(parent(sizes, seed), left + 1, ()).groups]
            alone = [[i] for i in range(len(sizes)) if not any(i in group for group in ours)]
            assert len(ours) + len(alone) == left
            found.append(losses(sizes, ours + alone) / best[left])
    return sorted(found)


def test_of_equal_leaves_no_way_loses_less_down_to_pairs() -> None:
    found = ratios([[16] * leaves for leaves in (4, 5, 6, 7)])
    assert statistics.median(found) < 1.001
    assert max(found) < 1.3


def test_of_uneven_leaves_ours_is_near_the_best() -> None:
    chance = random.Random(1)
    found = ratios([[chance.choice(SIZES) for _ in range(chance.choice((4, 5, 6, 7)))] for _ in range(50)])
    assert statistics.median(found) < 1.05
    assert found[int(0.9 * len(found))] < 1.5
    assert max(found) < 3
