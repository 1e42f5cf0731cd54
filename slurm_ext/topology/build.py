"""Placements -> tree, pure: trims tiers that do not branch, one root per fabric, unplaced nodes in a holding leaf.

Whatever the order of the input, the output is the same. A switch's name is made from its cloud id alone, so it stays
when other nodes come and go. Slurm never lets a job span two roots, so a root is a decision: the nodes of one
availability zone can reach one another over EFA and get one, two zones never share one (topology.conf(5); EFA traffic
does not leave its subnet's zone).
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable

from slurm_ext.topology.model import Placement, Switch, Tree

#: Where nodes wait whose place nobody knows. Under a root, since a job is never placed on nodes that have no switch.
HOLDING = "unplaced"

_NUMBER = re.compile(r"(\d+)")


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which n2 comes before n10."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in _NUMBER.split(text) if part)


def switch_name(tier: str, cloud_id: str) -> str:
    """Return a short stable name: the tier and eight hexadecimal digits of the id's hash, with a letter in front.

    EC2 ids may end in more than 19 digits, which Slurm's hostlist parser overflows on; eight cannot.
    """
    return f"{tier}-h{hashlib.blake2b(cloud_id.encode(), digest_size=4).hexdigest()}"


def build(placements: Iterable[Placement]) -> Tree:
    """Return the tree of all placements. Raise ValueError for a node named twice, or where there is no node at all."""
    ordered = sorted(placements, key=lambda placement: natural(placement.node))
    if not ordered:
        raise ValueError("no nodes: an empty topology stops the controller from starting")
    for first, second in itertools.pairwise(ordered):
        if first.node == second.node:
            raise ValueError(f"node {first.node} is named twice")
    fabrics: dict[str, list[Placement]] = {}
    unplaced = [placement for placement in ordered if not placement.path]
    for placement in ordered:
        if placement.path:
            fabrics.setdefault(placement.zone, []).append(placement)
    notes: list[str] = []
    switches: list[Switch] = []
    homeless = _homes(unplaced, fabrics, notes)
    for zone in sorted(fabrics.keys() | homeless.keys()):
        switches += _fabric(zone, fabrics.get(zone, []), homeless.get(zone, []), notes)
    return Tree(tuple(switches), tuple(notes))


def _homes(
    unplaced: list[Placement], fabrics: dict[str, list[Placement]], notes: list[str]
) -> dict[str, list[Placement]]:
    """Return the fabric under which each unplaced node waits: its own zone's, else the one with most nodes."""
    largest = min(fabrics, key=lambda zone: (-len(fabrics[zone]), zone)) if fabrics else ""
    homes: dict[str, list[Placement]] = {}
    for placement in unplaced:
        homes.setdefault(placement.zone if placement.zone in fabrics else largest, []).append(placement)
    for zone, nodes in sorted(homes.items()):
        notes.append(
            f"{len(nodes)} nodes have no known place and wait in a holding leaf under {zone or 'the only root'}"
        )
    return homes


def _fabric(zone: str, placed: list[Placement], waiting: list[Placement], notes: list[str]) -> list[Switch]:
    """Return the switches of one fabric, root first."""
    paths = {placement.node: placement.path for placement in placed}
    holding = (
        [Switch(f"{HOLDING}-{_zone_word(zone)}", "nodes without a known place", (), tuple(p.node for p in waiting))]
        if waiting
        else []
    )
    if not paths:
        return holding
    depth = max(len(path) for path in paths.values())
    if any(len(path) < depth for path in paths.values()):
        notes.append(f"paths in {zone or 'this fabric'} have different depths: shorter ones hang below their parent")
    trimmed = 0
    while all(len(path) > 1 for path in paths.values()) and len({path[0] for path in paths.values()}) == 1:
        top = next(iter(paths.values()))[0]
        if len({path[1] for path in paths.values()}) > 1:
            break
        paths = {node: path[1:] for node, path in paths.items()}
        trimmed += 1
        notes.append(f"tier of {top} does not branch and is left out")
    roots = sorted({path[0] for path in paths.values()})
    body = _below(paths, depth - trimmed, ())
    top_names = tuple(switch_name(_tier(depth - trimmed, 0), root) for root in roots)
    if len(roots) == 1 and not holding:
        return body
    needed = top_names + tuple(switch.name for switch in holding)
    if len(roots) == 1 and any(switch.switches for switch in body[:1]):
        # The cloud's own top switch is the root: the holding leaf hangs beside its children.
        root = body[0]._replace(switches=body[0].switches + tuple(switch.name for switch in holding))
        return [root, *body[1:], *holding]
    return [Switch(f"fabric-{_zone_word(zone)}", f"all of {zone or 'this fabric'}", needed), *body, *holding]


def _below(paths: dict[str, tuple[str, ...]], depth: int, above: tuple[str, ...]) -> list[Switch]:
    """Return the switches below `above`, each parent before its children, in the order of their first node."""
    groups: dict[str, dict[str, tuple[str, ...]]] = {}
    for node, path in paths.items():
        if len(path) > len(above):
            groups.setdefault(path[len(above)], {})[node] = path
    found: list[Switch] = []
    for cloud_id in groups:
        inside, here = groups[cloud_id], (*above, cloud_id)
        name = switch_name(_tier(depth, len(above)), cloud_id)
        ends = tuple(node for node, path in inside.items() if len(path) == len(here))
        deeper = {node: path for node, path in inside.items() if len(path) > len(here)}
        if not deeper:
            found.append(Switch(name, cloud_id, (), ends))
            continue
        children = _below(deeper, depth, here)
        direct = tuple(dict.fromkeys(switch_name(_tier(depth, len(here)), path[len(here)]) for path in deeper.values()))
        if ends:
            # A switch of Slurm's has nodes or switches, never both: nodes that end here get a leaf of their own.
            children.append(Switch(f"{name}-own", f"{cloud_id}, nodes without a nearer tier", (), ends))
            direct += (f"{name}-own",)
        found.append(Switch(name, cloud_id, direct))
        found += children
    return found


def _tier(depth: int, level: int) -> str:
    return "leaf" if level == depth - 1 else "spine" if level == 0 else f"tier{level + 1}"


def _zone_word(zone: str) -> str:
    return re.sub(r"[^a-z0-9-]", "-", zone.lower()) or "all"
