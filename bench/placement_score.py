"""How well jobs were placed, judged by the true fabric whatever Slurm was told. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from placement_fabric import Fabric, leaf_sizes
from placement_jobs import Job
from placement_log import Run


class Placed(NamedTuple):
    """One job's place: leaves it spans, the fewest in an empty fabric, and the fewest among the nodes that were free as it began.

    `hops` is the mean over its pairs of nodes, `tight` the same for so many nodes in an empty fabric.
    """

    nodes: int
    leaves: int
    ideal: int
    free: int
    hops: float
    tight: float
    wait_s: float


class Measured(NamedTuple):
    """One run of one list of jobs; `late_s` is how far behind its list the bench was at worst with submitting them."""

    placed: tuple[Placed, ...]
    occupancy: float
    late_s: float


class Score(NamedTuple):
    """The figures of some runs of one arm. Leaves and hops are of jobs of two nodes and more, waiting is of all."""

    jobs: int
    leaves_over_ideal: float
    leaves_over_free: float
    on_one_leaf: float
    hops: float
    hops_tight: float
    wait_mean_s: float
    wait_p95_s: float
    occupancy: float
    late_s: float


def fewest(sizes: Iterable[int], nodes: int) -> int:
    """Return how many of some leaves are needed for so many nodes. Raise ValueError where all are too few."""
    left = nodes
    for count, size in enumerate(sorted(sizes, reverse=True), start=1):
        left -= size
        if left <= 0:
            return count
    raise ValueError(f"{nodes} nodes are more than there are")


def mean_hops(fabric: Fabric, nodes: Sequence[str]) -> float:
    """Return the mean over all pairs of nodes of the links between them: 2 below one leaf, 4 below one group, and so on."""
    pairs = len(nodes) * (len(nodes) - 1) // 2
    if not pairs:
        return 0.0
    depth = len(fabric[nodes[0]])
    total = 2 * depth * pairs
    for layer in range(1, depth):
        # Two nodes that share a network node of a layer need not go above it.
        shared = Counter(fabric[node][layer] for node in nodes)
        total -= 2 * sum(count * (count - 1) // 2 for count in shared.values())
    return total / pairs


def tightest_hops(fabric: Fabric, nodes: int) -> float:
    """Return the mean hops of a job that has the empty fabric to itself and fills leaf after leaf, the best of any first leaf."""
    if nodes < 2:
        return 0.0
    best = float("inf")
    sizes = leaf_sizes(fabric)
    for first in {path for path in fabric.values()}:
        near = sorted(
            fabric,
            key=lambda node: (
                -sum(a == b for a, b in zip(fabric[node], first, strict=True)),
                -sizes[fabric[node][-1]],
                fabric[node],
            ),
        )
        best = min(best, mean_hops(fabric, near[:nodes]))
    return best


def place(fabric: Fabric, runs: Mapping[int, Run], jobs: Mapping[int, Job]) -> list[Placed]:
    """Return the places of all counted jobs, in the order in which they began."""
    sizes = leaf_sizes(fabric).values()
    tight = {size: tightest_hops(fabric, size) for size in {job.nodes for job in jobs.values()}}
    # An end before a begin of the same moment: its nodes are free for it.
    events = sorted(
        (at, begins, number) for number, run in runs.items() for at, begins in ((run.began, 1), (run.ended, 0))
    )
    busy: Counter[str] = Counter()
    placed = []
    for _, begins, number in events:
        run = runs[number]
        if not begins:
            busy.subtract(run.nodes)
            continue
        if jobs[number].counted:
            own = set(run.nodes)
            free = Counter(path[-1] for node, path in fabric.items() if busy[node] <= 0 or node in own)
            count = len(run.nodes)
            placed.append(
                Placed(
                    count,
                    len({fabric[node][-1] for node in run.nodes}),
                    fewest(sizes, count),
                    fewest(free.values(), count),
                    mean_hops(fabric, run.nodes),
                    tight[count],
                    max(0.0, run.began - run.submitted),
                )
            )
        busy.update(run.nodes)
    return placed


def measure(fabric: Fabric, runs: Mapping[int, Run], jobs: Mapping[int, Job]) -> Measured:
    """Return what one run gave. Raise ValueError where a job is missing or got another number of nodes than it asked for."""
    if lost := sorted(jobs.keys() - runs.keys()):
        raise ValueError(f"{len(lost)} of {len(jobs)} jobs did not run to their end, the first of them {lost[0]}")
    for number, job in jobs.items():
        if len(set(runs[number].nodes)) != job.nodes:
            raise ValueError(f"job {number} asked for {job.nodes} nodes and got {len(runs[number].nodes)}")
    ours = {number: runs[number] for number in jobs}
    counted = [ours[number].submitted for number, job in jobs.items() if job.counted]
    first = min(run.submitted for run in ours.values())
    return Measured(
        tuple(place(fabric, ours, jobs)),
        _occupancy(ours.values(), (min(counted), max(counted)), len(fabric)),
        max(ours[number].submitted - first - job.arrival_s for number, job in jobs.items()),
    )


def score(several: Sequence[Measured]) -> Score:
    """Return the figures of some runs taken together. Raise ValueError where no job of two nodes fits a leaf."""
    placed = [one for measured in several for one in measured.placed]
    spread = [one for one in placed if one.nodes > 1]
    if not any(one.ideal == 1 for one in spread):
        raise ValueError("no job of two nodes and more was counted: let jobs arrive for longer")
    waits = sorted(one.wait_s for one in placed)
    return Score(
        jobs=len(placed),
        leaves_over_ideal=statistics.fmean(one.leaves / one.ideal for one in spread),
        leaves_over_free=statistics.fmean(one.leaves / one.free for one in spread),
        on_one_leaf=statistics.fmean(one.leaves == 1 for one in spread if one.ideal == 1),
        hops=statistics.fmean(one.hops for one in spread),
        hops_tight=statistics.fmean(one.tight for one in spread),
        wait_mean_s=statistics.fmean(waits),
        wait_p95_s=percentile(waits, 95),
        occupancy=statistics.fmean(measured.occupancy for measured in several),
        late_s=max(measured.late_s for measured in several),
    )


def _occupancy(runs: Iterable[Run], window: tuple[float, float], nodes: int) -> float:
    """Return the share of all node seconds of a window in which a job had the node."""
    begin, end = window
    used = sum(len(run.nodes) * max(0.0, min(run.ended, end) - max(run.began, begin)) for run in runs)
    return used / (nodes * (end - begin))


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the value of sorted ones below or at which so many percent lie."""
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))]
