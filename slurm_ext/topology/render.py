"""Tree and blocks -> topology.conf. Pure text, the same for the same tree; each name's cloud id stands in a comment."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_ext.slurm.hostlist import fold
from slurm_ext.slurm.model import Version
from slurm_ext.slurm.versions import has
from slurm_ext.topology.blocks import rules_of
from slurm_ext.topology.model import BlockPlan, Tree
from slurm_ext.topology.naming import comment


def header(origin: str, notes: Iterable[str]) -> list[str]:
    """Return the first lines of a generated file: where it comes from, and what was decided."""
    first = f"Written by fmslurm from {origin}. Changes here are lost at the next `fmslurm topology generate -o`."
    return [f"# {comment(line)}" for line in (first, *notes)]


def _wins(version: Version | None) -> list[str]:
    yaml_too = version is not None and has(version, "topology-yaml")
    return ["A topology.yaml beside this file wins over it, and over TopologyPlugin."] if yaml_too else []


def topology_conf(tree: Tree, *, origin: str, version: Version | None = None) -> str:
    """Return topology.conf(5) for the plugin topology/tree; the cloud's own id stands in a comment before each line."""
    lines = header(origin, [*_wins(version), *tree.notes])
    for switch in tree.switches:
        lines.append(f"# {switch.name} = {comment(switch.cloud_id)}")
        members = f"Nodes={fold(switch.nodes)}" if switch.nodes else f"Switches={','.join(switch.switches)}"
        lines.append(f"SwitchName={switch.name} {members}")
    return "\n".join(lines) + "\n"


def block_conf(plan: BlockPlan, *, origin: str, version: Version) -> str:
    """Return topology.conf(5) for the plugin topology/block, as a version reads it; the order of lines is adjacency."""
    rules = rules_of(version)
    if rules is None:
        raise ValueError(f"Slurm {version.text} has no topology/block: it came with 23.11")
    lines = header(origin, [*_wins(version), *plan.notes])
    for block in plan.blocks:
        lines += [f"# {block.name} = {comment(block.domain)}", f"BlockName={block.name} Nodes={fold(block.nodes)}"]
    # 23.11 takes levels, 0 for the block itself, and the size of the first block for the base.
    sizes = range(len(plan.sizes)) if rules.key == "BlockLevels" else plan.sizes
    lines.append(f"{rules.key}={','.join(map(str, sizes))}")
    return "\n".join(lines) + "\n"
