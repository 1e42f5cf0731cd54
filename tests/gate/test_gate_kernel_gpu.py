"""Xid that a later reset or a later word of the driver makes history, and NVLink 5 in both of its layouts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate import kernel_job, kernel_log, kernel_rules
from slurm_ext.gate.model import conclude
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, VERDICTS, WARN

PCI = "0000:53:00"
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build"
RESET = "recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"


def xid(code: int, text: str = "pid=1, name=python3, Ch 00000008", pci: str = PCI) -> str:
    return f"NVRM: Xid (PCI:{pci}): {code}, {text}"


def judge(*texts: str, **more):
    return kernel_rules.judge([kernel_log.parse_line(f"4,{n},{n}000000,-;{t}") for n, t in enumerate(texts)], **more)


ASKED = xid(154, f"GPU {RESET}")


@pytest.mark.parametrize(
    ("texts", "recovery", "verdict"),
    [
        ((xid(95),), None, FAIL),
        ((xid(95),), "None", FAIL),  # nothing says that the driver ever kept account of it
        ((xid(95), ASKED), None, FAIL),
        ((xid(95), ASKED), "Reset", FAIL),
        ((xid(95), ASKED), "None", PASS),  # asked for then, and no longer: it was reset
        ((ASKED, xid(95)), "None", FAIL),  # came after the request: that one is not its own
        ((xid(95), LOADED), None, PASS),
        ((LOADED, xid(95)), None, FAIL),
        ((xid(95), ASKED, LOADED), None, PASS),
        ((xid(79), LOADED), None, FAIL),  # asks for more than a reset
        ((xid(64, "All reserved rows for bank are remapped"), LOADED), None, FAIL),
        ((xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"), LOADED), None, FAIL),
        ((xid(154, "GPU recovery action changed from 0x0 (None) to 0x6 (Bus Reset)"),), None, FAIL),
        ((xid(154, "GPU recovery action changed from 0x0 (None) to 0x7 (System Reboot)"),), "None", PASS),
    ],
)
def test_what_came_later_decides(texts, recovery, verdict):
    more = {} if recovery is None else {"recovery": {PCI: recovery}}
    assert conclude(judge(*texts, **more)).verdict == verdict


def test_what_was_reset_is_still_told():
    (found,) = judge(xid(95), LOADED)
    assert (found.verdict, found.finding.action) == (PASS, "none")
    assert found.finding.evidence[1] == LOADED


def test_another_gpu_is_another_matter():
    items = judge(xid(95), xid(95, pci="0000:64:00"), ASKED, recovery={PCI: "None", "0000:64:00": "None"})
    assert {item.finding.target: item.verdict for item in items} == {"gpu@0000:53:00": PASS, "gpu@0000:64:00": FAIL}


@pytest.mark.parametrize(
    ("code", "rest", "verdict", "action"),
    [
        # Layout before R575 (sub-code in bits 20 to 25, unit in the low ten bits), then the one after it.
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x0 0x0 0x0 0x0)", FAIL, "reset-gpu"),
        (149, "NETIR_LINK_EVT/NETIR_LINK_DOWN Fatal XC0 i0 Link 00 (0x00000011 0x00000000 0x0)", FAIL, "reset-gpu"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 02 (0x026001c6 0x00000000 0x0 0x0)", WARN, "warn"),
        (149, "NETIR_LINK_EVT/NETIR_LINK_DOWN Fatal XC0 i0 Link 02 (0x02800011 0x00000000 0x0)", WARN, "warn"),
        (149, "NETIR_LINK_EVT/NETIR_LINK_DOWN Fatal XC0 i0 Link 02 (0x02A00011 0x00000000)", FAIL, "reset-gpu"),
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x0 0x0 0x0 0x0)", FAIL, "reset-gpu"),
        (149, "NETIR_MFDE_EVENT Nonfatal XC0 i0 Link 00 (0x00000014 0x00000003 0x0 0x0)", PASS, "none"),
        (144, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000002 0x0 0x0)", FAIL, "reset-gpu"),
        (
            145,
            "pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x8 0x1)",
            PASS,
            "none",
        ),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001 0x0 0x0)", UNKNOWN, "warn"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000100 0x0 0x0)", PASS, "none"),
        (146, "TLW_RX/TLW_RX_PIPE0 Fatal XC0 i0 Link 00 (0x0000000a 0x00000004 0x0 0x0)", FAIL, "reset-gpu"),
        (148, "NVLPW_CTRL/NVLPW Nonfatal XC0 i0 Link 00 (0x0000000f 0x80000000 0x0 0x0)", PASS, "none"),
        (150, "MSE_WATCHDOG Fatal XC0 i0 Link 00 (0x00000000 0x00000000 0x0 0x0)", FAIL, "reset-gpu"),
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406", UNKNOWN, "warn"),
    ],
)
def test_nvlink_5_by_unit_severity_and_status(code, rest, verdict, action):
    (found,) = judge(xid(code, rest))
    assert (found.verdict, found.finding.action) == (verdict, action)


def test_the_kernels_words_that_name_a_job():
    texts = [xid(31), xid(31, pci="0000:64:00"), xid(13), xid(79), xid(43), xid(200), "NVRM: Xid (PCI:x): 31", "noise"]
    found = {item.finding.id: item for item in kernel_job.judge(texts, "12")}
    assert set(found) == {"job.xid-31", "job.xid-13"}
    assert all(item.verdict == PASS and item.finding.target == "job:12" for item in found.values())
    assert "gpu@0000:53:00, gpu@0000:64:00" in found["job.xid-31"].finding.evidence[1]


def test_only_what_is_on_the_jobs_own_gpus_names_it():
    texts = [xid(31), xid(13, pci="0000:64:00")]
    found = kernel_job.judge(texts, "12", frozenset({"0000:64:00"}))
    assert [item.finding.id for item in found] == ["job.xid-13"]
    assert kernel_job.judge(texts, "12", frozenset()) == []


@given(st.lists(st.text(max_size=60)), st.text(max_size=12))
def test_noise_names_no_job(texts, job):
    assert conclude(kernel_job.judge(texts, job)).verdict in VERDICTS


def test_a_storm_of_one_gpu_is_read_in_one_pass():
    texts = [xid(154, f"GPU {RESET}") if n % 3 == 0 else xid(95) for n in range(30_000)]
    items = judge(*texts)
    assert {item.finding.id for item in items} == {"gpu.xid-95", "gpu.xid-154"}
