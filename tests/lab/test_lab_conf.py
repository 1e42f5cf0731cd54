"""The configuration texts of a lab, and lab.json."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from slurm_ext.aws import catalogue
from slurm_ext.config import model as settings_model
from slurm_ext.errors import UsageError
from slurm_ext.lab import build, conf, model, plan
from slurm_ext.lab.model import LabNode, Pid, State

P5 = catalogue.CATALOGUE["p5.48xlarge"]
SUBNET = ipaddress.IPv4Network("198.18.4.0/22")


def a_state(count: int = 8, mode: str = "netns") -> State:
    if mode == "netns":
        nodes = plan.nodes_in_subnet("abcdef", "", count, SUBNET)
    else:
        nodes = plan.nodes_on_loopback("abcdef", "", tuple(range(20001, 20001 + count)))
    return State(
        dir="/var/tmp/lab",
        id="abcdef",
        mode=mode,
        why_mode="asked for",
        prefix="",
        cluster="lababcdef",
        slurm_version="22.05.8",
        instance_type="p5.48xlarge",
        cgroup=False,
        subnet=str(SUBNET),
        head=LabNode("head", -1, "198.18.4.1" if mode == "netns" else "127.0.0.1", 0, "i-0"),
        nodes=nodes,
        controller_port=6817,
        s3_port=8333,
        s3_ports=plan.S3_PORTS,
    )


def values(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def test_a_key_is_written_only_for_a_version_that_knows_it() -> None:
    old, new = (conf.slurm_conf(a_state(), version, "host") for version in ((22, 5), (26, 5)))
    assert "MaxBatchRequeue" not in old
    assert values(new)["MaxBatchRequeue"] == "20"
    assert "requeue_delay" not in old
    assert "requeue_delay=30" in new
    assert values(old)["PrologFlags"] == "Alloc,DeferBatch"
    assert "nohold_on_prolog_fail" in values(old)["SchedulerParameters"]


def test_slurm_conf_reads_the_node_lines_before_the_partition_and_ends_with_ours() -> None:
    lines = conf.slurm_conf(a_state(), (22, 5), "host").splitlines()
    partition = next(i for i, line in enumerate(lines) if line.startswith("PartitionName"))
    assert lines.index("Include /var/tmp/lab/etc/slurm/nodes.conf") < partition
    assert lines[-1] == "Include /var/tmp/lab/etc/slurm/fmslurm.conf"


def test_the_controller_is_known_by_its_own_name_or_by_the_machines() -> None:
    assert values(conf.slurm_conf(a_state(), (22, 5), "host"))["SlurmctldHost"] == "head(198.18.4.1)"
    assert values(conf.slurm_conf(a_state(mode="loopback"), (22, 5), "host"))["SlurmctldHost"] == "host(127.0.0.1)"


def test_a_plain_lab_has_neither_gpus_nor_switches_yet() -> None:
    state = a_state()
    assert "Gres" not in conf.nodes_conf(state, P5, "host", gres=False)
    assert "Name=gpu" not in conf.gres_conf(state, P5, gres=False)
    assert conf.topology_conf(state, ready=False) == "SwitchName=flat Nodes=n0,n1,n2,n3,n4,n5,n6,n7\n"


def test_a_ready_lab_has_gpus_and_two_leaves_under_a_spine() -> None:
    state = a_state()
    assert "Gres=gpu:h100:8" in conf.nodes_conf(state, P5, "host", gres=True)
    assert conf.gres_conf(state, P5, gres=True).endswith("Name=gpu Type=h100 File=/var/tmp/lab/dev/nvidia[0-7]\n")
    assert conf.topology_conf(state, ready=True).splitlines() == [
        "SwitchName=leaf0 Nodes=n0,n1,n2,n3",
        "SwitchName=leaf1 Nodes=n4,n5,n6,n7",
        "SwitchName=spine Switches=leaf0,leaf1",
    ]


def test_loopback_nodes_have_a_port_each_and_the_machines_name() -> None:
    lines = conf.nodes_conf(a_state(2, "loopback"), P5, "host", gres=False).splitlines()
    assert lines[1].startswith("NodeName=n0 NodeAddr=127.0.0.1 Port=20001 NodeHostname=host ")
    assert lines[2].startswith("NodeName=n1 NodeAddr=127.0.0.1 Port=20002 NodeHostname=host ")


@pytest.mark.parametrize("layers", [3, 4])
def test_the_ec2_answer_has_four_nodes_for_each_lowest_network_node(layers: int) -> None:
    instances = json.loads(conf.ec2_answer(a_state(), layers))["Instances"]
    paths = [instance["NetworkNodes"] for instance in instances]
    assert [len(path) for path in paths] == [layers] * 8
    assert len({path[0] for path in paths}) == 1
    assert [[path[-1] for path in paths].index(path[-1]) for path in paths] == [0, 0, 0, 0, 4, 4, 4, 4]
    assert [instance["InstanceId"] for instance in instances] == [node.instance_id for node in a_state().nodes]


def test_the_lab_s_settings_have_only_keys_that_the_model_knows() -> None:
    data = yaml.safe_load(yaml.safe_dump(conf.site_settings(a_state(), python="/p", slurm_bin="/usr/bin")))
    sections = settings_model.Settings()._asdict()
    for section, keys in data.items():
        assert set(keys) <= set(sections[section]._fields), section
    assert {tier["kind"] for tier in data["staging"]["tiers"]} == {"nvme", "lustre", "s3"}
    assert set(data["mode"].values()) == {"enforce"}


def test_without_an_s3_server_there_is_no_s3_tier() -> None:
    data = conf.site_settings(replace(a_state(), s3_port=0), python="/p", slurm_bin="/usr/bin")
    assert [tier["kind"] for tier in data["staging"]["tiers"]] == ["nvme", "lustre"]


def test_lab_json_says_again_what_was_written() -> None:
    state = a_state()
    state = state.with_node(replace(state.nodes[3], holder=Pid(12, 345), down=True))
    state = replace(state, faults=({"node": "n3", "kind": "node-death", "since": 1.5},), floors={"busbw_gbs": 0.25})
    assert model.parse(model.dump(state)) == state


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1, "nodes": []}'])
def test_another_lab_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        model.parse(text)


def test_an_unknown_node_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no node 'n9'.*n0, n1"):
        a_state(2).node("n9")


@pytest.mark.parametrize(
    ("machine", "line"),
    [
        ("workbench", "198.18.4.2 workbench"),
        ("workbench.example.org", "198.18.4.2 workbench.example.org workbench"),
        ("n3.example.org", "198.18.4.2 n3.example.org"),  # the short name is a node's
        ("n3", ""),
        ("localhost", ""),
    ],
)
def test_nodes_know_the_machine_that_their_lab_runs_on(machine: str, line: str) -> None:
    state = replace(a_state(), host_address="198.18.4.2")
    lines = conf.hosts_file(state, machine).splitlines()
    assert [each for each in lines if each.startswith("198.18.4.2 ")] == ([line] if line else [])
    names = [name for each in lines for name in each.split()[1:]]
    assert len(names) == len(set(names)), "a name with two addresses is reached at either"


def test_hooks_run_a_python_that_every_user_may_start(tmp_path: Path) -> None:
    ours = tmp_path / "private" / "python"
    ours.parent.mkdir()
    ours.write_text("")
    ours.chmod(0o755)
    ours.parent.chmod(0o700)
    assert build.interpreter(str(ours), "/bin/sh") == "/bin/sh"
    assert build.interpreter(str(ours), "/nonexistent") == str(ours)
    assert build.interpreter("/bin/sh", "/bin/true") == "/bin/sh"
