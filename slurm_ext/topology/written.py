"""A tree as one of Slurm's files: its text, where it puts each node, and what the linter says of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slurm_ext.slurm.model import Version
from slurm_ext.topology import blocks, render, render_yaml
from slurm_ext.topology.budget import within
from slurm_ext.topology.lint import CONF, YAML, Source, lint
from slurm_ext.topology.lint_model import Finding, Given, release
from slurm_ext.topology.model import BlockPlan, Tree

#: Formats that are files of Slurm's, and what it calls them.
FILES: Mapping[str, str] = {"tree": CONF, "block": CONF, "yaml": YAML}

#: What a topology of topology.conf is called in a node's string (25.05 and later), and how we call the running one.
DEFAULT = "default"


class Choice(NamedTuple):
    """How a file is made: format, the most switches (0: any number), base size of blocks (0: as the domains are)."""

    format: str = "tree"
    max_switches: int = 0
    block_size: int = 0
    capacity_blocks: bool = False


class Written(NamedTuple):
    """A file. `paths`: name of a topology -> node -> its switches from the root down, or its block; `strings`: node -> what
    `scontrol update Topology=` takes, empty where the version has no such thing; `findings`: the linter's, notes left out."""

    format: str
    text: str
    paths: Mapping[str, Mapping[str, tuple[str, ...]]]
    strings: Mapping[str, str]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]


def plan_of(tree: Tree, version: Version | None, choice: Choice) -> BlockPlan | None:
    """Return the blocks, None where there are none, or where the version takes none."""
    if version is None or blocks.rules_of(version) is None or not blocks.has_domains(tree, choice.capacity_blocks):
        return None
    return blocks.plan(tree, version, base=choice.block_size, capacity_blocks=choice.capacity_blocks)


def written(tree: Tree, choice: Choice, *, origin: str, version: Version | None) -> Written:
    """Return the file. Raise ValueError where the version has no such format, or no node is in a domain."""
    # Blocks stand in the order of the whole tree: neighbours stay neighbours, whatever the tree has room for.
    whole, tree = tree, within(tree, choice.max_switches)
    paths: dict[str, Mapping[str, tuple[str, ...]]] = {}
    strings: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    if choice.format == "tree":
        text = render.topology_conf(tree, origin=origin, version=version)
        paths[DEFAULT] = tree.paths()
        strings = render_yaml.node_strings(tree, None, name=DEFAULT)
    elif version is None:
        raise ValueError("nobody says for which Slurm")
    elif choice.format == "block":
        plan = blocks.plan(whole, version, base=choice.block_size, capacity_blocks=choice.capacity_blocks)
        text = render.block_conf(plan, origin=origin, version=version)
        notes = plan.notes
        paths[DEFAULT] = {node: (block.name,) for block in plan.blocks for node in block.nodes}
        strings = {node: f"{DEFAULT}:{path[0]}" for node, path in paths[DEFAULT].items()}
    else:
        found = plan_of(whole, version, choice)
        of_blocks = render_yaml.block_topologies(found)
        text = render_yaml.topology_yaml(tree, found, origin=origin, version=version)
        notes = tuple(f"slurm.conf: {line}" for line in render_yaml.partition_lines(of_blocks))
        paths[render_yaml.TREE] = tree.paths()
        for topology in of_blocks:
            paths[topology.name] = {node: (block.name,) for block in topology.blocks for node in block.nodes}
        strings = render_yaml.node_strings(tree, found)
    return Written(choice.format, text, paths, strings, notes, _linted(choice.format, tree, version, text))


def _linted(format_: str, tree: Tree, version: Version | None, text: str) -> tuple[Finding, ...]:
    target = release(version.text) if version is not None else None
    if target is None:
        return ()
    given = Given(target, frozenset(placement.node for placement in tree.placements))
    found = lint([Source(FILES[format_], text)], given)
    # Nodes in no block were counted already, when the blocks were made.
    return tuple(one for one in found if one.severity != "note" and one.rule != "block.orphans")


def essence(text: str) -> str:
    """Return what Slurm reads of a file: no comments, no empty lines."""
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
