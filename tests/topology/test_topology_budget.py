"""A limit on switches: leaves are given up, never nodes, and what blocks are made of stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.topology.blocks import has_domains
from slurm_ext.topology.budget import within
from slurm_ext.topology.build import build
from slurm_ext.topology.model import Placement

FLEET = [
    Placement(f"n{i}", "", "", ("a", f"b{i // 64}", f"c{i // 4}") if i % 10 else (), "z", "", f"us{i // 18}")
    for i in range(256)
]


def test_no_limit_and_a_wide_one_change_nothing() -> None:
    tree = build(FLEET)
    assert within(tree, 0) == tree
    assert within(tree, len(tree.switches)) == tree


def test_leaves_are_given_up_first_and_that_is_noted() -> None:
    tree = within(build(FLEET), 20)
    assert [switch.cloud_id for switch in tree.switches if switch.switches] == ["a"]
    assert len(tree.switches) == 6  # the top, four of the middle, one of nodes without a place
    assert "70 switches are more than 20: the 64 network nodes of layer 3 are left out" in tree.notes[0]
    assert set(tree.paths()) == {placement.node for placement in FLEET}


def test_names_of_what_stays_are_the_same() -> None:
    before = {switch.cloud_id: switch.name for switch in build(FLEET).switches}
    assert all(before[switch.cloud_id] == switch.name for switch in within(build(FLEET), 20).switches)


def test_blocks_stay_what_they_were() -> None:
    tree = within(build(FLEET), 3)
    assert has_domains(tree)
    assert sorted(tree.placements) == sorted(FLEET)


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=4), min_size=1, max_size=20), st.integers(1, 12))
def test_any_limit_keeps_every_node(ways: list[list[str]], most: int) -> None:
    nodes = [
        Placement(f"n{i}", path=tuple("".join(way[: k + 1]) for k in range(len(way)))) for i, way in enumerate(ways)
    ]
    tree = within(build(nodes), most)
    assert sorted(tree.paths()) == sorted(placement.node for placement in nodes)
    assert len(tree.switches) <= max(most, 4)  # two tops, a root above them, a waiting leaf
