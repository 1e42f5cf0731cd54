"""What now? Cause, history and the site's budgets in, a Decision out. Pure, and it always ends: each class has a finite budget.

Requeues of one job are bounded by the sum of the budgets below, whatever fails and in whatever order, since every requeue
is counted in exactly one budget and no budget is ever given back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from slurm_ext.config.model import Resume
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
#: Small clusters may still lose this many nodes to exclusion, as drain.max_per_hour allows for drains.
EXCLUDE_MIN = 2


class Situation(NamedTuple):
    """What a decision depends on beside the cause. `requested` is the user's own budget, -1 for the site's."""

    settings: Resume
    history: tuple[Past, ...] = ()
    requested: int = -1
    nodes_total: int = 0
    nodes_needed: int = 1
    requeued_by_slurm: bool = False
    jitter: float = 0.0  # 0 to 1, from the attempt's key: jobs that fail together must not come back together


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
    exclude, refused = _exclusions(cause, situation)
    if refused:
        return Decision(HOLD, f"{cause.reason}; {refused}", "budget.exclude", exclude, budget_left=left)
    wait_s = 0.0
    if cause.advice == WAIT_REQUEUE:
        repeats = sum(1 for past in situation.history if past.cause == cause.cause)
        wait_s = min(WAIT_FIRST_S * 2.0 ** min(repeats, 10), WAIT_MAX_S) * (1 + 0.5 * situation.jitter)
    action = cause.advice
    if action == REQUEUE_EXCLUDE and not cause.culprit_nodes:
        action = REQUEUE
    return Decision(action, cause.reason, f"advice.{cause.rule}", exclude, wait_s, left - 1)


def _exclusions(cause: Cause, situation: Situation) -> tuple[tuple[str, ...], str]:
    """Return our whole list of excluded nodes, newest culprits first to stay, and a refusal in words where it cannot be."""
    now = cause.culprit_nodes if cause.advice == REQUEUE_EXCLUDE else ()
    former = [node for past in reversed(situation.history) for node in past.culprit_nodes]
    wanted = list(dict.fromkeys([*now, *former]))
    if not wanted:
        return (), ""
    allowed = max(EXCLUDE_MIN, math.floor(situation.nodes_total * situation.settings.exclude_max_percent / 100))
    if situation.nodes_total:
        allowed = max(min(allowed, situation.nodes_total - situation.nodes_needed), 0)
    if len(now) > allowed:
        return (), (
            f"{len(now)} culprits cannot be excluded: {situation.nodes_total} nodes, {situation.nodes_needed} needed, "
            f"at most {allowed} may be left out"
        )
    return tuple(sorted(wanted[:allowed])), ""


__all__ = ["BUDGET_OF", "NONE", "OUTSIDE_MAX", "REQUEUE", "Situation", "decide", "limit_of", "most_requeues", "used"]
