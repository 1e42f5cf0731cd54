"""Plays the plan against a fabric that a test describes; not a test itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slurm_ext.burnin import plan
from slurm_ext.burnin.model import OK, SLOW, Decision, GroupResult, Round, RoundResult, Suspect

#: From (group, number of the run) to how the group does.
Behaviour = Callable[[tuple[str, ...], int], str]

#: What groups show (GB/s): well, and slow.
FAST, LOW = 100.0, 40.0


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{i}" for i in range(count))


def play(
    nodes: tuple[str, ...],
    fabric: Behaviour,
    *,
    hints: tuple[str, ...] = (),
    local: tuple[str, ...] = (),
    limit: int = 20,
    leaves: Mapping[str, str] | None = None,
    **more: Any,
) -> tuple[Decision, list[RoundResult]]:
    """Run the plan to its decision. `hints` are pointed at in the first run, `local` whenever they fail, by their own error."""
    history: list[RoundResult] = []
    runs = 0
    for _ in range(limit):
        early = plan.next_step(nodes, history, leaves=leaves, **{**more, "conclude": True})
        assert isinstance(early, Round) or set(early.culprits) <= set(nodes), "time may be up at any moment"
        step = plan.next_step(nodes, history, leaves=leaves, **more)
        if isinstance(step, Decision):
            return step, history
        flat = [name for group in step.groups for name in group]
        assert len(flat) == len(set(flat)), "groups of a round are disjoint"
        assert set(flat) <= set(nodes)
        if step.kind in ("all", "groups"):
            assert sorted(flat) == sorted(nodes), "the first round covers everybody"
        results = []
        for group in step.groups:
            outcome = fabric(group, runs)
            runs += 1
            pointed = [h for h in hints if step.kind in ("all", "groups")] + list(local)
            suspects = tuple(Suspect(h, "points at itself", True) for h in pointed if h in group and outcome != OK)
            speed = {OK: FAST, SLOW: LOW}.get(outcome)
            results.append(GroupResult(group, outcome, speed, 8 * len(group), suspects, (), ("why",)))
        history.append(RoundResult(step.kind, tuple(results)))
    raise AssertionError(f"no decision after {limit} rounds: {[h.kind for h in history]}")


def kinds(history: list[RoundResult]) -> list[str]:
    return [done.kind for done in history]


def bad_with_partners(*culprits: str, kind: str = SLOW) -> Behaviour:
    """A link: slow with any partner, fine alone."""
    return lambda group, run: kind if len(group) > 1 and set(culprits) & set(group) else OK


def bad_always(*culprits: str, kind: str = SLOW) -> Behaviour:
    return lambda group, run: kind if set(culprits) & set(group) else OK
