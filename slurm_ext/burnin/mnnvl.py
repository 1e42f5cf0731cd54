"""Did NVLink between nodes (MNNVL, as in P6e-GB200) carry the traffic? From NCCL's log and the IMEX service's own word.

Inside such a domain EFA's counters stand still and no line speaks of GPUDirect, so nothing of `proof` applies; with MNNVL
switched off all of it does. Sources: NCCL's src/mnnvl.cc and src/init.cc (2.21 to 2.30), NVIDIA's IMEX guide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_ext.burnin.nccl_log import Log
from slurm_ext.burnin.proof import Judged
from slurm_ext.command import call_bounded, run
from slurm_ext.errors import CommandNotFoundError
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL, UNKNOWN, WARN, Finding

ON, OFF = "on", "off"

#: NVML's word for a GPU whose fabric registration has ended well (NVML_GPU_FABRIC_STATE_COMPLETED).
_COMPLETED = "3"

IMEX_S = 2.0

_DOMAIN = pattern(r"^\s*Domain State\s*:\s*(\w+)", re.M)
_NODE = pattern(r"^\s*Node #\d+\b.*?- ([A-Z_]+)\b", re.M)


def parse_imex(text: str) -> dict[str, Any] | None:
    """Return what `nvidia-imex-ctl -N` says: `domain` (its state's word) and `nodes` (how many in each state)."""
    if (match := _DOMAIN.search(text)) is None:
        return None
    states: dict[str, int] = {}
    for state in _NODE.findall(text):
        states[state] = states.get(state, 0) + 1
    return {"domain": match.group(1), "nodes": states}


def look_at_imex() -> dict[str, Any] | None:
    """Return the state of this node's IMEX domain; None where there is no such service, or no answer in IMEX_S."""

    def ask() -> bytes:
        try:
            return run(["nvidia-imex-ctl", "-N"], timeout_s=IMEX_S * 0.9, max_output_bytes=1 << 20).stdout.encode()
        except CommandNotFoundError:
            return b""

    answer = call_bounded(ask, timeout_s=IMEX_S)
    return parse_imex(answer.decode()) if answer else None


def findings(log: Log, facts: Mapping[str, Mapping[str, Any]], nodes: Sequence[str]) -> list[Judged]:
    """Return what the logs of a run with MNNVL on say, and the IMEX domains; `facts` by node may have `imex`."""
    by_node = {name: [p for p in log.processes if p.node == name] for name in nodes}
    silent = [name for name, found in by_node.items() if not found]
    if silent:
        return [_unknown("log-empty", name, "no line of NCCL is in its log") for name in silent[:4]]
    broken = [name for name, found in by_node.items() if any(p.mnnvl_broken for p in found)]
    refused = [name for name, found in by_node.items() if any(p.mnnvl is False for p in found)]
    if broken or refused:
        word = "NCCL says that it is there and does not work: look at the IMEX channels and domain"
        return _some(
            "mnnvl-not-used", broken or refused, nodes, word if broken else "NCCL did not use NVLink between nodes"
        )
    found = []
    for name, processes in by_node.items():
        states = {p.fabric[2] for p in processes if p.fabric}
        if states - {_COMPLETED}:
            word = f"a GPU's fabric state is {sorted(states - {_COMPLETED})[0]}, not completed"
            found.append(Judged(Finding("mnnvl-fabric-state", f"node:{name}", "drain", (word,)), FAIL))
    if found:
        return found
    for name, processes in by_node.items():
        if any(p.mnnvl_degraded for p in processes):
            word = "the fabric reports less bandwidth than it should have"
            found.append(Judged(Finding("mnnvl-degraded", f"node:{name}", "warn", (word,)), WARN))
    domains = {p.fabric[:2] for p in log.processes if p.fabric}
    if len(domains) > 1:
        word = f"the nodes lie in {len(domains)} NVLink domains or cliques: between these EFA carries the data"
        found.append(Judged(Finding("mnnvl-domains", "node", "warn", (word,)), WARN))
    elif any(p.net_count for p in log.processes):
        word = "channels over the network were set up beside those over NVLink"
        found.append(Judged(Finding("mnnvl-network-too", "node", "warn", (word,)), WARN))
    if len(nodes) > 1 and not any(p.mnnvl_count for p in log.processes):
        found.append(_unknown("mnnvl-unproven", "", "no channel over NVLink between nodes is in the log"))
    elif not domains:
        found.append(_unknown("mnnvl-unproven", "", "the log names no NVLink domain"))
    return found + _imex(facts, nodes)


def _imex(facts: Mapping[str, Mapping[str, Any]], nodes: Sequence[str]) -> list[Judged]:
    told = {name: imex for name in nodes if isinstance(imex := facts.get(name, {}).get("imex"), Mapping)}
    if len(told) < len(nodes):
        word = f"{len(nodes) - len(told)} of {len(nodes)} nodes cannot tell the state of their IMEX domain"
        return [_unknown("imex-unread", "", word)]
    return [
        Judged(
            Finding("imex-domain", f"node:{name}", "warn", (f"its IMEX domain is {imex.get('domain')}, not UP",)), WARN
        )
        for name, imex in told.items()
        if imex.get("domain") != "UP"
    ]


def _unknown(name: str, node: str, word: str) -> Judged:
    return Judged(Finding(name, f"node:{node}" if node else "node", "none", (word,)), UNKNOWN)


def _some(name: str, which: Sequence[str], nodes: Sequence[str], word: str) -> list[Judged]:
    """Return a failure of the nodes that show it, or of none where all do: then it is how they were set up."""
    targets = ["node"] if len(which) == len(nodes) else [f"node:{one}" for one in which]
    return [Judged(Finding(name, target, "drain", (word,)), FAIL) for target in targets]
