"""What a job is owed after a decision or its gate: the time that the gate took, and an end of our holds and exclusions."""

from __future__ import annotations

from slurm_ext.resume import exclusions, logs, observe, time_back
from slurm_ext.resume.acts import DONE, TIME_STEP, WAITING, Acts
from slurm_ext.resume.gates import Gates
from slurm_ext.resume.journal import CLOSED, Attempt, hold_expires, holds
from slurm_ext.resume.tick import Tick, listed, mode, of_partition, usable, with_nodes
from slurm_ext.slurm.model import Job

#: Exclusions of pending jobs are looked at again so often (seconds): nodes come and go.
REVIEW_S = 30.0
#: Which nodes' hooks are asked when a gate ended: those of so many nodes, since all are let go together.
ASKED_NODES = 16

#: Steps by which nodes that a job was kept away from are given back to it.
SUSPECTS_STEP, REQUIRED_STEP, ALL_STEP = "suspects-back", "required-back", "exclusions-end"


def give_back(acts: Acts, gate: Gates, attempt: Attempt, job: Job, tick: Tick) -> bool:
    """Raise a running job's time limit by what its gate took, once per run; say whether that is settled."""
    settings, journal = acts.settings, acts.journal
    step = journal.step(attempt, TIME_STEP)
    if attempt.restarts != job.restarts or (step is not None and step.phase == DONE):
        return True
    if step is not None and (meant := time_back.parse(step.detail)):
        # Meant before a crash: what Slurm has now may be that already, and nothing to start from.
        return acts.give_back(attempt, meant[1], step.detail) != WAITING
    acting = all(mode(settings, tick, job.partition, room=room) == "enforce" for room in ("resume", "burnin"))
    if not acting or job.time_limit_min < 0:
        return True
    took_s = _took_s(settings.site.share, gate, attempt, job, tick)
    if took_s is None or took_s < time_back.WORTH_S:
        return True
    bounds = {each.name: each.max_time_min for each in acts.slurm.partitions()}
    raised = time_back.raised(
        limit_min=job.time_limit_min,
        gate_s=took_s,
        partition_max_min=bounds.get(job.partition, job.time_limit_min),
        before=_last_raise(acts, attempt),
    )
    if raised is None:
        journal.mark(attempt, TIME_STEP, DONE, tick.now, f"the gate took {took_s:.0f} s; no limit to raise")
        return True
    return acts.give_back(attempt, raised.limit_min, raised.said) != WAITING


def _took_s(share: str, gate: Gates, attempt: Attempt, job: Job, tick: Tick) -> float | None:
    """Return how long a job's gate took (seconds) by its hooks' own events and our last sight of it, None if nobody knows."""
    trail = observe.trails(share, observe.nodes_of(job)[:ASKED_NODES], attempt.key)
    said = [
        when
        for found in trail.values()
        for event in found
        if event.event == "gate.prolog" and (when := logs.time_of(event.time)) is not None
    ]
    return time_back.duration(
        start=float(job.start_time), seen=gate.seen_at(job), ended=max(said, default=None), now=tick.now
    )


def _last_raise(acts: Acts, attempt: Attempt) -> str:
    """Return the words of the last raise of the same job's limit in an earlier run; none where there was none."""
    for old in reversed(acts.journal.history(attempt)):
        step = acts.journal.step(old, TIME_STEP)
        if step is not None and time_back.parse(step.detail):
            return step.detail
    return ""


def review(acts: Acts, attempt: Attempt, job: Job, tick: Tick, *, exclusions_too: bool) -> Tick:
    """Look again at a pending job whose last run was decided about: our hold ends in time, and so does what we excluded.

    Exclusions end when they expire, when too few nodes remain without them, and when the job itself requires such a node.
    """
    decided = attempt.decision
    if decided is None or attempt.phase != CLOSED or attempt.dry_run or attempt.restarts != job.restarts - 1:
        return tick
    if mode(acts.settings, tick, job.partition) != "enforce":
        return tick
    if holds(attempt, job) and tick.now > hold_expires(attempt):
        # One more run, so that nobody's job is forgotten; where it fails again it stays failed.
        acts.release(attempt, 0.0)
    if not exclusions_too or not decided.exclude:
        return tick
    tick = with_nodes(tick, acts.slurm)
    suspects = set(attempt.cause.suspects if attempt.cause else ()) & set(decided.exclude)
    step, why = _ends(acts, attempt, job, tick, suspects)
    if step == ALL_STEP:
        acts.exclude(attempt, (), step=step, why=why)
    elif step == REQUIRED_STEP:
        acts.exclude(attempt, step=step, why=why)  # which leaves out what the job requires
    elif step:
        acts.exclude(attempt, sorted(set(decided.exclude) - suspects), step=step, why=why)
    return tick


def _ends(acts: Acts, attempt: Attempt, job: Job, tick: Tick, suspects: set[str]) -> tuple[str, str]:
    """Return by which step exclusions of a pending job end now, and why; empty texts where they stay."""
    assert attempt.decision is not None
    age_s = tick.now - (attempt.ended or attempt.first_seen)
    if age_s >= exclusions.CULPRIT_EXPIRES_S:
        return ALL_STEP, "exclusions have expired"
    if own := sorted(listed(job.required_nodes) & set(attempt.decision.exclude) & listed(job.excluded_nodes)):
        return REQUIRED_STEP, f"the job itself requires {', '.join(own)}"
    if not suspects:
        return "", ""
    if age_s >= exclusions.SUSPECT_EXPIRES_S:
        return SUSPECTS_STEP, "nobody is suspect for longer than a day"
    ground = exclusions.Ground(
        len(of_partition(tick.nodes, job.partition)),
        usable(job, attempt.user_excluded, tick),
        job.node_count or 1,
        listed(job.required_nodes),
    )
    why = exclusions.blocking(suspects, ground)
    return (SUSPECTS_STEP, why) if why else ("", "")
