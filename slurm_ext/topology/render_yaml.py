"""Tree and blocks -> topology.yaml, and the lines that put running nodes in it (Slurm 25.05 and later). Pure text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slurm_ext.slurm.hostlist import fold
from slurm_ext.slurm.model import Version
from slurm_ext.slurm.versions import has
from slurm_ext.topology.model import Block, BlockPlan, Tree
from slurm_ext.topology.naming import comment, zone_words
from slurm_ext.topology.render import header

#: Names of the topologies in the file; partitions and node strings refer to them.
TREE, BLOCKS = "efa", "nvl"

#: 25.05 and 25.11.0 to 25.11.5 map the file and measure it by its first NUL, which a whole number of pages does not have.
PAGE = 4096


class BlockTopology(NamedTuple):
    """The blocks of one zone as a topology of their own: no job spans two zones."""

    name: str
    blocks: tuple[Block, ...]
    sizes: tuple[int, ...]


def block_topologies(plan: BlockPlan | None) -> list[BlockTopology]:
    """Return a topology of blocks for each zone; none without blocks."""
    if plan is None or not plan.blocks:
        return []
    zones: dict[str, list[Block]] = {}
    for block in plan.blocks:
        zones.setdefault(block.zone, []).append(block)
    words = zone_words(sorted(zones))
    found = []
    for zone, blocks in zones.items():
        sizes = plan.sizes[: len(blocks).bit_length()]
        found.append(BlockTopology(BLOCKS if len(zones) == 1 else f"{BLOCKS}-{words[zone]}", tuple(blocks), sizes))
    return found


def topology_yaml(tree: Tree, plan: BlockPlan | None, *, origin: str, version: Version) -> str:
    """Return topology.yaml: the tree, which partitions use that name none, and the blocks. Raise ValueError before 25.05."""
    if not has(version, "topology-yaml"):
        raise ValueError(f"Slurm {version.text} reads no topology.yaml: it came with 25.05")
    blocks = block_topologies(plan)
    said = [*tree.notes, *(plan.notes if plan else ()), "This file wins over topology.conf and TopologyPlugin."]
    lines = header(origin, said)
    lines += [f"# slurm.conf: {line}" for line in partition_lines(blocks)]
    lines += [f"- topology: {TREE}", "  cluster_default: true", "  tree:", "    switches:"]
    for switch in tree.switches:
        key, members = ("nodes", fold(switch.nodes)) if switch.nodes else ("children", ",".join(switch.switches))
        lines.append(f"      # {switch.name} = {comment(switch.cloud_id)}")
        lines.append(f"      - {{switch: {json.dumps(switch.name)}, {key}: {json.dumps(members)}}}")
    for topology in blocks:
        lines += [f"- topology: {topology.name}", "  cluster_default: false", "  block:"]
        lines += [f"    block_sizes: [{', '.join(map(str, topology.sizes))}]", "    blocks:"]
        for block in topology.blocks:
            lines.append(f"      # {block.name} = {comment(block.domain)}")
            lines.append(f"      - {{block: {json.dumps(block.name)}, nodes: {json.dumps(fold(block.nodes))}}}")
    text = "\n".join(lines) + "\n"
    return text + "# \n" if len(text.encode()) % PAGE == 0 else text


def partition_lines(blocks: Iterable[BlockTopology]) -> list[str]:
    """Return lines of slurm.conf for partitions of blocks; other partitions use the tree and need none."""
    return [
        f"PartitionName=NAME Nodes={fold(node for block in topology.blocks for node in block.nodes)} "
        f"Topology={topology.name}"
        for topology in blocks
    ]


def node_strings(tree: Tree, plan: BlockPlan | None, *, name: str = TREE) -> dict[str, str]:
    """Return node -> its `Topology=` string. All topologies stand in it: from 25.11 on a node leaves those that do not."""
    block_of = {
        node: f",{topology.name}:{block.name}"
        for topology in block_topologies(plan)
        for block in topology.blocks
        for node in block.nodes
    }
    return {node: f"{name}:{':'.join(path)}{block_of.get(node, '')}" for node, path in tree.paths().items()}


def grouped(strings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (hostlist, string), once for each place."""
    together: dict[str, list[str]] = {}
    for node, text in strings.items():
        together.setdefault(text, []).append(node)
    return [(fold(nodes), text) for text, nodes in together.items()]


def updates(strings: Mapping[str, str]) -> list[str]:
    """Return one `scontrol update` command for all nodes that share a place."""
    return [f"scontrol update NodeName={nodes} Topology={text}" for nodes, text in grouped(strings)]
