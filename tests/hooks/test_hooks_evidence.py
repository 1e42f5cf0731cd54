"""The pure half of evidence: what is written is read back as it was, whatever stood in it, and all of it fits."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.captured import Case
from slurm_ext.gate import kernel_log, replay
from slurm_ext.gate.local import Look
from slurm_ext.gate.model import Facts, KernelLine, Probe, Smi, conclude, judged
from slurm_ext.hooks import bundle, evidence, evidence_mask
from slurm_ext.hooks.evidence import Capture
from slurm_ext.verdict import FAIL, Finding

TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=80).filter(str.strip)
XID = Finding("gpu.xid-79", "gpu@0000:64:00", "reboot", ("NVRM: Xid (PCI:0000:64:00): 79, gone",))


def look_of(facts: Facts, finding: Finding) -> Look:
    item = judged(FAIL, finding.id, finding.target, finding.action, *finding.evidence)
    return Look(conclude([item]), facts, (), 0.1, {}, (item,))


@given(st.lists(st.tuples(TEXT, st.integers(0, 10**12)), max_size=20))
def test_kernel_lines_come_back_as_they_were(lines):
    before = [KernelLine(text, at_us / 1e6, True) for text, at_us in lines]
    after = kernel_log.parse(evidence.kmsg(before))
    assert [(line.text, line.since_boot) for line in after] == [(line.text, True) for line in before]
    assert all(abs(one.at_s - two.at_s) < 1e-5 for one, two in zip(before, after, strict=True))


def test_the_newest_lines_are_kept():
    lines = [KernelLine(f"line {n}", float(n), True) for n in range(evidence.KERNEL_LINES + 10)]
    kept = kernel_log.parse(evidence.kmsg(lines))
    assert (len(kept), kept[-1].text) == (evidence.KERNEL_LINES, lines[-1].text)


def test_a_node_of_which_nothing_is_known_still_has_captures():
    made = evidence.captures(look_of(Facts(), XID), {}, XID, 1e9)
    assert set(made) >= set(evidence.GROUPS)
    for name in evidence.GROUPS:
        capture = made[name]
        assert replay.judge_case(Case("", name, "", capture.texts, capture.context)).verdict != "fail"


def test_which_view_is_tried_first():
    def first(id_, line="", facts=Facts()):  # noqa: B008 - a NamedTuple
        return evidence.likely(Finding(id_, "node", "drain", (line,) if line else ()), facts)[0]

    assert first("gpu.lost") == "gpu"
    assert first("gpu.xid-79", "said", Facts(kernel=(KernelLine("said"),))) == "kernel"
    assert first("memory.dimm-uncorrected", "said", Facts(kernel=(KernelLine("said"),))) == "kernel"
    assert first("efa.missing") == "efa"
    assert first("fs.not-mounted") == "lustre"
    assert first("disk.scratch-full") == "system"
    assert first("something.new") == "system"
    assert sorted(evidence.likely(XID, Facts())) == sorted(evidence.GROUPS)


def test_a_hang_of_a_mount_is_replayed_as_a_hang():
    finding = Finding("fs.hang", "fs:/fsx", "drain", ("no answer within 10 s",))
    facts = Facts(lustre=(Probe("/other", "EIO"), Probe("/fsx", "timeout", None, 10.0)))
    made = evidence.captures(look_of(facts, finding), {}, finding, 1e9)["lustre"]
    verdict = replay.judge_case(Case("", "lustre", "", made.texts, made.context))
    assert ("fs.hang", "fs:/fsx") in {(one.id, one.target) for one in verdict.findings}


def test_a_driver_that_did_not_answer_in_time_is_replayed_so():
    facts = Facts(smi=Smi(complete=False, timed_out=True, exit_code=None, elapsed_s=10.0))
    finding = Finding("gpu.smi-timeout", "node", "none")
    made = evidence.captures(look_of(facts, finding), {}, finding, 1e9)["gpu"]
    assert replay.judge_case(Case("", "gpu", "p5.48xlarge", made.texts, made.context)).verdict == "unknown"


@given(
    st.dictionaries(
        st.sampled_from(["kmsg", "smi_csv", "tree", "mounts"]), st.integers(0, 4 << 20), min_size=1, max_size=4
    )
)
def test_a_bundle_fits_whatever_it_holds(sizes):
    texts = {role: "ä" * (size // 2) for role, size in sizes.items()}
    files = bundle.folder_of(Capture("kernel", texts), {"gpu": Capture("gpu", texts)}, {"node": "n0"}, "")
    assert sum(len(text.encode()) for text in files.values()) <= bundle.BUNDLE_BYTES
    case = json.loads(files["case.json"])
    assert {*case["files"].values(), *case["also"].values(), "case.json"} == set(files)


@given(st.text(max_size=300))
def test_any_text_can_be_masked_and_twice_is_once(text):
    masked = evidence_mask.mask(text)
    assert evidence_mask.mask(masked) == masked
    assert json.loads(json.dumps(evidence_mask.mask_all({"x": [text, 1, None]})))["x"][1:] == [1, None]


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "ip-10-0-0-1:71:93 [0] NCCL INFO comm 0x55d1c8a0 rank 0 nranks 16 cudaDev 0 busId 53000",
        "No devices were found, a common reason is command line access",
        "Failed to initialize NVML: Driver/library version mismatch",
    ],
)
def test_what_a_rule_looks_at_is_not_hidden(text):
    assert evidence_mask.mask(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "CPU: 3 PID: 41 Comm: secret.py Not tainted",
        'audit: comm="secret.py" exe',
        "comm secret.py",
        "task=secret.py,pid=1",
    ],
)
def test_the_name_of_a_program_is(text):
    assert "secret" not in evidence_mask.mask(text)
