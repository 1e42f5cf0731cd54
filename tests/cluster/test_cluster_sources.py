"""Places and instances as a real Slurm tells them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_ext.config import yaml_file
from slurm_ext.lab.cluster import Lab
from slurm_ext.slurm import connect

FMSLURM = str(Path(__file__).parents[2] / "bin" / "fmslurm")


def test_the_running_topology_is_a_source(lab: Lab) -> None:
    said = lab.run([FMSLURM, "topology", "show", "--json", "--source", "cluster"])
    assert said.ok, said.words()
    paths = json.loads(said.stdout)["paths"]
    assert set(paths) == set(lab.nodes)
    assert len({path[0] for path in paths.values()}) == 1
    # The lab's two leaves stay apart, four nodes each.
    leaves = [path[-1] for path in paths.values()]
    assert sorted(leaves.count(leaf) for leaf in set(leaves)) == [4, 4]
    # It is called as Slurm calls it.
    held = connect(yaml_file.parse(yaml_file.read_bytes(lab.env()["FMSLURM_CONFIG"])).settings).topology()
    assert {node: tuple(path) for node, path in paths.items()} == dict(held)
    assert lab.run([FMSLURM, "topology", "check", "--source", "cluster"]).ok


def test_the_instance_that_slurm_shows_is_read(lab: Lab) -> None:
    settings = yaml_file.parse(yaml_file.read_bytes(lab.env()["FMSLURM_CONFIG"])).settings
    slurm, node = connect(settings), lab.nodes[0]
    if slurm.version() < (23, 11):
        pytest.skip("InstanceId came with 23.11")
    told = ["InstanceId=i-0123456789abcdef0", "InstanceType=p5.48xlarge"]
    assert lab.run(["scontrol", "update", f"NodeName={node}", *told]).ok
    try:
        (found,) = slurm.nodes([node])
        assert (found.instance_id, found.instance_type) == ("i-0123456789abcdef0", "p5.48xlarge")
    finally:
        assert lab.run(["scontrol", "update", f"NodeName={node}", "InstanceId=", "InstanceType="]).ok
    (found,) = slurm.nodes([node])
    assert found.instance_id == ""
