"""The simulated hardware of one node, and the faults that change what it answers."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_ext.aws import catalogue
from slurm_ext.errors import LackingError, UsageError
from slurm_ext.lab import faults, frozen, hardware, journal
from slurm_ext.lab.model import LabNode, State

P5 = catalogue.CATALOGUE["p5.48xlarge"]
RECORD = re.compile(r"(\d+),(\d+),(\d+),-;(.+)")


@pytest.fixture
def state(tmp_path: Path) -> State:
    node = LabNode("n0", 0, "127.0.0.1", 20001, "i-0123456789abcdef0")
    head = LabNode("head", -1, "127.0.0.1", 0, "i-0")
    hardware.build_root(tmp_path / "nodes/n0/root", P5, "n0", node.instance_id, {"/fsx": "lustre", "/nvme": "xfs"})
    return State(
        dir=str(tmp_path),
        id="abcdef",
        mode="loopback",
        why_mode="asked for",
        prefix="",
        cluster="lab",
        slurm_version="22.05.8",
        instance_type=P5.name,
        cgroup=False,
        subnet="127.0.0.0/8",
        head=head,
        nodes=(node,),
        controller_port=20000,
    )


def root_of(state: State) -> Path:
    return Path(state.dir, "nodes/n0/root")


def records(root: Path) -> list[tuple[int, int, int, str]]:
    found = [RECORD.fullmatch(line) for line in (root / hardware.KERNEL_LOG).read_text().splitlines()]
    assert all(found)
    return [(int(m[1]), int(m[2]), int(m[3]), m[4]) for m in found if m]


def test_a_node_has_all_that_its_type_has(state: State) -> None:
    root = root_of(state)
    devices = sorted((root / "sys/class/infiniband").iterdir())
    assert len(devices) == P5.efa_devices == len(list((root / "dev/infiniband").iterdir()))
    assert {(d / "ports/1/state").read_text() for d in devices} == {"4: ACTIVE\n"}
    assert {(d / "ports/1/hw_counters/rx_drops").read_text() for d in devices} == {"0\n"}
    assert (root / "sys/class/dmi/id/product_name").read_text() == "p5.48xlarge\n"
    assert "/fsx lustre rw" in (root / "proc/self/mounts").read_text()
    assert hardware.read_state(root)["gpu.7.pci"] == "0000:ca:00.0"
    assert json.loads((root / hardware.STATE).with_suffix(".json").read_text()) == hardware.read_state(root)


def test_a_counter_is_a_file_of_its_own(state: State) -> None:
    counters = sorted(root_of(state).glob("sys/class/infiniband/*/ports/1/hw_counters/rx_drops"))
    counters[0].write_text("7\n")
    assert [path.read_text() for path in counters] == ["7\n"] + ["0\n"] * (P5.efa_devices - 1)


def test_kernel_records_have_ascending_numbers_and_stamps(state: State) -> None:
    root = root_of(state)
    for text in ("one", "two", "three"):
        hardware.kernel_says(root, text)
    found = records(root)
    assert [sequence for _, sequence, _, _ in found] == list(range(len(found)))
    assert [stamp for _, _, stamp, _ in found] == sorted(stamp for _, _, stamp, _ in found)
    assert [text for *_, text in found][-3:] == ["one", "two", "three"]


def test_xid_79_is_in_the_log_and_loses_the_gpu_and_heal_is_a_reboot(state: State) -> None:
    root = root_of(state)
    boot_id = (root / hardware.BOOT_ID).read_text()
    state, words = faults.make(state, "n0", "gpu-xid", {"gpu": 3})
    assert "GPU 3" in words
    xid = "NVRM: Xid (PCI:0000:86:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    assert xid in [text for *_, text in records(root)]
    assert hardware.read_state(root)["gpu.3.lost"] == "1"
    assert [fault["kind"] for fault in state.faults] == ["gpu-xid"]
    state, said = faults.undo(state, "n0")
    assert state.faults == ()
    assert "reboot" in said[0]
    assert "gpu.3.lost" not in hardware.read_state(root)
    assert not any("Xid" in text for *_, text in records(root))
    assert (root / hardware.BOOT_ID).read_text() != boot_id


def test_another_xid_is_only_logged(state: State) -> None:
    faults.make(state, "n0", "gpu-xid", {"gpu": 0, "xid": 94})
    assert any("): 94, pid=" in text for *_, text in records(root_of(state)))
    assert "gpu.0.lost" not in hardware.read_state(root_of(state))


@pytest.mark.parametrize(
    ("kind", "options", "key", "value"),
    [
        ("ecc", {"gpu": 1, "count": 3}, "gpu.1.ecc_uncorrected", "3"),
        ("gpu-lost", {"gpu": 7}, "gpu.7.lost", "1"),
        ("nvlink-down", {"gpu": 2}, "gpu.2.nvlinks", "17"),
        ("gpu-memory", {"gpu": 2}, "gpu.2.memory_used_mib", "40960"),
        ("nccl-wrong-result", {}, "nccl.wrong_result", "send"),
        ("nccl-wrong-result", {"how": "recv", "gpu": 2}, "gpu.2.nccl.wrong_result", "recv"),
        ("nccl-abort-hang", {}, "nccl.hang", "allreduce,abort"),
        ("nccl-hang", {"where": "allreduce:7", "gpu": 0}, "gpu.0.nccl.hang", "allreduce:7"),
        ("nccl-crash", {"where": "init"}, "nccl.crash", "init"),
        ("nccl-stop", {}, "nccl.stop", "allreduce"),
        ("nccl-slow", {"delay_ms": 50}, "nccl.delay_ms", "50"),
        ("nccl-late", {}, "nccl.join_delay_ms", "3000"),
        ("nccl-absent", {"gpu": 1}, "gpu.1.nccl.absent", "1"),
        ("nccl-socket", {}, "nccl.claims", "socket"),
        ("nic-count", {}, "nccl.nics", "31"),
        ("rail-slow", {"gpu": 3, "rate": "40mbit"}, "gpu.3.nccl.rate_mbit", "40"),
        ("efa-retransmit", {}, "efa.retransmits_per_gb", "100000"),
        ("nccl-hang", {}, "nccl.hang", "allreduce"),
        ("nccl-hang", {"where": "init"}, "nccl.hang", "init"),
        ("slow-link", {"rate": "2gbit"}, "nccl.rate_mbit", "2000"),
    ],
)
def test_a_fault_sets_one_key_and_heal_takes_it_out(
    state: State, kind: str, options: dict[str, object], key: str, value: str
) -> None:
    root, whole = root_of(state), hardware.read_state(root_of(state))
    state, _ = faults.make(state, "n0", kind, options)
    assert hardware.read_state(root) == {**whole, key: value}
    faults.undo(state, "n0", kind)
    assert hardware.read_state(root) == whole


def test_a_delay_may_begin_late_and_is_healed_whole(state: State) -> None:
    root, whole = root_of(state), hardware.read_state(root_of(state))
    state, words = faults.make(state, "n0", "nccl-slow", {"after_ms": 1500, "gpu": 1})
    late = {"gpu.1.nccl.delay_ms": "300", "gpu.1.nccl.delay_after_ms": "1500"}
    assert hardware.read_state(root) == {**whole, **late}
    assert "from 1500 ms" in words
    faults.undo(state, "n0", "nccl-slow")
    assert hardware.read_state(root) == whole


def test_healing_one_fault_leaves_another_of_the_same_kind_of_key(state: State) -> None:
    root = root_of(state)
    state, _ = faults.make(state, "n0", "slow-link", {"rate": "100mbit"})
    state, _ = faults.make(state, "n0", "rail-slow", {"gpu": 1})
    state, _ = faults.undo(state, "n0", "rail-slow")
    assert hardware.read_state(root)["nccl.rate_mbit"] == "100"
    assert "gpu.1.nccl.rate_mbit" not in hardware.read_state(root)


def test_ranks_that_sleep_in_the_kernel_wake_when_healed(state: State) -> None:
    root, whole = root_of(state), hardware.read_state(root_of(state))
    folder = frozen.of_node(state.dir, "n0")
    try:
        state, _ = faults.make(state, "n0", "gpu-dstate", {"where": "context"})
    except LackingError as exc:
        pytest.skip(f"no D state here: {exc}")
    try:
        file = hardware.read_state(root)["cuda.dstate_file"]
        assert file == str(folder / frozen.NAME)
        with subprocess.Popen(["sh", "-c", f"echo x >>{file}"]) as writer:
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(0.5)
            writer.kill()
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(0.5)
            faults.undo(state, "n0", "gpu-dstate")
            assert writer.wait(120) == -9
        assert hardware.read_state(root) == whole
        assert frozen.device(folder) == ""
        assert not folder.with_suffix(".img").exists()
    finally:
        frozen.remove(folder)


def test_the_clock_loses_its_time_source_and_finds_it_again(state: State) -> None:
    clock = root_of(state) / hardware.CHRONY
    assert "Leap status     : Normal" in clock.read_text()
    state, _ = faults.make(state, "n0", "clock-unsync", {})
    assert "Leap status     : Not synchronised" in clock.read_text()
    faults.undo(state, "n0")
    assert "Leap status     : Normal" in clock.read_text()


@pytest.mark.parametrize(
    ("node", "kind", "options", "words"),
    [
        ("n9", "ecc", {}, "no node 'n9'"),
        ("head", "ecc", {}, "head node has no faults"),
        ("n0", "ecc", {"gpu": 8}, "GPUs 0 to 7"),
        ("n0", "ecc", {"rate": "1gbit"}, "ecc knows no --rate"),
        ("n0", "slow-link", {"rate": "fast"}, "not a rate"),
        ("n0", "nccl-hang", {"where": "destroy"}, "not a place in NCCL"),
        ("n0", "nccl-crash", {"where": "allreduce:0"}, "not a place in NCCL"),
        ("n0", "nccl-wrong-result", {"how": "both"}, "sent or received"),
        ("n0", "rail-slow", {"rate": "slow"}, "not a rate"),
        ("n0", "fire", {}, "no fault 'fire'"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_no_fault(
    state: State, node: str, kind: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        faults.make(state, node, kind, options)
    lab_json = Path(state.dir, "lab.json")
    assert not lab_json.exists() or json.loads(lab_json.read_text())["faults"] == []


@pytest.mark.parametrize("kind", ["cut", "disk-full", "lustre-stale"])
def test_on_loopback_what_needs_namespaces_says_so(state: State, kind: str) -> None:
    with pytest.raises(LackingError, match="needs a lab whose nodes have namespaces"):
        faults.make(state, "n0", kind, {})


def test_a_dead_node_takes_no_further_fault(state: State) -> None:
    state = replace(state, faults=({"node": "n0", "kind": "node-death", "since": 0.0},))
    with pytest.raises(UsageError, match="dead already"):
        faults.make(state, "n0", "ecc", {})


def test_a_journal_cut_by_a_crash_is_read_up_to_the_cut(tmp_path: Path) -> None:
    journal.intend(str(tmp_path), "lab", id="abcdef")
    journal.intend(str(tmp_path), "link", name="fmlababcdef")
    with (tmp_path / journal.NAME).open("a") as stream:
        stream.write('{"make": "proc')
    assert [entry["make"] for entry in journal.read(str(tmp_path))] == ["lab", "link"]
