"""What NVLink's states and error counters say, whole and cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate import gpu_nvlink
from slurm_ext.gate.model import conclude
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN


def states(speeds: dict[int, list[str]]) -> str:
    lines = []
    for gpu, links in speeds.items():
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})")
        lines += [f"\t Link {link}: {said}" for link, said in enumerate(links)]
    return "\n".join(lines) + "\n"


GOOD = {gpu: ["26.562 GB/s"] * 18 for gpu in range(8)}


def judge(speeds, gpu_type="h100", **more):
    return gpu_nvlink.judge_nvlink(states(speeds), gpu_type=gpu_type, **more)


def test_all_up():
    assert judge(GOOD) == []
    assert judge({gpu: ["53.125 GB/s"] * 18 for gpu in range(8)}, "b200") == []
    assert judge({gpu: ["25 GB/s"] * 12 for gpu in range(8)}, "a100") == []


def test_one_down():
    (found,) = judge(GOOD | {4: ["26.562 GB/s"] * 17 + ["<inactive>"]})
    assert (found.verdict, found.finding.id, found.finding.target) == (FAIL, "gpu.nvlink-down", "gpu:4")
    (found,) = judge(GOOD | {4: []})
    assert (found.verdict, found.finding.target) == (FAIL, "gpu:4")


def test_none_up_in_words():
    text = states({0: []}) + "\tUnable to retrieve NVLink information as all links are inActive\n"
    assert conclude(gpu_nvlink.judge_nvlink(text, gpu_type="h100")).verdict == FAIL


def test_soon_after_boot_it_may_still_train():
    (found,) = judge(GOOD | {4: ["<inactive>"] * 18}, boot_age_s=60.0)
    assert found.verdict == UNKNOWN


def test_under_mig_there_is_none_to_speak_of():
    assert judge(GOOD | {4: ["<inactive>"] * 18}, under_mig={4}) == []


def test_a_slow_link():
    (found,) = judge(GOOD | {4: ["26.562 GB/s"] * 17 + ["13.281 GB/s"]})
    assert (found.verdict, found.finding.id) == (WARN, "gpu.nvlink-speed")


def test_an_unknown_type_is_compared_with_itself_only():
    assert judge({0: ["100 GB/s"] * 36}, "r100") == []
    assert conclude(judge({0: ["100 GB/s"] * 35 + ["<inactive>"]}, "r100")).verdict == FAIL


@given(st.integers(0, len(states(GOOD))))
def test_a_cut_list_convicts_nobody(cut):
    assert conclude(gpu_nvlink.judge_nvlink(states(GOOD)[:cut], gpu_type="h100")).verdict in (PASS, UNKNOWN)


@given(st.text(max_size=300))
def test_noise_convicts_nobody(text):
    assert conclude(gpu_nvlink.judge_nvlink(text, gpu_type="h100")).verdict in (PASS, UNKNOWN)
    assert conclude(gpu_nvlink.judge_errors(text)).verdict == PASS


@pytest.mark.parametrize(
    "name",
    ["Replay Errors", "Recovery Errors", "CRC Errors", "Rx Errors", "Symbol Errors", "Link recovery failed events"],
)
def test_a_counted_error_is_told(name):
    text = f"GPU 0: x\n\t Link 0: {name}: 0\nGPU 3: x\n\t Link 7: {name}: 12\n"
    (found,) = gpu_nvlink.judge_errors(text)
    assert (found.verdict, found.finding.target) == (WARN, "gpu:3")
    assert found.finding.evidence[0] == f"link 7: 12 {name}"


def test_what_counts_on_every_sound_link_is_no_error():
    text = (
        "GPU 0: NVIDIA B200\n\t Link 0: Tx packets: 812\n\t Link 0: FEC Errors - 0: 17941761\n\t Link 0: Effective BER: "
        "15e-255\n\t Link 0: Link recovery successful events: 1\n\t Link 0: Symbol Errors: 0\n"
    )
    assert gpu_nvlink.judge_errors(text) == []
