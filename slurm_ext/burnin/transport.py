"""What the proof of the transport makes of a run that passed: nothing, a warning, or a failure with or without a culprit. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_ext.aws import catalogue
from slurm_ext.burnin import proof
from slurm_ext.burnin.model import Decision
from slurm_ext.burnin.nccl_log import Log, Process
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Finding, Verdict

#: EFA counters must show at least this share of what an all-reduce over these nodes moves: rings differ, silence does not.
MOVED_SHARE = 0.1


def facts_to_json(log: Log, efa_bytes: int | None) -> dict[str, Any]:
    """Return one node's facts as plain data for the way to the leader."""
    return {"processes": [p._asdict() for p in log.processes], "versions": list(log.versions), "efa_bytes": efa_bytes}


def process_from_json(data: Mapping[str, Any], node: str) -> Process:
    """Return a process from plain data, under the name Slurm has for its node (its log has the host's)."""
    plain: dict[str, Any] = {
        k: tuple(map(_tuple, v)) if isinstance(v, list) else v for k, v in data.items() if k in Process._fields
    }
    plain["node"] = node
    return Process(**plain)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def conclude(
    decision: Decision,
    facts: Mapping[str, Mapping[str, Any]],
    *,
    nodes: Sequence[str],
    gpus: int,
    instance_type: str,
    moved: float,
) -> Decision:
    """Return the decision over a run that passed in speed and results, with what the transport's proof adds.

    `facts` are by node what `facts_to_json` made, `moved` the bytes each node must have sent. A refuted proof fails; its
    nodes are convicted where they are at most a third (what all share is setup, not a node). Unproven is a warning.
    """
    row = catalogue.find(instance_type)
    if row is not None and row.nvlink_domain_gpus > row.gpus:
        word = "the NVLink domain spans nodes here: EFA proofs do not apply, and others are not built"
        return _warned(decision, [Finding("transport-unproven", "node", "none", (word,))])
    processes = tuple(process_from_json(data, node) for node, fact in facts.items() for data in fact.get("processes", []))
    versions = tuple(dict.fromkeys(v for fact in facts.values() for v in fact.get("versions", [])))
    context = proof.Context(instance_type, row, len(nodes))
    found = proof.findings(Log(processes, versions), context)
    found += _counters(facts, moved)
    refuted = [j.finding for j in found if j.verdict == FAIL]
    if not refuted:
        return _warned(decision, [j.finding for j in found if j.verdict in (WARN, UNKNOWN)])
    named = dict.fromkeys(name for f in refuted if (name := _node_of(f.target, nodes, gpus)))
    words = f"{refuted[0].id} on {refuted[0].target}: {refuted[0].evidence[0]}"
    if not named or any(f.target == "node" for f in refuted) or len(named) > max(1, len(nodes) // 3):
        findings = tuple(f._replace(action="warn") for f in refuted)
        return Decision(Verdict(FAIL, findings, words, "burnin.transport"), suspects=tuple(named))
    findings = tuple(f._replace(target=f"node:{_node_of(f.target, nodes, gpus)}") for f in refuted)
    return Decision(Verdict(FAIL, findings, words, "burnin.transport"), tuple(named), tuple(named))


def _node_of(target: str, nodes: Sequence[str], gpus: int) -> str:
    kind, _, name = target.partition(":")
    if kind == "rank" and name.isdigit() and int(name) // gpus < len(nodes):
        return nodes[int(name) // gpus]
    return name if kind == "node" and name in nodes else ""


def _counters(facts: Mapping[str, Mapping[str, Any]], moved: float) -> list[proof.Judged]:
    """EFA's own byte counters must have moved by about what was sent."""
    known = {node: int(fact["efa_bytes"]) for node, fact in facts.items() if fact.get("efa_bytes") is not None}
    still = [node for node, count in known.items() if count < MOVED_SHARE * moved]
    if not known:
        word = "no byte counters of EFA can be read"
        return [proof.Judged(Finding("efa-counters-unread", "node", "none", (word,)), UNKNOWN)]
    if len(still) == len(facts):
        word = f"EFA's counters moved by {known[still[0]]} bytes, {moved:.3g} were sent: over something else"
        return [proof.Judged(Finding("efa-counters-still", "node", "drain", (word,)), FAIL)]
    word = "EFA's counters show less than was sent"
    return [proof.Judged(Finding("efa-counters-still", f"node:{node}", "warn", (word,)), WARN) for node in still]


def _warned(decision: Decision, findings: list[Finding]) -> Decision:
    if not findings or decision.verdict.verdict != PASS:
        return decision
    words = f"{decision.verdict.reason}; {findings[0].id}: {findings[0].evidence[0]}"
    return decision._replace(verdict=Verdict(WARN, tuple(findings), words, "burnin.transport"))
