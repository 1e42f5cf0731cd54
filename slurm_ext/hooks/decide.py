"""From a verdict to what a hook does: pure, with the reason in words. Facts, settings and modes come in as arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slurm_ext.config.model import Settings
from slurm_ext.gate.model import decisive
from slurm_ext.hooks.environment import HookJob
from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Finding, Verdict

#: So many nodes, one after the other, act for the job where others cannot.
LEADERS = 3

#: How long (seconds) each of them gives the one before it.
TAKE_OVER_S = 5.0

PASS_ON, DRAIN, STOP_JOB = "pass", "drain", "stop"

#: Rules of a failure that no node is to be convicted for, and for which going elsewhere need not help.
FABRIC = ("burnin.fabric", "burnin.switch", "burnin.whole-only")
ABSENT = "burnin.peer-absent"


class Plan(NamedTuple):
    """What a hook does: `act` is pass, drain (this node, then exit 1) or stop (the job, exit 0), and why.

    How a job is stopped (held for the controller, requeued, or passed after all) is the Slurm room's to say. `would` is
    what it would be where the mode does not act. Of a stop: `rank` is this node's place among those that may do it, -1
    where it leaves it to others; `policy` is what the site wants (requeue, hold, pass); `used_up` (pass, hold) becomes of a
    job that went round as often as it may; `suspects` are to be left out of the next attempt.
    """

    act: str
    reason: str
    rule: str
    finding: Finding | None = None
    would: str = ""
    rank: int = 0
    policy: str = ""
    used_up: str = "pass"
    suspects: tuple[str, ...] = ()


def on_gate(verdict: Verdict, settings: Settings, *, mode: str) -> Plan:
    """Return what follows from the local look at this node."""
    if verdict.verdict == FAIL:
        finding = decisive(verdict)
        assert finding is not None, "a verdict that fails has a finding that decided it"
        return _narrowed(Plan(DRAIN, verdict.reason, verdict.rule, finding), mode)
    if verdict.verdict == UNKNOWN and settings.gate.on_unknown == "requeue":
        return _narrowed(Plan(STOP_JOB, f"unknown: {verdict.reason}", verdict.rule, policy="requeue"), mode)
    return Plan(PASS_ON, verdict.reason, verdict.rule)


def _narrowed(plan: Plan, mode: str) -> Plan:
    """Return the plan as it is where the mode enforces; elsewhere one that passes and says what it would have done."""
    if mode == "enforce":
        return plan
    return plan._replace(act=PASS_ON, would=plan.act, reason=f"mode {mode}: would {plan.act}: {plan.reason}")


def strict_wanted(job: HookJob, settings: Settings) -> bool:
    """Say whether the job's burn-in is the strict one: by its partition, or by its owner's wish where the site allows it."""
    wish = job.request.burnin if job.request is not None else ""
    return job.partition in settings.burnin.strict_partitions or (
        wish == "strict" and "strict" in settings.burnin.user_may
    )


def burnin_wanted(
    job: HookJob, settings: Settings, *, mode: str, gpus_on_node: int | None, reusable: bool = False
) -> tuple[bool, str]:
    """Say whether this job gets a burn-in over its nodes, and why or why not.

    `gpus_on_node` is how many this node has or should have. With fewer than the job was promised the burn-in says so.
    `reusable`: an earlier pass of the same nodes still holds here. It decides for a job of one node alone; where there are
    more, each of them tells the others, and they skip it together or not at all.
    """
    wish = job.request.burnin if job.request is not None else ""
    rules = settings.burnin
    if mode == "off":
        return False, "mode.burnin is off"
    # To be left alone is a wish, too: what the site tests is not the user's to refuse unless the site says so.
    if "skip" in rules.user_may and job.request is not None and (wish == "skip" or job.request.off):
        return False, "the user asked to skip it"
    if job.het:
        return False, "a heterogeneous job: its parts start one by one, so their nodes cannot meet"
    if len(job.nodes) < rules.min_nodes:
        return False, f"{_counted(len(job.nodes), 'node')}, fewer than burnin.min_nodes"
    if rules.batch_only and not job.batch:
        return False, "no batch job: a failing prolog would cost its whole allocation"
    if job.node not in job.nodes:
        return False, "this node is not in the job's node list"
    if not job.gpus:
        return False, "the job has no GPUs here"
    if rules.whole_nodes_only and (gpus_on_node is None or gpus_on_node > job.gpus):
        known = "an unknown number of" if gpus_on_node is None else f"the {gpus_on_node}"
        return False, f"the job has {job.gpus} of {known} GPUs here, not the whole node"
    if job.start_s is not None and job.end_s is not None:
        minutes = (job.end_s - job.start_s) / 60
        if minutes < rules.min_time_limit_min:
            return False, f"a time limit of {minutes:.0f} min is below burnin.min_time_limit_min"
    if reusable and len(job.nodes) == 1:
        return False, f"it passed within {rules.reuse_pass_h:g} h"
    return True, "whole nodes of a batch job" + (", strict" if strict_wanted(job, settings) else "")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def on_burnin(
    verdict: Verdict,
    culprits: tuple[str, ...],
    settings: Settings,
    job: HookJob,
    *,
    mode: str,
    measured: Mapping[str, Any] | None = None,
) -> Plan:
    """Return what this node does after the burn-in. Innocent nodes pass at once; the job is stopped by one of the actors.

    `measured` is the outcome's: who led, who was absent, who is suspected.
    """
    me, told = job.node, measured or {}
    if verdict.verdict in (PASS, WARN):
        return Plan(PASS_ON, verdict.reason, verdict.rule)
    if verdict.verdict == FAIL and me in culprits:
        return _narrowed(Plan(DRAIN, verdict.reason, verdict.rule, finding_about(verdict, me)), mode)
    if verdict.verdict == FAIL and culprits:
        return Plan(PASS_ON, f"innocent; convicted: {', '.join(culprits)}: {verdict.reason}", verdict.rule)
    policy, key = stop_policy(verdict, settings, told)
    if policy == "pass":
        return Plan(PASS_ON, f"passed, since burnin.{key} is pass: {verdict.reason}", verdict.rule, policy=PASS_ON)
    suspects = names_of(told, "suspects", job.nodes) or names_of(told, "absent", job.nodes)
    able = actors(
        job.nodes, out=names_of(told, "absent", job.nodes), leader=str(told.get("acts") or told.get("leader") or "")
    )
    if me not in able:
        return Plan(PASS_ON, f"{able[0] if able else 'nobody'} stops the job: {verdict.reason}", verdict.rule, rank=-1)
    # What failed must not start for having failed often; what is not known may.
    used_up = "hold" if verdict.verdict == FAIL or "hold" in (policy, settings.burnin.on_unknown) else "pass"
    plan = Plan(STOP_JOB, verdict.reason, verdict.rule, rank=able.index(me), policy=policy, used_up=used_up)
    return _narrowed(plan._replace(suspects=suspects), mode)


def stop_policy(verdict: Verdict, settings: Settings, measured: Mapping[str, Any]) -> tuple[str, str]:
    """Return what the site wants for a burn-in that convicted nobody (pass, requeue, hold), and the key that says so.

    A failure that is neither fabric nor placement always stops the job.
    """
    rules = settings.burnin
    if verdict.verdict == FAIL:
        return (rules.on_fabric, "on_fabric") if verdict.rule in FABRIC else ("requeue", "")
    if verdict.rule == ABSENT and measured.get("passed") is True:
        return rules.on_absent, "on_absent"
    if verdict.rule == ABSENT and rules.on_absent == "hold":
        return "hold", "on_absent"
    return rules.on_unknown, "on_unknown"


def names_of(measured: Mapping[str, Any], key: str, nodes: Collection[str]) -> tuple[str, ...]:
    """Return the nodes of the job that an outcome lists under a key; another shape lists nobody."""
    listed = measured.get(key)
    known = set(nodes)
    return tuple(n for n in listed if isinstance(n, str) and n in known) if isinstance(listed, (list, tuple)) else ()


def finding_about(verdict: Verdict, node: str) -> Finding:
    """Return the finding a convicted node is drained for: the burn-in's own about it, else one made of the verdict."""
    mine = [finding for finding in verdict.findings if finding.target in (f"node:{node}", node)]
    return mine[0] if mine else Finding(verdict.rule or "burnin.culprit", f"node:{node}", "drain", (verdict.reason,))


def actors(nodes: tuple[str, ...], *, out: Collection[str] = (), leader: str = "") -> tuple[str, ...]:
    """Return the nodes that act for the job, one after the other: who led, then the first that are not `out`, LEADERS in all."""
    gone = set(out)
    able = [name for name in nodes[: LEADERS + len(gone) + 1] if name not in gone and name != leader]
    return tuple(([leader] if leader in nodes and leader not in gone else []) + able)[:LEADERS]


def hold_completing_s(job: HookJob, settings: Settings, *, resume_mode: str, heartbeat_fresh: bool) -> float:
    """Return how long (seconds) this node's epilog keeps the job in COMPLETING so that the controller can requeue it.

    Only for a job that wants to come back and ended badly, only on its first node, only where somebody will act.
    """
    wants = job.request is not None and job.request.resume is not None and job.request.resume != 0
    wants = wants or (not settings.resume.opt_in and not (job.request is not None and job.request.off))
    if not wants or not job.failed or not heartbeat_fresh or resume_mode != "enforce":
        return 0.0
    return settings.resume.epilog_hold_s if job.node in job.nodes[:1] else 0.0
