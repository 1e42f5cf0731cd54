"""The commands without any Slurm: formats, versions, exit codes, words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from topology_cases import GOOD_YAML, NODES

from slurm_ext.cli.main import main


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that name a list of nodes and a recorded answer; the settings are the defaults, and there is no Slurm."""
    config = tmp_path / "fmslurm.yaml"
    config.write_text(f"site: {{slurm_bin: {tmp_path}/nowhere}}\n")
    monkeypatch.setenv("FMSLURM_CONFIG", str(config))
    instances = [
        {
            "InstanceId": f"i-{i}",
            "InstanceType": "p5.48xlarge",
            "NetworkNodes": ["nn-a", f"nn-b{i // 2}"],
            "ZoneId": "use2-az1",
        }
        for i in range(6)
    ]
    (tmp_path / "ec2.json").write_text(json.dumps({"Instances": instances}))
    (tmp_path / "nodes.csv").write_text("node,instance_id\n" + "".join(f"n{i},i-{i}\n" for i in range(6)))
    return ["--nodes", str(tmp_path / "nodes.csv"), "--ec2-answer", str(tmp_path / "ec2.json")]


def say(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    try:
        left = main(["topology", *argv])
    except SystemExit as exc:
        left = exc.code
    assert left == code
    told = capsys.readouterr()
    return told.out if code in (0, 1) else told.err


def test_generate_writes_every_format(sources: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def written(*more: str) -> str:
        return say(capsys, "generate", *sources, *more)

    assert "SwitchName=" in written()
    assert written() == written("--format", "tree")
    assert "cluster_default: true" in written("-f", "yaml", "--slurm-version", "26.05.5")
    assert written("-f", "updates", "--slurm-version", "25.05").startswith(
        "scontrol update NodeName=n[0-1] Topology=efa:l1-h"
    )
    assert "Topology=default:l1-h" in written("-f", "updates", "--slurm-version", "25.05", "--topology-name", "default")
    assert written("-f", "hosts").split() == [f"n{i}" for i in range(6)]
    assert written("-f", "hosts", "-w", "n[5,2]", "--tasks-per-node", "2").split() == ["n2", "n2", "n5", "n5"]
    assert written("-f", "dot").startswith("digraph")
    assert written("-f", "svg").startswith("<svg")
    assert written("-f", "html").startswith("<!doctype html>")
    assert written("--max-switches", "2").count("SwitchName=") == 2


def test_what_cannot_be_written_is_a_usage_error_or_lacks_slurm(
    sources: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "came with 25.05" in say(capsys, "generate", *sources, "-f", "yaml", "--slurm-version", "24.11.5", code=2)
    assert "came with 25.05" in say(capsys, "generate", *sources, "-f", "updates", "--slurm-version", "24.11.5", code=2)
    assert "came with 23.11" in say(capsys, "generate", *sources, "-f", "block", "--slurm-version", "22.05.8", code=2)
    assert "NVLink domain" in say(capsys, "generate", *sources, "-f", "block", "--slurm-version", "24.11.5", code=2)
    assert "no version of Slurm" in say(capsys, "generate", *sources, "--slurm-version", "latest", code=2)
    assert "--slurm-version" in say(capsys, "generate", *sources, "-f", "yaml", code=3)


def test_what_is_written_is_linted_first(
    tmp_path: Path, sources: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nodes.csv").write_text("node,instance_id\n" + "".join(f"x{'9' * 30}{i},i-{i}\n" for i in range(6)))
    assert main(["topology", "generate", *sources, "--slurm-version", "24.11.5"]) == 0
    told = capsys.readouterr()
    assert "SwitchName=" in told.out
    assert "fmslurm: warning: the node x9" in told.err
    assert "hostlist.digits" in told.err


def test_diff_compares_any_format(sources: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "topology.yaml"
    how = ["-f", "yaml", "--slurm-version", "26.05.5"]
    assert "+- topology: efa" in say(capsys, "diff", *sources, *how, str(target), code=1)
    say(capsys, "generate", *sources, *how, "-o", str(target))
    assert say(capsys, "diff", *sources, *how, str(target)) == ""


def test_show_draws_and_tells_machines(sources: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "(6 nodes)" in say(capsys, "show", *sources)
    shown = json.loads(say(capsys, "show", *sources, "--json"))
    assert shown["schema"] == 1
    assert len(shown["paths"]) == 6
    assert "job" not in shown


def test_lint_says_where_how_bad_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf, slurm = tmp_path / "topology.conf", tmp_path / "slurm.conf"
    conf.write_text(f"Include more.conf\nSwitchName=a Nodes={NODES} Colour=red\n")
    (tmp_path / "more.conf").write_text("SwitchName=b Switches=zz\n")
    slurm.write_text(f"ClusterName=x\nTopologyPlugin=topology/tree\nNodeName={NODES} CPUs=1\n")
    argv = ["lint", str(conf), "--slurm-conf", str(slurm), "--slurm-version", "24.11.5"]
    text = say(capsys, *argv, code=1)
    assert f"{conf}:2: fatal: the key colour is not known here" in text
    assert "more.conf:1: fatal: switch b has the child zz, which is no switch (tree.unknown-child)\n    Add it" in text
    assert text.splitlines()[-1] == "2 fatal, 1 note, for Slurm 24.11.5, in 2 files"
    found = json.loads(say(capsys, *argv, "--json", code=1))
    assert found["slurm_version"] == "24.11.5"
    assert {"file", "line", "rule", "severity", "reason", "remedy", "source"} == set(found["findings"][0])


def test_lint_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str], sources: list[str]) -> None:
    good = tmp_path / "topology.yaml"
    good.write_text(GOOD_YAML)
    version = ["--slurm-version", "26.05.5"]
    assert "nothing wrong, for Slurm 26.05.5, in 1 file" in say(capsys, "lint", str(good), *version)
    assert "tree.unknown-node" in say(capsys, "lint", str(good), *version, "--nodes", "n[0-6]")
    say(capsys, "lint", str(good), *version, "--nodes", "n[0-6]", "--strict", code=1)
    assert "tree.orphans" in say(
        capsys, "lint", str(good), *version, "--nodes", sources[1], "--nodes", "n[0-8]", code=1
    )
    assert "tree.unknown-node" in say(capsys, "lint", str(good), *version, "--nodes", sources[1])
    assert "no Slurm here" in say(capsys, "lint", str(good), code=3)
    say(capsys, "lint", str(tmp_path), *version, code=2)
    say(capsys, "lint", str(tmp_path / "none"), *version, code=2)
    say(capsys, "lint", str(good), "--slurm-version", "x", code=2)
    say(capsys, "lint", str(good), *version, "--nodes", "n[", code=2)
    say(capsys, "lint", code=2)


def test_bytes_that_are_no_text_are_linted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("topology.conf", "topology.yaml"):
        target = tmp_path / name
        target.write_bytes(b"SwitchName=a\xff Nodes=\xfe\x00\n- topology: \x80\n" * 3)
        say(capsys, "lint", str(target), "--slurm-version", "25.05.1", code=1)


def test_a_file_of_a_holding_leaf_alone_replaces_nothing(
    sources: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off = tmp_path / "off.csv"
    off.write_text("node,instance_id\nn0,\nn1,\n")
    target = tmp_path / "topology.conf"
    say(capsys, "generate", *sources, "-o", str(target))
    before = target.read_text()
    said = say(capsys, "generate", "--nodes", str(off), *sources[2:], "-o", str(target), code=3)
    assert "not one node has a known place" in said
    assert target.read_text() == before
    assert "is a file of Slurm's" in say(capsys, "draw", *sources, "-o", str(target), code=2)
    assert target.read_text() == before


def test_hosts_are_questioned(sources: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    hosts = ("generate", *sources, "-f", "hosts")
    assert "names no node" in say(capsys, *hosts, "-w", "", code=2)
    assert "no hostlist" in say(capsys, *hosts, "-w", "n[0-", code=2)
    assert "Leave one out" in say(capsys, *hosts, "-w", "n1", "-j", "2", code=2)
    assert main([*("topology",), *hosts, "-w", "n1,n99"]) == 0
    said = capsys.readouterr()
    assert (said.out.split(), "not in this topology, and last: n99" in said.err) == (["n1", "n99"], True)
    updates = ("generate", *sources, "-f", "updates", "--slurm-version", "26.05.5")
    assert "no name of a topology" in say(capsys, *updates, "--topology-name", "x; reboot", code=2)
