"""The picture of burn-ins for a terminal: letters, and colours where asked for. Pure."""

from __future__ import annotations

from slurm_ext.burnin.picture import LEVELS, Cell, Picture, letter, used
from slurm_ext.slurm.hostlist import fold

#: Rows (each a set of nodes that show the same) and bad pairs that are printed; the worst come first.
ROWS_MAX, PAIRS_MAX = 40, 20
_NAMES_MAX, _COUNT = 44, 6

_GREEN, _YELLOW, _RED, _GREY = "30;42", "30;43", "97;41", "30;47"
_COLOURS = {"good": _GREEN, "fair": _YELLOW, "low": _YELLOW, "unjudged": _GREY, "unknown": _GREY, "suspect": _YELLOW}


def to_text(picture: Picture, *, width: int = 80, colours: bool = False) -> list[str]:
    """Return the lines of the picture, at most `width` columns each (60 at the least); empty where there is nothing to show."""
    if not picture.rows:
        return []
    room = max(8, width - _COUNT - 2)
    names = [fold(row.nodes) for row in picture.rows[:ROWS_MAX]]
    label = min(max(5, *map(len, names)), _NAMES_MAX, max(8, room - len(picture.columns) - 2))
    shown = min(len(picture.columns), room - label - 2)
    skip = len(picture.columns) - shown
    marks = "".join(column.mark for column in picture.columns[skip:])
    lines = [f"{'NODES'.ljust(label)}  {'COUNT'.rjust(_COUNT - 1)}  {marks}".rstrip()]
    for row, name in zip(picture.rows, names, strict=False):
        cells = "".join(_painted(cell, colours) for cell in row.cells[skip:])
        lines.append(f"{_short(name, label).ljust(label)}  {len(row.nodes):{_COUNT - 1}}  {cells}".rstrip())
    if rest := picture.rows[ROWS_MAX:]:
        lines.append(f"and {sum(len(row.nodes) for row in rest)} nodes more in {len(rest)} rows, none of them worse")
    lines += _legend(picture, width)
    return lines + _pairs(picture, width, colours)


def _short(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 3] + "..."


def _painted(cell: Cell | None, colours: bool) -> str:
    if cell is None or not colours:
        return letter(cell)
    return f"\x1b[{_COLOURS.get(cell.level, _RED)}m{letter(cell)}\x1b[0m"


def _legend(picture: Picture, width: int) -> list[str]:
    lines = [""]
    for name in used(picture):
        part = f"{LEVELS[name].letter} {LEVELS[name].words}"
        if lines[-1] and len(lines[-1]) + len(part) + 3 > width:
            lines.append("")
        lines[-1] += ("   " if lines[-1] else "") + part
    return lines


def _pairs(picture: Picture, width: int, colours: bool) -> list[str]:
    """Name the pairs that are not good: two names and a figure each."""
    bad = [pair for pair in picture.pairs if LEVELS[pair.cell.level].badness > LEVELS["unjudged"].badness]
    if not picture.pairs:
        return []
    lines = [f"pairs of the newest burn-in that had some: {len(picture.pairs)} shown, {len(bad)} not good"]
    for pair in bad[:PAIRS_MAX]:
        figure = f"{pair.cell.busbw_gbs:.3g} GB/s" if pair.cell.busbw_gbs else "no figure"
        share = f", {pair.cell.ratio:.0%} of the reference" if pair.cell.ratio is not None else ""
        names = _short(f"{pair.first} + {pair.second}", max(12, width - 42))
        lines.append(f"{_painted(pair.cell, colours)} {names}: {figure}{share}")
    if len(bad) > PAIRS_MAX:
        lines.append(f"and {len(bad) - PAIRS_MAX} more")
    return lines
