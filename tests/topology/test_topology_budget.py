"""A limit on switches: siblings are merged and nodes never lost, least is lost first, and what blocks are made of stays."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.slurm.model import Version
from slurm_ext.topology import blocks
from slurm_ext.topology.budget import MAX_COMMENT, shrink, within
from slurm_ext.topology.budget_loss import job_cost, sizes_of
from slurm_ext.topology.build import HOLDING, build
from slurm_ext.topology.model import Placement, Switch, Tree
from slurm_ext.topology.naming import MAX_NAME, names_in
from slurm_ext.topology.render import topology_conf
from slurm_ext.topology.written import Choice, written

FLEET = [
    Placement(f"n{i}", "", "", ("a", f"b{i // 64}", f"c{i // 4}") if i % 10 else (), "z", "", f"us{i // 18}")
    for i in range(256)
]


def even(leaves: int, per_leaf: int, per_middle: int) -> list[Placement]:
    return [
        Placement(f"n{leaf * per_leaf + i}", path=("a", f"b{leaf // per_middle}", f"c{leaf}"), zone="z")
        for leaf in range(leaves)
        for i in range(per_leaf)
    ]


def leaves_of(tree: Tree) -> list[Switch]:
    return [switch for switch in tree.switches if switch.nodes]


def test_no_limit_and_a_wide_one_change_nothing() -> None:
    tree = build(FLEET)
    for most in (0, -1, len(tree.switches), 65_534):
        same, lost = shrink(tree, most)
        assert same == tree
        assert lost.words() == []
        assert lost.before == lost.after == len(tree.switches)


def test_pairs_come_first_and_are_told_by_name_comment_and_note() -> None:
    tree = within(build(even(64, 4, 16)), 53)
    merged = [switch for switch in tree.switches if switch.name.endswith("-merged")]
    assert len(tree.switches) == 53
    assert {len(switch.nodes) for switch in merged} == {8}
    before = {switch.cloud_id: switch for switch in build(even(64, 4, 16)).switches}
    text = topology_conf(tree, origin="a test")
    for switch in merged:
        first, second = names_in(text)[switch.name].split(", ")
        assert switch.name == f"{before[first].name}-merged"
        assert switch.nodes == before[first].nodes + before[second].nodes
    assert tree.notes[:4] == (
        "69 switches are more than 53: 53 are left, which take slurmctld less than 0.1 s at each start and reconfigure in place of "
        "less than 0.1 s",
        "layer 3: 32 of 64 network nodes share 16 leaves with others below the same parent, 2 at most",
        f"the largest merged leaf is {merged[0].name} with 8 nodes",
        "a leaf stands for 1.3 network nodes on average; a job of 4 nodes that gets one leaf lies below 1.5 of them where 1.0 could "
        "hold it",
    )


def test_pairs_are_all_there_before_fours() -> None:
    tree = within(build(even(64, 4, 16)), 37)
    assert {len(switch.nodes) for switch in leaves_of(tree)} == {8}


def test_the_smallest_are_merged_first() -> None:
    sizes = [16] * 6 + [2] * 6
    nodes = [Placement(f"n{leaf}-{i}", path=("a", f"c{leaf}")) for leaf, size in enumerate(sizes) for i in range(size)]
    tree = within(build(nodes), 10)
    assert sorted(len(switch.nodes) for switch in leaves_of(tree)) == [4, 4, 4] + [16] * 6


def test_a_parent_whose_leaves_are_one_is_a_leaf_of_its_own_name() -> None:
    before = {switch.cloud_id: switch for switch in build(FLEET).switches}
    tree = within(build(FLEET), 6)
    assert [switch.name for switch in tree.switches] == [
        *(before[name].name for name in ("a", "b0", "b1", "b2", "b3")),
        "unplaced-z",
    ]
    assert "the largest merged leaf is" in "".join(tree.notes)


def test_a_middle_that_does_not_branch_goes_before_any_leaf() -> None:
    nodes = [Placement(f"n{i}", path=("a", "b0", "c0")) for i in range(4)]
    nodes += [Placement(f"m{i}", path=("a", "b1", f"c{1 + i // 4}")) for i in range(8)]
    tree, lost = shrink(build(nodes), 5)
    assert [switch.cloud_id for switch in tree.switches] == ["a", "b1", "c1", "c2", "b0"]
    assert lost.hidden == 1
    assert lost.jobs == ()


def test_thin_middles_of_large_leaves_are_left_out_before_leaves_are_merged() -> None:
    tree, lost = shrink(build(even(4, 256, 2)), 5)
    assert [switch.cloud_id for switch in tree.switches] == ["a", "c0", "c1", "c2", "c3"]
    assert [(layer.layer, layer.left_out, layer.merged) for layer in lost.layers] == [("layer 2", 2, 0)]
    assert "layer 2: 2 of 2 network nodes are left out, and what is below them hangs one tier up" in tree.notes


def test_a_number_that_cannot_be_met_is_said() -> None:
    tree, lost = shrink(build(FLEET), 2)
    assert len(tree.switches) == 3
    assert lost.after == 3
    assert tree.notes[1].startswith("fewer cannot be")
    assert len(shrink(build(even(8, 2, 4)), 1)[0].switches) == 1


def test_blocks_stay_what_they_were() -> None:
    version = Version(26, 5, "26.05.5")
    whole, tree = build(FLEET), within(build(FLEET), 3)
    assert tree.placements == whole.placements
    found = blocks.plan(tree, version)
    assert {block.name: block.nodes for block in found.blocks} == {
        block.name: block.nodes for block in blocks.plan(whole, version).blocks
    }


def test_blocks_of_a_file_stand_as_they_would_without_a_limit() -> None:
    version = Version(26, 5, "26.05.5")
    nodes = [Placement(f"n{i}", "", "", ("a", f"b{i // 64}", f"c{i // 4}"), "z", "", f"us{i // 2}") for i in range(256)]
    for format_ in ("block", "yaml"):
        few, many = (
            written(build(nodes), Choice(format_, most), origin="x", version=version).text for most in (20, 100_000)
        )
        assert [line for line in few.splitlines() if "nvl-" in line] == [
            line for line in many.splitlines() if "nvl-" in line
        ]
        assert (few != many) is (format_ == "yaml")


def test_a_comment_counts_the_ids_that_it_has_no_room_for() -> None:
    nodes = [Placement(f"n{i}-{j}", path=("a", f"nn-{i:040d}", f"c{i}-{j}")) for i in range(40) for j in range(2)]
    tree = within(build(nodes), 2)
    merged = leaves_of(tree)[0]
    assert len(merged.cloud_id) < MAX_COMMENT + 60
    assert re.search(r", and \d+ more$", merged.cloud_id)


def lies_below(tree: Tree, per_leaf: int) -> float:
    """Return how many true leaves jobs of 2 to per_leaf nodes lie below on average, one could hold each: leaves of the file hide some."""
    true = {node: path[-1] for node, path in build(tree.placements).paths().items()}
    shapes = [sizes_of(counts([true[node] for node in leaf.nodes])) for leaf in leaves_of(tree)]
    costs = [job_cost(shapes, nodes) for nodes in (2, 4, 8, 16) if nodes <= per_leaf]
    return sum(cost.spanned / cost.fewest for cost in costs if cost) / len(costs)


def counts(names: Sequence[str]) -> list[int]:
    return [names.count(name) for name in set(names)]


def test_half_as_many_switches_cost_jobs_less_than_giving_up_the_tier() -> None:
    fleet = even(64, 16, 16)
    ours = within(build(fleet), 37)
    tiers = build([placement._replace(path=placement.path[:2]) for placement in fleet])
    tiers = tiers._replace(placements=ours.placements)
    assert lies_below(build(fleet), 16) == 1
    assert 1.5 < lies_below(ours, 16) < 2
    assert lies_below(tiers, 16) > 3 * lies_below(ours, 16)


def moved(before: Tree, after: Tree) -> int:
    """Return how many nodes that did not go or come are elsewhere."""
    old, new = before.paths(), after.paths()
    went = {
        node for node in old if old[node][-1].startswith(HOLDING) or new.get(node, (HOLDING,))[-1].startswith(HOLDING)
    }
    return sum(old[node] != new[node] for node in old.keys() & new.keys() if node not in went)


def test_a_node_that_goes_off_moves_nobody_and_a_leaf_that_goes_few() -> None:
    fleet, chance = even(256, 16, 16), random.Random(3)
    before = within(build(fleet), 200)
    # Up to 7 of 16 in each leaf go off: 9 to 16 nodes are one doubling.
    off = {f"n{leaf * 16 + i}" for leaf in range(256) for i in chance.sample(range(16), chance.randrange(8))}
    after = within(build([p._replace(path=()) if p.node in off else p for p in fleet]), 201)
    assert len(off) > 500
    assert moved(before, after) == 0
    gone = [
        moved(before, within(build([p for p in fleet if p.path[-1] != f"c{leaf}"]), 200)) for leaf in range(0, 256, 8)
    ]
    assert sum(gone) / len(gone) < 0.02 * len(fleet)


TREES = st.lists(
    st.tuples(st.sampled_from(["", "z1", "z2"]), st.lists(st.sampled_from("abc"), max_size=4), st.integers(1, 6)),
    min_size=1,
    max_size=24,
)


def placements(ways: Iterable[tuple[str, list[str], int]]) -> list[Placement]:
    return [
        Placement(f"n{number}-{i}", path=tuple(zone + "".join(way[: k + 1]) for k in range(len(way))), zone=zone)
        for number, (zone, way, nodes) in enumerate(ways)
        for i in range(nodes)
    ]


def fewest_possible(tree: Tree) -> int:
    """Return how few switches a tree can have: a leaf for each fabric, or a root with two where nodes wait."""
    children = {child for switch in tree.switches for child in switch.switches}
    roots = [switch for switch in tree.switches if switch.name not in children]
    return sum(3 if any(child.startswith(HOLDING) for child in root.switches) else 1 for root in roots)


@given(TREES, st.integers(1, 40), st.randoms(use_true_random=False))
def test_any_limit_holds_and_loses_nobody(
    ways: list[tuple[str, list[str], int]], most: int, chance: random.Random
) -> None:
    nodes = placements(ways)
    whole = build(nodes)
    tree, lost = shrink(whole, most)
    assert len(tree.switches) <= max(most, fewest_possible(whole)) or len(tree.switches) == len(whole.switches) <= most
    assert lost.after == len(tree.switches)
    assert lost.after <= most or tree.notes[1].startswith("fewer cannot be")
    assert sorted(node for leaf in leaves_of(tree) for node in leaf.nodes) == sorted(p.node for p in nodes)
    assert tree.placements == whole.placements
    names = [switch.name for switch in tree.switches]
    assert len(set(names)) == len(names)
    assert all(len(name) <= MAX_NAME for name in names)
    for place, switch in enumerate(tree.switches):
        assert bool(switch.switches) != bool(switch.nodes)
        assert all(child in names[place + 1 :] for child in switch.switches)  # parents come first
    parents = [child for switch in tree.switches for child in switch.switches]
    assert len(set(parents)) == len(parents)
    was, now = whole.paths(), tree.paths()
    assert all(len(now[node]) <= len(was[node]) for node in was)
    # The root, and whoever waits, are where they were.
    assert all(now[node][0] == was[node][0] for node in was)
    assert {leaf for leaf in leaves_of(whole) if leaf.name.startswith(HOLDING)} <= set(tree.switches)
    chance.shuffle(nodes)
    assert topology_conf(within(build(nodes), most), origin="x") == topology_conf(tree, origin="x")


@given(TREES, st.integers(1, 40))
def test_whoever_shares_a_leaf_has_one_parent_and_nobody_is_torn_apart(
    ways: list[tuple[str, list[str], int]], most: int
) -> None:
    whole = build(placements(ways))
    was = whole.paths()
    below: dict[tuple[str, ...], set[str]] = {}
    for node, path in was.items():
        for depth in range(len(path) + 1):
            below.setdefault(path[:depth], set()).add(node)
    for leaf in leaves_of(within(whole, most)):
        nodes = set(leaf.nodes)
        paths = {was[node] for node in nodes}
        if len(paths) == 1:
            assert nodes == below[paths.pop()]
            continue
        shortest = min(map(len, paths))
        common = max(depth for depth in range(shortest) if len({path[:depth] for path in paths}) == 1)
        assert common > 0  # never over two fabrics
        for child in {path[: common + 1] for path in paths}:
            assert below[child] <= nodes
