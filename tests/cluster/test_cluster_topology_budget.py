"""A real slurmctld takes a tree that was made smaller, and has every node where the smaller tree says."""

from __future__ import annotations

import pytest
from bare_controller import BareController

from slurm_ext.lab import daemons
from slurm_ext.slurm.versions import parse_version
from slurm_ext.topology import render
from slurm_ext.topology.budget import shrink
from slurm_ext.topology.build import build
from slurm_ext.topology.model import Placement, Tree

pytestmark = pytest.mark.cluster


def uneven() -> Tree:
    """Return two fabrics: middles of large leaves, of small ones, one with nodes of its own, and nodes nobody knows the place of."""
    nodes = [Placement(f"n{i}", path=("a", f"b{i // 128}", f"c{i // 64}"), zone="z1") for i in range(512)]
    nodes += [Placement(f"m{i}", path=("a", "b9", f"d{i // 2}"), zone="z1") for i in range(60)]
    nodes += [Placement(f"o{i}", path=("a", "b9"), zone="z1") for i in range(3)]
    nodes += [Placement(f"p{i}", path=(f"e{i // 20}", f"f{i // 5}"), zone="z2") for i in range(60)]
    return build([*nodes, *(Placement(f"q{i}", zone="z1") for i in range(7))])


@pytest.mark.parametrize("most", [53, 45, 36, 20, 12, 4])
def test_a_smaller_tree_is_what_slurm_has(controller: BareController, most: int) -> None:
    version = parse_version(daemons.slurm_version()[1])
    assert version is not None
    tree, lost = shrink(uneven(), most)
    assert lost.before == 62
    assert lost.after == most
    text = render.topology_conf(tree, origin="a test", version=version)
    names = "n[0-511],m[0-59],o[0-2],p[0-59],q[0-6]"
    controller.write({"topology.conf": text}, names, more="TopologyPlugin=topology/tree")
    with controller.running() as up:
        assert up, controller.said()
        assert controller.places() == tree.paths()
