"""What fmslurm does to nodes and jobs: mode, breaker, event first, act, confirm by reading Slurm again.

Everything automatic goes through here. Standard library only: hooks import this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from slurm_ext import shared
from slurm_ext.config.model import Settings
from slurm_ext.config.modes import effective_mode
from slurm_ext.errors import FmslurmError, SlurmError
from slurm_ext.events import Event
from slurm_ext.slurm.breaker import choose_stop, is_slurms_own, judge_drain
from slurm_ext.slurm.hostlist import expand, fold
from slurm_ext.slurm.journal import Journal
from slurm_ext.slurm.model import Job, Node
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.verdict import Finding, drain_reason, is_ours, one_line

#: What an Outcome's `result` may be.
RESULTS = ("done", "already", "foreign", "observed", "dry-run", "breaker-open", "no-ledger", "passed", "failed")


class Outcome(NamedTuple):
    """What became of an act. `done` is True where the world is now as wanted; `result` is one of RESULTS."""

    done: bool
    result: str
    reason: str
    mode: str = ""


class Context(NamedTuple):
    """Who acts, for whom, where it is written. `mode` empty: decided from settings and off switches for `room`."""

    room: str
    now: float  # seconds since the epoch
    events_path: str = ""
    node: str = ""  # whose trail on the share gets the events; drain_node fills it in
    partition: str = ""
    job: str = ""
    attempt: str = ""
    mode: str = ""
    dry_run: bool = False
    instance_id: str = ""
    boot_id: str = ""


def drain_node(
    slurm: Slurm,
    settings: Settings,
    node: str,
    finding: Finding,
    *,
    job: str = "",
    now: float,
    dry_run: bool = False,
    events_path: str = "",
    room: str = "gate",
    mode: str = "",
    first_boot: bool = False,
    context: Context | None = None,
) -> Outcome:
    """Drain one node for a finding, within mode and breaker, and never over somebody else's reason.

    `mode` is the rung the caller found; empty: found here. `context` overrides the loose arguments. The ledger on the
    share is written before the drain, so a crash counts it. No ledger, no drain.
    """
    told = context or Context(room, now, events_path, node=node, job=job, mode=mode, dry_run=dry_run)
    told = told._replace(node=told.node or node)
    reason = drain_reason(finding)
    event = _event("node.drain", settings, told)._replace(
        node=node, rule=finding.id, reason=reason, evidence=finding.evidence, decision="drain"
    )
    journal = Journal(told.events_path, settings.site.share, node)
    rung, why = _rung(settings, told, node)
    if (observed := _observe(journal, event, told, rung, why)) is not None:
        return observed
    try:
        every = slurm.nodes()
    except FmslurmError as exc:
        journal.write(event._replace(phase="failed", evidence=(*finding.evidence, str(exc))))
        return Outcome(False, "failed", str(exc), rung)
    found = next((one for one in every if one.name == node), None)
    if (left := _leave_alone(found, node)) is not None:
        journal.write(event._replace(phase="fact", decision="leave alone", reason=left.reason))
        return left._replace(mode=rung)
    share, limits = settings.site.share, settings.drain
    ruling = judge_drain(shared.drains(share, now=now), node, drain=limits, nodes=len(every), first_boot=first_boot)
    if ruling.allowed:
        data = {"finding": finding.id, "target": finding.target, "job": told.job, "first_boot": first_boot}
        if not shared.record_drain(share, node, now=now, data=data):
            ruling = ruling._replace(
                allowed=False, reason="the ledger of drains cannot be written, so nothing is drained"
            )
        else:
            # Others may have entered theirs meanwhile: the first few in the ledger's own order win.
            upto = int(now * 1000) / 1000
            again = shared.drains(share, now=now)
            ruling = judge_drain(again, node, drain=limits, nodes=len(every), first_boot=first_boot, upto=upto)
    if not ruling.allowed:
        journal.write(event._replace(phase="fact", decision="suppressed", reason=ruling.reason))
        result = "no-ledger" if "ledger" in ruling.reason else "breaker-open"
        return Outcome(False, result, ruling.reason, rung)
    done, wrong = journal.do(event, lambda: slurm.drain(node, reason), lambda: _is_drained_by_us(slurm, node))
    return Outcome(done, "done" if done else "failed", reason if done else wrong, rung)


def undrain_node(slurm: Slurm, settings: Settings, node: str, why: str, context: Context) -> Outcome:
    """Resume a node that we drained, on proof that `why` words; a node with another's reason is left alone."""
    told = context._replace(node=context.node or node)
    event = _event("node.resume", settings, told)._replace(node=node, reason=one_line(why), decision="resume")
    journal = Journal(told.events_path, settings.site.share, node)
    rung, reason = _rung(settings, told, node)
    if (observed := _observe(journal, event, told, rung, reason)) is not None:
        return observed
    try:
        found = _node(slurm, node)
    except FmslurmError as exc:
        return Outcome(False, "failed", str(exc), rung)
    if found is None:
        return Outcome(False, "failed", f"Slurm knows no node {node}", rung)
    if not found.drained:
        return Outcome(True, "already", f"{node} is not drained", rung)
    if not is_ours(found.reason):
        return Outcome(False, "foreign", f"{node} was drained by {found.reason_user}: {found.reason}", rung)

    def confirm() -> str:
        after = _node(slurm, node)
        return "" if after is not None and not after.drained else f"{node} is still drained"

    done, wrong = journal.do(event, lambda: slurm.resume_node(node), confirm)
    return Outcome(done, "done" if done else "failed", one_line(why) if done else wrong, rung)


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
) -> Outcome:
    """Requeue a job (held with `hold`) and confirm it.

    `restarts` is the count of the attempt that is to end: where Slurm's is higher already, somebody was first and that
    is as good (held or not). Without it, a pending job counts as requeued. Components of het jobs are refused by Slurm:
    pass the id of their leader.
    """

    def act(job: Job) -> None:
        if hold and job.state == "PENDING" and "COMPLETING" not in job.flags:
            slurm.hold(job.job_id)  # requeuehold of a pending job is refused
        else:
            slurm.requeue(job.job_id, hold=hold)

    def wanted(job: Job) -> bool:
        if restarts is not None and job.restarts > restarts:
            return True
        return job.state == "PENDING" and (not hold or job.priority == 0)

    def confirmed(before: Job, after: Job) -> bool:
        return wanted(after) or after.restarts > before.restarts

    name = "job.requeuehold" if hold else "job.requeue"
    return _on_job(slurm, settings, job_id, name, act, wanted, rule, reason, evidence, context, confirmed)


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
) -> Outcome:
    """Stop a job that no node is convicted for: requeuehold, requeue, or let it pass, as breaker.choose_stop says.

    `restarts` is SLURM_JOB_RESTART_COUNT. Where the outcome is `passed` nothing was done and the job may run.
    """
    beat = shared.heartbeat(settings.site.share)
    policy = when_used_up or ("hold" if settings.burnin.on_unknown == "hold" else "pass")
    how, why = choose_stop(beat, restarts, settings, limit=settings.resume.infra, when_used_up=policy, now=context.now)
    lines = (*evidence, why)
    if how == "pass":
        event = _event("job.stop", settings, context)._replace(
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
    """Release a held job; with `start_now` also take away the wait that follows a requeue (StartTime=now)."""

    def act(job: Job) -> None:
        slurm.release(job_id)
        if start_now:
            slurm.update_job(job_id, {"StartTime": "now"})

    def wanted(job: Job) -> bool:
        waiting = start_now and job.state == "PENDING" and job.eligible_time > context.now + 5
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
    event = _event(name, settings, context)._replace(
        job=job_id, rule=rule, reason=one_line(reason), evidence=tuple(evidence), decision=name.partition(".")[2]
    )
    journal = Journal(context.events_path, settings.site.share, context.node)
    rung, why = _rung(settings, context, context.node)
    if (observed := _observe(journal, event, context, rung, why)) is not None:
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


def _node(slurm: Slurm, name: str) -> Node | None:
    return next((node for node in slurm.nodes([name]) if node.name == name), None)


def _is_drained_by_us(slurm: Slurm, name: str) -> str:
    found = _node(slurm, name)
    if found is not None and found.drained and is_ours(found.reason):
        return ""
    return f"{name} is {found.state} {' '.join(found.flags)}, reason {found.reason!r}" if found else f"no node {name}"


def _leave_alone(found: Node | None, name: str) -> Outcome | None:
    """Return why a node must not be touched, or None where it may be drained."""
    if found is None:
        return Outcome(False, "failed", f"Slurm knows no node {name}")
    if found.drained and is_ours(found.reason):
        return Outcome(True, "already", f"already drained by us: {found.reason}")
    if found.drained:
        return Outcome(
            False, "foreign", f"already drained by {found.reason_user or 'somebody'}: {one_line(found.reason)}"
        )
    if found.state == "DOWN" and not is_ours(found.reason) and not is_slurms_own(found.reason):
        return Outcome(False, "foreign", f"set down by {found.reason_user or 'somebody'}: {one_line(found.reason)}")
    return None


def _rung(settings: Settings, context: Context, node: str) -> tuple[str, str]:
    if context.mode:
        return context.mode, f"the mode is {context.mode}"
    off = shared.switches(settings.site.share) or ()
    return effective_mode(settings, context.room, node=node, partition=context.partition, off=off, now=context.now)


def _observe(journal: Journal, event: Event, context: Context, rung: str, why: str) -> Outcome | None:
    """Write the same line and do nothing where the mode is not enforce, or for a dry run; else return None."""
    if rung == "enforce" and not context.dry_run:
        return None
    result = "dry-run" if context.dry_run else "observed"
    if rung != "off" or context.dry_run:
        journal.write(event._replace(phase="intent", dry_run=True, data={**event.data, "why_not": why}))
    return Outcome(False, result, f"would {event.decision}: {event.reason} ({why})", rung)


def _event(name: str, settings: Settings, context: Context) -> Event:
    return Event(
        name,
        room=context.room,
        node=context.node,
        job=context.job,
        attempt=context.attempt,
        instance_id=context.instance_id,
        boot_id=context.boot_id,
        config=settings.source_hash,
    )
