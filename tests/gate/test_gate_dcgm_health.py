"""DCGM's health watches: dcgmi's JSON, what convicts, what is a person's, what repeats others' findings, and noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.aws import catalogue
from slurm_ext.config.model import Settings
from slurm_ext.gate import ask_dcgm, dcgm_health, dcgm_settle, probe_dcgm, probes, rules
from slurm_ext.gate.model import Facts, Gpu, Judged, KernelLine, Smi, judged
from slurm_ext.verdict import ACTIONS, FAIL, PASS, UNKNOWN, VERDICTS, WARN

Found = tuple[str, str, str, str]


def cut(text: str) -> list[str]:
    """Cut a text into lines as Health.cpp does: at words, 54 characters at most."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > 54:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]


def system(health: str, *said: str) -> dict[str, Any]:
    return {"value": health, "overflow": cut(", ".join(said))}


def entity(health: str, **systems: dict[str, Any]) -> dict[str, Any]:
    told = {name.replace("_", " "): one for name, one in systems.items()}
    return {"value": health, "children": {"Errors": {"children": told}}}


def answer(overall: str, gpus: dict[str, Any] | None = None, *, group: str = "GPU") -> str:
    body: dict[str, Any] = {"Overall Health": {"value": overall}}
    if gpus:
        body[group] = {"children": gpus}
    return json.dumps({"body": body, "header": ["Health Monitor Report"]}, indent=3) + "\n"


def found(text: str) -> list[Found]:
    return [(one.verdict, *one.finding[:3]) for one in dcgm_health.judge(dcgm_health.parse(text))]


def memory(health: str, *said: str) -> str:
    return answer(health, {"3": entity(health, Memory_system=system(health, *said))})


DOUBLE_BIT = "Detected 2 volatile double-bit ECC error(s) in GPU 3."
REMAP = "GPU 3 had uncorrectable memory errors and row remapping failed."
PENDING = "A pending retired page has been detected in GPU 3."
OFF_BUS = "GPU 3 has fallen off the bus (triggered by XID 79: GPU %d has fallen off the bus)"
XID_64 = f"{REMAP} (triggered by XID 64: {REMAP})"
XID_31 = "Detected XID 31 for GPU 3 (triggered by XID 31: MMU Error)"
CONTAINED = "GPU had a contained error. (triggered by XID 94: GPU had a contained error.)"
NVLINK = "Detected 4 Replay NvLink errors on GPU 3's NVLink (should be 0)"

CASES: list[tuple[str, str, list[Found]]] = [
    ("well", answer("Healthy"), []),
    ("double-bit errors", memory("Failure", DOUBLE_BIT), [(FAIL, "gpu.ecc-uncorrected", "gpu:3", "reset-gpu")]),
    ("a failed remap", memory("Failure", REMAP), [(FAIL, "gpu.row-remap-failure", "gpu:3", "replace")]),
    (
        "retired pages",
        memory("Failure", "64 or more retired pages have been detected in GPU 3. "),
        [(FAIL, "gpu.retired-pages-full", "gpu:3", "replace")],
    ),
    (
        "memory that cannot be repaired",
        memory("Failure", "Found 1 faulty memory elements on GPU 3"),
        [(FAIL, "gpu.unrepairable-memory", "gpu:3", "replace")],
    ),
    ("a page that waits", memory("Warning", PENDING), [(WARN, "gpu.retired-pages-pending", "gpu:3", "reset-gpu")]),
    (
        "two of one system: the worst word stands for both",
        memory("Failure", PENDING, DOUBLE_BIT),
        [
            (FAIL, "gpu.ecc-uncorrected", "gpu:3", "reset-gpu"),
            (WARN, "gpu.retired-pages-pending", "gpu:3", "reset-gpu"),
        ],
    ),
    (
        "a recovery that the driver asks for",
        answer(
            "Failure",
            {
                "0": entity(
                    "Failure",
                    Driver=system(
                        "Failure", "GPU 0 requires a reset to recover from a fault. Recovery action: 1 (GPU_RESET)."
                    ),
                )
            },
        ),
        [(FAIL, "gpu.recovery-action", "gpu:0", "reset-gpu")],
    ),
    (
        "peers that must be quiet are no failure",
        answer(
            "Warning",
            {"0": entity("Warning", Driver=system("Warning", "GPU 0 requires x. Recovery action: 3 (DRAIN_P2P)."))},
        ),
        [(WARN, "gpu.recovery-action", "gpu:0", "warn")],
    ),
    (
        "an Xid is the kernel's to judge, in every system",
        answer("Failure", {"3": entity("Failure", Internal_error=system("Failure", OFF_BUS, CONTAINED))}),
        [(PASS, "gpu.xid-79", "gpu:3", "none"), (PASS, "gpu.xid-94", "gpu:3", "none")],
    ),
    ("a user's own Xid", memory("Warning", XID_31), [(PASS, "gpu.xid-31", "gpu:3", "none")]),
    ("what an Xid alone tells of", memory("Failure", XID_64), [(PASS, "gpu.xid-64", "gpu:3", "none")]),
    (
        "an Xid, and the value itself",
        memory("Failure", DOUBLE_BIT, XID_64),
        [(PASS, "gpu.xid-64", "gpu:3", "none"), (FAIL, "gpu.ecc-uncorrected", "gpu:3", "reset-gpu")],
    ),
    (
        "3.x: an uncontained error",
        memory("Failure", "GPU had an uncontained error (XID 95)"),
        [(PASS, "gpu.xid-95", "gpu:3", "none")],
    ),
    (
        "counters of NVLink are a person's",
        answer("Failure", {"3": entity("Failure", NVLINK_system=system("Failure", NVLINK))}),
        [(WARN, "gpu.nvlink-errors", "gpu:3", "warn")],
    ),
    (
        "a link that is down: the rule of its type decides",
        answer(
            "Failure",
            {"3": entity("Failure", NVLINK_system=system("Failure", "GPU 3's NvLink link 4 is currently down"))},
        ),
        [(WARN, "gpu.nvlink-down", "gpu:3", "warn")],
    ),
    (
        "heat",
        answer(
            "Warning",
            {
                "3": entity(
                    "Warning",
                    Thermal_system=system("Warning", "Detected clock throttling due to thermal violation in GPU 3."),
                )
            },
        ),
        [],
    ),
    (
        "IMEX is no GPU's fault",
        answer(
            "Failure",
            {"0": entity("Failure", Internal_error=system("Failure", "IMEX daemon status is DOWN (not READY)"))},
        ),
        [(WARN, "dcgm-health.other", "gpu:0", "warn")],
    ),
    ("a warning that nobody knows", memory("Warning", "odd"), [(WARN, "dcgm-health.memory", "gpu:3", "warn")]),
    ("a failure that nobody knows", memory("Failure", "odd"), [(UNKNOWN, "dcgm-health.unknown", "gpu:3", "none")]),
    ("a failure without a word", memory("Failure", ""), [(UNKNOWN, "dcgm-health.unknown", "gpu:3", "none")]),
    (
        "a word that nobody knows",
        memory("Splendid", DOUBLE_BIT),
        [(UNKNOWN, "dcgm-health.unknown", "gpu:3", "none"), (UNKNOWN, "dcgm-health.unknown", "node", "none")],
    ),
    ("a failure of nothing", answer("Failure"), [(UNKNOWN, "dcgm-health.unknown", "node", "none")]),
    (
        "an entity that fails in no system",
        answer("Failure", {"1": {"value": "Failure"}}),
        [(UNKNOWN, "dcgm-health.unknown", "gpu:1", "none")],
    ),
    (
        "a part of a GPU under MIG",
        answer("Failure", {"7": entity("Failure", Memory_system=system("Failure", DOUBLE_BIT))}, group="GPU-I"),
        [(WARN, "dcgm-health.other", "node", "warn")],
    ),
    (
        "an NVSwitch",
        answer(
            "Failure",
            {"2": entity("Failure", Internal_error=system("Failure", "Detected fatal errors on NvSwitch 2 link 3"))},
            group="Switch",
        ),
        [(WARN, "dcgm-health.other", "node", "warn")],
    ),
    (
        "no JSON",
        "Error: Unable to check health watches. Return: x",
        [(UNKNOWN, "dcgm-health.no-answer", "node", "none")],
    ),
    ("nothing", "", [(UNKNOWN, "dcgm-health.no-answer", "node", "none")]),
    ("another form", '{"health": "ok"}', [(UNKNOWN, "dcgm-health.no-answer", "node", "none")]),
    ("cut", memory("Failure", DOUBLE_BIT)[:120], [(UNKNOWN, "dcgm-health.no-answer", "node", "none")]),
    ("too deep", "{" + '"a":[' * 50_000 + "]" * 50_000 + "}", [(UNKNOWN, "dcgm-health.no-answer", "node", "none")]),
]
CASES = [case if case[0] != "heat" else (*case[:2], [(WARN, "dcgm-health.thermal", "gpu:3", "warn")]) for case in CASES]


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_an_answer_means(text: str, expected: list[Found]) -> None:
    assert sorted(found(text)) == sorted(expected)


def test_what_dcgmi_says_for_itself() -> None:
    assert dcgm_health.parse("Error: Health watches not enabled. Please enable watches. \n").is_off
    absent = "Error: unable to establish a connection to the specified host: localhost\nError: Unable to connect to host engine. x.\n"
    assert dcgm_health.parse(absent).is_absent
    said = "Error: Unable to connect to host engine. Host engine is not running.\n"
    assert dcgm_health.parse(said) == dcgm_health.Report(is_absent=True)


def is_sound(items: list[Judged]) -> bool:
    return all(one.verdict in VERDICTS and one.finding.action in ACTIONS for one in items)


@given(st.text(max_size=200) | st.text(alphabet='{}[]":,bodyGPU childrenvalue01 ', max_size=200))
def test_noise_convicts_nobody(text: str) -> None:
    items = dcgm_health.judge(dcgm_health.parse(text))
    assert is_sound(items)
    assert not any(one.verdict == FAIL for one in items)


_WORDS = ("body", "Overall Health", "GPU", "children", "value", "Errors", "overflow", "3", "Memory system", "Driver")
_LEAF = st.sampled_from(["Failure", "Warning", "Healthy", DOUBLE_BIT, XID_64, "", "(triggered by XID 1: (("])
_JSON = st.recursive(
    st.none() | st.integers(-2, 9) | _LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=5),
    max_leaves=20,
)


@given(_JSON)
def test_any_shape_is_read_without_an_error_of_ours(data: Any) -> None:
    for text in (data, {"body": data}, {"body": {"Overall Health": {"value": "Failure"}, "GPU": data}}):
        assert is_sound(dcgm_health.judge(dcgm_health.parse(json.dumps(text))))


@given(
    st.lists(st.sampled_from([DOUBLE_BIT, REMAP, PENDING, OFF_BUS, XID_64, XID_31, CONTAINED]), min_size=1, max_size=5)
)
def test_only_what_is_told_by_itself_convicts(said: list[str]) -> None:
    failed = {
        one.finding.id for one in dcgm_health.judge(dcgm_health.parse(memory("Failure", *said))) if one.verdict == FAIL
    }
    expected = {
        id_ for text, id_ in ((DOUBLE_BIT, "gpu.ecc-uncorrected"), (REMAP, "gpu.row-remap-failure")) if text in said
    }
    assert failed <= expected, "never by an Xid alone"
    if not any(text in said for text in (OFF_BUS, XID_64, XID_31, CONTAINED)):
        assert failed == expected


# --- beside nvidia-smi and the kernel ---

ROW = catalogue.find("p5.4xlarge")
GPU = Gpu(number=0, pci="0000:53:00", ecc_uncorrected=0, recovery="None")
ECC = judged(FAIL, "gpu.ecc-uncorrected", "gpu:0", "reset-gpu", "DCGM watches Memory system: 2 errors")
XID = judged(PASS, "gpu.xid-48", "gpu:0", "none", "DCGM watches Memory system: Detected XID 48")


def facts(gpu: Gpu = GPU, **more: Any) -> Facts:
    return Facts(smi=Smi((gpu,), attached=1), kernel=(), probed={"dcgm": probes.Probed((ECC, XID))}, **more)


def test_what_nvidia_smi_reads_as_good_convicts_nobody() -> None:
    (item,) = dcgm_settle.settle([ECC], [], facts(), ROW)
    assert (item.verdict, *item.finding[:3]) == (WARN, "dcgm-health.contradicted", "gpu:0", "warn")
    assert item.finding.evidence[0] == ECC.finding.evidence[0]


def test_what_nvidia_smi_cannot_read_or_tells_itself_stands() -> None:
    assert dcgm_settle.settle([ECC], [], facts(GPU._replace(ecc_uncorrected=None)), ROW) == [ECC]
    assert dcgm_settle.settle([ECC], [], Facts(), ROW) == [ECC]
    mine = judged(FAIL, "gpu.ecc-uncorrected", "gpu:0", "reset-gpu", "2 uncorrected ECC errors")
    assert dcgm_settle.settle([ECC], [mine], facts(), ROW) == [ECC]


def test_what_both_see_comes_out_as_one_finding() -> None:
    line = KernelLine("NVRM: Xid (PCI:0000:53:00): 48, pid=1, DBE", 1.0)
    seen = facts(GPU._replace(ecc_uncorrected=2))._replace(kernel=(line,))
    items = rules.judge(seen, Settings(), ROW)
    ids = [(item.finding.id, item.finding.target) for item in items]
    assert ids.count(("gpu.ecc-uncorrected", "gpu:0")) == 1
    assert ids.count(("gpu.xid-48", "gpu@0000:53:00")) == 1
    assert not [one for one in ids if one == ("gpu.xid-48", "gpu:0")]
    told = next(item for item in items if item.finding.id == "gpu.ecc-uncorrected")
    assert told.verdict == FAIL
    assert ECC.finding.evidence[0] in told.finding.evidence


# --- asked ---


def here(tmp_path: Path, script: str, **gate: Any) -> probes.Here:
    root = tmp_path / "root"
    if script:
        (root / "usr/bin").mkdir(parents=True, exist_ok=True)
        (root / "usr/bin/dcgmi").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n{script}\n')
        (root / "usr/bin/dcgmi").chmod(0o755)
    (tmp_path / "run").mkdir(exist_ok=True)
    plain = Settings()
    settings = plain._replace(site=plain.site._replace(run_dir=str(tmp_path / "run")), gate=plain.gate._replace(**gate))
    return probes.Here(str(root), "n0", "health", settings)


OFF = "echo 'Error: Health watches not enabled. Please enable watches. '; exit 253"


def asked(tmp_path: Path) -> list[str]:
    return (tmp_path / "asked").read_text().splitlines()


def test_without_dcgm_or_its_daemon_nothing_is_found(tmp_path: Path) -> None:
    assert ask_dcgm.watches(here(tmp_path, "")) == ((), ask_dcgm.NO_TOOL)
    gone = "echo 'Error: unable to establish a connection to the specified host: localhost'; exit 235"
    assert ask_dcgm.watches(here(tmp_path, gone)) == ((), ask_dcgm.NO_DAEMON)
    probed = probe_dcgm.look(here(tmp_path, "exit 9", dcgm_health="off"))
    assert (probed.items, probed.kept) == ((), {})
    assert asked(tmp_path) == ["health -c -j"]


def test_it_lets_dcgm_watch_where_it_watches_nothing_and_only_once(tmp_path: Path) -> None:
    place = here(tmp_path, f'case "$*" in *-s*) exit 0;; esac\n{OFF}', dcgm_health="watch")
    assert ask_dcgm.watches(place) == ((), "DCGM watches from now on")
    items, why = ask_dcgm.watches(place)
    assert items == ()
    assert why == "DCGM watches nothing, though it was told to within the last day"
    assert asked(tmp_path) == ["health -c -j", "health -s a", "health -c -j"]


def test_where_only_reading_is_asked_for_nothing_is_set(tmp_path: Path) -> None:
    items, why = ask_dcgm.watches(here(tmp_path, OFF, dcgm_health="read"))
    assert items == ()
    assert why.startswith("DCGM watches nothing: ")
    assert asked(tmp_path) == ["health -c -j"]


def test_an_answer_is_judged_and_one_that_does_not_come_is_unknown(tmp_path: Path) -> None:
    probed = probe_dcgm.look(here(tmp_path, f"cat <<'X'\n{memory('Failure', DOUBLE_BIT)}\nX"))
    assert [(item.verdict, item.finding.id) for item in probed.items] == [(FAIL, "gpu.ecc-uncorrected")]
    assert probed.kept == {"watches": ""}
    items, why = ask_dcgm.watches(here(tmp_path, "exec sleep 600", deadline_s=0.5))
    assert [(item.verdict, item.finding.id) for item in items] == [(UNKNOWN, "dcgm-health.no-answer")]
    assert why == ""
