"""What advice for a job is made of: the topology as Slurm has it, when nodes are free, what is asked, what is advised.

Times are seconds since the epoch; a waiting time is in seconds. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

#: Nodes of a leaf or block, by the weight that Slurm sorts them by: low weights are taken before the topology is looked at.
Weighed = Mapping[int, int]
#: Leaf or block -> its free nodes.
Free = Mapping[str, Weighed]
#: Leaf or block -> how many of its nodes a job gets.
Taken = Mapping[str, int]

#: From this release on Slurm tries a job that finds no placement again with a node less, and less (common_topo_choose_nodes),
#: and finds one now and then: what is refused before only may be.
REFUSES_BEFORE = (25, 11)

TREE, BLOCK, FLAT, OTHER = "tree", "block", "flat", "other"

#: free_at of a node that is free now, and of one whose job has no time limit.
NOW, NEVER = 0.0, math.inf


class Switches(NamedTuple):
    """A tree in Slurm's own order. `parents` are indexes, -1 for a root; level 0 is a leaf."""

    names: tuple[str, ...]
    parents: tuple[int, ...]
    levels: tuple[int, ...]

    def leaves(self) -> list[int]:
        """Return the indexes of the leaves."""
        return [index for index, level in enumerate(self.levels) if level == 0]

    def above(self, index: int) -> list[int]:
        """Return a switch and all above it, nearest first."""
        path = [index]
        while self.parents[path[-1]] >= 0 and len(path) <= len(self.names):
            path.append(self.parents[path[-1]])
        return path


class Blocks(NamedTuple):
    """Base blocks in Slurm's own order, the base size in nodes, and the levels (doublings of the base) that jobs are planned with."""

    names: tuple[str, ...]
    base: int
    levels: tuple[int, ...] = (0, 1, 2, 3, 4)


class Place(NamedTuple):
    """One node: its leaf or block (empty: in none), its weight to Slurm once it is free, when that is.

    `out`: no job gets it (down, drained, reserved). `weight_now`: its weight to Slurm now, busy or not.
    """

    node: str
    unit: str
    weight: int
    free_at: float = NOW
    out: bool = False
    weight_now: int = 0


class Situation(NamedTuple):
    """A partition now."""

    now: float
    partition: str
    release: tuple[int, int]
    version: str
    kind: str
    places: tuple[Place, ...]
    switches: Switches = Switches((), (), ())
    blocks: Blocks = Blocks((), 0)
    #: All nodes of the partition by leaf or block, whatever their state.
    sizes: Mapping[str, int] = {}
    plugin: str = ""
    out: int = 0
    reserved: int = 0
    endless: int = 0
    pending_jobs: int = 0
    pending_nodes: int = 0
    max_switch_wait_s: int = 300
    topo_optional: bool = False
    dragonfly: bool = False
    gpus_per_node: int = 0
    notes: tuple[str, ...] = ()


class Request(NamedTuple):
    """What the job wants. `group_gpus` is the size of its expert- or tensor-parallel groups, 0 for none."""

    nodes: int
    gpus_per_node: int = 0
    group_gpus: int = 0
    patience_s: int = 1800

    @property
    def group_nodes(self) -> int:
        """Return how many nodes one group of GPUs needs, 0 where there is none."""
        return -(-self.group_gpus // self.gpus_per_node) if self.group_gpus and self.gpus_per_node else 0


class Row(NamedTuple):
    """One choice: what to ask for (empty: nothing), what the job would span, when it could start.

    `starts_s` counts from now, None where nobody can tell; `waits_s` is what the choice costs beyond asking nothing (tree) or
    beyond the choice that starts first (block). `held_now` and `held` are segments of that size that all blocks hold
    together, of idle nodes and of all that are up. sbatch refuses what is `refused`; from REFUSES_BEFORE on it only may.
    """

    ask: str
    spans: int
    starts_s: float | None
    waits_s: float | None = None
    segment: int = 0
    held_now: int = 0
    held: int = 0
    refused: bool = False


class Advice(NamedTuple):
    """What is advised: the answer first. `options` are ready to paste behind sbatch, empty for none."""

    options: tuple[str, ...]
    reason: str
    unit: str  # leaf, NVLink domain
    fewest: int  # on the whole partition; 0 where it is not known or cannot be
    fewest_now: int  # on idle nodes; 0 where they are too few
    spans: int  # what a job that asks for nothing would span; 0 where it never starts
    starts_s: float | None
    taken: Taken
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
