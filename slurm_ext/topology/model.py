"""Where nodes sit, as data: what the cloud says of one node (Placement), and the switches Slurm shall know (Tree)."""

from __future__ import annotations

from typing import NamedTuple


class Placement(NamedTuple):
    """One node and its place. `path` holds the cloud's network node ids from the top tier to the nearest one.

    An empty path means that nobody knows: the instance is not running, or its type has no topology. `capacity_block_id` is
    what EC2 reserved it under, `ultraserver_id` the machine of several instances that it is a part of, `clique` the NVLink
    domain that the node itself reports (cluster UUID and clique id, joined by a point); empty where nobody says. One
    capacity block may hold several NVLink domains, so only the last two name one.
    """

    node: str
    instance_id: str = ""
    instance_type: str = ""
    path: tuple[str, ...] = ()
    zone: str = ""
    capacity_block_id: str = ""
    ultraserver_id: str = ""
    clique: str = ""


class Switch(NamedTuple):
    """One switch of Slurm's tree: either `switches` below it or `nodes`, never both. `cloud_id` is what it stands for."""

    name: str
    cloud_id: str
    switches: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class Tree(NamedTuple):
    """All switches, parents before children; `notes` says in words what was trimmed, merged or could not be placed.

    `placements` are what it was built of, sorted by node: blocks are made of them.
    """

    switches: tuple[Switch, ...]
    notes: tuple[str, ...] = ()
    placements: tuple[Placement, ...] = ()

    def paths(self) -> dict[str, tuple[str, ...]]:
        """Return each node's switch names from its root down to its leaf."""
        parent = {child: switch.name for switch in self.switches for child in switch.switches}
        found: dict[str, tuple[str, ...]] = {}
        for switch in self.switches:
            if not switch.nodes:
                continue
            path = [switch.name]
            while path[-1] in parent:
                path.append(parent[path[-1]])
            found.update(dict.fromkeys(switch.nodes, tuple(reversed(path))))
        return found


class Block(NamedTuple):
    """One NVLink domain as a block of Slurm's; `domain` is what it stands for, `zone` the fabric it is in."""

    name: str
    domain: str
    nodes: tuple[str, ...]
    zone: str = ""


class BlockPlan(NamedTuple):
    """Blocks in the order of their adjacency, and the sizes that jobs are planned with, the base first.

    `left_out` are nodes in no block; `notes` says why, and what disagreed.
    """

    blocks: tuple[Block, ...]
    sizes: tuple[int, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
