"""Jobs whose gate runs: how long that may take, when it was last seen, and a word to their hooks when they are over.

Innocent nodes of a job that was cancelled or requeued in its gate stay COMPLETING until their own prologs end, and Slurm
gives them no sign. A waiting hook looks at its attempt's mark on the share; this writes it. Nothing is done to any job.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext import shared
from slurm_ext.config.model import Settings
from slurm_ext.slurm.model import Job

#: Who wrote a mark, so that nobody takes it for a hook that sent its job back.
BY = shared.BY_CONTROLLER

#: A job that ended like this may have been anywhere in its gate; one that completed or failed by itself has left it.
_FROM_OUTSIDE = ("CANCELLED", "PREEMPTED", "TIMEOUT", "DEADLINE", "NODE_FAIL")

#: Prologs of one job may start this much apart (seconds; one hung slurmd delays the nodes behind it in the fan-out).
SLACK_S = 240.0

#: What a hook does beside looking and waiting for others: settings, acts, events, its own margin (seconds).
_REST_S = 30.0


def longest_s(settings: Settings, nodes: int) -> float:
    """Return the longest (seconds) a gate over so many nodes may take by the settings, strict or not, from its first prolog.

    Never less than what the hooks take for themselves; a test holds the two together. The burn-in's deadline grows with the
    nodes, in a strict one by its longer traffic, and nodes that passed wait `late_s` for those that have not come.
    """
    gate, burnin = settings.gate, settings.burnin
    if settings.mode.burnin == "off":
        return gate.deadline_s + _REST_S
    larger = nodes > burnin.group_nodes
    grown_s = burnin.deadline_s * 0.45 + 0.02 * nodes if larger else 0.0
    strict_s = max(0.0, burnin.strict_sustain_s - burnin.sustain_s) * (2 if larger else 1)
    return gate.deadline_s + burnin.deadline_s + grown_s + strict_s + burnin.late_s + _REST_S


def in_gate(job: Job) -> bool:
    """Say whether prologs of a job run: Slurm shows it as running, with this reason."""
    return job.reason == "Prolog" and job.state in ("RUNNING", "CONFIGURING") and "COMPLETING" not in job.flags


def is_stuck(job: Job, settings: Settings, now: float) -> bool:
    """Say whether a job has been in its gate for longer than any gate may take (seen with slurmd restarts on 26.05)."""
    if not in_gate(job) or not job.start_time:
        return False
    return now - job.start_time > longest_s(settings, job.node_count) + SLACK_S


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
    young = bool(job.start_time) and now - job.start_time < longest_s(settings, job.node_count) + SLACK_S
    return job.restarts if job.state in _FROM_OUTSIDE and young else None


class Gates:
    """Which attempts were in their gate at the last look, and which have been told that they are over."""

    def __init__(self) -> None:
        self._in_gate: dict[str, int] = {}
        self._told: set[str] = set()
        self._seen_at: dict[str, tuple[int, float]] = {}

    def seen_at(self, job: Job) -> float | None:
        """Return when this run of a job was last seen in its gate (seconds since the epoch), None where it never was."""
        restarts, when = self._seen_at.get(job.job_id, (-1, 0.0))
        return when if restarts == job.restarts else None

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
        ids = {job.job_id for job in jobs}
        self._seen_at = {job_id: seen for job_id, seen in self._seen_at.items() if job_id in ids}
        self._seen_at |= {job.job_id: (job.restarts, now) for job in jobs if in_gate(job)}
        completing = (job.job_id for job in jobs if "COMPLETING" in job.flags)
        self._in_gate |= {job_id: before[job_id] for job_id in completing if job_id in before}
