"""Advice for a job of N whole nodes: what to ask of Slurm so that it lies close together, and what that costs in waiting. Pure.

Nothing is advised that this Slurm ignores or refuses, or that never starts. Where two choices are as good, none is asked.
"""

from __future__ import annotations

from slurm_ext.topology import advise_segments, advise_switches
from slurm_ext.topology.advise_model import BLOCK, FLAT, NOW, TREE, Advice, Request, Situation
from slurm_ext.topology.advise_tree import fewest_of
from slurm_ext.topology.advise_words import many


def advise(found: Situation, request: Request) -> Advice:
    """Return the advice. Raise ValueError where the partition has too few nodes, or a group of GPUs cannot be counted."""
    total = len(found.places)
    if request.nodes > total:
        raise ValueError(f"partition {found.partition} has {many(total, 'node')}, fewer than {request.nodes}")
    if request.group_gpus and not request.gpus_per_node:
        raise ValueError("how many GPUs a node has is not known here: a group of GPUs cannot be turned into nodes")
    if found.kind == TREE:
        advice = advise_switches.advise(found, request)
    elif found.kind == BLOCK:
        advice = advise_segments.advise(found, request)
    else:
        advice = _unplaced(found, request)
    return advice._replace(
        notes=(*advice.notes, *_queue(found), *found.notes), warnings=(*advice.warnings, *_groups(request))
    )


def _unplaced(found: Situation, request: Request) -> Advice:
    """Advice where Slurm places by no topology that we know: leaves are ours then, or unknown."""
    if found.kind == FLAT:
        reason = "this Slurm has no topology: --switches and --segment change nothing, and nodes are chosen by name"
        notes: tuple[str, ...] = (
            "order the ranks by the network instead: fmslurm topology generate --format hosts -j $SLURM_JOB_ID",
        )
    else:
        reason, notes = f"{found.plugin or 'its topology'} is a kind of topology that fmslurm cannot foresee", ()
    idle: dict[str, int] = {}
    for place in found.places:
        if place.free_at == NOW:
            idle[place.unit] = idle.get(place.unit, 0) + 1
    enough = sum(idle.values()) >= request.nodes
    sizes = {unit: size for unit, size in found.sizes.items() if unit}
    return Advice(
        options=(),
        reason=reason,
        unit="leaf",
        fewest=fewest_of(list(sizes.values()), request.nodes),
        fewest_now=fewest_of([number for unit, number in idle.items() if unit], request.nodes),
        spans=0,
        starts_s=0.0 if enough else None,
        taken={},
        rows=(),
        notes=notes,
        warnings=() if enough else (f"only {many(sum(idle.values()), 'node')} of {request.nodes} idle",),
    )


def _queue(found: Situation) -> list[str]:
    notes = []
    if found.pending_jobs:
        notes.append(
            f"not counted: {many(found.pending_jobs, 'job')} ({many(found.pending_nodes, 'node')}) "
            "already waiting in this partition, which may start first"
        )
    if found.out:
        notes.append(f"{many(found.out, 'node')} down, drained or not answering: not counted on")
    if found.reserved:
        notes.append(f"{many(found.reserved, 'node')} reserved or in maintenance: not counted on")
    if found.endless:
        notes.append(f"{many(found.endless, 'node')} busy with no end that is known: not counted on")
    return notes


def _groups(request: Request) -> list[str]:
    """Warn of groups of GPUs that are cut, by the job's size or by its nodes."""
    group, each = request.group_gpus, request.gpus_per_node
    if not group:
        return []
    found = []
    if request.nodes * each % group:
        found.append(
            f"groups of {group} GPUs do not divide {request.nodes} nodes, which have {request.nodes * each} GPUs"
        )
    if max(group, each) % min(group, each):
        found.append(f"groups of {group} GPUs do not go into nodes of {each}: some share a node, or cross into one")
    return found
