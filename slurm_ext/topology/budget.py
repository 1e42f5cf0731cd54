"""A tree of no more switches than wanted, pure: the tier nearest to the nodes is given up first, and said so.

slurmctld compares each switch with each through each, whenever it starts or is reconfigured: twice as many switches take eight
times as long (lint_tree.py has what was measured). Leaves are nearly all of them.
"""

from __future__ import annotations

from slurm_ext.topology.build import build
from slurm_ext.topology.model import Tree


def within(tree: Tree, most: int) -> Tree:
    """Return the tree, or one whose leaves are the next tiers up until it has at most `most` switches (0: any number).

    A tree of one tier for each fabric is the least there is. Nodes stay where they were, under fewer names.
    """
    if most <= 0:
        return tree
    original = {placement.node: placement for placement in tree.placements}
    notes: list[str] = []
    while len(tree.switches) > most:
        depth = max(len(placement.path) for placement in tree.placements)
        if depth < 2:
            break
        lost = {placement.path for placement in tree.placements if len(placement.path) == depth}
        cut = [p._replace(path=p.path[: depth - 1]) for p in tree.placements]
        smaller = build(cut)
        notes.append(
            f"{len(tree.switches)} switches are more than {most}: the {len(lost)} network nodes of layer {depth} are left out, "
            f"and their nodes hang on layer {depth - 1}"
        )
        tree = smaller
    # Blocks are made of what is known of a node, not of what the tree has room for.
    placements = tuple(original[placement.node] for placement in tree.placements)
    return tree._replace(notes=(*notes, *tree.notes), placements=placements)
