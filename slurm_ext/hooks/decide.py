"""From a verdict to what a hook does: pure, with the reason in words. Facts, settings and modes come in as arguments."""

from __future__ import annotations

from typing import NamedTuple

from slurm_ext.config.model import Settings
from slurm_ext.gate.model import decisive
from slurm_ext.hooks.environment import HookJob
from slurm_ext.verdict import FAIL, UNKNOWN, Finding, Verdict

#: The first nodes of a job, one after the other, act for it where others cannot.
LEADERS = 3

PASS_ON, DRAIN, STOP_JOB = "pass", "drain", "stop"


class Plan(NamedTuple):
    """What a hook does: `act` is pass, drain (this node, then exit 1) or stop (the job, exit 0), and why.

    How a job is stopped (held for the controller, requeued, or passed after all) is the Slurm room's to say. `would` is
    what it would be where the mode does not act.
    """

    act: str
    reason: str
    rule: str
    finding: Finding | None = None
    would: str = ""


def on_gate(verdict: Verdict, settings: Settings, *, mode: str) -> Plan:
    """Return what follows from the local look at this node."""
    if verdict.verdict == FAIL:
        finding = decisive(verdict)
        assert finding is not None, "a verdict that fails has a finding that decided it"
        return _narrowed(Plan(DRAIN, verdict.reason, verdict.rule, finding), mode)
    if verdict.verdict == UNKNOWN and settings.gate.on_unknown == "requeue":
        return _narrowed(Plan(STOP_JOB, f"unknown: {verdict.reason}", verdict.rule), mode)
    return Plan(PASS_ON, verdict.reason, verdict.rule)


def _narrowed(plan: Plan, mode: str) -> Plan:
    """Return the plan as it is where the mode enforces; elsewhere one that passes and says what it would have done."""
    if mode == "enforce":
        return plan
    return plan._replace(act=PASS_ON, would=plan.act, reason=f"mode {mode}: would {plan.act}: {plan.reason}")


def burnin_wanted(
    job: HookJob, settings: Settings, *, mode: str, gpus_on_node: int | None, reusable: bool = False
) -> tuple[bool, str]:
    """Say whether this job gets a burn-in over its nodes, and why or why not."""
    wish = job.request.burnin if job.request is not None else ""
    rules = settings.burnin
    if mode == "off":
        return False, "mode.burnin is off"
    if job.request is not None and job.request.off:
        return False, "the user asked to be left alone (--fm-off)"
    if wish == "skip" and "skip" in rules.user_may:
        return False, "the user asked to skip it"
    strict = wish == "strict" and "strict" in rules.user_may
    if len(job.nodes) < rules.min_nodes:
        return False, f"the job has {len(job.nodes)} nodes, fewer than burnin.min_nodes"
    if job.het:
        return False, "a heterogeneous job: its parts start one by one, so their nodes cannot meet"
    if rules.batch_only and not job.batch:
        return False, "no batch job: a failing prolog would cost its whole allocation"
    if job.node not in job.nodes:
        return False, "this node is not in the job's node list"
    if not job.gpus:
        return False, "the job has no GPUs here"
    if rules.whole_nodes_only and gpus_on_node != job.gpus:
        known = "an unknown number of" if gpus_on_node is None else f"the {gpus_on_node}"
        return False, f"the job has {job.gpus} of {known} GPUs here, not the whole node"
    if job.start_s is not None and job.end_s is not None:
        minutes = (job.end_s - job.start_s) / 60
        if minutes < rules.min_time_limit_min:
            return False, f"a time limit of {minutes:.0f} min is below burnin.min_time_limit_min"
    if reusable and not strict:
        return False, f"the same nodes passed within {rules.reuse_pass_h:g} h"
    return True, "whole nodes of a batch job" + (", strict" if strict else "")


def on_burnin(verdict: Verdict, culprits: tuple[str, ...], settings: Settings, job: HookJob, *, mode: str) -> Plan:
    """Return what this node does after the burn-in. Innocent nodes pass at once; the job is stopped by one leader."""
    me = job.node
    if verdict.verdict == FAIL and me in culprits:
        return _narrowed(Plan(DRAIN, verdict.reason, verdict.rule, finding_about(verdict, me)), mode)
    if verdict.verdict == FAIL and culprits:
        return Plan(PASS_ON, f"innocent; convicted: {', '.join(culprits)}: {verdict.reason}", verdict.rule)
    if verdict.verdict == FAIL or (verdict.verdict == UNKNOWN and settings.burnin.on_unknown != "pass"):
        leader = acting_node(job.nodes, ())
        if leader != me:
            return Plan(PASS_ON, f"{leader} stops the job: {verdict.reason}", verdict.rule)
        return _narrowed(Plan(STOP_JOB, verdict.reason, verdict.rule), mode)
    return Plan(PASS_ON, verdict.reason, verdict.rule)


def finding_about(verdict: Verdict, node: str) -> Finding:
    """Return the finding a convicted node is drained for: the burn-in's own about it, else one made of the verdict."""
    mine = [finding for finding in verdict.findings if finding.target in (f"node:{node}", node)]
    return mine[0] if mine else Finding(verdict.rule or "burnin.culprit", f"node:{node}", "drain", (verdict.reason,))


def acting_node(nodes: tuple[str, ...], culprits: tuple[str, ...]) -> str:
    """Return which node acts for the job: the first that is no culprit among the first LEADERS; empty where there is none."""
    return next((node for node in nodes[:LEADERS] if node not in culprits), "")


def hold_completing_s(job: HookJob, settings: Settings, *, resume_mode: str, heartbeat_fresh: bool) -> float:
    """Return how long (seconds) this node's epilog keeps the job in COMPLETING so that the controller can requeue it.

    Only for a job that wants to come back and ended badly, only on its first node, only where somebody will act.
    """
    wants = job.request is not None and job.request.resume is not None and job.request.resume != 0
    wants = wants or (not settings.resume.opt_in and not (job.request is not None and job.request.off))
    if not wants or not job.failed or not heartbeat_fresh or resume_mode != "enforce":
        return 0.0
    return settings.resume.epilog_hold_s if acting_node(job.nodes, ()) == job.node else 0.0
