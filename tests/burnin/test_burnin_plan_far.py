"""A node that is slow by far is named in three rounds, and a switch that is, never costs a node."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from slurm_ext.burnin import plan
from slurm_ext.burnin.model import OK, SLOW, Decision, GroupResult, Round, RoundResult

#: A fabric whose healthy pairs differ by a factor of two, as in a lab, and a floor a third below its middle.
HEALTHY_GBS, FLOOR_GBS = 0.047, 0.0156


def play(
    count: int, slow: frozenset[str], share: float, seed: int, leaves: Mapping[str, str] | None = None
) -> tuple[int, Decision]:
    """Play one burn-in in which every group with one of `slow` runs at `share`, unless it has only those."""
    chance = random.Random(seed)
    nodes = tuple(f"n{i}" for i in range(count))
    history: list[RoundResult] = []
    while isinstance(step := plan.next_step(nodes, history, leaves=leaves, rails=False), Round):
        groups = []
        for members in step.groups:
            held = slow.intersection(members) and not (slow.issuperset(members) and len(slow) > 1)
            speed = HEALTHY_GBS * chance.uniform(0.6, 1.2) * (share if held and len(members) > 1 else 1.0)
            groups.append(GroupResult(members, OK if speed >= FLOOR_GBS else SLOW, speed, 8 * len(members)))
        history.append(RoundResult(step.kind, tuple(groups)))
        assert len(history) < 20
    return len(history) - 1, step


@pytest.mark.parametrize("count", [4, 5, 7, 8, 16, 64])
@pytest.mark.parametrize("known", [False, True])
def test_three_rounds_name_it_whatever_the_fabric_does(count: int, known: bool) -> None:
    leaves = {f"n{i}": f"s{i * 2 // count}" for i in range(count)} if known else None
    for seed in range(20):
        rounds, decision = play(count, frozenset({"n2"}), 1 / 30, seed, leaves)
        assert decision.culprits == ("n2",), decision
        assert rounds <= 3


@pytest.mark.parametrize("count", [4, 6, 8, 16, 64])
def test_all_nodes_below_one_switch_are_spared(count: int) -> None:
    leaves = {f"n{i}": f"s{i * 2 // count}" for i in range(count)}
    for seed in range(20):
        below = frozenset(name for name, leaf in leaves.items() if leaf == "s1")
        assert play(count, below, 1 / 30, seed, leaves)[1].culprits == ()


def test_the_only_node_of_its_switch_is_left_open() -> None:
    leaves = {"n0": "a", "n1": "a", "n2": "a", "n3": "b"}
    decision = play(4, frozenset({"n3"}), 1 / 30, 1, leaves)[1]
    assert decision.culprits == ()
    assert decision.suspects == ("n3",)
