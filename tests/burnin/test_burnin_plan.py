"""Who is convicted: tables, and simulated fabrics with culprits, bad links and transient failures."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ext.burnin import plan
from slurm_ext.burnin.model import (
    ENVIRONMENT,
    HANG,
    LOCAL,
    OK,
    SLOW,
    WRONG,
    Decision,
    GroupResult,
    RankReport,
    Round,
    RoundResult,
    Suspect,
)
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

Behaviour = Callable[[tuple[str, ...], int], str]


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{i}" for i in range(count))


def play(
    nodes: tuple[str, ...], fabric: Behaviour, *, hints: tuple[str, ...] = (), limit: int = 12
) -> tuple[Decision, list[RoundResult]]:
    """Run the plan against a fabric: a function of (group, number of the run) that says how the group does."""
    history: list[RoundResult] = []
    runs = 0
    for _ in range(limit):
        step = plan.next_step(nodes, history)
        if isinstance(step, Decision):
            return step, history
        assert all(len(set(g)) == len(g) for g in step.groups)
        flat = [name for group in step.groups for name in group]
        assert len(flat) == len(set(flat)), "groups of a round are disjoint"
        results = []
        for group in step.groups:
            outcome = fabric(group, runs)
            runs += 1
            suspects = tuple(Suspect(h, "points at itself", True) for h in hints if h in group and outcome != OK)
            results.append(
                GroupResult(group, outcome, 100.0, 8 * len(group), suspects if step.kind == "all" else (), (), ("why",))
            )
        history.append(RoundResult(step.kind, tuple(results)))
    raise AssertionError(f"no decision after {limit} rounds: {[h.kind for h in history]}")


def bad_with_partners(*culprits: str, kind: str = SLOW) -> Behaviour:
    """A link: slow with any partner, fine alone."""
    return lambda group, run: kind if len(group) > 1 and set(culprits) & set(group) else OK


def bad_always(*culprits: str, kind: str = WRONG) -> Behaviour:
    return lambda group, run: kind if set(culprits) & set(group) else OK


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 64])
def test_a_healthy_fabric_passes_in_one_round(count: int) -> None:
    decision, history = play(names(count), bad_with_partners())
    assert (decision.verdict.verdict, decision.culprits, len(history)) == (PASS, (), 1)
    assert decision.verdict.reason.startswith("right results, 100 GB/s")


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 8, 9, 16, 33, 64])
def test_one_slow_link_is_named_wherever_it_is(count: int) -> None:
    nodes = names(count)
    for culprit in nodes:
        decision, history = play(nodes, bad_with_partners(culprit))
        assert decision.culprits == (culprit,), (culprit, decision, [h.kind for h in history])
        assert decision.verdict.verdict == FAIL
        finding = decision.verdict.findings[0]
        assert (finding.id, finding.target, finding.action) == ("burnin.slow", f"node:{culprit}", "drain")
        assert len(history) <= (4 if count % 2 == 0 else 5)


def test_two_nodes_name_nobody() -> None:
    decision, _ = play(names(2), bad_with_partners("n1"))
    assert (decision.verdict.verdict, decision.culprits, decision.suspects) == (FAIL, (), ("n0", "n1"))
    assert decision.verdict.rule == "burnin.two-nodes"


def test_of_two_nodes_the_one_that_fails_twice_alone_is_named() -> None:
    decision, _ = play(names(2), bad_always("n1"))
    assert decision.culprits == ("n1",)
    decision, _ = play(names(2), bad_always("n0", "n1"))
    assert decision.culprits == ()


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_a_node_that_points_at_itself_is_isolated_and_named(count: int) -> None:
    for culprit in names(count):
        decision, history = play(names(count), bad_always(culprit, kind=HANG), hints=(culprit,))
        assert decision.culprits == (culprit,)
        assert [h.kind for h in history] == (["all", "alone", "alone"] if count == 2 else ["all", "isolate", "alone"])


@pytest.mark.parametrize("count", [4, 5, 8])
def test_a_hinted_node_that_is_fine_alone_is_tried_with_partners(count: int) -> None:
    decision, history = play(names(count), bad_with_partners("n1"), hints=("n1",))
    assert decision.culprits == ("n1",)
    assert [h.kind for h in history] == ["all", "isolate", "confirm", "confirm", "confirm"]


def test_an_innocent_that_was_hinted_goes_free() -> None:
    fails = iter([SLOW])
    decision, _ = play(names(6), lambda group, run: next(fails, OK), hints=("n2",))
    assert decision.culprits == ()
    assert decision.verdict.verdict == WARN
    decision, _ = play(names(6), bad_always("n4"), hints=("n2",))
    assert decision.culprits == ("n4",)


def test_a_bad_pair_of_good_nodes_convicts_neither() -> None:
    decision, _ = play(names(8), lambda group, run: SLOW if {"n2", "n3"} <= set(group) else OK)
    assert (decision.verdict.rule, decision.culprits, decision.suspects) == ("burnin.pair", (), ("n2", "n3"))


def test_more_than_a_third_convicts_none() -> None:
    decision, _ = play(names(6), bad_with_partners("n0", "n2", "n4"))
    assert (decision.verdict.rule, decision.culprits) == ("burnin.fabric", ())
    decision, _ = play(names(5), lambda group, run: SLOW if len(group) > 1 else OK)
    assert (decision.verdict.rule, decision.culprits) == ("burnin.fabric", ())


def test_two_culprits_of_eight_are_both_named() -> None:
    for other in names(8)[1:]:
        decision, history = play(names(8), bad_with_partners("n0", other))
        assert decision.culprits == ("n0", other), [h.kind for h in history]


def test_slow_only_as_a_whole_convicts_none() -> None:
    decision, history = play(names(8), lambda group, run: SLOW if len(group) > 2 else OK)
    assert (decision.verdict.rule, decision.verdict.verdict) == ("burnin.whole-only", FAIL)
    assert [h.kind for h in history] == ["all", "pairs", "pairs", "again"]


def test_a_dip_warns_and_a_wrong_sum_never_passes() -> None:
    decision, _ = play(names(4), lambda group, run: SLOW if run == 0 else OK)
    assert decision.verdict.verdict == WARN
    decision, _ = play(names(4), lambda group, run: WRONG if run == 0 else OK)
    assert (decision.verdict.verdict, decision.culprits) == (FAIL, ())


def test_missing_software_is_unknown_and_nobodys_fault() -> None:
    missing = GroupResult(names(4), "error", environment=(Suspect("n2", "cannot load libnccl.so.2"),))
    decision = plan.next_step(names(4), [RoundResult("all", (missing,))])
    assert isinstance(decision, Decision)
    assert (decision.verdict.verdict, decision.culprits) == (UNKNOWN, ())
    assert "libnccl" in decision.verdict.reason


def test_without_a_floor_the_job_runs_and_people_are_told() -> None:
    group = GroupResult(names(4), OK, 10.0, 32, judged=False)
    decision = plan.next_step(names(4), [RoundResult("all", (group,))])
    assert isinstance(decision, Decision)
    assert (decision.verdict.verdict, decision.verdict.rule) == (WARN, "burnin.no-floor")


def test_a_survey_measures_all_and_pairs_twice() -> None:
    history: list[RoundResult] = []
    seen = []
    while (step := plan.survey_step(names(5), history)) is not None:
        seen.append(step.groups)
        history.append(RoundResult(step.kind, tuple(GroupResult(g, OK, 1.0) for g in step.groups)))
    assert seen == [
        (names(5),),
        (("n0", "n1"), ("n2", "n3")),
        (("n1", "n2"), ("n3", "n4")),
    ]
    assert plan.survey_step(names(2), history[:1]) is None


@st.composite
def fabrics(
    draw: st.DrawFn,
) -> tuple[int, frozenset[str], bool, tuple[str, ...], frozenset[int], frozenset[frozenset[str]]]:
    count = draw(st.integers(2, 24))
    culprits = draw(st.frozensets(st.sampled_from(names(count)), max_size=min(3, count)))
    fails_alone = draw(st.booleans())
    hints = draw(st.lists(st.sampled_from(names(count)), unique=True, max_size=2))
    flips = draw(st.frozensets(st.integers(0, 40), max_size=1))  # one group's outcome is turned round
    links = draw(st.frozensets(st.frozensets(st.sampled_from(names(count)), min_size=2, max_size=2), max_size=1))
    if flips:
        # What is promised: a flip beside a third of bad nodes, or beside a bad node and a bad link, convicts no innocent.
        # With more at once the truth is no longer the simplest story; of three nodes a link is too much already.
        links = links if count > 3 else frozenset()
        culprits = frozenset(sorted(culprits)[: 1 if links else max(1, count // 3)])
    return count, culprits, fails_alone, tuple(hints), flips, links


@settings(max_examples=500, deadline=None)
@given(fabrics())
def test_no_innocent_node_is_convicted(case: tuple) -> None:
    count, culprits, fails_alone, hints, flips, links = case

    def fabric(group: tuple[str, ...], run: int) -> str:
        bad = bool(set(group) & culprits) if fails_alone or len(group) > 1 else False
        bad = bad or any(link <= set(group) for link in links)
        return SLOW if bad != (run in flips) else OK

    decision, history = play(names(count), fabric, hints=hints, limit=20)
    assert set(decision.culprits) <= culprits, [(h.kind, [(g.nodes, g.outcome) for g in h.groups]) for h in history]
    if culprits and not flips and not hints:
        assert decision.verdict.verdict == FAIL
    if not culprits and not flips and not links:
        assert decision.verdict.verdict == PASS


@settings(max_examples=200, deadline=None)
@given(st.integers(3, 40), st.randoms(use_true_random=False), st.sampled_from([SLOW, HANG, WRONG]))
def test_a_single_culprit_is_always_named(count: int, chance: random.Random, kind: str) -> None:
    culprit = chance.choice(names(count))
    for fabric in (bad_with_partners(culprit, kind=kind), bad_always(culprit, kind=kind)):
        decision, _ = play(names(count), fabric)
        assert decision.culprits == (culprit,)


def report(rank: int, node: str, **more: object) -> RankReport:
    return RankReport(rank, node, rank % 2, **more)  # type: ignore[arg-type]


def test_reports_are_data() -> None:
    assert report(1, "n0", state="error", cause=LOCAL).cause == "local"
    assert ENVIRONMENT == "environment"
    assert isinstance(plan.next_step(names(2), []), Round)
