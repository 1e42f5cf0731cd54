"""`fmslurm topology apply` and `watch`: make Slurm have where the nodes sit, by the smallest change that does."""

from __future__ import annotations

import difflib
import time
from typing import Any, NamedTuple

import click

from slurm_ext.cli.actor import actor
from slurm_ext.cli.node_options import AS_JSON, DRY_RUN
from slurm_ext.cli.output import say_json, say_text
from slurm_ext.cli.topology_source import chosen, discovered, reach, source_options
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.config.locate import trail_path
from slurm_ext.config.model import CHOICES, Settings, machine_name
from slurm_ext.errors import FindingError, FmslurmError, LackingError, PartlyDoneError, SlurmError
from slurm_ext.events import Event
from slurm_ext.shared import in_child
from slurm_ext.slurm import connect
from slurm_ext.slurm.journal import Journal
from slurm_ext.topology import memory
from slurm_ext.topology.apply import Done, Site, carry_out, evidence
from slurm_ext.topology.change import LEVELS, NODE_UPDATE, Limits, Plan
from slurm_ext.topology.discover import Discovered
from slurm_ext.topology.look import Look, choice_of, look, noted
from slurm_ext.topology.running import Running, running
from slurm_ext.topology.undisturbed import undisturbed
from slurm_ext.topology.watch import recovered, settled, tick

#: A reconfigure of a large tree takes minutes (seconds).
_TIMEOUT_S = 180.0

#: A look and all that may follow from it (seconds): EC2's three minutes, a change, and putting it back.
_LOOK_S = 1800.0

_BY = LEVELS[LEVELS.index(NODE_UPDATE) :]

_FORMAT = click.option(
    "-f",
    "--format",
    "format_",
    type=click.Choice(CHOICES["topology", "format"]),
    default=None,
    help="which file (topology.format)",
)


@click.command()
@source_options
@_FORMAT
@click.option("--by", type=click.Choice(_BY), help="how far it may go (default: topology.apply)")
@click.option("--now", "at_once", is_flag=True, help="do not wait for topology.min_interval_min, nor after a refusal")
@click.option(
    "--force", is_flag=True, help="replace a file of somebody else's (a copy stays), or try what Slurm refused"
)
@click.option("--accept-loss", is_flag=True, help="take it that the places of most running nodes are told no more")
@click.option("--reason", default="", help="why; it goes into the trail")
@DRY_RUN
@AS_JSON
def apply(
    format_: str | None,
    by: str | None,
    at_once: bool,
    force: bool,
    accept_loss: bool,
    reason: str,
    dry_run: bool,
    as_json: bool,
    **sources: Any,
) -> None:
    """Make Slurm have where the nodes sit: by nothing, node updates, a reconfigure or a restart, whichever is the least that does.

    The file is written whole or not at all, linted before, and each node's place read back; what Slurm refuses is put back.
    """
    settings = site_settings()
    slurm = connect(settings, timeout_s=_TIMEOUT_S)
    limits = Limits(
        by or settings.topology.apply,
        settings.topology.min_interval_min * 60,
        settle=False,
        force=force,
        accept_loss=accept_loss,
        at_once=at_once,
    )
    who = {"actor": actor().data(), "why": reason.strip()}
    event = Event("topology.change", room="topology", node=machine_name(), config=settings.source_hash[:12], data=who)
    site = Site(slurm, settings, Journal(trail_path(settings), settings.site.share, machine_name()), event)
    found = _running(site, format_ or settings.topology.format, dry_run=dry_run)
    places = discovered(settings, **sources)
    if dry_run:
        one = _look(site, found, places, limits)
        _say_plan(one, as_json, dry_run=True)
        return
    with memory.locked(settings):
        one = _look(site, found, places, limits)
        _refuse(one.plan)
        if not one.plan.differs:
            settled(settings, one)
            _say_plan(one, as_json, dry_run=False)
            return
        held = noted(one.memory._replace(trouble=""), one.plan, one.digest, now=time.time())
        done = carry_out(site, one._replace(memory=held))
    _say_done(one, done, as_json)


def _running(site: Site, format_: str, *, dry_run: bool) -> Running:
    """Return what runs; where slurmctld died of a change that was killed, it is brought back first."""
    try:
        return running(site.slurm, site.settings, format_)
    except SlurmError:
        if dry_run or not (said := recovered(site)):
            raise
        say_text(f"fmslurm: {said}", err=True)
        return running(site.slurm, site.settings, format_)


def _look(site: Site, found: Running, places: Discovered, limits: Limits) -> Look:
    held, choice = memory.read(site.settings), choice_of(site.settings, found.format)
    one = look(site.slurm, found, places, choice, held, limits, now=time.time())
    for note in one.notes[len(places.notes) :]:
        say_text(f"fmslurm: {note}", err=True)
    return one


def _refuse(plan: Plan) -> None:
    """Raise FindingError for a change that may not be made, or not yet."""
    if plan.blocked:
        raise FindingError(f"{plan.why}; nothing was changed: {plan.blocked}", remedy=plan.remedy)
    if plan.differs and plan.wait_until:
        at = time.strftime("%H:%M", time.localtime(plan.wait_until))
        raise FindingError(
            f"{plan.why}; nothing was changed: {plan.waits_for}", remedy=f"Not before {at}; --now does it now"
        )


def _say_plan(one: Look, as_json: bool, *, dry_run: bool) -> None:
    plan = one.plan
    if as_json:
        say_json(_data(one, dry_run=dry_run))
        return
    for line in evidence(plan):
        say_text(line)
    if dry_run and plan.writes and plan.differs:
        before, after = one.seen.held.text.splitlines(True), one.text.splitlines(True)
        say_text("".join(difflib.unified_diff(before, after, one.seen.held.path, "wanted")), nl=False)
    for nodes, place in plan.updates:
        say_text(f"scontrol update NodeName={nodes} Topology={place}")
    words = f"{plan.level}: {plan.why}" if plan.differs else f"nothing to do: {plan.why}"
    if plan.blocked:
        words += f"; blocked: {plan.blocked}. {plan.remedy}"
    elif plan.wait_until:
        words += f"; waits: {plan.waits_for}"
    say_text(words)
    if plan.later:
        say_text(plan.later)


def _say_done(one: Look, done: Done, as_json: bool) -> None:
    if as_json:
        say_json({**_data(one, dry_run=False), "done": done._asdict()})
    elif done.ok:
        for line in evidence(one.plan):
            say_text(line)
        say_text(f"{one.plan.level} done: {done.words}" + (f"; what was there: {done.copy}" if done.copy else ""))
    if not done.ok:
        remedy = "See `fmslurm events --event topology.change`"
        if not done.up:
            raise LackingError(done.words, remedy="Start slurmctld, and see its log")
        raise (
            FindingError(done.words, remedy=remedy) if done.rolled_back else PartlyDoneError(done.words, remedy=remedy)
        )
    if one.plan.later:
        raise PartlyDoneError("the file is written, and Slurm does not read it yet", remedy=one.plan.later)


def _data(one: Look, *, dry_run: bool) -> dict[str, Any]:
    plan = one.plan._asdict()
    plan["moves"] = {name: [move._asdict() for move in found] for name, found in one.plan.moves.items()}
    return {"dry_run": dry_run, "file": one.seen.held.path, "format": one.wanted.format, "digest": one.digest, **plan}


@click.command()
@source_options
@click.option("--once", is_flag=True, help="look once and end; exit code 1 where nobody could look, or a change failed")
def watch(once: bool, **sources: Any) -> None:
    """Look again and again whether nodes sit where Slurm has them, and mend it as far as mode.topology and topology.apply allow.

    Runs as fmslurm-topology.service where slurmctld runs; one line for each look that says something new.
    """
    before: tuple[object, ...] = ()
    while True:
        seen = _looked(sources) if once else _in_child(sources)
        for note in seen.notes if seen.notes != before[1:] else ():
            say_text(f"fmslurm: {note}", err=True)
        if (seen.words,) != before[:1] or once:
            say_text(seen.words)
        before = (seen.words, *seen.notes)
        if once:
            if seen.failed:
                raise FindingError("the look failed, or the change")
            return
        time.sleep(seen.pause_s)


class _Seen(NamedTuple):
    """What came of a look, and after how many seconds the next is due."""

    words: str
    failed: bool
    notes: tuple[str, ...] = ()
    pause_s: float = Settings().topology.watch_interval_min * 60


def _looked(sources: dict[str, Any]) -> _Seen:
    try:
        settings = site_settings()
        slurm = connect(settings, timeout_s=_TIMEOUT_S)
        found = tick(settings, slurm, chosen(settings, **sources), reach(settings), trail_path(settings))
    except FmslurmError as exc:
        return _Seen(f"not looked: {exc}", True)
    return _Seen(found.words, found.failed, found.notes, settings.topology.watch_interval_min * 60)


def _in_child(sources: dict[str, Any]) -> _Seen:
    """Look in a child: what boto3 keeps for each client is gone with it, and a look that hangs ends."""
    # Whoever stops the watch waits until a change that has begun is finished, or put back.
    with undisturbed():
        found = in_child(lambda: list(_looked(sources)), _LOOK_S)
    if found is None:
        return _Seen(f"not looked: it came to no end within {_LOOK_S / 60:.0f} min, or broke off", True)
    words, failed, notes, pause_s = found
    return _Seen(words, failed, tuple(notes), pause_s)
