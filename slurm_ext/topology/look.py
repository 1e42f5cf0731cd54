"""One look: where nodes sit, what Slurm has, and the smallest change between the two. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from slurm_ext.config.model import Settings
from slurm_ext.errors import FindingError, LackingError, UsageError
from slurm_ext.slurm import conf_file
from slurm_ext.slurm.hostlist import shortened
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.topology import keep
from slurm_ext.topology.build import build
from slurm_ext.topology.change import RECONFIGURE, Limits, Plan, Seen, plan
from slurm_ext.topology.change_model import rank
from slurm_ext.topology.discover import FROM_SLURM, Discovered
from slurm_ext.topology.memory import Memory
from slurm_ext.topology.model import Placement
from slurm_ext.topology.running import Running, seen
from slurm_ext.topology.written import Choice, Written, essence, written


class Look(NamedTuple):
    """What was seen and what is to be done: `text` is the whole file with its stamp, `digest` stands for what Slurm reads of it."""

    plan: Plan
    wanted: Written
    text: str
    digest: str
    seen: Seen
    memory: Memory
    placements: tuple[Placement, ...]
    notes: tuple[str, ...]


def choice_of(settings: Settings, format_: str) -> Choice:
    """Return how the configuration wants the file made."""
    own = settings.topology
    return Choice(format_, own.max_switches, own.block_size, own.capacity_blocks)


def limits_of(settings: Settings) -> Limits:
    """Return how far the configuration lets fmslurm go by itself."""
    return Limits(settings.topology.apply, settings.topology.min_interval_min * 60)


def look(
    slurm: Slurm,
    found: Running,
    places: Discovered,
    choice: Choice,
    held: Memory,
    limits: Limits,
    *,
    now: float,
) -> Look:
    """Return the smallest change. Raise UsageError where no such file can be made, FindingError where Slurm would stop at it.

    Raise LackingError where nobody but Slurm itself tells the places.
    """
    if places.origin == FROM_SLURM:
        raise LackingError(
            "only the running Slurm tells where nodes sit, which is no reason to change it",
            remedy="Set topology.source to ec2 or file; see the notes for why the others do not tell",
        )
    places, off = of_slurm(places, found)
    first = _look(slurm, found, places, choice, held, limits, off, now=now, away_too=True)
    if rank(first.plan.level) < rank(RECONFIGURE):
        return first
    # Slurm reads everything anew: nodes that went are told now, too.
    return _look(slurm, found, places, choice, held, limits, off, now=now, away_too=False, before=first.seen)


def of_slurm(places: Discovered, found: Running) -> tuple[Discovered, frozenset[str]]:
    """Return the places of the nodes that Slurm has, all of them, since one below no switch would never get a job; and those of
    which somebody says that they do not run: the source, by naming them without an instance, or Slurm."""
    named = {placement.node for placement in places.placements}
    notes = list(places.notes)
    missing = sorted(found.known - named)
    silent = [node for node in missing if node not in found.off]
    if silent:
        notes.append(f"nobody tells the place of {shortened(silent)}")
    if more := sorted(named - found.known):
        notes.append(f"Slurm has no nodes {shortened(more)}: left out")
    kept = [placement for placement in places.placements if placement.node in found.known]
    everybody = [*kept, *map(Placement, missing)]
    return places._replace(placements=everybody, notes=notes, unasked=places.unasked | set(silent)), frozenset(
        named | found.off
    )


def _look(
    slurm: Slurm,
    found: Running,
    places: Discovered,
    choice: Choice,
    held: Memory,
    limits: Limits,
    off: frozenset[str],
    *,
    now: float,
    away_too: bool,
    before: Seen | None = None,
) -> Look:
    kept = keep.keep(
        places.placements,
        held.placements,
        unasked=places.unasked,
        unheard=places.unheard,
        off=off,
        away_too=away_too,
    )
    wanted = made(kept.placements, choice, places.origin, found)
    digest = conf_file.digest(essence(wanted.text))
    # What runs is asked for once, unless other topologies are wanted.
    there = before if before is not None and before.paths.keys() == wanted.paths.keys() else seen(slurm, found, wanted)
    planned = plan(wanted, digest, there, held.past, limits, now=now, away=kept.away)
    trouble = [f"nothing is remembered: {held.trouble}"] if held.trouble else []
    notes = (
        *places.notes,
        *trouble,
        *kept.notes,
        *wanted.notes,
        *(f"{f.severity}: {f.reason} ({f.rule})" for f in wanted.findings),
    )
    return Look(planned, wanted, conf_file.stamped(wanted.text), digest, there, held, tuple(kept.placements), notes)


def made(placements: Iterable[Placement], choice: Choice, origin: str, found: Running) -> Written:
    """Return the file, held against the linter. Raise UsageError where it cannot be made, FindingError where it is fatal."""
    try:
        wanted = written(build(placements), choice, origin=origin, version=found.version)
    except ValueError as exc:
        raise UsageError(f"no topology: {exc}", remedy="See docs/guide/topology.md") from exc
    if fatal := [finding for finding in wanted.findings if finding.severity == "fatal"]:
        raise FindingError(f"the file would stop Slurm {found.version.text}: {fatal[0].reason}", remedy=fatal[0].remedy)
    return wanted


def noted(held: Memory, planned: Plan, digest: str, *, now: float) -> Memory:
    """Return what is to be remembered of a look: since when Slurm differs, and by what."""
    past = held.past
    if not planned.differs:
        return held._replace(past=past._replace(differs="", differs_since=0.0))
    since = past.differs_since if past.differs else now
    return held._replace(past=past._replace(differs=digest, differs_since=since))
