"""One line of the burn-in's history: how it is made from an outcome, and what it says to those who read it later. Pure.

Readers trust nothing: a line may be torn, of another version, or carry any type anywhere. What cannot be read is absent.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slurm_ext.burnin import rules
from slurm_ext.burnin.model import BurninJob, Outcome, Past, outcome_to_json
from slurm_ext.burnin.thresholds import NO_FLOOR, Key, Run
from slurm_ext.slurm.hostlist import HostlistError, expand, fold, is_node_name
from slurm_ext.verdict import PASS, WARN

#: A burn-in of 1,024 nodes with four rounds of pairs is below this; a longer line loses its rounds.
LINE_MAX_BYTES = 64 << 10
#: No job has more nodes.
NODES_MAX = 4096
ROUNDS_MAX = 64

#: Warnings after which the first run's figure still is that of a job that started: the others found it slow, or once bad.
_COUNTED_WARNINGS = (NO_FLOOR, "burnin.transport")
#: Measured, not judged: a survey's figure is no healthy job's.
_NOT_COUNTED = ("burnin.survey",)


class Measured(NamedTuple):
    """One group of one round, as a picture needs it: who, how it ended, how fast (GB/s)."""

    time: float
    kind: str
    nodes: tuple[str, ...]
    outcome: str
    busbw_gbs: float | None


def line_of(job: BurninJob, outcome: Outcome, *, now: float, message_bytes: int) -> dict[str, Any]:
    """Return the line about a burn-in as this node's history gets it; `now` in seconds since 1970.

    `measured["key"]`, where the leader put one (`thresholds.Key`), says which figures it may be compared with. `leads`
    marks the one line of a job that counts in medians: that of the node which led it (`measured["leader"]`, else the first).
    """
    leader = outcome.measured.get("leader") or job.nodes[0]
    key = outcome.measured.get("key")
    if not isinstance(key, Mapping):
        key = Key(job.instance_type, rules.bucket(len(job.nodes)), message_bytes)._asdict()
    return {
        "time": now,
        "job": job.key,
        "node": job.node,
        "leads": job.node == leader,
        "nodes": list(job.nodes),
        "instance_type": job.instance_type,
        "key": dict(key),
        **outcome_to_json(outcome),
    }


def shared_text(line: Mapping[str, Any]) -> bytes:
    """Return a line as the share gets it: names folded, without what the leader's line of the same job says already."""
    data = dict(line)
    nodes = nodes_of(line)
    measured = {k: v for k, v in _mapping(line.get("measured")).items() if k not in ("nodes", "key")}
    if not line.get("leads"):
        node = str(line.get("node"))
        measured["rounds"] = _own_rounds(measured.get("rounds"), node, nodes)
        data.pop("findings", None)
    data |= {"nodes": fold(nodes), "measured": measured}
    text = _dump(data)
    if len(text) > LINE_MAX_BYTES:
        data["measured"] = {"suspects": list(_names(measured.get("suspects"))), "cut": True}
        data.pop("findings", None)
        text = _dump(data)
    return text


def text_of(line: Mapping[str, Any]) -> bytes:
    """Return a line as the node's own file gets it."""
    return _dump(line)


def _dump(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(dict(data), separators=(",", ":")) + "\n").encode()


def _own_rounds(rounds: object, node: str, nodes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rounds with the groups alone in which `node` was; a group of all may be named by its size."""
    kept = []
    for done in _list(rounds):
        groups = [
            group
            for group in _list(_mapping(done).get("groups"))
            if node in _names(_mapping(group).get("nodes")) or len(_list(_mapping(done).get("groups"))) == 1
        ]
        kept.append({"kind": str(_mapping(done).get("kind", "")), "groups": groups})
    return kept


def parse(text: bytes | str) -> dict[str, Any] | None:
    """Return the object of one line, or None for what is none."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def time_of(line: Mapping[str, Any]) -> float:
    """Return when a line was written (seconds since 1970), 0.0 where it does not say."""
    return _number(line.get("time")) or 0.0


def nodes_of(line: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the nodes of a line's job, from a list of names or a hostlist."""
    return _names(line.get("nodes"))


def past_of(line: Mapping[str, Any]) -> Past | None:
    """Return what a line tells of an earlier burn-in, or None where it names no nodes, no time or no verdict."""
    time, nodes, verdict = time_of(line), nodes_of(line), line.get("verdict")
    if time <= 0 or not nodes or not isinstance(verdict, str):
        return None
    return Past(
        time,
        str(line.get("job", "")),
        nodes,
        verdict,
        str(line.get("rule", "")),
        _names(_mapping(line.get("measured")).get("suspects")),
        _names(line.get("culprits")),
        _number(line.get("busbw_gbs")),
    )


def run_of(line: Mapping[str, Any]) -> Run | None:
    """Return the run that a line adds to the fleet's median, or None: only the leader's line of a run that was let pass."""
    past = past_of(line)
    if past is None or past.busbw_gbs is None or past.busbw_gbs <= 0 or past.rule in _NOT_COUNTED:
        return None
    if past.verdict != PASS and not (past.verdict == WARN and past.rule in _COUNTED_WARNINGS):
        return None
    # Lines of before there was the mark: the first node led.
    if line.get("leads", line.get("node") == past.nodes[0]) is not True:
        return None
    key = key_of_line(line)
    return Run(past.time, past.nodes, past.busbw_gbs, key) if key is not None else None


def key_of_line(line: Mapping[str, Any]) -> Key | None:
    """Return the key that a line carries, or None where it has none that can be used."""
    data = _mapping(line.get("key"))
    size = data.get("message_bytes")
    if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
        return None
    words = [data.get(name, "") for name in ("instance_type", "bucket", "nccl", "plugin", "driver")]
    if not all(isinstance(word, str) for word in words):
        return None
    instance_type, bucket, nccl, plugin, driver = map(str, words)
    return Key(instance_type, bucket, size, nccl, plugin, driver, data.get("sustained") is True)


def measured_absent(line: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the nodes of a line's job that did not come, or were lost."""
    return _names(_mapping(line.get("measured")).get("absent"))


def reasons(line: Mapping[str, Any]) -> dict[str, str]:
    """Return what the findings of a leader's line say, by node; the lines of others carry none."""
    found = {}
    for finding in map(_mapping, _list(line.get("findings"))):
        node, words = str(finding.get("target", "")).removeprefix("node:"), _list(finding.get("evidence"))
        if is_node_name(node):
            found[node] = str(words[0]) if words else str(finding.get("id", ""))
    return found


def measured_of(line: Mapping[str, Any]) -> list[Measured]:
    """Return the groups that a line tells of, in the order they ran; a group without names is the job's where it was alone."""
    time, every = time_of(line), nodes_of(line)
    found = []
    for done in _list(_mapping(line.get("measured")).get("rounds"))[:ROUNDS_MAX]:
        groups = _list(_mapping(done).get("groups"))
        for group in groups:
            data = _mapping(group)
            nodes = _names(data.get("nodes")) or (every if len(groups) == 1 else ())
            kind, outcome = str(_mapping(done).get("kind", "")), str(data.get("outcome", ""))
            if nodes and outcome:
                found.append(Measured(time, kind, nodes, outcome, _number(data.get("busbw_gbs"))))
    return found


def _number(value: object) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _names(value: object) -> tuple[str, ...]:
    """Return node names from a list of names and hostlists, or from one hostlist; what is no name is left out."""
    if isinstance(value, str):
        return _expanded(value)
    found: dict[str, None] = {}
    for text in _list(value)[:NODES_MAX]:
        if isinstance(text, str):
            found.update(dict.fromkeys((text,) if is_node_name(text) else _expanded(text)))
    return tuple(found)[:NODES_MAX]


@functools.lru_cache(maxsize=256)  # every node of a job wrote the same list
def _expanded(text: str) -> tuple[str, ...]:
    try:
        return tuple(expand(text, limit=NODES_MAX))
    except HostlistError:
        return ()
