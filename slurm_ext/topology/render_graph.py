"""The tree as a graph for Graphviz, and as a picture in SVG. Pure text, the same for the same tree."""

from __future__ import annotations

from collections.abc import Collection
from html import escape
from typing import NamedTuple

from slurm_ext.slurm.hostlist import fold
from slurm_ext.topology.build import HOLDING
from slurm_ext.topology.model import Tree
from slurm_ext.topology.naming import comment
from slurm_ext.topology.render_text import Row, counted, rows

#: A picture of more rows shows the leaves of one switch as one row.
MAX_ROWS = 1200

_ROW, _INDENT, _BAR, _LABEL = 20, 24, 160, 8
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1b1b1b}.line{stroke:#767676;fill:none}.all{fill:#5b7fb3}"
    ".job{fill:#b3470b}.faint{fill:#595959}"
    "@media (prefers-color-scheme:dark){text{fill:#f2f2f2}.line{stroke:#9a9a9a}.all{fill:#7ea3d8}"
    ".job{fill:#ff9a5c}.faint{fill:#b8b8b8}}"
)


class Line(NamedTuple):
    """One row of the picture: a switch, or the leaves of a switch taken together; only those that hold nodes have a bar."""

    label: str
    depth: int
    nodes: int
    of_job: int
    detail: str
    leaf: bool


def _cut(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def dot(tree: Tree, *, job_nodes: Collection[str] = ()) -> str:
    """Return the tree in Graphviz's language: one box for each switch, its nodes in the leaf's label."""
    lines = ["digraph topology {", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    for row in rows(tree, job_nodes):
        switch = row.switch
        label = f"{switch.name}\\n{counted(row.nodes, 'node')}"
        if switch.nodes:
            label += f"\\n{_cut(fold(switch.nodes))}"
        if row.of_job:
            label += f"\\njob: {row.of_job}"
        more = ", style=filled, fillcolor=orange" if row.of_job and switch.nodes else ""
        tooltip = comment(switch.cloud_id).replace('"', "'")
        lines.append(f'  "{switch.name}" [label="{label}", tooltip="{tooltip}"{more}];')
        lines += [f'  "{switch.name}" -> "{child}";' for child in switch.switches]
    return "\n".join([*lines, "}"]) + "\n"


def picture_lines(tree: Tree, *, job_nodes: Collection[str] = (), max_rows: int = MAX_ROWS) -> list[Line]:
    """Return the rows of a picture; where they are too many, the leaves of each switch are one row."""
    found = rows(tree, job_nodes)
    if len(found) <= max_rows:
        return [_line(row) for row in found]
    lines: list[Line] = []
    together: list[Row] = []
    for row in found:
        if row.switch.nodes and (not together or together[-1].depth == row.depth):
            together.append(row)
            continue
        lines += _folded(together)
        together = [row] if row.switch.nodes else []
        lines += [] if row.switch.nodes else [_line(row)]
    return lines + _folded(together)


def _line(row: Row) -> Line:
    nodes = row.switch.nodes
    return Line(row.switch.name, row.depth, row.nodes, row.of_job, _cut(fold(nodes)) if nodes else "", bool(nodes))


def _folded(together: list[Row]) -> list[Line]:
    if len(together) < 2:
        return [_line(row) for row in together]
    nodes, of_job = sum(row.nodes for row in together), sum(row.of_job for row in together)
    sizes = sorted({row.nodes for row in together})
    each = f"{sizes[0]} nodes each" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} nodes each"
    return [Line(f"{len(together)} leaves", together[0].depth, nodes, of_job, each, True)]


def svg(tree: Tree, *, job: str = "", job_nodes: Collection[str] = (), max_rows: int = MAX_ROWS) -> str:
    """Return a picture of the tree: a row for each switch, indented; a leaf has a bar as long as it has nodes."""
    lines = picture_lines(tree, job_nodes=job_nodes, max_rows=max_rows)
    # Nodes without a place may be more than any leaf has: their bar is cut.
    sizes = [line.nodes for line in lines if line.leaf and not line.label.startswith(HOLDING)]
    most = max(sizes, default=1)
    deepest = max(line.depth for line in lines)
    bar_x = deepest * _INDENT + 190
    width, height = bar_x + _BAR + 560, len(lines) * _ROW + 12
    total = sum(line.nodes for line in lines if line.depth == 0)
    title = f"Topology: {counted(total, 'node')} under {counted(len(tree.switches), 'switch', 'switches')}"
    desc = "A row for each switch, indented below its parent, with the number of nodes below it; bars are leaves."
    if job:
        desc += f" Nodes of job {job}: {sum(line.of_job for line in lines if line.depth == 0)}, in orange."
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="topology-title topology-desc">',
        f'<title id="topology-title">{escape(title)}</title><desc id="topology-desc">{escape(desc)}</desc>',
        f"<style>{_STYLE}</style>",
    ]
    above: list[int] = []  # the row of the last line at each depth
    for number, line in enumerate(lines):
        x, y = line.depth * _INDENT + _LABEL, number * _ROW + _ROW
        del above[line.depth :]
        if above:
            parts.append(f'<path class="line" d="M{x - _INDENT + 4} {above[-1] + 4}V{y - 4}H{x - 3}"/>')
        above.append(y)
        full = max(2, min(_BAR, round(_BAR * line.nodes / most))) if line.leaf else 0
        parts.append(f'<text x="{x}" y="{y}">{escape(line.label)}</text>')
        if line.leaf:
            parts.append(f'<rect class="all" x="{bar_x}" y="{y - 11}" width="{full}" height="13"/>')
        if line.leaf and line.of_job:
            part = max(2, round(full * line.of_job / line.nodes))
            parts.append(f'<rect class="job" x="{bar_x}" y="{y - 11}" width="{part}" height="13"/>')
        words = str(line.nodes) + (f" ({line.of_job} of job {job})" if line.of_job else "")
        detail = f"{words}  {line.detail}".rstrip()
        parts.append(f'<text class="faint" x="{bar_x + full + 6}" y="{y}">{escape(detail)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
