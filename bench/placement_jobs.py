"""The jobs of the placement bench. Pure: the same seed gives the same list of arrival, size and length.

Sizes are powers of two up to a quarter of the nodes; most jobs are small and most of the node time is that of large ones, as on
clusters that train models. A second of the bench stands for a minute of a job: time limits, which Slurm has in minutes, are as
many minutes as the job lasts seconds, so that its backfill weighs jobs against one another as it would.
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

#: A job of twice as many nodes is this much rarer.
RARER = 2**-0.6
#: Lengths are exponential, cut off at these multiples of the mean.
SHORTEST, LONGEST = 0.3, 4.0


class Job(NamedTuple):
    """One job: when it is submitted (seconds from the begin), how many nodes it wants and how long it lasts.

    `counted` is False for those that fill the empty cluster at first.
    """

    arrival_s: float
    nodes: int
    length_s: float
    counted: bool

    @property
    def limit_min(self) -> int:
        """Return the time limit in minutes, one for each second that has begun."""
        return math.ceil(self.length_s)


def sizes(nodes: int) -> list[int]:
    """Return the sizes that jobs come in."""
    return [1 << power for power in range(max(1, (nodes // 4).bit_length()))]


def mix(nodes: int, load: float, *, seed: int, window_s: float, mean_s: float) -> list[Job]:
    """Return jobs that want `load` (a share) of all node seconds of the window, after ones that fill the cluster to `load`.

    The first fifth of the arrivals are not counted either, so that what is counted began in a fabric that was in use.
    """
    rng = random.Random(f"jobs/{seed}/{nodes}/{load}/{float(window_s)}/{float(mean_s)}")
    first: list[Job] = []
    while sum(job.nodes for job in first) < load * nodes:
        size = min(_size(nodes, rng), nodes - sum(job.nodes for job in first))
        # What is left of jobs that began earlier.
        first.append(Job(0.0, size, max(1.0, rng.random() * _length(mean_s, rng)), False))
    work: list[tuple[int, float]] = []
    while sum(size * length for size, length in work) < load * nodes * window_s:
        work.append((_size(nodes, rng), _length(mean_s, rng)))
    arrivals = sorted(rng.uniform(0.0, window_s) for _ in work)
    later = [
        Job(round(arrival, 3), size, round(length, 2), arrival >= window_s / 5)
        for arrival, (size, length) in zip(arrivals, work, strict=True)
    ]
    return first + later


def _size(nodes: int, rng: random.Random) -> int:
    known = sizes(nodes)
    return rng.choices(known, [RARER**power for power in range(len(known))])[0]


def _length(mean_s: float, rng: random.Random) -> float:
    return min(max(rng.expovariate(1 / mean_s), SHORTEST * mean_s), LONGEST * mean_s)
