"""Rules of rings and tori (26.05): what topology/ring and topology/torus3d do with a list of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_ext.topology.lint_model import Unit
from slurm_ext.topology.lint_report import Report, folded, short
from slurm_ext.topology.lint_tree import members

#: MAX_RING_SIZE: nodes of a ring.
MAX_RING = 16
#: Coordinates of a torus together: 32 bits.
_MOST = (1 << 32) - 1

Dims = tuple[int, int, int]


class Region(NamedTuple):
    """A box of a torus with nodes of its own."""

    anchor: Dims
    dims: Dims
    nodes: str | None


class Placement(NamedTuple):
    """A shape that jobs may have in a torus; spacing 0 is the shape's own."""

    dims: Dims
    seed: Dims
    spacing: Dims


class Torus(NamedTuple):
    """One torus as a file has it."""

    unit: Unit
    dims: Dims
    regions: Sequence[Region] = ()
    placements: Sequence[Placement] = ()


def check(report: Report, units: Sequence[Unit], file: str, *, line: int = 1) -> None:
    """Report what is wrong with rings."""
    if not units:
        report.add("conf.empty", file, line, kind="rings")
        return
    first: dict[str, Unit] = {}
    for unit in units:
        if unit.name in first:
            report.add("ring.duplicate", unit.file, unit.line, name=unit.name, first=first[unit.name].line)
        first.setdefault(unit.name, unit)
    _, counts = members(report, units, "ring")
    for unit in units:
        if counts.get(unit.name, 0) > MAX_RING:
            report.add("ring.large", unit.file, unit.line, name=unit.name, count=counts[unit.name])


def check_tori(report: Report, tori: Sequence[Torus], file: str, *, line: int = 1) -> None:
    """Report what is wrong with tori: the first thing of each, as slurmctld does."""
    if not tori:
        report.add("conf.empty", file, line, kind="tori")
        return
    owner: dict[str, str] = {}
    names: set[str] = set()
    for torus in tori:
        unit, held = torus.unit, set[str]()
        why = _wrong(report, torus, held)
        if not why and unit.name in names:
            why = "it is there a second time"
        shared = sorted(node for node in held if node in owner)
        if not why and shared:
            why = f"it shares nodes with {owner[shared[0]]}: {folded(shared)}"
        if why:
            report.add("torus.refused", unit.file, unit.line, name=unit.name, why=why)
        names.add(unit.name)
        for node in held:
            owner.setdefault(node, unit.name)


def _wrong(report: Report, torus: Torus, held: set[str]) -> str:
    unit, size = torus.unit, _product(torus.dims)
    if not unit.name:
        return "it has no name"
    if unit.nodes is not None and torus.regions:
        return "it has nodes and regions"
    if not size or size > _MOST:
        return f"its dimensions {_words(torus.dims)} are none, or too large"
    if torus.regions:
        if why := _regions(report, torus, held):
            return why
    elif unit.nodes:
        names = report.names(unit.nodes, unit.file, unit.line)
        if len(names) != size:
            return f"its dimensions {_words(torus.dims)} make {size}, and it names {len(names)} nodes"
        held.update(_known(report, names))
    return next((why for why in (_shape(torus.dims, one) for one in torus.placements) if why), "")


def _regions(report: Report, torus: Torus, held: set[str]) -> str:
    taken: set[Dims] = set()
    for region in torus.regions:
        if not region.nodes:
            return "a region has no nodes"
        if any(at + size > whole for at, size, whole in zip(region.anchor, region.dims, torus.dims, strict=True)):
            return (
                f"a region of {_words(region.dims)} at {_words(region.anchor)} does not fit into {_words(torus.dims)}"
            )
        names = report.names(region.nodes, torus.unit.file, torus.unit.line)
        if len(names) != _product(region.dims):
            return f"a region of {_words(region.dims)} names {len(names)} nodes: {short(region.nodes)}"
        known = set(_known(report, names))
        x, y, _ = region.dims
        for number, name in enumerate(names):
            if name in known:
                step = (number % x, number // x % y, number // (x * y))
                spot = tuple(at + more for at, more in zip(region.anchor, step, strict=True))
                if spot in taken:
                    return f"two regions have a node at {_words(spot)}"
                taken.add((spot[0], spot[1], spot[2]))
        held |= known
    return ""


def _shape(whole: Dims, one: Placement) -> str:
    if not _product(one.dims) or any(size > most for size, most in zip(one.dims, whole, strict=True)):
        return f"a placement of {_words(one.dims)} is none, or does not fit into {_words(whole)}"
    spacing = tuple(step or size for step, size in zip(one.spacing, one.dims, strict=True))
    if any(step > most for step, most in zip(spacing, whole, strict=True)):
        return f"the anchors of a placement are {_words(spacing)} apart, more than {_words(whole)}"
    if any(at >= most for at, most in zip(one.seed, whole, strict=True)):
        return f"the first anchor of a placement, {_words(one.seed)}, is outside of {_words(whole)}"
    return ""


def _known(report: Report, names: Sequence[str]) -> Sequence[str]:
    nodes = report.given.nodes
    return [name for name in names if name in nodes] if nodes else names


def _product(dims: Dims) -> int:
    return dims[0] * dims[1] * dims[2]


def _words(dims: Sequence[int]) -> str:
    return "x".join(map(str, dims))
