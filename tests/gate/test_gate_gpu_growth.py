"""What grew on a GPU between two readings, and what did not though its number is another one."""

from __future__ import annotations

import json

import pytest
from gpu_answers import answer, uuid
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate import gpu_growth, smi
from slurm_ext.gate.model import conclude
from slurm_ext.verdict import FAIL, PASS, VERDICTS, WARN

THERMAL = "clocks_event_reasons_counters.hw_thermal_slowdown"
BRAKE = "clocks_event_reasons_counters.hw_power_brake_slowdown"
SOFT = "clocks_event_reasons_counters.sw_thermal_slowdown"
CAP = "clocks_event_reasons_counters.sw_power_cap"
ECC = "ecc.errors.uncorrected.volatile.total"
HOUR_S = 3600.0


def kept(**cells: str):
    """Return what is kept of a node whose GPU 2 has these cells, as it comes back from a file."""
    return json.loads(json.dumps(gpu_growth.keep(smi.parse_csv(answer(change={2: cells})))))


def grown(before: dict[str, str], after: dict[str, str], interval_s: float | None = HOUR_S):
    return gpu_growth.judge_growth(kept(**before), kept(**after), interval_s)


def us(share: float) -> str:
    return f"{int(share * HOUR_S * 1e6)} us"


def test_each_gpu_is_kept_by_its_own_name():
    found = kept()
    assert set(found) == {uuid(number) for number in range(8)}
    assert found[uuid(2)]["target"] == "gpu:2"


def test_nothing_grew():
    assert grown({}, {}) == []
    assert grown({THERMAL: us(3), ECC: "1"}, {THERMAL: us(3), ECC: "1"}) == []


@pytest.mark.parametrize(
    ("name", "share", "verdict", "id_"),
    [
        (THERMAL, 0.8, FAIL, "gpu.hw-thermal"),
        (BRAKE, 0.51, FAIL, "gpu.hw-power-brake"),
        (THERMAL, 0.4, WARN, "gpu.hw-thermal"),
        (BRAKE, 0.01, WARN, "gpu.hw-power-brake"),
        (SOFT, 0.9, WARN, "gpu.sw-thermal"),
    ],
)
def test_a_gpu_that_hardware_held_down(name, share, verdict, id_):
    (found,) = grown({name: us(5)}, {name: us(5 + share)})
    assert (found.verdict, found.finding.id, found.finding.target) == (verdict, id_, "gpu:2")
    assert found.finding.action == ("drain" if verdict == FAIL else "warn")


@pytest.mark.parametrize(("name", "share"), [(THERMAL, 0.0005), (SOFT, 0.05), (CAP, 1.0)])
def test_a_moment_of_it_or_a_power_cap_is_nothing(name, share):
    assert grown({}, {name: us(share)}) == []


def test_in_a_short_time_a_share_proves_nothing():
    (found,) = grown({}, {THERMAL: "9000000 us"}, interval_s=10.0)
    assert found.verdict == WARN
    (found,) = gpu_growth.judge_growth(kept(), kept(**{THERMAL: "9000000 us"}), 10.0, least_s=0.0)
    assert found.verdict == FAIL


def test_errors_are_counted_for_the_job_and_judged_elsewhere():
    items = grown({ECC: "1"}, {ECC: "4", "ecc.errors.corrected.volatile.total": "9"}, interval_s=None)
    assert {item.finding.id: item.finding.evidence[0].split()[0] for item in items} == {
        "gpu.ecc-uncorrected-grew": "3",
        "gpu.ecc-corrected-grew": "9",
    }
    assert conclude(items).verdict == PASS


def test_a_counter_that_went_back_is_no_growth():
    assert grown({THERMAL: us(9), ECC: "0"}, {THERMAL: us(0), ECC: "7"}) == []


def test_another_driver_another_gpu_or_no_number_is_no_growth():
    assert grown({"driver_version": "1"}, {"driver_version": "2", THERMAL: us(1)}) == []
    assert grown({THERMAL: "[N/A]"}, {THERMAL: us(1)}) == []
    assert gpu_growth.judge_growth({}, kept(**{THERMAL: us(1)}), HOUR_S) == []
    assert gpu_growth.keep(None) == {}


def test_a_clock_that_jumped_back_judges_no_share():
    assert grown({}, {THERMAL: us(1)}, interval_s=-5.0) == []
    assert grown({}, {THERMAL: us(1)}, interval_s=None) == []


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=16), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([uuid(2), "x"]), plain), st.dictionaries(st.sampled_from([uuid(2), "x"]), plain))
def test_whatever_a_file_held_it_is_judged(before, after):
    assert conclude(gpu_growth.judge_growth(before, after, HOUR_S)).verdict in VERDICTS
    assert conclude(gpu_growth.judge_growth(before, kept(), HOUR_S)).verdict == PASS
