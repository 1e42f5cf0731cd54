"""Corrected ECC errors in their millions, and GPUs whose clocks or power limit were set lower than their siblings'."""

from __future__ import annotations

import pytest
from gpu_answers import answer

from slurm_ext.gate import gpu_rules, gpu_set_limits, smi, smi_forms
from slurm_ext.gate.model import Gpu, Judged
from slurm_ext.gate.smi import MANY_CORRECTED
from slurm_ext.verdict import PASS, WARN

GRAPHICS, GRAPHICS_DEFAULT = "clocks.applications.graphics", "clocks.default_applications.graphics"
MEMORY, MEMORY_DEFAULT = "clocks.applications.memory", "clocks.default_applications.memory"
OLD = {GRAPHICS: "1410 MHz", GRAPHICS_DEFAULT: "1410 MHz", MEMORY: "1593 MHz", MEMORY_DEFAULT: "1593 MHz"}
GONE = "[Requested functionality has been deprecated]"


def judge(change: dict[int, dict[str, str]], *, old: bool = True) -> list[Judged]:
    cells = {number: {**(OLD if old else {}), **change.get(number, {})} for number in range(8)}
    run = smi.parse_csv(answer(change=cells))
    found = gpu_rules.judge(run, expected_gpus=8)
    # Where all is plainly well no rule is loaded: nothing that a rule would tell may be taken for that.
    assert not (smi.quiet(run, expected_gpus=8) and found)
    return found


def said(items: list[Judged]) -> list[tuple[str, str, str, str]]:
    return [(item.finding.id, item.finding.target, item.verdict, item.finding.action) for item in items]


@pytest.mark.parametrize("old", [True, False])
def test_a_node_as_it_comes_says_nothing(old: bool) -> None:
    assert judge({}, old=old) == []


@pytest.mark.parametrize(
    ("count", "verdict"),
    [("0", PASS), ("19999999", PASS), (str(MANY_CORRECTED), WARN), ("900000000", WARN), ("[N/A]", PASS)],
)
def test_corrected_errors_warn_from_the_threshold_on_and_never_drain(count: str, verdict: str) -> None:
    items = judge({5: {"ecc.errors.corrected.volatile.total": count}})
    expected = [("gpu.ecc-corrected-many", "gpu:5", WARN, "warn")] if verdict == WARN else []
    assert said(items) == expected


@pytest.mark.parametrize(
    ("change", "target", "evidence"),
    [
        ({3: {GRAPHICS: "1005 MHz"}}, "gpu:3", "the application clock is 1005 MHz, 1410 by default"),
        ({3: {MEMORY: "810 MHz"}}, "gpu:3", "the application clock of its memory is 810 MHz, 1593 by default"),
        # A default that is not told: most siblings tell what is usual.
        (
            {number: {GRAPHICS_DEFAULT: "[N/A]", **({GRAPHICS: "705 MHz"} if number == 6 else {})} for number in range(8)},
            "gpu:6",
            "the application clock is 705 MHz, 1410 on most GPUs here",
        ),
        # The site raised all but one.
        (
            {number: {GRAPHICS_DEFAULT: "1275 MHz", **({GRAPHICS: "1275 MHz"} if number == 1 else {})} for number in range(8)},
            "gpu:1",
            "the application clock is 1275 MHz, 1410 on most GPUs here",
        ),
        (
            {number: {GRAPHICS: "1005 MHz"} for number in range(8)},
            "node",
            "on all 8 GPUs the application clock is 1005 MHz, 1410 by default",
        ),
    ],
)  # fmt: skip
def test_clocks_that_were_set_low(change: dict[int, dict[str, str]], target: str, evidence: str) -> None:
    (found,) = judge(change)
    assert said([found]) == [("gpu.clocks-set-low", target, WARN, "warn")]
    assert found.finding.evidence == (evidence,)


@pytest.mark.parametrize(
    "change",
    [
        {2: {GRAPHICS: "1500 MHz"}},  # one that was raised makes no other low
        {number: {GRAPHICS: "1500 MHz"} for number in range(8)},
        {2: {GRAPHICS: "[N/A]", MEMORY: "[Not Supported]"}},
        {2: {GRAPHICS: GONE, GRAPHICS_DEFAULT: GONE, MEMORY: GONE, MEMORY_DEFAULT: GONE}},
        {2: {GRAPHICS: "ERR!"}},
        # Another kind of GPU has other clocks, and is compared with its own kind.
        {2: {GRAPHICS: "900 MHz", GRAPHICS_DEFAULT: "900 MHz", "clocks.max.graphics": "1200 MHz"}},
        {2: {"power.limit": "[N/A]"}},
        {2: {"power.limit": "0.00 W"}},  # no limit, and no clock, is none
        {2: {"power.limit": "-1"}},
        {2: {GRAPHICS: "0 MHz"}},
        {number: {GRAPHICS_DEFAULT: "-1 MHz"} for number in range(8)},
        {2: {"power.limit": "750.00 W"}},
        {2: {"power.limit": "400.00 W", "power.default_limit": "400.00 W"}},
        {2: {"mig.mode.current": "[N/A]", GRAPHICS: "[N/A]"}},
    ],
)
def test_what_is_not_low_or_not_told(change: dict[int, dict[str, str]]) -> None:
    assert judge(change) == []


@pytest.mark.parametrize("old", [True, False])
def test_a_power_limit_that_was_set_low(old: bool) -> None:
    (found,) = judge({7: {"power.limit": "400.00 W"}}, old=old)
    assert said([found]) == [("gpu.power-limit-low", "gpu:7", WARN, "warn")]
    assert found.finding.evidence == ("the power limit is 400 W, 700 by default",)
    (found,) = judge({number: {"power.limit": "400.00 W"} for number in range(8)}, old=old)
    assert found.finding.target == "node"


def test_a_clock_that_holds_down_a_few_of_many() -> None:
    def run(*held: int) -> list[Judged]:
        gpus = tuple(Gpu(number=number, held_by_set_clock=number in held) for number in range(8))
        return gpu_set_limits.judge_settings(gpus)

    assert said(run(4)) == [("gpu.clocks-held", "gpu:4", WARN, "warn")]
    assert run() == []
    assert run(*range(8)) == []  # the default clock does that to all of them under load


def test_the_fields_may_be_refused_as_one_group() -> None:
    assert smi.refused(f'Field "{GRAPHICS}" is not a valid field to query.\n', ()) == ("clocks",)
    assert "power.limit" in smi.fields(("clocks",))
    assert GRAPHICS not in smi.fields(("clocks",))


XML = """<nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id="00000000:53:00.0">
<ecc_errors><volatile><sram_correctable>5</sram_correctable><sram_uncorrectable>0</sram_uncorrectable>
<dram_correctable>25000000</dram_correctable><dram_uncorrectable>0</dram_uncorrectable></volatile>
<aggregate><dram_correctable>99000000</dram_correctable></aggregate></ecc_errors>
<gpu_power_readings><current_power_limit>350.00 W</current_power_limit><default_power_limit>500.00 W</default_power_limit>
</gpu_power_readings>
<applications_clocks><graphics_clock>1005 MHz</graphics_clock><mem_clock>1593 MHz</mem_clock></applications_clocks>
<default_applications_clocks><graphics_clock>1275 MHz</graphics_clock><mem_clock>1593 MHz</mem_clock>
</default_applications_clocks><max_clocks><graphics_clock>1410 MHz</graphics_clock></max_clocks>
</gpu></nvidia_smi_log>"""

TEXT = """==============NVSMI LOG==============
Attached GPUs                             : 1
GPU 00000000:53:00.0
    ECC Errors
        Volatile
            SRAM Correctable              : 5
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 25000000
            DRAM Uncorrectable            : 0
    GPU Power Readings
        Current Power Limit               : 350.00 W
        Default Power Limit               : 500.00 W
    Applications Clocks
        Graphics                          : 1005 MHz
        Memory                            : 1593 MHz
    Default Applications Clocks
        Graphics                          : 1275 MHz
        Memory                            : 1593 MHz
    Max Clocks
        Graphics                          : 1410 MHz
"""


@pytest.mark.parametrize("run", [smi_forms.parse_xml(XML), smi_forms.parse_text(TEXT)], ids=["xml", "text"])
def test_captures_tell_the_same(run: smi.Smi) -> None:
    (gpu,) = run.gpus
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected) == (25_000_005, 0)
    assert [item.finding.id for item in gpu_rules.judge(run) if item.verdict == WARN] == [
        "gpu.ecc-corrected-many",
        "gpu.clocks-set-low",
        "gpu.power-limit-low",
    ]
