"""The live gate's probe of EFA, on trees with links as in a real kernel: healthy nodes of every type, and each thing it can find."""

from __future__ import annotations

import os
import shutil
import signal
import time

import pytest
from efa_live_tree import Node, said, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_ext.aws import catalogue
from slurm_ext.gate import (
    efa_live_attached,
    efa_live_node,
    efa_live_quick,
    efa_live_read,
    efa_live_whole,
    local,
    probe_efa,
    probes,
)
from slurm_ext.gate.file_tree import Unread
from slurm_ext.lab import faults_efa, hardware_efa
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

PHASES = probes.PHASES
OTHERS = ("g6e.48xlarge", "c5n.18xlarge", "c5.large", "p9.48xlarge", "")


@pytest.fixture
def p5(tmp_path):
    return Node(tmp_path, "p5.48xlarge")


@pytest.mark.parametrize("kind", [*catalogue.CATALOGUE, *OTHERS])
def test_a_healthy_node_of_any_type_says_nothing(tmp_path, kind):
    node = Node(tmp_path, kind)
    kept = {}
    for phase in PHASES:
        seen = node.look(phase, baseline=kept if phase == "epilog" else {})
        assert said(seen) == set(), phase
        kept = seen.kept if phase == "prolog" else kept
    assert len(kept.get("devices", ())) == len(node.names)


@pytest.mark.parametrize("kind", [*catalogue.CATALOGUE])
def test_the_labs_simulated_node_is_healthy(tmp_path, kind):
    hardware_efa.build(tmp_path, catalogue.find(kind))
    write(tmp_path / "sys/class/dmi/id/product_name", kind + "\n")
    node = Node.__new__(Node)
    node.root = tmp_path
    for phase in PHASES:
        assert said(node.look(phase)) == set()


def test_a_healthy_prolog_reads_no_more_than_counters(p5, monkeypatch):
    monkeypatch.setattr(efa_live_read, "read", lambda root: pytest.fail("the whole tree was read"))
    seen = p5.look()
    assert seen.items == ()
    assert len(seen.kept["devices"]) == 32
    assert len(seen.kept["devices"]["rdmap79s0"]) == len(efa_live_quick.COUNTERS)


@pytest.mark.parametrize(
    "names", [("efa_0", "efa_1", "efa_2", "efa_3"), ("rdmap0s6", "rdmap0s7", "rdmap0s8", "rdmap0s9")]
)
def test_devices_under_other_names_than_their_addresses_are_well(tmp_path, names):
    node = Node(tmp_path, "p4d.24xlarge", count=0)
    node.names = names
    write(tmp_path / "sys/module/efa/version", "1.16.0g\n")
    for at, name in enumerate(names):
        node.device(name, at, f"0000:{0x10 + 16 * at:02x}:1b.0")
    tool("; ".join(f"printf 'provider: efa\\n    domain: {n}-rdm\\n    protocol: FI_PROTO_EFA\\n'" for n in names))(
        node
    )
    (tmp_path / "opt/amazon/efa/bin/fi_info").chmod(0o755)
    kept = node.look().kept
    assert set(kept["devices"]) == set(names)
    for phase in PHASES:
        assert {item for item in said(node.look(phase, baseline=kept)) if not item[0].startswith("compat.")} == set()
    node.function("0000:70:1b.0", "0x1d0f", "0xefa1", 0)
    assert ("efa.driver-not-bound", "efa:rdmap112s27", FAIL, "drain") in said(node.look("epilog"))


def test_gpu_memory_by_dma_buf_needs_no_provider(p5, monkeypatch):
    no_peer(p5)
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    write(p5.root / "proc/driver/nvidia/version", text)
    assert all(said(p5.look(phase)) == set() for phase in PHASES)
    write(p5.root / "proc/sys/kernel/osrelease", "5.10.0-1\n")
    assert said(p5.look()) == {("efa.no-peer-memory", "node", WARN, "warn")}
    write(p5.root / "proc/sys/kernel/osrelease", "6.8.0-1\n")
    write(p5.root / "proc/driver/nvidia/version", text.replace("Open Kernel Module for x86_64", "x86_64 Kernel Module"))
    assert ("compat.nvidia-proprietary", "node", WARN, "warn") in said(p5.look("epilog"))
    write(p5.root / "proc/driver/nvidia/version", text)
    monkeypatch.setattr(efa_live_read, "read", lambda root: pytest.fail("the whole tree was read"))
    assert said(p5.look()) == set()


def remove_numa(node):
    for name in node.names:
        write((node.of(name) / "device").resolve() / "numa_node", "-1\n")


def one_side(node):
    for name in node.names:
        write((node.of(name) / "device").resolve() / "numa_node", "0\n")


def no_driver(node):
    for name in node.names:
        node.drop(name, bus=False)
    shutil.rmtree(node.root / "sys/class/infiniband")
    shutil.rmtree(node.root / "sys/bus/pci/drivers/efa")
    shutil.rmtree(node.root / "sys/module/efa")


def no_nodes(node):
    shutil.rmtree(node.root / "dev/infiniband")


def no_peer(node):
    for name in node.names:
        write((node.of(name) / "device").resolve() / "p2p", "\n")


def no_huge_pages(node):
    write(node.root / "proc/meminfo", "HugePages_Total: 512\nHugePages_Free: 0\n")


def old_driver(node):
    write(node.root / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  520.61.05  x\n")
    write(node.root / "usr/local/cuda/version.json", '{"cuda" : {"name" : "CUDA SDK", "version" : "13.0.1"}}')


def tool(text):
    def change(node):
        write(node.root / "opt/amazon/efa/bin/fi_info", f"#!/bin/sh\n{text}\n")

    return change


BAD = [
    ("prolog", lambda n: n.drop("rdmap79s0"), ("efa.missing", "efa:rdmap79s0", FAIL, "replace")),
    ("prolog", lambda n: n.drop("rdmap79s0", bus=False), ("efa.driver-not-bound", "efa:rdmap79s0", FAIL, "drain")),
    ("prolog", no_driver, ("efa.driver-not-loaded", "node", FAIL, "drain")),
    ("prolog", no_nodes, ("efa.no-device-file", "node", FAIL, "drain")),
    ("prolog", lambda n: os.unlink(n.root / "dev/infiniband/uverbs3"), ("efa.no-device-file", "efa:rdmap82s0", FAIL, "drain")),
    ("prolog", no_peer, ("efa.no-peer-memory", "node", WARN, "warn")),
    ("prolog", lambda n: n.count("rdmap80s0", no_completion_cmds=1), ("efa.no-completion", "efa:rdmap80s0", FAIL, "replace")),
    ("prolog", lambda n: n.limit(8388608, 8388608), ("efa.memlock-low", "node", WARN, "warn")),
    ("prolog", no_huge_pages, ("efa.huge-pages-taken", "node", WARN, "warn")),
    ("epilog", lambda n: write(n.of("rdmap79s0") / "ports/1/state", "1: DOWN\n"), ("efa.port-down", "efa:rdmap79s0", FAIL, "replace")),
    ("epilog", lambda n: write(n.of("rdmap79s0") / "ports/1/state", "DOWN\n"), ("efa.port-down", "efa:rdmap79s0", FAIL, "replace")),
    ("epilog", lambda n: write(n.of("rdmap79s0") / "ports/1/state", "\n"), ("efa.port-state", "efa:rdmap79s0", UNKNOWN, "warn")),
    ("health", lambda n: write(n.of("rdmap79s0") / "ports/1/state", "7: DREAMING\n"), ("efa.port-state", "efa:rdmap79s0", UNKNOWN, "warn")),
    ("health", lambda n: shutil.rmtree(n.of("rdmap79s0") / "ports"), ("efa.port-state", "efa:rdmap79s0", UNKNOWN, "warn")),
    ("health", lambda n: n.netdev("ens5", 1500), ("efa.mtu-low", "nic:ens5", WARN, "warn")),
    ("health", one_side, ("efa.numa-apart", "node", WARN, "warn")),
    ("health", remove_numa, ("efa.numa-unknown", "node", WARN, "warn")),
    ("health", lambda n: write(n.root / "etc/profile.d/a.sh", "export RDMAV_FORK_SAFE=1\n"), ("efa.fork-setting", "node", WARN, "warn")),
    ("health", lambda n: write(n.root / "etc/environment", "FI_PROVIDER=tcp\n"), ("efa.environment", "node", WARN, "warn")),
    ("health", tool("exec echo 'fi_getinfo: -61'"), ("efa.not-in-libfabric", "node", UNKNOWN, "warn")),
    ("health", tool("echo 'fi_getinfo: -12 (Cannot allocate memory)' >&2; exit 12"), ("efa.libfabric-error", "node", UNKNOWN, "warn")),
    ("health", tool("echo 'libfabric: warning' >&2; exit 0"), ("efa.output-unknown", "node", UNKNOWN, "none")),
    ("health", tool("printf 'provider: efa\\n    fabric: efa\\n    dom'"), ("efa.output-cut", "node", UNKNOWN, "none")),
    ("health", lambda n: os.unlink(n.root / "opt/amazon/efa/bin/fi_info"), ("efa.tool-missing", "node", UNKNOWN, "none")),
    ("health", old_driver, ("compat.cuda-13-nvidia", "node", WARN, "warn")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("phase", "change", "expected"), BAD, ids=[f"{phase}-{what[0]}-{what[1]}" for phase, _, what in BAD]
)
def test_each_thing_is_found(p5, phase, change, expected):
    change(p5)
    found = said(p5.look(phase))
    assert expected in found
    assert {item for item in found if item[2] == FAIL} <= {expected}, found  # one event is one failure
    ids = [row.id for row in probe_efa.CHECKS]
    assert all(any(item[0].startswith(id_) for id_ in ids) for item in found)


GROWN = [
    ({"rx_drops": 10**8}, "efa.drops"),
    ({"retrans_pkts": 10**9}, "efa.retransmissions"),
    ({"retrans_bytes": 10**12}, "efa.retransmissions"),
    ({"retrans_timeout_events": 10**6}, "efa.retransmission-timeouts"),
    ({"rdma_read_wr_err": 10**6}, "efa.work-request-errors"),
    ({"rdma_write_wr_err": 10**6}, "efa.work-request-errors"),
    ({"unresponsive_remote_events": 10**6}, "efa.unresponsive-remote"),
    ({"impaired_remote_conn_events": 10**6}, "efa.impaired-connections"),
    ({"cmds_err": 2}, "efa.command-error"),
]


@pytest.mark.parametrize(("counters", "id_"), GROWN, ids=[str(c) for c, _ in GROWN])
def test_growth_in_a_jobs_time_is_attributed_to_the_job(p5, counters, id_):
    kept = p5.look("prolog").kept
    p5.count("rdmap81s0", **counters)
    seen = p5.look("epilog", baseline={**kept, "at_s": time.time() - 60}, job_id="77")
    assert said(seen) == {(id_, "efa:rdmap81s0", WARN, "warn")}
    assert seen.items[0].finding.evidence[-1] == "in the time of job 77"
    assert said(p5.look("epilog")) == set(), "what stands there without a job's beginning is history"
    assert said(p5.look("prolog")) == set()


def test_small_growth_and_counters_that_a_driver_does_not_have_say_nothing(p5):
    kept = p5.look("prolog").kept
    for name in p5.names:
        os.unlink(p5.of(name) / "ports/1/hw_counters/retrans_pkts")
    p5.count("rdmap81s0", rx_drops=10, tx_bytes=10**15)
    assert said(p5.look("epilog", baseline={**kept, "at_s": time.time() - 60})) == set()
    assert p5.look("prolog").items == ()


def test_counters_that_went_back_are_no_growth(p5):
    p5.count("rdmap81s0", rx_drops=10**9)
    kept = p5.look("prolog").kept
    p5.count("rdmap81s0", rx_drops=10**8)
    found = said(p5.look("epilog", baseline={**kept, "at_s": time.time() - 1}))
    assert found == {("efa.counters-restarted", "efa:rdmap81s0", UNKNOWN, "none")}


def test_a_device_that_vanishes_while_a_job_runs_is_one_event(p5):
    kept = p5.look("prolog").kept
    p5.drop("rdmap81s0")
    found = said(p5.look("epilog", baseline=kept, job_id="7"))
    assert found == {("efa.missing", "efa:rdmap81s0", FAIL, "replace")}


@pytest.mark.parametrize(
    "baseline",
    [
        {"devices": 3},
        {"counters": ["x"], "devices": {"rdmap79s0": [1, 2]}},
        {"at_s": "x"},
        {"counters": [], "devices": {"a": None}},
    ],
)
def test_a_beginning_in_another_form_is_no_beginning(p5, baseline):
    assert said(p5.look("epilog", baseline=baseline)) == set()


# How many there should be.


def test_what_was_attached_counts_and_not_the_types_maximum(tmp_path):
    half = Node(tmp_path / "half", "p5.48xlarge", count=16)
    assert said(half.look()) == {("efa.fewer-than-possible", "node", WARN, "warn")}
    odd = Node(tmp_path / "odd", "p5.48xlarge", count=31)
    seen = odd.look()
    assert said(seen) == {("efa.missing", "node", FAIL, "replace")}
    assert "how many were attached is not known" in seen.items[0].finding.evidence[-1]
    few = Node(tmp_path / "few", "g6e.48xlarge", count=2)
    assert all(said(few.look(phase)) == set() for phase in PHASES)
    none = Node(tmp_path / "none", "p5.4xlarge", count=0)
    assert said(none.look()) == {("efa.none-attached", "node", WARN, "warn")}


def test_a_site_without_efa_is_told_nothing(tmp_path):
    node = Node(tmp_path, "p5.48xlarge", count=0)
    assert {item[2] for item in said(node.look())} == {FAIL}
    assert all(said(node.look(phase, transport="socket")) == set() for phase in PHASES)


def test_what_an_instance_once_had_is_what_it_should_have(tmp_path):
    node = Node(tmp_path, "g6e.48xlarge", count=4)
    node.look("epilog")
    node.drop(node.names[1])
    assert {(item[0], item[2]) for item in said(node.look())} == {("efa.missing", FAIL)}
    write(tmp_path / "sys/class/dmi/id/board_asset_tag", "i-0fedcba9876543210\n")
    assert said(node.look()) == set(), "another instance: nothing is recorded of it"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"instance": "i-0123456789abcdef0", "devices": "9"}',
        '{"instance": "i-0123456789abcdef0", "devices": -1}',
    ],
)
def test_a_record_that_cannot_be_read_is_none(p5, text):
    p5.look("epilog")
    write(p5.root / "state/efa-attached.json", text)
    assert said(p5.look()) == set()


def test_devices_may_come_late_after_boot(p5, monkeypatch):
    p5.drop("rdmap79s0")
    monkeypatch.setattr(efa_live_node, "boot_age_s", lambda: 20.0)
    assert said(p5.look()) == {("efa.late", "node", UNKNOWN, "warn")}
    monkeypatch.setattr(efa_live_node, "boot_age_s", lambda: 61.0)
    assert {item[2] for item in said(p5.look())} == {FAIL}


def test_a_driver_may_come_late_after_boot(p5, monkeypatch):
    no_driver(p5)
    monkeypatch.setattr(efa_live_node, "boot_age_s", lambda: 20.0)
    assert said(p5.look()) == {("efa.late", "node", UNKNOWN, "warn")}


# What cannot be read, and links.


def test_a_read_error_in_the_middle_of_sysfs_is_unknown(p5, monkeypatch):
    real = efa_live_read.text_of

    def broken(descriptor, name, limit=4096):
        return Unread("EIO") if name == "rx_bytes" else real(descriptor, name, limit)

    monkeypatch.setattr(efa_live_read, "text_of", broken)
    assert said(p5.look("epilog")) == {("efa.counters-unreadable", "node", UNKNOWN, "warn")}
    monkeypatch.setattr(efa_live_quick, "text_of", lambda *_: Unread("EIO"))
    assert said(p5.look("prolog")) == {("efa.counters-unreadable", "node", UNKNOWN, "warn")}


def test_a_class_that_cannot_be_listed_is_unknown(p5, monkeypatch):
    for module in (efa_live_read, efa_live_quick):
        real = module.names_in
        monkeypatch.setattr(
            module,
            "names_in",
            lambda path, *a, real=real: Unread("EACCES") if path.endswith("class/infiniband") else real(path, *a),
        )
    assert said(p5.look()) == {("efa.unreadable", "node", UNKNOWN, "warn")}


def test_only_the_kernels_own_links_are_followed(p5, tmp_path_factory):
    secret = tmp_path_factory.mktemp("secret")
    write(secret / "hw_counters/no_completion_cmds", "9\n")
    entry = p5.root / "sys/class/infiniband/rdmap79s0"
    entry.unlink()
    entry.symlink_to(secret)
    counter = p5.of("rdmap80s0") / "hw_counters/no_completion_cmds"
    counter.unlink()
    counter.symlink_to(secret / "hw_counters/no_completion_cmds")
    found = said(p5.look("epilog"))
    assert all(item[0] != "efa.no-completion" for item in found)
    assert {item[2] for item in found} == {UNKNOWN}
    write(secret / "x.sh", "export FI_PROVIDER=tcp\n")
    (p5.root / "etc/profile.d").mkdir(parents=True)
    (p5.root / "etc/profile.d/x.sh").symlink_to(secret / "x.sh")
    assert "efa.environment" not in {item[0] for item in said(p5.look("health"))}


def test_a_fifo_in_place_of_a_counter_is_not_waited_for(p5):
    counter = p5.of("rdmap80s0") / "hw_counters/cmds_err"
    counter.unlink()
    os.mkfifo(counter)
    assert said(p5.look("prolog")) == {("efa.counters-unreadable", "efa:rdmap80s0", UNKNOWN, "warn")}


def test_a_huge_file_costs_one_page(p5):
    write(p5.of("rdmap80s0") / "hw_counters/cmds_err", "1" * (1 << 22))
    assert {item[2] for item in said(p5.look("epilog"))} <= {UNKNOWN}


def test_a_look_that_hangs_is_unknown_within_the_deadline(p5, monkeypatch):
    monkeypatch.setattr(efa_live_quick, "quick", lambda *_: signal.pause())
    monkeypatch.setattr(probes, "PROBES", {"efa": PHASES})
    started = time.monotonic()
    seen = local.look(p5.here("prolog").settings, "n0", phase="prolog", job_window=None, deadline_s=1.0)
    assert time.monotonic() - started < 40.0
    assert ("efa.no-answer", "node") in {(f.id, f.target) for f in seen.verdict.findings}
    assert seen.verdict.verdict == UNKNOWN


def test_a_tool_that_hangs_is_unknown(p5):
    tool("trap '' TERM\nwhile :; do sleep 5; done")(p5)
    assert said(p5.look("health", deadline_s=1.0)) == {("efa.tool-timeout", "node", UNKNOWN, "warn")}


def test_a_missing_tool_is_said_once_in_a_boot(p5):
    os.unlink(p5.root / "opt/amazon/efa/bin/fi_info")
    assert {item[0] for item in said(p5.look("health"))} == {"efa.tool-missing"}
    assert said(p5.look("health")) == set()
    write(p5.root / "proc/sys/kernel/random/boot_id", "b2\n")
    assert {item[0] for item in said(p5.look("health"))} == {"efa.tool-missing"}


def test_a_tool_that_others_may_write_is_not_run(p5):
    made = p5.root / "made"
    tool(f"touch {made}")(p5)
    (p5.root / "opt/amazon/efa/bin/fi_info").chmod(0o777)
    assert {item[0] for item in said(p5.look("health"))} == {"efa.tool-missing"}
    assert not made.exists()


def test_libfabric_that_does_not_list_some_devices_names_them():
    names = ["rdmap79s0", "rdmap80s0"]
    block = "provider: efa\n    fabric: efa\n    domain: rdmap79s0-rdm\n    version: 1\n    type: FI_EP_RDM\n    protocol: FI_PROTO_EFA\n"
    asked = efa_live_node.Asked(block)
    items = efa_live_whole.judge_libfabric(asked, names)
    assert [(i.finding.id, i.finding.target, i.verdict) for i in items] == [
        ("efa.not-in-libfabric", "efa:rdmap80s0", UNKNOWN)
    ]
    assert efa_live_whole.judge_libfabric(asked._replace(text=block + block.replace("79", "80")), names) == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_noise_in_any_file_never_raises_and_never_convicts(tmp_path_factory, data):
    node = Node(tmp_path_factory.mktemp("noise"), "p4d.24xlarge")
    files = sorted(
        p
        for p in (node.root / "sys").rglob("*")
        if p.is_file() and p.name not in ("vendor", "device", "ibdev", "product_name")
    )
    for path in data.draw(st.lists(st.sampled_from(files), max_size=4)):
        # No digits: a count of commands that were never completed is no noise. No word for a port that is down.
        path.write_bytes(data.draw(st.binary(max_size=40).map(lambda raw: bytes(b for b in raw if not 48 <= b <= 57))))
    kept = {}
    for phase in PHASES:
        seen = node.look(phase, baseline=kept)
        kept = dict(seen.kept)
        assert all(item.verdict != FAIL for item in seen.items), said(seen)


class Site:
    """What a lab's fault acts on: a node's root and the options of the command line."""

    def __init__(self, root, **options):
        self.root, self.options = root, options


def test_the_labs_faults_are_found_and_heal(tmp_path):
    row = catalogue.find("p5en.48xlarge")
    hardware_efa.build(tmp_path, row)
    write(tmp_path / "sys/class/dmi/id/product_name", row.name + "\n")
    node = Node.__new__(Node)
    node.root = tmp_path
    kept = node.look().kept
    faults_efa.errors(Site(tmp_path, count=10**7))
    found = said(node.look("epilog", baseline={**kept, "at_s": time.time() - 60}))
    assert {item[0] for item in found} == {"efa.drops", "efa.retransmission-timeouts"}
    faults_efa.lost(Site(tmp_path))
    assert {(item[0], item[2]) for item in said(node.look())} == {("efa.missing", FAIL)}
    faults_efa.heal_lost(Site(tmp_path))
    assert said(node.look()) == set()


def test_more_than_a_type_can_have_is_asked_of_no_node(p5):
    """One epilog saw a device twice, on its way out and beside its successor."""
    instance = probe_efa._instance(str(p5.root))
    efa_live_attached.write_record(p5.here("epilog").settings.site.state_dir, instance, 33)
    assert {one[0] for phase in PHASES for one in said(p5.look(phase))} == set()
    p5.drop("rdmap79s0")
    assert ("efa.missing", "efa:rdmap79s0", FAIL, "replace") in said(p5.look("prolog"))


@pytest.mark.parametrize("value", [1 << 64, 10**30])
def test_no_counter_is_wider_than_64_bits(p5, value):
    p5.count("rdmap80s0", no_completion_cmds=value)
    for phase in PHASES:
        assert {(id_, verdict) for id_, _, verdict, _ in said(p5.look(phase))} == {("efa.counters-unreadable", UNKNOWN)}
