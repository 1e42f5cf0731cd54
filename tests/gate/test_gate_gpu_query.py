"""The live question to nvidia-smi: which fields, of which driver, and what odd values in its answer come to."""

from __future__ import annotations

import pytest
from gpu_answers import HEALTHY, answer, uuid
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate import gpu_rules, smi
from slurm_ext.gate.model import Gpu, Smi, conclude
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN


def judge(text: str, **more):
    return gpu_rules.judge(smi.parse_csv(text), expected_gpus=8, **more)


def refusal(name: str) -> str:
    return f'Field "{name}" is not a valid field to query.\n\n'


def test_a_healthy_answer_is_quiet_and_says_nothing():
    parsed = smi.parse_csv(answer())
    assert smi.quiet(parsed, expected_gpus=8)
    assert gpu_rules.judge(parsed, expected_gpus=8) == []
    gpu = parsed.gpus[3]
    assert (gpu.driver, gpu.vbios, gpu.tlimit_c, gpu.memory_used_mib) == ("590.48.01", "96.00.A5.00.03", 59, 614)


def test_a_refused_field_takes_its_whole_feature_out_and_nothing_else():
    assert smi.refused(answer(), ()) is None
    assert smi.refused(refusal("fabric.status"), ()) == ("fabric",)
    assert smi.refused(refusal("gpu_recovery_action"), ("fabric",)) == ("fabric", "recovery")
    without = smi.fields(("fabric", "recovery"))
    assert set(smi.fields()) - set(without) == {"fabric.state", "fabric.status", "gpu_recovery_action"}


def test_a_refusal_that_names_no_field_of_ours_leaves_what_every_driver_knows():
    assert smi.refused(refusal("a.field.of.tomorrow"), ()) == tuple(smi.GROUPS)
    assert smi.fields(tuple(smi.GROUPS)) == smi.QUERY


@pytest.mark.parametrize(
    ("cells", "verdict", "id_", "action"),
    [
        ({"ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "Yes"}, FAIL, "gpu.sram-threshold", "replace"),
        ({"ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "1"}, FAIL, "gpu.sram-threshold", "replace"),
        ({"remapped_rows.pending": "1"}, WARN, "gpu.row-remap-pending", "reset-gpu"),
        ({"remapped_rows.failure": "Yes"}, FAIL, "gpu.row-remap-failure", "replace"),
        ({"gpu_recovery_action": "Drain and Reset"}, FAIL, "gpu.recovery-action", "reset-gpu"),
        ({"gpu_recovery_action": "System Reboot"}, FAIL, "gpu.recovery-action", "reboot"),
        ({"gpu_recovery_action": "Dance"}, UNKNOWN, "gpu.recovery-action-unknown", "drain"),
        ({"temperature.gpu.tlimit": "-1"}, WARN, "gpu.hot", "warn"),
        ({"temperature.gpu.tlimit": "0 C"}, WARN, "gpu.hot", "warn"),
        ({"pcie.link.width.current": "8"}, WARN, "gpu.pcie-width", "warn"),
        ({"fabric.status": "Insufficient Resources"}, FAIL, "gpu.fabric-failed", "drain"),
        ({"fabric.state": "In Progress", "fabric.status": "N/A"}, UNKNOWN, "gpu.fabric-not-ready", "drain"),
        ({"ecc.errors.uncorrected.volatile.total": "2"}, FAIL, "gpu.ecc-uncorrected", "reset-gpu"),
        *(
            ({name: "[Unknown Error]"}, UNKNOWN, "gpu.values-unreadable", "drain")
            for name in (
                *("ecc.errors.uncorrected.volatile.total", "remapped_rows.failure", "gpu_recovery_action"),
                *("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", "fabric.state", "fabric.status"),
            )
        ),
        ({"ecc.errors.uncorrected.volatile.total": "-1"}, UNKNOWN, "gpu.values-unreadable", "drain"),
        ({"ecc.errors.uncorrected.volatile.total": "many"}, UNKNOWN, "gpu.values-unreadable", "drain"),
        ({"remapped_rows.failure": "Perhaps"}, UNKNOWN, "gpu.values-unreadable", "drain"),
        ({"temperature.gpu.tlimit": "ERR!", "memory.used": "ERR!"}, UNKNOWN, "gpu.values-unreadable", "drain"),
        (dict.fromkeys(smi.GROUPS["counters"], "ERR!"), UNKNOWN, "gpu.values-unreadable", "drain"),
        (dict.fromkeys(HEALTHY, "[GPU requires reset]"), FAIL, "gpu.requires-reset", "reset-gpu"),
        (dict.fromkeys(HEALTHY, "[GPU is lost]"), FAIL, "gpu.lost", "reboot"),
        (dict.fromkeys(HEALTHY, "[Unknown Error]"), UNKNOWN, "gpu.values-unreadable", "drain"),
        (dict.fromkeys(HEALTHY, "ERR!"), UNKNOWN, "gpu.values-unreadable", "drain"),
        (dict.fromkeys(set(smi.fields()) - {"index"}, "[N/A]"), UNKNOWN, "gpu.values-unreadable", "drain"),
        (dict.fromkeys(set(smi.fields()) - {"index"}, ""), UNKNOWN, "gpu.values-unreadable", "drain"),
    ],
)
def test_one_gpu_with_other_values(cells, verdict, id_, action):
    text = answer(change={5: cells})
    assert not smi.quiet(smi.parse_csv(text), expected_gpus=8)
    (found,) = judge(text)
    assert (found.verdict, found.finding.id, found.finding.target) == (verdict, id_, "gpu:5")
    assert found.finding.action == action


@pytest.mark.parametrize(
    "word", ["[N/A]", "N/A", "[Not Supported]", "[Requested functionality has been deprecated]", ""]
)
def test_a_value_that_is_not_there_is_never_a_fault(word):
    names = [name for name in HEALTHY if name not in ("gpu_recovery_action", "fabric.status")]
    for name in names:
        assert conclude(judge(answer(change={2: {name: word}}))).verdict == PASS, name


def test_a_new_word_is_never_a_fault_and_where_it_decides_never_a_pass():
    for name in HEALTHY:
        verdict = conclude(judge(answer(change={2: {name: "a new word"}}))).verdict
        decides = name in (
            *("ecc.errors.uncorrected.volatile.total", "remapped_rows.failure", "gpu_recovery_action", "fabric.status"),
            *("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",),
        )
        if name == "fabric.status":
            assert verdict == FAIL  # anything but Success is an error of the registration, by NVML's own table
        else:
            assert verdict == (UNKNOWN if decides else PASS), name


def test_an_old_driver_tells_what_it_knows():
    text = answer(change={1: {"remapped_rows.failure": "1"}}, without=tuple(smi.GROUPS))
    assert [item.finding.id for item in judge(text)] == ["gpu.row-remap-failure"]
    assert judge(answer(without=tuple(smi.GROUPS))) == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("3", 3), ("16x", 16), ("-4", -4), ("-4 C", -4), ("418223901 us", 418223901), ("", None), ("N/A", None)),
        *(("9" * 30, None), ("-", None), ("1 2", 1), ("²", None)),
    ],
)
def test_numbers(text, number):
    assert smi.count(text) == number


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:B9:00.0", "0000:b9:00"),
        ("0000:B9:00", "0000:b9:00"),
        ("0000:B9:00.0", "0000:b9:00"),
        ("00010000:1A:00.0", "10000:1a:00"),
        ("0000001G:1A:00.0", ""),
        ("[N/A]", ""),
    ],
)
def test_addresses(text, address):
    assert smi.pci_address(text) == address


@pytest.mark.parametrize(("name", "value"), [("uuid", uuid(7)), ("pci.bus_id", "00000000:CA:00.0")])
def test_a_gpu_that_is_listed_twice_leaves_another_unseen(name, value):
    parsed = smi.parse_csv(answer(change={3: {name: value}}))
    assert not smi.quiet(parsed, expected_gpus=8)
    (found,) = gpu_rules.judge(parsed, expected_gpus=8)
    assert (found.verdict, found.finding.id, found.finding.target) == (UNKNOWN, "gpu.list-incomplete", "node")
    assert found.finding.evidence[0].endswith("is listed twice")


cells = st.sampled_from(
    [
        *("0", "1", "2", "Yes", "No", "None", "Reset", "[N/A]", "ERR!", "[Unknown Error]", "Enabled", "Disabled", "16"),
        *("8", "Completed", "Success", "In Progress", "P0", "P8", "-3", "12 us", "[GPU is lost]", ""),
    ]
)


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(sorted(HEALTHY)), cells), max_size=4))
def test_what_is_taken_for_quiet_has_nothing_to_tell(changes):
    change: dict[int, dict[str, str]] = {}
    for number, name, cell in changes:
        change.setdefault(number, {})[name] = cell
    parsed = smi.parse_csv(answer(change=change))
    if smi.quiet(parsed, expected_gpus=8):
        assert gpu_rules.judge(parsed, expected_gpus=8) == []


@given(st.text(max_size=400), st.integers(0, 3000))
def test_noise_and_a_cut_answer_never_fail_a_node(noise, cut):
    assert conclude(gpu_rules.judge(smi.parse_csv(noise), expected_gpus=8)).verdict in (UNKNOWN, FAIL)
    whole = answer()
    parsed = smi.parse_csv(whole[:cut])
    if cut < len(whole) - 1:
        assert not smi.quiet(parsed, expected_gpus=8)
    assert conclude(gpu_rules.judge(parsed._replace(complete=parsed.complete and cut >= len(whole)))).verdict != FAIL


@pytest.mark.parametrize("at", [0, 3, 9])
def test_a_warning_before_the_table_between_its_rows_or_after_it(at):
    lines = answer().splitlines()
    text = "\n".join([*lines[:at], "WARNING: infoROM is corrupted at gpu 0000:75:00.0", *lines[at:]]) + "\n"
    (found,) = judge(text)
    assert (found.finding.id, found.verdict) == ("gpu.inforom-corrupt", WARN)


def test_quiet_asks_for_all_of_it():
    whole = smi.parse_csv(answer())
    assert not smi.quiet(whole, expected_gpus=9)
    assert not smi.quiet(whole._replace(exit_code=255), expected_gpus=8)
    assert not smi.quiet(whole._replace(said="something"), expected_gpus=8)
    assert not smi.quiet(whole._replace(complete=False), expected_gpus=8)
    assert not smi.quiet(Smi(), expected_gpus=None)
    assert not smi.quiet(Smi((Gpu(number=0, trouble="GPU is lost"),)), expected_gpus=1)
