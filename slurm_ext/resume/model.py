"""Evidence, Cause and Decision: what a verdict about a dead job is made from, and what it says. Frozen, units in the names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

CLASSES = (
    "infra-node",
    "infra-fabric",
    "storage",
    "checkpoint",
    "preemption",
    "maintenance",
    "capacity",
    "scheduler",
    "external-service",
    "user-code",
    "user-config",
    "user-oom",
    "user-cancel",
    "time-limit",
    "hang",
    "numeric",
    "unknown",
)

#: What may follow. `stop` and `none` both leave the job alone; `none` because it is already back or nobody wants it back.
REQUEUE, REQUEUE_EXCLUDE, WAIT_REQUEUE, HOLD, STOP, NONE = (
    "requeue",
    "requeue-exclude",
    "wait-requeue",
    "hold",
    "stop",
    "none",
)
ACTIONS = (REQUEUE, REQUEUE_EXCLUDE, WAIT_REQUEUE, HOLD, STOP, NONE)
COMES_BACK = (REQUEUE, REQUEUE_EXCLUDE, WAIT_REQUEUE)


class NodeEvent(NamedTuple):
    """Something that was noticed about a node. `time` is seconds since the epoch, None where the source has none."""

    time: float | None
    source: str  # slurmctld, slurmd, clustermgtd, ec2, imds, systemd, fmslurm, ...
    type: str
    text: str


class NodeEvidence(NamedTuple):
    """What is recorded about one node. Absent evidence is no proof of health."""

    node: str
    instance_id: str = ""
    kernel: tuple[str, ...] = ()
    events: tuple[NodeEvent, ...] = ()


class SlurmFacts(NamedTuple):
    """What Slurm recorded about the run that ended. Times are seconds; None or -1 where it is not known."""

    job_id: str = ""
    state: str = ""
    exit_code: str = "0:0"  # code:signal
    derived_exit_code: str = "0:0"
    reason: str = ""
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    failed_node: str = ""
    previous_nodes: tuple[str, ...] = ()
    batch_host: str = ""
    time_limit_s: float = -1
    elapsed_s: float = -1
    ranks_per_node: int = 0  # 0: not known
    cancelled_by_uid: int = -1
    job_uid: int = -1
    last_start: float | None = None
    last_output_age_s: float = -1


class Earlier(NamedTuple):
    """How an earlier run of the same job ended, as the journal has it."""

    root: str  # Cause.root of that run
    cause: str  # its class
    nodes: tuple[str, ...] = ()
    text: str = ""  # the line that decided


class Evidence(NamedTuple):
    """All that a verdict may look at. `log` holds the lines of all recorded runs, cleaned; the last run is judged."""

    slurm: SlurmFacts
    log: tuple[str, ...] = ()
    nodes: Mapping[str, NodeEvidence] = {}
    earlier: tuple[Earlier, ...] = ()
    end_time: float | None = None


class Cause(NamedTuple):
    """Why a run ended. `advice` is what the evidence alone calls for (one of ACTIONS); policy has the last word.

    `root` tells whether two runs died of the same thing. `hard` means physical evidence convicts the culprits, so that
    they may be drained; `finding` then is the (id, target) to drain with. `suspects` are convicted of nothing, and are to be
    left out of this job's next run where that can be.
    """

    cause: str  # one of CLASSES
    advice: str
    rule: str
    confidence: float = 0.5
    culprit_nodes: tuple[str, ...] = ()
    innocent_nodes: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    reason: str = ""
    root: str = ""
    hard: bool = False
    finding: tuple[str, str] = ("", "")
    suspects: tuple[str, ...] = ()


class Past(NamedTuple):
    """One earlier requeue of the same job that fmslurm (or Slurm) did: the class and root it was for, whom it left out for
    good reason (culprits) or on suspicion, and how long ago (seconds)."""

    cause: str
    root: str
    culprit_nodes: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    age_s: float = 0.0


class Decision(NamedTuple):
    """What happens now. `exclude` is the whole list of ours (never the user's own); `wait_s` is how long before it may start."""

    action: str
    reason: str
    rule: str
    exclude: tuple[str, ...] = ()
    wait_s: float = 0.0
    budget_left: int = 0
