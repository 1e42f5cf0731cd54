"""Has nothing of a job run yet in the attempt whose prolog this is? Then it can go back though it may not be requeued.

`--no-requeue` keeps a script from being started twice (sbatch(1)). Before it has been started once, to go back is no second start.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from slurm_ext import shared
from slurm_ext.hooks.environment import HookJob
from slurm_ext.slurm.model import Job
from slurm_ext.slurm.protocol import Slurm

#: That a job which may not be requeued goes back, in its attempt's folder on the share.
FILE = "goes-back.json"


def of(slurm: Slurm, share: str, job: HookJob) -> Callable[[Job], bool]:
    """Return what says of a job, out of its prolog, that nothing of it has run in this attempt; not known is a no.

    The batch host starts the script after its own prolog, whatever the flags are. For all other nodes it takes DeferBatch:
    without it the script is under way while Slurm still gives Prolog as the job's reason. A yes is told to the job's other
    hooks: to send it back, Slurm is told for a moment that it may be requeued.
    """

    def says(found: Job) -> bool:
        if not job.batch or job.het or found.state != "RUNNING" or found.restarts != job.restarts:
            return False
        if found.batch_host != job.node and not (found.reason == "Prolog" and _defers(slurm)):
            return False
        mark = {"schema": 1, "by": job.node, "time": time.time()}
        shared.decide_once(shared.attempt_path(share, job.attempt, FILE), mark)
        return True

    return says


def goes_back(share: str, job: HookJob) -> bool:
    """Say whether another hook of this attempt has found that nothing of it has run, and sends it back."""
    return FILE in (shared.attempt_names(share, job.attempt, timeout_s=1.0) or ())


def _defers(slurm: Slurm) -> bool:
    return "deferbatch" in slurm.config().get("PrologFlags", "").lower().split(",")
