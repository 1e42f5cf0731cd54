"""Evidence from a folder: job.log, slurm.json, nodes/<node>/{kernel.log,events.json}. `expected.json` is never opened."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from slurm_ext.captured import file_text
from slurm_ext.config.model import Settings
from slurm_ext.errors import UsageError
from slurm_ext.resume import logs, policy
from slurm_ext.resume.attribute import attribute
from slurm_ext.resume.model import Evidence, NodeEvent, NodeEvidence, SlurmFacts

_DURATION = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")


def seconds(text: object) -> float:
    """Return Slurm's D-HH:MM:SS (or a number of seconds) as seconds, -1 where it is neither."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    found = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        return -1.0
    days, hours, minutes, rest = (int(group or 0) for group in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + rest


def load(folder: Path) -> Evidence:
    """Return the evidence in a folder; what is absent is absent. Raise UsageError where there is nothing to judge by."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    log_path = folder / "job.log"
    text = logs.read_window(str(log_path)).text if _is_file(log_path) else ""
    if not text and not _is_file(folder / "slurm.json") and not (folder / "nodes").is_dir():
        raise UsageError(f"{folder} has no job.log, slurm.json or nodes/")
    nodes: dict[str, NodeEvidence] = {}
    if (folder / "nodes").is_dir():
        for entry in sorted(os.scandir(folder / "nodes"), key=lambda item: item.name):
            if entry.is_dir(follow_symlinks=False):
                nodes[entry.name] = _node(Path(entry.path), entry.name)
    return Evidence(_slurm(_json(folder / "slurm.json")), tuple(logs.lines(text)), nodes)


def _is_file(path: Path) -> bool:
    """Say whether a file is there. Raise UsageError for a link: who made the folder need not be who reads it."""
    if path.is_symlink():
        raise UsageError(
            f"{path}: is a symbolic link, which is not followed", remedy="Copy the file itself into the folder"
        )
    return path.is_file()


def _json(path: Path) -> Mapping[str, object]:
    if not _is_file(path):
        return {}
    try:
        data = json.loads(file_text(str(path)))
    except ValueError as exc:
        raise UsageError(f"{path}: {exc}") from exc
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected an object")
    return data


def _node(folder: Path, name: str) -> NodeEvidence:
    kernel_path = folder / "kernel.log"
    kernel = tuple(logs.lines(logs.read_window(str(kernel_path)).text)) if _is_file(kernel_path) else ()
    data = _json(folder / "events.json")
    rows = data.get("events")
    events = tuple(
        NodeEvent(
            logs.time_of(str(row.get("time", ""))),
            str(row.get("source", "")),
            str(row.get("type", "")),
            str(row.get("text", "")),
        )
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
    )
    return NodeEvidence(name, str(data.get("instance_id") or ""), kernel, events)


def _number(value: object, absent: int = -1) -> int:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else absent


def _names(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _slurm(data: Mapping[str, object]) -> SlurmFacts:
    state = data.get("job_state")
    return SlurmFacts(
        job_id=str(data.get("job_id", "")),
        state=str(state[0] if isinstance(state, list) and state else state or "").split(" ")[0],
        exit_code=str(data.get("exit_code", "0:0")),
        derived_exit_code=str(data.get("derived_exit_code", "0:0")),
        reason=str(data.get("reason") or ""),
        restarts=max(_number(data.get("restart_count"), 0), 0),
        nodes=_names(data.get("nodes")),
        failed_node=str(data.get("failed_node") or ""),
        previous_nodes=_names(data.get("previous_nodes")),
        batch_host=str(data.get("batch_host") or ""),
        time_limit_s=seconds(data.get("time_limit")),
        elapsed_s=seconds(data.get("elapsed")),
        ranks_per_node=max(_number(data.get("ranks_per_node"), 0), 0),
        cancelled_by_uid=_number(data.get("cancelled_by_uid")),
        job_uid=_number(data.get("job_uid")),
        last_start=logs.time_of(str(data.get("last_start") or "")),
        last_output_age_s=seconds(data.get("last_output_age")),
    )


def judge(folder: str, settings: Settings) -> dict[str, object]:
    """Return the one JSON object for a folder (INTERFACES: replay contract); a folder that cannot be read answers `unknown`."""
    try:
        evidence = load(Path(folder))
        cause = attribute(evidence)
        # The budgets of the site belong to a live job's history; a folder is judged on its evidence alone.
        decision = policy.decide(
            cause,
            policy.Situation(
                settings=settings.resume,
                nodes_total=max(len(evidence.slurm.nodes) * 10, 40),
                nodes_needed=len(evidence.slurm.nodes),
            ),
        )
    except (UsageError, OSError, RecursionError) as exc:
        return {
            "schema": 1,
            "case": folder,
            "class": "unknown",
            "culprit_nodes": [],
            "innocent_nodes": [],
            "action": "none",
            "rule": "unreadable",
            "confidence": 0.0,
            "evidence": [],
            "error": str(exc),
        }
    return {
        "schema": 1,
        "case": folder,
        "class": cause.cause,
        "culprit_nodes": list(cause.culprit_nodes),
        "innocent_nodes": list(cause.innocent_nodes),
        "action": decision.action,
        "rule": cause.rule,
        "confidence": cause.confidence,
        "evidence": [line[:500] for line in cause.evidence],
        "reason": decision.reason,
    }
