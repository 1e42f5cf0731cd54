"""What is remembered of nodes whose place cannot be told now: kept while they run, kept as long as nothing else changes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from slurm_ext.slurm.hostlist import shortened
from slurm_ext.topology.model import Placement


class Kept(NamedTuple):
    """The placements, those that were kept in words, and `away`: nodes with no instance, which keep their last place here."""

    placements: list[Placement]
    notes: tuple[str, ...]
    away: frozenset[str]


def keep(
    placements: Iterable[Placement],
    past: Mapping[str, Placement],
    *,
    unasked: Collection[str] = (),
    unheard: Collection[str] = (),
    off: Collection[str] | None = None,
    away_too: bool = True,
) -> Kept:
    """Return the placements with what was known of nodes that nobody could ask for now.

    An instance does not move while it runs: one that could not be asked for (`unasked`: throttled, refused) sits where it sat,
    and one whose NVLink domain nobody told (`unheard`) is in the domain that it was in. A node without an instance (of those in
    `off`, where somebody says which are) sits nowhere; with `away_too` it keeps its last place, since that it went is no reason to
    change anything: Slurm cannot use it before it comes back, and then its place is known.
    """
    found, silent, away = [], [], []
    for placement in placements:
        before = past.get(placement.node)
        is_off = off is None or placement.node in off
        if not placement.path and not placement.instance_id and placement.node not in unasked and is_off:
            away.append(placement.node)
            if away_too and before is not None:
                placement = placement._replace(
                    path=before.path,
                    zone=before.zone or placement.zone,
                    clique=before.clique,
                    ultraserver_id=before.ultraserver_id,
                    capacity_block_id=before.capacity_block_id,
                )
        elif before is not None and placement.instance_id in ("", before.instance_id):
            if placement.node in unasked and before.path and not placement.path:
                silent.append(placement.node)
                placement = before
            elif placement.node in unheard and not (placement.clique or placement.ultraserver_id):
                silent.append(placement.node)
                placement = placement._replace(
                    clique=before.clique,
                    ultraserver_id=before.ultraserver_id,
                    capacity_block_id=placement.capacity_block_id or before.capacity_block_id,
                )
        found.append(placement)
    notes = []
    if silent:
        notes.append(f"{shortened(silent, 160)}: not told now, and running: taken to sit where they sat")
    return Kept(found, tuple(notes), frozenset(away))
