"""Which nodes moved, and what a wrong map costs jobs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.topology import drift
from slurm_ext.topology.drift import ADDED, ARRIVED, GONE, LEFT, LOST, MOVED, cost, cost_words, moves, words

HOLD = "unplaced-z"


@pytest.mark.parametrize(
    ("was", "now", "away", "kind"),
    [
        (("r", "a"), ("r", "a"), False, ""),
        (("r", "a"), ("r", "b"), False, MOVED),
        (("r", "m", "a"), ("r", "n", "a"), False, MOVED),
        (("r", HOLD), ("r", "a"), False, ARRIVED),
        (("r", "a"), ("r", HOLD), True, LEFT),
        (("r", "a"), ("r", HOLD), False, LOST),
        (("b1",), (), True, LEFT),
        (("b1",), (), False, GONE),
        ((), ("r", "a"), False, ADDED),
        ((), ("r", HOLD), True, ADDED),
        (("q", HOLD), ("r", HOLD), True, MOVED),
    ],
)
def test_what_became_of_a_node(was: tuple[str, ...], now: tuple[str, ...], away: bool, kind: str) -> None:
    found = moves({"n": now} if now else {}, {"n": was} if was else {}, away={"n"} if away else ())
    assert [move.kind for move in found] == ([kind] if kind else [])
    for line in words(found):
        assert line.startswith("n ")
        for path in filter(None, (was, now)):
            assert path[-1] in line or kind in (LEFT, LOST, ARRIVED)


def test_cost_of_a_right_map_is_nothing() -> None:
    paths = {f"n{i}": ("r", f"l{i // 4}") for i in range(16)}
    found = cost(paths, paths, {"1": list(paths)})
    assert found == (1.0, ())
    assert cost_words(found) == []


def test_cost_of_two_nodes_that_changed_places() -> None:
    wanted = {f"n{i}": ("r", f"l{i // 4}") for i in range(8)}
    running = {**wanted, "n0": ("r", "l1"), "n4": ("r", "l0")}
    found = cost(wanted, running, {"7": ["n1", "n2", "n3", "n4"], "8": ["n1", "n2"], "9": ["n9", "n1"]})
    assert found.leaves_per_leaf == 2.0
    assert found.jobs == (("7", 4, 1, 2, 1),)
    assert cost_words(found) == [
        "nodes that Slurm takes for neighbours really lie under 2.00 leaves (1.00 would be right)",
        "job 7 (4 nodes): under 1 leaves to Slurm, really 2; 1 could hold it",
    ]


def test_no_nodes_cost_nothing() -> None:
    assert cost({}, {}, {}) == (1.0, ())
    assert cost({"n": ("r", HOLD)}, {"n": ("r", "a")}, {"1": ["n"]}) == (1.0, ())


def test_many_moves_are_folded() -> None:
    wanted = {f"n{i}": ("r", f"l{i}") for i in range(60)}
    lines = words(moves(wanted, {}), most=5)
    assert len(lines) == 6
    assert lines[-1] == "and 55 more nodes in 55 groups"


PATHS = st.dictionaries(
    st.sampled_from([f"n{i}" for i in range(12)]), st.sampled_from([("r", leaf) for leaf in ("a", "b", "c", HOLD)])
)


@given(PATHS, PATHS)
def test_moves_are_all_differences_and_no_others(wanted: drift.Paths, running: drift.Paths) -> None:
    found = {move.node for move in moves(wanted, running)}
    assert found == {node for node in wanted.keys() | running.keys() if wanted.get(node) != running.get(node)}
    paid = cost(wanted, running, {"1": list(running)})
    assert paid.leaves_per_leaf >= 1.0
    assert all(job.really > job.by_slurm and job.fewest <= job.really for job in paid.jobs)
