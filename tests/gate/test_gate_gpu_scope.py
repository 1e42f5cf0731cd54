"""Whose a GPU is, and what a bad one of somebody else means for a job."""

from __future__ import annotations

import pytest
from gpu_answers import answer, uuid

from slurm_ext.gate import gpu_scope, smi
from slurm_ext.gate.model import conclude, judged
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

NODE = smi.parse_csv(answer())
PCI = [gpu.pci for gpu in NODE.gpus]

LIST = """GPU 0: NVIDIA H200 (UUID: GPU-00000000-1111-2222-3333-444444444444)
  MIG 3g.71gb     Device  0: (UUID: MIG-aaaa)
  MIG 3g.71gb     Device  1: (UUID: MIG-bbbb)
GPU 1: NVIDIA H200 (UUID: GPU-00000001-1111-2222-3333-444444444444)
  MIG 7g.141gb    Device  0: (UUID: MIG-cccc)
"""


@pytest.mark.parametrize(
    ("told", "numbers"),
    [
        (("0", "1"), {0, 1}),
        ((uuid(3),), {3}),
        (("MIG-bbbb",), {0}),
        (("MIG-cccc", "MIG-aaaa"), {0, 1}),
        ((f"MIG-{uuid(5)}/1/0",), {5}),
    ],
)
def test_the_jobs_own(told, numbers):
    found = gpu_scope.mine(NODE, told, instances=gpu_scope.instances_in(LIST))
    assert found == {PCI[number] for number in numbers}


def test_slurm_counts_device_files_where_the_driver_lists_them():
    minors = gpu_scope.minors_in(
        {f"{pci}.0": f"Model: \t NVIDIA H200\nDevice Minor: \t {7 - number}\n" for number, pci in enumerate(PCI)}
    )
    assert gpu_scope.mine(NODE, ("0",), minors=minors) == {PCI[7]}


@pytest.mark.parametrize("told", [(), ("8",), ("GPU-not-here",), ("MIG-dddd",), ("0", "x"), tuple("01234567")])
def test_where_it_cannot_be_told_every_gpu_decides(told):
    assert gpu_scope.mine(NODE, told) is None
    assert gpu_scope.mine(None, ("0",)) is None


BAD = judged(FAIL, "gpu.ecc-uncorrected", "gpu:5", "reset-gpu", "2 errors")
XID = judged(FAIL, "gpu.xid-79", f"gpu@{PCI[5]}", "reboot", "gone")


@pytest.mark.parametrize("item", [BAD, XID, judged(UNKNOWN, "gpu.recovery-action-unknown", "gpu:5", "drain", "a word")])
def test_a_bad_gpu_fails_its_own_job_and_is_told_to_another(item):
    assert gpu_scope.narrow([item], NODE, frozenset({PCI[5]})) == [item]
    (told,) = gpu_scope.narrow([item], NODE, frozenset({PCI[0]}))
    assert (told.verdict, told.finding.action, told.finding.target) == (WARN, item.finding.action, item.finding.target)
    assert told.finding.evidence[-1] == "this GPU is not one of the job's"
    assert gpu_scope.narrow([item], NODE, None) == [item]


@pytest.mark.parametrize("target", ["node", "nvswitch:0", "gpu:12", "efa:rdmap79s0"])
def test_what_is_no_known_gpu_decides_for_every_job(target):
    item = judged(FAIL, "x", target, "drain", "y")
    assert gpu_scope.narrow([item], NODE, frozenset({PCI[0]})) == [item]


@pytest.mark.parametrize("id_", ["gpu.leftover-processes", "gpu.memory-in-use", "gpu.memory-leak"])
def test_that_another_jobs_gpu_is_in_use_is_no_news(id_):
    item = judged(WARN, id_, "gpu:5", "warn", "x")
    assert gpu_scope.narrow([item], NODE, frozenset({PCI[0]})) == []
    assert gpu_scope.narrow([item], NODE, frozenset({PCI[5]})) == [item]


def test_a_note_stays_a_note():
    note = judged(PASS, "gpu.xid-31", "gpu:5", "none", "x")
    assert gpu_scope.narrow([note], NODE, frozenset({PCI[0]})) == [note]
    assert not gpu_scope.is_matter([note])
    assert gpu_scope.is_matter([BAD])
    assert conclude(gpu_scope.narrow([BAD, XID], NODE, frozenset({PCI[0]}))).verdict == WARN


@pytest.mark.parametrize("text", ["", "nonsense", "GPU 0: x (UUID: \n (UUID: MIG-", "No devices were found"])
def test_odd_lists(text):
    assert gpu_scope.instances_in(text) == {}
    assert gpu_scope.minors_in({"0000:53:00.0": text}) == {}
