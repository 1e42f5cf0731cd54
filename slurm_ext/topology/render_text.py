"""The tree as indented text for a terminal: counts, nodes, and where a job's nodes sit. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from slurm_ext.slurm.hostlist import fold
from slurm_ext.topology.model import Switch, Tree
from slurm_ext.topology.order import Spread, spread


class Row(NamedTuple):
    """One switch with what is below it: its depth from the root, nodes below, and nodes of the job below."""

    switch: Switch
    depth: int
    nodes: int
    of_job: int


def rows(tree: Tree, job_nodes: Collection[str] = ()) -> list[Row]:
    """Return a row for each switch, parents before children, with counts."""
    wanted = set(job_nodes)
    parent = {child: switch.name for switch in tree.switches for child in switch.switches}
    depth: dict[str, int] = {}
    for switch in tree.switches:  # parents come first
        depth[switch.name] = depth[parent[switch.name]] + 1 if switch.name in parent else 0
    nodes = {switch.name: len(switch.nodes) for switch in tree.switches}
    of_job = {switch.name: sum(node in wanted for node in switch.nodes) for switch in tree.switches}
    for switch in reversed(tree.switches):
        if above := parent.get(switch.name):
            nodes[above] += nodes[switch.name]
            of_job[above] += of_job[switch.name]
    return [Row(switch, depth[switch.name], nodes[switch.name], of_job[switch.name]) for switch in tree.switches]


def counted(number: int, word: str, many: str = "") -> str:
    """Return `1 node`, `2 nodes`; `many` is the plural that is not made with an s."""
    return f"{number} {word if number == 1 else many or word + 's'}"


def picture(tree: Tree, *, job: str = "", job_nodes: Collection[str] = ()) -> str:
    """Return the tree as indented text: each switch with its node count, each leaf with its nodes, a job's nodes marked."""
    lines = list(_lines(tree, job, set(job_nodes)))
    if job:
        lines += summary(job, spread(tree, job_nodes))
    return "\n".join(lines) + "\n"


def _lines(tree: Tree, job: str, wanted: set[str]) -> Iterator[str]:
    for row in rows(tree, wanted):
        line = f"{'  ' * row.depth}{row.switch.name} ({counted(row.nodes, 'node')})"
        if row.switch.nodes:
            line += f"  {fold(row.switch.nodes)}"
        if job and row.of_job:
            line += f"  <- job {job}: {row.of_job}"
            if row.switch.nodes:
                line += f", {fold(node for node in row.switch.nodes if node in wanted)}"
        yield line


def summary(job: str, found: Spread) -> list[str]:
    """Return in words how a job lies in the tree."""
    lines = [f"job {job}: {counted(found.placed, 'node')} under {counted(len(found.leaves), 'leaf', 'leaves')}"]
    if len(found.leaves) > found.fewest:
        lines[0] += f"; {found.fewest} could hold it"
    if found.elsewhere:
        lines.append(f"job {job}: not in this tree: {fold(found.elsewhere)}")
    return lines
