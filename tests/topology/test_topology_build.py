"""The tree: tables of small fabrics, and properties that hold for any."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.slurm.model import Version
from slurm_ext.topology.build import HOLDING, MAX_TIERS, build, layer, natural, switch_name
from slurm_ext.topology.lint import Source, lint
from slurm_ext.topology.lint_model import Given, release
from slurm_ext.topology.model import Placement, Tree
from slurm_ext.topology.naming import names_in, node_order, unique_names, zone_words
from slurm_ext.topology.render import topology_conf
from slurm_ext.topology.render_yaml import topology_yaml


def place(node: str, *path: str, zone: str = "use2-az1") -> Placement:
    return Placement(node, f"i-{node}", "p5.48xlarge", path, zone)


def leaves(tree: Tree) -> list[tuple[str, ...]]:
    return [switch.nodes for switch in tree.switches if switch.nodes]


def test_six_nodes_under_two_spines_keep_their_common_root() -> None:
    tree = build(
        [place(f"n{i}", "A", "B1" if i < 4 else "B2", {1: "C1", 2: "C1", 3: "C2"}.get(i, "C3")) for i in range(1, 7)]
    )
    assert leaves(tree) == [("n1", "n2"), ("n3",), ("n4", "n5", "n6")]
    assert tree.paths()["n1"] == (switch_name("l1", "A"), switch_name("l2", "B1"), switch_name("l3", "C1"))
    assert tree.notes == ()


def test_tiers_that_do_not_branch_are_left_out_and_said_so() -> None:
    tree = build([place("n1", "A", "B", "C1"), place("n2", "A", "B", "C2")])
    assert [switch.cloud_id for switch in tree.switches] == ["B", "C1", "C2"]
    assert tree.notes == ("tier of A does not branch and is left out",)


def test_a_tier_in_the_middle_that_nowhere_branches_is_left_out() -> None:
    tree = build([place("n1", "A", "B1", "C1"), place("n2", "A", "B2", "C2"), place("n3", "A", "B3", "C3")])
    assert [switch.cloud_id for switch in tree.switches] == ["A", "C1", "C2", "C3"]
    assert tree.notes == ("layer 2 (3 network nodes) does not branch and is left out",)


def test_a_tier_that_branches_once_stays_whole() -> None:
    tree = build([place("n1", "A", "B1", "C1"), place("n2", "A", "B2", "C2"), place("n3", "A", "B2", "C3")])
    assert [switch.cloud_id for switch in tree.switches] == ["A", "B1", "C1", "B2", "C2", "C3"]


def test_names_stay_when_a_tier_begins_to_branch() -> None:
    before = build([place("n1", "A", "B", "C1"), place("n2", "A", "B", "C2")])
    after = build([place("n1", "A", "B", "C1"), place("n2", "A", "B", "C2"), place("n3", "A", "B2", "C3")])
    assert {switch.name for switch in before.switches} <= {switch.name for switch in after.switches}


def test_a_single_leaf_is_one_switch() -> None:
    tree = build([place("n1", "A", "B", "C"), place("n2", "A", "B", "C")])
    assert [(switch.cloud_id, switch.nodes) for switch in tree.switches] == [("C", ("n1", "n2"))]


def test_several_top_nodes_of_one_zone_get_one_root() -> None:
    tree = build([place("n1", "A1", "C1"), place("n2", "A2", "C2"), place("n3", "A2", "C3")])
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


def test_an_unplaced_node_of_a_zone_without_others_waits_under_a_root_of_its_own() -> None:
    paths = build([place("n1", "A", "C"), Placement("n2", zone="use2-az2")]).paths()
    assert paths["n2"] == ("unplaced-use2-az2",)
    assert paths["n1"][0] != paths["n2"][0]


def test_an_unplaced_node_of_no_known_zone_waits_where_its_kind_is() -> None:
    def gpu(name: str, *path: str, zone: str = "") -> Placement:
        return Placement(name, path=path, zone=zone)

    placed = [
        *(gpu(f"p5-st-a-{i}", "t1", f"l{i}", zone="az1") for i in range(1, 9)),
        gpu("b200-st-b-1", "t2", "m1", zone="az2"),
    ]
    tree = build([*placed, gpu("b200-dy-b-7"), gpu("p5-dy-a-1"), gpu("other-dy-c-1"), gpu("other-dy-c-2")])
    paths = tree.paths()
    # The larger fabric is az1's: a node that is off in az2 must not be mixed with its nodes.
    assert paths["b200-dy-b-7"][-1] == "unplaced-az2"
    assert paths["b200-dy-b-7"][0] == paths["b200-st-b-1"][0]
    assert paths["p5-dy-a-1"][0] == paths["p5-st-a-1"][0]
    assert paths["other-dy-c-1"] == paths["other-dy-c-2"] == ("unplaced-other-c",)
    assert any("2 of the nodes: no other of other-c has one" in note for note in tree.notes)
    # Where there is one zone, it is that.
    tree = build([*placed[:8], gpu("other-dy-c-1")])
    assert tree.paths()["other-dy-c-1"][0] == tree.paths()["p5-st-a-1"][0]
    # Names of one kind in several zones: where most of them are.
    tree = build(
        [gpu("n1", "a", zone="x"), gpu("n2", "b", zone="y"), gpu("n3", "b", zone="y"), gpu("n10-ib"), gpu("n4")]
    )
    assert tree.paths()["n4"][0] == tree.paths()["n2"][0]


def test_no_node_with_a_place_is_still_a_tree() -> None:
    assert leaves(build([Placement("n1"), Placement("n2")])) == [("n1", "n2")]


def test_paths_of_different_depth_keep_every_node() -> None:
    tree = build([place("n1", "A", "B", "C"), place("n2", "A", "B"), place("n3", "A", "D", "E")])
    assert sorted(node for nodes in leaves(tree) for node in nodes) == ["n1", "n2", "n3"]
    assert any("different depths" in note for note in tree.notes)


def test_a_network_node_below_two_parents_is_two_switches() -> None:
    tree = build([place("n1", "A1", "C"), place("n2", "A2", "C"), place("n3", "A1", "D")])
    names = [switch.name for switch in tree.switches]
    assert len(set(names)) == len(names)
    assert len({path for path in tree.paths().values()}) == 3
    assert tree.notes == ("C is seen below 2 parents and is a switch below each",)


def test_a_path_of_any_depth_fits_into_slurm() -> None:
    def path(leaf: str, side: str, split: int) -> tuple[str, ...]:
        return (*(f"{'a' if k < split else side}-{k}" for k in range(2999)), leaf)

    tree = build(
        [
            place("n1", *path("C1", "a", 0)),
            place("n2", *path("C2", "b", 1)),
            place("n3", *path("C3", "c", 2990)),
            *(place(f"m{k}", *path(f"D{k}", f"d{k}", 2999 - k)) for k in range(25)),
        ]
    )
    assert max(map(len, tree.paths().values())) <= MAX_TIERS + 2
    assert len(tree.paths()) == 28
    assert any("more than Slurm takes" in note for note in tree.notes)


@pytest.mark.parametrize("nodes", [[], [Placement("n1"), Placement("n1")]])
def test_what_would_stop_the_controller_is_refused(nodes: list[Placement]) -> None:
    with pytest.raises(ValueError):
        build(nodes)


PCLUSTER = [
    "queue1-st-p5-1",
    "queue1-st-p5-2",
    "queue1-st-p5-10",
    "queue1-dy-p5-1",
    "a-st-b-dy-c-st-d-7",  # a queue may be called like a kind of node
    "q-1-2-st-cr-3-4-12",
    "q--1-dy-c--r-1",
    "gpu-st-p5-48xlarge-100",
]


def test_node_names_of_parallelcluster_are_sorted_as_people_count_and_kept() -> None:
    tree = build([place(name, "A", "C") for name in reversed(PCLUSTER)])
    (nodes,) = leaves(tree)
    assert sorted(nodes) == sorted(PCLUSTER)
    assert nodes.index("queue1-st-p5-2") < nodes.index("queue1-st-p5-10")


def test_natural_order_and_what_breaks_a_tie() -> None:
    assert sorted(["n10", "n2", "a-3b", "a-3"], key=natural) == ["a-3", "a-3b", "n2", "n10"]
    for names in itertools.permutations(["n1", "n01", "n001", "n²"]):
        assert sorted(names, key=node_order) == ["n001", "n01", "n1", "n²"]


def test_what_a_slurm_has_keeps_its_names_and_tiers() -> None:
    from slurm_ext.topology.sources import from_slurm

    paths = {"n1": ("top", "row", "leaf-1"), "n2": ("top", "row", "leaf-2"), "n3": ("other",)}
    tree = build([*from_slurm(paths, "topology/tree"), Placement("n4")], named=True)
    assert {node: path for node, path in tree.paths().items() if node != "n4"} == paths
    assert tree.paths()["n4"] == ("top", "unplaced-top")
    # Ours read back from Slurm are ours again.
    ours = build(
        [Placement(f"n{i}", path=("a", f"b{i // 4}", f"c{i}"), zone="z") for i in range(8)] + [Placement("n9")]
    )
    again = build(from_slurm(ours.paths(), "topology/tree"), named=True)
    assert again.paths() == ours.paths()
    # A name below two parents is two switches, which two of one name cannot be.
    twice = build([Placement("n1", path=("a", "x")), Placement("n2", path=("b", "x"))], named=True)
    assert len({switch.name for switch in twice.switches}) == len(twice.switches)


def test_names_do_not_end_in_long_numbers() -> None:
    name = switch_name("leaf", "nn-01234567890123456789")
    assert len(name) <= 64
    assert len(name.rsplit("-h", 1)[1]) == 8


def colliding() -> tuple[str, str]:
    """Two ids of the same eight digits: among a hundred thousand there nearly always are some."""
    seen: dict[str, str] = {}
    for number in itertools.count():
        cloud_id = f"nn-{number:017x}"
        other = seen.setdefault(switch_name("l1", cloud_id), cloud_id)
        if other != cloud_id:
            return other, cloud_id
    raise AssertionError


def test_a_collision_of_short_hashes_is_resolved_whatever_the_order() -> None:
    first, second = colliding()
    pairs = [("l1", first), ("l1", second), ("l1", "nn-other")]
    names = [unique_names(order) for order in itertools.permutations(pairs)]
    assert all(found == names[0] for found in names)
    assert len(set(names[0].values())) == 3
    assert names[0]["l1", "nn-other"] == switch_name("l1", "nn-other")
    assert {len(names[0]["l1", cloud_id]) for cloud_id in (first, second)} == {len("l1-h") + 16}


def test_zone_words_are_short_and_never_two_alike() -> None:
    words = zone_words(["us.east", "us-east", "", "z" * 90, "z" * 91, "az" + "1" * 30, "all"])
    assert len(set(words.values())) == 7
    assert all(len(word) <= 32 for word in words.values())
    assert words["az" + "1" * 30][-10:].isdigit() is False


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

#: Ids that repeat anywhere: the same one in two places, twice in one path, in two zones.
tangled = st.lists(
    st.tuples(st.sampled_from(["", "z1", "z.1"]), st.lists(st.sampled_from(["a", "b", "", "a\nb", "\0"]), max_size=25)),
    min_size=1,
    max_size=12,
).map(lambda rows: [Placement(f"n{i}", "", "", tuple(way), zone) for i, (zone, way) in enumerate(rows)])


@given(placements, st.randoms(use_true_random=False))
def test_any_fabric_is_a_forest_that_slurm_accepts(nodes: list[Placement], order: random.Random) -> None:
    tree = build(nodes)
    shuffled = list(nodes)
    order.shuffle(shuffled)
    assert build(shuffled) == tree
    accepted(tree, nodes)
    paths = tree.paths()
    for first in nodes:
        for second in nodes:
            if first.path and second.path and first.path == second.path:
                assert paths[first.node] == paths[second.node]
            if first.path and second.path and first.zone != second.zone:
                assert paths[first.node][0] != paths[second.node][0]


@given(tangled, st.randoms(use_true_random=False))
def test_what_ec2_never_said_is_a_forest_all_the_same(nodes: list[Placement], order: random.Random) -> None:
    tree = build(nodes)
    shuffled = list(nodes)
    order.shuffle(shuffled)
    assert topology_conf(build(shuffled), origin="x") == topology_conf(tree, origin="x")
    accepted(tree, nodes)


def accepted(tree: Tree, nodes: list[Placement]) -> None:
    names = [switch.name for switch in tree.switches]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 64 for name in names)
    assert all(bool(switch.nodes) != bool(switch.switches) for switch in tree.switches)
    children = [child for switch in tree.switches for child in switch.switches]
    assert len(set(children)) == len(children)
    assert set(children) <= set(names)
    assert sorted(node for switch in tree.switches for node in switch.nodes) == sorted(p.node for p in nodes)
    known = frozenset(placement.node for placement in nodes)
    version = Version(26, 5, "26.05.5")
    for text, name in (
        (topology_conf(tree, origin="x"), "topology.conf"),
        (topology_yaml(tree, None, origin="x", version=version), "topology.yaml"),
    ):
        for target in ("22.05.8", "24.11.5", "25.11.7", "26.05.5"):
            if name == "topology.yaml" and target < "25.05":
                continue
            found = lint([Source(name, text)], Given(release(target), known))
            assert [finding for finding in found if finding.severity != "note"] == []


def test_names_are_read_back_from_either_file() -> None:
    tree = build([place("n1", "nn-a", "nn-b1"), place("n2", "nn-a", "nn-b2")])
    wanted = {switch.name: switch.cloud_id for switch in tree.switches}
    assert names_in(topology_conf(tree, origin="x")) == wanted
    assert names_in(topology_yaml(tree, None, origin="x", version=Version(26, 5, "26.05"))) == wanted


def test_layers_are_counted_from_the_top() -> None:
    assert layer(1) == "l1"
