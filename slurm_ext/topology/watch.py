"""The watch: look, and where mode and topology.apply allow it, make Slurm have what is so. One tick at a time; the trail hears
of each difference once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from slurm_ext import shared
from slurm_ext.config.model import Settings, machine_name
from slurm_ext.config.modes import effective_mode
from slurm_ext.errors import FmslurmError, SlurmError
from slurm_ext.events import Event
from slurm_ext.slurm.journal import Journal
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.topology import memory
from slurm_ext.topology.apply import Site, carry_out, evidence
from slurm_ext.topology.back import recover
from slurm_ext.topology.discover import Discovered, discover
from slurm_ext.topology.look import Look, choice_of, limits_of, look, noted
from slurm_ext.topology.reach import Choice, Reach
from slurm_ext.topology.running import Running, running
from slurm_ext.topology.undisturbed import undisturbed


class Tick(NamedTuple):
    """One tick in words; `failed` where nobody could look, or a change failed; `notes`: what was odd on the way."""

    words: str
    failed: bool = False
    notes: tuple[str, ...] = ()


def tick(
    settings: Settings,
    slurm: Slurm,
    sources: Choice,
    reach: Reach,
    trail: str,
    *,
    clock: Callable[[], float] = time.time,
) -> Tick:
    """Look once and act where that is allowed. Never raises for what the world does."""
    now = clock()
    off = shared.switches(settings.site.share)
    if off is None and settings.site.share:
        return Tick("off: the share does not answer, and a switch may lie there", failed=True)
    mode, why = effective_mode(settings, "topology", off=off or (), now=now)
    if mode == "off":
        return Tick(f"off: {why}")
    event = Event("topology.drift", room="topology", node=machine_name(), config=settings.source_hash[:12])
    site = Site(slurm, settings, Journal(trail, settings.site.share, machine_name()), event, clock)
    try:
        try:
            found = running(slurm, settings, settings.topology.format)
            places = discover(settings, sources, reach)
        except SlurmError as exc:
            if mode != "enforce" or not (done := recovered(site)):
                raise
            return Tick(f"{done} (it had said: {exc})")
        with memory.locked(settings):
            return _tick(site, found, places, mode, why)
    except FmslurmError as exc:
        return Tick(f"not looked: {exc}", failed=True)


def recovered(site: Site) -> str:
    """Make good what a change that was killed left, where slurmctld does not answer; return what was done, empty for nothing."""
    with memory.locked(site.settings):
        held = memory.read(site.settings)
        if held.undo is None:
            return ""
        with undisturbed():
            said = recover(site, held.undo)
            if said:
                event = site.event._replace(event="topology.rolled-back", phase="done", reason=said)
                site.journal.write(event)
                memory.write(site.settings, held._replace(undo=None, past=held.past._replace(unconfirmed="")))
        return said


def _tick(site: Site, found: Running, places: Discovered, mode: str, why: str) -> Tick:
    settings, clock = site.settings, site.clock
    held = memory.read(settings)
    one = look(site.slurm, found, places, choice_of(settings, found.format), held, limits_of(settings), now=clock())
    held = noted(held._replace(trouble=""), one.plan, one.digest, now=clock())
    more = f". {one.plan.later}" if one.plan.later else ""
    if not one.plan.differs:
        _forget(settings, held, one)
        return Tick(f"nothing to do: {one.plan.why}{more}", notes=one.notes)
    if mode == "enforce" and one.plan.acts:
        event = site.event._replace(event="topology.change")
        done = carry_out(site._replace(event=event), one._replace(memory=held))
        words = f"{one.plan.level} {'done' if done.ok else 'failed'}: {done.words}{more}"
        return Tick(words, not done.ok, one.notes)
    return _told(site, one, held, mode, why)


def _told(site: Site, one: Look, held: memory.Memory, mode: str, why: str) -> Tick:
    """Say once what differs, and why nothing is done about it."""
    plan = one.plan
    if mode != "enforce":
        reason = why
    elif plan.blocked:
        reason = f"{plan.blocked}. {plan.remedy}"
    else:
        reason = f"waiting for {plan.waits_for}"
    said = f"{one.digest} {plan.level} {reason}"
    waits = mode == "enforce" and not plan.blocked  # it will be told when it is done
    if said != held.said and not waits:
        held = held._replace(said=said)
        site.journal.write(
            site.event._replace(
                decision=f"would {plan.level}",
                reason=f"{plan.why}; not done: {reason}",
                evidence=tuple(evidence(plan)),
                dry_run=mode != "enforce",
                data={"mode": mode},
            )
        )
    memory.looked(site.settings, held)
    return Tick(f"{plan.why}: would {plan.level}; not done: {reason}", notes=one.notes)


def _forget(settings: Settings, held: memory.Memory, one: Look) -> None:
    """Remember that all is well, and where: what sits in Slurm now is what may be kept later."""
    placements = {placement.node: placement for placement in one.placements}
    past = held.past._replace(unconfirmed="")
    memory.looked(settings, held._replace(past=past, placements=placements, said="", undo=None))


def settled(settings: Settings, one: Look) -> None:
    """Remember a look of a person's that found nothing to do."""
    _forget(settings, noted(one.memory._replace(trouble=""), one.plan, one.digest, now=time.time()), one)
