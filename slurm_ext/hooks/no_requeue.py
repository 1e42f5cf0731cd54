"""Jobs that Slurm does not requeue (--no-requeue, salloc, srun) on a node that is convicted: what can be done with them.

Imported only by a prolog that acts.
"""

from __future__ import annotations

from slurm_ext.config.model import Settings
from slurm_ext.errors import FmslurmError
from slurm_ext.hooks import act, not_begun
from slurm_ext.hooks.environment import HookJob
from slurm_ext.slurm import act as acts


def end_for_good(settings: Settings, job: HookJob, *, reason: str, rule: str, room: str) -> str:
    """Send a job back that may not be requeued and has not begun; cancel one that has, or whose script never comes.

    Return what was done; empty where it may be requeued, or where that is not known or was not done.

    slurmd repeats its word on a prolog that failed every 15 s until slurmctld takes it, and slurmctld refuses it for a job
    that may not be requeued (22.05.8 and 24.11.5). Each time the node is drained anew, also one that is healed and resumed.
    """
    try:
        slurm = act.slurm_of(settings)
        found = next((one for one in slurm.jobs([job.stop_id]) if one.job_id == job.stop_id), None)
        if found is None:
            return ""
        if not_begun.goes_back(settings.site.share, job):  # for that moment Slurm calls it one that may be requeued
            return "the job may not be requeued, and goes back already"
        if found.requeue:
            return ""
        if found.restarts > job.restarts:
            return "the job may not be requeued, and has gone back already"
        context = act.context_of(settings, job, room)
        is_new = not_begun.of(slurm, settings.site.share, job)
        if is_new(found):
            back = acts.requeue_job(
                slurm,
                settings,
                job.stop_id,
                hold=False,
                rule=rule,
                reason=reason,
                context=context,
                restarts=job.restarts,
                not_begun=is_new,
            )
            if back.done:
                return "the job may not be requeued, but has not begun, and is sent back"
        if found.restarts != job.restarts:
            return ""
        done = acts.cancel_job(slurm, settings, job.stop_id, rule=rule, reason=reason, context=context)
    except FmslurmError:
        return ""
    return "the job may not be requeued and is cancelled" if done.done else ""


def cancel(settings: Settings, job: HookJob, *, reason: str, rule: str, room: str) -> act.Done:
    """Cancel a job that cannot be sent back and is not to run here, of this very attempt."""
    try:
        slurm = act.slurm_of(settings)
        found = next((one for one in slurm.jobs([job.stop_id]) if one.job_id == job.stop_id), None)
        if found is None or found.restarts != job.restarts:
            return act.Done(False, "Slurm knows no such attempt any more")
        outcome = acts.cancel_job(
            slurm, settings, job.stop_id, rule=rule, reason=reason, context=act.context_of(settings, job, room)
        )
    except FmslurmError as exc:
        return act.Done(False, str(exc))
    return act.Done(outcome.done, outcome.reason)


def why_not(settings: Settings, job: HookJob) -> str:
    """Return in words why Slurm will not requeue a job in this state; empty where it would, or where that is not known."""
    if not job.batch:
        return "it is no batch job (salloc, srun), which Slurm cannot requeue"
    try:
        jobs = act.slurm_of(settings).jobs([job.stop_id])
    except FmslurmError:
        return ""
    found = next((one for one in jobs if one.job_id == job.stop_id), None)
    if found is None or found.restarts != job.restarts or found.requeue:
        return ""
    return "it may not be requeued (--no-requeue, JobRequeue=0), and may have begun on other nodes"
