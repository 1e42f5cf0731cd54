"""The kernel's ring is read within bounds, and what a rule knows is never left out."""

from __future__ import annotations

import os

import pytest

from slurm_ext.gate import kernel_log, kernel_rules, read_kernel

XID = "NVRM: Xid (PCI:0000:53:00): 79, pid=1, name=x, GPU has fallen off the bus."


def log(tmp_path, *lines: str) -> str:
    folder = tmp_path / "var/log"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kmsg.log").write_text("".join(f"3,{n},{n}000,-;{line}\n" for n, line in enumerate(lines)))
    return str(tmp_path)


def test_only_what_a_rule_looks_at_is_kept(tmp_path):
    root = log(tmp_path, "Linux version 6.8.0", "audit: type=1400", XID, "usb 1-1: new device")
    kept, lost, cut = read_kernel.records(root)
    assert not cut
    assert [record.partition(";")[2] for record in kept] == ["Linux version 6.8.0", XID]
    assert not lost


def test_a_log_that_is_not_there_is_not_an_empty_one(tmp_path):
    assert read_kernel.records(str(tmp_path)) == (None, False, False)


def test_a_ring_that_lost_its_start(tmp_path):
    root = log(tmp_path)
    with open(f"{root}/var/log/kmsg.log", "w") as stream:
        stream.write(f"3,500,1000,-;{XID}\n")
    assert read_kernel.records(root)[1:] == (True, False)


def test_a_storm_keeps_its_first_and_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(read_kernel, "MAX_KEPT", 100)
    root = log(tmp_path, "Linux version 6.8.0", *(f"NVRM: word {n}" for n in range(1000)), XID)
    kept, lost, cut = read_kernel.records(root)
    assert len(kept) < 200
    assert kept[0].endswith("Linux version 6.8.0")
    assert kept[-1].endswith(XID)
    assert (lost, cut) == (False, True)


def test_more_bytes_than_a_ring_can_have_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(read_kernel, "MAX_BYTES", 2000)
    root = log(tmp_path, *(f"NVRM: word {n}" for n in range(1000)))
    kept, lost, cut = read_kernel.records(root)
    assert len(kept) < 200
    assert (lost, cut) == (False, True)


def test_a_line_without_an_end_is_cut_and_bytes_that_are_no_text_are_read(tmp_path):
    root = log(tmp_path, "x" * 100_000 + XID)
    with open(f"{root}/var/log/kmsg.log", "ab") as stream:
        stream.write(b"3,1,1000,-;NVRM: \xff\xfe\n")
    kept, _, _ = read_kernel.records(root)
    assert [record for record in kept if "\ufffd" in record]


def test_a_device_that_has_no_end_is_given_up(monkeypatch):
    monkeypatch.setattr(read_kernel, "MAX_BYTES", 100_000)
    kept = read_kernel._Kept()
    assert read_kernel._ring("/dev/zero", kept)


def test_a_device_with_nothing_more_to_say_ends():
    reader, writer = os.pipe()
    os.write(writer, b"3,1,1,-;NVRM: x\n")
    kept = read_kernel._Kept()
    assert not read_kernel._ring(f"/proc/self/fd/{reader}", kept)
    assert kept.first == ["3,1,1,-;NVRM: x"]
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    "text",
    [
        XID,
        "NVRM: GPU 0000:53:00.0: RmInitAdapter failed! (0x22:0x65:830)",
        "nvidia: probe of 0000:53:00.0 failed with error -1",
        "nvidia 0000:53:00.0: probe with driver nvidia failed with error -1",
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 timeout",
        "NVRM: The NVIDIA GPU 0000:53:00.0",
        "nvme nvme2: Removing after probe failure status: -19",
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0",
        "ib0: link down",
    ],
)
def test_what_a_rule_knows_is_of_interest(text):
    assert read_kernel.OF_INTEREST.search(text)
    assert kernel_rules.judge([kernel_log.parse_line(f"3,1,1,-;{text}")] * 3) or "NVIDIA GPU" in text
