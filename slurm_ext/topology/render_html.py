"""The tree as one HTML page that needs nothing else: a picture, and switches that unfold to their nodes. Pure text."""

from __future__ import annotations

from collections.abc import Collection
from html import escape

from slurm_ext.slurm.hostlist import fold
from slurm_ext.topology.model import BlockPlan, Tree
from slurm_ext.topology.order import spread
from slurm_ext.topology.render_graph import svg
from slurm_ext.topology.render_text import Row, counted, rows, summary

#: Switches above leaves are unfolded at first where the page has no more rows than this.
OPEN_ROWS = 150
#: Rows of the picture on the page: what is folded there is in the list below it.
PICTURE_ROWS = 400

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem; color: #1b1b1b; background: #fff; }
details { margin-left: 1.2rem; } summary { cursor: pointer; padding: .1rem 0; }
code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
.leaf p { margin: .2rem 0 .4rem 1.2rem; } .job { color: #9a3b07; font-weight: 600; } .id { color: #595959; }
figure { margin: 1rem 0; overflow-x: auto; } table { border-collapse: collapse; }
th, td { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top; }
@media (prefers-color-scheme: dark) { body { color: #f2f2f2; background: #161616; } .job { color: #ff9a5c; } .id { color: #b8b8b8; } }
""".strip()


def html(
    tree: Tree, *, origin: str, plan: BlockPlan | None = None, job: str = "", job_nodes: Collection[str] = ()
) -> str:
    """Return the page."""
    found = rows(tree, job_nodes)
    nodes = sum(row.nodes for row in found if not row.depth)
    leaves = sum(bool(row.switch.nodes) for row in found)
    title = f"Topology: {counted(nodes, 'node')}, {counted(leaves, 'leaf', 'leaves')}"
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{escape(title)}</title>\n<meta name="description" content="Where the nodes sit in the network.">',
        f"<style>\n{_STYLE}\n</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>",
        f"<p>From {escape(origin)}.</p>",
    ]
    if job:
        parts += [f'<p class="job">{escape(line)}</p>' for line in summary(job, spread(tree, job_nodes))]
    notes = [*tree.notes, *(plan.notes if plan else ())]
    if notes:
        parts.append("<h2>Notes</h2>\n<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>")
    picture = svg(tree, job=job, job_nodes=job_nodes, max_rows=PICTURE_ROWS)
    parts.append(f"<h2>Picture</h2>\n<figure>\n{picture}</figure>\n<h2>Switches</h2>")
    parts += _switches(found, set(job_nodes))
    if plan and plan.blocks:
        parts.append("<h2>Blocks</h2>\n<table><tr><th>Block<th>NVLink domain<th>Nodes<th>Which")
        parts += [
            f"<tr><td>{escape(block.name)}<td>{escape(block.domain)}<td>{len(block.nodes)}<td><code>{escape(fold(block.nodes))}</code>"
            for block in plan.blocks
        ]
        parts.append("</table>")
    return "\n".join([*parts, "</main>\n</body>\n</html>"]) + "\n"


def _switches(found: list[Row], wanted: set[str]) -> list[str]:
    """Return nested `details`: each switch holds its children, each leaf its nodes."""
    parts: list[str] = []
    open_rows = len(found) <= OPEN_ROWS
    depth = -1
    for row in found:
        parts += ["</details>"] * (depth - row.depth + 1)
        depth = row.depth
        switch = row.switch
        mark = f' <span class="job">job: {row.of_job}</span>' if row.of_job else ""
        head = f'{escape(switch.name)} ({counted(row.nodes, "node")}) <span class="id">{escape(switch.cloud_id)}</span>{mark}'
        if not switch.nodes:
            parts.append(f"<details{' open' if open_rows or not row.depth else ''}><summary>{head}</summary>")
            continue
        parts.append(f'<details class="leaf"><summary>{head}</summary><p><code>{escape(fold(switch.nodes))}</code></p>')
        if row.of_job:
            here = fold(node for node in switch.nodes if node in wanted)
            parts.append(f'<p class="job">of the job: <code>{escape(here)}</code></p>')
    return parts + ["</details>"] * (depth + 1)
