"""NVLink domains -> blocks of topology/block, pure: whole domains, in the order of the tree, sized for a Slurm version.

A domain is what a node itself reports (its clique), else the UltraServer that the instance is a part of. A capacity block
is no domain: it may hold several. So it is used only where a person says so, and otherwise only compared with what the
nodes say: the clique wins, and what disagrees is noted.

What a version does with blocks, from its block_record.c (topology_block.c in 23.11):
23.11 stops at two blocks of different size, 24.05 and 24.11 at a block smaller than the base, 25.05 and later at neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_ext.aws.topology_types import LARGEST_DOMAIN, ultraserver_sizes
from slurm_ext.slurm.hostlist import fold
from slurm_ext.slurm.model import Version
from slurm_ext.topology.model import Block, BlockPlan, Placement, Tree
from slurm_ext.topology.naming import unique_names

#: Slurm keeps sixteen levels of blocks, the base among them (MAX_BLOCK_LEVELS).
MAX_LEVEL = 15

#: What a driver reports for a GPU that is in no NVLink domain.
_NO_CLUSTER = "00000000-0000-0000-0000-000000000000"


class BlockRules(NamedTuple):
    """What a Slurm version wants of blocks."""

    #: Two blocks of different size stop the controller.
    equal: bool
    #: A block smaller than the base stops the controller.
    whole: bool
    #: The key of topology.conf that says the sizes; 23.11's holds levels instead.
    key: str


def rules_of(version: Version) -> BlockRules | None:
    """Return what a version wants of blocks, or None where it has no topology/block."""
    release = (version.major, version.minor)
    if release < (23, 11):
        return None
    if release < (24, 5):
        return BlockRules(True, True, "BlockLevels")
    return BlockRules(False, release < (25, 5), "BlockSizes")


def plan(tree: Tree, version: Version, *, base: int = 0, capacity_blocks: bool = False) -> BlockPlan:
    """Return the blocks of a tree's nodes as a version of Slurm takes them.

    `base` is the planning base in nodes (0: the size of the domains), `capacity_blocks` takes a capacity block for one
    domain where neither clique nor UltraServer is known. Raise ValueError where the version has no blocks, or no node is
    in a domain.
    """
    rules = rules_of(version)
    if rules is None:
        raise ValueError(f"Slurm {version.text} has no topology/block: it came with 23.11")
    notes: list[str] = []
    domains = _domains(tree.placements, capacity_blocks, notes)
    if not domains:
        raise ValueError("no node is in a known NVLink domain: nodes report none, and EC2 names no UltraServer")
    position = _positions(tree)
    ordered = sorted(domains.items(), key=lambda pair: _place(pair[1], position))
    names = unique_names(("nvl", domain) for domain, _ in ordered)
    blocks = [
        Block(names["nvl", domain], domain, tuple(m.node for m in members), _zone(domain, members, notes))
        for domain, members in ordered
    ]
    _oversized(blocks, notes)
    blocks, base = _fitting(blocks, base or _base(tree.placements, blocks), rules, version, notes)
    inside = {node for block in blocks for node in block.nodes}
    left_out = tuple(placement.node for placement in tree.placements if placement.node not in inside)
    if left_out:
        notes.append(f"{len(left_out)} nodes are in no block: jobs that may use blocks never start on them")
    if len({block.zone for block in blocks}) > 1:
        notes.append("blocks of several zones: keep them apart with a partition for each, a job must not span zones")
    return BlockPlan(tuple(blocks), _sizes(base, len(blocks)), left_out, tuple(notes))


def has_domains(tree: Tree, capacity_blocks: bool = False) -> bool:
    """Say whether any node is in a known NVLink domain."""
    return bool(_domains(tree.placements, capacity_blocks, []))


def _domains(placements: Iterable[Placement], capacity_blocks: bool, notes: list[str]) -> dict[str, list[Placement]]:
    """Return domain -> its members, in the order of their names."""
    domains: dict[str, list[Placement]] = {}
    said: dict[str, tuple[set[str], set[str]]] = {}
    holders: dict[str, set[str]] = {}
    everybody = list(placements)
    cliques = _cliques_of(everybody)
    open_nodes: list[str] = []
    for placement in everybody:
        clique = _clique(placement)
        holder = placement.ultraserver_id or (placement.capacity_block_id if capacity_blocks else "")
        # A node that tells no clique is in that of its UltraServer's other nodes; of two, nobody knows in which.
        beside = cliques.get(holder, set())
        domain = clique or (min(beside) if len(beside) == 1 else "" if beside else holder)
        if not domain:
            open_nodes += [placement.node] if holder else []
            continue
        domains.setdefault(domain, []).append(placement)
        ultraservers, reservations = said.setdefault(domain, (set(), set()))
        ultraservers.add(placement.ultraserver_id)
        reservations.add(placement.capacity_block_id)
        if placement.capacity_block_id:
            holders.setdefault(placement.capacity_block_id, set()).add(domain)
        if clique and placement.ultraserver_id:
            holders.setdefault(placement.ultraserver_id, set()).add(domain)
    for domain, found in sorted(said.items()):
        for kind, ids in zip(("UltraServers", "capacity blocks"), found, strict=True):
            if len(ids - {""}) > 1:
                notes.append(
                    f"domain {domain} is spread over the {kind} {', '.join(sorted(ids - {''}))}: the domain wins"
                )
    if open_nodes:
        notes.append(f"{fold(open_nodes)} tell no clique, and what they are in holds several: in no block")
    for holder, inside in sorted(holders.items()):
        if len(inside) > 1:
            notes.append(f"{holder} holds {len(inside)} NVLink domains: a block for each")
    return domains


def _clique(placement: Placement) -> str:
    return "" if placement.clique.startswith(_NO_CLUSTER) else placement.clique


def _cliques_of(placements: Iterable[Placement]) -> dict[str, set[str]]:
    """Return UltraServer or capacity block -> the cliques that nodes in it tell."""
    found: dict[str, set[str]] = {}
    for placement in placements:
        for holder in {placement.ultraserver_id, placement.capacity_block_id} - {""}:
            if clique := _clique(placement):
                found.setdefault(holder, set()).add(clique)
    return found


def _positions(tree: Tree) -> dict[str, tuple[int, int]]:
    """Return node -> (its leaf's place in the tree, its place in the leaf)."""
    leaves = [switch.nodes for switch in tree.switches if switch.nodes]
    return {node: (number, place) for number, nodes in enumerate(leaves) for place, node in enumerate(nodes)}


def _place(members: Sequence[Placement], position: Mapping[str, tuple[int, int]]) -> tuple[int, tuple[int, int]]:
    """Return where a domain stands in the tree: the leaf that holds most of it (nodes that are off hang elsewhere)."""
    counted = Counter(position[member.node][0] for member in members if member.path) or Counter(
        position[member.node][0] for member in members
    )
    leaf = min(counted, key=lambda number: (-counted[number], number))
    return leaf, min(position[member.node] for member in members)


def _zone(domain: str, members: Sequence[Placement], notes: list[str]) -> str:
    zones = Counter(member.zone for member in members if member.zone)
    if len(zones) > 1:
        notes.append(f"domain {domain} has nodes in the zones {', '.join(sorted(zones))}, which NVLink cannot span")
    return min(zones, key=lambda zone: (-zones[zone], zone)) if zones else ""


def _oversized(blocks: Iterable[Block], notes: list[str]) -> None:
    for block in blocks:
        if len(block.nodes) > LARGEST_DOMAIN:
            notes.append(
                f"domain {block.domain} has {len(block.nodes)} nodes, more than any NVLink domain of EC2 ({LARGEST_DOMAIN})"
            )


def _base(placements: Iterable[Placement], blocks: Sequence[Block]) -> int:
    """Return the size of the domains: what the instance type comes in, else the largest block."""
    counted = Counter(len(block.nodes) for block in blocks)
    largest = max(counted)
    types = {placement.instance_type for placement in placements}
    sizes = sorted({size for name in types for size in ultraserver_sizes(name) if size >= largest})
    return sizes[0] if sizes else largest


def _fitting(
    blocks: list[Block], base: int, rules: BlockRules, version: Version, notes: list[str]
) -> tuple[list[Block], int]:
    """Return the blocks that the version takes, and the base: what does not fit stops its controller and is left out."""
    if rules.equal:
        sizes = Counter(len(block.nodes) for block in blocks)
        base = max(sizes, key=lambda size: (size * sizes[size], size))
        kept = [block for block in blocks if len(block.nodes) == base]
        why = f"Slurm {version.text} wants all blocks of one size, here {base}"
    elif rules.whole:
        kept = [block for block in blocks if len(block.nodes) >= base]
        why = f"Slurm {version.text} stops at a block smaller than the base size {base}"
    else:
        kept, why = blocks, ""
    names = {block.name for block in kept}
    gone = [block for block in blocks if block.name not in names]
    if not kept:
        smallest = min(len(block.nodes) for block in blocks)
        raise ValueError(f"{why}, and every block is smaller: a base size of {smallest} takes all")
    for block in gone:
        notes.append(f"{why}: block {block.name} ({len(block.nodes)} nodes: {fold(block.nodes)}) is left out")
    if gone and not rules.equal:
        notes.append(f"a base size of {min(len(block.nodes) for block in blocks)} would take all blocks in")
    return kept, base


def _sizes(base: int, blocks: int) -> tuple[int, ...]:
    """Return the base and its doublings up to what so many blocks can fill."""
    levels = min(MAX_LEVEL, blocks.bit_length() - 1)
    return tuple(base << level for level in range(levels + 1))
