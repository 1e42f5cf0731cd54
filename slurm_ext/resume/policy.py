"""What now? Cause, history and the site's budgets in, a Decision out. Pure, and it always ends: each class has a finite budget.

Requeues of one job are bounded by the sum of the budgets below, whatever fails and in whatever order, since every requeue
is counted in exactly one budget and no budget is ever given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_ext.config.model import Resume
from slurm_ext.resume.exclusions import CULPRIT_EXPIRES_S, SUSPECT_EXPIRES_S, Choice, Ground, choose
from slurm_ext.resume.model import (
    COMES_BACK,
    HOLD,
    NONE,
    REQUEUE,
    REQUEUE_EXCLUDE,
    STOP,
    WAIT_REQUEUE,
    Cause,
    Decision,
    Past,
)

#: Which budget a class counts in. Outside causes are not the job's fault, yet no loop is endless (OUTSIDE_MAX).
BUDGET_OF = {
    "infra-node": "infra",
    "infra-fabric": "infra",
    "storage": "infra",
    "checkpoint": "infra",
    "scheduler": "infra",
    "hang": "infra",
    "preemption": "outside",
    "maintenance": "outside",
    "capacity": "outside",
    "external-service": "outside",
    "time-limit": "outside",
    "numeric": "unknown",
    "user-oom": "unknown",
    "unknown": "unknown",
    "user-config": "user",
    "user-code": "user",
    "user-cancel": "user",
}
#: A bound for causes that lie outside: high enough for weeks of preemption, low enough that nothing runs for ever.
OUTSIDE_MAX = 50
#: Waits double from the first to the last of these.
WAIT_FIRST_S, WAIT_MAX_S = 60.0, 3600.0


class Situation(NamedTuple):
    """What a decision depends on beside the cause. `requested` is the user's own budget, -1 for the site's. `usable` are the
    nodes the job could run on now (None: not known), `required` those of its own --nodelist."""

    settings: Resume
    history: tuple[Past, ...] = ()
    requested: int = -1
    nodes_total: int = 0
    nodes_needed: int = 1
    requeued_by_slurm: bool = False
    jitter: float = 0.0  # 0 to 1, from the attempt's key: jobs that fail together must not come back together
    usable: frozenset[str] | None = None
    required: frozenset[str] = frozenset()


def limit_of(budget: str, situation: Situation) -> int:
    """Return how many requeues a budget allows; the user's own number can only lower the site's infra and outside budgets."""
    site = situation.settings
    limit = {"infra": site.infra, "unknown": site.unknown, "user": site.user, "outside": OUTSIDE_MAX}[budget]
    return limit if situation.requested < 0 or budget == "outside" else min(limit, situation.requested)


def used(budget: str, history: Sequence[Past]) -> int:
    """Return how many requeues of the history count in a budget."""
    return sum(1 for past in history if BUDGET_OF.get(past.cause, "unknown") == budget)


def most_requeues(situation: Situation) -> int:
    """Return the bound on requeues of one job that no history exceeds."""
    return sum(limit_of(budget, situation) for budget in ("infra", "unknown", "user", "outside"))


def decide(cause: Cause, situation: Situation) -> Decision:
    """Return what to do about a cause, and why in words."""
    budget = BUDGET_OF.get(cause.cause, "unknown")
    limit = limit_of(budget, situation)
    left = limit - used(budget, situation.history)
    if cause.advice not in COMES_BACK:
        # What Slurm already put back although it must not run again would start by itself: only a hold stops it.
        action = HOLD if situation.requeued_by_slurm and cause.advice == STOP else cause.advice
        return Decision(action, cause.reason, f"advice.{cause.rule}", budget_left=max(left, 0))
    end = HOLD if situation.requeued_by_slurm else STOP
    if left <= 0:
        return Decision(
            end, f"{cause.reason}; the budget of {limit} for {budget} causes is used up", f"budget.{budget}"
        )
    same = sum(1 for past in situation.history if past.root and past.root == cause.root)
    if same >= situation.settings.same_root and budget != "outside":
        return Decision(
            end, f"{cause.reason}; the same cause came {same} times before", "budget.same-root", budget_left=left
        )
    choice = _exclusions(cause, situation)
    if choice.refused:
        return Decision(HOLD, f"{cause.reason}; {choice.refused}", "budget.exclude", budget_left=left)
    wait_s = 0.0
    if cause.advice == WAIT_REQUEUE:
        repeats = sum(1 for past in situation.history if past.cause == cause.cause)
        wait_s = min(WAIT_FIRST_S * 2.0 ** min(repeats, 10), WAIT_MAX_S) * (1 + 0.5 * situation.jitter)
    action = cause.advice
    if action == REQUEUE_EXCLUDE and not set(choice.exclude) & {*cause.culprit_nodes, *cause.suspects}:
        action = REQUEUE
    reason = "; ".join([cause.reason, *choice.notes])
    return Decision(action, reason, f"advice.{cause.rule}", choice.exclude, wait_s, left - 1)


def _exclusions(cause: Cause, situation: Situation) -> Choice:
    """Return which nodes this job is kept away from now: those of this run, and of earlier ones what has not expired."""
    now = cause.culprit_nodes if cause.advice == REQUEUE_EXCLUDE else ()
    suspects = cause.suspects if cause.advice == REQUEUE_EXCLUDE else ()
    newest = situation.history[::-1]
    former = [node for past in newest for node in past.culprit_nodes if past.age_s < CULPRIT_EXPIRES_S]
    former += [node for past in newest for node in past.suspects if past.age_s < SUSPECT_EXPIRES_S]
    percent = situation.settings.exclude_max_percent
    ground = Ground(situation.nodes_total, situation.usable, situation.nodes_needed, situation.required, percent)
    return choose(now, suspects, former, ground)


__all__ = ["BUDGET_OF", "NONE", "OUTSIDE_MAX", "REQUEUE", "Situation", "decide", "limit_of", "most_requeues", "used"]
