"""Which jobs of this node Slurm holds to be over: asked where a job's file is here and no step of it, before a slow check."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext.config.model import Settings
from slurm_ext.slurm import connect
from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.slurm.model import Job

#: How long Slurm may take for its answer (seconds).
SLURM_S = 5.0

#: States in which a job is on no node. A word that is not among them keeps the slow check waiting.
OVER = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PENDING",
    "PREEMPTED",
    "TIMEOUT",
)


def over(settings: Settings, node: str, job_ids: Sequence[str]) -> frozenset[str]:
    """Return those of some jobs that are not on this node any more. Raise FmslurmError where Slurm does not say."""
    told = connect(settings, timeout_s=SLURM_S).jobs(list(job_ids))
    return frozenset(job for job in job_ids if not any(one.job_id == job and is_on(one, node) for one in told))


def is_on(job: Job, node: str) -> bool:
    """Say whether a job may be on a node: it has not ended, and Slurm names that node for it (or none that can be read). Pure."""
    if job.state in OVER and "COMPLETING" not in job.flags:
        return False
    try:
        return not job.nodes or node in expand(job.nodes)
    except HostlistError:
        return True
