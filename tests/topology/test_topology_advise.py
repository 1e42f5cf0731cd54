"""Advice for a job: tables of small clusters, and what no advice may ever be."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ext.slurm.model import Job, Node, Partition, TopologyUnit, Version
from slurm_ext.topology import advise_block, advise_tree
from slurm_ext.topology.advise import advise
from slurm_ext.topology.advise_model import (
    BLOCK,
    FLAT,
    NEVER,
    NOW,
    OTHER,
    TREE,
    Blocks,
    Place,
    Request,
    Situation,
    Switches,
)
from slurm_ext.topology.advise_read import Answers, partition_of, situation
from slurm_ext.topology.advise_segments import aim
from slurm_ext.topology.advise_time import FIRST_MOMENTS, MERGED_MOMENTS, moments
from slurm_ext.topology.advise_words import ask_time, lasting

OLD, V2411, V2511, NEW = (22, 5), (24, 11), (25, 11), (26, 5)


def two_spines(leaves: int = 4) -> Switches:
    """A root, two spines, so many leaves, as Slurm lists a file that names the top first."""
    half = leaves // 2
    names = ("top", "s0", "s1", *(f"l{i}" for i in range(leaves)))
    return Switches(names, (-1, 0, 0, *(1 + i // half for i in range(leaves))), (2, 1, 1, *([0] * leaves)))


def tree_of(free: Mapping[str, Sequence[float]], **more: object) -> Situation:
    """A partition below `two_spines`: leaf -> when each of its nodes is free (seconds from 0; NOW, NEVER)."""
    places = tuple(
        Place(f"{leaf}-{number}", leaf, 256, at, weight_now=256)
        for leaf, times in free.items()
        for number, at in enumerate(times)
    )
    return Situation(
        now=0.0,
        partition="gpu",
        release=more.pop("release", NEW),  # type: ignore[arg-type]
        version="26.05.5",
        kind=TREE,
        places=places,
        switches=two_spines(len(free)),
        sizes={leaf: len(times) for leaf, times in free.items()},
        **more,  # type: ignore[arg-type]
    )


def blocks_of(
    free: Sequence[Sequence[float]], base: int, levels: Sequence[int] = (0, 1, 2), **more: object
) -> Situation:
    places = tuple(
        Place(f"b{block}-{number}", f"b{block}", 256, at, weight_now=256)
        for block, times in enumerate(free)
        for number, at in enumerate(times)
    )
    return Situation(
        now=0.0,
        partition="gb",
        release=more.pop("release", NEW),  # type: ignore[arg-type]
        version="26.05.5",
        kind=BLOCK,
        places=places,
        blocks=Blocks(tuple(f"b{i}" for i in range(len(free))), base, tuple(levels)),
        sizes={f"b{block}": len(times) for block, times in enumerate(free)},
        **more,  # type: ignore[arg-type]
    )


def counts(**leaves: int) -> dict[str, dict[int, int]]:
    return {leaf: {256: number} for leaf, number in leaves.items()}


@pytest.mark.parametrize(
    ("free", "nodes", "taken"),
    [
        # The smallest leaf that is enough; of equals the first that Slurm lists.
        (counts(l0=8, l1=3, l2=4, l3=3), 3, {"l1": 3}),
        # None is enough: the fullest first, in the spine that is enough, then the nearest.
        (counts(l0=3, l1=3, l2=6, l3=2), 8, {"l2": 6, "l3": 2}),
        # The nearer leaf of the same spine, though another fits better.
        (counts(l0=5, l1=4, l2=2, l3=1), 7, {"l0": 5, "l1": 2}),
        (counts(l0=1, l1=1, l2=1, l3=1), 5, None),
        ({}, 1, None),
    ],
)
@pytest.mark.parametrize("release", [OLD, NEW])
def test_the_leaves_that_slurm_chooses(
    free: dict[str, dict[int, int]], nodes: int, taken: dict[str, int] | None, release: tuple[int, int]
) -> None:
    assert advise_tree.place(two_spines(), free, nodes, release) == taken


def test_nodes_of_low_weight_come_first_wherever_they_are() -> None:
    free = {"l0": {1: 1}, "l1": {9: 4}, "l2": {1: 1, 9: 2}, "l3": {9: 8}}
    # Both light nodes, then what else their leaves have, in Slurm's order, before any other leaf.
    assert advise_tree.place(two_spines(), free, 4, NEW) == {"l0": 1, "l2": 3}
    assert advise_tree.place(two_spines(), free, 8, OLD) == {"l0": 1, "l2": 3, "l1": 4}


def test_a_job_lies_below_one_root() -> None:
    forest = Switches(("a", "b"), (-1, -1), (0, 0))
    assert advise_tree.place(forest, counts(a=4, b=4), 5, NEW) is None
    assert advise_tree.fewest(forest, {"a": 4, "b": 4}, 5) == 0
    # Of roots as high as one another, the last: it may be the worse fit.
    assert advise_tree.place(forest, counts(a=4, b=8), 4, NEW) == {"b": 4}


@pytest.mark.parametrize(
    ("free", "nodes", "segment", "release", "taken"),
    [
        # Within a base block: the fewest free that are enough; of equals the last.
        ((4, 2, 3, 3), 3, 0, NEW, [{"b3": 3}]),
        # Larger than the base: one planning block of two must have them.
        ((2, 2, 4, 2), 6, 0, NEW, [{"b2": 4, "b3": 2}]),
        ((4, 2, 2, 4), 8, 0, NEW, None),
        # Segments may lie anywhere.
        ((4, 2, 2, 4), 8, 4, NEW, [{"b3": 4}, {"b0": 4}]),
        ((4, 2, 2, 4), 8, 2, NEW, [{"b2": 2}, {"b1": 2}, {"b3": 2}, {"b3": 2}]),
        ((4, 4, 4, 4), 7, 3, NEW, None),
        # Larger than a base block: from 25.11 on.
        ((4, 4, 4, 4), 16, 8, V2411, None),
        ((4, 4, 4, 4), 16, 8, V2511, [{"b3": 4, "b2": 4}, {"b1": 4, "b0": 4}]),
    ],
)
def test_the_blocks_that_slurm_chooses(
    free: Sequence[int], nodes: int, segment: int, release: tuple[int, int], taken: list[dict[str, int]] | None
) -> None:
    names = tuple(f"b{i}" for i in range(len(free)))
    here = {name: {256: number} for name, number in zip(names, free, strict=True)}
    assert advise_block.place(Blocks(names, 4, (0, 1, 2)), here, nodes, release, segment) == taken


def test_consolidated_segments_lie_in_one_planning_block() -> None:
    names = tuple(f"b{i}" for i in range(4))
    blocks = Blocks(names, 4, (0, 1, 2))
    here = {name: {256: number} for name, number in zip(names, (4, 1, 4, 4), strict=True)}
    apart = advise_block.place(blocks, here, 8, NEW, 4)
    together = advise_block.place(blocks, here, 8, NEW, 4, consolidate=True)
    assert together == apart == [{"b3": 4}, {"b2": 4}]
    here["b2"] = {256: 1}
    assert advise_block.place(blocks, here, 8, NEW, 4) == [{"b3": 4}, {"b0": 4}]
    assert advise_block.place(blocks, here, 8, NEW, 4, consolidate=True) is None


BUSY_HOUR = [NOW] * 2 + [3600.0] * 2


@pytest.mark.parametrize(
    ("free", "more", "asked", "said"),
    [
        # Nothing to gain.
        ([[NOW] * 4] * 4, {}, "", "the fewest there can be"),
        # Two leaves in three minutes, and Slurm would wait for five.
        ([BUSY_HOUR, BUSY_HOUR, [NOW] * 2 + [180.0] * 2, [NOW] * 4], {}, "--switches=2@5:00", "2 leaves, the fewest"),
        ([BUSY_HOUR] * 4, {"max_switch_wait_s": 7200}, "", "would cost 1 h 0 min more"),
        ([BUSY_HOUR] * 4, {"max_switch_wait_s": 7200, "patience": 3600}, "--switches=2@1:02:00", "for 1 h 0 min more"),
        # Worth it, but Slurm gives up before.
        ([BUSY_HOUR] * 4, {"patience": 3600}, "", "max_switch_wait ends the waiting 300 s"),
        # Never better: those nodes have no end.
        ([[NOW] * 2 + [NEVER] * 2] * 4, {}, "", "however long it waits"),
        # TopoOptional: only --switches makes Slurm look.
        ([[NOW] * 4] * 4, {"topo_optional": True}, "--switches=2@2:00", "TopoOptional"),
        ([[NOW] * 4] * 4, {"dragonfly": True}, "", "Dragonfly"),
    ],
)
def test_switches_are_asked_where_they_are_worth_it(
    free: Sequence[Sequence[float]], more: dict[str, object], asked: str, said: str
) -> None:
    patience = int(more.pop("patience", 1800))  # type: ignore[call-overload]
    found = tree_of({f"l{i}": times for i, times in enumerate(free)}, **more)
    advice = advise(found, Request(8, 8, 0, patience))
    assert " ".join(advice.options) == asked
    assert said in advice.reason


def test_rows_are_those_that_span_fewer_and_start_later() -> None:
    found = tree_of({f"l{i}": [NOW] * 2 + [60.0 * (i + 1)] * 2 for i in range(4)})
    advice = advise(found, Request(8))
    assert [(row.ask, row.spans, row.starts_s, row.waits_s) for row in advice.rows] == [
        ("", 4, 0.0, 0.0),
        ("--switches=3", 3, 60.0, 60.0),
        ("--switches=2", 2, 120.0, 120.0),
    ]
    assert (advice.fewest, advice.fewest_now, advice.spans) == (2, 4, 4)
    assert "--switches=1 would only wait out its time" in advice.warnings[0]


def test_a_job_that_never_starts_is_told_why() -> None:
    found = tree_of({f"l{i}": [NOW] for i in range(4)})._replace(
        switches=Switches(("l0", "l1", "l2", "l3"), (-1,) * 4, (0,) * 4)
    )
    advice = advise(found, Request(2))
    assert (advice.options, advice.rows, advice.spans) == ((), (), 0)
    assert "no switch has so many nodes" in advice.reason
    busy = tree_of({f"l{i}": [NEVER] for i in range(4)}, endless=4)
    assert "too few nodes come free" in advise(busy, Request(2)).reason
    with pytest.raises(ValueError, match="has 4 nodes, fewer than 5"):
        advise(busy, Request(5))


@pytest.mark.parametrize(("gpus", "segment"), [(4, 1), (31, 1), (32, 4), (64, 4), (127, 4), (128, 16), (2048, 16)])
def test_the_yardstick(gpus: int, segment: int) -> None:
    assert aim(gpus) == segment


NVL72 = [[NOW] * 18] * 4


@pytest.mark.parametrize(
    ("free", "request_", "asked", "said"),
    [
        (NVL72, Request(16, 4), "", "into one by itself"),
        (NVL72, Request(16, 4, 64), "", "and so does each group of 64 GPUs"),
        (NVL72, Request(32, 4), "--segment=16", "2 segments of 16 nodes, the aim for 128 GPUs"),
        (NVL72, Request(64, 4, 64), "--segment=16", "(16 nodes) stays within one NVLink domain of 18"),
        (NVL72, Request(36, 4, 72), "--segment=18", "(18 nodes) stays"),
        (NVL72, Request(32, 4, 32), "--segment=16", "(8 nodes) stays"),
        # 17 of 18 up, and 16 wanted: still one segment each; 18 is not to be had.
        ([[NOW] * 17 + [NEVER]] * 4, Request(64, 4), "--segment=16", "4 segments of 16"),
        # A full domain is an hour away; half of it is there.
        ([[NOW] * 9 + [3600.0] * 9] * 4, Request(32, 4), "--segment=8", "4 segments of 8"),
        ([[NOW] * 9 + [3600.0] * 9] * 4, Request(32, 4, 0, 3600), "--segment=16", "2 segments of 16"),
        # 24 GPUs of a fragmented machine: nodes anywhere rather than an hour of waiting.
        ([[NOW] * 2 + [3600.0] * 16] * 4, Request(6, 4), "--segment=1", "sooner than without"),
        (NVL72, Request(37, 4), "", "no divisor near 16"),
        # Groups wait for a domain, though pieces would start now.
        ([[NOW] * 9 + [3600.0] * 9] * 4, Request(32, 4, 64), "--segment=16", "the soonest that does, 1 h 0 min later"),
        ([[NOW] * 9 + [3600.0] * 9] * 4, Request(16, 4, 64), "", "the soonest that does, 1 h 0 min later"),
    ],
)
def test_segments(free: Sequence[Sequence[float]], request_: Request, asked: str, said: str) -> None:
    advice = advise(blocks_of(free, 18), request_)
    assert " ".join(advice.options) == asked
    assert said in advice.reason
    assert any("--switches does nothing" in note for note in advice.notes)


def test_rows_of_segments_count_what_all_domains_hold() -> None:
    advice = advise(blocks_of([[NOW] * 17 + [NEVER], [NOW] * 10 + [60.0] * 8], 18), Request(32, 4))
    held = {row.segment: (row.held_now, row.held, row.starts_s) for row in advice.rows}
    assert held[16] == (1, 2, 60.0)
    assert held[8] == (3, 4, 60.0)
    assert held[0] == (0, 0, 60.0)


def test_groups_that_cannot_be_kept_together_are_told() -> None:
    def warned(request: Request, **more: object) -> str:
        free = more.pop("free", NVL72)
        return "\n".join(advise(blocks_of(free, 18, **more), request).warnings)  # type: ignore[arg-type]

    assert "an NVLink domain has 18: it crosses" in warned(Request(40, 4, 80))
    assert "48 or 64 nodes, not 60" in warned(Request(60, 4, 64))
    assert "is in sight" in warned(Request(32, 4, 64), free=[[NOW] * 15 + [NEVER] * 3] * 4)
    assert "no --segment (24.05" in warned(Request(32, 4), release=(23, 11))
    assert "do not divide" in warned(Request(10, 4, 64))
    down = blocks_of([[NOW] * 15] * 4, 18)
    assert "no NVLink domain has 16 nodes up" in "\n".join(advise(down, Request(32, 4, 64)).warnings)
    with pytest.raises(ValueError, match="how many GPUs a node has"):
        advise(blocks_of(NVL72, 18), Request(16, 0, 64))


def test_groups_on_a_tree_are_those_of_the_network() -> None:
    found = tree_of({f"l{i}": [NOW] * 4 for i in range(4)})
    (note, *_) = advise(found, Request(8, 8, 16)).notes
    assert "4 of 4 groups fit whole below a leaf" in note
    (note, *_) = advise(found, Request(8, 8, 8)).notes
    assert "within its NVLink" in note


@pytest.mark.parametrize(
    ("each", "group", "said"),
    [
        (8, 8, ""),
        (8, 4, ""),
        (8, 16, ""),
        (8, 7, "size cut"),
        (8, 12, "cut"),
        (4, 16, ""),
        (8, 64, "size"),
        (8, 28, "size cut"),
    ],
)
def test_groups_that_are_cut_are_warned_of(each: int, group: int, said: str) -> None:
    advice = advise(tree_of({f"l{i}": [NOW] * 4 for i in range(4)}), Request(12, each, group))
    words = {"cut": "do not go into nodes", "size": "do not divide 12 nodes"}
    assert {key for key, text in words.items() if text in "\n".join(advice.warnings)} == {*said.split()}
    assert "within its NVLink" not in "".join(advice.notes) or (group <= each and "cut" not in said)


def test_what_sbatch_would_refuse_is_not_advised() -> None:
    # Booted nodes, all busy, come first for Slurm's look at whether the job can ever run, and they lie in too many blocks.
    found = blocks_of([[60.0] * 9 + [NOW] * 9] * 6, 18, (0,))
    places = [
        place._replace(weight=256 | 1 << 41, weight_now=256 | 1 << 41) if place.free_at == NOW else place
        for place in found.places
    ]
    found = found._replace(places=tuple(place for place in places if place.free_at or place.unit in ("b0", "b1")))
    advice = advise(found, Request(32, 4))
    assert [row.ask for row in advice.rows if row.refused] == [""]
    assert advice.options == ("--segment=16",)
    assert "sbatch may refuse the job without" in "\n".join(advice.warnings)


def test_a_slurm_without_topology_places_by_name() -> None:
    found = tree_of({f"l{i}": [NOW] * 4 for i in range(4)})._replace(kind=FLAT, switches=Switches((), (), ()))
    advice = advise(found, Request(8))
    assert (advice.options, advice.fewest, advice.fewest_now, advice.spans) == ((), 2, 2, 0)
    assert "--format hosts" in advice.notes[0]
    other = advise(found._replace(kind=OTHER, plugin="topology/torus3d"), Request(8))
    assert (other.options, "topology/torus3d" in other.reason) == ((), True)


@pytest.mark.parametrize(
    ("seconds", "ask", "words"),
    [
        (0, "0:00", "now"),
        (61, "1:01", "2 min"),
        (3600, "1:00:00", "1 h 0 min"),
        (90061, "1-01:01:01", "1 d 1 h"),
    ],
)
def test_times(seconds: int, ask: str, words: str) -> None:
    assert (ask_time(seconds), lasting(seconds)) == (ask, words)


def test_many_ends_are_looked_at_in_as_few_moments_and_never_too_early() -> None:
    found = tree_of({"l0": [float(i) for i in range(1, 1200)], "l1": [NOW]})
    seen = [(when, sum(free.get("l0", {}).values())) for when, free in moments(found)]
    assert len(seen) <= 1 + FIRST_MOMENTS + MERGED_MOMENTS
    assert seen[: 1 + FIRST_MOMENTS] == [(float(i), i) for i in range(1 + FIRST_MOMENTS)]
    assert seen[-1] == (1199.0, 1199)
    assert all(number <= when for when, number in seen)


# What Slurm answers ---------------------------------------------------------------------------------------------------

UNITS = [
    TopologyUnit("top", "switch", ("n0", "n1", "n2", "n3"), ("l0", "l1"), 1),
    TopologyUnit("l0", "switch", ("n0", "n1"), (), 0),
    TopologyUnit("l1", "switch", ("n2", "n3"), (), 0),
]
CONFIG = {"SchedulerParameters": "bf_continue,max_switch_wait=900,x", "TopologyPlugin": "topology/tree"}


def answers(nodes: Sequence[Node], jobs: Sequence[Job] = (), **more: object) -> Answers:
    found = Answers(
        Version(26, 5, "26.05.5"), CONFIG, [Partition("gpu", nodes="n[0-3]", default=True)], nodes, jobs, UNITS
    )
    return found._replace(**more)  # type: ignore[arg-type]


def test_what_slurm_answers_is_a_situation() -> None:
    nodes = [
        Node("n0", "IDLE", ("PLANNED",), gres="gpu:h100:8(S:0-1),efa:32"),
        Node("n1", "ALLOCATED", gres="gpu:h100:8"),
        Node("n2", "IDLE", ("DRAIN",), gres="gpu:h100:8"),
        Node("x0", "IDLE"),
    ]
    jobs = [
        Job("1", state="RUNNING", nodes="n[1,9]", end_time=1500, partition="gpu"),
        Job("2", state="PENDING", node_count=2, priority=5, partition="cpu,gpu", reason="Resources"),
        Job("3", state="PENDING", node_count=9, priority=0, partition="gpu", reason="JobHeldUser"),
        Job("4", state="PENDING", node_count=9, priority=5, partition="gpu", reason="Dependency"),
        Job("5", state="COMPLETED", nodes="n0", end_time=900, partition="gpu"),
    ]
    given_ = answers(nodes, jobs)
    found = situation(given_, partition_of(given_.partitions, ""), 1000.0)
    assert [(p.node, p.unit, p.free_at, p.out) for p in found.places] == [
        ("n0", "l0", NOW, False),
        ("n1", "l0", 1500.0, False),
        ("n2", "l1", NEVER, True),
        ("n3", "l1", NOW, False),  # a cloud node that is off is not shown
    ]
    assert (found.kind, found.out, found.endless) == (TREE, 1, 0)
    assert (found.pending_jobs, found.pending_nodes) == (1, 2)
    assert (found.max_switch_wait_s, found.gpus_per_node) == (900, 8)
    assert found.switches == Switches(("top", "l0", "l1"), (-1, 0, 0), (1, 0, 0))
    assert found.sizes == {"l0": 2, "l1": 2}
    assert "1 of the nodes are not shown" in found.notes[0]


@pytest.mark.parametrize(
    ("state", "flags", "free_at"),
    [
        ("IDLE", (), NOW),
        ("IDLE", ("CLOUD", "POWERED_DOWN"), NOW),
        ("IDLE", ("COMPLETING",), 1060.0),
        ("ALLOCATED", (), NEVER),
        ("MIXED", (), NEVER),
        ("DOWN", (), None),
        ("UNKNOWN", (), None),
        ("IDLE", ("NOT_RESPONDING",), None),
        ("IDLE", ("CLOUD", "NOT_RESPONDING", "POWERING_UP"), NOW),
        ("ALLOCATED", ("CLOUD", "NOT_RESPONDING", "POWERING_UP"), NEVER),
        ("IDLE", ("POWERING_DOWN",), None),
        ("IDLE", ("RESERVED",), None),
    ],
)
def test_when_a_node_is_free(state: str, flags: tuple[str, ...], free_at: float | None) -> None:
    found = situation(answers([Node("n0", state, flags)]), Partition("gpu", nodes="n0"), 1000.0)
    (place,) = found.places
    assert (None if place.out else place.free_at) == free_at


@pytest.mark.parametrize(
    ("job", "free_at"),
    [
        (Job("1", state="RUNNING", nodes="n0", end_time=5000), 5000.0),
        (Job("1", state="RUNNING", nodes="n0", end_time=900), 1060.0),
        (Job("1", state="RUNNING", nodes="n0"), NEVER),
        (Job("1", state="COMPLETED", flags=("COMPLETING",), nodes="n0", end_time=990), 1060.0),
    ],
)
def test_when_a_jobs_node_is_free(job: Job, free_at: float) -> None:
    found = situation(answers([Node("n0", "ALLOCATED")], [job]), Partition("gpu", nodes="n0"), 1000.0)
    assert found.places[0].free_at == free_at


def test_nodes_that_must_boot_weigh_more_than_any() -> None:
    nodes = [
        Node("n0", "IDLE", ("POWERED_DOWN",)),
        Node("n1", "IDLE", weight=4_000_000),
        Node("n2", "IDLE", ("POWERING_UP",)),
    ]
    weights = [place.weight for place in situation(answers(nodes), Partition("gpu", nodes="n[0-2]"), 0.0).places]
    assert weights[1] < weights[2] < weights[0]


def test_block_sizes_are_those_that_slurm_shows() -> None:
    units = [TopologyUnit(f"b{i}", "block", (f"n{i}",), (), 0, 18) for i in range(4)]
    units += [TopologyUnit("b[0-3]", "blocks", ("n0",), (), 0, 72)]
    found = situation(answers([], units=units), Partition("gpu", nodes="n[0-3]"), 0.0)
    assert (found.kind, found.blocks.base, found.blocks.levels) == (BLOCK, 18, (0, 2))
    # 24.05 shows no sizes: the first block's, and Slurm's default levels.
    bare = [unit._replace(size=0) for unit in units[:4]]
    found = situation(answers([], units=bare), Partition("gpu", nodes="n[0-3]"), 0.0)
    assert (found.blocks.base, found.blocks.levels) == (1, (0, 1, 2, 3, 4))
    ring = [TopologyUnit("r", "other", ("n0",))]
    assert situation(answers([], units=ring), Partition("gpu", nodes="n0"), 0.0).kind == OTHER
    flat = answers([], units=[], config={"TopologyPlugin": "topology/flat"})
    found = situation(flat, Partition("gpu", nodes="n[0-1]"), 0.0, {"n0": "leaf"})
    assert (found.kind, [place.unit for place in found.places]) == (FLAT, ["leaf", ""])


def test_what_the_model_does_not_cover_is_said() -> None:
    config = {"SelectType": "select/linear", "PrivateData": "cloud,jobs", "SelectTypeParameters": "CR_CORE,CR_LLN"}
    found = situation(answers([], config=config), Partition("gpu", nodes="n[0-4]"), 0.0)
    assert [note.split(":")[0][:40] for note in found.notes] == [
        "5 of the nodes are not shown by Slurm (c",
        "what a job would span is a model of sele",
        "CR_LLN",
        "PrivateData hides other users' jobs",
        "1 of the nodes are in no leaf or block",
    ]
    fine = {"SelectType": "select/cons_tres", "PrivateData": "cloud"}
    shown = [Node("n0", "IDLE")]
    assert situation(answers(shown, config=fine), Partition("gpu", nodes="n0"), 0.0).notes == ()


def test_the_partition() -> None:
    some = [Partition("a"), Partition("b", default=True)]
    assert partition_of(some, "").name == "b"
    assert partition_of(some, "a").name == "a"
    assert partition_of(some[:1], "").name == "a"
    with pytest.raises(ValueError, match="no partition c: there are a, b"):
        partition_of(some, "c")
    with pytest.raises(ValueError, match="no partition is the default"):
        partition_of([Partition("a"), Partition("c")], "")


# What no advice may be ------------------------------------------------------------------------------------------------

RELEASES = st.sampled_from([OLD, (23, 11), (24, 5), V2411, (25, 5), V2511, NEW])
TIMES = st.sampled_from([NOW, NOW, NOW, 50.0, 200.0, 250.0, 4000.0, 9000.0, NEVER])
REQUESTS = st.builds(
    Request,
    st.integers(1, 24),
    st.sampled_from([0, 4, 8]),
    st.sampled_from([0, 0, 4, 16, 32, 64, 100]),
    st.sampled_from([0, 300, 1800, 7200]),
)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    times = draw(st.lists(st.lists(TIMES, min_size=1, max_size=9), min_size=2, max_size=6))
    common = {
        "release": draw(RELEASES),
        "max_switch_wait_s": draw(st.sampled_from([0, 60, 300, 86400])),
        "topo_optional": draw(st.booleans()),
    }
    if draw(st.booleans()):
        found = tree_of({f"l{i}": each for i, each in enumerate(times[: len(times) // 2 * 2])}, **common)
    else:
        found = blocks_of(
            times, draw(st.integers(1, 9)), draw(st.sampled_from([(0,), (0, 1), (0, 2), (0, 1, 2, 3)])), **common
        )
    weights = draw(st.sampled_from([(256,), (256, 512), (256, 256 | 1 << 41)]))
    heavy = draw(st.lists(st.sampled_from(weights), min_size=len(found.places), max_size=len(found.places)))
    return found._replace(
        places=tuple(p._replace(weight=w, weight_now=w) for p, w in zip(found.places, heavy, strict=True))
    )


@given(situations(), REQUESTS)
@settings(max_examples=400, deadline=None)
def test_no_advice_is_ignored_refused_or_for_ever(found: Situation, request: Request) -> None:
    try:
        advice = advise(found, request)
    except ValueError:
        assert request.nodes > len(found.places) or (request.group_gpus and not request.gpus_per_node)
        return
    assert advice == advise(found, request)
    assert len(advice.options) <= 1
    for option in advice.options:
        if found.kind == TREE:
            told = re.fullmatch(r"--switches=(\d+)@(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", option)
            assert told is not None
            days, hours, minutes, seconds = (int(part or 0) for part in told.groups()[1:])
            asked = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
            (row,) = [row for row in advice.rows if row.spans == int(told[1])]
            assert row.starts_s is not None
            assert row.starts_s <= asked <= found.max_switch_wait_s
            assert row.starts_s - (advice.starts_s or 0.0) <= request.patience_s
            assert advice.fewest <= int(told[1]) <= (advice.spans if found.topo_optional else advice.spans - 1)
        else:
            size = int(option.removeprefix("--segment="))
            assert found.release >= (24, 5)
            assert request.nodes % size == 0
            assert size < request.nodes
            assert size <= found.blocks.base
            (row,) = [row for row in advice.rows if row.segment == size]
            assert row.starts_s is not None
            assert not row.refused
    for row in advice.rows:
        if row.spans:
            assert advice.fewest <= row.spans <= request.nodes
    assert sum(advice.taken.values()) in (0, request.nodes)


@given(situations(), st.integers(1, 24))
@settings(max_examples=300, deadline=None)
def test_placements_take_free_nodes_once_and_as_many_as_asked(found: Situation, nodes: int) -> None:
    free = {unit: dict(here) for unit, here in next(iter(moments(found)))[1].items()}
    idle = {unit: sum(here.values()) for unit, here in free.items()}
    if found.kind == TREE:
        taken = advise_tree.place(found.switches, free, nodes, found.release)
        # One root: it starts wherever there are enough.
        assert (taken is not None) == (sum(idle.values()) >= nodes)
        segments = [taken] if taken is not None else []
    else:
        sizes = [0, *(size for size in range(1, nodes) if nodes % size == 0)]
        segments = []
        for size in sizes:
            placed = advise_block.place(found.blocks, free, nodes, found.release, size)
            assert size == 0 or placed is None or all(sum(each.values()) == size for each in placed)
            segments = placed or segments
        if nodes > 1 and len({weight for here in free.values() for weight in here}) == 1:
            one = advise_block.place(found.blocks, free, nodes, found.release, 1)
            assert (one is not None) == (sum(idle.values()) >= nodes)
    total: Counter[str] = sum(map(Counter, segments), Counter())
    assert sum(total.values()) in (0, nodes)
    assert all(number <= idle[unit] for unit, number in total.items())
