"""The watch: look, and where mode and topology.apply allow it, make Slurm have what is so. One tick at a time; the trail hears
of each difference once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from slurm_ext import shared
from slurm_ext.config.model import Settings, machine_name
from slurm_ext.config.modes import effective_mode
from slurm_ext.errors import FmslurmError
from slurm_ext.events import Event
from slurm_ext.slurm.journal import Journal
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.topology import memory
from slurm_ext.topology.apply import Site, carry_out, evidence
from slurm_ext.topology.discover import discover
from slurm_ext.topology.look import Look, choice_of, limits_of, look, noted
from slurm_ext.topology.reach import Choice, Reach
from slurm_ext.topology.running import running


class Tick(NamedTuple):
    """One tick in words; `changed` where something was done or refused, `failed` where nobody could look."""

    words: str
    changed: bool = False
    failed: bool = False


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
    try:
        with memory.locked(settings):
            return _tick(settings, slurm, sources, reach, trail, mode, why, clock)
    except FmslurmError as exc:
        return Tick(f"not looked: {exc}", failed=True)


def _tick(
    settings: Settings,
    slurm: Slurm,
    sources: Choice,
    reach: Reach,
    trail: str,
    mode: str,
    why: str,
    clock: Callable[[], float],
) -> Tick:
    found = running(slurm, settings, settings.topology.format)
    places = discover(settings, sources, reach)
    held = memory.read(settings)
    one = look(slurm, found, places, choice_of(settings, found.format), held, limits_of(settings), now=clock())
    held = noted(held, one.plan, one.digest, now=clock())
    event = Event("topology.drift", room="topology", node=machine_name(), config=settings.source_hash[:12])
    site = Site(slurm, settings, Journal(trail, settings.site.share, machine_name()), event, clock)
    if not one.plan.differs:
        _forget(settings, held, one)
        return Tick(f"nothing to do: {one.plan.why}" + (f". {one.plan.later}" if one.plan.later else ""))
    if mode == "enforce" and one.plan.acts:
        done = carry_out(site._replace(event=event._replace(event="topology.change")), one._replace(memory=held))
        return Tick(
            f"{one.plan.level} {'done' if done.ok else 'failed'}: {done.words}", changed=True, failed=not done.ok
        )
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
    return Tick(f"{plan.why}: would {plan.level}; not done: {reason}")


def _forget(settings: Settings, held: memory.Memory, one: Look) -> None:
    """Remember that all is well, and where: what sits in Slurm now is what may be kept later."""
    placements = {placement.node: placement for placement in one.placements}
    past = held.past
    if past.unconfirmed == one.digest:
        past = past._replace(unconfirmed="")
    memory.looked(settings, held._replace(past=past, placements=placements, said=""))
