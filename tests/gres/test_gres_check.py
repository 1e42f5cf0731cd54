"""A node's own facts against gres.conf and the catalogue; ParallelCluster's generated lines; the command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from gres_trees import tree
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.aws.catalogue import CATALOGUE
from slurm_ext.cli.gres import gres as command
from slurm_ext.errors import UsageError
from slurm_ext.gres import collect, read_conf, rules
from slurm_ext.gres.model import Trouble
from slurm_ext.gres.render import Offer, gres_conf

P5 = CATALOGUE["p5.48xlarge"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="device files need root")


def check(root: Path, conf: str, kind: str = "p5.48xlarge") -> list[Trouble]:
    return rules.node(collect.facts(str(root)), CATALOGUE.get(kind), read_conf.gres_lines("gres.conf", conf), "n1")


def ids(troubles: list[Trouble]) -> list[str]:
    return [trouble.id for trouble in troubles]


def test_what_generate_writes_is_right_on_the_node(tmp_path: Path) -> None:
    facts = collect.facts(str(tree(tmp_path)))
    assert (facts.sockets, facts.cores_per_socket, facts.threads_per_core, facts.cpus) == (2, 48, 2, 192)
    assert facts.numa_cores == {0: frozenset(range(48)), 1: frozenset(range(48, 96))}
    assert [gpu.number for gpu in facts.gpus] == list(range(8))
    assert facts.unread == ()
    assert check(tmp_path, gres_conf({"n1": Offer(P5)})) == []


def test_gpus_need_not_follow_the_sockets(tmp_path: Path) -> None:
    """As on a published H100 machine: GPUs 0-3 at the second socket, 4-7 at the first."""
    tree(tmp_path, numa_of=(1, 1, 1, 1, 0, 0, 0, 0))
    found = check(tmp_path, gres_conf({"n1": Offer(P5)}))
    assert set(ids(found)) == {"gres.far-cores"}
    assert len(found) == 8
    assert "/dev/nvidia0 hangs at NUMA node 1 (cores 48-95), and Cores=0-47" in found[0].words
    assert found[0].remedy.startswith("Cores=48-95")
    right = (
        "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=48-95\n"
        "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=0-47\n"
    )
    assert check(tmp_path, right) == []


@pytest.mark.parametrize(
    ("conf", "wanted", "words"),
    [
        ("NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[0-7]\n", ["gres.no-cores"], "Cores=0-47"),
        ("NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-47\n", ["gres.left-out"], "/dev/nvidia4"),
        (
            "Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-47\nName=gpu Type=h100 File=/dev/nvidia[4-8] Cores=48-95\n",
            ["gres.no-device"],
            "/dev/nvidia8",
        ),
        (
            "Name=gpu Type=a100 File=/dev/nvidia[0-3] Cores=0-47\nName=gpu Type=h100 File=/dev/nvidia[4-7] Cores=48-95\n",
            ["gres.type"] * 4,
            "is a NVIDIA H100",
        ),
        (
            "Name=gpu File=/dev/nvidia[0-3] Cores=0-31\nName=gpu Type=h100 File=/dev/nvidia[4-7] Cores=48-95\n",
            ["gres.part-of-socket", "gres.mixed"],
            "32 of 48 cores of socket 0",
        ),
        ("NodeName=n2 Name=gpu File=/dev/nvidia0\n", ["gres.not-offered"], "has 8"),
        ("NodeName=n[1-9] AutoDetect=nvidia\n", [], ""),
        ("# nothing\n", [], ""),
    ],
)
def test_lines_that_do_not_fit_the_node(tmp_path: Path, conf: str, wanted: list[str], words: str) -> None:
    tree(tmp_path)
    found = check(tmp_path, conf)
    assert ids(found) == wanted
    assert any(words in f"{one.words} {one.remedy}" for one in found) or not wanted


def test_a_gpu_that_is_gone_and_processors_that_were_set(tmp_path: Path) -> None:
    tree(tmp_path, numa_of=(0, 0, 0, 0, 1, 1, 1), threads=1)
    found = check(tmp_path, gres_conf({"n1": Offer(P5)}))
    assert ids(found) == ["gres.count", "gres.processors", "gres.no-device"]
    assert "ThreadsPerCore=1" in found[1].words


def test_another_split_than_the_catalogue_has(tmp_path: Path) -> None:
    tree(tmp_path, numa_of=(0, 0, 1, 1, 1, 1, 1, 1))
    found = check(tmp_path, "")
    assert ids(found) == ["gres.split"]
    assert "(2, 6) here, and the catalogue has (4, 4)" in found[0].words


def test_a_device_file_that_is_missing(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "dev/nvidia3").unlink()
    (tmp_path / "dev/nvidia3").write_text("no device")
    assert ids(check(tmp_path, gres_conf({"n1": Offer(P5)}))) == ["gres.no-device"]


def test_gpu_memory_may_be_numa_nodes_without_processors(tmp_path: Path) -> None:
    tree(
        tmp_path,
        kind="p6e-gb200.36xlarge",
        model="NVIDIA GB200",
        cores=72,
        threads=1,
        numa_of=(0, 0, 1, 1),
        memory_nodes=4,
    )
    assert check(tmp_path, gres_conf({"n1": Offer(CATALOGUE["p6e-gb200.36xlarge"])}), "p6e-gb200.36xlarge") == []
    found = check(tmp_path, "NodeName=n1 Name=gpu Type=gb200 File=/dev/nvidia[0-3]\n", "p6e-gb200.36xlarge")
    assert ids(found) == ["gres.no-cores"]
    assert "File=/dev/nvidia[0-1] Cores=0-71; File=/dev/nvidia[2-3] Cores=72-143" in found[0].remedy


def test_a_machine_without_a_driver_says_what_is_unread(tmp_path: Path) -> None:
    facts = collect.facts(str(tmp_path))
    assert facts.unread == ("proc/driver/nvidia/gpus", "sys/devices/system/cpu/*/topology")
    assert rules.node(facts, P5, [], "n1") == []
    assert check(tmp_path, gres_conf({"n1": Offer(P5)})) == []


def test_a_gpu_that_the_driver_does_not_tell_of_whole_is_no_finding(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "proc/driver/nvidia/gpus/0000:53:00.0/information").write_text("Model: NVIDIA H100\n")
    assert collect.facts(str(tmp_path)).unread == ("proc/driver/nvidia/gpus/0000:53:00.0/information",)
    assert check(tmp_path, gres_conf({"n1": Offer(P5)})) == []


@pytest.mark.parametrize(
    "line", ["Name=gpu File=/dev/nvidia[0-", "NodeName=n[1- Name=gpu", "Name=gpu Cores=a-b", "Name=gpu Count=x"]
)
def test_a_line_that_is_none_is_named(line: str) -> None:
    with pytest.raises(UsageError, match=r"gres\.conf, line 2"):
        read_conf.gres_lines("gres.conf", f"# first\n{line}\n")


def test_lines_go_on_and_have_comments() -> None:
    (line,) = read_conf.gres_lines(
        "f", "\n NodeName=n[1-2] \\\n  name=GPU file=/dev/a,/dev/b[1,3-4]x Cores=0-1,4 # all\n"
    )
    assert line.where == "f, line 2"
    assert line.nodes == ("n1", "n2")
    assert line.files == ("/dev/a", "/dev/b1x", "/dev/b3x", "/dev/b4x")
    assert read_conf.ranges(line.cores or ()) == "0-1,4"


@given(st.text(max_size=120))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (read_conf.gres_lines, read_conf.node_lines):
        try:
            found = [line.where for line in read("f", f"NodeName=n1 Name=gpu {text}")]
        except UsageError as exc:
            found = [exc.message]
        assert all("f, line" in where for where in found)


PARTITION = """NodeName=gpu-st-p5-[1-4] CPUs=192 RealMemory=1992294 State=CLOUD Feature=static,p5.48xlarge,p5,gpu Weight=1 Gres=gpu:h100:8
NodeSet=gpu_nodes Nodes=gpu-st-p5-[1-4]
PartitionName=gpu Nodes=gpu_nodes MaxTime=INFINITE State=UP
"""
GRES = "NodeName=gpu-st-p5-[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7]\n"


def pcluster(folder: Path, partition: str = PARTITION, gres: str = GRES) -> Path:
    (folder / "slurm_parallelcluster_gpu_partition.conf").write_text(partition)
    (folder / "slurm_parallelcluster_gpu_gres.conf").write_text(gres)
    return folder


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, [*arguments])
    code = done.exit_code
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        code = getattr(done.exception, "exit_code", 99)
    return code, done.stdout


def test_parallelclusters_lines_cost_speed_and_are_not_fought(tmp_path: Path) -> None:
    code, said = run("check", "--pcluster", str(pcluster(tmp_path)))
    assert code == 0
    assert "pcluster.no-sockets" in said
    assert "CustomSlurmSettings of the compute resource: Sockets: 2, CoresPerSocket: 48, ThreadsPerCore: 2" in said
    assert "pcluster.no-cores" in said


@pytest.mark.parametrize(
    ("partition", "gres", "id_"),
    [
        (PARTITION.replace("h100:8", "h100:4"), GRES, "pcluster.count"),
        (PARTITION, GRES.replace("0-7", "0-6"), "pcluster.files"),
        (PARTITION.replace("h100", "h200"), GRES, "pcluster.type"),
        (PARTITION.replace("1992294", "2097152"), GRES, "pcluster.memory"),
        (PARTITION, "NodeName=gpu-st-p5-[1-4] Name=gpu AutoDetect=nvml Count=8\n", "pcluster.autodetect"),
    ],
)
def test_parallelclusters_lines_that_are_wrong(tmp_path: Path, partition: str, gres: str, id_: str) -> None:
    code, said = run("check", "--pcluster", str(pcluster(tmp_path, partition, gres)), "--json")
    assert code == 1
    assert id_ in [trouble["id"] for trouble in json.loads(said.splitlines()[0])["troubles"]]


def test_a_folder_without_such_files_is_named(tmp_path: Path) -> None:
    code, _ = run("check", "--pcluster", str(tmp_path))
    assert code == 2


def test_the_command_on_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    tree(tmp_path / "root")
    conf = tmp_path / "gres.conf"
    conf.write_text(gres_conf({"n1": Offer(P5)}))
    arguments = ("check", "--root", str(tmp_path / "root"), "--gres-conf", str(conf), "--node", "n1")
    assert run(*arguments) == (0, "nothing is wrong\n")
    (tmp_path / "top.conf").write_text("# as ParallelCluster has it\ninclude gres.conf\n")
    assert run(*arguments[:4], str(tmp_path / "top.conf"), *arguments[5:]) == (0, "nothing is wrong\n")
    (tmp_path / "loop.conf").write_text(f"Include {tmp_path}/loop.conf\n")
    assert run(*arguments[:4], str(tmp_path / "loop.conf"), *arguments[5:])[0] == 2
    (tmp_path / "empty").mkdir()
    # It offers GPUs here, and nothing of them can be read: that is no good news.
    assert run("check", "--root", str(tmp_path / "empty"), "--gres-conf", str(conf), "--node", "n1")[0] == 3
    assert (
        run("check", "--root", str(tmp_path / "empty"), "--gres-conf", str(conf), "--node", "n7", "--type", "m5.large")[
            0
        ]
        == 0
    )
    assert run("check", "--root", str(tmp_path / "empty"))[0] == 3
    conf.write_text("NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[0-8] Cores=0-95\n")
    code, said = run(*arguments)
    assert code == 1
    assert "gres.no-device" in said


def test_the_commands_that_show_and_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("node,instance_id,instance_type\nn1,i-1,p5.48xlarge\nn2,,p5e.48xlarge\n")
    code, said = run("show", "--nodes", str(nodes))
    assert code == 0
    assert "/dev/nvidia[0-3] 0-47; /dev/nvidia[4-7] 48-95" in said
    assert "no Cores= for p5e.48xlarge" in said
    code, said = run("show", "--nodes", str(nodes), "--json")
    assert json.loads(said)["types"][0]["gpu"] == "h100"
    code, said = run("generate", "--nodes", str(nodes), "--format", "pcs")
    assert json.loads(said)["p5.48xlarge"]["gresCustomSettings"][1]["Cores"] == "48-95"
    nodes.write_text("node,instance_id,instance_type\ngpu-st-p5-1,i-1,p5.48xlarge\n")
    code, said = run("generate", "--nodes", str(nodes), "--autodetect", "nvidia")
    assert code == 2
    code, said = run("generate", "--nodes", str(nodes), "--cloud")
    assert "State=CLOUD" in said
    nodes.write_text("node,instance_id\nn1,i-1\n")
    assert run("generate", "--nodes", str(nodes))[0] == 2


@pytest.mark.parametrize(
    "line",
    [
        "foo bar",
        "NodeName=n1 Nmae=gpu",
        "AutoDetect=banana",
        "NodeName=n1 Name=gpu File=/dev/nvidia0 x",
        "\ufeff# ours",
        "\x00\x01",
    ],
)
def test_a_line_at_which_slurmd_ends_is_named(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was given to slurmd -G of 22.05.8: a parse error, an unrecognized key, an unknown flag."""
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    tree(tmp_path / "root")
    conf = tmp_path / "gres.conf"
    conf.write_text(f"{gres_conf({'n1': Offer(P5)})}{line}\n")
    assert run("check", "--root", str(tmp_path / "root"), "--gres-conf", str(conf), "--node", "n1")[0] == 2


def test_what_is_written_takes_nobodys_file_and_makes_no_half_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("node,instance_id,instance_type\nn1,i-1,p5.48xlarge\n")
    conf, lines = tmp_path / "gres.conf", tmp_path / "nodes.conf"
    generate = ("generate", "--nodes", str(nodes), "--output", str(conf))
    lines.write_text("by hand\n")
    assert run(*generate, "--nodes-output", str(lines))[0] == 2
    assert (lines.read_text(), conf.exists()) == ("by hand\n", False)
    assert run(*generate, "--nodes-output", str(tmp_path / "none" / "x"))[0] == 2
    assert run(*generate, "--nodes-output", str(conf))[0] == 2
    assert not conf.exists()
    assert run(*generate, "--nodes-output", str(lines), "--force")[0] == 0
    assert any(path.read_text() == "by hand\n" for path in tmp_path.glob("nodes.conf.before-fmslurm-*"))
    assert run(*generate, "--nodes-output", str(lines))[0] == 0
    for folder in ("a b", "relative", "/dev/[1-3]", "#x", "", "/dev\nNodeName=x"):
        assert run("generate", "--nodes", str(nodes), "--device-dir", folder)[0] == 2
    nodes.write_text("node,instance_id,instance_type\nn1,i-1,m5.large\n")
    before = conf.read_text()
    assert run(*generate)[0] in (2, 3)
    assert conf.read_text() == before
