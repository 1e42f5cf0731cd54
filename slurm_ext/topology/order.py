"""Nodes in the order of the tree, and where a job's nodes sit: what users of a cluster without a topology can still do. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from slurm_ext.topology.model import Tree


class Spread(NamedTuple):
    """How a job lies in the tree: its nodes under each leaf, how few leaves could hold it, and nodes in no leaf."""

    leaves: Mapping[str, tuple[str, ...]]
    fewest: int
    elsewhere: tuple[str, ...]

    @property
    def placed(self) -> int:
        """Return how many nodes of the job sit in the tree."""
        return sum(map(len, self.leaves.values()))


def tree_order(tree: Tree) -> list[str]:
    """Return all nodes so that neighbours in the list are neighbours in the network."""
    return [node for switch in tree.switches for node in switch.nodes]


def rank_order(tree: Tree, chosen: Iterable[str] | None = None) -> list[str]:
    """Return the chosen nodes (all, by default) in the order of the tree; those that it does not have come last, as given."""
    everything = tree_order(tree)
    if chosen is None:
        return everything
    wanted = dict.fromkeys(chosen)
    known = [node for node in everything if node in wanted]
    inside = set(known)
    return known + [node for node in wanted if node not in inside]


def hostfile(nodes: Iterable[str], tasks_per_node: int = 1) -> str:
    """Return the text of a SLURM_HOSTFILE: a line for each task, ranks in the order of the nodes."""
    return "".join(f"{node}\n" * tasks_per_node for node in nodes)


def spread(tree: Tree, job_nodes: Collection[str]) -> Spread:
    """Return where the nodes of a job sit, leaf by leaf."""
    wanted = set(job_nodes)
    leaves = {switch.name: here for switch in tree.switches if (here := tuple(n for n in switch.nodes if n in wanted))}
    inside = {node for nodes in leaves.values() for node in nodes}
    sizes = sorted((len(switch.nodes) for switch in tree.switches), reverse=True)
    fewest, left = 0, len(inside)
    while left > 0:
        left -= sizes[fewest]
        fewest += 1
    return Spread(leaves, fewest, tuple(node for node in dict.fromkeys(job_nodes) if node not in inside))
