"""The tree: tables of small fabrics, and properties that hold for any."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.topology.build import HOLDING, build, natural, switch_name
from slurm_ext.topology.compare import differences
from slurm_ext.topology.model import Placement, Tree


def place(node: str, *path: str, zone: str = "use2-az1") -> Placement:
    return Placement(node, f"i-{node}", "p5.48xlarge", path, zone)


def leaves(tree: Tree) -> list[tuple[str, ...]]:
    return [switch.nodes for switch in tree.switches if switch.nodes]


def test_six_nodes_under_two_spines_keep_their_common_root() -> None:
    tree = build(
        [place(f"n{i}", "A", "B1" if i < 4 else "B2", {1: "C1", 2: "C1", 3: "C2"}.get(i, "C3")) for i in range(1, 7)]
    )
    assert leaves(tree) == [("n1", "n2"), ("n3",), ("n4", "n5", "n6")]
    assert tree.paths()["n1"] == (switch_name("spine", "A"), switch_name("tier2", "B1"), switch_name("leaf", "C1"))
    assert tree.notes == ()


def test_tiers_that_do_not_branch_are_left_out_and_said_so() -> None:
    tree = build([place("n1", "A", "B", "C1"), place("n2", "A", "B", "C2")])
    assert [switch.cloud_id for switch in tree.switches] == ["B", "C1", "C2"]
    assert tree.notes == ("tier of A does not branch and is left out",)


def test_a_single_leaf_is_one_switch() -> None:
    tree = build([place("n1", "A", "B", "C"), place("n2", "A", "B", "C")])
    assert [(switch.cloud_id, switch.nodes) for switch in tree.switches] == [("C", ("n1", "n2"))]


def test_several_top_nodes_of_one_zone_get_one_root() -> None:
    tree = build([place("n1", "A1", "C1"), place("n2", "A2", "C2")])
    assert tree.switches[0].name == "fabric-use2-az1"
    assert len({path[0] for path in tree.paths().values()}) == 1


def test_two_zones_never_share_a_root() -> None:
    tree = build([place("n1", "A", "C1"), place("n2", "X", "C2", zone="use2-az2")])
    paths = tree.paths()
    assert paths["n1"][0] != paths["n2"][0]


@pytest.mark.parametrize(
    "placed",
    [
        [place("n1", "A", "B", "C")],
        [place("n1", "A", "B1", "C1"), place("n3", "A", "B2", "C2")],
        [place("n1", "A1", "C1"), place("n3", "A2", "C2")],
    ],
)
def test_an_unplaced_node_waits_under_the_root_of_its_fabric(placed: list[Placement]) -> None:
    tree = build([*placed, Placement("n2", "")])
    paths = tree.paths()
    assert paths["n2"][-1].startswith(HOLDING)
    assert paths["n2"][0] == paths["n1"][0]
    assert any("no known place" in note for note in tree.notes)


def test_no_node_with_a_place_is_still_a_tree() -> None:
    assert leaves(build([Placement("n1"), Placement("n2")])) == [("n1", "n2")]


def test_paths_of_different_depth_keep_every_node() -> None:
    tree = build([place("n1", "A", "B", "C"), place("n2", "A", "B"), place("n3", "A", "D", "E")])
    assert sorted(node for nodes in leaves(tree) for node in nodes) == ["n1", "n2", "n3"]
    assert any("different depths" in note for note in tree.notes)


@pytest.mark.parametrize("nodes", [[], [Placement("n1"), Placement("n1")]])
def test_what_would_stop_the_controller_is_refused(nodes: list[Placement]) -> None:
    with pytest.raises(ValueError):
        build(nodes)


def test_natural_order() -> None:
    assert sorted(["n10", "n2", "a-3b", "a-3"], key=natural) == ["a-3", "a-3b", "n2", "n10"]


def test_names_do_not_end_in_long_numbers() -> None:
    name = switch_name("leaf", "nn-01234567890123456789")
    assert len(name) <= 64
    assert len(name.rsplit("-h", 1)[1]) == 8


placements = st.lists(
    st.tuples(
        st.sampled_from(["", "z1", "z2"]),
        st.lists(st.sampled_from(["a", "b", "c"]), max_size=4),
    ),
    min_size=1,
    max_size=30,
).map(
    lambda rows: [
        # A network node has one parent: the id of a tier carries the whole way to it.
        Placement(f"n{i}", f"i-{i}", "p5", tuple(zone + "".join(way[: k + 1]) for k in range(len(way))), zone)
        for i, (zone, way) in enumerate(rows)
    ]
)


@given(placements, st.randoms(use_true_random=False))
def test_any_fabric_is_a_forest_that_slurm_accepts(nodes: list[Placement], order: random.Random) -> None:
    tree = build(nodes)
    shuffled = list(nodes)
    order.shuffle(shuffled)
    assert build(shuffled) == tree
    names = [switch.name for switch in tree.switches]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 64 for name in names)
    assert all(bool(switch.nodes) != bool(switch.switches) for switch in tree.switches)
    children = [child for switch in tree.switches for child in switch.switches]
    assert len(set(children)) == len(children)
    assert set(children) <= set(names)
    assert sorted(node for switch in tree.switches for node in switch.nodes) == sorted(p.node for p in nodes)
    paths = tree.paths()
    for first in nodes:
        for second in nodes:
            if first.path and second.path and first.path == second.path:
                assert paths[first.node] == paths[second.node]
            if first.path and second.path and first.zone != second.zone:
                assert paths[first.node][0] != paths[second.node][0]


def test_differences_name_the_node_and_both_paths() -> None:
    found = differences({"n1": ("a",), "n2": ("a", "b")}, {"n1": ("a",), "n2": ("a", "c"), "n3": ("a",)})
    assert [(pair.node, pair.wanted, pair.found) for pair in found] == [
        ("n2", ("a", "b"), ("a", "c")),
        ("n3", (), ("a",)),
    ]
