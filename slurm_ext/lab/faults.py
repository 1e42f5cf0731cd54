"""Faults of a lab by name: make one, undo it. A fault is in lab.json before it is made, so that a crash leaves it undoable."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from slurm_ext.errors import LackingError, UsageError
from slurm_ext.lab import build, faults_efa, faults_gpu, faults_hardware, faults_host, faults_nccl, faults_real
from slurm_ext.lab.fault_site import Site
from slurm_ext.lab.model import State

#: Stands for no node, where a fault has none.
NO_NODE = "-"


class Kind(NamedTuple):
    """One kind of fault: what makes it and what undoes it (each returns words), its options, and its help line."""

    make: Callable[[Site], str]
    undo: Callable[[Site], str]
    options: tuple[str, ...]
    help: str


KINDS: dict[str, Kind] = {
    "gpu-xid": Kind(
        faults_hardware.gpu_xid, faults_hardware.heal_gpu, ("gpu", "xid"), "an Xid in the kernel log; 79 loses the GPU"
    ),
    "ecc": Kind(faults_hardware.ecc, faults_hardware.heal_gpu, ("gpu", "count"), "uncorrected ECC errors on a GPU"),
    "gpu-lost": Kind(faults_hardware.gpu_lost, faults_hardware.heal_gpu, ("gpu",), "a GPU that answers no more"),
    "nvlink-down": Kind(faults_gpu.nvlink_down, faults_gpu.heal, ("gpu",), "an NVLink of a GPU is down"),
    "gpu-memory": Kind(faults_gpu.memory_left, faults_gpu.heal, ("gpu",), "GPU memory stays in use, held by nobody"),
    "gpu-hot": Kind(faults_gpu.hot, faults_gpu.heal, ("gpu",), "a GPU is held down by hardware for its heat"),
    "efa-lost": Kind(faults_efa.lost, faults_efa.heal_lost, (), "an EFA device is gone"),
    "efa-errors": Kind(faults_efa.errors, faults_efa.heal_errors, ("count",), "an EFA device counts lost packets"),
    "slow-link": Kind(faults_real.slow_link, faults_real.heal_slow_link, ("rate",), "the node's link is slow"),
    "cut": Kind(faults_real.cut, faults_real.heal_cut, (), "the node's link is down"),
    **{
        name: Kind(make, faults_nccl.heal, options, words)
        for name, make, options, words in (
            ("nccl-wrong-result", faults_nccl.wrong_result, ("how", "offset", "gpu"), "a bit flips in what they send"),
            ("nccl-hang", faults_nccl.hang, ("where", "gpu"), "the node's ranks hang in NCCL"),
            ("nccl-abort-hang", faults_nccl.abort_hang, ("where", "gpu"), "they hang, and the abort does, too"),
            ("nccl-crash", faults_nccl.crash, ("where", "gpu"), "the node's ranks die in NCCL"),
            ("nccl-stop", faults_nccl.stop, ("where", "gpu"), "the node's ranks stop by SIGSTOP"),
            ("nccl-slow", faults_nccl.slow, ("delay_ms", "after_ms", "gpu"), "its ranks begin each collective late"),
            ("nccl-late", faults_nccl.late, ("delay_ms",), "the node's ranks join late"),
            ("nccl-absent", faults_nccl.absent, ("gpu",), "the node's ranks never join, and end"),
            ("nccl-socket", faults_nccl.socket, (), "TCP in place of EFA, and only the log says so"),
            ("nic-count", faults_nccl.nic_count, ("count",), "the EFA plugin finds too few adapters"),
            ("rail-slow", faults_nccl.rail_slow, ("gpu", "rate"), "one GPU's way to other nodes is slow"),
            ("efa-retransmit", faults_nccl.retransmits, ("count",), "EFA sends packets again"),
        )
    },
    "gpu-dstate": Kind(
        faults_nccl.dstate, faults_nccl.heal_dstate, ("where", "gpu"), "ranks sleep in the kernel, SIGKILL or not"
    ),
    "slurmd-kill": Kind(faults_real.slurmd_kill, faults_real.heal_slurmd, (), "slurmd dies, jobs live on"),
    "node-death": Kind(faults_real.node_death, faults_real.heal_node, (), "the node is gone, without a word"),
    "disk-full": Kind(faults_real.disk_full, faults_real.heal_disk, ("free_kb",), "no space left on the node's NVMe"),
    "lustre-stale": Kind(
        faults_real.lustre_stale, faults_real.heal_lustre, ("how",), "the shared file system fails this node, or hangs"
    ),
    "clock-unsync": Kind(
        faults_hardware.clock_unsync, faults_hardware.heal_clock, (), "the node's clock has no time source"
    ),
    "nvme-gone": Kind(faults_host.nvme_gone, faults_host.heal_nvme, (), "the node's last local disk is gone"),
    "memory-error": Kind(
        faults_host.memory_error, faults_host.heal_memory, ("count",), "uncorrected errors of the node's memory"
    ),
    "root-read-only": Kind(
        faults_host.root_read_only, faults_host.heal_root, (), "the kernel turned the root file system read-only"
    ),
    "lustre-evicted": Kind(
        faults_host.lustre_evicted, faults_host.heal_lustre, (), "Lustre evicted the node, and it is not back"
    ),
    "s3-down": Kind(faults_real.s3_down, faults_real.heal_s3, (), "the lab's S3 server is gone (NODE is -)"),
}

#: Undone before anything else of the same node: the rest needs a node that lives.
_FIRST = ("node-death", "cut")


def make(state: State, node: str, kind: str, options: dict[str, Any]) -> tuple[State, str]:
    """Make a fault and return the state with it, and what it did in words. The caller holds the lab's lock.

    Raise UsageError for a kind, node or option that cannot be, LackingError for what this lab or machine cannot do.
    """
    chosen = _kind(kind)
    given = {key: value for key, value in options.items() if value is not None}
    if strange := sorted(set(given) - set(chosen.options)):
        raise UsageError(f"{kind} knows no --{strange[0].replace('_', '-')}", remedy="Leave it out")
    if kind == "s3-down":
        node = NO_NODE
    elif node == state.head.name:
        raise UsageError("the head node has no faults of its own", remedy="Choose one of the nodes")
    site = Site(state, state.head if node == NO_NODE and kind == "s3-down" else state.node(node), given)
    if any(fault["kind"] == "node-death" for fault in _of(state, node)):
        raise UsageError(f"{node} is dead already", remedy=f"Boot it with `fmslurm lab heal {node}`")
    entry = {"node": node, "kind": kind, "since": time.time(), **given}
    site.state = replace(state, faults=(*state.faults, entry))
    build.save(site.state)
    try:
        words = chosen.make(site)
    except (LackingError, UsageError):
        # It refused before it did anything.
        build.save(state)
        raise
    if kind == "node-death":
        site.state = site.state.with_node(replace(site.node, down=True))
    build.save(site.state)
    return site.state, words


def undo(state: State, node: str, kind: str = "") -> tuple[State, list[str]]:
    """Undo a node's faults (of one kind, or all) and return the state without them, and what that did in words."""
    if kind:
        _kind(kind)
    if node != NO_NODE:
        state.node(node)
    wanted = [fault for fault in _of(state, node) if not kind or fault["kind"] == kind]
    wanted.sort(key=lambda fault: fault["kind"] not in _FIRST)
    said = []
    for entry in wanted:
        place = state.head if node == NO_NODE else state.node(node)
        site = Site(state, place, entry)
        words = KINDS[entry["kind"]].undo(site)
        state = site.state.with_node(replace(site.node, down=False)) if node != NO_NODE else site.state
        state = replace(state, faults=tuple(fault for fault in state.faults if fault != entry))
        build.save(state)
        said.append(f"{entry['kind']}: {words}")
    return state, said


def _of(state: State, node: str) -> list[dict[str, Any]]:
    return [fault for fault in state.faults if fault["node"] == node]


def _kind(kind: str) -> Kind:
    if kind not in KINDS:
        raise UsageError(f"no fault {kind!r}", remedy=f"There are {', '.join(KINDS)}")
    return KINDS[kind]
