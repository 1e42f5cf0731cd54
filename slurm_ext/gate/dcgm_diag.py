"""What `dcgmi diag -j` says, read by its structure, never by a word anywhere in its text. Pure.

Sources, github.com/NVIDIA/DCGM at 72fa3fe (4.x): dcgmi/Diag.cpp (how the JSON is built: "DCGM Diagnostic" > test_categories >
tests > results with entity_group and entity_id, test_summary; a warning result is shown as "Fail", so only the severity tells
them apart), nvvs/include/NvvsJsonStrings.h (names of the fields; runtime_error), dcgmlib/dcgm_errors.h (severities) and
dcgmlib/src/dcgm_errors.c (severity of each error). 3.x writes "DCGM GPU Diagnostic", gpu_ids as text, null between tests,
warnings as text or as objects, PASS and FAIL in capitals, and lines of a log before the JSON (nvvs' own JSON tests).
Standard library only: hooks import this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from slurm_ext.gate.model import Judged, judged
from slurm_ext.patterns import pattern
from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, one_line

#: An answer for sixteen GPUs with every warning has a few hundred kilobytes.
MAX_CHARS = 8 << 20

#: dcgmErrorSeverity_t.
NONE, MONITOR, ISOLATE, UNRECOGNISED, TRIAGE, CONFIG, RESET = range(7)

#: What a severity means for a job that wants to start, and what to do. Isolate is "cannot perform workload"; a reboot is the
#: first step of it, and the ladder replaces what comes back. Triage and config are for a person, and drain nothing.
_SEVERITIES: Mapping[int, tuple[str, str]] = {
    MONITOR: (WARN, "warn"),
    ISOLATE: (FAIL, "reboot"),
    TRIAGE: (WARN, "warn"),
    CONFIG: (WARN, "warn"),
    RESET: (FAIL, "reset-gpu"),
}

#: Errors (DCGM_FR_*) whose action NVIDIA words elsewhere more exactly than their severity does.
_ACTIONS: Mapping[int, str] = {
    4: "reset-gpu",  # volatile double-bit error: Xid 48, reset
    7: "replace",  # retired pages limit
    8: "replace",
    25: "drain",  # graphics processes on the GPU: somebody's, and no reset is needed
    80: "replace",  # row remap failure: return criterion
    81: "reset-gpu",  # uncontained error: Xid 95, reset
    118: "replace",  # SRAM threshold: return criterion
}

#: A test that could not do what it should, whatever its status says: memory could not be allocated (NVIDIA/DCGM#284).
_NOT_DONE = (56, 73)

#: The status words of 3.x and 4.x, in small letters.
_STATUS: Mapping[str, str] = {
    "pass": "pass",
    "fail": "fail",
    "warn": "fail",  # which of both it is, its severity says
    "skip": "skip",
    "skipped": "skip",
    "not run": "skip",
    "notrun": "skip",
}

_SLUG = pattern(r"[^a-z0-9]+")


class Complaint(NamedTuple):
    """One warning of a result: what it says, and DCGM's numbers for it, -1 where the version gives none."""

    text: str
    error: int = -1
    severity: int = -1


class Result(NamedTuple):
    """What one test said of one entity (or, `target` node, of all): `status` is pass, fail, skip or a word nobody knows."""

    test: str
    target: str
    status: str
    complaints: tuple[Complaint, ...] = ()
    info: tuple[str, ...] = ()


class Diag(NamedTuple):
    """One answer of dcgmi. `error` is its own failure in words; then there is no result to go by."""

    results: tuple[Result, ...] = ()
    error: str = ""
    version: str = ""


def object_in(text: str) -> dict[str, Any] | None:
    """Return the JSON object that dcgmi printed, whatever stands before and behind it; None where there is none."""
    begin, end = text.find("{"), text.rfind("}")
    try:
        data = json.loads(text[begin : end + 1]) if 0 <= begin < end else None
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def parse(text: str) -> Diag:
    """Return what dcgmi said. Never raises: what has another form is an error in words."""
    if len(text) > MAX_CHARS:
        return Diag(error="the answer is too long to be read")
    data = object_in(text)
    if data is None:
        return Diag(error=f"no JSON: {one_line(text, 160)}" if text.strip() else "it said nothing")
    root = next(
        (data[name] for name in ("DCGM Diagnostic", "DCGM GPU Diagnostic") if isinstance(data.get(name), dict)), data
    )
    version = _version(data, root)
    if wrong := root.get("runtime_error") or data.get("runtime_error"):
        return Diag(error=one_line(str(wrong), 200), version=version)
    results = tuple(_results(root))
    return Diag(results, "" if results else "it lists no results of tests", version)


def _version(data: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    metadata = data.get("metadata")
    found = metadata.get("version") if isinstance(metadata, dict) else root.get("version")
    return one_line(found, 40) if isinstance(found, str) else ""


def _dicts(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _results(root: Mapping[str, Any]) -> Iterator[Result]:
    for category in _dicts(root.get("test_categories")):
        for test in _dicts(category.get("tests")):
            name = str(test.get("name") or category.get("category") or "test")
            listed = [found for result in _dicts(test.get("results")) for found in _of_entity(name, result)]
            yield from listed
            # The summary repeats the entities' warnings and has those of none: it counts where the entities say less.
            summary = test.get("test_summary")
            if isinstance(summary, dict) and not any(one.status == "fail" for one in listed):
                found = _result(name, "node", summary)
                if found.status == "fail" or not listed:
                    yield found


def _of_entity(name: str, result: Mapping[str, Any]) -> Iterator[Result]:
    group, entity = result.get("entity_group"), result.get("entity_id")
    if isinstance(entity, int) and not isinstance(entity, bool):
        yield _result(name, f"gpu:{entity}" if str(group).upper() == "GPU" else "node", result)
        return
    ids = str(result.get("gpu_ids", result.get("gpu_id", "")) or "").replace(" ", "")
    yield _result(name, f"gpu:{ids}" if ids.isdigit() and len(ids) < 4 else "node", result)


def _result(name: str, target: str, data: Mapping[str, Any]) -> Result:
    word = str(data.get("status", "")).strip().lower()
    info = data.get("info")
    listed = info if isinstance(info, list) else [info] if isinstance(info, str) else []
    told = tuple(one_line(str(item), 200) for item in listed[:8])
    return Result(name, target, _STATUS.get(word, word or "no status"), _complaints(data.get("warnings")), told)


def _complaints(warnings: object) -> tuple[Complaint, ...]:
    if isinstance(warnings, (str, dict)):
        warnings = [warnings]
    found = []
    for item in (warnings if isinstance(warnings, list) else [])[:32]:
        if isinstance(item, dict):
            text = one_line(str(item.get("warning", "")), 200)
            found.append(Complaint(text, _number(item.get("error_id")), _number(item.get("error_severity"))))
        elif isinstance(item, str):
            found.append(Complaint(one_line(item, 200)))
    return tuple(found)


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def judge(diag: Diag) -> list[Judged]:
    """Return what a diagnostic means. Whatever is dcgmi's own trouble, or not understood, is unknown and convicts nobody."""
    if diag.error:
        return [judged(UNKNOWN, "dcgm.no-answer", "node", "none", diag.error)]
    items = [item for result in diag.results for item in _of_result(result)]
    if all(result.status == "skip" for result in diag.results):
        said = next((line for result in diag.results for line in _said(result)), "no reason is given")
        return [judged(PASS, "dcgm.skipped", "node", "none", f"every test was skipped: {said}")]
    return items


def _of_result(result: Result) -> list[Judged]:
    id_ = f"dcgm.{_SLUG.sub('-', result.test.lower()).strip('-')[:40] or 'test'}"
    said = _said(result)
    if result.status == "skip":
        return []
    not_done = [one for one in result.complaints if one.error in _NOT_DONE]
    if result.status == "pass":
        if not_done:
            return [judged(UNKNOWN, "dcgm.not-tested", result.target, "none", f"{result.test}: {not_done[0].text}")]
        worst = _worst(result)
        # A pass with complaints is a pass: what it complains of is worth a word, not more.
        return [judged(WARN, id_, result.target, "warn", *said)] if worst is not None else []
    if result.status != "fail":
        line = f"{result.test} has the status {result.status[:40]!r}, which nobody knows"
        return [judged(UNKNOWN, "dcgm.not-tested", result.target, "none", line)]
    worst = _worst(result)
    if worst is None:
        line = f"{result.test} failed, and it is not said how badly: {said[0] if said else 'without a word'}"
        return [judged(UNKNOWN, "dcgm.not-tested", result.target, "none", line)]
    verdict, action = worst
    return [judged(verdict, id_, result.target, action, *said)]


def _worst(result: Result) -> tuple[str, str] | None:
    """Return verdict and action of the worst complaint whose severity is known, None where none has one."""
    known = [means(one.error, one.severity) for one in result.complaints if one.severity in _SEVERITIES]
    rank = ("none", "warn", "drain", "reset-gpu", "reboot", "replace").index
    return max(known, key=lambda pair: (pair[0] == FAIL, rank(pair[1])), default=None)


def means(error: int, severity: int) -> tuple[str, str]:
    """Return verdict and action of one of DCGM's errors (DCGM_FR_*) of a severity that is known."""
    verdict, action = _SEVERITIES[severity]
    return (verdict, _ACTIONS.get(error, action)) if verdict == FAIL else (verdict, action)


def _said(result: Result) -> tuple[str, ...]:
    lines = tuple(f"{result.test}: {one.text}" for one in result.complaints if one.text)
    return lines or tuple(f"{result.test}: {line}" for line in result.info)
