"""Whose a GPU is, and what a bad one of somebody else means for a job."""

from __future__ import annotations

import os

import pytest
from gpu_answers import answer, uuid
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate import gpu_scope, gpu_whose, smi
from slurm_ext.gate.gpu_scope import ALL, NONE, SOME, UNCLEAR, Scope
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
    found = gpu_scope.of_job(NODE, told, 8, instances=gpu_scope.instances_in(LIST))
    assert found == Scope(SOME, frozenset(PCI[number] for number in numbers))


def test_slurm_counts_device_files_where_the_driver_lists_them():
    minors = gpu_scope.minors_in(
        {f"{pci}.0": f"Model: \t NVIDIA H200\nDevice Minor: \t {7 - number}\n" for number, pci in enumerate(PCI)}
    )
    assert gpu_scope.mine(NODE, ("0",), minors=minors) == ({PCI[7]}, "")


@pytest.mark.parametrize("told", [("8",), ("GPU-not-here",), ("MIG-dddd",), ("0", "x"), ("MIG-dddd",) * 8])
def test_a_word_that_names_no_gpu_here_makes_the_rest_unknown(told):
    found = gpu_scope.of_job(NODE, told, 8)
    assert (found.extent, bool(found.why), found.pcis) == (SOME, True, {PCI[0]} if "0" in told else set())


@pytest.mark.parametrize(
    ("told", "more", "extent"),
    [
        (tuple("01234567"), {}, ALL),
        (tuple(uuid(number) for number in range(8)), {}, ALL),
        (tuple(f"MIG-{number}" for number in range(8)), {}, SOME),  # eight parts of two GPUs
        (tuple("0123456"), {}, SOME),
        ((), {"managed": True}, NONE),
        ((), {"managed": False}, ALL),  # GPUs that Slurm was never told of belong to every job
        ((), {"managed": None}, UNCLEAR),
        ((), {"unclear": True, "managed": False}, UNCLEAR),
        (tuple("01234567"), {"unclear": True}, UNCLEAR),
    ],
)
def test_how_much_of_the_node_a_job_has(told, more, extent):
    parts = {f"MIG-{number}": uuid(number // 4) for number in range(8)}
    assert gpu_scope.of_job(NODE, told, 8, instances=parts, **more).extent == extent


def test_parts_of_every_gpu_are_all_of_them():
    parts = {f"MIG-{number}": uuid(number) for number in range(8)}
    assert gpu_scope.of_job(NODE, tuple(parts), 8, instances=parts).extent == ALL


@pytest.mark.parametrize("card", [None, smi.parse_csv("")])
def test_where_nvidia_smi_tells_of_no_gpu_every_one_decides(card):
    assert gpu_scope.of_job(card, ("0",), 8).extent == ALL


def of_gpu(number):
    return Scope(SOME, frozenset({PCI[number]}))


BAD = judged(FAIL, "gpu.ecc-uncorrected", "gpu:5", "reset-gpu", "2 errors")
XID = judged(FAIL, "gpu.xid-79", f"gpu@{PCI[5]}", "reboot", "gone")


@pytest.mark.parametrize("item", [BAD, XID, judged(UNKNOWN, "gpu.recovery-action-unknown", "gpu:5", "drain", "a word")])
def test_a_bad_gpu_fails_its_own_job_and_is_told_to_another(item):
    assert gpu_scope.narrow([item], NODE, of_gpu(5)) == [item]
    (told,) = gpu_scope.narrow([item], NODE, of_gpu(0))
    assert (told.verdict, told.finding.action, told.finding.target) == (WARN, item.finding.action, item.finding.target)
    assert told.finding.evidence[-1] == "this GPU is not one of the job's"
    assert gpu_scope.narrow([item], NODE, Scope(ALL)) == [item]


@pytest.mark.parametrize("target", ["node", "nvswitch:0", "gpu:12", "efa:rdmap79s0"])
def test_what_is_no_known_gpu_decides_for_every_job(target):
    item = judged(FAIL, "x", target, "drain", "y")
    assert gpu_scope.narrow([item], NODE, of_gpu(0)) == [item]


@pytest.mark.parametrize("id_", ["gpu.leftover-processes", "gpu.memory-in-use", "gpu.memory-leak"])
def test_that_another_jobs_gpu_is_in_use_is_no_news(id_):
    item = judged(WARN, id_, "gpu:5", "warn", "x")
    assert gpu_scope.narrow([item], NODE, of_gpu(0)) == []
    assert gpu_scope.narrow([item], NODE, of_gpu(5)) == [item]


@pytest.mark.parametrize(
    ("item", "is_of_gpus"),
    [
        (BAD, True),
        (XID, True),
        (judged(FAIL, "gpu.missing", "node", "reboot", "7 of 8"), True),
        (judged(FAIL, "nvswitch.sxid-1", "nvswitch:0", "reboot", "x"), True),
        (judged(FAIL, "pcie.fatal", "gpu@0000:53:00", "reboot", "x"), True),
        (judged(FAIL, "efa.missing", "node", "replace", "x"), False),
    ],
)
def test_for_a_job_without_gpus_they_decide_nothing(item, is_of_gpus):
    (none,) = gpu_scope.narrow([item], NODE, Scope(NONE))
    (unclear,) = gpu_scope.narrow([item], NODE, Scope(UNCLEAR, why="why"))
    assert (none.verdict, unclear.verdict) == ((WARN, UNKNOWN) if is_of_gpus else (FAIL, FAIL))
    if is_of_gpus:
        assert none.finding.evidence[-1] == "the job has no GPUs"
        assert unclear.finding.evidence[-1] == "whose it is is not known: why"


def test_a_gpu_that_is_known_as_the_jobs_decides_though_another_is_not_found():
    scope = Scope(SOME, frozenset({PCI[5]}), "why")
    assert gpu_scope.narrow([BAD], NODE, scope) == [BAD]
    other = judged(FAIL, "gpu.ecc-uncorrected", "gpu:4", "reset-gpu", "2 errors")
    gone = judged(FAIL, "gpu.missing", "node", "reboot", "7 of 8")
    warned = judged(WARN, "gpu.hot", "gpu:4", "warn", "x")
    assert [one.verdict for one in gpu_scope.narrow([other, gone, warned], NODE, scope)] == [UNKNOWN, FAIL, WARN]


def test_a_note_stays_a_note():
    note = judged(PASS, "gpu.xid-31", "gpu:5", "none", "x")
    assert gpu_scope.narrow([note], NODE, of_gpu(0)) == [note]
    assert conclude(gpu_scope.narrow([BAD, XID], NODE, of_gpu(0))).verdict == WARN


@pytest.mark.parametrize("text", ["", "nonsense", "GPU 0: x (UUID: \n (UUID: MIG-", "No devices were found"])
def test_odd_lists(text):
    assert gpu_scope.instances_in(text) == {}
    assert gpu_scope.minors_in({"0000:53:00.0": text}) == {}


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("GresTypes=gpu\n", True),
        ('ClusterName=x\n  grestypes = "nic, GPU" # both\n', True),
        ("GresTypes=\\\ngpu\n", True),
        ("SelectType=x GresTypes=mps,gpu\n", True),
        ("#GresTypes=gpu\nNodeName=a Gres=gpu:8\n", False),
        ("GresTypes=shard,gpus\nNoGresTypes=gpu\n", False),
        ("Include more.conf\n", True),
        ("include no.conf\n", False),
        ("Include gone.conf\n", None),
        ("Include gone.conf\nGresTypes=gpu\n", True),
        ("Include loop.conf\n", None),
        ("", False),
    ],
)
def test_whether_slurm_hands_out_gpus(text, known):
    files = {"more.conf": "GresTypes=gpu", "no.conf": "ClusterName=x", "loop.conf": "Include loop.conf\n" * 30}
    assert gpu_whose.names_gpus(text, files.get) is known


@given(st.text(max_size=300), st.text(max_size=40))
def test_any_slurm_conf_is_read_to_its_end(text, word):
    assert gpu_whose.names_gpus(f"{text}\nInclude {word}", {word: text}.get) in (True, False, None)


def test_slurm_conf_as_a_file(tmp_path):
    path = tmp_path / "slurm.conf"
    assert gpu_whose.managed(str(path), "/") is None
    path.mkdir()
    assert gpu_whose.managed(str(path), "/") is None
    path.rmdir()
    os.mkfifo(path)
    assert gpu_whose.managed(str(path), "/") is None
    path.unlink()
    path.write_text("Include inner.conf\n")
    assert gpu_whose.managed(str(path), "/") is None
    (tmp_path / "inner.conf").write_text("GresTypes=gpu\n")
    assert gpu_whose.managed(str(path), "/") is True
    for place in gpu_whose.PLACES[1:2]:
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).symlink_to(path)
    assert gpu_whose.managed("", str(tmp_path)) is None  # the link's folder has no inner.conf
    (tmp_path / gpu_whose.PLACES[1]).with_name("inner.conf").write_text("ClusterName=x\n")
    assert gpu_whose.managed("", str(tmp_path)) is False
