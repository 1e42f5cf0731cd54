"""The node-by-node picture of burn-ins: which node showed what in which of the newest ones. Pure; as text for a terminal.

A node's cell in a burn-in is what its own groups showed: its best pair where there were pairs (one good partner clears a
node), else the run it took part in. A figure is held against the median of like groups of the fleet or of the picture, or
the floor, whichever is known, in this order; below its floor it is low in any case. Each level has a letter of its own, so
that nothing hangs on colour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from slurm_ext.burnin import history_line
from slurm_ext.burnin.history_line import Measured
from slurm_ext.burnin.model import OK
from slurm_ext.burnin.rules import bucket
from slurm_ext.burnin.thresholds import Key
from slurm_ext.slurm.hostlist import fold
from slurm_ext.verdict import FAIL, UNKNOWN, one_line


class Level(NamedTuple):
    """One level: its letter, what it means, and where it stands (the higher, the worse)."""

    letter: str
    words: str
    badness: int


#: Shares of the reference from which a figure is good, and fair; below that it is low.
GOOD, FAIR = 0.95, 0.85

LEVELS: dict[str, Level] = {
    "good": Level("=", f"{GOOD:.0%} of the reference or more", 0),
    "fair": Level("-", f"{FAIR:.0%} to {GOOD:.0%}", 2),
    "low": Level("v", f"below {FAIR:.0%}, or below the floor", 4),
    "slow": Level("S", "too slow, given up or below the floor", 6),
    "wrong": Level("W", "wrong results", 9),
    "hang": Level("H", "no end", 8),
    "error": Level("E", "an error of its own", 7),
    "suspect": Level("?", "suspect, not convicted", 10),
    "culprit": Level("X", "convicted", 11),
    "unjudged": Level(".", "measured, nothing to hold it against", 1),
    "unknown": Level("u", "nothing learned", 3),
}

#: Fewer like figures in the picture are no median.
_LIKE_MIN = 3
#: Partners that are shown of pairs at most: the nodes with the worst ones.
PAIR_NODES_MAX = 48

Floor = Callable[[str, int, int], float]  # (instance type, nodes, message bytes) -> GB/s, 0: nobody knows


class Cell(NamedTuple):
    """What one node showed in one burn-in; `ratio` is its busbw (GB/s) by its reference."""

    level: str
    busbw_gbs: float | None = None
    ratio: float | None = None


class Column(NamedTuple):
    """One burn-in. `mark` names its column."""

    mark: str
    time: float
    job: str
    verdict: str
    reason: str
    nodes: int
    busbw_gbs: float | None


class Row(NamedTuple):
    """Nodes that show the same levels, and the cells of one of them: the worst figures (None: it took no part)."""

    nodes: tuple[str, ...]
    cells: tuple[Cell | None, ...]


class Pair(NamedTuple):
    """Two nodes in the newest burn-in that had them as a pair."""

    first: str
    second: str
    cell: Cell


class Picture(NamedTuple):
    """Columns oldest first, rows worst first."""

    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    pairs: tuple[Pair, ...] = ()
    nodes: int = 0


class _Burnin(NamedTuple):
    """All that the lines of one job say."""

    line: Mapping[str, Any]
    groups: tuple[Measured, ...]
    nodes: tuple[str, ...]


MARKS = "123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def merged(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one line for each job, oldest first: the leader's where it is there, else another that has a verdict."""
    best: dict[str, dict[str, Any]] = {}
    for line in sorted(lines, key=history_line.time_of):
        job = str(line.get("job", ""))
        if job not in best or _rank(line) > _rank(best[job]):
            best[job] = dict(line)
    return sorted(best.values(), key=history_line.time_of)


def _rank(line: Mapping[str, Any]) -> tuple[bool, bool]:
    return (line.get("leads") is True, line.get("verdict") != UNKNOWN)


def build(
    lines: Sequence[Mapping[str, Any]],
    *,
    floor: Floor,
    medians: Mapping[Key, float] | None = None,
    last: int = len(MARKS),
    only: Sequence[str] = (),
) -> Picture:
    """Return the picture of the newest `last` burn-ins; `only` restricts the rows to these nodes.

    `floor` gives floors, `medians` the fleet's medians by key where there are enough runs (GB/s).
    """
    burnins = _burnins(lines, only)[-min(last, len(MARKS)) :]
    like = _like(burnins)
    cells: dict[str, list[Cell | None]] = {}
    wanted = set(only)
    for number, burnin in enumerate(burnins):
        for name, cell in _cells(burnin, floor, medians or {}, like).items():
            if not wanted or name in wanted:
                cells.setdefault(name, [None] * len(burnins))[number] = cell
    columns = tuple(_column(MARKS[number], burnin) for number, burnin in enumerate(burnins))
    pairs = _pairs(burnins, floor, medians or {}, like)
    return Picture(columns, _rows(cells), pairs, len(cells))


def _burnins(lines: Sequence[Mapping[str, Any]], only: Sequence[str]) -> list[_Burnin]:
    by_job: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        by_job.setdefault(str(line.get("job", "")), []).append(line)
    found = []
    for line in merged(lines):
        nodes = history_line.nodes_of(line)
        if not nodes or (only and not set(only).intersection(nodes)):
            continue
        # The leader's line has every group; without it the others' have each node's own.
        sources = [line] if line.get("leads") is True else by_job[str(line.get("job", ""))]
        groups = {(m.kind, m.nodes, m.outcome, m.busbw_gbs): m for s in sources for m in history_line.measured_of(s)}
        found.append(_Burnin(line, tuple(groups.values()), nodes))
    return found


def _column(mark: str, burnin: _Burnin) -> Column:
    past = history_line.past_of(burnin.line)
    return Column(
        mark,
        history_line.time_of(burnin.line),
        one_line(str(burnin.line.get("job", "")), 80),
        one_line(str(burnin.line.get("verdict", "")), 20),
        one_line(str(burnin.line.get("reason", "")), 160),
        len(burnin.nodes),
        past.busbw_gbs if past is not None else None,
    )


_LikeKey = tuple[str, int, str]


def _like_key(burnin: _Burnin, count: int) -> _LikeKey:
    key = history_line.key_of_line(burnin.line)
    kind = str(burnin.line.get("instance_type", ""))
    return (kind, key.message_bytes if key is not None else 0, bucket(count))


def _like(burnins: Sequence[_Burnin]) -> dict[_LikeKey, float]:
    """Return the median of groups that ended well, by what makes them alike; only where there are enough."""
    figures: dict[_LikeKey, list[float]] = {}
    for burnin in burnins:
        for group in burnin.groups:
            if group.outcome == OK and group.busbw_gbs:
                figures.setdefault(_like_key(burnin, len(group.nodes)), []).append(group.busbw_gbs)
    return {key: median(values) for key, values in figures.items() if len(values) >= _LIKE_MIN}


class _References(NamedTuple):
    floor: Floor
    medians: Mapping[Key, float]
    like: Mapping[_LikeKey, float]


def _cell(burnin: _Burnin, group: Measured, refs: _References) -> Cell:
    """Return what one group showed."""
    count = len(group.nodes)
    if group.outcome != OK:
        level = group.outcome if group.outcome in LEVELS else "unknown"
        return Cell(level, group.busbw_gbs, _ratio(burnin, group, refs))
    kind, size, _ = _like_key(burnin, count)
    floor = refs.floor(kind, count, size)
    ratio = _ratio(burnin, group, refs)
    if group.busbw_gbs is not None and 0 < group.busbw_gbs < floor:
        return Cell("low", group.busbw_gbs, ratio)
    if ratio is None:
        return Cell("unjudged", group.busbw_gbs)
    level = "good" if ratio >= GOOD else "fair" if ratio >= FAIR else "low"
    return Cell(level, group.busbw_gbs, ratio)


def _ratio(burnin: _Burnin, group: Measured, refs: _References) -> float | None:
    if not group.busbw_gbs:
        return None
    count = len(group.nodes)
    key = history_line.key_of_line(burnin.line)
    like = _like_key(burnin, count)
    reference = refs.medians.get(key._replace(bucket=bucket(count)), 0.0) if key is not None else 0.0
    reference = reference or refs.like.get(like, 0.0) or refs.floor(like[0], count, like[1])
    return group.busbw_gbs / reference if reference > 0 else None


def _cells(
    burnin: _Burnin, floor: Floor, medians: Mapping[Key, float], like: Mapping[_LikeKey, float]
) -> dict[str, Cell]:
    refs = _References(floor, medians, like)
    # What is left of a node: its best small group, else the worst of the large ones.
    small: dict[str, list[Cell]] = {}
    large: dict[str, list[Cell]] = {}
    for group in burnin.groups:
        cell = _cell(burnin, group, refs)
        into = small if len(group.nodes) <= 2 and len(burnin.nodes) > len(group.nodes) else large
        for name in group.nodes:
            into.setdefault(name, []).append(cell)
    past = history_line.past_of(burnin.line)
    suspects, culprits = (past.suspects, past.culprits) if past is not None else ((), ())
    found: dict[str, Cell] = {}
    for name in burnin.nodes:
        if name in small:
            best = min(small[name], key=_badness)
        elif name in large:
            best = max(large[name], key=_badness)
        else:
            best = Cell(_word(burnin))
        if name in culprits:
            best = best._replace(level="culprit")
        elif name in suspects:
            best = best._replace(level="suspect")
        found[name] = best
    return found


def _word(burnin: _Burnin) -> str:
    """Return the level of a node of which only the verdict is known."""
    verdict = burnin.line.get("verdict")
    return "unknown" if verdict in (UNKNOWN, FAIL) else "unjudged"


def _badness(cell: Cell) -> tuple[int, float]:
    return (LEVELS[cell.level].badness, -(cell.ratio or 0.0))


def _rows(cells: Mapping[str, Sequence[Cell | None]]) -> tuple[Row, ...]:
    """Return nodes with the same levels as one row; the worst first."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(cells):
        groups.setdefault(tuple(cell.level if cell else "" for cell in cells[name]), []).append(name)
    rows = []
    for names in groups.values():
        merged_cells = tuple(
            max((cell for cell in column if cell is not None), key=_badness, default=None)
            for column in zip(*(cells[name] for name in names), strict=True)
        )
        rows.append(Row(tuple(names), merged_cells))
    return tuple(sorted(rows, key=lambda row: (-_worst(row), -len(row.nodes), row.nodes)))


def _worst(row: Row) -> int:
    return max((LEVELS[cell.level].badness for cell in row.cells if cell is not None), default=-1)


def _pairs(
    burnins: Sequence[_Burnin], floor: Floor, medians: Mapping[Key, float], like: Mapping[_LikeKey, float]
) -> tuple[Pair, ...]:
    """Return the pairs of the newest burn-in that had some beside a run of all: those of the nodes with the worst ones."""
    refs = _References(floor, medians, like)
    for burnin in reversed(burnins):
        groups = [group for group in burnin.groups if len(group.nodes) == 2]
        if len(burnin.nodes) > 2 and groups:
            pairs = {tuple(sorted(group.nodes)): _cell(burnin, group, refs) for group in groups}
            listed = sorted(pairs.items(), key=lambda item: (-_badness(item[1])[0], item[0]))
            kept: dict[str, None] = {}
            for names, _ in listed:
                if len(kept) < PAIR_NODES_MAX:
                    kept.update(dict.fromkeys(names))
            return tuple(Pair(a, b, cell) for (a, b), cell in listed if a in kept and b in kept)
    return ()


def to_data(picture: Picture) -> dict[str, Any]:
    """Return the picture as plain data: columns, rows (`cells` is a letter each, a blank for no part), pairs."""
    return {
        "columns": [column._asdict() for column in picture.columns],
        "rows": [
            {"nodes": fold(row.nodes), "count": len(row.nodes), "cells": "".join(map(letter, row.cells))}
            for row in picture.rows
        ],
        "pairs": [{"nodes": [pair.first, pair.second], **pair.cell._asdict()} for pair in picture.pairs],
        "letters": {level.letter: level.words for level in LEVELS.values()},
    }


def letter(cell: Cell | None) -> str:
    """Return a cell's letter, a blank where a node took no part."""
    return LEVELS[cell.level].letter if cell is not None else " "


def used(picture: Picture) -> list[str]:
    """Return the names of the levels that are in the picture, best first."""
    there = {cell.level for row in picture.rows for cell in row.cells if cell is not None}
    there |= {pair.cell.level for pair in picture.pairs}
    return sorted(there, key=lambda name: LEVELS[name].badness)
