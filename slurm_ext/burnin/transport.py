"""What the proof of the transport makes of a run that passed: nothing, a warning, unknown, or a failure with or without a
culprit. Pure.

Each proof is proven, refuted or unproven. Refuted fails. Unproven by a missing line of a release whose lines are known is
unknown, which the site's policy maps; of a release that nobody has read yet it is a warning, as is what no log can tell.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_ext.aws import catalogue, efa_types
from slurm_ext.burnin import clocks, judge, mixed, mnnvl, proof
from slurm_ext.burnin.model import Decision
from slurm_ext.burnin.nccl_log import Log, Process
from slurm_ext.burnin.proof import Judged
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Finding, Verdict

#: EFA counters must show at least this share of what an all-reduce over these nodes moves: rings differ, silence does not.
MOVED_SHARE = 0.1

#: A node below this share has sent over something else; one below this share of the run's median is odd.
STILL_SHARE, UNLIKE_SHARE = 0.01, 0.5

#: Retransmitted packets for each GB sent (1e9 bytes) that are worth a word: 1 in 1,000 of packets of 8.9 KB (EFA's MTU).
#: SRD sends again by design where paths are lossy, so single ones say nothing; fewer than RETRANSMITS_LEAST never do.
RETRANSMITS_PER_GB, RETRANSMITS_LEAST = 112.0, 1000

#: A GPU whose clock under load is below this share of the median over all GPUs.
CLOCK_SHARE = 0.9

#: Releases of NCCL whose lines are in `nccl_log`: (2, 18) to this one.
_READ_TO = (2, 32)

#: Proofs that only a missing line leaves open.
_MISSING_LINE = ("log-empty", "log-incomplete", "provider-not-named", "mnnvl-unproven")

#: What every process says before anything can be proven by it: defaults stay off the wire, a thousand nodes send these.
_DEFAULTS = Process("", 0)._asdict()


def runs_for(instance_type: str) -> tuple[str, ...]:
    """Return how a run is to be made: once as it comes (""), or with NVLink between nodes off and on where there is such."""
    return (mnnvl.OFF, mnnvl.ON) if spans_nodes(instance_type) else ("",)


def spans_nodes(instance_type: str) -> bool:
    """Say whether an NVLink domain of this type is larger than one node."""
    row = catalogue.find(instance_type)
    return row is not None and row.nvlink_domain_gpus > row.gpus


def carrier(instance_type: str) -> str:
    """Return in words what the data of a run went over whose proof found nothing amiss."""
    if spans_nodes(instance_type):
        return "EFA with GPUDirect, and over NVLink between nodes"
    return "EFA" if efa_types.has_gpudirect(instance_type) is False else "EFA with GPUDirect"


def facts_to_json(log: Log, efa_bytes: int | None) -> dict[str, Any]:
    """Return one node's facts as plain data for the way to the leader."""
    processes = [
        {name: value for name, value in p._asdict().items() if value != _DEFAULTS[name]} for p in log.processes
    ]
    return {"processes": processes, "versions": list(log.versions), "efa_bytes": efa_bytes}


def process_from_json(data: Mapping[str, Any], node: str) -> Process:
    """Return a process from plain data, under the name Slurm has for its node (its log has the host's)."""
    plain: dict[str, Any] = {
        k: tuple(map(_tuple, v)) if isinstance(v, list) else v for k, v in data.items() if k in Process._fields
    }
    plain["node"] = node
    return Process(**{"pid": 0, **plain})


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

    `facts` are by node what `efa_look` and `station` made, all of one run (with MNNVL on, off, or as it comes); `moved` the
    bytes each node must have sent where its facts do not say it. A refuted proof fails; its nodes are convicted where they
    are at most a third (what all share is setup, not a node).
    """
    modes = {str(fact.get("mnnvl", "")) for fact in facts.values()}
    if modes == {""} and spans_nodes(instance_type):
        word = "the NVLink domain spans nodes here, and this run had MNNVL neither on nor off: nothing is proven"
        return _warned(decision, [Finding("transport-unproven", "node", "none", (word,))])
    processes = tuple(
        process_from_json(data, node) for node, fact in facts.items() for data in fact.get("processes", [])
    )
    versions = tuple(dict.fromkeys(str(v) for fact in facts.values() for v in fact.get("versions", [])))
    log = Log(processes, versions)
    if modes == {mnnvl.ON}:
        found = mnnvl.findings(log, facts, nodes)
    elif len(modes) > 1:
        found = [Judged(Finding("transport-unproven", "node", "none", ("runs with and without MNNVL mixed",)), UNKNOWN)]
    else:
        row = catalogue.find(instance_type)
        found = proof.findings(log, proof.Context(instance_type, row, len(nodes), ranks=gpus * len(nodes)))
        if silent := _silent(log, nodes):
            found = [j for j in found if j.finding.id != "log-incomplete"] + silent  # the same thing, less plainly
        found += _counters(facts, moved)
    found += strict_findings(facts) + mixed.findings(facts)
    refuted = [j.finding for j in found if j.verdict == FAIL]
    if not refuted:
        return _unproven(decision, found, versions)
    named = dict.fromkeys(name for f in refuted if (name := _node_of(f.target, nodes, gpus)))
    words = f"{refuted[0].id} on {refuted[0].target}: {refuted[0].evidence[0]}"
    if not named or any(f.target == "node" for f in refuted) or len(named) > max(1, len(nodes) // 3):
        findings = tuple(f._replace(action="warn") for f in refuted)
        return Decision(Verdict(FAIL, findings, words, "burnin.transport"), suspects=tuple(named))
    findings = tuple(f._replace(target=f"node:{_node_of(f.target, nodes, gpus)}") for f in refuted)
    return Decision(Verdict(FAIL, findings, words, "burnin.transport"), tuple(named), tuple(named))


def _unproven(decision: Decision, found: Sequence[Judged], versions: Sequence[str]) -> Decision:
    """Return the decision with what is left open, and what is worth a word."""
    missing = [j.finding for j in found if j.verdict == UNKNOWN and j.finding.id in _MISSING_LINE]
    if missing and _are_read(versions) and decision.verdict.verdict in (PASS, WARN):
        words = f"{decision.verdict.reason}, but the transport is not proven: {missing[0].evidence[0]}"
        return decision._replace(verdict=Verdict(UNKNOWN, tuple(missing), words, "burnin.transport-unproven"))
    decision = _warned(decision, [j.finding for j in found if j.verdict in (WARN, UNKNOWN)])
    notes = tuple(j.finding for j in found if j.verdict == PASS and j.finding.id.startswith(mixed.NOTED))
    told = decision.verdict
    return decision._replace(verdict=told._replace(findings=(*told.findings, *notes))) if notes else decision


def _are_read(versions: Sequence[str]) -> bool:
    """Say whether the lines of all these releases are known; so are those of a log that names none."""
    for version in versions:
        parts = version.split(".")
        if not all(part.isdigit() for part in parts[:2]) or not (2, 18) <= tuple(map(int, parts[:2])) <= _READ_TO:
            return False
    return True


def _silent(log: Log, nodes: Sequence[str]) -> list[Judged]:
    """Nodes of which no process said a word: what the others say proves nothing of them."""
    if not log.processes:
        return []  # told of all of them together
    there = {p.node for p in log.processes}
    word = "no line of NCCL is in its log"
    missing = [name for name in nodes if name not in there]
    return [Judged(Finding("log-empty", f"node:{name}", "none", (word,)), UNKNOWN) for name in missing[:4]]


def _node_of(target: str, nodes: Sequence[str], gpus: int) -> str:
    kind, _, name = target.partition(":")
    if kind == "rank" and name.isdigit() and int(name) // gpus < len(nodes):
        return nodes[int(name) // gpus]
    return name if kind == "node" and name in nodes else ""


def _counters(facts: Mapping[str, Mapping[str, Any]], moved: float) -> list[Judged]:
    """EFA's own byte counters must have moved by about what was sent, warm-up and sustained traffic included."""
    known = {node: int(fact["efa_bytes"]) for node, fact in facts.items() if fact.get("efa_bytes") is not None}
    sent = {node: float(facts[node].get("sent_bytes") or moved) for node in known}
    still = [node for node, count in known.items() if count < MOVED_SHARE * sent[node]]
    if not known:
        word = "no byte counters of EFA can be read"
        return [Judged(Finding("efa-counters-unread", "node", "none", (word,)), UNKNOWN)]
    if len(still) == len(facts):
        first = still[0]
        word = f"EFA's counters moved by {known[first]} bytes, {sent[first]:.3g} were sent: over something else"
        return [Judged(Finding("efa-counters-still", "node", "drain", (word,)), FAIL)]
    found = []
    shares = {node: known[node] / sent[node] for node in known if sent[node] > 0}
    usual = statistics.median(shares.values()) if shares else 0.0
    for node, share in shares.items():
        word = f"EFA's counters moved by {known[node]} bytes, {sent[node]:.3g} were sent"
        if share < STILL_SHARE:
            word = f"{word}: over something else"
            found.append(Judged(Finding("efa-counters-still", f"node:{node}", "drain", (word,)), FAIL))
        elif share < MOVED_SHARE or share < UNLIKE_SHARE * usual:
            word = f"{word}, {share:.0%}, where {usual:.0%} is usual in this run"
            found.append(Judged(Finding("efa-counters-low", f"node:{node}", "warn", (word,)), WARN))
    word = "its byte counters of EFA cannot be read, as those of others can"
    for node in [node for node in facts if node not in known][:4]:
        found.append(Judged(Finding("efa-counters-unread", f"node:{node}", "none", (word,)), UNKNOWN))
    return found


def strict_findings(facts: Mapping[str, Mapping[str, Any]]) -> list[Judged]:
    """Return what clocks, retransmits and drift say: warnings only. The first and the last are there in strict runs."""
    found = _retransmits(facts) + _clocks(facts)
    strict = any("clocks" in fact for fact in facts.values())
    drifts = {node: float(fact.get("drift") or 1.0) for node, fact in facts.items()}
    if strict and drifts and (most := max(drifts.values())) > judge.DRIFT_MOST:
        word = f"the last quarter of the sustained traffic took {most:.2f} times as long as the first"
        found.append(Judged(Finding("burnin.drift", "node", "warn", (word,)), WARN))
    return found


def _retransmits(facts: Mapping[str, Mapping[str, Any]]) -> list[Judged]:
    found = []
    for node, fact in facts.items():
        count, sent = int(fact.get("retransmits") or 0), int(fact.get("efa_bytes") or 0)
        if count >= RETRANSMITS_LEAST and count * 1e9 > RETRANSMITS_PER_GB * sent:
            devices = ", ".join(f"{name} {n}" for name, n in (fact.get("retransmits_by_device") or {}).items())
            word = f"{count} packets were sent again for {sent / 1e9:.3g} GB, most by {devices or 'no named device'}"
            found.append(Judged(Finding("efa-retransmits", f"node:{node}", "warn", (word,)), WARN))
    return found


def _clocks(facts: Mapping[str, Mapping[str, Any]]) -> list[Judged]:
    found = []
    told = [(node, gpu) for node, fact in facts.items() for gpu in fact.get("clocks") or ()]
    speeds = sorted(gpu["sm_mhz"] for _, gpu in told if gpu.get("sm_mhz"))
    usual = speeds[len(speeds) // 2] if speeds else 0
    for node, gpu in told:
        held = [word for bit, word in clocks.WORDS.items() if int(gpu.get("reasons") or 0) & bit]
        mhz, heat = gpu.get("sm_mhz"), gpu.get("temperature")
        if held:
            word = f"gpu {gpu.get('gpu')}: {' and '.join(held)} under load, {mhz} MHz, {heat} C"
            found.append(Judged(Finding("gpu.throttled", f"node:{node}", "warn", (word,)), WARN))
        elif mhz and mhz < CLOCK_SHARE * usual:
            word = f"gpu {gpu.get('gpu')}: {mhz} MHz under load, where the median of all GPUs is {usual}"
            found.append(Judged(Finding("gpu.clock-low", f"node:{node}", "warn", (word,)), WARN))
    for node in [name for name, fact in facts.items() if "clocks" in fact and not fact["clocks"]][:4]:
        word = "clocks under load could not be read: no word on whether its GPUs were held back"
        found.append(Judged(Finding("gpu.clocks-unread", f"node:{node}", "none", (word,)), WARN))
    return found


def _warned(decision: Decision, findings: list[Finding]) -> Decision:
    before = decision.verdict
    if not findings or before.verdict not in (PASS, WARN):
        return decision
    words = f"{before.reason}; {findings[0].id}: {findings[0].evidence[0]}"
    rule = "burnin.transport" if before.verdict == PASS else before.rule
    return decision._replace(verdict=Verdict(WARN, (*before.findings, *findings), words, rule))
