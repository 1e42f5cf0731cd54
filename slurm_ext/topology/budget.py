"""A tree of no more switches than wanted, pure: what loses least is merged or left out, and said in words and numbers.

slurmctld's time at each start and reconfigure grows with the cube of the switches (budget_cost.py). Leaves are nearly all of
them. Which are merged is decided in budget_merge.py, by what it costs jobs (budget_loss.py); docs/guide/topology-budget.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_ext.topology.budget_cost import seconds
from slurm_ext.topology.budget_loss import JobCost, Sizes, doublings, job_cost, sizes_of
from slurm_ext.topology.budget_merge import Merged, merged
from slurm_ext.topology.build import HOLDING
from slurm_ext.topology.model import Switch, Tree
from slurm_ext.topology.naming import natural

#: So many characters of cloud ids stand in a merged leaf's comment; more of them are counted.
MAX_COMMENT = 400


class LostLayer(NamedTuple):
    """What of one layer Slurm can no longer tell apart: so many of its network nodes share so few leaves, `most` of them one.

    `left_out` are network nodes with switches of their own below, which hang on the next tier up.
    """

    layer: str
    network_nodes: int
    merged: int
    leaves: int
    most: int
    left_out: int


class Lost(NamedTuple):
    """What a tree lost to come from `before` switches to `after`, where `wanted` were asked for.

    `largest` is the leaf that stands for most nodes, of those that were merged; `hidden` how many network nodes a leaf stands
    for on average; `jobs` what jobs pay that fit into one leaf.
    """

    wanted: int
    before: int
    after: int
    layers: tuple[LostLayer, ...] = ()
    largest: str = ""
    largest_nodes: int = 0
    hidden: float = 1.0
    jobs: tuple[JobCost, ...] = ()

    def words(self) -> list[str]:
        """Return it as notes for people."""
        if self.before <= self.wanted:
            return []
        said = [
            f"{self.before} switches are more than {self.wanted}: {self.after} are left, which take slurmctld "
            f"{seconds(self.after)} at each start and reconfigure in place of {seconds(self.before)}"
        ]
        if self.after > self.wanted:
            said.append("fewer cannot be: each fabric keeps its root, and nodes without a place their leaf")
        for lost in self.layers:
            if lost.merged:
                said.append(
                    f"{lost.layer}: {lost.merged} of {lost.network_nodes} network nodes share {lost.leaves} "
                    f"{'leaf' if lost.leaves == 1 else 'leaves'} with others below the same parent, {lost.most} at most"
                )
            if lost.left_out:
                said.append(
                    f"{lost.layer}: {lost.left_out} of {lost.network_nodes} network nodes {'is' if lost.left_out == 1 else 'are'} left "
                    f"out, and what is below {'it' if lost.left_out == 1 else 'them'} hangs one tier up"
                )
        if self.largest:
            said.append(f"the largest merged leaf is {self.largest} with {self.largest_nodes} nodes")
        if self.jobs:
            worst = max(self.jobs, key=lambda job: (job.spanned / job.fewest, -job.nodes))
            said.append(
                f"a leaf stands for {self.hidden:.1f} network nodes on average; a job of {worst.nodes} nodes that gets one leaf lies "
                f"below {worst.spanned:.1f} of them where {worst.fewest:.1f} could hold it"
            )
        return said


def within(tree: Tree, most: int) -> Tree:
    """Return the tree, or one of at most `most` switches (0: any number) with notes on what was lost."""
    return shrink(tree, most)[0]


def shrink(tree: Tree, most: int) -> tuple[Tree, Lost]:
    """Return the tree, or one of at most `most` switches (0: any number) that loses least, and what it lost.

    Every node stays below its own network node or that one's siblings. Fabrics keep a root and their nodes without a place a
    leaf, so a very small number cannot be met: then it is as few as can be. Blocks are made of what is known of a node, not of
    what the tree has room for: the placements stay.
    """
    before = len(tree.switches)
    if most <= 0 or before <= most:
        return tree, Lost(most if most > 0 else before, before, before)
    kept = {switch.name for switch in tree.switches if _waits(switch)}
    plan = merged(tree.switches, most, kept)
    switches, stands_for = _drawn(tree.switches, plan)
    lost = _lost(tree.switches, kept, plan, stands_for, switches)._replace(wanted=most)
    return tree._replace(switches=switches, notes=(*lost.words(), *tree.notes)), lost


def _waits(switch: Switch) -> bool:
    return switch.name.startswith(f"{HOLDING}-") and bool(switch.nodes)


def _drawn(switches: Sequence[Switch], plan: Merged) -> tuple[tuple[Switch, ...], dict[str, str]]:
    """Return the switches that are left, in the order of the tree, and leaf or collapsed switch -> the leaf that holds it now."""
    known = {switch.name: switch for switch in switches}
    inside: dict[str, str] = {}  # below a collapsed switch -> the topmost one
    for switch in switches:
        for child in switch.switches:
            if switch.name in plan.collapsed:
                inside[child] = inside.get(switch.name, switch.name)
    nodes: dict[str, list[str]] = {}
    for switch in switches:
        nodes.setdefault(inside.get(switch.name, switch.name), []).extend(switch.nodes)
    leaf_of: dict[str, str] = {}
    made: dict[str, Switch] = {}
    order = {switch.name: place for place, switch in enumerate(switches)}
    for group in plan.groups:
        members = sorted((known[name] for name in group), key=lambda switch: order[switch.name])
        named = min(members, key=lambda switch: (natural(switch.cloud_id), switch.name))
        leaf = Switch(f"{named.name}-merged", _comment(members), (), tuple(n for m in members for n in nodes[m.name]))
        # It stands where the first of them stood.
        made[members[0].name] = leaf
        leaf_of.update((member.name, leaf.name) for member in members)
    first = {leaf.name: name for name, leaf in made.items()}

    def below(switch: Switch) -> list[str]:
        found = []
        stack = list(reversed(switch.switches))
        while stack:
            child = stack.pop()
            if child in plan.left_out:
                stack += reversed(known[child].switches)
            elif (leaf := leaf_of.get(child, child)) == child or first[leaf] == child:
                found.append(leaf)
        return found

    drawn: list[Switch] = []
    for switch in switches:
        name = switch.name
        if name in inside:
            leaf_of[name] = leaf_of.get(inside[name], inside[name])
        elif name in made:
            drawn.append(made[name])
        elif name in leaf_of or name in plan.left_out:
            continue
        elif name in plan.collapsed or switch.nodes:
            drawn.append(Switch(name, switch.cloud_id, (), tuple(nodes[name])))
            leaf_of[name] = name
        else:
            drawn.append(Switch(name, switch.cloud_id, tuple(below(switch))))
    return tuple(drawn), leaf_of


def _comment(members: Sequence[Switch]) -> str:
    """Return the cloud ids of a merged leaf's members, as many as a comment has room for."""
    ids = sorted((member.cloud_id for member in members), key=lambda text: (natural(text), text))
    said = ids[0]
    for place, text in enumerate(ids[1:], 1):
        if len(said) + len(text) > MAX_COMMENT:
            return f"{said}, and {len(ids) - place} more"
        said += f", {text}"
    return said


def _lost(
    before: Sequence[Switch], kept: Iterable[str], plan: Merged, leaf_of: Mapping[str, str], after: Sequence[Switch]
) -> Lost:
    held = {switch.name: len(switch.nodes) for switch in after if switch.nodes}
    roots = {switch.name for switch in before} - {child for switch in before for child in switch.switches}
    layers: dict[str, list[Switch]] = {}
    for switch in before:
        if switch.name not in roots and switch.name not in set(kept):
            layers.setdefault(_layer(switch), []).append(switch)
    found = []
    for layer, members in sorted(layers.items(), key=lambda item: natural(item[0])):
        counted = Counter(leaf_of[switch.name] for switch in members if switch.name in leaf_of)
        shared = [count for count in counted.values() if count > 1]
        left_out = sum(switch.name in plan.left_out for switch in members)
        if shared or left_out:
            found.append(LostLayer(layer, len(members), sum(shared), len(shared), max(shared, default=0), left_out))
    true: dict[str, list[int]] = {}
    for switch in before:
        if switch.nodes and switch.name not in set(kept):
            true.setdefault(leaf_of[switch.name], []).append(len(switch.nodes))
    shapes: list[Sizes] = [sizes_of(nodes) for nodes in true.values()]
    several = {leaf for leaf, nodes in true.items() if len(nodes) > 1}
    largest = max(sorted(several), key=lambda leaf: held[leaf], default="")
    most = max((held[leaf] for leaf in several), default=0)
    jobs = [cost for nodes in doublings(2, most) if (cost := job_cost(shapes, nodes))]
    hidden = sum(map(len, true.values())) / max(1, len(true))
    return Lost(0, len(before), len(after), tuple(found), largest, held.get(largest, 0), hidden, tuple(jobs))


def _layer(switch: Switch) -> str:
    """Return what people call the layer of a switch of ours: `layer 3` for l3-h419fd5e6."""
    word = switch.name.partition("-")[0]
    return f"layer {word[1:]}" if word[:1] == "l" and word[1:].isdecimal() else "other switches"
