"""From the gres.conf that is there to the one that is right: what changes for which node, what must not, and which act follows. Pure.

gres.conf(5): draining a node comes before a change of its File= records, else jobs that use its GPUs are aborted; changed Cores= take
effect when slurmctld starts anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from slurm_ext.gres import fleet
from slurm_ext.gres.model import GresLine, NodeLine
from slurm_ext.gres.read_conf import gpus_in, ranges
from slurm_ext.slurm.hostlist import fold
from slurm_ext.slurm.model import Node

#: Base states of nodes on which jobs run.
_BUSY = ("ALLOCATED", "MIXED")


class Change(NamedTuple):
    """What a new gres.conf changes: nodes whose GPUs, or the cores of these, are others; `refused`: why it may not be written."""

    gpus: tuple[str, ...] = ()
    cores: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def words(self) -> str:
        """Return the change in a sentence."""
        said = [f"{what} of {fold(nodes)}" for what, nodes in (("GPUs", self.gpus), ("Cores=", self.cores)) if nodes]
        return " and ".join(said) + " change" if said else "no node's GPUs or cores change"


def change(
    before: Sequence[GresLine] | None,
    after: Sequence[GresLine],
    nodes: Sequence[Node],
    lines: Sequence[NodeLine],
    shown: Mapping[str, Collection[str]],
) -> Change:
    """Return what a new file changes for the nodes that Slurm has.

    `before`: the lines of the file that is there, None where nobody can read it; `lines`: slurm.conf's own of the nodes; `shown`: the
    device files that each node is known to have. slurmd 22.05.8 waits 19 s for a file that is not there, and ends.
    """
    old, new = fleet.Lines(before or ()), fleet.Lines(after)
    configured = {name: line for line in lines for name in line.nodes}
    gpus, cores, busy = [], [], []
    unseen: dict[str, list[str]] = {}
    for node in nodes:
        name, wanted = node.name, configured[node.name].gres if node.name in configured else node.gres
        was, becomes = _kinds(old.here(name)), _kinds(new.here(name))
        unread = before is None and bool(becomes or gpus_in(node.gres))
        if unread or was != becomes or gpus_in(node.gres) != gpus_in(wanted):
            gpus.append(name)
            if node.state in _BUSY or "COMPLETING" in node.flags:
                busy.append(name)
            there = _paths(old.gpus(name)) | set(shown.get(name, ()))
            if not _is_away(node) and (lacks := sorted(_paths(new.gpus(name)) - there)):
                unseen.setdefault(lacks[0], []).append(name)
        if unread or _cores(old.gpus(name)) != _cores(new.gpus(name)):
            cores.append(name)
    refused = [f"{fold(busy)}: jobs run there, and their GPUs would change: drain first (gres.conf(5))"] if busy else []
    for path, names in unseen.items():
        refused.append(
            f"{fold(names)}: nobody knows that {path} is there, and slurmd ends where it is not: let the nodes tell "
            "(`fmslurm gres show --here --json`, or the health check with site.share)"
        )
    refused += [f"{trouble.words}: {trouble.remedy}" for trouble in fleet.cluster(lines, after) if not trouble.harmless]
    if strange := sorted({node.name for node in nodes if new.gpus(node.name)} - configured.keys()):
        refused.append(f"{fold(strange)}: slurmctld has these nodes, and the slurm.conf here does not")
    return Change(tuple(gpus), tuple(cores), tuple(refused))


def refusals(
    before: Mapping[str, Node], now: Sequence[Node], after: Sequence[GresLine], *, starts_anew: bool
) -> list[str]:
    """Return what Slurm holds against a file that it was just told to read: nodes that are out for their GPUs, or offer others.

    `starts_anew`: this Slurm's slurmd begins anew to read its files, and goes on as before where it cannot (24.11.5 and 26.05.5).
    """
    new, found = fleet.Lines(after), dict[str, list[str]]()
    for node in now:
        if not new.gpus(node.name):
            continue
        was = before.get(node.name)
        if "gres" in node.reason.lower() and (was is None or was.reason != node.reason):
            found.setdefault(f"Slurm says {node.reason[:120]}", []).append(node.name)
        elif "INVALID_REG" in node.flags and (was is None or "INVALID_REG" not in was.flags):
            found.setdefault("Slurm does not take what slurmd registers", []).append(node.name)
        elif _count(node.gres) != sum(fleet.offered(new.gpus(node.name)).values()):
            found.setdefault(f"Slurm has Gres={node.gres or 'none'}", []).append(node.name)
        elif was is not None and _silent(node) and not _silent(was):
            found.setdefault("slurmd does not answer any more", []).append(node.name)
        elif was is not None and starts_anew and not _is_away(was) and node.slurmd_start_time <= was.slurmd_start_time:
            found.setdefault("slurmd did not start anew with the file", []).append(node.name)
    return [f"{fold(names)}: {words}" for words, names in found.items()]


def _silent(node: Node) -> bool:
    return node.state == "DOWN" or "NOT_RESPONDING" in node.flags


def _is_away(node: Node) -> bool:
    """Say whether no slurmd runs there now: it reads the file when it starts, with its driver loaded."""
    return _silent(node) or any(flag.startswith("POWERED_DOWN") or flag == "POWERING_UP" for flag in node.flags)


def _paths(lines: Sequence[GresLine]) -> set[str]:
    return {path for line in lines for path in line.files}


def _count(gres: str) -> int:
    return sum(gpus_in(gres).values())


def _kinds(lines: Sequence[GresLine]) -> tuple[tuple[str, ...], ...]:
    """Return what a node's GPUs are, whatever their cores: device files with their type, and what has no file."""
    found = set[tuple[str, ...]]()
    for line in lines:
        if line.autodetect:
            found.add(("autodetect", line.autodetect))
        if line.name != "gpu":
            continue
        found |= {(line.type.lower(), path) for path in line.files}
        if not line.files:
            found.add((line.type.lower(), "", str(line.amount)))
    return tuple(sorted(found))


def _cores(lines: Sequence[GresLine]) -> dict[str, str]:
    """Return the cores of each device file."""
    return {path: ranges(line.cores) if line.cores is not None else "" for line in lines for path in line.files}
