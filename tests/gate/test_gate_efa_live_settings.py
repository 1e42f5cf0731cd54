"""Settings that NCCL over EFA needs, how many devices were attached, and what a node's files say of both: tables and noise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from efa_live_tree import Node, said, write
from hypothesis import given
from hypothesis import strategies as st
from test_gate_efa_live import BAD, GROWN

from slurm_ext.gate import (
    checks,
    efa_live_attached,
    efa_live_node,
    efa_live_settings,
    efa_live_window,
    probe_efa,
    probes,
)
from slurm_ext.gate.efa_live_attached import Seen
from slurm_ext.gate.efa_live_settings import Limit, Netdev
from slurm_ext.verdict import FAIL, UNKNOWN, WARN


@pytest.mark.parametrize(
    ("seen", "number", "attached", "said_"),
    [
        (Seen(32, 32, None, 32, True), 32, True, ""),
        (Seen(31, 32, None, 32, True), 32, True, ""),
        (Seen(31, 31, None, 32, True), 32, False, ""),
        (Seen(31, None, None, 32, True), 32, False, ""),
        (Seen(31, 31, 32, 32, True), 32, True, ""),
        (Seen(16, 16, None, 32, True), 16, True, "efa.fewer-than-possible"),
        (Seen(15, 15, 16, 32, True), 16, True, "efa.fewer-than-possible"),
        (Seen(1, 1, None, 4, True), 1, True, "efa.fewer-than-possible"),
        (Seen(28, 28, None, 32, True), 32, False, ""),
        (Seen(0, 0, None, 32, True), 32, False, ""),
        (Seen(0, 0, None, 1, True), None, True, "efa.none-attached"),
        (Seen(0, None, None, 1, True), 1, False, ""),
        (Seen(0, 0, None, 32, False), None, True, ""),
        (Seen(2, 2, None, 4, False), 2, True, ""),
        (Seen(1, 1, 2, None, False), 2, True, ""),
        (Seen(0, None, None, None, False), None, True, ""),
    ],
)
def test_how_many_there_should_be(seen, number, attached, said_):
    found = efa_live_attached.judge(seen)
    assert (found.number, found.attached) == (number, attached)
    assert "".join(item.finding.id for item in found.items) == said_


GIB = 1 << 30


@pytest.mark.parametrize(
    ("limit", "propagated", "low"),
    [
        (Limit(None, None), None, False),
        (Limit(65536, 65536), None, True),
        (Limit(8 << 20, 8 << 20), True, True),
        (Limit(64 * GIB, 64 * GIB), True, False),
        (Limit(65536, None), True, False),
        (Limit(65536, None), None, False),
        (Limit(65536, None), False, True),
        (Limit(None, None), False, False),
    ],
)
def test_locked_memory_as_the_job_gets_it(limit, propagated, low):
    items = efa_live_settings.judge_memlock(limit, propagated)
    assert [item.finding.id for item in items] == (["efa.memlock-low"] if low else [])
    assert all(item.verdict == WARN for item in items)


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ("", True),
        ("PropagateResourceLimits=ALL", True),
        ("PropagateResourceLimits=NONE", False),
        ("propagateresourcelimits=CPU, MEMLOCK", True),
        ("PropagateResourceLimits=CPU", False),
        ("PropagateResourceLimitsExcept=MEMLOCK", False),
        ("PropagateResourceLimitsExcept=NOFILE,MEMLOCK # both", False),
        ("PropagateResourceLimitsExcept=CORE", True),
        ("include /etc/slurm/more.conf\nPropagateResourceLimits=NONE", None),
        ("#PropagateResourceLimits=NONE", True),
    ],
)
def test_what_slurm_conf_says_of_limits(conf, expected):
    assert efa_live_settings.propagated(conf) is expected


def test_limits_of_proc():
    text = "Max open files   1 2 files\nMax locked memory         8388608              unlimited            bytes\n"
    assert efa_live_settings.parse_limits(text) == Limit(8388608, None)
    long = "9" * 5000
    for other in (
        "",
        "Max locked memory",
        "Max locked memory x y bytes",
        "Max locked memory 5",
        f"Max locked memory {long} 5",
    ):
        assert efa_live_settings.parse_limits(other) is None


def test_slurmds_limit_is_read_and_nobody_elses(tmp_path):
    node = Node(tmp_path, "p5.48xlarge")
    node.limit(65536, "unlimited")
    assert efa_live_node.slurmd_limit(str(tmp_path)) == Limit(65536, None)
    write(tmp_path / "etc/slurm/slurm.conf", "PropagateResourceLimitsExcept=MEMLOCK\n")
    assert ("efa.memlock-low", "node", WARN, "warn") in said(node.look("health"))
    write(tmp_path / "proc/812/comm", "bash\n")
    assert efa_live_node.slurmd_limit(str(tmp_path)) is None
    assert efa_live_node.slurmd_limit("/") in (None, efa_live_node.slurmd_limit("/"))


@pytest.mark.parametrize(
    ("meminfo", "taken"),
    [
        ("", False),
        ("HugePages_Total: 0\nHugePages_Free: 0\n", False),
        ("HugePages_Total: 10\n", False),
        ("HugePages_Total: 10\nHugePages_Free: x\n", False),
        ("HugePages_Total: " + "9" * 5000 + "\nHugePages_Free: 0\n", False),
        ("HugePages_Total: 10\nHugePages_Free: 1\n", False),
        ("HugePages_Total:   10\nHugePages_Free:    0\n", True),
    ],
)
def test_huge_pages(meminfo, taken):
    assert bool(efa_live_settings.judge_huge_pages(meminfo)) is taken


@pytest.mark.parametrize(
    ("netdevs", "targets"),
    [
        ([], []),
        ([Netdev("ens5", 9001)], []),
        ([Netdev("ens5", 1500)], ["nic:ens5"]),
        ([Netdev("ens5", 9001), Netdev("ens6", 1500)], ["nic:ens6"]),
        ([Netdev("ens5", 1500), Netdev("ens6", 1500)], ["node"]),
        ([Netdev("ens5", 0)], []),
    ],
)
def test_mtu(netdevs, targets):
    assert [item.finding.target for item in efa_live_settings.judge_mtu(netdevs)] == targets


@pytest.mark.parametrize(
    ("nics", "gpus", "id_"),
    [
        ([0, 0, 1, 1], [0, 0, 1, 1], ""),
        ([0, 0, 0, 0], [0, 0, 1, 1], "efa.numa-apart"),
        ([-1, -1], [0, 1], "efa.numa-unknown"),
        ([0, -1], [0, 1], "efa.numa-unknown"),
        ([-1, -1], [-1, -1], ""),
        ([0], [0, 1], ""),
        ([0, 0], [0, 0], ""),
        ([None, 0], [0, 1], ""),
        ([], [], ""),
    ],
)
def test_numa(nics, gpus, id_):
    assert "".join(item.finding.id for item in efa_live_settings.judge_numa(nics, gpus)) == id_


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ({}, []),
        ({"uverbs0": 0o666, "uverbs1": 0o666}, []),
        ({"uverbs0": 0o600}, [("efa.device-file-shut", FAIL)]),
        ({"uverbs0": 0o660}, [("efa.device-file-group", WARN)]),
        ({"uverbs0": None}, [("efa.no-device-file", FAIL)]),
    ],
)
def test_who_may_open_the_nodes(modes, expected):
    assert [(i.finding.id, i.verdict) for i in efa_live_settings.judge_nodes(modes)] == expected


@pytest.mark.parametrize(
    ("text", "kernel", "expected"),
    [
        ("", (6, 8), ""),
        ("RDMAV_FORK_SAFE=1", (6, 8), "efa.fork-setting"),
        ("export IBV_FORK_SAFE='1'", (5, 13), "efa.fork-setting"),
        ("RDMAV_FORK_SAFE=1", (5, 4), ""),
        ("RDMAV_FORK_SAFE=0", (6, 8), ""),
        ("# RDMAV_FORK_SAFE=1", (6, 8), ""),
        ("RDMAV_FORK_SAFE=1", None, ""),
        ("FI_EFA_FORK_SAFE=1", (6, 8), ""),
        ("FI_EFA_FORK_SAFE=1\nFI_EFA_USE_HUGE_PAGE=1", (5, 4), "efa.fork-setting"),
        ("FI_EFA_USE_HUGE_PAGE=0", (5, 4), ""),
        ('export FI_PROVIDER="efa"', (6, 8), ""),
        ("FI_PROVIDER=efa,tcp", (6, 8), ""),
        ("FI_PROVIDER=^tcp", (6, 8), ""),
        ("FI_PROVIDER=^efa", (6, 8), "efa.environment"),
        ("FI_PROVIDER=tcp;", (6, 8), "efa.environment"),
        ("NCCL_NET=Socket", (6, 8), "efa.environment"),
        ("NCCL_NET=ofi", (6, 8), ""),
    ],
)
def test_variables_for_all_users(text, kernel, expected):
    found = efa_live_settings.judge_environment(efa_live_settings.parse_environment(text), kernel)
    assert "".join(item.finding.id for item in found) == expected


def test_kernel_releases():
    told = [efa_live_settings.kernel_version(text) for text in ("5.15.0-1051-aws", "6.8", "6", "", "a.b.c", "6.8rc1")]
    assert told == [(5, 15), (6, 8), None, None, None, None]


@given(st.text(max_size=300))
def test_no_text_makes_a_reader_raise_or_fail_a_node(text):
    limit = efa_live_settings.parse_limits(text)
    items = efa_live_settings.judge_memlock(limit, None) if limit else []
    items += efa_live_settings.judge_huge_pages(text)
    items += efa_live_settings.judge_environment(efa_live_settings.parse_environment(text), (6, 8))
    efa_live_settings.propagated(text)
    efa_live_settings.kernel_version(text)
    assert all(item.verdict != FAIL for item in items)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["counters", "devices", "at_s", "x"]), inner)
        ),
        max_leaves=12,
    )
)
def test_whatever_was_kept_is_read_or_left(kept):
    if isinstance(kept, dict):
        devices, at_s = efa_live_window.kept_devices(kept)
        assert all(value >= 0 for device in devices for value in device.counters.values())
        assert at_s is None or isinstance(at_s, float)


def test_refused_commands_on_every_device_are_one_finding_of_the_node(tmp_path):
    node = Node(tmp_path, "p4d.24xlarge")
    kept = node.look().kept
    for name in node.names:
        node.count(name, cmds_err=3)
    assert said(node.look("epilog", baseline=kept)) == {("efa.command-error", "node", WARN, "warn")}


def test_nothing_on_the_bus_is_for_a_person_and_not_for_another_instance(tmp_path):
    node = Node(tmp_path, "p5.48xlarge", count=0)
    (tmp_path / "sys/module/efa").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    assert said(node.look()) == {("efa.none-there", "node", FAIL, "drain")}


def test_every_row_of_the_probe_is_found_by_some_test():
    elsewhere = (
        *("efa.none-there", "efa.late", "efa.fewer-than-possible", "efa.none-attached", "efa.unreadable"),
        *(
            "efa.device-file-shut",
            "efa.counters-restarted",
            "efa.tool-missing",
            "efa.output-cut",
            "efa.loopback-failed",
        ),
    )
    found = {what[0] for _, _, what in BAD} | {id_ for _, id_ in GROWN} | set(elsewhere)
    assert [row.id for row in probe_efa.CHECKS if not any(id_.startswith(row.id) for id_ in found)] == []
    assert set(probes.PROBES["efa"]) == {phase for row in probe_efa.CHECKS for phase in row.phases}
    assert UNKNOWN not in {row.means for row in checks.OWN if row.id == "efa.missing"}


def test_the_guide_names_what_the_probe_finds():
    guide = (Path(__file__).parents[2] / "docs/guide/gate-efa.md").read_text()
    unsaid = (
        "efa.unreadable",
        "efa.port-down",
        "efa.port-state",
        "efa.counters-",
        "efa.libfabric-error",
        "efa.tool-",
        "efa.output-",
    )
    assert [row.id for row in probe_efa.CHECKS if f"`{row.id}" not in guide and row.id not in unsaid] == []


def test_a_note_that_cannot_be_written_is_made_again(tmp_path):
    missing = str(tmp_path / "none")
    assert [efa_live_node.first_time(missing, "x", "b") for _ in range(2)] == [True, True]
    run = tmp_path / "run"
    run.mkdir()
    assert [efa_live_node.first_time(str(run), "x", "b") for _ in range(2)] == [True, False]
    os.unlink(run / "noted-x")
    (run / "noted-x").symlink_to(tmp_path / "elsewhere")
    assert efa_live_node.first_time(str(run), "x", "b") is True
    assert not (tmp_path / "elsewhere").exists()
