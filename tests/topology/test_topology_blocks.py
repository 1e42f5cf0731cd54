"""Blocks: which nodes are one NVLink domain, in which order, and what each version of Slurm takes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.slurm.model import Version
from slurm_ext.topology.blocks import plan, rules_of
from slurm_ext.topology.build import build
from slurm_ext.topology.lint import Source, lint
from slurm_ext.topology.lint_model import Given, release
from slurm_ext.topology.model import BlockPlan, Placement
from slurm_ext.topology.naming import names_in
from slurm_ext.topology.render import block_conf
from slurm_ext.topology.render_yaml import block_topologies as topologies
from slurm_ext.topology.render_yaml import node_strings, partition_lines, topology_yaml, updates

V2205, V2311, V2405, V2411, V2505, V2605 = (
    Version(int(text[:2]), int(text[3:5]), text)
    for text in ("22.05.8", "23.11.10", "24.05.8", "24.11.5", "25.05.6", "26.05.5")
)
GB200, UUID = "p6e-gb200.36xlarge", "12345678-1234-1234-1234-123456789abc"


def domain(
    name: str, nodes: range, *, leaf: str = "", zone: str = "use2-az1", kind: str = "ultraserver"
) -> list[Placement]:
    """Nodes of one UltraServer, which is one capacity block of one clique."""
    leaf = leaf or f"leaf-{name}"
    return [
        Placement(
            f"gb-st-p6e-{i}",
            f"i-{i}",
            GB200,
            ("top", leaf),
            zone,
            f"cr-{name}",
            f"us-{name}" if kind != "block" else "",
            f"uuid-{name}.1" if kind == "clique" else "",
        )
        for i in nodes
    ]


def blocks_of(placements: list[Placement], version: Version = V2605, **how: int) -> BlockPlan:
    return plan(build(placements), version, **how)


def counts(found: BlockPlan) -> list[int]:
    return [len(block.nodes) for block in found.blocks]


def test_two_ultraservers_of_72_gpus_are_two_blocks_of_18() -> None:
    found = blocks_of(domain("a", range(1, 19)) + domain("b", range(19, 37)))
    assert counts(found) == [18, 18]
    assert found.sizes == (18, 36)
    assert found.blocks[0].nodes[0] == "gb-st-p6e-1"
    assert found.left_out == ()
    assert found.notes == ()


def test_ultraservers_of_36_gpus_are_blocks_of_9() -> None:
    found = blocks_of([p for k in range(4) for p in domain(f"d{k}", range(9 * k + 1, 9 * k + 10))])
    assert counts(found) == [9] * 4
    assert found.sizes == (9, 18, 36)


def test_the_base_is_the_size_of_the_domain_though_a_node_is_missing() -> None:
    found = blocks_of(domain("a", range(1, 18)) + domain("b", range(19, 35)))
    assert (counts(found), found.sizes) == ([17, 16], (18, 36))


def test_blocks_stand_in_the_order_of_the_tree_not_of_their_names() -> None:
    placements = [
        *domain("z", range(1, 4), leaf="leaf1"),
        *domain("y", range(10, 13), leaf="leaf2"),
        *domain("x", range(4, 7), leaf="leaf1"),
    ]
    found = blocks_of(placements)
    assert [block.domain for block in found.blocks] == ["us-z", "us-x", "us-y"]


def test_a_node_that_is_off_stays_in_its_domain_and_does_not_move_it() -> None:
    on = domain("a", range(2, 4), leaf="leaf1") + domain("b", range(4, 6), leaf="leaf2")
    off = [p._replace(path=()) for p in domain("b", range(1, 2))]
    found = blocks_of(off + on)
    assert [(block.domain, len(block.nodes)) for block in found.blocks] == [("us-a", 2), ("us-b", 3)]


def test_the_clique_wins_over_the_ultraserver_and_that_is_noted() -> None:
    nodes = domain("a", range(1, 5), kind="clique")
    nodes[2:] = [p._replace(clique="uuid-a.2") for p in nodes[2:]]
    found = blocks_of(nodes)
    assert [block.domain for block in found.blocks] == ["uuid-a.1", "uuid-a.2"]
    assert "us-a holds 2 NVLink domains: a block for each" in found.notes
    assert "cr-a holds 2 NVLink domains: a block for each" in found.notes


def test_one_clique_over_two_ultraservers_is_one_block_and_noted() -> None:
    nodes = domain("a", range(1, 3), kind="clique") + domain("b", range(3, 5), kind="clique")
    found = blocks_of([p._replace(clique="uuid.7") for p in nodes])
    assert counts(found) == [4]
    assert any("spread over the UltraServers us-a, us-b" in note for note in found.notes)


def test_a_capacity_block_is_no_domain_unless_somebody_says_so() -> None:
    nodes = domain("a", range(1, 5), kind="block")
    with pytest.raises(ValueError, match="no node is in a known NVLink domain"):
        blocks_of(nodes)
    assert [block.domain for block in blocks_of(nodes, capacity_blocks=True).blocks] == ["cr-a"]


def test_a_gpu_without_a_cluster_is_in_no_clique() -> None:
    nodes = [p._replace(clique="00000000-0000-0000-0000-000000000000.0") for p in domain("a", range(1, 3))]
    assert [block.domain for block in blocks_of(nodes).blocks] == ["us-a"]


def test_a_domain_larger_than_any_and_one_in_two_zones_are_noted() -> None:
    nodes = domain("a", range(1, 21))
    nodes[0] = nodes[0]._replace(zone="use2-az2")
    notes = blocks_of(nodes).notes
    assert any("more than any NVLink domain" in note for note in notes)
    assert any("which NVLink cannot span" in note for note in notes)


@pytest.mark.parametrize(
    ("version", "kept", "sizes", "key"),
    [
        (V2311, [18, 18], (18, 36), "BlockLevels=0,1"),
        (V2405, [18, 18], (18, 36), "BlockSizes=18,36"),
        (V2411, [18, 18], (18, 36), "BlockSizes=18,36"),
        (V2505, [18, 18, 9], (18, 36), "BlockSizes=18,36"),
        (V2605, [18, 18, 9], (18, 36), "BlockSizes=18,36"),
    ],
)
def test_a_block_that_a_version_stops_at_is_left_out_with_a_note(
    version: Version, kept: list[int], sizes: tuple[int, ...], key: str
) -> None:
    placements = domain("a", range(1, 19)) + domain("b", range(19, 37)) + domain("c", range(37, 46))
    found = blocks_of(placements, version)
    assert counts(found) == kept
    assert found.sizes == sizes
    assert len(found.left_out) == 45 - sum(kept)
    if len(kept) == 2:
        assert any(version.text in note and "gb-st-p6e-[37-45]" in note for note in found.notes)
    assert key in block_conf(found, origin="x", version=version).splitlines()


def test_a_base_of_ones_own_takes_smaller_blocks_in_where_a_version_is_strict() -> None:
    placements = domain("a", range(1, 19)) + domain("b", range(19, 36))
    assert counts(blocks_of(placements, V2411)) == [18]
    assert counts(blocks_of(placements, V2411, base=17)) == [18, 17]
    with pytest.raises(ValueError, match="a base size of 17 takes all"):
        blocks_of(domain("b", range(19, 36)), V2411)


def test_before_2311_there_are_no_blocks() -> None:
    assert rules_of(V2205) is None
    with pytest.raises(ValueError, match=r"22\.05\.8 has no topology/block"):
        blocks_of(domain("a", range(1, 3)), V2205)


def test_yaml_has_tree_and_blocks_and_the_partition_line() -> None:
    tree = build(domain("a", range(1, 19)) + domain("b", range(19, 37)))
    found = plan(tree, V2605)
    text = topology_yaml(tree, found, origin="x", version=V2605)
    assert text.count("cluster_default: true") == 1
    assert "    block_sizes: [18, 36]\n" in text
    line = "PartitionName=NAME Nodes=gb-st-p6e-[1-36] Topology=nvl"
    assert f"# slurm.conf: {line}\n" in text
    assert partition_lines(topologies(found)) == [line]
    assert set(names_in(text).values()) >= {"us-a", "us-b", "leaf-a", "leaf-b", "top"}
    with pytest.raises(ValueError, match=r"came with 25\.05"):
        topology_yaml(tree, found, origin="x", version=V2411)


def test_blocks_of_two_zones_are_two_topologies() -> None:
    found = blocks_of(domain("a", range(1, 10)) + domain("b", range(10, 19), zone="use2-az2"))
    assert [(t.name, t.sizes) for t in topologies(found)] == [("nvl-use2-az1", (9,)), ("nvl-use2-az2", (9,))]


def test_update_strings_name_every_topology_and_fold_nodes_of_one_place() -> None:
    tree = build(domain("a", range(1, 10)) + domain("b", range(10, 19)))
    found = plan(tree, V2605)
    strings = node_strings(tree, found)
    top, leaf = tree.paths()["gb-st-p6e-1"]
    assert strings["gb-st-p6e-1"] == f"efa:{top}:{leaf},nvl:{found.blocks[0].name}"
    lines = updates(strings)
    assert lines[0] == f"scontrol update NodeName=gb-st-p6e-[1-9] Topology={strings['gb-st-p6e-1']}"
    assert len(lines) == 2
    assert node_strings(tree, None, name="default")["gb-st-p6e-1"] == f"default:{top}:{leaf}"


def test_no_topology_yaml_is_a_whole_number_of_pages() -> None:
    tree = build(domain("a", range(1, 3)))
    plain = len(topology_yaml(tree, None, origin="", version=V2505))
    origin = "o" * (4096 - plain)
    text = topology_yaml(tree, None, origin=origin, version=V2505)
    assert len(text) % 4096 == 3  # it would have been 4096
    assert not [f for f in lint([Source("topology.yaml", text)], Given(release("25.05.6"))) if f.rule == "yaml.pages"]


domains = st.lists(
    st.tuples(st.integers(1, 20), st.sampled_from(["leaf1", "leaf2", "leaf3", ""]), st.sampled_from(["z1", "z2"])),
    min_size=1,
    max_size=8,
)


@given(domains, st.sampled_from([V2311, V2405, V2411, V2505, V2605]), st.randoms(use_true_random=False))
def test_any_blocks_are_the_same_in_any_order_and_lint_clean(
    rows: list[tuple[int, str, str]], version: Version, order: random.Random
) -> None:
    placements = []
    for number, (size, leaf, zone) in enumerate(rows):
        for index in range(size):
            path = (f"{zone}-top", f"{zone}-{leaf}") if leaf else ()
            placements.append(Placement(f"n{number}-{index}", "", GB200, path, zone, "", f"us{number}"))
    shuffled = list(placements)
    order.shuffle(shuffled)
    whole = rules_of(version)
    if whole is not None and whole.whole and not whole.equal and max(size for size, _, _ in rows) < 9:
        with pytest.raises(ValueError, match="every block is smaller"):
            blocks_of(placements, version)
        return
    base = min(size for size, _, _ in rows) if whole is not None and whole.whole else 0
    found = blocks_of(placements, version, base=base)
    text = block_conf(found, origin="x", version=version)
    assert block_conf(blocks_of(shuffled, version, base=base), origin="x", version=version) == text
    nodes = frozenset(p.node for p in placements)
    bad = [
        f for f in lint([Source("topology.conf", text)], Given(release(version.text), nodes)) if f.severity != "note"
    ]
    assert {f.rule for f in bad} <= ({"block.orphans"} if found.left_out else set())


def test_nodes_that_tell_no_clique_are_in_that_of_their_ultraserver() -> None:
    def gb(number: int, clique: str = "", ultraserver: str = "us-1", block: str = "cb-1") -> Placement:
        return Placement(f"g{number}", "", GB200, ("a", "b"), "z", block, ultraserver, clique)

    half = [gb(i, f"{UUID}.1" if i % 2 else "") for i in range(18)]
    assert [len(block.nodes) for block in plan(build(half), V2605).blocks] == [18]
    # Without an id of the UltraServer the capacity block serves, where it is said that it may.
    half = [gb(i, f"{UUID}.1" if i % 2 else "", "") for i in range(18)]
    assert [len(block.nodes) for block in plan(build(half), V2605).blocks] == [9]
    assert [len(block.nodes) for block in plan(build(half), V2605, capacity_blocks=True).blocks] == [18]
    # Where it holds two, nobody knows in which the silent ones are, and a block of them would be none.
    two = [gb(i, f"{UUID}.{i // 18}" if i % 6 else "", "") for i in range(36)]
    found = plan(build(two), V2605, capacity_blocks=True)
    assert [len(block.nodes) for block in found.blocks] == [15, 15]
    assert set(found.left_out) == {f"g{i}" for i in range(0, 36, 6)}
    assert any("tell no clique" in note for note in found.notes)
