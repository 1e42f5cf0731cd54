"""The story of a job in plain data: what it is now, and each run: where, how it ended, why, what was decided and done. Pure
but for the journal it reads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from slurm_ext import request, shared
from slurm_ext.config.model import Settings
from slurm_ext.resume import gates, policy, stopped
from slurm_ext.resume.journal import Attempt, Journal, hold_expires, holds
from slurm_ext.resume.model import COMES_BACK, Past
from slurm_ext.slurm.model import Job

#: What Slurm's reasons of a pending job mean, for those that people ask about (squeue(1), JOB REASON CODES).
PENDING_REASONS: Mapping[str, str] = {
    "": "Slurm has not looked at it yet",
    "Resources": "it waits for enough free nodes",
    "Priority": "jobs with a higher priority come first",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "a job it waits for did not end well, so it will never start",
    "BeginTime": "its start time has not come; a requeued job waits about two minutes unless fmslurm brings it back",
    "JobHeldUser": "its owner holds it: scontrol release JOB",
    "JobHeldAdmin": "an administrator holds it",
    "job_requeued_in_held_state": "it was requeued and is held",
    "launch_failed_requeued_held": "its prolog failed and Slurm holds it",
    "BadConstraints": "what it asks for cannot be had, e.g. it requires (--nodelist) a node that is excluded for it",
    "ReqNodeNotAvail": "nodes it needs are down, drained or excluded",
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions": (
        "nodes it needs are down, drained or reserved"
    ),
}


def now_line(job: Job | None, seen_at: float) -> str:
    """Return one sentence about what a job is doing, as Slurm had it at `seen_at` (seconds since the epoch)."""
    if job is None:
        return "Slurm no longer knows this job"
    if "COMPLETING" in job.flags:
        return "its nodes are finishing their epilogs" + (
            ", then it is pending again" if job.state == "PENDING" else ""
        )
    if job.state == "PENDING":
        meaning = PENDING_REASONS.get(job.reason, PENDING_REASONS.get(job.reason.replace(" ", "_"), ""))
        held = " (held)" if job.priority == 0 else ""
        text = f"pending{held}" + (f": {meaning}" if meaning else f", Slurm's reason {job.reason}")
        if job.reason == "BeginTime" and job.eligible_time:
            text += f"; starts in {max(job.eligible_time - seen_at, 0):.0f} s at the earliest"
        return text
    if job.state in ("RUNNING", "CONFIGURING"):
        since = f" for {_span(seen_at - job.start_time)}" if job.start_time else ""
        if job.reason == "Prolog":
            return f"in the gate{since} on {job.nodes}: the nodes are being checked before the job starts"
        return f"running{since} on {job.nodes}"
    return f"over: {job.state}" + (f", exit code {job.exit_code}" if job.exit_code != "0:0" else "")


def _span(seconds: float) -> str:
    whole = int(max(seconds, 0))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    return f"{whole / 3600:.1f} h"


def budgets(runs: list[Attempt], settings: Settings) -> dict[str, dict[str, int]]:
    """Return used and left requeues per budget of one job, from its runs that still count."""
    if not runs:
        return {}
    wish = request.parse(runs[-1].job.comment)
    requested = wish.resume if wish is not None and wish.resume is not None else -1
    situation = policy.Situation(settings.resume, requested=requested)
    past = [
        Past(run.cause.cause, run.cause.root)
        for run in runs
        if run.cause is not None and run.decision is not None and run.decision.action in COMES_BACK
    ]
    found: dict[str, dict[str, int]] = {}
    for name in ("infra", "unknown", "user", "outside"):
        limit, gone = policy.limit_of(name, situation), policy.used(name, past)
        found[name] = {"limit": limit, "used": gone, "left": max(limit - gone, 0)}
    return found


def _run(attempt: Attempt, journal: Journal) -> dict[str, Any]:
    told: dict[str, Any] = {
        "attempt": attempt.key,
        "restarts": attempt.restarts,
        "nodes": attempt.job.nodes,
        "started": attempt.job.start_time,
        "ended": attempt.ended,
        "end_state": attempt.end_state,
        "exit_code": attempt.job.exit_code,
        "phase": attempt.phase,
        "outcome": attempt.outcome,
        "dry_run": attempt.dry_run,
    }
    if attempt.cause is not None:
        cause = attempt.cause
        told["cause"] = {
            "class": cause.cause,
            "reason": cause.reason,
            "rule": cause.rule,
            "confidence": cause.confidence,
            "culprit_nodes": list(cause.culprit_nodes),
            "innocent_nodes": list(cause.innocent_nodes),
            "suspects": list(cause.suspects),
            "evidence": list(cause.evidence),
        }
    if attempt.decision is not None:
        told["decision"] = {**attempt.decision._asdict(), "exclude": list(attempt.decision.exclude)}
    told["steps"] = [step._asdict() for step in journal.steps(attempt) if step.step != "told"]
    return told


def _held(run: Attempt) -> dict[str, Any]:
    """Return until when and why we hold a job, and what a person can do about it."""
    decision, cause = run.decision, run.cause
    assert decision is not None
    how = [f"scontrol release {run.job_id} lets it start at once"]
    if cause is not None and cause.rule == stopped.RULE and run.job.nodes:
        how.insert(0, f"fmslurm burnin run -w {run.job.nodes} measures its nodes again, as an administrator")
    return {"until": hold_expires(run), "reason": decision.reason, "rule": decision.rule, "how": how}


def _gate(settings: Settings, cluster: str, job: Job, now: float) -> dict[str, Any] | None:
    """Return what a job's gate does now, whom it waits for, and when it ends at the latest; None where it is in none."""
    if not gates.in_gate(job):
        return None
    share = settings.site.share
    key = shared.attempt_key(cluster, job.job_id, job.restarts)
    try:
        state = shared.gate_state(share, key) if share else None
    except ValueError:  # a cluster name that is no part of a path
        state = None
    told: dict[str, Any] = {"deadline": job.start_time + gates.longest_s(settings, job.node_count or 1)}
    if state is None:
        return {
            **told,
            "phase": "local",
            "words": "each node is checked by itself",
            "waiting": [],
            "absent": 0,
            "since": None,
        }
    return {
        **told,
        "phase": state.phase,
        "words": shared.gate_words(state, now=now),
        "waiting": list(state.waiting),
        "absent": state.absent,
        "since": state.since,
    }


def bad_nodes(settings: Settings, cluster: str, job: Job) -> list[dict[str, str]]:
    """Return the convicted nodes on which this attempt of a job runs, or ran, all the same, each with why (the first few)."""
    if job.state == "PENDING" or not settings.site.share:
        return []
    share, key = settings.site.share, shared.attempt_key(cluster, job.job_id, job.restarts)
    try:
        nodes = shared.suspects_in(shared.attempt_names(share, key) or (), shared.BAD_PREFIX)[:5]
        told = [
            shared.read_json(shared.attempt_path(share, key, f"{shared.BAD_PREFIX}{node}.json")) or {} for node in nodes
        ]
    except ValueError:  # a cluster name that is no part of a path
        return []
    return [
        {"node": node, "reason": str(one.get("reason", "")), "why": str(one.get("why", ""))}
        for node, one in zip(nodes, told, strict=True)
    ]


def why(
    journal: Journal, job_id: str, jobs: Mapping[str, Job], seen_at: float, settings: Settings, uid: int | None
) -> dict[str, Any]:
    """Return the story of one job as plain data; with `uid`, only where the job is that user's."""
    job = jobs.get(job_id)
    runs = journal.runs(job_id)
    if runs:
        lineage = runs[-1].lineage if job is None or runs[-1].restarts <= job.restarts else job.submit_time
        runs = [run for run in runs if run.lineage == lineage]
    owner = job.user_id if job is not None else runs[-1].job.user_id if runs else None
    if owner is None or (uid is not None and owner != uid):
        # The same words for no such job and for somebody else's: nobody learns what runs here.
        return {"error": f"no job {job_id} of yours is known"}
    about = job if job is not None else runs[-1].job
    wish = request.parse(about.comment)
    asked = wish is not None and wish.resume is not None
    cluster = runs[-1].cluster if runs else settings.site.cluster
    stop = stopped.find(settings, cluster, job) if job is not None else None
    held = job is not None and bool(runs) and holds(runs[-1], job)
    return {
        "job": job_id,
        "name": about.name,
        "user_id": owner,
        "now": now_line(job, seen_at),
        "gate": _gate(settings, cluster, job, seen_at) if job is not None else None,
        "held_until": hold_expires(runs[-1]) if held else None,
        "held": _held(runs[-1]) if held else None,
        "state": job.state if job is not None else "",
        "reason": job.reason if job is not None else "",
        "resume": asked or not settings.resume.opt_in,
        "bad_nodes": bad_nodes(settings, cluster, job) if job is not None else [],
        "stopped": {"reason": stop.reason, "times": stop.times, "suspects": list(stop.suspects)} if stop else None,
        "runs": [_run(run, journal) for run in runs],
        "budgets": budgets(runs, settings),
        "seen_at": seen_at,
    }


def _wants(run: Attempt, settings: Settings) -> bool:
    wish = request.parse(run.job.comment)
    return not settings.resume.opt_in or (wish is not None and wish.resume is not None and not wish.off)


def jobs_table(journal: Journal, settings: Settings, uid: int | None) -> list[dict[str, Any]]:
    """Return the watched jobs, newest last, each with its last run and what is left of its budgets."""
    by_job: dict[tuple[str, str, int], list[Attempt]] = {}
    for run in journal.runs():
        if uid is None or run.job.user_id == uid:
            by_job.setdefault((run.cluster, run.job_id, run.lineage), []).append(run)
    return [
        {
            "job": runs[-1].job_id,
            "cluster": runs[-1].cluster,
            "name": runs[-1].job.name,
            "user_id": runs[-1].job.user_id,
            "runs": len(runs),
            "phase": runs[-1].phase,
            "last_cause": runs[-1].cause.cause if runs[-1].cause else "",
            "last_action": runs[-1].decision.action if runs[-1].decision else "",
            "outcome": runs[-1].outcome,
            "budgets": budgets(runs, settings),
            "age_s": round(time.time() - runs[-1].first_seen),
        }
        for runs in by_job.values()
        if any(run.decision is not None or _wants(run, settings) for run in runs)  # else it only was in our gate
    ]
