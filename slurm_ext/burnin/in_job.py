"""What NCCL did *inside* a job, from each node's own log and EFA counters: one report, and what to do about it. Pure.

The gate proves the host's stack; a container brings its own NCCL, plugin and environment, and can fall back to TCP
without a word (a known complaint about every launcher). So the judgement is the gate's, over the job's own logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slurm_ext.aws import catalogue
from slurm_ext.burnin import proof
from slurm_ext.burnin.nccl_log import Log, Process
from slurm_ext.burnin.transport import process_from_json
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

#: EFA moves less than this (bytes) by itself, without any NCCL: address handlers, a first handshake.
IDLE_BYTES = 1 << 20

#: finding -> what a person does about it.
REMEDIES: Mapping[str, str] = {
    "nccl-socket-fallback": "NCCL found no EFA plugin: mount /opt/amazon/efa and /opt/amazon/ofi-nccl into the container "
    "and put their lib folders on LD_LIBRARY_PATH; set NCCL_NET='AWS Libfabric' to make a fall-back an error",
    "ofi-no-provider": "the container sees no EFA device: give it /dev/infiniband and an unlimited memlock",
    "nccl-net-unmet": "NCCL_NET names a network whose plugin does not load: see the WARN lines of the log",
    "nccl-no-gdr": "unset NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_READ and OFI_NCCL_DISABLE_GDR; load nvidia-peermem or use a "
    "plugin that knows DMA-BUF",
    "nccl-nic-count": "the job does not see all EFA devices of its nodes: give it all of /dev/infiniband",
    "nccl-version-mismatch": "run the same image on every node",
    "in-job-no-efa-bytes": "the collective runs over something else than EFA there: compare that node's environment",
    "log-empty": "NCCL never started, or its log folder is not mounted in the container: say --dir with one that is",
    "log-incomplete": "no collective between nodes ran: the check saw only the start",
}
_PROVIDER = "unset FI_PROVIDER and FI_EFA_*; libfabric in the container must know efa: mount /opt/amazon/efa"


class NodeFacts(NamedTuple):
    """One node's part: NCCL's processes there, and by how much EFA's counters grew (None: they cannot be read)."""

    node: str
    processes: tuple[Process, ...] = ()
    versions: tuple[str, ...] = ()
    efa_bytes: int | None = None


class Report(NamedTuple):
    """What comes out: verdict (pass, warn, fail, unknown), one line for each thing to say, finding ids."""

    verdict: str
    lines: tuple[str, ...]
    findings: tuple[str, ...] = ()


def to_json(facts: NodeFacts) -> dict[str, Any]:
    """Return one node's facts as plain data, `schema` 1."""
    processes = [process._asdict() for process in facts.processes]
    return {
        "schema": 1,
        "node": facts.node,
        "processes": processes,
        "versions": list(facts.versions),
        "efa_bytes": facts.efa_bytes,
    }


def from_json(data: Mapping[str, Any]) -> NodeFacts:
    """Return the facts that `to_json` wrote. Raise ValueError where the shape is another one."""
    try:
        node, count = str(data["node"]), data["efa_bytes"]
        processes = tuple(process_from_json(process, node) for process in data["processes"])
        return NodeFacts(node, processes, tuple(map(str, data["versions"])), None if count is None else int(count))
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise ValueError(f"no facts of a node: {exc!r}") from exc


def by_host(data: Mapping[str, Any]) -> list[NodeFacts]:
    """Return the facts of each host that `data` (of several nodes' logs together) names, without counters."""
    hosts = dict.fromkeys(str(process["node"]) for process in data["processes"])
    return [
        NodeFacts(
            host,
            tuple(process_from_json(one, host) for one in data["processes"] if one["node"] == host),
            tuple(map(str, data["versions"])),
        )
        for host in hosts
    ]


def report(nodes: Sequence[NodeFacts], *, expected: int, instance_type: str) -> Report:
    """Return what the nodes' facts say together. `expected` is how many nodes the step has."""
    processes = tuple(process for facts in nodes for process in facts.processes)
    versions = tuple(dict.fromkeys(version for facts in nodes for version in facts.versions))
    row = catalogue.find(instance_type)
    found = proof.findings(Log(processes, versions), proof.Context(instance_type, row, expected))
    lines, ids = [], []
    for judged in found:
        if judged.verdict not in (FAIL, UNKNOWN, WARN):
            continue
        finding = judged.finding
        if finding.id == "log-incomplete" and expected < 2:
            continue
        where = "" if finding.target == "node" else f" on {finding.target.partition(':')[2]}"
        lines.append(f"{_WORD[judged.verdict]}{where}: {'; '.join(finding.evidence)} [{finding.id}]")
        ids.append(finding.id)
    verdicts = {judged.verdict for judged in found}
    counted, refuted = _counters(nodes, expected)
    if counted:
        lines.append(counted)
    if refuted and expected > 1:
        verdicts.add(FAIL)
        ids.append("in-job-no-efa-bytes")
    if missing := expected - len(nodes):
        lines.append(f"unproven: {missing} of {expected} nodes left no word")
        verdicts.add(UNKNOWN)
    verdict = next((kind for kind in (FAIL, UNKNOWN, WARN) if kind in verdicts), PASS)
    if verdict == PASS:
        used = next((process.networks[-1] for process in processes if process.networks), "its network")
        lines.insert(0, f"NCCL {' and '.join(versions)} runs over {used}, provider efa, on all {expected} nodes")
    advice = dict.fromkeys(_remedy(name) for name in ids)
    return Report(verdict, (*lines, *(f"do: {text}" for text in advice if text)), tuple(ids))


_WORD = {FAIL: "refuted", UNKNOWN: "unproven", WARN: "odd"}


def _remedy(finding: str) -> str:
    return REMEDIES.get(finding, _PROVIDER if finding.startswith("ofi-provider-") else "")


def _counters(nodes: Sequence[NodeFacts], expected: int) -> tuple[str, bool]:
    """Return what EFA's counters say, and whether a node is silent that should not be: one where NCCL spoke with other
    nodes, or beside nodes that do send. A command that never used NCCL between nodes sends nothing, and rightly so."""
    known = [facts for facts in nodes if facts.efa_bytes is not None]
    if not known:
        return ("EFA's counters cannot be read here: only NCCL's own word counts" if nodes else ""), False
    sending = [facts.node for facts in known if (facts.efa_bytes or 0) > IDLE_BYTES]
    line = f"{len(sending)} of {expected} nodes send EFA bytes"
    silent = [facts.node for facts in known if facts.node not in sending]
    if silent:
        line += f"; none: {', '.join(silent[:5])}{' and more' if len(silent) > 5 else ''}"
    refuted = silent and (sending or any(_between_nodes(facts) for facts in known if facts.node in silent))
    return line, bool(refuted)


def _between_nodes(facts: NodeFacts) -> bool:
    """Say whether NCCL's ranks of this node are some of a larger communicator, or its channels leave the node."""
    here = len({rank for process in facts.processes for rank in process.seen})
    most = max((process.ranks or 0 for process in facts.processes), default=0)
    return most > here or any(process.net_count for process in facts.processes)
