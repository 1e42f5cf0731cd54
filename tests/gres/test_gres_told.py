"""What nodes tell of their own GPUs: written once a boot, read by all, and what `generate` makes of it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from gres_trees import tree
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.aws.catalogue import CATALOGUE
from slurm_ext.cli.gres import gres as command
from slurm_ext.config.model import Settings
from slurm_ext.gres import collect, places, read_conf, rules, told
from slurm_ext.gres.model import Gpu, NodeFacts
from slurm_ext.gres.render import Offer, gres_conf, node_lines
from slurm_ext.gres.told import Told
from slurm_ext.slurm import conf_file

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="device files need root")

P5E = CATALOGUE["p5e.48xlarge"]


def site(folder: Path) -> tuple[Settings, str]:
    share = folder / "share"
    (share / "ledger").mkdir(parents=True)
    (folder / "run").mkdir()
    (folder / "node/proc/sys/kernel/random").mkdir(parents=True, exist_ok=True)
    (folder / "node/proc/sys/kernel/random/boot_id").write_text("boot-1\n")
    settings = Settings()
    changed = settings.site._replace(share=str(share), root=str(folder / "node"), run_dir=str(folder / "run"))
    return settings._replace(site=changed), str(share)


def test_a_node_tells_once_a_boot(tmp_path: Path) -> None:
    settings, share = site(tmp_path)
    assert not told.note(settings, "n1", share, 1000.0)  # no driver yet
    tree(tmp_path / "node", kind="p5e.48xlarge", model="NVIDIA H200", numa_of=(1, 1, 1, 1, 0, 0, 0, 0))
    assert not told.note(settings, "n1", share, 1000.0 + told.AGAIN_S - 1)
    assert told.note(settings, "n1", share, 1000.0 + told.AGAIN_S)
    assert not told.note(settings, "n1", share, 9e9)
    (tmp_path / "node/proc/sys/kernel/random/boot_id").write_text("boot-2\n")
    assert told.note(settings, "n1", share, 9e9)
    found = told.read_all(share)
    assert found is not None
    assert found["n1"].facts == collect.facts(str(tmp_path / "node"))
    assert not told.note(settings, "../n1", share, 9e9)
    assert not told.note(settings, "n1", "", 9e9)


def test_cores_of_a_type_that_nobody_published_come_from_its_nodes(tmp_path: Path) -> None:
    facts = collect.facts(str(tree(tmp_path, kind="p5e.48xlarge", numa_of=(1, 1, 1, 1, 0, 0, 0, 0))))
    text = gres_conf({"n1": Offer(P5E, seen=facts)})
    assert text.splitlines()[1:] == [
        "NodeName=n1 Name=gpu Type=h200 File=/dev/nvidia[0-3] Cores=48-95",
        "NodeName=n1 Name=gpu Type=h200 File=/dev/nvidia[4-7] Cores=0-47",
    ]


def test_gpus_that_lie_crosswise_get_the_cores_of_their_own_socket(tmp_path: Path) -> None:
    facts = collect.facts(str(tree(tmp_path, numa_of=(0, 1, 0, 1, 0, 1, 0, 1))))
    text = gres_conf({"n1": Offer(CATALOGUE["p5.48xlarge"], seen=facts)})
    # In the order of the devices: Slurm counts lines, and jobs see that count.
    assert [line.partition(" File=")[2] for line in text.splitlines()[1:]] == [
        f"/dev/nvidia{number} Cores={'48-95' if number % 2 else '0-47'}" for number in range(8)
    ]
    assert rules.node(facts, CATALOGUE["p5.48xlarge"], read_conf.gres_lines("f", text), "n1") == []


def test_other_cpu_options_than_the_types(tmp_path: Path) -> None:
    facts = collect.facts(str(tree(tmp_path, threads=1)))
    offers = {"n1": Offer(CATALOGUE["p5.48xlarge"], seen=facts), "n2": Offer(CATALOGUE["p5.48xlarge"])}
    lines = node_lines(offers).splitlines()
    assert "CPUs=96 Sockets=2 CoresPerSocket=48 ThreadsPerCore=1" in lines[2]
    assert "CPUs=192 Sockets=2 CoresPerSocket=48 ThreadsPerCore=2" in lines[3]
    # The GPUs' places of another shape are not the catalogue's.
    lost = facts._replace(gpus=facts.gpus[:-1], cores_per_socket=24)
    assert " Cores=4" not in gres_conf({"n1": Offer(CATALOGUE["p5.48xlarge"], seen=lost)})


def test_a_socket_of_several_numa_nodes_is_covered_whole(tmp_path: Path) -> None:
    facts = collect.facts(str(tree(tmp_path, numa_of=(0, 1, 2, 3, 4, 5, 6, 7), numa_per_socket=4)))
    assert (facts.sockets, len(facts.numa_cores), facts.numa_cores[1]) == (2, 8, frozenset(range(12, 24)))
    assert [part.cores for part in places.seen_parts(facts)] == ["0-47", "48-95"]
    as_sockets = places.numa_as_sockets(facts)
    assert (as_sockets.sockets, as_sockets.cores_per_socket) == (8, 12)
    assert [part.cores for part in places.seen_parts(as_sockets)][:2] == ["0-11", "12-23"]


def test_sockets_are_counted_where_their_first_processor_stands(tmp_path: Path) -> None:
    """As on p6e-gb200, where the first socket's id is 60."""
    facts = collect.facts(
        str(tree(tmp_path, cores=72, threads=1, numa_of=(0, 0, 1, 1), packages=(60, 3), memory_nodes=8))
    )
    assert facts.numa_cores[0] == frozenset(range(72))
    assert [part.cores for part in places.seen_parts(facts)] == ["0-71", "72-143"]


def test_what_one_type_tells_counts_for_those_that_tell_nothing() -> None:
    def node(name: str, *numa: int, kind: str = "p5e.48xlarge") -> Told:
        gpus = tuple(Gpu(number, numa_node=where) for number, where in enumerate(numa))
        cores = {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
        return Told(name, NodeFacts(kind, gpus, 2, 4, 1, 8, cores))

    whole, less, other = node("a", 0, 0, 1, 1), node("b", 0, 0, 1), node("c", 1, 1, 0, 0)
    assert told.by_type([whole, less]) == {"p5e.48xlarge": whole.facts}
    assert told.by_type([whole, other]) == {}
    assert told.by_type([whole, node("d", 0, 0, kind="")]) == {"p5e.48xlarge": whole.facts}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "schema",
                        "node",
                        "instance_type",
                        "sockets",
                        "cores_per_socket",
                        "threads_per_core",
                        "cpus",
                        "gpus",
                        "numa_cores",
                        "unread",
                    ]
                )
                | st.text(max_size=4),
                inner,
                max_size=6,
            )
        ),
        max_leaves=20,
    )
)
def test_any_record_is_read_or_passed_over(data: object) -> None:
    for one in (
        data,
        {"schema": 1, "node": "n1", "gpus": [], "numa_cores": {}} | data if isinstance(data, dict) else None,
    ):
        found = told.from_data(one)
        assert found is None or told.from_data(json.loads(json.dumps(told.to_data(found)))) == found


def test_a_record_with_numbers_that_no_machine_has_is_passed_over(tmp_path: Path) -> None:
    good = told.to_data(Told("n1", collect.facts(str(tree(tmp_path)))))
    assert told.from_data(good) is not None
    for change in (
        {"schema": 2},
        {"node": "../x"},
        {"sockets": True},
        {"sockets": -1},
        {"cpus": 1 << 40},
        {"gpus": [{"number": 0}] * 2},
        {"gpus": [{"number": 0, "model": "\x1b[2J"}]},
        {"gpus": "8"},
        {"numa_cores": {"0": "0-99999999"}},
        {"numa_cores": {"x": "0"}},
        {"numa_cores": {"0": 7}},
    ):
        assert told.from_data(good | change) is None, change


def test_facts_in_a_file_reach_what_is_generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    root = tree(tmp_path / "node", kind="p5e.48xlarge", model="NVIDIA H200")
    runner = CliRunner()
    said = runner.invoke(command, ["show", "--here", "--root", str(root), "--node", "n1", "--json"])
    assert said.exit_code == 0
    facts = tmp_path / "facts.jsonl"
    facts.write_text(said.stdout)
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("node,instance_id,instance_type\nn1,i-1,\nn2,i-2,p5e.48xlarge\nc1,i-3,c6i.32xlarge\n")
    arguments = ["--nodes", str(nodes), "--facts", str(facts)]
    said = runner.invoke(command, ["generate", *arguments])
    assert said.exit_code == 0, said.output
    # n1's type is what it told, n2's GPUs lie as those of the node of its type, and c1 has none.
    assert "NodeName=n[1-2] Name=gpu Type=h200 File=/dev/nvidia[4-7] Cores=48-95\n" in said.stdout
    assert "c1" not in said.stdout
    assert "c1: types without GPUs are left out" in said.stderr
    shown = json.loads(runner.invoke(command, ["show", *arguments, "--json"]).stdout)["types"][0]
    assert (shown["by"], shown["parts"][1]) == ("the nodes", {"files": "/dev/nvidia[4-7]", "cores": "48-95"})
    table = runner.invoke(command, ["show", "--here", "--root", str(root), "--node", "n1"]).stdout
    assert table.splitlines()[0] == "n1: p5e.48xlarge, Sockets=2 CoresPerSocket=48 ThreadsPerCore=2"
    assert table.splitlines()[-1].split() == ["nvidia7", "NVIDIA", "H200", "0000:ca:00.0", "1", "48-95"]
    for bad in ("{}\n", "no json\n", "[" * 100_000):
        facts.write_text(bad)
        assert getattr(runner.invoke(command, ["generate", *arguments]).exception, "exit_code", 0) == 2


def test_a_driver_that_hangs_costs_seconds(tmp_path: Path) -> None:
    """A FIFO stands for a file that never answers: nothing waits for it."""
    root = tree(tmp_path)
    path = root / "proc/driver/nvidia/gpus/0000:53:00.0/information"
    path.unlink()
    subprocess.run(["mkfifo", str(path)], check=True)
    facts = told.here(str(root))
    assert facts is not None
    assert facts.unread == ("proc/driver/nvidia/gpus/0000:53:00.0/information",)


def test_a_file_that_generate_wrote_is_known_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    (tmp_path / "nodes.csv").write_text("node,instance_id,instance_type\nn1,i-1,p5.48xlarge\n")
    out = tmp_path / "gres.conf"
    arguments = ["generate", "--nodes", str(tmp_path / "nodes.csv"), "--nodes-output", str(tmp_path / "nodes.conf")]
    assert CliRunner().invoke(command, [*arguments, "--output", str(out)]).exit_code == 0
    assert conf_file.look(str(out)).state == conf_file.OURS


def test_numa_nodes_that_are_sockets_get_cores_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    facts = collect.facts(str(tree(tmp_path / "node", numa_of=(0, 1, 2, 3, 4, 5, 6, 7), numa_per_socket=4)))
    (tmp_path / "facts").write_text(json.dumps(told.to_data(Told("n1", facts))))
    (tmp_path / "nodes.csv").write_text("node,instance_id,instance_type\nn1,i-1,p5.48xlarge\n")
    arguments = ["generate", "--nodes", str(tmp_path / "nodes.csv"), "--facts", str(tmp_path / "facts")]
    for parameters, cores, shape in (
        ("config_overrides,numa_node_as_socket", "Cores=12-23", "Sockets=8 CoresPerSocket=12"),
        ("config_overrides", "Cores=0-47", "Sockets=2 CoresPerSocket=48"),
    ):
        (tmp_path / "slurm.conf").write_text(f"ClusterName=x\n  slurmdParameters = {parameters}\n")
        said = CliRunner().invoke(command, arguments).stdout
        assert cores in said
        assert f"CPUs=192 {shape}" in said
