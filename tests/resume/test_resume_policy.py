"""Policy: budgets per class, the same root, exclusions, and that no history leads to an endless loop."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ext.config.model import Resume
from slurm_ext.resume.model import ACTIONS, CLASSES, COMES_BACK, Cause, Past
from slurm_ext.resume.policy import Situation, decide, limit_of, most_requeues

SITE = Situation(Resume(), nodes_total=100, nodes_needed=4)


def cause(name="infra-node", advice="requeue-exclude", culprits=("n1",), root="r"):
    return Cause(name, advice, "some.rule", 0.9, culprits, (), ("line",), "because", root)


def past(name="infra-node", count=1, root="other", culprits=()):
    return tuple(Past(name, f"{root}{index}", culprits) for index in range(count))


@pytest.mark.parametrize(
    ("about", "history", "action", "rule"),
    [
        (cause(), (), "requeue-exclude", "advice.some.rule"),
        (cause(culprits=()), (), "requeue", "advice.some.rule"),
        (cause(), past(count=4), "requeue-exclude", "advice.some.rule"),
        (cause(), past(count=5), "stop", "budget.infra"),
        (cause(), tuple(Past("infra-node", "r") for _ in range(3)), "stop", "budget.same-root"),
        (cause("unknown", "requeue", ()), (), "requeue", "advice.some.rule"),
        (cause("unknown", "requeue", ()), past("unknown"), "stop", "budget.unknown"),
        (cause("user-code", "stop", ()), (), "stop", "advice.some.rule"),
        (cause("user-config", "requeue", ()), (), "stop", "budget.user"),
        (cause("user-cancel", "none", ()), (), "none", "advice.some.rule"),
        (cause("preemption", "requeue", ()), past("preemption", 20), "requeue", "advice.some.rule"),
        (cause("scheduler", "hold", ()), (), "hold", "advice.some.rule"),
    ],
)
def test_decision(about, history, action, rule):
    got = decide(about, SITE._replace(history=history))
    assert (got.action, got.rule) == (action, rule)
    assert got.reason


def test_what_slurm_put_back_is_held_when_it_must_not_run():
    back = SITE._replace(requeued_by_slurm=True)
    assert decide(cause("user-code", "stop", ()), back).action == "hold"
    assert decide(cause(), back._replace(history=past(count=5))).action == "hold"
    assert decide(cause("user-cancel", "none", ()), back).action == "none"


def test_exclusions_pile_up_but_not_beyond_the_limit():
    history = tuple(Past("infra-node", f"r{index}", (f"old{index}",)) for index in range(4))
    few = decide(cause(), SITE._replace(nodes_total=20, history=history))
    assert few.exclude == ("n1", "old3")
    many = decide(cause(), SITE._replace(history=history))
    assert set(many.exclude) == {"n1", "old0", "old1", "old2", "old3"}


def test_a_culprit_that_cannot_be_left_out_holds_the_job():
    got = decide(cause(), SITE._replace(nodes_total=4, nodes_needed=4))
    assert (got.action, got.rule) == ("hold", "budget.exclude")
    assert "4 needed" in got.reason


def test_waits_grow_and_are_bounded():
    wait = cause("capacity", "wait-requeue", ())
    waits = [decide(wait, SITE._replace(history=past("capacity", count))).wait_s for count in (0, 1, 3, 30)]
    assert waits == [60, 120, 480, 3600]
    assert decide(wait, SITE._replace(jitter=1.0)).wait_s == 90


def test_a_user_may_only_lower_the_budget():
    assert limit_of("infra", SITE._replace(requested=2)) == 2
    assert limit_of("infra", SITE._replace(requested=99)) == 5
    assert decide(cause(), SITE._replace(requested=0)).action == "stop"


def site_with(infra: int, unknown: int, user: int, same_root: int) -> Resume:
    return Resume(infra=infra, unknown=unknown, user=user, same_root=same_root)


CAUSES = st.builds(
    cause,
    st.sampled_from(CLASSES),
    st.sampled_from(ACTIONS),
    st.lists(st.sampled_from([f"n{index}" for index in range(6)]), max_size=3, unique=True).map(tuple),
    st.sampled_from(["a", "b", "c", "d"]),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(CAUSES, max_size=120),
    st.integers(-1, 9),
    st.integers(1, 50),
    st.booleans(),
    st.builds(
        site_with,
        infra=st.integers(0, 6),
        unknown=st.integers(0, 3),
        user=st.integers(0, 2),
        same_root=st.integers(1, 4),
    ),
)
def test_no_history_leads_to_more_requeues_than_the_budgets(causes, requested, total, by_slurm, site):
    situation = Situation(site, requested=requested, nodes_total=total, nodes_needed=2, requeued_by_slurm=by_slurm)
    history: tuple[Past, ...] = ()
    for about in causes:
        decision = decide(about, situation._replace(history=history))
        if decision.action in COMES_BACK:
            history = (*history, Past(about.cause, about.root, about.culprit_nodes))
            assert len(decision.exclude) <= max(total - 2, 0)
        elif by_slurm:
            assert decision.action in ("hold", "none")
    assert len(history) <= most_requeues(situation)
