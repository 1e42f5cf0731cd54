"""Tree -> topology.conf for topology/tree, and an indented picture for people. Pure text, the same for the same tree."""

from __future__ import annotations

from slurm_ext.slurm.hostlist import fold
from slurm_ext.topology.model import Switch, Tree


def topology_conf(tree: Tree, *, origin: str) -> str:
    """Return topology.conf(5) for the plugin topology/tree; the cloud's own id stands in a comment before each line."""
    lines = [f"# Written by fmslurm from {origin}. Changes here are lost at the next `fmslurm topology generate -o`."]
    lines += [f"# {note}" for note in tree.notes]
    for switch in tree.switches:
        lines.append(f"# {switch.name} = {switch.cloud_id}")
        members = f"Nodes={fold(switch.nodes)}" if switch.nodes else f"Switches={','.join(switch.switches)}"
        lines.append(f"SwitchName={switch.name} {members}")
    return "\n".join(lines) + "\n"


def picture(tree: Tree) -> str:
    """Return the tree as indented text: each switch with its node count, each leaf with its nodes."""
    by_name = {switch.name: switch for switch in tree.switches}
    below = {child for switch in tree.switches for child in switch.switches}

    def count(switch: Switch) -> int:
        return len(switch.nodes) + sum(count(by_name[child]) for child in switch.switches)

    def draw(switch: Switch, depth: int) -> list[str]:
        line = f"{'  ' * depth}{switch.name} ({count(switch)} nodes)"
        if switch.nodes:
            line += f"  {fold(switch.nodes)}"
        return [line, *(text for child in switch.switches for text in draw(by_name[child], depth + 1))]

    lines = [text for switch in tree.switches if switch.name not in below for text in draw(switch, 0)]
    return "\n".join(lines) + "\n"
