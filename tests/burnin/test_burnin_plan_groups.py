"""Jobs larger than one group: how they are divided, who is convicted, and what a slow switch between groups leads to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_player import bad_always, bad_with_partners, kinds, names, play

from slurm_ext.burnin import plan, plan_groups
from slurm_ext.burnin.model import HANG, OK, SLOW, WRONG, Round
from slurm_ext.verdict import FAIL, PASS, WARN


def leaves_of(count: int, size: int) -> dict[str, str]:
    return {name: f"leaf{i // size}" for i, name in enumerate(names(count))}


@pytest.mark.parametrize(
    ("count", "leaves", "sizes"),
    [
        (128, {}, [64, 64]),
        (130, {}, [44, 43, 43]),
        (100, leaves_of(100, 30), [30, 30, 30, 10]),
        (200, leaves_of(200, 130), [44, 43, 43, 35, 35]),
        (96, {name: "a" for name in names(30)}, [30, 33, 33]),
        (1024, {}, [64] * 16),
    ],
)
def test_groups_are_leaf_switches_or_neighbours(count: int, leaves: Mapping[str, str], sizes: list[int]) -> None:
    groups = plan_groups.divide(names(count), leaves, 64)
    assert [len(group) for group in groups] == sizes
    assert [name for group in groups for name in group] == list(names(count))
    assert all(len({leaves.get(name, "") for name in group}) == 1 for group in groups)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(1, 80), st.lists(st.sampled_from(["", "a", "b", "c", "d"]), max_size=300))
def test_groups_are_disjoint_cover_all_and_fit(count: int, most: int, drawn: list[str]) -> None:
    leaves = {name: leaf for name, leaf in zip(names(count), drawn, strict=False) if leaf}
    groups = plan_groups.divide(names(count), leaves, most)
    assert sorted(name for group in groups for name in group) == sorted(names(count))
    assert all(0 < len(group) <= most for group in groups)


@pytest.mark.parametrize("leaves", [{}, leaves_of(130, 16)])
def test_a_healthy_fabric_passes_in_two_rounds(leaves: Mapping[str, str]) -> None:
    decision, history = play(names(130), bad_with_partners(), leaves=leaves)
    assert (decision.verdict.verdict, kinds(history)) == (PASS, ["groups", "across"])
    across = history[1].groups[0].nodes
    assert across == tuple(group.nodes[0] for group in history[0].groups)


@pytest.mark.parametrize("size", [0, 2, 5, 16, 40])
@pytest.mark.parametrize("kind", [SLOW, HANG, WRONG])
def test_one_culprit_is_named_and_only_its_group_is_localised(kind: str, size: int) -> None:
    count = 80
    leaves = leaves_of(count, size) if size else None
    for culprit in names(count)[::7]:
        decision, history = play(names(count), bad_with_partners(culprit, kind=kind), leaves=leaves, group_nodes=40)
        assert decision.culprits == (culprit,), (culprit, decision, kinds(history))
        assert len(history) - 2 <= 6
        assert kinds(history)[-1] == "rails"
        mates = {n for g in history[0].groups if g.outcome != OK for n in g.nodes}
        assert culprit in mates
        strangers = {n for done in history[1:-1] for g in done.groups for n in g.nodes} - mates
        assert len(strangers) <= 6, "only borrowed nodes"


def test_culprits_of_two_groups_are_found_side_by_side() -> None:
    leaves = leaves_of(96, 24)
    decision, history = play(names(96), bad_with_partners("n3", "n50"), leaves=leaves, group_nodes=32)
    assert decision.culprits == ("n3", "n50")
    alone, _ = play(names(96), bad_with_partners("n3"), leaves=leaves, group_nodes=32)
    assert alone.culprits == ("n3",)
    assert len(history) <= 9


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("size", [8, 16, 20])
def test_a_slow_leaf_switch_drains_nobody(size: int, known: bool) -> None:
    count = 80
    leaves = leaves_of(count, size)

    def fabric(group: tuple[str, ...], run: int) -> str:
        found = {leaves[name] for name in group}
        return SLOW if "leaf1" in found and len(found) > 1 else OK

    decision, history = play(names(count), fabric, leaves=leaves if known else None, group_nodes=32)
    assert (decision.verdict.verdict, decision.culprits) == (FAIL, ()), kinds(history)
    if known:
        assert decision.verdict.rule == "burnin.switch"
        assert {leaves[name] for name in decision.suspects} == {"leaf1"}


def test_a_switch_that_ends_where_a_group_ends_is_no_node() -> None:
    """The last node below it falls into the next group, where it is slow with all others; beside its own it is not."""
    leaf = set(names(80)[:41])

    def fabric(group: tuple[str, ...], run: int) -> str:
        return SLOW if leaf & set(group) and not leaf >= set(group) else OK

    decision, _ = play(names(80), fabric, group_nodes=40)
    assert (decision.verdict.verdict, decision.culprits) == (FAIL, ())


def test_two_groups_that_fail_towards_each_other_accuse_nobody() -> None:
    leaves = leaves_of(80, 40)
    decision, history = play(
        names(80), lambda group, run: SLOW if len({leaves[n] for n in group}) > 1 else OK, leaves=leaves, group_nodes=40
    )
    assert (decision.verdict.rule, decision.culprits) == ("burnin.switch", ())
    pairs = [g.nodes for done in history if done.kind == "pairs" for g in done.groups]
    assert len(set(pairs)) == 3, "other nodes of both were tried"


def test_dips_of_some_groups_do_not_stop_the_job() -> None:
    decision, history = play(names(160), lambda group, run: SLOW if run == 1 else OK)
    assert (decision.verdict.verdict, decision.culprits) == (WARN, ()), decision
    assert kinds(history)[-1] == "across"


def test_all_groups_failing_is_no_nodes_fault() -> None:
    decision, _ = play(names(130), lambda group, run: HANG if len(group) > 1 else OK)
    assert (decision.verdict.verdict, decision.culprits) == (FAIL, ())


def test_a_node_that_fails_alone_in_a_group_of_its_own_is_named() -> None:
    leaves = {name: "leaf0" for name in names(40)} | {"n40": "leaf1"}
    decision, _ = play(names(41), bad_always("n40", kind=HANG), leaves=leaves, group_nodes=40)
    assert decision.culprits == ("n40",)


def test_more_groups_than_one_group_holds_are_still_one_round_across() -> None:
    nodes = names(100)
    leaves = leaves_of(100, 2)
    step = plan.next_step(nodes, [], leaves=leaves, group_nodes=10)
    assert isinstance(step, Round)
    assert (step.kind, len(step.groups)) == ("groups", 50)
    decision, history = play(nodes, bad_with_partners(), leaves=leaves, group_nodes=10)
    assert (decision.verdict.verdict, len(history[1].groups), len(history[1].groups[0].nodes)) == (PASS, 1, 50)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(9, 60),
    st.randoms(use_true_random=True),
    st.floats(0.02, 0.8),
    st.sampled_from([0, 1, 2, 5, 11]),
)
def test_whatever_comes_it_ends_and_who_passed_is_not_convicted(
    count: int, chance: object, share: float, leaf: int
) -> None:
    def fabric(group: tuple[str, ...], run: int) -> str:
        return chance.choice([SLOW, SLOW, HANG, WRONG]) if chance.random() < share else OK  # type: ignore[attr-defined]

    decision, history = play(
        names(count), fabric, limit=45, leaves=leaves_of(count, leaf) if leaf else None, group_nodes=8
    )
    passed = {
        name
        for done in history
        if done.kind not in ("rails", "across")
        for group in done.groups
        if group.outcome == OK and len(group.nodes) > 1
        for name in group.nodes
    }
    assert not passed & set(decision.culprits)
    assert len(decision.culprits) <= max(1, count // 3)
