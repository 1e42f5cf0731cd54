"""What nvidia-smi's answer means, in every form it comes in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate import gpu_nvlink, gpu_rules, smi, smi_forms
from slurm_ext.gate.model import Gpu, Smi, conclude
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, VERDICTS, WARN

HEAD = (
    "index, pci.bus_id, persistence_mode, ecc.errors.uncorrected.volatile.total, "
    "remapped_rows.pending, remapped_rows.failure, gpu_recovery_action\n"
)


def rows(count: int, **change: str) -> str:
    """Return a healthy CSV; `change` maps a GPU's number to its own row's tail."""
    return HEAD + "".join(
        f"{n}, 00000000:{0x10 + n:02X}:00.0, " + change.get(f"gpu{n}", "Enabled, 0, No, No, None") + "\n"
        for n in range(count)
    )


def judged(text: str, expected: int | None = 8, **more: object):
    return gpu_rules.judge(smi.parse_csv(text)._replace(**more), expected_gpus=expected)


def seen(items):
    return [(item.finding.id, item.finding.target, item.finding.action) for item in items]


def test_a_healthy_node_has_nothing_to_tell():
    assert judged(rows(8)) == []


@pytest.mark.parametrize(
    ("tail", "id_", "action", "verdict"),
    [
        ("Enabled, 2, No, No, None", "gpu.ecc-uncorrected", "reset-gpu", FAIL),
        ("Enabled, 0, Yes, No, None", "gpu.row-remap-pending", "reset-gpu", WARN),
        ("Enabled, 0, 1, 0, None", "gpu.row-remap-pending", "reset-gpu", WARN),
        ("Enabled, 0, No, Yes, None", "gpu.row-remap-failure", "replace", FAIL),
        ("Enabled, 0, No, No, Reset", "gpu.recovery-action", "reset-gpu", FAIL),
        ("Enabled, 0, No, No, Reboot", "gpu.recovery-action", "reboot", FAIL),
        ("Enabled, 0, No, No, Drain P2P", "gpu.recovery-action", "drain", FAIL),
        ("Enabled, 0, No, No, A word of tomorrow", "gpu.recovery-action-unknown", "drain", UNKNOWN),
        ("Disabled, 0, No, No, None", "gpu.persistence-off", "warn", WARN),
    ],
)
def test_one_bad_gpu(tail, id_, action, verdict):
    (found,) = judged(rows(8, gpu3=tail))
    assert (found.finding.id, found.finding.target, found.finding.action) == (id_, "gpu:3", action)
    assert found.verdict == verdict


@pytest.mark.parametrize("tail", ["[N/A], [N/A], [N/A], [N/A], [N/A]", "[Not Supported], [N/A], , , "])
def test_what_is_not_supported_is_not_taken_for_bad(tail):
    assert judged(rows(8, gpu3=tail)) == []


def test_a_value_that_decides_and_is_an_error_is_neither_good_nor_bad():
    (found,) = judged(rows(8, gpu3="[Not Supported], [Unknown Error], , , "))
    assert (found.verdict, found.finding.id, found.finding.target) == (UNKNOWN, "gpu.values-unreadable", "gpu:3")


def test_a_missing_gpu_shows_only_against_the_instance_type():
    assert seen(judged(rows(7))) == [("gpu.missing", "node", "reboot")]
    assert judged(rows(7), expected=None) == []


LOST = "Unable to determine the device handle for GPU 0000:B9:00.0: GPU is lost.  Reboot the system to recover this GPU"


@pytest.mark.parametrize(
    ("said", "code", "id_", "target", "verdict"),
    [
        (LOST, 15, "gpu.lost", "gpu@0000:b9:00", FAIL),
        (
            "Unable to determine the device handle for GPU0000:B9:00.0: Unknown Error",
            255,
            "gpu.lost",
            "gpu@0000:b9:00",
            FAIL,
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", 18, "gpu.driver-mismatch", "node", FAIL),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            9,
            "gpu.driver-not-loaded",
            "node",
            FAIL,
        ),
        ("No devices were found", 6, "gpu.missing", "node", FAIL),
        ("Segmentation fault", 139, "gpu.smi-failed", "node", UNKNOWN),
        ("", 0, "gpu.smi-no-answer", "node", UNKNOWN),
    ],
)
def test_no_table_but_words(said, code, id_, target, verdict):
    (found,) = gpu_rules.judge(Smi(said=said, exit_code=code, complete=False), expected_gpus=8)
    assert (found.finding.id, found.finding.target, found.verdict) == (id_, target, verdict)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("\x1b[31mgarbage \x00\nmore of it\n" * 100, 0),
        ("\x1b]0;t\x07" + "x" * 5000, 139),
        ("Driver/library version mismatch\x1b[2J" + "y" * 5000, 18),
    ],
)
def test_what_it_said_in_place_of_a_table_is_told_in_short_and_in_print(said, code):
    (found,) = gpu_rules.judge(Smi(said=said, exit_code=code, complete=False), expected_gpus=8)
    assert found.finding.evidence
    assert all(line.isprintable() and line.isascii() and len(line) <= 300 for line in found.finding.evidence)


def test_a_node_that_need_not_have_gpus_is_not_convicted_for_a_missing_driver():
    (found,) = gpu_rules.judge(Smi(said="couldn't communicate with the NVIDIA driver", exit_code=9), expected_gpus=None)
    assert found.verdict == UNKNOWN


def test_a_hang_is_unknown_and_never_a_failure():
    (found,) = gpu_rules.judge(Smi(complete=False, timed_out=True, exit_code=None, elapsed_s=10.0), expected_gpus=8)
    assert (found.finding.id, found.verdict) == ("gpu.smi-timeout", UNKNOWN)


def test_a_cut_answer_says_nothing_about_the_gpus_that_are_not_in_it():
    cut = rows(8)[:-40]
    assert conclude(judged(cut, timed_out=True, elapsed_s=9.0)).verdict == UNKNOWN
    assert conclude(judged(cut)).verdict == UNKNOWN
    lost_whole_rows = rows(5)
    assert conclude(judged(lost_whole_rows, timed_out=True, complete=False)).verdict == UNKNOWN


def test_a_conviction_holds_though_the_rest_is_cut():
    assert conclude(judged(rows(8, gpu0="Enabled, 4, No, No, None")[:-40])).verdict == FAIL


def test_fabric_needs_time_after_boot():
    waiting = Smi(tuple(Gpu(number=n, fabric_state="In Progress") for n in range(8)))
    assert conclude(gpu_rules.judge(waiting, expected_gpus=8, boot_age_s=10_000)).verdict == FAIL
    assert conclude(gpu_rules.judge(waiting, expected_gpus=8, boot_age_s=60)).verdict == UNKNOWN
    failed = Smi((Gpu(number=0, fabric_state="Completed", fabric_status="Insufficient Resources"), Gpu(number=1)))
    assert seen(gpu_rules.judge(failed)) == [("gpu.fabric-failed", "gpu:0", "drain")]


def test_slowdown_is_judged_by_the_growth_of_its_counter():
    first = Smi((Gpu(number=0, pci="a", power_brake_us=0), Gpu(number=1, pci="b", power_brake_us=5)), read_at_s=0.0)
    for grown, verdict in ((290_000_000, FAIL), (1_000_000, WARN), (0, PASS)):
        second = Smi(
            (Gpu(number=0, pci="a", power_brake_us=grown), Gpu(number=1, pci="b", power_brake_us=5)), read_at_s=300.0
        )
        assert conclude(gpu_rules.judge(first, second=second)).verdict == verdict


XML = """<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "file:///etc/passwd">
<nvidia_smi_log><attached_gpus>1</attached_gpus>
<gpu id="00000000:59:00.0"><minor_number>0</minor_number><persistence_mode>Enabled</persistence_mode>
<ecc_errors><volatile><sram_uncorrectable_parity>1</sram_uncorrectable_parity><dram_uncorrectable>2</dram_uncorrectable>
<dram_correctable>9</dram_correctable></volatile><aggregate><dram_uncorrectable>77</dram_uncorrectable></aggregate></ecc_errors>
<remapped_rows><remapped_row_pending>No</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
</gpu></nvidia_smi_log>
"""


def test_xml_counts_volatile_errors_only_and_reads_no_entity():
    (gpu,) = smi_forms.parse_xml(XML).gpus
    assert (gpu.ecc_uncorrected, gpu.pci, gpu.remap_failure) == (3, "0000:59:00", False)
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa">]><nvidia_smi_log><gpu id="00000000:59:00.0"><serial>&a;</serial></gpu>'
    assert smi_forms.parse_xml(bomb).complete is False


def test_links_of_a_generation():
    good = "GPU 0: NVIDIA H200 (UUID: GPU-0)\n" + "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18))
    assert gpu_nvlink.judge_nvlink(good, gpu_type="h200") == []
    bad = good.replace("Link 3: 26.562 GB/s", "Link 3: <inactive>")
    assert seen(gpu_nvlink.judge_nvlink(bad, gpu_type="")) == [("gpu.nvlink-down", "gpu:0", "reset-gpu")]
    assert conclude(gpu_nvlink.judge_nvlink("no such command", gpu_type="h200")).verdict == UNKNOWN


@given(st.text())
def test_every_parser_takes_whatever_comes(text):
    for parse in (smi.parse_csv, smi_forms.parse_xml, smi_forms.parse_text):
        assert conclude(gpu_rules.judge(parse(text), expected_gpus=8)).verdict in VERDICTS
    # Nothing that is no table of eight well GPUs passes.
    assert conclude(gpu_rules.judge(smi.parse_csv(text), expected_gpus=8)).verdict != PASS


def listing(form, attached, minors):
    """Return an answer in a form that prints no index, with one GPU for each minor number."""
    if form == "xml":
        gpus = "".join(
            f'<gpu id="00000000:{16 + n:02X}:00.0"><minor_number>{minor}</minor_number></gpu>'
            for n, minor in enumerate(minors)
        )
        return f"<nvidia_smi_log><attached_gpus>{attached}</attached_gpus>{gpus}</nvidia_smi_log>"
    gpus = "".join(
        f"GPU 00000000:{16 + n:02X}:00.0\n    Minor Number                : {minor}\n" for n, minor in enumerate(minors)
    )
    return f"==============NVSMI LOG==============\n\nAttached GPUs                 : {attached}\n{gpus}"


@pytest.mark.parametrize(("form", "parse"), [("xml", smi_forms.parse_xml), ("text", smi_forms.parse_text)])
@pytest.mark.parametrize(
    ("attached", "minors", "targets"),
    [
        (2, (0, 1), ["gpu:0", "gpu:1"]),
        (2, (1, 0), ["gpu:0", "gpu:1"]),  # minor numbers name /dev/nvidiaN and follow another order
        (7, (0, 1, 2, 3, 4, 6, 7), [f"gpu:{n}" for n in range(7)]),
        (8, (3,), ["gpu@0000:10:00"]),
        (8, (0, 1), ["gpu@0000:10:00", "gpu@0000:11:00"]),
        (1, (0,), ["gpu@0000:10:00"]),  # a machine's only one, or the one that a container was given
        (1, (5,), ["gpu@0000:10:00"]),
    ],
)
def test_an_index_is_known_only_from_a_whole_list(form, parse, attached, minors, targets):
    assert [gpu.target for gpu in parse(listing(form, attached, minors)).gpus] == targets


@pytest.mark.parametrize(
    ("attached", "expected_gpus", "printed", "target"),
    [
        (1, None, None, "gpu@0000:10:00"),
        (1, 8, None, "gpu@0000:10:00"),
        (1, 1, None, "gpu:0"),
        (8, 1, None, "gpu@0000:10:00"),
        (8, 8, "index, pci.bus_id\n5, 00000000:10:00.0\n", "gpu:5"),
        (1, None, "index, pci.bus_id\n0, 00000000:10:00.0\n", "gpu:0"),
        (1, None, "index, pci.bus_id\n0, 00000000:11:00.0\n", "gpu@0000:10:00"),
    ],
)
def test_an_index_that_another_view_prints_or_the_type_settles(attached, expected_gpus, printed, target):
    other = smi.parse_csv(printed) if printed else None
    answer = smi_forms.indexed(smi_forms.parse_xml(listing("xml", attached, (0,))), other, expected_gpus=expected_gpus)
    assert [gpu.target for gpu in answer.gpus] == [target]
