"""The few acts of a hook, each a bounded call to Slurm: drain this node, stop this job.

Imported only by a hook that acts: the passing path never asks Slurm anything, and should not pay for what can.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from slurm_ext import shared
from slurm_ext.config.model import Settings
from slurm_ext.config.modes import heartbeat_is_fresh
from slurm_ext.errors import FmslurmError
from slurm_ext.hooks import not_begun, trail, way_back
from slurm_ext.hooks.environment import HookJob
from slurm_ext.slurm import act, connect, drain_record, ledger, recorded
from slurm_ext.slurm.act import Context
from slurm_ext.slurm.breaker_events import hold_back
from slurm_ext.slurm.hostlist import expand
from slurm_ext.slurm.journal import Journal
from slurm_ext.slurm.outcome import event_for
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import Finding

#: A hook waits this long (seconds) for one answer of Slurm: the job stands meanwhile.
SLURM_S = 5.0

#: States that no prolog may bring a job back from. COMPLETING is all that 22.05 shows of a job which was cancelled while a
#: prolog of it runs; a requeue would have counted its restart already.
ENDED = ("CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "TIMEOUT")

OVER = "not brought back, since it is"


class Done(NamedTuple):
    """What became of an act, and in words why. `suppressed`: it was decided not to (breaker, ledger, a limit), not failed.

    `acked`: a person knows of the finding and keeps the node in use; the job runs here. `already`: it is drained by somebody
    else. `in_hand`: somebody else has begun something with it, and it is not drained.
    """

    done: bool
    reason: str
    suppressed: bool = False
    acked: bool = False
    already: bool = False
    in_hand: bool = False

    def words(self) -> str:
        """Return what became of a drain, for an event."""
        if not self.done:
            return f"not drained: {self.reason}"
        return f"left alone: {self.reason}" if self.already else "drained"


def slurm_of(settings: Settings) -> Slurm:
    """Return Slurm as a hook asks it: each call is given up soon."""
    return connect(settings, timeout_s=SLURM_S)


def context_of(settings: Settings, job: HookJob, room: str, boot_id: str = "") -> Context:
    """Return who acts: this hook, for this job, on this node."""
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
    settings: Settings,
    job: HookJob,
    node: str,
    finding: Finding,
    *,
    room: str = "gate",
    boot_id: str = "",
    first_boot: bool = False,
    bundle: str = "",
    gpu: str = "",
    exits: bool = True,
) -> Done:
    """Drain a node for a finding; breaker and ledger may say no, and another tool's reason is left as it is.

    `first_boot`: it fails at its first job since boot, for which there is a budget of its own. `bundle`: where its evidence is;
    `gpu`: which GPU it is about (proof.gpu_of).
    `exits`: where Slurm is silent the caller fails with 1, a drain as well. Who never does passes False: nothing is counted.
    """
    context = context_of(settings, job, room, boot_id)._replace(node=node)
    context = way_back.stamped(settings, context, is_here=node == job.node)
    remedy = way_back.remedy(settings, context, finding, bundle=bundle, gpu=gpu)
    try:
        slurm = slurm_of(settings)
        outcome = act.drain_node(
            slurm, settings, node, finding, now=context.now, context=context, first_boot=first_boot, remedy=remedy
        )
    except FmslurmError as exc:
        outcome = act.Outcome(False, "failed", str(exc))
    if outcome.done or outcome.result == "foreign":  # drained by somebody else: out of use all the same
        return Done(True, outcome.reason, already=outcome.result == "foreign")
    if outcome.result == "in-hand":  # not out of use: to fail here would be a drain, and nobody's but ours
        return Done(False, outcome.reason, suppressed=True, in_hand=True)
    if outcome.result == "acked":
        return Done(False, outcome.reason, suppressed=True, acked=True)
    if outcome.result != "failed":
        return Done(False, outcome.reason, suppressed=True)
    if not exits:
        return Done(False, outcome.reason)
    # Slurm did not answer. Exit 1 makes it drain the node itself later on, which the breaker must have allowed.
    data = {"finding": finding.id, "target": finding.target, "job": job.job_id}
    ruling = ledger.claim(settings.site.share, node, drain=settings.drain, nodes=1, first_boot=first_boot, data=data)
    if not ruling.allowed:
        event = event_for("node.drain", settings, context)._replace(rule=finding.id, evidence=finding.evidence)
        journal = Journal(context.events_path, settings.site.share, node)
        hold_back(settings, journal, event, finding, ruling, now=context.now)
    return Done(False, outcome.reason, suppressed=not ruling.allowed)


def exit_drains(
    settings: Settings,
    job: HookJob,
    finding: Finding,
    *,
    room: str = "gate",
    boot_id: str = "",
    bundle: str = "",
    gpu: str = "",
) -> None:
    """Write down that Slurm's own drain after an exit with 1 is due to a finding of ours: it can be undone on proof then."""
    context = way_back.stamped(settings, context_of(settings, job, room, boot_id), is_here=True)
    remedy = way_back.remedy(settings, context, finding, bundle=bundle, gpu=gpu)
    owner = f"fmslurm {room}"
    record = recorded.record_of(settings, context, finding, act.PROLOG_ERROR, owner=owner, remedy=remedy)
    drain_record.write(settings.site.share, record)


def stop_job(settings: Settings, job: HookJob, *, reason: str, rule: str, room: str = "gate", policy: str = "") -> Done:
    """Send the job back to the queue: held where a controller will release it, else requeued plainly, within a limit.

    `policy` (pass or hold) holds when that limit is used up. Not done means that the job may run: by that policy where it is
    suppressed, else because Slurm could not be asked. A job that was cancelled meanwhile counts as stopped and is not brought back.
    """
    if over := ended(settings, job):
        return Done(True, f"{OVER} {over}")
    try:
        slurm = slurm_of(settings)
        context = context_of(settings, job, room)
        outcome = act.stop_job(
            slurm,
            settings,
            job.stop_id,
            restarts=job.restarts,
            rule=rule,
            reason=reason,
            context=context,
            when_used_up=policy,
            not_begun=not_begun.of(slurm, settings.site.share, job),
        )
    except FmslurmError as exc:
        return Done(False, str(exc))
    return Done(outcome.done, outcome.reason, suppressed=outcome.result == "passed")


def leave_out(settings: Settings, job: HookJob, nodes: Collection[str], *, reason: str, rule: str, room: str) -> str:
    """Keep a job that went back away from convicted nodes that stay in use; return in words what was done.

    A live controller does so itself, and gives the nodes back in time. Without one it is done here, where the job does not
    ask for those very nodes and enough others are left.
    """
    beat = shared.heartbeat(settings.site.share)
    names = ", ".join(sorted(nodes)[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")
    if heartbeat_is_fresh(beat, now=time.time()) and beat is not None and beat.mode == "enforce":
        return f"the controller keeps it away from {names}"
    try:
        slurm = slurm_of(settings)
        found = next((one for one in slurm.jobs([job.stop_id]) if one.job_id == job.stop_id), None)
        if found is None:
            return f"Slurm knows no job {job.stop_id} any more"
        if set(expand(found.required_nodes)) & set(nodes):
            return f"it asks for {names} itself"
        out = {*nodes, *expand(found.excluded_nodes)}
        left = [
            one.name
            for one in slurm.nodes()
            if job.partition in one.partitions and one.name not in out and one.state != "DOWN" and not one.drained
        ]
        if len(left) < len(job.nodes):
            return f"not kept away from {names}: {len(left)} nodes would be left, and it needs {len(job.nodes)}"
        context = context_of(settings, job, room)
        done = act.exclude_nodes(slurm, settings, job.stop_id, list(nodes), rule=rule, reason=reason, context=context)
    except (FmslurmError, ValueError) as exc:
        return f"not kept away from {names}: {exc}"
    return f"kept away from {names}" if done.done else f"not kept away from {names}: {done.reason}"


def ended(settings: Settings, job: HookJob) -> str:
    """Return how the job has ended meanwhile, in Slurm's word; empty where it is still to run, or where Slurm does not say."""
    try:
        jobs = slurm_of(settings).jobs([job.job_id])
    except FmslurmError:
        return ""
    found = next((one for one in jobs if one.job_id == job.job_id), None)
    return found.state if found is not None and found.restarts == job.restarts and found.state in ENDED else ""


def time_limit_min(settings: Settings, job: HookJob) -> int | None:
    """Return the job's time limit (minutes), -1 where it has none; None where Slurm does not say."""
    try:
        jobs = slurm_of(settings).jobs([job.job_id])
    except FmslurmError:
        return None
    return next((one.time_limit_min for one in jobs if one.job_id == job.job_id), None)


def requeue(settings: Settings, job: HookJob, *, reason: str, rule: str, room: str) -> Done:
    """Send the job back plainly: its convicted node is out of use, and Slurm's own requeue may not come."""
    if over := ended(settings, job):
        return Done(True, f"{OVER} {over}")
    try:
        slurm = slurm_of(settings)
        context = context_of(settings, job, room)
        outcome = act.requeue_job(
            slurm,
            settings,
            job.stop_id,
            hold=False,
            rule=rule,
            reason=reason,
            context=context,
            restarts=job.restarts,
            not_begun=not_begun.of(slurm, settings.site.share, job),
        )
    except FmslurmError as exc:
        return Done(False, str(exc))
    return Done(outcome.done, outcome.reason)
