"""Slurm's JSON: REST, `scontrol --json`, `squeue --json`, `sinfo --json`, data parsers v0.0.37 to v0.0.45. Pure.

Forms that changed: a state was one word with `state_flags` beside it (v0.0.37, v0.0.38) and is a list since; numbers
became {set, infinite, number}; a REST answer for one node or job may be the object alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from slurm_ext.gate.slurm_views import JobView, NodeView, Trouble, View, something
from slurm_ext.slurm import states
from slurm_ext.typed import Any

#: No time or count of Slurm is as large; JSON may hold numbers that no float can.
_NUMBER_MAX = 1 << 63


def is_json(text: str) -> bool:
    """Say whether a text is meant as JSON."""
    return text.lstrip()[:1] in ("{", "[")


def read(text: str) -> View:
    """Return all nodes and jobs in a JSON answer."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        return View(troubles=(Trouble("output-cut", f"no whole JSON: {exc}"),))
    troubles = [_said(error) for error in _list(data, "errors")]
    nodes: dict[str, NodeView] = {}
    jobs: dict[str, JobView] = {}
    for record in _records(data):
        if "job_state" in record:
            job = _job(record)
            jobs.setdefault(job.job_id, job)
            continue
        for node in _nodes(record):
            nodes.setdefault(node.name, node)
    if not nodes and not jobs and not troubles and not _is_jobs(data):
        troubles.append(Trouble("no-answer", "the answer names no node"))
    told_at = _number(data.get("last_update")) if isinstance(data, dict) else None
    return View(tuple(nodes.values()), tuple(jobs.values()), tuple(troubles), told_at)


def _is_jobs(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("jobs"), list)


def _list(data: Any, key: str) -> list[Any]:
    found = data.get(key) if isinstance(data, dict) else None
    return found if isinstance(found, list) else []


def _said(error: Any) -> Trouble:
    """Return an entry of `errors` as a trouble."""
    words = [str(error.get(key) or "") for key in ("error", "description")] if isinstance(error, dict) else [str(error)]
    return Trouble("slurm-error", ": ".join(filter(None, words)) or "an error without words")


def _records(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects that describe a node, a job or a row of sinfo."""
    found: list[Any] = data if isinstance(data, list) else []
    if isinstance(data, dict):
        for key in ("nodes", "jobs", "sinfo"):
            found = [*found, *_list(data, key)]
        if not found:
            found = [data]
    for record in found:
        if isinstance(record, dict) and ({"job_state", "state", "node"} & {*record}):
            yield record


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [str(word) for word in value] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return something(value) if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    """Return a number of either form, None where it is not set, infinite or zero (Slurm's word for no time)."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _NUMBER_MAX
    return float(value) if usable else None


def _nodes(record: dict[str, Any]) -> list[NodeView]:
    reason, node, listed = record.get("reason"), record.get("node"), record.get("nodes")
    if isinstance(node, dict):  # a row of sinfo: one state, several nodes
        words = _words(node.get("state"))
        names = _words(listed.get("nodes")) if isinstance(listed, dict) else []
    else:
        words = [*_words(record.get("state")), *_words(record.get("state_flags"))]
        names = [_text(record.get("name")) or _text(record.get("hostname"))]
    said = _text(reason.get("description")) if isinstance(reason, dict) else _text(reason)
    user = _text(record.get("reason_set_by_user"))
    return [NodeView(name, states.node(words), said, user) for name in names if name]


def _job(record: dict[str, Any]) -> JobView:
    restarts = _number(record.get("restart_cnt"))
    return JobView(
        job_id=str(record.get("job_id", "?")),
        states=frozenset(states.job(word) for word in _words(record.get("job_state"))),
        reason=_text(record.get("state_description")) or _text(record.get("state_reason")),
        nodes=_text(record.get("nodes")),
        failed=_text(record.get("failed_node")),
        start_s=_number(record.get("start_time")),
        end_s=_number(record.get("end_time")),
        restarts=int(restarts or 0),
    )
