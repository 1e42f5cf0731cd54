"""Advice where topology/tree places jobs: is `--switches` worth its waiting? Pure.

`--switches=K@T` moves no node: Slurm chooses as ever, and holds the job while its choice spans more than K leaves and T has
not passed. T counts from Slurm's first look at the job, also while too few nodes are free, and is cut to max_switch_wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from slurm_ext.topology import advise_tree
from slurm_ext.topology.advise_model import NOW, Advice, Request, Row, Situation
from slurm_ext.topology.advise_time import moments
from slurm_ext.topology.advise_words import ask_time, lasting, leaves, many

#: Slurm looks at waiting jobs about once a minute (sched_interval); the time asked for has room for two looks.
_LOOKS_S = 120


class Choice(NamedTuple):
    """When Slurm's choice first spans so few leaves, in seconds from now."""

    leaves: int
    starts_s: float
    taken: Mapping[str, int]


def advise(found: Situation, request: Request) -> Advice:
    """Return the advice for a partition that topology/tree places."""
    idle: dict[str, int] = {}
    for place in found.places:
        if place.free_at == NOW:
            idle[place.unit] = idle.get(place.unit, 0) + 1
    fewest = advise_tree.fewest(found.switches, found.sizes, request.nodes)
    choices = _choices(found, request.nodes, fewest)
    warnings, notes = _impossible(found, request, fewest), []
    if not choices:
        reason = (
            "no switch has so many nodes below it: Slurm never starts such a job here" if not fewest else _endless()
        )
        return Advice((), reason, "leaf", fewest, 0, 0, None, {}, (), (), tuple(warnings))
    first = choices[0]
    rows = [Row("", first.leaves, first.starts_s, 0.0)]
    rows += [Row(f"--switches={c.leaves}", c.leaves, c.starts_s, c.starts_s - first.starts_s) for c in choices[1:]]
    options: tuple[str, ...] = ()
    if found.dragonfly:
        reason = "TopologyParam=Dragonfly spreads jobs on purpose: what they span is not foreseen"
        warnings.append("the leaves below are those of a tree without Dragonfly")
    else:
        options, reason = _recommended(found, request, choices, fewest)
    notes += _group_notes(request, first)
    if any(choice.starts_s > 0 for choice in choices):
        notes.append("times are upper bounds: jobs may end before their limits")
    return Advice(
        options,
        reason,
        "leaf",
        fewest,
        advise_tree.fewest(found.switches, idle, request.nodes),
        first.leaves,
        first.starts_s,
        first.taken,
        tuple(rows),
        tuple(notes),
        tuple(warnings),
    )


def _choices(found: Situation, nodes: int, fewest: int) -> list[Choice]:
    """Return the first start, and each later one that spans fewer leaves than all before."""
    choices: list[Choice] = []
    for when, free in moments(found):
        taken = advise_tree.place(found.switches, free, nodes, found.release)
        if taken is not None and (not choices or len(taken) < choices[-1].leaves):
            choices.append(Choice(len(taken), when, taken))
            if len(taken) <= fewest:
                break
    return choices


def _recommended(found: Situation, request: Request, choices: list[Choice], fewest: int) -> tuple[tuple[str, ...], str]:
    first = choices[0]
    cap = found.max_switch_wait_s
    for choice in reversed(choices[1:]):  # the fewest leaves first
        waits = choice.starts_s - first.starts_s
        if waits > request.patience_s or choice.starts_s > cap:
            continue
        asked = min(cap, math.ceil((choice.starts_s + _LOOKS_S) / 60) * 60)
        reason = (
            f"{leaves(choice.leaves)} instead of {first.leaves} for {lasting(waits)} more waiting"
            if choice.leaves > fewest
            else f"{leaves(choice.leaves)}, the fewest there can be, instead of {first.leaves} for {lasting(waits)} more waiting"
        )
        return (f"--switches={choice.leaves}@{ask_time(asked)}",), reason
    if found.topo_optional:
        if first.starts_s > cap:
            return (), _capped(first, cap)
        asked = min(cap, math.ceil((first.starts_s + _LOOKS_S) / 60) * 60)
        return (
            (f"--switches={first.leaves}@{ask_time(asked)}",),
            "TopologyParam=TopoOptional: without --switches Slurm does not look at the tree",
        )
    if first.leaves <= fewest:
        return (), f"it gets {leaves(first.leaves)}, the fewest there can be"
    if len(choices) == 1:
        return (), f"{leaves(first.leaves)} is what Slurm chooses however long it waits for running jobs"
    best = min(choices[1:], key=lambda choice: choice.starts_s)
    waits = best.starts_s - first.starts_s
    if waits > request.patience_s:
        return (), (
            f"{leaves(best.leaves)} instead of {first.leaves} would cost {lasting(waits)} more, "
            f"over {lasting(request.patience_s)} (--patience)"
        )
    return (), _capped(best, cap)


def _capped(choice: Choice, cap: int) -> str:
    return (
        f"{leaves(choice.leaves)} would come in {lasting(choice.starts_s)}, but max_switch_wait ends the waiting "
        f"{cap} s after Slurm's first look: --switches would not last"
    )


def _endless() -> str:
    return "too few nodes come free: they are down, reserved, or busy with no end that is known"


def _impossible(found: Situation, request: Request, fewest: int) -> list[str]:
    warnings = []
    if fewest > 1:
        largest = max((found.sizes.get(found.switches.names[leaf], 0) for leaf in found.switches.leaves()), default=0)
        warnings.append(
            f"fewer than {leaves(fewest)} cannot be (the largest has {many(largest, 'node')} of {request.nodes}): "
            f"--switches={fewest - 1} would only wait out its time"
        )
    return warnings


def _group_notes(request: Request, first: Choice) -> list[str]:
    """Say what groups of GPUs that cross nodes mean where NVLink ends at the node."""
    group = request.group_nodes
    if not request.group_gpus:
        return []
    if group == 1 and request.gpus_per_node % request.group_gpus:
        return []  # warned of
    if group <= 1:
        return [
            f"groups of {request.group_gpus} GPUs stay within a node, and within its NVLink, whatever the placement"
        ]
    whole = sum(number // group for number in first.taken.values())
    return [
        f"groups of {request.group_gpus} GPUs need {many(group, 'node')} each, and Slurm knows no NVLink domains here: "
        f"they talk over the network; {whole} of {request.nodes // group} groups fit whole below a leaf"
    ]
