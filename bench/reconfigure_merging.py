"""What jobs pay for fewer switches: our way of merging beside others of as few switches, by where a job would then lie.

Pure and seeded; Slurm's scheduler is not asked (`bench/placement` does that). A job begins at a node by chance, takes the lowest
switch of the file above it that holds it, fills its largest leaf and those nearest to that, and ends in the smallest near leaf
that holds the rest, as topology/tree goes about it. Which nodes of a leaf it gets is chance, since the file does not tell them
apart. What it pays is how many network nodes of each true layer it lies below, by the fewest that could hold it; the figure is
the mean over layers and over jobs of 2, 4, 8, ... nodes up to a quarter of the fleet, less one, in percent.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from slurm_ext.topology.budget import within
from slurm_ext.topology.budget_loss import doublings, fewest, sizes_of
from slurm_ext.topology.build import build
from slurm_ext.topology.model import Placement, Tree


class Fleet(NamedTuple):
    """What is said of it, and the trees that are like that: what jobs pay is the mean over them."""

    name: str
    trees: tuple[Tree, ...]


def fleets() -> Iterable[Fleet]:
    """Yield fleets of some 1,000 to 2,000 nodes: even, uneven, with thin middles, of two tiers."""
    chance = random.Random(5)
    yield Fleet(
        "16 a leaf, 16 leaves a middle", (_tree(((f"b{i // 256}", f"c{i // 16}") for i in range(2048)), chance),)
    )
    uneven = []
    for _ in range(3):
        sizes = [chance.choice((1, 2, 3, 5, 8, 13, 16, 20, 32)) for _ in range(160)]
        paths = [(f"b{leaf // 16}", f"c{leaf}") for leaf, size in enumerate(sizes) for _ in range(size)]
        uneven.append(_tree(paths, chance))
    yield Fleet("1 to 32 a leaf, 16 leaves a middle", tuple(uneven))
    yield Fleet("16 a leaf, 2 leaves a middle", (_tree(((f"b{i // 32}", f"c{i // 16}") for i in range(2048)), chance),))
    yield Fleet("8 a leaf, no middle", (_tree(((f"c{i // 8}",) for i in range(1024)), chance),))


def _tree(paths: Iterable[tuple[str, ...]], chance: random.Random) -> Tree:
    made = [Placement(f"n{i + 1}", path=("a", *path), zone="z") for i, path in enumerate(paths)]
    chance.shuffle(made)
    return build(made)


def by_tiers(tree: Tree, most: int) -> Tree:
    """Give up the tier nearest to the nodes, whole, until few enough are left."""
    while len(tree.switches) > most:
        depth = max(len(placement.path) for placement in tree.placements)
        if depth < 2:
            break
        tree = build(p._replace(path=p.path[: depth - 1]) for p in tree.placements)
    return tree


def in_equal_groups(tree: Tree, most: int) -> Tree:
    """Merge all leaves below each parent in groups of one size, in the order of their ids."""
    leaves: dict[tuple[str, ...], list[str]] = {}
    for path in sorted({placement.path for placement in tree.placements}, key=lambda path: (len(path), path)):
        leaves.setdefault(path[:-1], []).append(path[-1])
    for size in range(2, len(tree.placements)):
        group = {(*above, leaf): i // size for above, mine in leaves.items() for i, leaf in enumerate(mine)}
        smaller = build(p._replace(path=(*p.path[:-1], f"{p.path[-2]}+{group[p.path]}")) for p in tree.placements)
        if len(smaller.switches) <= most:
            return smaller
    return tree


def by_chance(tree: Tree, most: int) -> Tree:
    """Merge leaves below one parent by chance until few enough are left."""
    chance = random.Random(7)
    name = {placement.path: placement.path for placement in tree.placements}
    while True:
        smaller = build(p._replace(path=name[p.path]) for p in tree.placements)
        if len(smaller.switches) <= most:
            return smaller
        leaves: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for path in sorted(set(name.values())):
            leaves.setdefault(path[:-1], []).append(path)
        able = [mine for mine in leaves.values() if len(mine) > 1]
        if not able:
            return by_tiers(smaller, most)
        into: dict[tuple[str, ...], tuple[str, ...]] = {}
        for _ in range(max(1, (len(smaller.switches) - most) // 2)):
            first, second = chance.sample(chance.choice(able), 2)
            if first not in into and second not in into and first not in into.values():
                into[second] = first
        name = {path: into.get(leaf, leaf) for path, leaf in name.items()}


Way: TypeAlias = Callable[[Tree, int], Tree]

OTHERS: Mapping[str, Way] = {
    "equal": in_equal_groups,
    "chance": by_chance,
    "tiers": by_tiers,
}


def paid(tree: Tree, truth: Tree, samples: int) -> float:
    """Return what jobs pay below a tree of the same nodes, by the true one: 0 where every job is as close as it can be."""
    chance = random.Random(11)
    true_paths, paths = truth.paths(), tree.paths()
    nodes = sorted(paths)
    depth = max(map(len, true_paths.values()))
    layers = [
        sizes_of(_counts(path[layer] for path in true_paths.values() if len(path) > layer)) for layer in range(1, depth)
    ]
    below: dict[str, dict[str, list[str]]] = {}
    for node in (node for leaf in tree.switches for node in leaf.nodes):
        for switch in paths[node]:
            below.setdefault(switch, {}).setdefault(paths[node][-1], []).append(node)
    ways = {path[-1]: path for path in paths.values()}
    held = {switch: sum(map(len, leaves.values())) for switch, leaves in below.items()}
    found = []
    for size in doublings(2, len(nodes) // 4):
        for _ in range(samples):
            start = paths[chance.choice(nodes)]
            switch = next(switch for switch in reversed(start) if held[switch] >= size)
            job = _taken(below[switch], ways, size, chance)
            for layer, sizes in enumerate(layers, 1):
                spanned = len({true_paths[node][layer] for node in job})
                found.append(spanned / fewest(sizes, size) - 1)
    return 100 * statistics.fmean(found)


def _taken(
    leaves: Mapping[str, list[str]], ways: Mapping[str, tuple[str, ...]], size: int, chance: random.Random
) -> list[str]:
    """Return the nodes of a job: of the largest leaf, then of those nearest to it, the last one as small as can be.

    Among equals the next in the file comes first.
    """
    first = max(leaves, key=lambda leaf: (len(leaves[leaf]), chance.random()))
    near = {leaf: sum(a == b for a, b in zip(ways[leaf], ways[first], strict=False)) for leaf in leaves}
    place = {leaf: number for number, leaf in enumerate(leaves)}
    order = sorted(
        leaves, key=lambda leaf: (-near[leaf], -len(leaves[leaf]), (place[leaf] - place[first]) % len(place))
    )
    job: list[str] = []
    while (left := size - len(job)) > 0:
        able = [leaf for leaf in order if near[leaf] == near[order[0]] and len(leaves[leaf]) >= left]
        leaf = able[-1] if able else order[0]
        order.remove(leaf)
        job += chance.sample(leaves[leaf], min(left, len(leaves[leaf])))
    return job


def _counts(names: Iterable[str]) -> list[int]:
    counted: dict[str, int] = {}
    for name in names:
        counted[name] = counted.get(name, 0) + 1
    return list(counted.values())


def figures(full: bool) -> Mapping[str, float]:
    """Print what jobs pay for each way and budget, and return what ours costs by the others: within a budget, and of as many switches."""
    samples, same_number, allowed = 100 if full else 25, [], []
    print("What jobs pay; in brackets with how many switches, and what ours costs with as many")
    print(f"{'fleet':36} {'switches':>8} " + " ".join(f"{way:>20}" for way in ("unmerged", "ours", *OTHERS)))
    for fleet in fleets():
        size = len(fleet.trees[0].switches)
        ours: dict[int, float] = {}

        def cost(way: Way, most: int, trees: tuple[Tree, ...] = fleet.trees) -> float:
            return statistics.fmean(paid(way(tree, most), tree, samples) for tree in trees)

        untouched = cost(within, size)
        for share in (0.75, 0.5, 0.25):
            most = max(3, round(share * size))
            ours[most] = cost(within, most)
            cells, others = [f"{untouched:.0f} %", f"{ours[most]:.0f} %"], []
            for way in OTHERS.values():
                few = max(len(way(tree, most).switches) for tree in fleet.trees)
                if few > most:
                    cells.append("not so few")
                    continue
                others.append(cost(way, most))
                if few not in ours:
                    ours[few] = cost(within, few)
                cells.append(f"{others[-1]:.0f} % ({few}: {ours[few]:.0f} %)")
                same_number.append((1 + ours[few] / 100) / (1 + others[-1] / 100))
            allowed.append((1 + ours[most] / 100) / (1 + min(others) / 100))
            print(f"{fleet.name:36} {most:8} " + " ".join(f"{cell:>20}" for cell in cells), flush=True)
    return {
        "ours_over_best_other_most": round(max(allowed), 3),
        "ours_over_same_number_mean": round(statistics.geometric_mean(same_number), 3),
        "ours_over_same_number_most": round(max(same_number), 3),
    }
