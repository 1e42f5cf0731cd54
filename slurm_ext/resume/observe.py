"""Where evidence about a live job comes from: its journal row, Slurm's nodes, the nodes' trails on the share, its log."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_ext import events, verdict
from slurm_ext.command import call_bounded
from slurm_ext.events import Event
from slurm_ext.resume import logs
from slurm_ext.resume.journal import Attempt
from slurm_ext.resume.model import Earlier, Evidence, NodeEvent, NodeEvidence, SlurmFacts
from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.slurm.model import Job, Node

#: A node's trail is read from its end: what belongs to a job that just ended lies there (bytes).
TRAIL_TAIL_BYTES = 256 << 10
#: How long (seconds) reading all trails of one job may take: the share may hang.
TRAIL_TIMEOUT_S = 5.0


def nodes_of(job: Job) -> tuple[str, ...]:
    """Return the names of a job's nodes in Slurm's order; none where the list is no hostlist."""
    try:
        return tuple(expand(job.nodes)) if job.nodes else ()
    except HostlistError:
        return ()


def trails(share: str, nodes: Sequence[str], attempt: str) -> dict[str, list[Event]]:
    """Return the events of one run in the trails of its nodes; empty where the share does not answer in time."""
    if not share or not nodes:
        return {}

    def work() -> bytes:
        found: dict[str, list[str]] = {}
        for node in nodes:
            path = os.path.join(share, "nodes", node, "events.jsonl")
            try:
                with open(path, "rb") as stream:
                    state = os.fstat(stream.fileno())
                    if state.st_uid not in (0, os.geteuid()) or state.st_mode & 0o022:
                        continue  # not written by root alone: nothing to decide by
                    stream.seek(max(0, state.st_size - TRAIL_TAIL_BYTES))
                    lines = stream.read(TRAIL_TAIL_BYTES).decode("utf-8", "replace").splitlines()
            except OSError:
                continue
            found[node] = [line for line in lines if attempt in line]
        return json.dumps(found).encode()

    answer = call_bounded(work, timeout_s=TRAIL_TIMEOUT_S)
    raw: dict[str, list[str]] = json.loads(answer) if answer else {}
    parsed = {node: [event for line in lines if (event := events.from_line(line))] for node, lines in raw.items()}
    return {node: [event for event in found if event.attempt == attempt] for node, found in parsed.items()}


def reported(trail: Mapping[str, Sequence[Event]], nodes: Sequence[str]) -> bool:
    """Say whether the epilog of every node has told what it saw."""
    return bool(nodes) and all(any(event.event == "gate.epilog" for event in trail.get(node, ())) for node in nodes)


def about_nodes(
    nodes: Sequence[str], trail: Mapping[str, Sequence[Event]], states: Sequence[Node], since: float
) -> dict[str, NodeEvidence]:
    """Return what is known about each node of a run that began at `since` (seconds since the epoch)."""
    found: dict[str, list[NodeEvent]] = {node: [] for node in nodes}
    kernel: dict[str, list[str]] = {node: [] for node in nodes}
    instances: dict[str, str] = {}
    for node, said in trail.items():
        if node not in found:
            continue
        for event in said:
            instances[node] = event.instance_id or instances.get(node, "")
            kernel[node].extend(line for line in _strings(event.data.get("kernel")) if line not in kernel[node])
            when = logs.time_of(event.time)
            if event.event == "gate.prolog" and event.decision.startswith("stop"):
                burnin = event.data.get("burnin")
                inner = burnin.get("verdict") if isinstance(burnin, Mapping) else None
                failed = isinstance(inner, Mapping) and inner.get("verdict") == verdict.FAIL
                source = "fmslurm-stop" if failed else "fmslurm-stop-unknown"
                found[node].append(NodeEvent(when, source, event.rule, event.reason))
            for target, one in _findings(event, node):
                if target in found and one not in [(old.type, old.text) for old in found[target]]:
                    found[target].append(NodeEvent(when, "fmslurm", *one))
    for state in states:
        if state.name in found and (state.drained or state.state in ("DOWN", "FAIL")):
            if verdict.is_ours(state.reason) or (state.reason_time and state.reason_time < since - 60):
                continue  # our own drains have their findings in the trail; older reasons are not about this run
            word = "DRAIN" if state.drained and state.state != "DOWN" else "DOWN"
            text = f'{word} reason="{state.reason}" [{state.reason_user}]'
            found[state.name].append(NodeEvent(float(state.reason_time or since), "slurmctld", "node_state", text))
    return {
        node: NodeEvidence(node, instances.get(node, ""), tuple(kernel[node]), tuple(found[node]))
        for node in nodes
        if found[node] or kernel[node]
    }


def _strings(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else []


def _findings(event: Event, node: str) -> list[tuple[str, tuple[str, str]]]:
    """Return (node it is about, (finding id, target and evidence)) for every finding in an event that asks for a drain."""
    found: list[tuple[str, tuple[str, str]]] = []
    for name in ("gate", "burnin"):
        data = event.data.get(name)
        if not isinstance(data, Mapping):
            continue
        inner = data.get("verdict")
        about: Mapping[str, Any] = inner if isinstance(inner, Mapping) else data
        rows = about.get("findings")
        culprits = _strings(data.get("culprits"))
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, Mapping) and verdict.strength(str(row.get("action"))) >= verdict.strength("drain"):
                target = str(row.get("target", ""))
                named = target.removeprefix("node:")
                whom = named if named in culprits else node
                if name == "burnin" and whom not in culprits:
                    continue
                text = " ".join([target, *_strings(row.get("evidence"))[:1]])
                found.append((whom, (str(row.get("id", "")), text)))
        for culprit in culprits:
            if not any(whom == culprit for whom, _ in found):
                found.append((culprit, (str(about.get("rule") or "burnin.culprit"), f"node {about.get('reason', '')}")))
    return found


def evidence(
    attempt: Attempt, history: Sequence[Attempt], trail: Mapping[str, Sequence[Event]], states: Sequence[Node]
) -> tuple[Evidence, logs.Window]:
    """Return the evidence about a run that ended, and what was read of its log."""
    job = attempt.job
    nodes = nodes_of(job)
    since = float(job.start_time or attempt.first_seen)
    about = about_nodes(nodes, trail, states, since)
    window = logs.Window("", -1, "")
    if job.std_out:
        start, mark = attempt.log_start, attempt.log_start_mark
        window = logs.read_window(job.std_out, start=start, mark=mark, since=since, uid=job.user_id, gid=job.group_id)
    lost = [state.name for state in states if state.name in nodes and state.state == "DOWN"]
    state = attempt.end_state
    if attempt.by_slurm and lost and state != "PREEMPTED":
        state = "NODE_FAIL"
    previous = tuple(dict.fromkeys(node for old in history for node in nodes_of(old.job) if node not in nodes))
    facts = SlurmFacts(
        job_id=job.job_id,
        state=state,
        exit_code=job.exit_code,
        derived_exit_code=job.derived_exit_code,
        reason=job.reason,
        restarts=attempt.restarts,
        nodes=nodes,
        failed_node=lost[0] if attempt.by_slurm and len(lost) == 1 else "",
        previous_nodes=previous,
        batch_host=job.batch_host,
        elapsed_s=max((attempt.ended or since) - since, 0.0),
        job_uid=job.user_id,
    )
    earlier = tuple(
        Earlier(old.cause.root, old.cause.cause, nodes_of(old.job), old.cause.evidence[0] if old.cause.evidence else "")
        for old in history
        if old.cause is not None
    )
    # The log window holds this run alone, so a line that prints the restart count must not part it.
    return Evidence(facts, tuple(logs.lines(window.text)), about, earlier, attempt.ended), window
