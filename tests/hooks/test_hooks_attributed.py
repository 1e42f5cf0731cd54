"""What is told of a job's time on a node: by process and GPU where the kernel names them, and only what is new."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate.model import Gpu, judged
from slurm_ext.hooks.attributed import ENTRIES_MAX, of_job
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

A, B = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52", "GPU-00000000-d9cf-fef3-62e9-d92044ab6e52"
GPUS = (Gpu(0, "0000:53:00", uuid=A), Gpu(1, "0000:64:00", uuid=B))
XID = "NVRM: Xid (PCI:0000:64:00): 31, pid=4242, name=python3, Ch 00000008, MMU Fault"


def test_an_xid_is_told_with_its_process_and_whether_its_gpu_is_the_jobs():
    (told,) = of_job([XID, XID], [], known=None, gpus=GPUS, gpu_ids=("1",))
    assert told == {
        "id": "gpu.xid-31",
        "target": "gpu:1",
        "count": 2,
        "evidence": XID,
        "pid": 4242,
        "of_job": True,
    }


def test_whose_gpu_it_is():
    def ours(*gpu_ids, gpus=GPUS):
        return of_job([XID], [], known=None, gpus=gpus, gpu_ids=gpu_ids)[0].get("of_job")

    assert ours("0") is False
    assert ours(B) is True
    assert ours(B.lower()) is True
    assert ours(A) is False
    assert ours(f"MIG-{B}/1/0") is True
    assert ours("MIG-11111111-d9cf-fef3-62e9-d92044ab6e52") is None  # which GPU it is a part of is not known
    assert ours() is None
    assert ours("1", gpus=()) is None  # without nvidia-smi the address is no number


def test_other_forms_of_the_line():
    lines = (
        "NVRM: Xid (PCI:0000:64:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:64:00): 62, pid='<unknown>', name=<unknown>, 2027(2d50)",
        "NVRM: Xid (0000:64:00): 48, pid=7, name=a, DBE",
        "NVRM: Xid (PCI:0000:64:00 GPU-I:03): 43, pid=8, name=b, Ch 1",
    )
    told = of_job(lines, [], known=None, gpus=GPUS)
    assert [(one["id"], one["target"], one.get("pid")) for one in told] == [
        ("gpu.xid-79", "gpu:1", None),
        ("gpu.xid-62", "gpu:1", None),
        ("gpu.xid-48", "gpu:1", 7),
        ("gpu.xid-43", "gpu:1", 8),
    ]
    assert of_job(["a user wrote: NVRM: Xid (PCI:0000:64:00): 79"], [], known=None) == []


def test_what_was_there_when_the_job_began_is_not_its():
    items = [
        judged(WARN, "gpu.persistence-off", "gpu:0", "warn", "off"),
        judged(FAIL, "efa.driver-not-bound", "efa:rdmap79s0", "drain", "gone"),
    ]
    assert of_job([], items, known=("gpu.persistence-off gpu:0",))[0] == {
        "id": "efa.driver-not-bound",
        "target": "efa:rdmap79s0",
        "action": "drain",
        "verdict": FAIL,
        "evidence": "gone",
    }
    assert len(of_job([], items, known=())) == 2
    assert of_job([], items, known=None) == []  # without a baseline nobody knows


def test_growth_is_told_in_numbers():
    retransmits = "retrans_timeout_events grew by 12 in 60 s, rx_drops grew by 3 in 60 s"
    items = [
        judged(WARN, "efa.retransmits", "efa:rdmap79s0", "warn", retransmits),
        judged(PASS, "gpu.ecc-corrected-grew", "gpu:1", "none", "4 corrected ECC errors came in this time"),
    ]
    before = {B: {"target": "gpu:1", "driver": "570", "ecc_corrected": 3, "ecc_uncorrected": 0}}
    after = {B: {"target": "gpu:1", "driver": "570", "ecc_corrected": 7, "ecc_uncorrected": 0}}
    network, memory = of_job([], items, known=(), gpus=GPUS, gpu_ids=("1",), before=before, after=after)
    assert network["delta"] == {"retrans_timeout_events": 12, "rx_drops": 3}
    assert (memory["delta"], memory["of_job"]) == ({"ecc_corrected": 4}, True)


def test_a_line_and_a_finding_of_one_event_are_told_once():
    items = [judged(FAIL, "gpu.xid-31", "gpu@0000:64:00", "reset-gpu", XID)]
    assert len(of_job([XID], items, known=(), gpus=GPUS)) == 1


def test_what_is_not_known_or_not_looked_for_before_is_nobodys():
    items = [
        judged(UNKNOWN, "gpu.nvlink-unreadable", "node", "none"),
        judged(FAIL, "gpu.nvlink-down", "gpu:1", "drain"),
    ]
    assert of_job([], items, known=(), is_slow=lambda id_: id_.startswith("gpu.nvlink")) == []
    program = judged(PASS, "job.xid-31", "job:77", "none", XID)
    assert [one["id"] for one in of_job([XID], [program], known=(), gpus=GPUS)] == ["gpu.xid-31"]


def test_there_is_an_end_to_it():
    items = [judged(WARN, f"x.{n}", "node", "warn") for n in range(ENTRIES_MAX + 7)]
    told = of_job([], items, known=())
    assert (len(told), told[-1]["count"]) == (ENTRIES_MAX + 1, 7)


@given(st.lists(st.text(max_size=120)), st.lists(st.text(max_size=50)))
def test_any_text_of_the_kernels_and_of_slurms(said, ids):
    for one in of_job(said, [], known=(), gpus=GPUS, gpu_ids=ids):
        assert one["id"].startswith("gpu.xid-")


@given(st.text(max_size=60), st.integers(0, 99999), st.sampled_from(["", ", pid=1", ", pid='<unknown>'"]))
def test_any_end_of_an_xid_line(end, code, pid):
    (told,) = of_job([f"NVRM: Xid (PCI:0000:64:00): {code}{pid}, {end}"], [], known=None, gpus=GPUS)
    assert (told["id"], told["target"]) == (f"gpu.xid-{code}", "gpu:1")
