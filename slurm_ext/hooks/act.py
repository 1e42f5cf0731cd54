"""The few acts of a hook, each a bounded call to Slurm: drain this node, stop this job.

Imported only by a hook that acts: the passing path never asks Slurm anything, and should not pay for what can.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from slurm_ext import shared
from slurm_ext.config.model import Settings
from slurm_ext.errors import FmslurmError
from slurm_ext.hooks import trail
from slurm_ext.hooks.environment import HookJob
from slurm_ext.slurm import act, connect
from slurm_ext.slurm.act import Context
from slurm_ext.slurm.breaker import judge_drain
from slurm_ext.verdict import Finding

#: A hook waits this long (seconds) for one answer of Slurm: the job stands meanwhile.
SLURM_S = 5.0

#: States that no prolog may bring a job back from. COMPLETING is all that 22.05 shows of a job which was cancelled while a
#: prolog of it runs; a requeue would have counted its restart already.
ENDED = ("CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "TIMEOUT")

OVER = "not brought back, since it is"


class Done(NamedTuple):
    """What became of an act, and in words why. `suppressed`: it was decided not to (breaker, ledger, a limit), not failed.

    `acked`: a person knows of the finding and keeps the node in use; the job runs here.
    """

    done: bool
    reason: str
    suppressed: bool = False
    acked: bool = False


def _context(settings: Settings, job: HookJob, room: str, boot_id: str = "") -> Context:
    path = trail.local_path(settings, job.node)
    return Context(
        room,
        time.time(),
        path,
        node=job.node,
        partition=job.partition,
        job=job.job_id if job.job_id != "0" else "",
        attempt=job.attempt if job.job_id != "0" else "",
        mode="enforce",  # the caller has found that it holds here
        boot_id=boot_id,
    )


def drain(
    settings: Settings, job: HookJob, node: str, finding: Finding, *, room: str = "gate", boot_id: str = ""
) -> Done:
    """Drain a node for a finding; breaker and ledger may say no, and another tool's reason is left as it is."""
    context = _context(settings, job, room, boot_id)._replace(node=node)
    try:
        slurm = connect(settings, timeout_s=SLURM_S)
        outcome = act.drain_node(slurm, settings, node, finding, now=context.now, context=context)
    except FmslurmError as exc:
        outcome = act.Outcome(False, "failed", str(exc))
    if outcome.done or outcome.result == "foreign":  # drained by somebody else: out of use all the same
        return Done(True, outcome.reason)
    if outcome.result == "acked":
        return Done(False, outcome.reason, suppressed=True, acked=True)
    if outcome.result != "failed":
        return Done(False, outcome.reason, suppressed=True)
    # Slurm did not answer. Exit 1 makes it drain the node itself later on, which the breaker must have allowed.
    share = settings.site.share
    ruling = judge_drain(shared.drains(share, now=context.now), node, drain=settings.drain, nodes=1)
    data = {"finding": finding.id, "target": finding.target, "job": job.job_id}
    allowed = ruling.allowed and shared.record_drain(share, node, now=context.now, data=data)
    return Done(False, outcome.reason, suppressed=not allowed)


def stop_job(settings: Settings, job: HookJob, *, reason: str, rule: str, room: str = "gate", policy: str = "") -> Done:
    """Send the job back to the queue: held where a controller will release it, else requeued plainly, within a limit.

    `policy` (pass or hold) holds when that limit is used up. Not done means that the job may run: by that policy where it is
    suppressed, else because Slurm could not be asked. A job that was cancelled meanwhile counts as stopped and is not brought back.
    """
    if over := ended(settings, job):
        return Done(True, f"{OVER} {over}")
    try:
        slurm = connect(settings, timeout_s=SLURM_S)
        context = _context(settings, job, room)
        outcome = act.stop_job(
            slurm,
            settings,
            job.stop_id,
            restarts=job.restarts,
            rule=rule,
            reason=reason,
            context=context,
            when_used_up=policy,
        )
    except FmslurmError as exc:
        return Done(False, str(exc))
    return Done(outcome.done, outcome.reason, suppressed=outcome.result == "passed")


def ended(settings: Settings, job: HookJob) -> str:
    """Return how the job has ended meanwhile, in Slurm's word; empty where it is still to run, or where Slurm does not say."""
    try:
        jobs = connect(settings, timeout_s=SLURM_S).jobs([job.job_id])
    except FmslurmError:
        return ""
    found = next((one for one in jobs if one.job_id == job.job_id), None)
    return found.state if found is not None and found.restarts == job.restarts and found.state in ENDED else ""


def time_limit_min(settings: Settings, job: HookJob) -> int | None:
    """Return the job's time limit (minutes), -1 where it has none; None where Slurm does not say."""
    try:
        jobs = connect(settings, timeout_s=SLURM_S).jobs([job.job_id])
    except FmslurmError:
        return None
    return next((one.time_limit_min for one in jobs if one.job_id == job.job_id), None)


def requeue(settings: Settings, job: HookJob, *, reason: str, rule: str, room: str) -> Done:
    """Send the job back plainly: its convicted node is out of use, and Slurm's own requeue may not come."""
    if over := ended(settings, job):
        return Done(True, f"{OVER} {over}")
    try:
        slurm = connect(settings, timeout_s=SLURM_S)
        context = _context(settings, job, room)
        outcome = act.requeue_job(
            slurm,
            settings,
            job.stop_id,
            hold=False,
            rule=rule,
            reason=reason,
            context=context,
            restarts=job.restarts,
        )
    except FmslurmError as exc:
        return Done(False, str(exc))
    return Done(outcome.done, outcome.reason)
