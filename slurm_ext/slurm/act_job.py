"""What fmslurm does to jobs: mode, event first, act, confirm by reading Slurm again. Callers reach it through act.py.

Standard library only: hooks import this.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from slurm_ext import shared
from slurm_ext.config.model import Settings
from slurm_ext.errors import FmslurmError, SlurmError
from slurm_ext.slurm.breaker import choose_stop
from slurm_ext.slurm.hostlist import expand, fold
from slurm_ext.slurm.journal import Journal
from slurm_ext.slurm.model import Job
from slurm_ext.slurm.outcome import Context, Outcome, event_for, observe, rung_for
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.slurm.versions import restart_pause_s
from slurm_ext.verdict import one_line


def requeue_job(
    slurm: Slurm,
    settings: Settings,
    job_id: str,
    *,
    hold: bool,
    rule: str,
    reason: str,
    context: Context,
    evidence: Sequence[str] = (),
    restarts: int | None = None,
    not_begun: Callable[[Job], bool] | None = None,
) -> Outcome:
    """Requeue a job (held with `hold`) and confirm it.

    `restarts` is the count of the attempt that is to end: where Slurm's is higher already, somebody was first and that
    is as good (held or not). Without it, a pending job counts as requeued. Components of het jobs are refused by Slurm:
    pass the id of their leader. `not_begun` says of a job that may not be requeued that nothing of it has run in this
    attempt: it goes back all the same, and may not be requeued afterwards either.
    """

    beaten: list[bool] = []
    left: list[str] = []

    def act(job: Job) -> None:
        if hold and job.state == "PENDING" and "COMPLETING" not in job.flags:
            slurm.hold(job.job_id)  # requeuehold of a pending job is refused
            return
        lifts = not job.requeue and not_begun is not None and not_begun(job)
        try:
            if lifts:
                slurm.update_job(job.job_id, {"Requeue": "1"})
            slurm.requeue(job.job_id, hold=hold)
        except SlurmError as exc:
            # Another hook of the same job was first: the job is still completing, or may not be requeued again by now.
            if "pending execution" not in exc.message and not is_later(job):
                raise
            beaten.append(True)
        finally:
            if lifts:
                left.append(_set_back(slurm, job.job_id))

    def is_later(job: Job) -> bool:
        return restarts is not None and _job(slurm, job.job_id).restarts > restarts

    def wanted(job: Job) -> bool:
        if restarts is not None and job.restarts > restarts:
            return True
        return job.state == "PENDING" and (not hold or job.priority == 0)

    def confirmed(before: Job, after: Job) -> bool:
        return wanted(after) or after.restarts > before.restarts or bool(beaten)

    name = "job.requeuehold" if hold else "job.requeue"
    outcome = _on_job(slurm, settings, job_id, name, act, wanted, rule, reason, evidence, context, confirmed)
    if words := "".join(left):
        event = event_for(name, settings, context)._replace(phase="fact", job=job_id, rule=rule, reason=words)
        Journal(context.events_path, settings.site.share, context.node).write(event)
        return outcome._replace(reason=f"{outcome.reason}; {words}")
    return outcome


def _set_back(slurm: Slurm, job_id: str) -> str:
    """Make a job one that may not be requeued again; return in words why it still may, empty where it may not."""
    try:
        slurm.update_job(job_id, {"Requeue": "0"})
    except SlurmError as exc:
        return f"it may be requeued from now on, which its owner did not want: {one_line(str(exc), 200)}"
    return ""


def cancel_job(slurm: Slurm, settings: Settings, job_id: str, *, rule: str, reason: str, context: Context) -> Outcome:
    """Cancel a job that may not be requeued, and confirm it."""

    def over(job: Job) -> bool:
        return job.state == "CANCELLED" or "COMPLETING" in job.flags or job.state == "COMPLETING"

    def act(job: Job) -> None:
        slurm.cancel(job.job_id)

    return _on_job(slurm, settings, job_id, "job.cancel", act, over, rule, reason, (), context)


def stop_job(
    slurm: Slurm,
    settings: Settings,
    job_id: str,
    *,
    restarts: int,
    rule: str,
    reason: str,
    context: Context,
    evidence: Sequence[str] = (),
    when_used_up: str = "",
    not_begun: Callable[[Job], bool] | None = None,
) -> Outcome:
    """Stop a job that no node is convicted for: requeuehold, requeue, or let it pass, as breaker.choose_stop says.

    `restarts` is SLURM_JOB_RESTART_COUNT, `not_begun` as in `requeue_job`. Where the outcome is `passed` nothing was done and
    the job may run.
    """
    beat = shared.heartbeat(settings.site.share)
    policy = when_used_up or ("hold" if settings.burnin.on_unknown == "hold" else "pass")
    how, why = choose_stop(beat, restarts, settings, limit=settings.resume.infra, when_used_up=policy, now=context.now)
    lines = (*evidence, why)
    if how == "pass":
        event = event_for("job.stop", settings, context)._replace(
            job=job_id, rule=rule, reason=reason, evidence=lines, decision="pass"
        )
        Journal(context.events_path, settings.site.share, context.node).write(event)
        return Outcome(False, "passed", why, context.mode)
    return requeue_job(
        slurm,
        settings,
        job_id,
        hold=how == "requeuehold",
        restarts=restarts,
        rule=rule,
        reason=reason,
        evidence=lines,
        context=context,
        not_begun=not_begun,
    )


def exclude_nodes(
    slurm: Slurm, settings: Settings, job_id: str, nodes: Sequence[str], *, rule: str, reason: str, context: Context
) -> Outcome:
    """Add nodes to a pending job's ExcNodeList, what the user or an earlier act excluded kept. The caller stores the old one.

    Names that Slurm does not know (any more) are left out: one unknown name makes it refuse the whole list.
    """

    def merged(job: Job) -> str:
        known = {node.name for node in slurm.nodes()}
        return fold(name for name in {*expand(job.excluded_nodes), *nodes} if name in known)

    def act(job: Job) -> None:
        slurm.update_job(job_id, {"ExcNodeList": merged(job)})

    def wanted(job: Job) -> bool:
        return set(expand(merged(job))) <= set(expand(job.excluded_nodes))

    return _on_job(slurm, settings, job_id, "job.exclude", act, wanted, rule, reason, tuple(nodes), context)


def release_job(
    slurm: Slurm, settings: Settings, job_id: str, *, rule: str, reason: str, context: Context, start_now: bool = False
) -> Outcome:
    """Release a held job; with `start_now` also take away the wait that follows a requeue (StartTime in 2 or 3 s).

    Refused while the job still completes: Slurm would overwrite the start time. Try again once it is pending.
    """

    def act(job: Job) -> None:
        if start_now and "COMPLETING" in job.flags:
            raise SlurmError(f"job {job_id} is still completing")
        if start_now:
            # Before it is released, or it might start in between.
            pause_s = math.ceil(restart_pause_s(slurm.version()))
            slurm.update_job(job_id, {"StartTime": f"now+{pause_s}" if pause_s else "now"})
        slurm.release(job_id)

    def wanted(job: Job) -> bool:
        waiting = start_now and job.state == "PENDING" and job.eligible_time > time.time() + 5
        return job.priority != 0 and not waiting

    return _on_job(slurm, settings, job_id, "job.release", act, wanted, rule, reason, (), context)


def _on_job(
    slurm: Slurm,
    settings: Settings,
    job_id: str,
    name: str,
    act: Callable[[Job], None],
    wanted: Callable[[Job], bool],
    rule: str,
    reason: str,
    evidence: Sequence[str],
    context: Context,
    confirmed: Callable[[Job, Job], bool] | None = None,
) -> Outcome:
    event = event_for(name, settings, context)._replace(
        job=job_id, rule=rule, reason=one_line(reason), evidence=tuple(evidence), decision=name.partition(".")[2]
    )
    journal = Journal(context.events_path, settings.site.share, context.node)
    rung, why = rung_for(settings, context, context.node)
    if (observed := observe(journal, event, context, rung, why)) is not None:
        return observed
    try:
        job = _job(slurm, job_id)
        if wanted(job):
            return Outcome(True, "already", f"job {job_id} is that already", rung)
    except FmslurmError as exc:
        journal.write(event._replace(phase="failed", evidence=(*evidence, str(exc))))
        return Outcome(False, "failed", str(exc), rung)

    def confirm() -> str:
        after = _job(slurm, job_id)
        took = confirmed(job, after) if confirmed else wanted(after)
        return "" if took else f"job {job_id} is {after.state} {' '.join(after.flags)} afterwards"

    done, wrong = journal.do(event, lambda: act(job), confirm)
    return Outcome(done, "done" if done else "failed", one_line(reason) if done else wrong, rung)


def _job(slurm: Slurm, job_id: str) -> Job:
    for job in slurm.jobs([job_id]):
        if job.job_id == job_id:
            return job
    raise SlurmError(f"Slurm knows no job {job_id}")
