"""Jobs and nodes as Slurm tells them, in Slurm's own words, whatever the backend and the version.

Standard library only: hooks import this.
"""

from __future__ import annotations

from slurm_ext.typed import NamedTuple


class Job(NamedTuple):
    """One job (or one array task, or one het component). Times are seconds since the epoch, 0 where Slurm has none."""

    job_id: str  # numeric; 12 for job 12, also for each array task its own id
    name: str = ""
    user_id: int = -1
    group_id: int = -1
    partition: str = ""
    state: str = ""  # base state: PENDING, RUNNING, COMPLETED, FAILED, NODE_FAIL, ...
    flags: tuple[str, ...] = ()  # COMPLETING, REQUEUED, CONFIGURING, ...
    reason: str = ""
    nodes: str = ""  # hostlist as Slurm folds it; empty while pending
    batch_host: str = ""
    node_count: int = 0
    excluded_nodes: str = ""
    comment: str = ""
    restarts: int = 0
    requeue: bool = False
    exit_code: str = "0:0"
    derived_exit_code: str = "0:0"
    submit_time: int = 0
    eligible_time: int = 0
    start_time: int = 0
    end_time: int = 0
    time_limit_min: int = -1  # -1: unlimited
    std_out: str = ""
    work_dir: str = ""
    array_job_id: str = ""
    array_task_id: str = ""
    het_job_id: str = ""
    dependency: str = ""
    priority: int = 0  # 0: held
    required_nodes: str = ""  # hostlist of its own --nodelist; empty where it names none


class Node(NamedTuple):
    """One node. `state` is the base state in capitals (IDLE, ALLOCATED, MIXED, DOWN, UNKNOWN, ...)."""

    name: str
    state: str = ""
    flags: tuple[str, ...] = ()  # DRAIN, NOT_RESPONDING, COMPLETING, CLOUD, POWERED_DOWN, ...
    reason: str = ""
    reason_user: str = ""
    reason_time: int = 0
    address: str = ""
    hostname: str = ""
    partitions: tuple[str, ...] = ()
    gres: str = ""
    cpus: int = 0
    boot_time: int = 0
    slurmd_start_time: int = 0
    instance_id: str = ""  # as slurmd or an operator told it (23.11 and later); empty where nobody did
    instance_type: str = ""
    weight: int = 1  # Slurm prefers low ones, before it looks at the topology

    @property
    def drained(self) -> bool:
        """True where no new job may start because somebody drained it."""
        return "DRAIN" in self.flags


class Partition(NamedTuple):
    """One partition, as far as it bounds jobs. `max_time_min` is MaxTime in minutes, -1 for none; `nodes` is a hostlist.

    Its nodes are all that are configured: `scontrol show node` hides cloud nodes that are powered down, unless PrivateData
    has cloud.
    """

    name: str
    max_time_min: int = -1
    nodes: str = ""
    default: bool = False
    max_nodes: int = -1  # -1: no limit for a job
    topology: str = ""  # the topology it names (25.05 and later); empty: the cluster's default


class TopologyUnit(NamedTuple):
    """One line of `scontrol show topology`, in Slurm's own order, which decides between equals.

    `kind` is switch, block, blocks (a sum of neighbours) or other (a ring, a torus). `level` counts switches up from the
    leaf, `size` is a block's planning size in nodes (0 before 24.11).
    """

    name: str
    kind: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    level: int = 0
    size: int = 0


class Version(NamedTuple):
    """Slurm's release, e.g. (22, 5) for 22.05.8."""

    major: int
    minor: int
    text: str = ""
