"""What it costs jobs where Slurm cannot tell network nodes apart, as numbers, pure.

Slurm keeps a job together below one leaf where it can, and which nodes of that leaf it takes is chance to the network: they are
spread over all that the leaf stands for. So a job of n nodes in a leaf lies below so many network nodes on average, where the
fewest of the fabric that hold n nodes would do. The loss is that ratio less one, summed over jobs of 2, 4, 8, ... nodes, up to
those that fill the leaf: sizes of training jobs are powers of two, and none is known to be more frequent than another.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

#: (nodes, how many network nodes have so many), the largest first.
Sizes: TypeAlias = tuple[tuple[int, int], ...]

#: Layer -> the network nodes of that layer which share one leaf.
Shape: TypeAlias = Mapping[int, Sizes]


class JobCost(NamedTuple):
    """What a job of `nodes` in one leaf of the file pays: network nodes it lies below on average, and the fewest there could be."""

    nodes: int
    spanned: float
    fewest: float


def sizes_of(nodes: Iterable[int]) -> Sizes:
    """Return how many network nodes have how many nodes."""
    return tuple(sorted(Counter(nodes).items(), reverse=True))


def together(first: Shape, second: Shape) -> Shape:
    """Return what one leaf hides in place of two."""
    found: dict[int, Sizes] = {}
    for layer in sorted(first.keys() | second.keys()):
        counted = Counter(dict(first.get(layer, ())))
        counted.update(dict(second.get(layer, ())))
        found[layer] = tuple(sorted(counted.items(), reverse=True))
    return found


def loss(shape: Shape, fabric: Shape) -> float:
    """Return the loss of jobs in one leaf, times its nodes: a job is the likelier there the larger it is. Layers count alike.

    `fabric`: all network nodes of each layer, of which the fewest for a job are.
    """
    return sum(_total(sizes) * extra(sizes, fabric[layer]) for layer, sizes in shape.items())


@lru_cache(maxsize=1 << 16)
def extra(sizes: Sizes, fabric: Sizes) -> float:
    """Return the loss of jobs in a leaf that stands for such network nodes of a layer; 0 for a single one."""
    return sum(spanned(sizes, nodes) / fewest(fabric, nodes) - 1 for nodes in doublings(2, _total(sizes)))


@lru_cache(maxsize=1 << 16)
def loss_without(nodes: int, of_leaf: int, siblings: Sizes) -> float:
    """Return the loss of leaving out a network node with so many nodes, among siblings (itself one) below one parent.

    Jobs too large for one of its leaves take leaves of all siblings by chance then.
    """
    leaves = tuple((max(1, round(size / of_leaf)), count) for size, count in siblings)
    lost = 0.0
    for job in doublings(2, _total(siblings)):
        if job > of_leaf:
            taken = min(math.ceil(job / of_leaf), _total(leaves))
            lost += max(0.0, spanned(leaves, taken) / fewest(siblings, job) - 1)
    return nodes * lost


def spanned(sizes: Sizes, nodes: int) -> float:
    """Return how many network nodes so many nodes lie below on average, chosen by chance (at most all there are)."""
    total = _total(sizes)
    return sum(count * (1 - _missed(total, size, min(nodes, total))) for size, count in sizes)


def fewest(sizes: Sizes, nodes: int) -> int:
    """Return how few network nodes can hold so many nodes."""
    needed, left = 0, nodes
    for size, count in sizes:
        whole = min(count, math.ceil(left / size))
        needed, left = needed + whole, left - whole * size
        if left <= 0:
            break
    return max(1, needed)


def job_cost(leaves: Iterable[Sizes], nodes: int) -> JobCost | None:
    """Return what a job of so many nodes pays on average in a leaf that can hold it, None where there is no such leaf."""
    able = [(_total(sizes), sizes) for sizes in leaves if _total(sizes) >= nodes]
    if not able:
        return None
    weight = sum(total for total, _ in able)
    return JobCost(
        nodes,
        sum(total * spanned(sizes, nodes) for total, sizes in able) / weight,
        sum(total * fewest(sizes, nodes) for total, sizes in able) / weight,
    )


def doublings(first: int, most: int) -> Iterator[int]:
    """Yield first, twice that, and so on, up to most."""
    while first <= most:
        yield first
        first *= 2


def _total(sizes: Sizes) -> int:
    return sum(size * count for size, count in sizes)


def _missed(total: int, size: int, nodes: int) -> float:
    """Return the chance that none of `nodes` out of `total` is among `size` of them."""
    if nodes > total - size:
        return 0.0
    gamma = math.lgamma
    return math.exp(
        gamma(total - size + 1) - gamma(total - size - nodes + 1) - gamma(total + 1) + gamma(total - nodes + 1)
    )
