"""dcgmi's JSON of both shapes: what convicts, what only warns, what is dcgmi's own trouble, and noise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate import dcgm_diag
from slurm_ext.gate.model import Judged
from slurm_ext.verdict import ACTIONS, FAIL, PASS, UNKNOWN, WARN


def warning(text: str, error: int, severity: int) -> dict[str, Any]:
    return {"warning": text, "error_id": error, "error_category": 1, "error_severity": severity}


def entity(gpu: int, status: str, *warnings: Any, group: str = "GPU", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"entity_group": group, "entity_group_id": 1, "entity_id": gpu, "status": status, **more}
    return {**found, "warnings": list(warnings)} if warnings else found


def four(*tests: tuple[str, list[dict[str, Any]], str], **more: Any) -> str:
    """Return an answer as version 4 writes it: name, results and summary status of each test."""
    listed = [{"name": name, "results": rows, "test_summary": {"status": word}} for name, rows, word in tests]
    data = {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": listed}], **more}}
    return json.dumps({**data, "metadata": {"version": "4.5.3"}}, indent=3)


def three(*tests: tuple[str, list[dict[str, Any]]]) -> str:
    """Return an answer as version 3 writes it, with the log lines before it and the nulls between its tests."""
    listed: list[Any] = [None]
    for name, rows in tests:
        listed += [{"name": name, "results": rows}, None]
    data = {
        "DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": listed}], "version": "3.3.5"}
    }
    return f"WARNING: something happened\n{json.dumps(data)}\n"


def found(text: str) -> list[tuple[str, str, str, str]]:
    return [(one.verdict, *one.finding[:3]) for one in dcgm_diag.judge(dcgm_diag.parse(text))]


WELL = [entity(gpu, "Pass") for gpu in range(8)]
OFF_BUS = warning("GPU 3 has fallen off the bus.", 120, 2)
PERSISTENCE = warning("Persistence Mode: Persistence mode for GPU 0 is disabled.", 29, 5)
ALLOCATION = warning("Couldn't allocate at least 75% of GPU memory", 56, 4)

CASES: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
    ("well", four(("software", WELL, "Pass"), ("memory", WELL, "Pass")), []),
    ("well, version 3", three(("Denylist", [{"gpu_ids": "0,1,2,3", "status": "PASS"}])), []),
    (
        "isolate",
        four(("memory", [*WELL[:3], entity(3, "Fail", OFF_BUS)], "Fail")),
        [(FAIL, "dcgm.memory", "gpu:3", "reboot")],
    ),
    (
        "reset",
        four(("memory", [entity(1, "Fail", warning("pending row remappings", 85, 6))], "Fail")),
        [(FAIL, "dcgm.memory", "gpu:1", "reset-gpu")],
    ),
    (
        "a failed row remap is for the vendor whatever DCGM's severity says",
        four(("memory", [entity(1, "Fail", warning("row remap failure", 80, 6))], "Fail")),
        [(FAIL, "dcgm.memory", "gpu:1", "replace")],
    ),
    (
        "the SRAM threshold",
        four(("memory", [entity(1, "Fail", warning("SRAM threshold", 118, 2))], "Fail")),
        [(FAIL, "dcgm.memory", "gpu:1", "replace")],
    ),
    (
        "persistence mode fails every GPU of every healthy node that has it off",
        four(("software", [entity(gpu, "Fail", PERSISTENCE) for gpu in range(2)], "Fail")),
        [(WARN, "dcgm.software", "gpu:0", "warn"), (WARN, "dcgm.software", "gpu:1", "warn")],
    ),
    (
        "triage is for a person",
        four(("pcie", [entity(0, "Fail", warning("low bandwidth", 30, 4))], "Fail")),
        [(WARN, "dcgm.pcie", "gpu:0", "warn")],
    ),
    (
        "the worst of several counts",
        four(("memory", [entity(0, "Fail", PERSISTENCE, warning("NaN", 111, 2), warning("reset", 125, 6))], "Fail")),
        [(FAIL, "dcgm.memory", "gpu:0", "reboot")],
    ),
    (
        "a pass that could not allocate its memory is none",
        four(("memory", [entity(0, "Pass", ALLOCATION)], "Pass")),
        [(UNKNOWN, "dcgm.not-tested", "gpu:0", "none")],
    ),
    (
        "a pass with a complaint",
        four(("memory", [entity(0, "Pass", warning("sbe", 5, 1))], "Pass")),
        [(WARN, "dcgm.memory", "gpu:0", "warn")],
    ),
    (
        "a failure of no entity stands in the summary alone",
        json.dumps(
            {
                "DCGM Diagnostic": {
                    "test_categories": [
                        {
                            "tests": [
                                {
                                    "name": "software",
                                    "results": WELL,
                                    "test_summary": {"status": "Fail", "warnings": [warning("SXid", 109, 2)]},
                                }
                            ]
                        }
                    ]
                }
            }
        ),
        [(FAIL, "dcgm.software", "node", "reboot")],
    ),
    (
        "an entity that is no GPU",
        four(("cpu_eud", [entity(0, "Fail", warning("x", 95, 2), group="CPU")], "Fail")),
        [(FAIL, "dcgm.cpu-eud", "node", "reboot")],
    ),
    (
        "MIG",
        four(("memory", [entity(0, "Skip", info=["MIG is enabled"])], "Skip")),
        [(PASS, "dcgm.skipped", "node", "none")],
    ),
    (
        "failed, and nobody says how badly",
        three(("Memory", [{"gpu_ids": "3", "status": "FAIL", "warnings": ["something is wrong"]}])),
        [(UNKNOWN, "dcgm.not-tested", "gpu:3", "none")],
    ),
    (
        "version 3 with numbers",
        three(("Memory", [{"gpu_ids": "3", "status": "FAIL", "warnings": [warning("dbe", 4, 2)]}])),
        [(FAIL, "dcgm.memory", "gpu:3", "reset-gpu")],
    ),
    (
        "a severity that nobody knows",
        four(("memory", [entity(0, "Fail", warning("?", 900, 9))], "Fail")),
        [(UNKNOWN, "dcgm.not-tested", "gpu:0", "none")],
    ),
    (
        "a status that nobody knows",
        four(("memory", [entity(0, "Splendid")], "Splendid")),
        [(UNKNOWN, "dcgm.not-tested", "gpu:0", "none")],
    ),
    (
        "dcgmi's own failure",
        json.dumps({"DCGM Diagnostic": {"version": "4.2.3", "runtime_error": "Unable to connect to host engine"}}),
        [(UNKNOWN, "dcgm.no-answer", "node", "none")],
    ),
    (
        "no JSON",
        "Error: unable to establish a connection to the specified host",
        [(UNKNOWN, "dcgm.no-answer", "node", "none")],
    ),
    ("cut", four(("memory", WELL, "Pass"))[:200], [(UNKNOWN, "dcgm.no-answer", "node", "none")]),
    ("nothing", "", [(UNKNOWN, "dcgm.no-answer", "node", "none")]),
    (
        "no results",
        json.dumps({"DCGM GPU Diagnostic": {"version": "4.2.3"}}),
        [(UNKNOWN, "dcgm.no-answer", "node", "none")],
    ),
    ("too deep", "{" + '"a":[' * 50_000 + "]" * 50_000 + "}", [(UNKNOWN, "dcgm.no-answer", "node", "none")]),
]


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_an_answer_means(text: str, expected: list[tuple[str, str, str, str]]) -> None:
    assert found(text) == expected


def test_the_evidence_names_the_test_and_dcgms_own_words() -> None:
    (item,) = dcgm_diag.judge(dcgm_diag.parse(four(("memory", [entity(3, "Fail", OFF_BUS)], "Fail"))))
    assert item.finding.evidence == ("memory: GPU 3 has fallen off the bus.",)
    assert dcgm_diag.parse(four(("memory", WELL, "Pass"))).version == "4.5.3"
    assert dcgm_diag.parse(three(("x", [{"gpu_ids": "0", "status": "PASS"}]))).version == "3.3.5"


def is_sound(items: list[Judged]) -> bool:
    return all(one.verdict in (PASS, WARN, FAIL, UNKNOWN) and one.finding.action in ACTIONS for one in items)


@given(st.text(max_size=200) | st.text(alphabet='{}[]":,0DCGMtests null', max_size=200))
def test_noise_convicts_nobody(text: str) -> None:
    items = dcgm_diag.judge(dcgm_diag.parse(text))
    assert is_sound(items)
    assert not any(one.verdict == FAIL for one in items)


_NAMES = (
    *("name", "results", "status", "warnings", "warning", "tests", "entity_id", "entity_group", "gpu_ids", "info"),
    *("error_id", "error_severity", "test_summary", "category"),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.text(max_size=6) | st.sampled_from(["Pass", "Fail", "Skip"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(_NAMES),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(_JSON)
def test_any_shape_is_read_without_an_error_of_ours(data: Any) -> None:
    for root in ("DCGM Diagnostic", "DCGM GPU Diagnostic"):
        assert is_sound(dcgm_diag.judge(dcgm_diag.parse(json.dumps({root: {"test_categories": data}}))))
        assert is_sound(dcgm_diag.judge(dcgm_diag.parse(json.dumps({root: {"test_categories": [{"tests": data}]}}))))
        assert is_sound(dcgm_diag.judge(dcgm_diag.parse(json.dumps({root: {"test_categories": [{"tests": [data]}]}}))))
