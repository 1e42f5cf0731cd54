"""One look of the daemon at the cluster: when it was, what the nodes are, which rooms are off; and what follows from it. Pure
but for `with_nodes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_ext.config.model import Settings
from slurm_ext.config.modes import Off, effective_mode
from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.slurm.model import Job, Node
from slurm_ext.slurm.protocol import Slurm


class Tick(NamedTuple):
    """What one tick saw: the time (seconds since the epoch), all nodes (none as long as nobody needed them), the switches."""

    now: float
    nodes: tuple[Node, ...]
    off: tuple[Off, ...]


def mode(settings: Settings, tick: Tick, partition: str = "", *, room: str = "resume") -> str:
    """Return the rung of a room for a job in a partition. Canary nodes narrow hooks, not what is done for whole jobs."""
    settings = settings._replace(mode=settings.mode._replace(canary=""))
    return effective_mode(settings, room, partition=partition, off=tick.off, now=tick.now)[0]


def with_nodes(tick: Tick, slurm: Slurm) -> Tick:
    """Return the tick with all nodes, asked for once. Raise SlurmError where Slurm does not answer."""
    return tick if tick.nodes else tick._replace(nodes=tuple(slurm.nodes()))


def listed(nodes: str) -> frozenset[str]:
    """Return the names in a hostlist; none where it is no hostlist."""
    try:
        return frozenset(expand(nodes)) if nodes else frozenset()
    except HostlistError:
        return frozenset()


def of_partition(nodes: Sequence[Node], partition: str) -> list[Node]:
    """Return the nodes of a partition (of several, where a pending job names several); those that name none count always."""
    names = set(partition.split(","))
    return [node for node in nodes if not node.partitions or names & set(node.partitions)]


def usable(job: Job, user_excluded: str, tick: Tick) -> frozenset[str]:
    """Return the nodes of a job's partition that are in use at all, busy or not, and that its owner did not exclude."""
    return frozenset(node.name for node in of_partition(tick.nodes, job.partition) if in_use(node)) - listed(
        user_excluded
    )


def in_use(node: Node) -> bool:
    """Say whether Slurm may start jobs on a node now, or once it is free or powered up."""
    return node.state not in ("DOWN", "FAIL", "ERROR") and not {"DRAIN", "FAIL", "NOT_RESPONDING"} & set(node.flags)
