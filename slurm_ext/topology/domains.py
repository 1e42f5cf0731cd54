"""What is known of NVLink domains, held against itself: capacity blocks (EC2), UltraServers (the site) and cliques (nvidia-smi). Pure.

A capacity block is what was reserved, and several UltraServers may be in one; a clique is what the GPUs themselves can reach.
Where they disagree the clique is right, and a person is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_ext.aws.topology_types import is_ultraserver, ultraserver_sizes
from slurm_ext.slurm.hostlist import shortened
from slurm_ext.topology.model import Placement


def with_cliques(placements: Iterable[Placement], cliques: Mapping[str, str]) -> list[Placement]:
    """Return the placements with the cliques that nodes told of themselves, where no source named one."""
    return [
        placement if placement.clique else placement._replace(clique=cliques.get(placement.node, ""))
        for placement in placements
    ]


def contradictions(placements: Iterable[Placement]) -> list[str]:
    """Return what cannot be true together, and what is not known of UltraServers' nodes, in words."""
    ordered = sorted(placements)
    notes: list[str] = []
    for first, second, one, other in (
        ("clique", "ultraserver_id", "NVLink clique", "UltraServers"),
        ("clique", "capacity_block_id", "NVLink clique", "capacity blocks"),
        ("ultraserver_id", "capacity_block_id", "UltraServer", "capacity blocks"),
        ("ultraserver_id", "clique", "UltraServer", "NVLink cliques"),
    ):
        for name, members in _groups(ordered, first).items():
            parts = _groups(members, second)
            if len(parts) > 1:
                where = ", ".join(f"{part} ({_nodes(of)})" for part, of in sorted(parts.items()))
                notes.append(f"{one} {name} lies in {len(parts)} {other}: {where}")
    for key, one in (("clique", "NVLink clique"), ("ultraserver_id", "UltraServer")):
        for name, members in _groups(ordered, key).items():
            sizes = ultraserver_sizes(members[0].instance_type)
            if sizes and len(members) > sizes[-1]:
                notes.append(f"{one} {name} has {len(members)} nodes, and no UltraServer has more than {sizes[-1]}")
            if len({member.zone for member in members if member.zone}) > 1:
                notes.append(f"{one} {name} lies in several zones: {_nodes(members)}")
    parts_of = [placement for placement in ordered if is_ultraserver(placement.instance_type)]
    silent = [placement for placement in parts_of if not placement.clique and not placement.ultraserver_id]
    if silent:
        notes.append(
            f"nobody says which NVLink domain {_nodes(silent)} are in: a capacity block may hold several; "
            "their own nvidia-smi tells once a job or a health check ran there"
        )
    return notes


def _groups(placements: Iterable[Placement], key: str) -> dict[str, list[Placement]]:
    found: dict[str, list[Placement]] = {}
    for placement in placements:
        if name := getattr(placement, key):
            found.setdefault(name, []).append(placement)
    return found


def _nodes(placements: Iterable[Placement]) -> str:
    return shortened((placement.node for placement in placements), 120)
