"""What kernel lines mean: tables of lines typed from public forms, and a parser that takes whatever comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate import kernel_log, kernel_rules
from slurm_ext.gate.model import conclude
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, VERDICTS, WARN

GPU = "gpu@0000:53:00"


def xid(code: int, text: str = "pid=1, name=python3, Ch 00000008", pci: str = "0000:53:00") -> str:
    return f"NVRM: Xid (PCI:{pci}): {code}, {text}"


def judge(*texts: str, **more):
    return kernel_rules.judge([kernel_log.parse_line(f"4,{n},{n}000000,-;{t}") for n, t in enumerate(texts)], **more)


@pytest.mark.parametrize(
    ("text", "verdict", "action"),
    [
        (xid(13), PASS, "none"),
        (xid(31), PASS, "none"),
        (xid(43), PASS, "none"),
        (xid(63, "Row Remapper: New row marked for remapping"), PASS, "none"),
        (xid(45), WARN, "warn"),
        (xid(94), WARN, "warn"),
        (xid(48), FAIL, "reset-gpu"),
        (xid(64, "Row Remapper Error: failed"), FAIL, "reset-gpu"),
        (xid(64, "Row Remapper Error: (0x1) - All reserved rows for bank are remapped"), FAIL, "replace"),
        (xid(74), FAIL, "reset-gpu"),
        (xid(79, "GPU has fallen off the bus."), FAIL, "reboot"),
        (xid(95), FAIL, "reset-gpu"),
        (xid(119), FAIL, "reset-gpu"),
        (xid(120), FAIL, "reset-gpu"),
        (xid(14), WARN, "warn"),
        (xid(200), UNKNOWN, "warn"),
        (xid(168), UNKNOWN, "warn"),
        (xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"), FAIL, "reset-gpu"),
        (xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)"), FAIL, "reboot"),
        (xid(154, "GPU recovery action changed from 0x0 (None) to 0x9 (Something New)"), UNKNOWN, "drain"),
        (xid(149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x0 0x0)"), FAIL, "reset-gpu"),
        (xid(149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001 0x0 0x0)"), WARN, "warn"),
        (xid(145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x0 0x0)"), PASS, "none"),
        (xid(145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008 0x0 0x0)"), UNKNOWN, "warn"),
        (xid(146, "A_NEW_UNIT Fatal XC1 i0 Link 03 (0x040868e2 0x00000008 0x0 0x0)"), UNKNOWN, "warn"),
        (xid(147, "a layout of tomorrow"), UNKNOWN, "warn"),
    ],
)
def test_one_xid_means_what_the_catalogue_says(text, verdict, action):
    (found,) = judge(text)
    assert (found.verdict, found.finding.action) == (verdict, action)
    assert found.finding.target == GPU
    assert found.finding.evidence[0] == text


def test_45_is_only_the_clean_up_after_another_error_on_the_same_gpu():
    items = {item.finding.id: item for item in judge(xid(45), xid(79), xid(45, pci="0000:64:00"))}
    assert items["gpu.xid-79"].verdict == FAIL
    alone = [
        item for item in judge(xid(45), xid(79), xid(45, pci="0000:64:00")) if item.finding.target.endswith("64:00")
    ]
    assert [(item.finding.id, item.verdict) for item in alone] == [("gpu.xid-45", WARN)]


def test_recovery_action_back_to_none_makes_a_reset_code_history_but_not_a_reboot_code():
    back = xid(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    assert conclude(judge(xid(95), back)).verdict == PASS
    assert conclude(judge(xid(79), back)).verdict == FAIL
    assert conclude(judge(back, xid(95))).verdict == FAIL  # a new event after the reset


def test_the_drivers_present_action_decides_what_the_line_leaves_open():
    line = xid(145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008 0x0 0x0)")
    assert conclude(judge(line, recovery={"0000:53:00": "None"})).verdict == WARN
    assert conclude(judge(line, recovery={"0000:53:00": "Reset"})).verdict == FAIL
    assert conclude(judge(line, recovery={"0000:64:00": "None"})).verdict == UNKNOWN


def test_an_event_of_an_earlier_boot_is_history():
    old = kernel_log.KernelLine(xid(79), 1.0, boot_id="a" * 32)
    new = kernel_log.KernelLine("Linux version 6.8.0", 2.0, boot_id="b" * 32)
    (found,) = kernel_rules.judge([old, new], boot_id="b" * 32)
    assert (found.verdict, found.finding.id) == (PASS, "gpu.xid-79-old-boot")
    (found,) = kernel_rules.judge([old, new], boot_id="a" * 32)
    assert found.verdict == FAIL


def test_many_lines_of_one_event_are_one_finding():
    (found,) = judge(*[xid(13)] * 17)
    assert found.finding.evidence[-1] == "17 lines"


@pytest.mark.parametrize(
    ("text", "id_", "target", "verdict"),
    [
        ("NVRM: GPU 0000:a4:00.0: RmInitAdapter failed! (0x62:0x55:2477)", "gpu.init-failed", "gpu@0000:a4:00", FAIL),
        ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", "gpu.off-bus", "gpu@0000:01:00", FAIL),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 timeout",
            "nvswitch.sxid-24007",
            "nvswitch:0",
            FAIL,
        ),
        ("nvidia-nvswitch3: SXid (PCI:0000:ce:00.0): 20009, Non-fatal, Li", "nvswitch.sxid-20009", "nvswitch:3", WARN),
        ("nvme nvme2: I/O 381 QID 14 timeout, aborting", "disk.nvme-timeout", "disk:nvme2", WARN),
        ("nvme nvme2: Removing after probe failure status: -19", "disk.nvme-dead", "disk:nvme2", FAIL),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "memory.dimm-uncorrected", "node", FAIL),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "memory.dimm-corrected", "node", PASS),
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/system.slice/job_4711,pid=1",
            "memory.oom-cgroup",
            "job:4711",
            PASS,
        ),
    ],
)
def test_other_lines(text, id_, target, verdict):
    (found,) = judge(text)
    assert (found.finding.id, found.finding.target, found.verdict) == (id_, target, verdict)


@pytest.mark.parametrize(
    "line",
    [
        "12,5,1000,-;NVRM: Xid (PCI:0000:53:00): 79, a program wrote this into /dev/kmsg",
        "<12>NVRM: Xid (PCI:0000:53:00): 79, and this",
        "user  :warn  : [ 5.0] NVRM: Xid (PCI:0000:53:00): 79, and this",
        "Jul 01 03:00:01 node-a logger[811]: NVRM: Xid (PCI:0000:53:00): 79, and this with logger(1)",
        "2026-05-04T09:11:20.1+00:00 node-a mallory[7]: NVRM: Xid (PCI:0000:53:00): 79, and this",
        '{"_TRANSPORT": "syslog", "MESSAGE": "NVRM: Xid (PCI:0000:53:00): 79, and this"}',
        "NVRM: Xid",
        "NVRM: Xid (invalid): 79, x",
        "kernel: RPC: 79 xid 0x4f31a7d9 call_decode: retry",
    ],
)
def test_only_the_kernel_can_say_that_a_gpu_is_broken(line):
    parsed = kernel_log.parse_line(line)
    assert not kernel_rules.judge([] if parsed is None else [parsed])


@pytest.mark.parametrize(
    "line",
    [
        "4,5,1000000,-;{}",
        "[    1.000000] {}",
        "[Tue Mar 10 04:12:51 2026] {}",
        "2026-03-10T04:12:51,551201+00:00 {}",
        "kern  :warn  : 2026-03-10T04:12:51,551201+00:00 {}",
        "kern  :err   : [    1.000000] {}",
        "Mar 10 04:12:51 node-a kernel: {}",
        "Mar 10 04:12:51 node-a kernel: [ 1.000000] {}",
        "2026-03-10T04:12:51.551201+00:00 node-a kernel: {}",
        "<4>[    1.000000] {}",
        "{}",
    ],
)
def test_every_form_of_a_kernel_log_is_read(line):
    parsed = kernel_log.parse_line(line.format(xid(79)))
    assert parsed is not None
    assert parsed.text == xid(79)


def test_times():
    assert kernel_log.parse_line("4,5,1500000,-;x").at_s == 1.5
    assert kernel_log.parse_line("2026-03-10T04:12:51,500000+01:00 x").at_s == 1773112371.5
    assert kernel_log.parse_line("[Tue Mar 10 04:12:51 2026] x").at_s == 1773115971.0
    assert kernel_log.parse_line("Mar 10 04:12:51 node-a kernel: x").at_s is None


def test_a_ring_that_lost_its_start_is_seen():
    assert kernel_log.kmsg_gap(["6,3964,206764307,-;x", "6,3965,1,-;y"])
    assert not kernel_log.kmsg_gap(["6,0,0,-;Linux version"])
    assert not kernel_log.kmsg_gap([])


@given(st.text())
def test_whatever_is_in_a_log_it_is_judged(text):
    assert conclude(kernel_rules.judge(kernel_log.parse(text))).verdict in VERDICTS


@given(st.integers(0, 10_000), st.text(st.characters(exclude_characters="\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")))
def test_no_xid_is_ever_lost_and_an_unknown_one_never_passes(code, rest):
    (found,) = judge(f"NVRM: Xid (PCI:0000:53:00): {code}, {rest}") or [None]
    if found is None:
        assert code == 154  # with no readable action in it, it tells nothing
        return
    assert found.finding.id == f"gpu.xid-{code}"
    if code > 172 or code == 0:
        assert found.verdict == UNKNOWN
