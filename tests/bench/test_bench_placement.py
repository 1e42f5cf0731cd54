"""The pure parts of bench/placement: the fabric, the arms, the jobs, what is read from slurmctld's log, and the figures."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import placement_fabric
import placement_jobs
import placement_score
from placement_fabric import leaf_sizes, node_names, true_fabric
from placement_jobs import Job
from placement_log import Run, runs

from slurm_ext.slurm.model import Version

OLD, NEW = Version(22, 5, "22.05.8"), Version(26, 5, "26.05.5")
NODES = node_names(256)
FABRIC = true_fabric(NODES, 1)

#: Two groups of two leaves of four nodes.
SMALL = {f"n{i:02}": ("root", "hall", f"group{i // 8}", f"leaf{i // 4}") for i in range(16)}


@given(st.integers(16, 1100), st.integers(0, 50))
def test_a_fabric_has_every_node_once_at_four_layers_and_no_network_node_below_two(count: int, seed: int) -> None:
    fabric = true_fabric(node_names(count), seed)
    assert sorted(fabric) == sorted(node_names(count))
    assert {len(path) for path in fabric.values()} == {4}
    for layer in range(1, 4):
        assert len({path[: layer + 1] for path in fabric.values()}) == len({path[layer] for path in fabric.values()})
    assert min(leaf_sizes(fabric).values()) >= placement_fabric.LEAF_NODES[0]


def test_a_fabric_says_nothing_by_its_names_and_is_the_same_for_the_same_seed() -> None:
    assert true_fabric(NODES, 1) == FABRIC
    assert true_fabric(NODES, 2) != FABRIC
    neighbours = sum(FABRIC[a][-1] == FABRIC[b][-1] for a, b in itertools.pairwise(NODES))
    assert neighbours < len(NODES) / 4
    assert len(set(leaf_sizes(FABRIC).values())) > 3


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_our_trees_have_the_leaves_of_the_truth_at_so_many_layers(layers: int) -> None:
    told = placement_fabric.arm(f"tree-{layers}", FABRIC, OLD, seed=1).told
    assert told is not None
    assert {len(path) for path in told.values()} == {layers}
    assert same_leaves(told) == same_leaves(FABRIC)


@pytest.mark.parametrize("name", ["alphabetical", "random"])
def test_guessed_trees_have_leaves_of_16_that_are_not_those_of_the_truth(name: str) -> None:
    told = placement_fabric.arm(name, FABRIC, OLD, seed=1).told
    assert told is not None
    assert set(leaf_sizes(told).values()) == {16}
    assert not same_leaves(told) & same_leaves(FABRIC)
    in_order = [told[node][-1] for node in NODES]
    assert (len(list(itertools.groupby(in_order))) == 16) == (name == "alphabetical")


def test_a_collapsed_tree_keeps_its_budget_and_every_node() -> None:
    arm = placement_fabric.arm("collapsed", FABRIC, OLD, seed=1)
    assert arm.switches <= len(leaf_sizes(FABRIC)) // 2
    assert arm.told is not None
    assert sorted(arm.told) == NODES


@pytest.mark.parametrize(("name", "share"), placement_fabric.STALE.items())
def test_a_stale_map_is_wrong_about_so_many_nodes_and_about_no_leaf_size(name: str, share: float) -> None:
    before = placement_fabric.moved(FABRIC, share, 1)
    assert sorted(leaf_sizes(before).items()) == sorted(leaf_sizes(FABRIC).items())
    wrong = sum(before[node] != FABRIC[node] for node in NODES)
    # Who takes the place of a neighbour below the same leaf has not moved.
    assert 0.7 * share * 256 - 1 <= wrong <= math.ceil(share * 256)
    assert (
        placement_fabric.arm(name, FABRIC, OLD, seed=1).told != placement_fabric.arm("tree-3", FABRIC, OLD, seed=1).told
    )


def test_blocks_are_the_leaves_where_slurm_has_blocks() -> None:
    with pytest.raises(ValueError, match="no topology/block"):
        placement_fabric.arm("block", FABRIC, OLD, seed=1)
    arm = placement_fabric.arm("block", FABRIC, NEW, seed=1)
    assert arm.told is not None
    assert same_leaves(arm.told) == same_leaves(FABRIC)
    assert f"BlockSizes={min(leaf_sizes(FABRIC).values())}," in arm.conf


def test_an_arm_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no arm tree-9"):
        placement_fabric.arm("tree-9", FABRIC, OLD, seed=1)


def test_a_flat_cluster_is_called_as_the_version_calls_it() -> None:
    plugins = [placement_fabric.arm("flat", FABRIC, v, seed=1).plugin for v in (OLD, Version(24, 11, "24.11.5"), NEW)]
    assert plugins == ["topology/none", "topology/default", "topology/flat"]


@pytest.mark.parametrize("load", [0.6, 0.95])
def test_jobs_want_the_load_and_come_in_powers_of_two(load: float) -> None:
    jobs = placement_jobs.mix(256, load, seed=1, window_s=80, mean_s=8)
    assert jobs == placement_jobs.mix(256, load, seed=1, window_s=80, mean_s=8)
    later = [job for job in jobs if job.arrival_s]
    wanted = sum(job.nodes * job.length_s for job in later)
    assert load * 256 * 80 <= wanted <= load * 256 * 80 + 64 * 32 + 1
    assert {job.nodes for job in later} == {1, 2, 4, 8, 16, 32, 64}
    first = [job for job in jobs if not job.arrival_s]
    assert load * 256 <= sum(job.nodes for job in first) <= 256
    assert not any(job.counted for job in first)
    assert [job.arrival_s for job in jobs] == sorted(job.arrival_s for job in jobs)
    counted = Counter(job.nodes for job in later)
    assert counted[1] > counted[16] > counted[64]


def test_the_time_limit_is_a_minute_for_each_second() -> None:
    assert [Job(0, 1, length, True).limit_min for length in (0.4, 8.0, 8.01)] == [1, 8, 9]


@pytest.mark.parametrize(
    ("sizes", "nodes", "leaves"), [([4, 4], 4, 1), ([4, 4], 5, 2), ([1, 8, 2], 8, 1), ([1, 8, 2], 11, 3), ([3], 1, 1)]
)
def test_the_fewest_leaves_are_the_largest(sizes: list[int], nodes: int, leaves: int) -> None:
    assert placement_score.fewest(sizes, nodes) == leaves


def test_more_nodes_than_there_are_have_no_fewest_leaves() -> None:
    with pytest.raises(ValueError, match="more than there are"):
        placement_score.fewest([2, 2], 5)


@given(st.sets(st.sampled_from(NODES), min_size=2, max_size=40))
def test_hops_are_the_mean_over_all_pairs(chosen: set[str]) -> None:
    pairs = list(itertools.combinations(sorted(chosen), 2))
    slow = sum(2 * (4 - shared(FABRIC[a], FABRIC[b])) + 2 for a, b in pairs) / len(pairs)
    assert math.isclose(placement_score.mean_hops(FABRIC, sorted(chosen)), slow)
    assert placement_score.tightest_hops(FABRIC, len(chosen)) <= 8


def test_a_job_that_has_an_empty_fabric_fits_tightly() -> None:
    assert [placement_score.tightest_hops(SMALL, nodes) for nodes in (1, 2, 4)] == [0, 2, 2]
    # Two leaves of one group: of 28 pairs, 12 in a leaf and 16 across.
    assert placement_score.tightest_hops(SMALL, 8) == (12 * 2 + 16 * 4) / 28


@pytest.mark.parametrize(("percent", "value"), [(50, 2), (95, 4), (25, 1), (26, 2)])
def test_a_percentile_is_one_of_the_values(percent: int, value: float) -> None:
    assert placement_score.percentile([1, 2, 3, 4], percent) == value


LOG = """
[2026-11-30T20:28:17.494] _slurm_rpc_submit_batch_job: JobId=1 SLUID=s9P1 InitPrio=1 usec=2353
[2026-11-30T20:28:17.501] _slurm_rpc_submit_batch_job: JobId=2 InitPrio=1 usec=1712
[2026-11-30T20:28:17.900] _slurm_rpc_submit_batch_job: JobId=3 InitPrio=1 usec=1712
[2026-11-30T20:28:18.000] sched/backfill: _start_job: HETJOB: Started JobId=1 in all on n[01-02]
[2026-11-30T20:28:19.519] sched: Allocate JobId=2 NodeList=n[03,05] #CPUs=4 Partition=all
a line of something else
[2026-11-30T20:28:20.000] _job_complete: JobId=1 WEXITSTATUS 0
[2026-11-30T20:28:20.250] _job_complete: JobId=1 done
"""


def test_slurmctlds_log_says_when_and_where_a_job_ran() -> None:
    found = runs(LOG.splitlines())
    assert list(found) == [1]
    assert found[1].nodes == ("n01", "n02")
    assert found[1].backfilled
    assert round(found[1].began - found[1].submitted, 3) == 0.506
    assert round(found[1].ended - found[1].began, 3) == 2.25


def test_a_job_that_began_twice_is_refused() -> None:
    again = "[2026-11-30T20:28:21.000] sched: Allocate JobId=2 NodeList=n04 #CPUs=4 Partition=all"
    with pytest.raises(ValueError, match="job 2 began twice"):
        runs([*LOG.splitlines(), again])


def test_a_job_is_held_against_the_empty_fabric_and_against_what_was_free() -> None:
    jobs = {1: Job(0, 3, 9, False), 2: Job(1, 4, 5, True), 3: Job(2, 1, 5, True)}
    ran = {
        1: Run(0, 0, 10, ("n00", "n04", "n08"), False),
        2: Run(1, 4, 9, ("n01", "n02", "n03", "n05"), False),
        3: Run(2, 2, 7, ("n12",), False),
    }
    measured = placement_score.measure(SMALL, ran, jobs)
    by_size = {one.nodes: one for one in measured.placed}
    assert (by_size[4].leaves, by_size[4].ideal, by_size[4].free) == (2, 1, 2)
    assert by_size[4].hops == (3 * 2 + 3 * 4) / 6
    assert (by_size[4].tight, by_size[4].wait_s, by_size[1].wait_s) == (2, 3, 0)
    # From the first counted arrival at 1 to the last at 2: job 1's three nodes all the time.
    assert measured.occupancy == 3 / 16
    figures = placement_score.score([measured])
    assert (figures.jobs, figures.leaves_over_ideal, figures.leaves_over_free) == (2, 2.0, 1.0)
    assert (figures.wait_mean_s, figures.wait_p95_s, figures.on_one_leaf) == (1.5, 3, 0)


def test_an_end_before_a_begin_of_the_same_moment_frees_its_nodes() -> None:
    jobs = {1: Job(0, 16, 1, True), 2: Job(1, 4, 1, True)}
    ran = {1: Run(0, 0, 5, tuple(SMALL), False), 2: Run(1, 5, 6, ("n00", "n04", "n08", "n12"), False)}
    placed = placement_score.measure(SMALL, ran, jobs).placed
    assert [one.free for one in placed] == [4, 1]


@pytest.mark.parametrize(
    ("ran", "why"),
    [
        ({1: Run(0, 0, 5, ("n00",), False)}, "1 of 2 jobs did not run"),
        ({1: Run(0, 0, 5, ("n00",), False), 2: Run(0, 0, 5, ("n01",), False)}, "asked for 2 nodes and got 1"),
    ],
)
def test_a_run_with_lost_or_wrong_jobs_gives_no_figures(ran: dict[int, Run], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        placement_score.measure(SMALL, ran, {1: Job(0, 1, 5, True), 2: Job(0, 2, 5, True)})


def test_jobs_of_one_node_alone_give_no_figures() -> None:
    ran = {1: Run(0, 0, 5, ("n00",), False), 2: Run(1, 1, 5, ("n01",), False)}
    measured = placement_score.measure(SMALL, ran, {1: Job(0, 1, 5, True), 2: Job(1, 1, 5, True)})
    with pytest.raises(ValueError, match="no job of two nodes"):
        placement_score.score([measured])


def same_leaves(told: placement_fabric.Fabric) -> set[frozenset[str]]:
    """Return the sets of nodes that hang below one leaf."""
    by_leaf: dict[str, set[str]] = {}
    for node, path in told.items():
        by_leaf.setdefault(path[-1], set()).add(node)
    return {frozenset(nodes) for nodes in by_leaf.values()}


def shared(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """Return how many layers from the root down two nodes share."""
    return sum(x == y for x, y in zip(a, b, strict=True))
