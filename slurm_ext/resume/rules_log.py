"""Rules on what the job printed: the first pointing line, the hosts that print it, what an earlier run printed at the same place."""

from __future__ import annotations

import re

from slurm_ext.resume.facts import DISK_FULL, Facts, died_before, first_cause, root_of
from slurm_ext.resume.model import HOLD, REQUEUE, REQUEUE_EXCLUDE, STOP, WAIT_REQUEUE, Cause
from slurm_ext.resume.rules_node import oom_verdict
from slurm_ext.resume.rules_slurm import everybody
from slurm_ext.resume.signatures import Hit

_LOCAL_PATH = re.compile(
    r"['\"(\s:](/(?:tmp|var|run|local\w*|scratch|nvme\w*|mnt/(?:nvme|local|scratch)\w*|opt/dlami|"
    r"dev/shm|root|raid\w*)(?:/|\b))"
)
_SHARED_PATH = re.compile(
    r"['\"(\s:](/(?:fsx|lustre|shared|home|efs|gpfs|weka|nfs|data|mnt/(?:fsx|lustre|efs|shared)))"
)
_EXITED = re.compile(r"srun: error: (\S+): tasks? [\d,-]+: Exited with exit code \d+")
_FAILED_HOST = re.compile(r"^\s*host\s*: (\S+)")
_FOREIGN = re.compile(r"[Pp]rocess (\d+) has ([\d.]+) (GiB|MiB) memory in use")
_OWN = re.compile(r"this process has ([\d.]+) (GiB|MiB) memory in use")
_CAPACITY = re.compile(r"total capacity of ([\d.]+) (GiB|MiB) of which ([\d.]+) (GiB|MiB) is free")
_PID = re.compile(r"\bpid[=: ]+(\d+)|^\S+:(\d+):\d+ \[")


def pointing(facts: Facts) -> Cause | None:
    """The first line that points at a cause decides, together with the hosts that print it."""
    hit = first_cause(facts)
    if hit is None:
        return None
    row = hit.signature
    same = [other for other in facts.hits if other.signature.name == row.name]
    hosts = tuple(dict.fromkeys(other.said.node for other in same if other.said.node))
    lines = tuple(dict.fromkeys(other.said.text.strip() for other in same))[:3]
    root = root_of(row.name, hit, facts.last)
    if row.advice == "oom":
        return oom_verdict(facts, lines)
    if row.spread == "gpu-oom":
        return _gpu_memory(facts, hit, lines, root)
    if row.spread == "here":
        return _convict_here(facts, hit, hosts, lines, root)
    if row.spread == "space":
        return _space(facts, hit, hosts, lines, root)
    if row.spread == "node" and (node := _only_host(facts, hit, same, hosts)):
        return convict(
            facts,
            "infra-node",
            f"{row.name}-one-host",
            0.8,
            (node,),
            lines,
            f"only {node} reports: {hit.said.text.strip()[:160]}",
            f"{row.name} {node}",
        )
    if row.name == "storage.io" and not facts.several:
        return Cause("storage", WAIT_REQUEUE, row.name, 0.6, (), (), lines, hit.said.text.strip()[:200], root)
    advice = row.advice
    if advice == "limits":
        advice = REQUEUE if facts.progressed and facts.slurm.restarts == 0 and not died_before(facts, root) else STOP
    return Cause(row.cause, advice, row.name, 0.85, (), everybody(facts), lines, hit.said.text.strip()[:200], root)


def convict(
    facts: Facts,
    word: str,
    rule: str,
    confidence: float,
    culprits: tuple[str, ...],
    lines: tuple[str, ...],
    reason: str,
    root: str,
) -> Cause:
    return Cause(
        word, REQUEUE_EXCLUDE, rule, confidence, culprits, everybody(facts, culprits), lines, reason[:240], root
    )


def _only_host(facts: Facts, hit: Hit, same: list[Hit], hosts: tuple[str, ...]) -> str:
    """Return the one node of several that lacks something the others have, or "".

    Rank 0 alone is no witness: much is done by rank 0 only, and the others never got there.
    """
    if len(hosts) == 1 and facts.several:
        witnesses = {other.said.rank for other in same if other.said.node == hosts[0]}
        if witnesses == {0} or (witnesses == {-1} and hosts[0] == facts.slurm.nodes[0]):
            return ""
        return hosts[0]
    # A job of one node that had run on another: what was there is missing here.
    earlier = [node for node in facts.slurm.previous_nodes if node not in facts.slurm.nodes]
    if len(facts.slurm.nodes) == 1 and earlier and not facts.progressed and facts.before:
        said, old = facts.before[-1]
        if not any(other.signature.name == hit.signature.name for other in old) and any(
            "loss" in one.text or "step" in one.text for one in said
        ):
            return facts.slurm.nodes[0]
    return ""


def _located(facts: Facts) -> tuple[str, ...]:
    """Return the one host that the launchers name as having failed by itself, else nothing: exit order alone is teardown."""
    named = {
        found.group(1)
        for one in facts.last
        if (found := _FAILED_HOST.match(one.text)) and found.group(1) in facts.slurm.nodes
    }
    if not named:
        named = {
            found.group(1)
            for one in facts.last
            if (found := _EXITED.search(one.text)) and found.group(1) in facts.slurm.nodes
        }
    return tuple(named) if len(named) == 1 else ()


def _convict_here(facts: Facts, hit: Hit, hosts: tuple[str, ...], lines: tuple[str, ...], root: str) -> Cause:
    row = hit.signature
    culprits = (hit.said.node,) if hit.said.node else hosts[:1] or _located(facts)
    if facts.several and len(hosts) == len(facts.slurm.nodes):
        return Cause(
            row.cause,
            HOLD,
            f"{row.name}-everywhere",
            0.6,
            (),
            (),
            lines,
            f"all nodes alike: {hit.said.text.strip()[:160]}",
            row.name,
        )
    if not culprits:
        return Cause(
            row.cause,
            REQUEUE,
            row.name,
            0.7,
            (),
            (),
            lines,
            f"hardware, but no line tells on which node: {hit.said.text.strip()[:160]}",
            root,
        )
    return convict(
        facts,
        row.cause,
        row.name,
        0.85,
        culprits,
        lines,
        f"{culprits[0]}: {hit.said.text.strip()[:180]}",
        f"{row.name} {culprits[0]}",
    )


def _mib(amount: str, unit: str) -> float:
    return float(amount) * (1024 if unit == "GiB" else 1)


def _gpu_memory(facts: Facts, hit: Hit, lines: tuple[str, ...], root: str) -> Cause:
    """GPU memory ran out: of the job's own making, or held by a process that is not of this job."""
    text = hit.said.text
    own_pids = _own_pids(facts)
    foreign = sum(
        _mib(found.group(2), found.group(3)) for found in _FOREIGN.finditer(text) if found.group(1) not in own_pids
    )
    own = sum(_mib(*found.groups()) for found in _OWN.finditer(text))
    whole = _CAPACITY.search(text)
    if not foreign and whole and own:
        capacity, free = _mib(whole.group(1), whole.group(2)), _mib(whole.group(3), whole.group(4))
        unaccounted = capacity - free - own
        foreign = unaccounted if unaccounted > 0.2 * capacity and not _FOREIGN.search(text) else 0.0
    if foreign > max(own, 1024) or (whole and foreign > 0.2 * _mib(whole.group(1), whole.group(2))):
        node = hit.said.node or next(iter(_located(facts)), "")
        if not node:
            return Cause(
                "infra-node",
                REQUEUE,
                "gpu.memory-held",
                0.7,
                (),
                (),
                lines,
                "GPU memory is held by a process that is not of this job",
                root,
            )
        return convict(
            facts,
            "infra-node",
            "gpu.memory-held",
            0.85,
            (node,),
            lines,
            f"GPU memory on {node} is held by a process that is not of this job",
            f"gpu.memory-held {node}",
        )
    return Cause(
        "user-oom",
        STOP,
        "user.gpu-oom",
        0.9,
        (),
        everybody(facts),
        lines,
        "the job needs more GPU memory than there is",
        root,
    )


def _own_pids(facts: Facts) -> set[str]:
    """Return process ids that the job's own launchers and NCCL name in the log."""
    return {next(group for group in found.groups() if group) for one in facts.last for found in _PID.finditer(one.text)}


def _space(facts: Facts, hit: Hit, hosts: tuple[str, ...], lines: tuple[str, ...], root: str) -> Cause:
    """A file system is full: a disk of one host, or space that all share."""
    full = tuple(
        dict.fromkeys(
            node for node, event in facts.events if DISK_FULL.search(event.text) and node in facts.slurm.nodes
        )
    )
    text = " ".join(one.text for one in facts.last[max(0, hit.place - 3) : hit.place + 2])
    local = bool(_LOCAL_PATH.search(text)) and not _SHARED_PATH.search(hit.said.text)
    culprits = full[:1] if len(full) == 1 else hosts if len(hosts) == 1 else _located(facts)
    one_of_many = len(culprits) == 1 and (facts.several or bool(full))
    if one_of_many and (local or full or (hit.said.rank > 0 and not _SHARED_PATH.search(text))):
        return convict(
            facts,
            "storage",
            "storage.full-local",
            0.8,
            culprits,
            lines,
            f"a disk of {culprits[0]} is full",
            f"storage.full {culprits[0]}",
        )
    if local and not facts.several:
        return convict(
            facts,
            "storage",
            "storage.full-local",
            0.7,
            facts.slurm.nodes,
            lines,
            f"a disk of {facts.slurm.nodes[0] if facts.slurm.nodes else 'the node'} is full",
            root,
        )
    return Cause(
        "storage",
        WAIT_REQUEUE,
        "storage.full",
        0.85,
        (),
        everybody(facts),
        lines,
        "the file system is full",
        "storage.full",
    )
