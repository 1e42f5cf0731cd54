"""Placements -> tree, pure: leaves out tiers that do not branch, one root per fabric, unplaced nodes in a holding leaf.

Whatever the order of the input, the output is the same. A switch's name is made from its cloud id and its layer alone, so
it stays when other nodes come and go. Slurm never lets a job span two roots, so a root is a decision: the nodes of one
availability zone can reach one another over EFA and get one, two zones never share one (topology.conf(5); EFA traffic
does not leave its subnet's zone). No recursion: paths may be of any depth.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_ext.aws.pcluster import node_name
from slurm_ext.topology.model import Placement, Switch, Tree
from slurm_ext.topology.naming import natural, node_order, switch_name, unique_names, zone_words

__all__ = ["HOLDING", "MAX_TIERS", "build", "layer", "natural", "switch_name"]

_LAST_NUMBER = re.compile(r"[0-9]+(?=[^0-9]*$)")

#: Where nodes wait whose place nobody knows. Under a root, since a job is never placed on nodes that have no switch.
HOLDING = "unplaced"

#: Slurm gives up on a tree of 22 tiers whose parents come first in the file ("not a tree"): leave room for a root.
MAX_TIERS = 18


class _Spot(NamedTuple):
    """One network node at one place of one fabric; a cloud id that is seen below two parents has two spots."""

    layer: int
    cloud_id: str
    above: tuple[str, ...]
    children: list[int]
    nodes: list[str]


def layer(number: int) -> str:
    """Return how names of a layer begin; 1 is the layer farthest from the nodes, as EC2 counts."""
    return f"l{number}"


def build(placements: Iterable[Placement], *, named: bool = False) -> Tree:
    """Return the tree of all placements. Raise ValueError for a node named twice, or where there is no node at all.

    `named`: the paths are names of switches that a Slurm has already: they stay as they are, and so do all tiers.
    """
    ordered = sorted(placements, key=lambda placement: node_order(placement.node))
    if not ordered:
        raise ValueError("no nodes: an empty topology stops the controller from starting")
    for first, second in itertools.pairwise(ordered):
        if first.node == second.node:
            raise ValueError(f"node {first.node} is named twice")
    notes: list[str] = []
    fabrics: dict[str, list[Placement]] = {}
    for placement in ordered:
        if placement.path:
            fabrics.setdefault(placement.zone, []).append(placement)
    homeless = _homes([placement for placement in ordered if not placement.path], fabrics, notes)
    zones = sorted(fabrics.keys() | homeless.keys())
    words = zone_words(zones)
    spots = {zone: _spots(zone, fabrics.get(zone, []), notes, named=named) for zone in zones}
    names = _names(spots, notes, named=named)
    switches: list[Switch] = []
    for zone in zones:
        switches += _fabric(zone, words[zone], spots[zone], names, [p.node for p in homeless.get(zone, [])])
    return Tree(tuple(switches), tuple(notes), tuple(ordered))


def _homes(
    unplaced: Sequence[Placement], fabrics: Mapping[str, Sequence[Placement]], notes: list[str]
) -> dict[str, list[Placement]]:
    """Return the fabric under which each unplaced node waits: its own zone's, else where most nodes of its kind are.

    Of a kind are nodes whose names differ in the last number alone, and a ParallelCluster's of one compute resource. Where no
    node of a kind is placed and there are several zones, they wait below a root of their own: a wrong one mixes zones.
    """
    kinds: dict[str, Counter[str]] = {}
    for zone, placed in fabrics.items() if unplaced else ():
        for placement in placed:
            kinds.setdefault(_kind(placement.node), Counter())[zone] += 1
    homes: dict[str, list[Placement]] = {}
    alone: set[str] = set()
    for placement in unplaced:
        kind = _kind(placement.node)
        zones = kinds.get(kind) or Counter({zone: len(placed) for zone, placed in fabrics.items()})
        home = placement.zone or min(zones, key=lambda zone: (-zones[zone], zone), default="")
        if not placement.zone and kind not in kinds and len(fabrics) > 1:
            home = kind
            alone.add(home)
        homes.setdefault(home, []).append(placement)
    for zone, nodes in sorted(homes.items()):
        where = f"in a holding leaf under {zone or 'the only root'}"
        if zone in alone:
            where = f"no other of {zone} has one, and there are several zones: a root of their own"
        notes.append(f"no known place for {len(nodes)} of the nodes: {where}")
    return homes


def _kind(node: str) -> str:
    """Return what nodes have in common that were ordered together, as far as a name tells."""
    name = node_name(node)
    return f"{name.queue}-{name.compute_resource}" if name else _LAST_NUMBER.sub("", node).rstrip("-_.")


def _spots(zone: str, placed: Sequence[Placement], notes: list[str], *, named: bool) -> list[_Spot]:
    """Return the network nodes of one fabric; index 0 stands above its top tier and for no network node."""
    root = _Spot(0, "", (), [], [])
    if not placed:
        return [root]
    paths = [placement.path for placement in placed]
    depth = max(map(len, paths))
    if min(map(len, paths)) < depth:
        notes.append(f"paths in {zone or 'this fabric'} have different depths: shorter ones hang below their parent")
    kept = list(range(depth)) if named else _kept_layers(paths, depth, notes)
    spots = [root]
    known: dict[tuple[int, str], int] = {}
    for placement in placed:
        here = 0
        for number in kept:
            if number >= len(placement.path):
                break
            cloud_id = placement.path[number]
            below = known.get((here, cloud_id))
            if below is None:
                below = known[here, cloud_id] = len(spots)
                spots.append(_Spot(number + 1, cloud_id, placement.path[:number], [], []))
                spots[here].children.append(below)
            here = below
        spots[here].nodes.append(placement.node)
    return spots


def _kept_layers(paths: Sequence[tuple[str, ...]], depth: int, notes: list[str]) -> list[int]:
    """Return the layers that stay: one whose every network node has a single one below it says nothing, and is left out."""
    kept = []
    distinct = set(paths)
    for number in range(depth):
        here = {path[: number + 1] for path in distinct if len(path) > number}
        below = {path[: number + 2] for path in distinct if len(path) > number + 1}
        # As many below as here, and no path ends here: each has exactly one.
        if number + 1 < depth and len(here) == len(below) and all(len(path) != number + 1 for path in distinct):
            ids = sorted({path[-1] for path in here})
            one = f"tier of {ids[0]} does not branch and is left out"
            notes.append(
                one
                if len(ids) == 1
                else f"layer {number + 1} ({len(ids)} network nodes) does not branch and is left out"
            )
        else:
            kept.append(number)
    if len(kept) > MAX_TIERS:
        notes.append(
            f"{len(kept)} tiers are more than Slurm takes: {len(kept) - MAX_TIERS} of the upper ones are left out"
        )
        kept = [kept[0], *kept[-(MAX_TIERS - 1) :]]
    return _never_past_an_end(kept, distinct)


def _never_past_an_end(kept: list[int], paths: Iterable[tuple[str, ...]]) -> list[int]:
    """Keep the first layer where a path has no other: a node must hang somewhere."""
    shortest = min(map(len, paths))
    return kept if kept[0] < shortest else [shortest - 1, *kept]


def _names(spots: Mapping[str, Sequence[_Spot]], notes: list[str], *, named: bool) -> dict[tuple[str, int], str]:
    """Return the name of each (zone, index of a spot)."""
    everywhere = [(zone, index, spot) for zone, found in spots.items() for index, spot in enumerate(found) if index]
    counted = Counter(spot.cloud_id for _, _, spot in everywhere)
    identity: dict[tuple[str, int], tuple[str, str]] = {}
    for zone, index, spot in everywhere:
        # A network node that is seen in two places is two switches: Slurm stops at a name that is there twice. The NUL
        # keeps the two kinds of identity apart.
        whole = spot.cloud_id
        if counted[spot.cloud_id] > 1 or "\0" in spot.cloud_id:
            whole = f"\0{(zone, *spot.above, spot.cloud_id)!r}"
        identity[zone, index] = (layer(spot.layer), whole)
    notes.extend(
        f"{cloud_id} is seen below {count} parents and is a switch below each"
        for cloud_id, count in sorted(counted.items())
        if count > 1
    )
    names = unique_names(identity.values())
    found = {where: names[pair] for where, pair in identity.items()}
    if named:
        found |= {(zone, index): spot.cloud_id for zone, index, spot in everywhere if counted[spot.cloud_id] == 1}
    return found


def _fabric(
    zone: str, word: str, spots: Sequence[_Spot], names: Mapping[tuple[str, int], str], waiting: Sequence[str]
) -> list[Switch]:
    """Return the switches of one fabric, root first, each parent before its children, in the order of their first node."""
    holding = [Switch(f"{HOLDING}-{word}", "nodes without a known place", (), tuple(waiting))] if waiting else []
    tops = spots[0].children
    body: list[Switch] = []
    stack = list(reversed(tops))
    while stack:
        index = stack.pop()
        spot, name = spots[index], names[zone, index]
        if not spot.children:
            body.append(Switch(name, spot.cloud_id, (), tuple(spot.nodes)))
            continue
        below = tuple(names[zone, child] for child in spot.children)
        # A switch of Slurm's has nodes or switches, never both: nodes that end here get a leaf of their own.
        own = f"{name}-own"
        body.append(Switch(name, spot.cloud_id, (*below, own) if spot.nodes else below))
        if spot.nodes:
            body.append(Switch(own, f"{spot.cloud_id}, nodes without a nearer tier", (), tuple(spot.nodes)))
        stack += reversed(spot.children)
    if not body or (len(tops) == 1 and not holding):
        return body + holding
    waits = tuple(switch.name for switch in holding)
    if len(tops) == 1 and body[0].switches:
        # The cloud's own top switch is the root: the holding leaf hangs beside its children.
        return [body[0]._replace(switches=body[0].switches + waits), *body[1:], *holding]
    needed = tuple(names[zone, top] for top in tops) + waits
    return [Switch(f"fabric-{word}", f"all of {zone or 'this fabric'}", needed), *body, *holding]
