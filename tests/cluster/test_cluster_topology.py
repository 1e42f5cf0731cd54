"""A real slurmctld takes the files that we write, and does what the linter says of others'.

Needs no slurmd: nodes are defined and that is all.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from bare_controller import BareController

from slurm_ext.lab.cluster import Lab
from slurm_ext.slurm.model import Version
from slurm_ext.topology import blocks, render, render_yaml
from slurm_ext.topology.build import build
from slurm_ext.topology.lint import Source, lint
from slurm_ext.topology.lint_model import Finding, Given, release
from slurm_ext.topology.model import Placement, Tree

sys.path.append(str(Path(__file__).parents[1] / "topology"))
from topology_cases import BLOCK_CASES, CONF_CASES, NODES, SLURM_CASES, YAML_CASES, Case
from topology_cases_more import BLOCK_MORE, CONF_MORE, RINGS_MORE, SLURM_MORE, YAML_MORE

FMSLURM = str(Path(__file__).parents[2] / "bin" / "fmslurm")
TREE, BLOCK = "TopologyPlugin=topology/tree", "TopologyPlugin=topology/block"
GB200 = "p6e-gb200.36xlarge"
NOTHING: Mapping[str, str] = MappingProxyType({})


def findings(
    files: Mapping[str, str], slurm_conf: str, version: Version, beside: Mapping[str, str] = NOTHING
) -> list[Finding]:
    target = release(version.text)
    assert target is not None
    sources = [Source(name, text, "", beside) for name, text in files.items()]
    return lint([*sources, Source("slurm.conf", slurm_conf)], Given(target))


def placed(
    count: int, *, per_leaf: int = 16, per_domain: int = 18, zones: int = 1, off_every: int = 0
) -> list[Placement]:
    """A fabric of three layers in which leaves, UltraServers and nodes that are off do not line up."""
    nodes = []
    for i in range(count):
        zone = f"use2-az{i * zones // count + 1}"
        leaf = i // per_leaf
        path = (f"nn-{zone}", f"nn-b{leaf // 4:08x}", f"nn-{leaf:017d}")
        on = not off_every or i % off_every
        nodes.append(
            Placement(
                f"gpu-st-p6e-{i + 1}", f"i-{i:017x}", GB200, path if on else (), zone, "", f"us-{i // per_domain}"
            )
        )
    return nodes


FABRICS = {
    "one leaf": placed(4),
    "three tiers": placed(200),
    "three thousand nodes": placed(3000),
    "two zones": placed(120, zones=2),
    "some nodes off": placed(150, off_every=7),
    "three and four tiers in one zone, a local zone with one node, another that is off": [
        *(
            Placement(f"p5-st-a-{i}", "", "p5.48xlarge", ("top", f"m{i % 2}", f"l{i % 4}"), "use2-az1")
            for i in range(1, 17)
        ),
        *(
            Placement(f"b200-st-b-{i}", "", "p6-b200.48xlarge", ("top", "x", f"y{i % 2}", f"z{i % 4}"), "use2-az1")
            for i in range(1, 17)
        ),
        Placement("g6e-st-c-1", "", "g6e.48xlarge", ("lax-1", "lax-2", "lax-3"), "use2-lax1-az1"),
        Placement("p5-dy-a-1"),
        Placement("trn2-dy-d-1"),
        Placement("trn2-dy-d-2"),
    ],
    "names of every form": [
        Placement(name, "", "", ("top", f"leaf-{i % 3}", f"é {i % 4}"), "z")
        for i, name in enumerate(
            [
                "N1",
                "n1",
                "n01",
                "n001",
                "n-1-ib",
                "n-2-ib",
                "n_1",
                "a.example.com",
                "b.example.com",
                "x1y2z3",
                "x1y3z3",
                "gpu-st-p5-48xlarge-1",
                "q-st-x-dy-y-3",
                "7",
                "a" * 60,
                "n20260930",
            ]
        )
    ],
    "deep": [
        Placement(f"n{i}", "", "", (*(f"{'a' if k < 30 - i else f'd{i}'}-{k}" for k in range(30)), f"leaf{i}"), "z")
        for i in range(30)
    ],
    "paths of different lengths": [
        Placement(f"n{i}", "", "", ("top", f"mid{i % 3}", f"leaf{i}")[: 1 + i % 3], "z") for i in range(24)
    ],
}


def names(tree: Tree) -> str:
    return ",".join(placement.node for placement in tree.placements)


def loads(controller: BareController, files: dict[str, str], nodes: str, more: str, version: Version) -> None:
    """Write the files and hold that nothing is wrong with them, to the linter and (by running) to slurmctld."""
    slurm_conf = controller.write(files, nodes, more=more)
    wrong = [finding for finding in findings(files, slurm_conf, version) if finding.severity in ("fatal", "error")]
    assert wrong == []


@pytest.mark.parametrize("fabric", FABRICS)
def test_slurm_puts_every_node_where_the_tree_says(fabric: str, controller: BareController, version: Version) -> None:
    tree = build(FABRICS[fabric])
    loads(
        controller,
        {"topology.conf": render.topology_conf(tree, origin="a test", version=version)},
        names(tree),
        TREE,
        version,
    )
    with controller.running() as up:
        assert up, controller.said()
        assert controller.places() == tree.paths()
        assert "Invalid hostnames" not in controller.said()
        assert "lack access" not in controller.said()


def test_slurm_puts_every_node_in_its_block(controller: BareController, version: Version) -> None:
    if blocks.rules_of(version) is None:
        pytest.skip(f"Slurm {version.text} has no topology/block")
    tree = build(placed(18 * 5 + 9, off_every=11))
    plan = blocks.plan(tree, version)
    assert len(plan.blocks) == (6 if version >= (25, 5) else 5)
    loads(
        controller,
        {"topology.conf": render.block_conf(plan, origin="a test", version=version)},
        names(tree),
        BLOCK,
        version,
    )
    with controller.running() as up:
        assert up, controller.said()
        places = controller.places()
        for block in plan.blocks:
            assert {places[node][-1] for node in block.nodes} == {block.name}
        assert not set(plan.left_out) & set(places)
        sizes = re.findall(r"BlockSize=(\d+)", controller.ask("scontrol", "--oneliner", "show", "topology"))
        # What is shown are sizes in nodes; one that the blocks cannot fill is not shown.
        assert set(map(int, sizes)) <= set(plan.sizes) | {18 * 5, 18 * 6}


@pytest.mark.parametrize("zones", [1, 2])
def test_one_topology_yaml_has_tree_and_blocks(zones: int, controller: BareController, version: Version) -> None:
    if version < (25, 5):
        pytest.skip(f"Slurm {version.text} reads no topology.yaml")
    tree = build(placed(18 * 4, zones=zones))
    plan = blocks.plan(tree, version)
    text = render_yaml.topology_yaml(tree, plan, origin="a test", version=version)
    topologies = render_yaml.block_topologies(plan)
    partitions = "\n".join(
        line.replace("NAME", f"p{i}") for i, line in enumerate(render_yaml.partition_lines(topologies))
    )
    slurm_conf = controller.write(
        {"topology.yaml": text}, names(tree), partitions=f"PartitionName=all Nodes=ALL Default=YES\n{partitions}"
    )
    assert [f for f in findings({"topology.yaml": text}, slurm_conf, version) if f.severity in ("fatal", "error")] == []
    with controller.running() as up:
        assert up, controller.said()
        assert controller.places(render_yaml.TREE) == tree.paths()
        for topology in topologies:
            places = controller.places(topology.name)
            for block in topology.blocks:
                assert {places[node][-1] for node in block.nodes} == {block.name}
        for i, topology in enumerate(topologies):
            assert f"Topology={topology.name}" in controller.ask("scontrol", "--oneliner", "show", "partition", f"p{i}")


def test_update_lines_move_nodes_of_a_running_slurm(controller: BareController, version: Version) -> None:
    if version < (25, 5):
        pytest.skip(f"Slurm {version.text} cannot move a running node in its topology")
    before = placed(18 * 2)
    # Two nodes of the first leaf have come up elsewhere, one of them below a switch that is new.
    after = list(before)
    after[0] = after[0]._replace(path=after[20].path)
    after[1] = after[1]._replace(path=(*after[1].path[:2], "nn-new"))
    old, new = build(before), build(after)
    text = render_yaml.topology_yaml(old, blocks.plan(old, version), origin="a test", version=version)
    controller.write({"topology.yaml": text}, names(old))
    with controller.running() as up:
        assert up, controller.said()
        assert controller.places(render_yaml.TREE) == old.paths()
        for line in render_yaml.updates(render_yaml.node_strings(new, blocks.plan(new, version))):
            controller.ask(*line.split())
        assert controller.places(render_yaml.TREE) == new.paths()
        assert set(controller.places("nvl")) == set(new.paths())


#: Cloud nodes that nothing is behind: all of them are powered down.
POWER_SAVING = """SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=3600"""


@pytest.mark.parametrize("cloud", [False, True])
def test_each_node_moves_and_moves_back(cloud: bool, controller: BareController, version: Version) -> None:
    if version < (25, 5):
        pytest.skip(f"Slurm {version.text} cannot move a running node in its topology")
    before = placed(18 * 3, off_every=10)
    # Each node goes where the one 17 places on was, and with it into another UltraServer, or out of the holding leaf.
    turned = before[17:] + before[:17]
    after = [
        one._replace(path=other.path, ultraserver_id=other.ultraserver_id)
        for one, other in zip(before, turned, strict=True)
    ]
    old, new = build(before), build(after)
    text = render_yaml.topology_yaml(old, blocks.plan(old, version), origin="a test", version=version)
    controller.write({"topology.yaml": text}, names(old), more=POWER_SAVING if cloud else "")
    if cloud:
        controller.conf.write_text(controller.conf.read_text().replace("State=UNKNOWN", "State=CLOUD"))
    with controller.running() as up:
        assert up, controller.said()
        for tree in (new, old):
            plan = blocks.plan(tree, version)
            for line in render_yaml.updates(render_yaml.node_strings(tree, plan)):
                controller.ask(*line.split())
            assert controller.places(render_yaml.TREE) == tree.paths()
            places = controller.places("nvl")
            for block in plan.blocks:
                assert {places[node][-1] for node in block.nodes} == {block.name}
            assert not set(plan.left_out) & set(places)


@pytest.mark.parametrize("kind", ["tree", "block"])
def test_check_agrees_with_what_was_generated_and_names_who_moved(
    kind: str, controller: BareController, version: Version, tmp_path: Path
) -> None:
    if kind == "block" and blocks.rules_of(version) is None:
        pytest.skip(f"Slurm {version.text} has no topology/block")
    nodes = [f"n{i}" for i in range(36)]
    rows = [
        {"InstanceId": f"i-{i}", "InstanceType": GB200, "NetworkNodes": ["a", f"b{i // 6}"], "ZoneId": "z",
         "CapacityBlockId": f"cr-{i // 18}"}
        for i in range(36)
    ]  # fmt: skip
    (tmp_path / "ec2.json").write_text(json.dumps({"Instances": rows}))
    (tmp_path / "nodes.csv").write_text("node,instance_id\n" + "".join(f"n{i},i-{i}\n" for i in range(36)))
    (tmp_path / "fmslurm.yaml").write_text(f"site: {{slurm_conf: {controller.conf}}}\n")
    sources = ["--nodes", str(tmp_path / "nodes.csv"), "--ec2-answer", str(tmp_path / "ec2.json"), "--capacity-blocks"]
    env = {**os.environ, "FMSLURM_CONFIG": str(tmp_path / "fmslurm.yaml")}

    def topology(*argv: str) -> subprocess.CompletedProcess[str]:
        done = [FMSLURM, "topology", *argv, "--format", kind]
        return subprocess.run(done, env=env, capture_output=True, text=True, timeout=240, check=False)

    generated = topology("generate", *sources)
    assert generated.returncode == 0, generated.stderr
    controller.write({"topology.conf": generated.stdout}, ",".join(nodes), more=TREE if kind == "tree" else BLOCK)
    with controller.running() as up:
        assert up, controller.said()
        good = topology("check", *sources)
        assert good.returncode == 0, good.stdout + good.stderr
        assert "all 36 nodes sit in Slurm where" in good.stdout
        rows[0].update(NetworkNodes=["a", "b5"], CapacityBlockId="cr-1")
        (tmp_path / "ec2.json").write_text(json.dumps({"Instances": rows}))
        moved = topology("check", *sources, "--block-size", "17")
        assert moved.returncode == 1
        assert [line.split()[0] for line in moved.stdout.splitlines() if " moved: " in line] == ["n0"], moved.stdout


def checked(case: Case, controller: BareController, version: Version) -> None:
    slurm = "\n".join(line for line in case.slurm.splitlines() if "SelectType" not in line)
    files = {**case.files, **case.beside}
    controller.write(files, NODES, more=slurm, partitions=case.partition or "PartitionName=all Nodes=ALL Default=YES")
    if case.node:
        controller.conf.write_text(controller.conf.read_text().replace("State=UNKNOWN", f"State=UNKNOWN {case.node}"))
    if "SelectType" in case.slurm:
        text = controller.conf.read_text().replace("select/cons_tres", "select/linear")
        controller.conf.write_text(text)
    found = findings(case.files, controller.conf.read_text(), version, case.beside)
    fatal = [finding for finding in found if finding.severity == "fatal"]
    if case.yaml is not None and case.conf is not None:  # what nothing reads stops nothing
        fatal = [finding for finding in fatal if finding.file == "topology.yaml"]
    with controller.running() as up:
        assert up is not bool(fatal), (found, controller.said())
    assert up is not case.stops((version.major, version.minor))


@pytest.mark.parametrize("case", CONF_CASES + CONF_MORE + BLOCK_CASES + BLOCK_MORE, ids=lambda case: case.name)
def test_a_topology_conf_that_is_called_fatal_stops_slurmctld_and_no_other(
    case: Case, controller: BareController, version: Version
) -> None:
    checked(case, controller, version)


@pytest.mark.parametrize("case", YAML_CASES + YAML_MORE + RINGS_MORE, ids=lambda case: case.name)
def test_a_topology_yaml_that_is_called_fatal_stops_slurmctld_and_no_other(
    case: Case, controller: BareController, version: Version
) -> None:
    if version < (25, 5):
        pytest.skip(f"Slurm {version.text} reads no topology.yaml")
    checked(case, controller, version)


@pytest.mark.parametrize("case", SLURM_CASES + SLURM_MORE, ids=lambda case: case.name)
def test_settings_that_are_called_fatal_stop_slurmctld_and_no_others(
    case: Case, controller: BareController, version: Version
) -> None:
    if case.conf is None and case.slurm.endswith("/tree"):
        pytest.skip("without a file slurmctld waits a minute for one")
    checked(case, controller, version)


def fmslurm(lab: Lab, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **lab.env()}
    return subprocess.run(
        [FMSLURM, "topology", *argv], env=env, capture_output=True, text=True, timeout=240, check=False
    )


def test_show_marks_the_nodes_of_a_job(lab: Lab) -> None:
    job = lab.run(
        ["sbatch", "--parsable", "-N", "3", "-w", "n[1-2],n5", "-o", "/dev/null", "--wrap", "sleep 300"]
    ).stdout.strip()
    try:
        text = until_placed(lab, job)
        assert f"<- job {job}: 2, n[1-2]" in text
        assert f"<- job {job}: 1, n5" in text
        assert f"job {job}: 3 nodes under 2 leaves; 1 could hold it" in text
        shown = json.loads(fmslurm(lab, "show", "-j", job, "--json").stdout)
        assert sorted(map(sorted, shown["job"]["leaves"].values())) == [["n1", "n2"], ["n5"]]
        hosts = fmslurm(lab, "generate", "--format", "hosts", "-j", job, "--tasks-per-node", "2").stdout
        assert hosts.split() == ["n1", "n1", "n2", "n2", "n5", "n5"]
        assert "of the job: <code>n[1-2]</code>" in fmslurm(lab, "generate", "--format", "html", "-j", job).stdout
    finally:
        lab.run(["scancel", job])
    assert fmslurm(lab, "show", "-j", "99999").returncode == 2


def until_placed(lab: Lab, job: str) -> str:
    """Ask until the job has nodes: it may wait for those that another test still has."""
    for _ in range(100):
        done = fmslurm(lab, "show", "-j", job)
        if done.returncode == 0:
            return done.stdout
        assert "has no nodes" in done.stderr, done.stderr
    raise AssertionError(f"job {job} did not start: {lab.run(['scontrol', 'show', 'job', job]).stdout}")


def test_generate_and_lint_on_the_command_line(lab: Lab, tmp_path: Path) -> None:
    target = tmp_path / "topology.conf"
    assert fmslurm(lab, "generate", "-o", str(target)).returncode == 0
    clean = fmslurm(lab, "lint", str(target), "--slurm-conf", str(lab.path("etc", "slurm", "slurm.conf")))
    assert (clean.returncode, clean.stderr) == (0, "")
    assert f"for Slurm {lab.slurm_version}" in clean.stdout
    target.write_text(target.read_text() + "SwitchName=one Switches=two\n")
    wrong = fmslurm(lab, "lint", str(target), "--json")
    assert wrong.returncode == 1
    assert [f["rule"] for f in json.loads(wrong.stdout)["findings"] if f["severity"] == "fatal"] == [
        "tree.unknown-child"
    ]
