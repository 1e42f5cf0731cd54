"""Advice where topology/block places jobs: which `--segment` keeps what must be within an NVLink domain, and starts soon. Pure.

Size of segments where no group of GPUs is told: NVIDIA's simulation of 5,000 GB200 nodes lost about 1 % of occupancy with 16
nodes for jobs of 128 GPUs and more, 4 for 32 to 64, 1 below (developer.nvidia.com/blog/?p=116606); 65 to 127 are counted to
the middle ones here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slurm_ext.topology import advise_block, advise_tree
from slurm_ext.topology.advise_model import REFUSES_BEFORE, Advice, Free, Request, Row, Situation
from slurm_ext.topology.advise_time import everything, moments
from slurm_ext.topology.advise_words import lasting, many

#: GPUs of a job from which on a segment of so many nodes is the aim.
YARDSTICK = ((128, 16), (32, 4), (0, 1))

#: So many sizes are tried, and told.
_MOST_SIZES = 8

DOMAIN = "NVLink domain"


class Choice(NamedTuple):
    """A segment size (0: none is asked) with its first start in seconds from now, and the blocks that the segments get."""

    segment: int
    starts_s: float
    segments: list[dict[str, int]]

    @property
    def taken(self) -> dict[str, int]:
        """Return block -> nodes."""
        taken: dict[str, int] = {}
        for segment in self.segments:
            for name, number in segment.items():
                taken[name] = taken.get(name, 0) + number
        return taken


def aim(gpus: int) -> int:
    """Return the segment size that a job of so many GPUs should have, in nodes."""
    return next(nodes for least, nodes in YARDSTICK if gpus >= least)


def advise(found: Situation, request: Request) -> Advice:
    """Return the advice for a partition that topology/block places."""
    sizes = _sizes(found, request)
    choices = _choices(found, request.nodes, sizes)
    full = everything(found, out=False)
    refused = _refused(found, request.nodes, [size for size in (0, *sizes) if _starts(choices, size) > 0])
    now = {name: dict(here) for name, here in next(iter(moments(found)))[1].items()}
    soonest = min((choice.starts_s for choice in choices.values()), default=0.0)
    rows = [
        _row(request.nodes, size, choices.get(size), soonest, now, full)._replace(refused=size in refused)
        for size in (0, *sizes)
    ]
    allowed = {size: choice for size, choice in choices.items() if size not in refused}
    options, reason = _recommended(found, request, allowed, soonest)
    chosen = choices.get(_segment_of(options))
    plain = choices.get(0)
    notes = ["--switches does nothing here: topology/block does not look at it", *_consolidated(found, request, chosen)]
    if any(choice.starts_s > 0 for choice in choices.values()):
        notes.append("times are upper bounds: jobs may end before their limits")
    idle: dict[str, int] = {name: sum(here.values()) for name, here in now.items()}
    return Advice(
        options,
        reason,
        DOMAIN,
        advise_tree.fewest_of(list(found.sizes.values()), request.nodes),
        advise_tree.fewest_of(list(idle.values()), request.nodes),
        len(plain.taken) if plain else 0,
        plain.starts_s if plain else None,
        chosen.taken if chosen else {},
        tuple(rows),
        tuple(notes),
        tuple(_warnings(found, request, allowed, full, 0 in refused)),
    )


def _starts(choices: Mapping[int, Choice], size: int) -> float:
    return choices[size].starts_s if size in choices else math.inf


def _refused(found: Situation, nodes: int, sizes: Iterable[int]) -> set[int]:
    """Return the sizes that sbatch refuses: those that do not start now, and would not if nothing ran at all.

    Slurm tries a job that cannot start on all nodes that are configured, by their weights of now: nodes that are booted come
    first, and where they lie in too many blocks it finds no placement and takes the job for one that can never run.
    """
    configured = everything(found, out=True)
    return {size for size in sizes if advise_block.place(found.blocks, configured, nodes, found.release, size) is None}


def _sizes(found: Situation, request: Request) -> list[int]:
    """Return the segment sizes that this Slurm takes for the job, large to small: true divisors of it, at most a base block."""
    if found.release < (24, 5):
        return []
    nodes, base = request.nodes, found.blocks.base
    sizes = [size for size in range(min(base, nodes - 1), 0, -1) if nodes % size == 0]
    if len(sizes) <= _MOST_SIZES:
        return sizes
    group = request.group_nodes
    wanted = [size for size in sizes if group and size % group == 0][:3]
    wanted += [size for size in sizes if size <= _target(request)][:3]
    kept = {*wanted, sizes[0], sizes[-1]}
    for size in sizes:
        if len(kept) < _MOST_SIZES:
            kept.add(size)
    return sorted(kept, reverse=True)


def _target(request: Request) -> int:
    if request.group_nodes:
        return max(request.group_nodes, aim(request.nodes * request.gpus_per_node))
    return aim(request.nodes * request.gpus_per_node) if request.gpus_per_node else YARDSTICK[0][1]


def _choices(found: Situation, nodes: int, sizes: Iterable[int]) -> dict[int, Choice]:
    choices: dict[int, Choice] = {}
    open_sizes = [0, *sizes]
    for when, free in moments(found):
        for size in list(open_sizes):
            segments = advise_block.place(found.blocks, free, nodes, found.release, size)
            if segments is not None:
                choices[size] = Choice(size, when, segments)
                open_sizes.remove(size)
        if not open_sizes:
            break
    return choices


def _row(nodes: int, size: int, choice: Choice | None, soonest: float, now: Free, full: Free) -> Row:
    ask = f"--segment={size}" if size else ""
    one = size or nodes
    held_now, held = advise_block.held(now, one), advise_block.held(full, one)
    if choice is None:
        return Row(ask, 0, None, None, size, held_now, held)
    return Row(ask, len(choice.taken), choice.starts_s, choice.starts_s - soonest, size, held_now, held)


def _recommended(
    found: Situation, request: Request, choices: Mapping[int, Choice], soonest: float
) -> tuple[tuple[str, ...], str]:
    group = request.group_nodes
    if not choices:
        return (), "no placement is in sight: too few nodes come free, or no planning block holds so many"
    patient = {size: choice for size, choice in choices.items() if choice.starts_s - soonest <= request.patience_s}
    if group > 1 and (fitting := _of_groups(found, request, patient, choices, soonest)):
        size, why = fitting
        return _asked(size), why
    one_domain = request.nodes <= found.blocks.base
    if one_domain and 0 in patient:
        return (), "Slurm puts a job of at most one NVLink domain into one by itself"
    target = _target(request)
    below = [size for size in patient if 0 < size <= target]
    if below:
        size = max(below)
        if size * 2 < target and 0 in patient:
            return (), f"{request.nodes} nodes have no divisor near {target}: Slurm's own choice lies closer together"
        return _asked(size), _why(request, size, target, patient[size], choices.get(0))
    if 0 in choices:
        return (), "Slurm's own choice, in one planning block, is the one to have"
    size = min(choices, key=lambda size: choices[size].starts_s)
    return _asked(size), f"it is the only size that starts within {lasting(request.patience_s)} of the soonest"


def _of_groups(
    found: Situation, request: Request, patient: Mapping[int, Choice], choices: Mapping[int, Choice], soonest: float
) -> tuple[int, str] | None:
    """Return the segment size that keeps groups of GPUs within a domain, and why; None where none is in sight.

    Groups come before patience: where none starts in time, the one that starts first.
    """
    group = request.group_nodes
    within = [size for size in choices if (size % group == 0 if size else request.nodes <= found.blocks.base)]
    if not within:
        return None
    first = min(choices[size].starts_s for size in within)
    pool = [size for size in within if size in patient] or [s for s in within if choices[s].starts_s == first]
    late = "" if pool[0] in patient else f"; the soonest that does, {lasting(first - soonest)} later than without"
    if 0 in pool:
        what = f"all {many(request.nodes, 'node')} lie in one {DOMAIN}, and so does each group of {request.group_gpus} GPUs"
        return 0, what + late
    target = _target(request)
    size = max((size for size in pool if size <= target), default=min(pool))
    what = f"each group of {request.group_gpus} GPUs ({many(group, 'node')}) stays within one {DOMAIN} of {found.blocks.base} nodes"
    return size, what + late


def _asked(size: int) -> tuple[str, ...]:
    return (f"--segment={size}",) if size else ()


def _segment_of(options: Iterable[str]) -> int:
    return next((int(option.partition("=")[2]) for option in options if option.startswith("--segment=")), 0)


def _why(request: Request, size: int, target: int, choice: Choice, plain: Choice | None) -> str:
    what = f"{many(request.nodes // size, 'segment')} of {many(size, 'node')}"
    if size == target and request.gpus_per_node:
        what += f", the aim for {request.nodes * request.gpus_per_node} GPUs"
    if plain is None:
        return f"{what}; without --segment it would find no planning block large enough"
    if plain.starts_s > choice.starts_s:
        return f"{what}; it starts {lasting(plain.starts_s - choice.starts_s)} sooner than without --segment"
    return what


def _consolidated(found: Situation, request: Request, chosen: Choice | None) -> list[str]:
    """Say where all segments also fit below one planning block at the same time; a wish that never ends, so it is only said."""
    if chosen is None or not chosen.segment or found.release < (25, 11):
        return []
    for when, free in moments(found):
        if when >= chosen.starts_s:
            together = advise_block.place(
                found.blocks, free, request.nodes, found.release, chosen.segment, consolidate=True
            )
            if together is not None:
                return ["--consolidate-segments would keep all segments in neighbouring blocks at no cost now"]
            return []
    return []


def _warnings(
    found: Situation, request: Request, choices: Mapping[int, Choice], full: Free, refused: bool
) -> Iterable[str]:
    group, base = request.group_nodes, found.blocks.base
    largest = max((sum(here.values()) for here in full.values()), default=0)
    if found.release < (24, 5):
        yield f"Slurm {found.version} has no --segment (24.05 and later)"
    if group > base:
        yield (
            f"a group of {request.group_gpus} GPUs needs {many(group, 'node')}, and an {DOMAIN} has {base}: "
            "it crosses domains whatever is asked"
        )
    elif group > largest:
        yield f"no {DOMAIN} has {many(group, 'node')} up now (the fullest has {largest}): a group crosses domains"
    elif group > 1 and request.nodes % group and request.nodes > base:
        near = [count for count in (request.nodes // group * group, (request.nodes // group + 1) * group) if count]
        yield (
            f"--segment must divide --nodes: groups of {many(group, 'node')} want "
            f"{' or '.join(map(str, near))} nodes, not {request.nodes}"
        )
    elif group > 1 and not any(size % group == 0 if size else request.nodes <= base for size in choices):
        yield f"no placement that keeps groups of {many(group, 'node')} within an {DOMAIN} is in sight"
    if refused:
        may = "refuses" if found.release < REFUSES_BEFORE else "may refuse"
        yield f"sbatch {may} the job without --segment now: its nodes would lie in too many blocks"
    elif 0 not in choices:
        yield "without --segment the job stays pending: no planning block will have so many nodes free"
