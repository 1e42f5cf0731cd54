"""The picture of burn-ins as SVG and as one HTML page: self-contained, dark and light, readable without colour. Pure.

Nothing is fetched, nothing runs; all text is escaped. Every cell carries its letter and a title with its figure, the page
has the same as a table for screen readers. The output is well-formed XML.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape

from slurm_ext.burnin.picture import LEVELS, Cell, Column, Pair, Picture, letter, used
from slurm_ext.slurm.hostlist import fold
from slurm_ext.verdict import one_line

#: Rows drawn: a set of nodes each, the worst first. A page of more is read by nobody.
ROWS_MAX = 400
_CELL, _HEAD, _MARGIN, _LETTER_WIDTH, _NAMES_MAX, _LEGEND = 22, 136, 12, 7.3, 48, 26

#: Fill of each level, and of the drawing's other parts, in a light and in a dark surrounding. Plain colours, no CSS
#: variables: not only browsers show SVG files.
_COLOURS: dict[str, tuple[str, str]] = {
    "good": ("#c7ebd1", "#1d5a34"),
    "fair": ("#e6efb2", "#505a17"),
    "low": ("#ffdf85", "#6d5300"),
    "slow": ("#ffb999", "#7d3a12"),
    "wrong": ("#f7a1a1", "#852626"),
    "hang": ("#f7a1a1", "#852626"),
    "error": ("#f7a1a1", "#852626"),
    "suspect": ("#ffc67a", "#7d5200"),
    "culprit": ("#a40e26", "#ff7b72"),
    "unjudged": ("#e1e6eb", "#3a424c"),
    "unknown": ("#e2d6f5", "#4a3b63"),
}
_PARTS: dict[str, tuple[str, str]] = {
    "text": ("#1b1f24", "#e6edf3"),
    "text.dim": ("#57606a", "#9da7b1"),
    "text.on-culprit": ("#ffffff", "#0d1117"),
    "rect.paper": ("#ffffff", "#0d1117"),
    "rect.stripe": ("#f3f5f8", "#161b22"),
}


def _fills(place: int) -> str:
    every = {**_PARTS, **{f"rect.{level}": pair for level, pair in _COLOURS.items()}}
    return " ".join(f".fm {what} {{ fill: {pair[place]}; }}" for what, pair in every.items())


_STYLE = f"""
.fm text {{ font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
.fm text.mark, .fm text.on-culprit {{ font-weight: bold; }} .fm text.small {{ font-size: 10px; }}
{_fills(0)}
@media (prefers-color-scheme: dark) {{ {_fills(1)} }}
"""
_PAGE_STYLE = """
body { margin: 0; padding: 1.5rem; line-height: 1.45; font-family: ui-sans-serif, system-ui, sans-serif;
  color: #1b1f24; background: #ffffff; }
h1 { font-size: 1.35rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; margin: .8rem 0; }
caption { text-align: left; padding: .3rem 0; font-weight: 600; }
th, td { border: 1px solid #d0d7de; padding: .2rem .5rem; text-align: left; vertical-align: top; }
tbody th { font-weight: 400; font-family: ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { body { color: #e6edf3; background: #0d1117; } th, td { border-color: #30363d; } }
"""


def to_svg(picture: Picture, *, title: str = "Burn-ins, node by node") -> str:
    """Return the picture as an SVG file of its own."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _drawing(picture, title=title, name="map", style=_STYLE) + "\n"


def to_html(picture: Picture, *, title: str = "Burn-ins, node by node", note: str = "") -> str:
    """Return the picture as a page: the map, pairs of the newest burn-in that had some, and both as tables."""
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>",
        '<meta name="color-scheme" content="light dark"/>',
        f"<title>{_safe(title)}</title><style>{_STYLE}{_PAGE_STYLE}</style></head>",
        f"<body><h1>{_safe(title)}</h1>",
        f"<p>{_safe(note, 400)}</p>" if note else "",
        f"<p>{picture.nodes} nodes in the newest {len(picture.columns)} burn-ins, the worst first. Nodes that show the same "
        "share a row.</p>",
        f'<div class="scroll">{_drawing(picture, title=title, name="map")}</div>',
    ]
    if picture.pairs:
        parts.append("<h2>Pairs of the newest burn-in that had some</h2>")
        parts.append(f'<div class="scroll">{_pair_drawing(picture.pairs)}</div>')
    parts += ["<h2>The same as tables</h2>", _columns_table(picture.columns), _rows_table(picture)]
    if picture.pairs:
        parts.append(_pairs_table(picture.pairs))
    return "\n".join(part for part in parts if part) + "\n</body></html>\n"


def _safe(text: str, limit: int = 200) -> str:
    """Return text for XML: printable ASCII, cut, escaped for content and attributes."""
    return escape(one_line(text, limit), quote=True)


def _when(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "no time"


def _words(cell: Cell | None) -> str:
    if cell is None:
        return "took no part"
    figure = f", {cell.busbw_gbs:.3g} GB/s" if cell.busbw_gbs else ""
    share = f", {cell.ratio:.0%} of the reference" if cell.ratio is not None else ""
    return f"{cell.level} ({LEVELS[cell.level].words}){figure}{share}"


def _names(nodes: Sequence[str]) -> str:
    text = fold(nodes)
    count = f" ({len(nodes)})" if len(nodes) > 1 else ""
    room = _NAMES_MAX - len(count)
    return (text if len(text) <= room else text[: room - 3] + "...") + count


def _square(x: float, y: float, cell: Cell, tip: str) -> str:
    ink = ' class="on-culprit"' if cell.level == "culprit" else ""
    return (
        f'<g><title>{_safe(tip, 300)}</title><rect class="cell {cell.level}" x="{x:g}" y="{y:g}" width="{_CELL}" '
        f'height="{_CELL}" rx="4"/><text{ink} x="{x + _CELL / 2:g}" y="{y + _CELL / 2 + 4:g}" text-anchor="middle">'
        f"{escape(letter(cell))}</text></g>"
    )


def _open(name: str, width: float, height: float, title: str, description: str, style: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fm" role="img" aria-labelledby="{name}-title {name}-text" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">',
        f'<title id="{name}-title">{_safe(title)}</title><desc id="{name}-text">{_safe(description, 400)}</desc>',
        f"<style>{style}</style>" if style else "",
        f'<rect class="paper" width="{width:g}" height="{height:g}"/>',
    ]


def _drawing(picture: Picture, *, title: str, name: str, style: str = "") -> str:
    """Draw the map: a row for each set of nodes, a column for each burn-in, the newest on the right."""
    rows = picture.rows[:ROWS_MAX]
    labels = [_names(row.nodes) for row in rows]
    levels = used(picture)
    left = _MARGIN * 2 + max([9, *map(len, labels)]) * _LETTER_WIDTH
    more = len(picture.rows) - len(rows)
    legend_y = _HEAD + len(rows) * _CELL + (_CELL if more else 0) + 26
    width = max(left + len(picture.columns) * _CELL + 90, 560)
    height = legend_y + len(levels) * _LEGEND + _MARGIN
    described = f"{picture.nodes} nodes, {len(picture.columns)} burn-ins. A letter in each cell tells the level; a table follows"
    parts = _open(name, width, height, title, described, style)
    for number, column in enumerate(picture.columns):
        parts.append(_head(left + number * _CELL, column))
    for place, (row, label) in enumerate(zip(rows, labels, strict=True)):
        y = _HEAD + place * _CELL
        whole = f"<title>{_safe(fold(row.nodes), 2000)}</title>"
        if place % 2 == 0:
            stripe = left + len(picture.columns) * _CELL - _MARGIN
            parts.append(f'<rect class="stripe" x="{_MARGIN}" y="{y}" width="{stripe:g}" height="{_CELL}"/>')
        parts.append(f'<text x="{left - _MARGIN:g}" y="{y + 15:g}" text-anchor="end">{whole}{_safe(label)}</text>')
        for number, cell in enumerate(row.cells):
            if cell is not None:
                tip = f"{label}: {picture.columns[number].job}: {_words(cell)}"
                parts.append(_square(left + number * _CELL, y, cell, tip))
    if more:
        parts.append(
            f'<text class="dim" x="{_MARGIN}" y="{_HEAD + len(rows) * _CELL + 16}">and {more} rows more</text>'
        )
    for place, level in enumerate(levels):
        y = legend_y + place * _LEGEND
        parts.append(_square(_MARGIN, y - 15, Cell(level), LEVELS[level].words))
        parts.append(f'<text x="{_MARGIN + _CELL + 8}" y="{y}">{_safe(LEVELS[level].words)}</text>')
    return "\n".join(part for part in parts if part) + "\n</svg>"


def _head(x: float, column: Column) -> str:
    """Draw a column's mark and, upright, its time and job."""
    middle = x + _CELL / 2
    speed = f", {column.busbw_gbs:.3g} GB/s" if column.busbw_gbs else ""
    tip = f"{column.mark}: {column.job}, {_when(column.time)} UTC, {column.nodes} nodes, {column.verdict}{speed}"
    label = f"{_when(column.time)[5:]} {column.job.rpartition('/')[2][:12]}"
    return (
        f'<g><title>{_safe(tip, 300)}</title><text class="dim small" transform="translate({middle + 4:g} {_HEAD - 22}) rotate(-60)">'
        f"{_safe(label)}</text>"
        f'<text class="mark" x="{middle:g}" y="{_HEAD - 7}" text-anchor="middle">{escape(column.mark)}</text></g>'
    )


def _pair_drawing(pairs: Sequence[Pair]) -> str:
    """Draw the pairs as a triangle: node by node, a cell where the two ran together."""
    names = sorted({name for pair in pairs for name in (pair.first, pair.second)})
    place = {name: number for number, name in enumerate(names)}
    label = min(max(map(len, names)), _NAMES_MAX) * _LETTER_WIDTH
    left, top = _MARGIN * 2 + label, _MARGIN * 2 + label * 0.85
    size = len(names) * _CELL
    width, height = left + size + label * 0.6 + _MARGIN, top + size + _MARGIN
    described = f"{len(pairs)} pairs over {len(names)} nodes; the table of pairs has the figures"
    parts = _open("pairs", width, height, "Pairs of nodes", described, "")
    for name, number in place.items():
        short = _safe(name if len(name) <= _NAMES_MAX else name[: _NAMES_MAX - 3] + "...")
        y, x = top + number * _CELL, left + number * _CELL
        parts.append(f'<text x="{left - 8:g}" y="{y + 15:g}" text-anchor="end">{short}</text>')
        parts.append(f'<text transform="translate({x + 14:g} {top - 6:g}) rotate(-60)">{short}</text>')
    for pair in pairs:
        tip = f"{pair.first} and {pair.second}: {_words(pair.cell)}"
        for a, b in ((pair.first, pair.second), (pair.second, pair.first)):
            parts.append(_square(left + place[a] * _CELL, top + place[b] * _CELL, pair.cell, tip))
    return "\n".join(part for part in parts if part) + "\n</svg>"


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; cells are escaped here, the first of each row is its header."""
    lines = [f"<table><caption>{_safe(caption)}</caption><thead><tr>"]
    lines += [f'<th scope="col">{_safe(word)}</th>' for word in head]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        lines.append(f'<tr><th scope="row">{_safe(row[0], 2000)}</th>')
        lines += [f"<td>{_safe(word, 300)}</td>" for word in row[1:]]
        lines.append("</tr>")
    lines.append("</tbody></table>")
    return '<div class="scroll">' + "".join(lines) + "</div>"


def _columns_table(columns: Sequence[Column]) -> str:
    rows = [
        (c.mark, _when(c.time), c.job, str(c.nodes), c.verdict, f"{c.busbw_gbs:.3g}" if c.busbw_gbs else "", c.reason)
        for c in columns
    ]
    head = ("Mark", "Time (UTC)", "Job", "Nodes", "Verdict", "busbw, GB/s", "Reason")
    return _table("Burn-ins, oldest first", head, rows)


def _rows_table(picture: Picture) -> str:
    rows = [
        (
            fold(row.nodes),
            str(len(row.nodes)),
            "; ".join(
                f"{column.mark}: {_words(cell)}"
                for column, cell in zip(picture.columns, row.cells, strict=True)
                if cell is not None and cell.level not in ("good", "unjudged")
            )
            or "all good or not judged",
        )
        for row in picture.rows[:ROWS_MAX]
    ]
    return _table("Nodes, worst first; marks are those of the burn-ins", ("Nodes", "Count", "What was not good"), rows)


def _pairs_table(pairs: Sequence[Pair]) -> str:
    rows = [(f"{pair.first} and {pair.second}", _words(pair.cell)) for pair in pairs]
    return _table("Pairs, worst first", ("Pair", "What it showed"), rows)
