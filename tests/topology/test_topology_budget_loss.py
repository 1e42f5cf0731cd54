"""What jobs pay in a leaf that hides network nodes: against every choice of nodes there is, counted out."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.topology import budget_cost
from slurm_ext.topology.budget_loss import extra, fewest, job_cost, loss_without, sizes_of, spanned
from slurm_ext.topology.lint import Source, lint
from slurm_ext.topology.lint_model import Given, release

SMALL = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(SMALL, st.integers(1, 16))
def test_the_mean_over_every_choice_of_nodes(leaves: list[int], nodes: int) -> None:
    owners = [leaf for leaf, size in enumerate(leaves) for _ in range(size)]
    wanted = min(nodes, len(owners))
    every = [len(set(chosen)) for chosen in itertools.combinations(owners, wanted)]
    assert spanned(sizes_of(leaves), nodes) == pytest.approx(statistics.fmean(every))
    if nodes <= len(owners):
        assert fewest(sizes_of(leaves), nodes) == min(every)


@given(SMALL)
def test_one_network_node_loses_nothing_and_more_lose_something(leaves: list[int]) -> None:
    sizes = sizes_of(leaves)
    assert extra(sizes_of(leaves[:1]), sizes_of(leaves[:1])) == pytest.approx(0)
    assert extra(sizes, sizes) >= -1e-9
    if len(leaves) > 1 and max(leaves) > 1:
        assert extra(sizes, sizes) > 0


def test_a_pair_of_sixteens_hides_two_from_jobs_that_one_could_hold() -> None:
    pair = sizes_of([16, 16])
    assert [round(spanned(pair, nodes), 2) for nodes in (2, 4, 8, 16, 32)] == [1.52, 1.9, 2.0, 2.0, 2.0]
    assert job_cost([pair, sizes_of([16])], 32) == (32, 2, 2)
    assert job_cost([pair], 33) is None


def test_a_parent_of_many_is_worth_more_than_one_of_a_few() -> None:
    assert loss_without(32, 16, sizes_of([32])) == 0  # the only one: nobody could be elsewhere
    assert loss_without(256, 16, sizes_of([256] * 4)) > loss_without(32, 16, sizes_of([32] * 4))


def test_time_goes_by_the_cube_and_by_release() -> None:
    for version in ((22, 5), (24, 11), (26, 5), (99, 1), None):
        assert budget_cost.predict(2000, version) == pytest.approx(8 * budget_cost.predict(1000, version))
    assert budget_cost.predict(1000, (25, 11)) == budget_cost.predict(1000, (24, 11))
    assert budget_cost.predict(1000, (20, 11)) == budget_cost.predict(1000, (22, 5))
    assert budget_cost.predict(1000) == max(
        budget_cost.predict(1000, since) for since in budget_cost.NS_PER_SWITCH_CUBED
    )
    words = [budget_cost.seconds(switches, (22, 5)) for switches in (100, 500, 1000, 2000, 10_000)]
    assert words == ["less than 0.1 s", "about 0.2 s", "about 1.5 s", "about 12 s", "about 25 min"]


def test_the_linter_says_the_seconds_from_two_on() -> None:
    for count, version, words in ((1000, "22.05.8", ""), (1200, "22.05.8", "2.6 s"), (4000, "26.05.5", "96 s")):
        text = "".join(f"SwitchName=a{i} Nodes=n{i}\n" for i in range(count))
        target = release(version)
        assert target is not None
        found = [f for f in lint([Source("topology.conf", text)], Given(target)) if f.rule == "tree.many-switches"]
        assert [f"{count} switches take slurmctld about {words} (" in f.reason for f in found] == [True] * bool(words)
