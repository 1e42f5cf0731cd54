"""The true fabric of the placement bench, and what each arm tells Slurm of it. Pure: the same seed gives the same fabric.

Nodes are dealt over the network nodes at random, since EC2 gives names in the order of launch, and leaves are uneven, since a
cluster never has all machines below a network node. Four layers: root, hall, group, leaf.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_ext.slurm.model import Version
from slurm_ext.slurm.versions import has
from slurm_ext.topology import blocks, render
from slurm_ext.topology.budget import within
from slurm_ext.topology.build import build
from slurm_ext.topology.model import Placement, Tree

#: Nodes below a leaf; 16 on average, which is what the trees that ignore the truth use.
LEAF_NODES = (8, 24)
GUESSED_LEAF_NODES = 16
#: Network nodes below one of the next layer up.
BRANCHES = (2, 4)

#: node -> its network nodes, from the root to the leaf.
Fabric = Mapping[str, tuple[str, ...]]

TREES = {"tree-2": 2, "tree-3": 3, "tree-4": 4}
STALE = {"stale-1": 0.01, "stale-10": 0.10, "stale-30": 0.30}
ARMS = ("flat", "alphabetical", "random", *TREES, "collapsed", "block")
EVERY_ARM = (*ARMS, *STALE, "asking")


class Arm(NamedTuple):
    """What Slurm is told in one arm: its plugin and topology.conf (empty: none), and the map that it says (None: none).

    `asks`: jobs ask for as few switches as would do. `note` says what a reader should know of it.
    """

    name: str
    plugin: str
    conf: str
    told: Mapping[str, tuple[str, ...]] | None
    switches: int = 0
    asks: bool = False
    note: str = ""


def node_names(count: int) -> list[str]:
    """Return the names of so many nodes, all of one width."""
    width = len(str(count))
    return [f"n{number:0{width}}" for number in range(1, count + 1)]


def true_fabric(nodes: Sequence[str], seed: int) -> dict[str, tuple[str, ...]]:
    """Return each node's four network nodes, from the root to the leaf."""
    rng = random.Random(f"fabric/{seed}/{len(nodes)}")
    dealt = list(nodes)
    rng.shuffle(dealt)
    leaf_sizes = _pieces(len(dealt), LEAF_NODES, rng)
    group_sizes = _pieces(len(leaf_sizes), BRANCHES, rng)
    hall_sizes = _pieces(len(group_sizes), BRANCHES, rng)
    leaf_of = [leaf for leaf, size in enumerate(leaf_sizes) for _ in range(size)]
    group_of = [group for group, size in enumerate(group_sizes) for _ in range(size)]
    hall_of = [hall for hall, size in enumerate(hall_sizes) for _ in range(size)]
    return {
        node: ("nn-root", f"nn-hall{hall_of[group_of[leaf]]}", f"nn-group{group_of[leaf]}", f"nn-leaf{leaf}")
        for node, leaf in zip(dealt, leaf_of, strict=True)
    }


def _pieces(total: int, bounds: tuple[int, int], rng: random.Random) -> list[int]:
    """Cut `total` into pieces within the bounds; a rest that is too small goes to the piece before it."""
    low, high = bounds
    pieces: list[int] = []
    left = total
    while left:
        piece = min(left, rng.randint(low, high))
        if piece < low and pieces:
            pieces[-1] += piece
        else:
            pieces.append(piece)
        left -= piece
    return pieces


def leaf_sizes(fabric: Fabric) -> dict[str, int]:
    """Return leaf -> its nodes."""
    return dict(Counter(path[-1] for path in fabric.values()))


def moved(fabric: Fabric, share: float, seed: int) -> dict[str, tuple[str, ...]]:
    """Return the fabric as it was before `share` of its nodes changed places among themselves."""
    rng = random.Random(f"moved/{seed}/{share}")
    nodes = sorted(fabric)
    chosen = rng.sample(nodes, max(2, round(share * len(nodes))))
    # Each takes the place of the next one, so that as many nodes hang below each leaf as before.
    turned = dict(zip(chosen, (fabric[node] for node in (*chosen[1:], chosen[0])), strict=True))
    return {node: turned.get(node, fabric[node]) for node in nodes}


def arm(name: str, fabric: Fabric, version: Version, *, seed: int, budget: int = 0, base: int = 0) -> Arm:
    """Return what Slurm is told in an arm. Raise ValueError where this version cannot be told so.

    `budget` is the most switches of `collapsed` (0: half as many as there are leaves), `base` the base size of `block` (0: the
    smallest leaf, which every version takes).
    """
    if name == "flat":
        return Arm(name, flat_plugin(version), "", None)
    if name == "block":
        return _block(fabric, version, base)
    asks = name == "asking"
    tree = _tree("tree-3" if asks else name, fabric, seed, budget)
    conf = render.topology_conf(tree, origin="a bench", version=version)
    note = "; ".join(tree.notes) if name == "collapsed" else ""
    return Arm(name, "topology/tree", conf, tree.paths(), len(tree.switches), asks, note)


def _tree(name: str, fabric: Fabric, seed: int, budget: int) -> Tree:
    if name in TREES:
        return build(_known(fabric, TREES[name]))
    if name in STALE:
        return build(_known(moved(fabric, STALE[name], seed), TREES["tree-3"]))
    if name == "collapsed":
        return within(build(_known(fabric, TREES["tree-4"])), budget or max(1, len(leaf_sizes(fabric)) // 2))
    nodes = sorted(fabric)
    if name == "random":
        random.Random(f"guess/{seed}").shuffle(nodes)
    elif name != "alphabetical":
        raise ValueError(f"no arm {name}: there are {', '.join(EVERY_ARM)}")
    return build(
        Placement(node, path=("root", f"rack{place // GUESSED_LEAF_NODES}")) for place, node in enumerate(nodes)
    )


def _known(fabric: Fabric, layers: int) -> Iterable[Placement]:
    """Yield the nodes as the generator gets them: the root and the layers nearest to the nodes, `layers` in all."""
    for node, path in fabric.items():
        yield Placement(node, path=(path[0], *path[len(path) - layers + 1 :]), ultraserver_id=path[-1])


def _block(fabric: Fabric, version: Version, base: int) -> Arm:
    """Return the arm in which each leaf is a block: there is nothing nearer in this fabric."""
    tree = build(_known(fabric, TREES["tree-4"]))
    plan = blocks.plan(tree, version, base=base or min(leaf_sizes(fabric).values()))
    told = {node: (block.name,) for block in plan.blocks for node in block.nodes}
    note = f"base {plan.sizes[0]}, sizes {','.join(map(str, plan.sizes))}" + "".join(f"; {line}" for line in plan.notes)
    return Arm(
        "block", "topology/block", render.block_conf(plan, origin="a bench", version=version), told, 0, False, note
    )


def flat_plugin(version: Version) -> str:
    """Return what a version calls a cluster without a topology."""
    if has(version, "topology-yaml"):
        return "topology/flat"
    return "topology/default" if has(version, "topology-block") else "topology/none"
