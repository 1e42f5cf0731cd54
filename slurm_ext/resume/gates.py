"""Tells the hooks of a job that is over while its gate still runs: Slurm gives them no sign, and they would wait in vain.

Innocent nodes of a job that was cancelled or requeued stay COMPLETING until their own prologs end. A waiting hook looks at
its attempt's mark on the share; this writes it. Nothing is done to any job.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext import shared
from slurm_ext.config.model import Settings
from slurm_ext.slurm.model import Job

#: Who wrote a mark, so that nobody takes it for a hook that sent its job back.
BY = "controller"

#: A job that ended like this may have been anywhere in its gate; one that completed or failed by itself has left it.
_FROM_OUTSIDE = ("CANCELLED", "PREEMPTED", "TIMEOUT", "DEADLINE", "NODE_FAIL")

#: Prologs of one job may start this much apart (seconds; one hung slurmd delays the nodes behind it in the fan-out).
_SLACK_S = 240.0


def over(job: Job, settings: Settings, *, in_gate: int | None, now: float) -> int | None:
    """Return the restart count of the attempt whose hooks may wait in vain, or None where none can.

    `in_gate` is that of the attempt last seen in its gate: 22.05 says COMPLETING and not how the job ended.
    """
    if "COMPLETING" not in job.flags:
        return None
    if in_gate is not None:
        return in_gate
    if job.state == "COMPLETING" and job.reason == "Prolog":
        return job.restarts
    if job.state == "PENDING":  # requeued: Slurm counts the next attempt already
        return job.restarts - 1 if job.restarts > 0 else None
    longest_s = settings.gate.deadline_s + settings.burnin.deadline_s + settings.burnin.rendezvous_s + _SLACK_S
    young = bool(job.start_time) and now - job.start_time < longest_s
    return job.restarts if job.state in _FROM_OUTSIDE and young else None


class Gates:
    """Which attempts were in their gate at the last look, and which have been told that they are over."""

    def __init__(self) -> None:
        self._in_gate: dict[str, int] = {}
        self._told: set[str] = set()

    def tell(self, jobs: Sequence[Job], settings: Settings, cluster: str, now: float) -> None:
        """Write the mark of each attempt that has ended in its gate, once; a share that does not answer is tried again."""
        share = settings.site.share
        ended: set[str] = set()
        for job in jobs:
            restarts = over(job, settings, in_gate=self._in_gate.get(job.job_id), now=now)
            if restarts is None:
                continue
            key = shared.attempt_key(cluster, job.job_id, restarts)
            ended.add(key)
            if key not in self._told:
                mark = {"schema": 1, "node": BY, "by": BY, "time": now, "reason": "the job was ended in its gate"}
                if shared.decide_once(shared.attempt_path(share, key, shared.STOPPED_FILE), mark) is not None:
                    self._told.add(key)
        self._told &= ended
        before = self._in_gate
        self._in_gate = {job.job_id: job.restarts for job in jobs if job.reason == "Prolog"}
        completing = (job.job_id for job in jobs if "COMPLETING" in job.flags)
        self._in_gate |= {job_id: before[job_id] for job_id in completing if job_id in before}
