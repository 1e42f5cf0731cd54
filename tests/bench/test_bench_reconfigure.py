"""bench/reconfigure: its trees, its other ways of merging, and one measurement of a real slurmctld with its content read back."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
sys.path.append(str(Path(__file__).parents[1] / "cluster"))
import reconfigure_controller
import reconfigure_merging
from reconfigure_merging import OTHERS, paid

from slurm_ext.lab import daemons
from slurm_ext.slurm.versions import parse_version
from slurm_ext.topology.build import build
from slurm_ext.topology.model import Placement, Tree


@pytest.mark.parametrize("switches", [50, 100, 500, 1000, 2000])
def test_a_tree_has_as_many_switches_as_it_is_called_by_and_two_generations_share_no_name(switches: int) -> None:
    first, second = (reconfigure_controller.tree_of(switches, generation) for generation in (0, 1))
    assert abs(len(first.switches) - switches) <= 1
    assert len(second.switches) == len(first.switches)
    assert not {switch.name for switch in first.switches} & {switch.name for switch in second.switches}
    assert len(first.paths()) == reconfigure_controller.NODES


def fleet() -> Tree:
    return build(Placement(f"n{i}", path=("a", f"b{i // 32}", f"c{i // 4}"), zone="z") for i in range(128))


@pytest.mark.parametrize("name", OTHERS)
def test_other_ways_keep_all_nodes_and_the_limit(name: str) -> None:
    tree = OTHERS[name](fleet(), 20)
    assert len(tree.switches) <= 20
    assert sorted(tree.paths()) == sorted(fleet().paths())


def test_jobs_pay_nothing_where_the_file_tells_all_and_most_where_it_tells_nothing() -> None:
    flat = build(Placement(f"n{i}", path=("a",), zone="z") for i in range(128))
    assert paid(fleet(), fleet(), 5) == 0
    assert paid(fleet(), fleet(), 5) < paid(OTHERS["equal"](fleet(), 21), fleet(), 5) < paid(flat, fleet(), 5)


def test_fleets_are_the_same_each_time() -> None:
    once, again = (list(reconfigure_merging.fleets()) for _ in range(2))
    assert once == again


@pytest.mark.cluster
def test_a_real_slurmctld_is_measured_and_has_what_it_was_given() -> None:
    if lacking := daemons.missing():
        pytest.skip(f"no Slurm here: it needs {', '.join(lacking)}")
    if os.geteuid() != 0:
        pytest.skip("needs root")
    version = parse_version(daemons.slurm_version()[1])
    assert version is not None
    # It reads every node's place back after the start and after each reconfigure.
    run = reconfigure_controller.measure(50, 2, version)
    assert run.switches == 50
    assert len(run.reconfigures) == 2
    assert all(cost.cpu_s > 0 and cost.wall_s > 0 and cost.peak_mb > 1 for cost in (run.start, *run.reconfigures))
