"""`fmslurm mode|off|on`: how far each room may go, and the switch for three in the morning."""

from __future__ import annotations

import getpass
import os
import re
import time

import click

from slurm_ext import events, shared
from slurm_ext.cli.actor import actor
from slurm_ext.cli.config import push_settings
from slurm_ext.cli.output import say_json, say_table, say_text
from slurm_ext.cli.reasons import said
from slurm_ext.config import yaml_file
from slurm_ext.config.edit import set_value
from slurm_ext.config.locate import config_path, locate, trail_path
from slurm_ext.config.model import MODES, ROOMS, Settings
from slurm_ext.config.modes import ALL, Off, effective_mode
from slurm_ext.errors import LackingError, UsageError
from slurm_ext.files import write_atomic

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_SPAN_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
ROOM = click.Choice([*ROOMS])


@click.group(invoke_without_command=True)
@click.pass_context
def mode(context: click.Context) -> None:
    """Show and set how far each room may go: off, shadow, warn, enforce. Without a command: show."""
    if context.invoked_subcommand is None:
        context.invoke(show)


@mode.command()
@click.option("-w", "--node", default="", help="As it holds on this node.")
@click.option("-p", "--partition", default="", help="As it holds in this partition.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(node: str, partition: str, as_json: bool) -> None:
    """Show each room's mode, what holds now, and why."""
    settings = locate().settings
    switches = shared.switches(settings.site.share) if settings.site.share else ()
    rows = []
    for room in ROOMS:
        now, why = effective_mode(settings, room, node=node, partition=partition, off=switches or (), now=time.time())
        if not (node or partition) and getattr(settings.mode, room) == "enforce" and now == "shadow":
            now, why = "enforce", "on what mode.partitions and mode.canary name; elsewhere shadow"
        rows.append({"room": room, "mode": getattr(settings.mode, room), "now": now, "why": why})
    if as_json:
        say_json({"rooms": rows, "switches_known": switches is not None})
    else:
        say_table(("ROOM", "MODE", "NOW", "WHY"), [tuple(row.values()) for row in rows])
        if switches is None:
            say_text(f"{settings.site.share} does not answer: rooms may be switched off there", err=True)


@mode.command("set")
@click.argument("room", type=ROOM)
@click.argument("rung", metavar="|".join(MODES), type=click.Choice(MODES))
@click.option("--dry-run", is_flag=True, help="Say what would change.")
@click.option("--reason", default="", help="Why, for the trail.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def set_mode(room: str, rung: str, dry_run: bool, reason: str, as_json: bool) -> None:
    """Write a room's mode into fmslurm.yaml, everything else in it left as it is, and push it to the nodes."""
    path = config_path()
    if not path:
        raise LackingError("there is no fmslurm.yaml to change", remedy="Write one, or set FMSLURM_CONFIG")
    before = yaml_file.load(path)
    text = yaml_file.read_bytes(path).decode()
    was, generation = getattr(before.mode, room), 0
    if not dry_run:
        told = events.Event(
            "mode.set", room=room, reason=reason or "no reason given", data={"was": was, "mode": rung, **who()}
        )
        try:
            events.append(trail_path(before), told._replace(phase="intent"), durable=True)
            if was != rung:
                changed = set_value(text, "mode", room, rung)
                write_atomic(os.path.realpath(path), changed, mode=os.stat(path).st_mode & 0o7777)
        except OSError as exc:
            raise LackingError(f"{path} cannot be changed: {exc.strerror}", remedy="Run it as root") from exc
        after = yaml_file.load(path)
        generation = push_settings(after, path).generation
        events.append(trail_path(after), told._replace(phase="done", config=after.source_hash[:12]))
    else:
        set_value(text, "mode", room, rung)
    if as_json:
        say_json({"room": room, "was": was, "mode": rung, "dry_run": dry_run, "file": path, "generation": generation})
    else:
        said = "would be" if dry_run else "is"
        say_text(f"{room} {said} {rung} (was {was})" + (f", pushed as generation {generation}" if generation else ""))


@click.command()
@click.argument("room", required=False, default=ALL, type=click.Choice([*ROOMS, ALL]))
@click.option("--for", "span", default="2h", show_default=True, metavar="SPAN", help="For how long: 30m, 2h, 1d.")
@click.option("--reason", required=True, help="Why; every job's trail shows it.")
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def off(room: str, span: str, reason: str, dry_run: bool, as_json: bool) -> None:
    """Stop ROOM (default: all) for a while, on every node, with nothing restarted: each hook and daemon looks at its next run."""
    settings = _settings()
    seconds = span_s(span)
    reason = said(reason)
    switch = Off(room, round(time.time() + seconds, 3), reason, caller())
    _throw(settings, switch, dry_run=dry_run)
    if as_json:
        say_json({"room": room, "until": switch.until, "reason": reason, "by": switch.by, "dry_run": dry_run})
    else:
        until = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(switch.until))
        say_text(f"{room} {'would be' if dry_run else 'is'} off until {until}; `fmslurm on{_room(room)}` undoes it")


@click.command()
@click.argument("room", required=False, default=ALL, type=click.Choice([*ROOMS, ALL]))
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def on(room: str, dry_run: bool, as_json: bool) -> None:
    """Undo `off` for ROOM; without ROOM for every room."""
    settings = _settings()
    share = settings.site.share
    known = shared.switches(share)
    if known is None:
        raise _unreachable(share)
    mine = [switch.room for switch in known if room in (ALL, switch.room)]
    if not dry_run:
        for name in mine:
            if shared.clear_switch(share, name) is None:
                raise _unreachable(share)
            told = events.Event("mode.on", room=name, reason="the off switch is taken back", phase="done")
            _tell(settings, told._replace(data=who()))
    others = [switch for switch in known if switch.room == ALL and room != ALL and time.time() < switch.until]
    if as_json:
        say_json({"room": room, "cleared": mine, "dry_run": dry_run, "still_off_by_all": bool(others)})
        return
    say_text(f"{'would clear' if dry_run else 'cleared'}: {', '.join(mine)}" if mine else f"{room} was not off")
    if others:
        say_text("every room is off, this one too: `fmslurm on` undoes that", err=True)


def _settings() -> Settings:
    """Return the site's settings; a mistake elsewhere in fmslurm.yaml must not be in the way of the switch."""
    try:
        return locate().settings
    except yaml_file.InvalidSettingsError:
        path = config_path()
        parsed = yaml_file.parse(yaml_file.read_bytes(path))
        if not parsed.settings.site.share or any(problem.key.startswith("site") for problem in parsed.problems):
            raise
        say_text(f"{path} has mistakes, see `fmslurm config check`; the switch works all the same", err=True)
        return parsed.settings


def _throw(settings: Settings, switch: Off, *, dry_run: bool) -> None:
    share = settings.site.share
    told = events.Event(
        "mode.off",
        room=switch.room,
        reason=switch.reason,
        dry_run=dry_run,
        phase="intent",
        data={"until": events.stamp(switch.until), **who(), "by": switch.by},
    )
    if dry_run:
        if shared.switches(share) is None:
            raise _unreachable(share)
        return
    # The switch comes first and its event after: at three in the morning a full log disk must not be in the way.
    if not shared.throw_switch(share, switch):
        raise _unreachable(share)
    _tell(settings, told._replace(phase="done"))


def _tell(settings: Settings, event: events.Event) -> None:
    try:
        events.append(trail_path(settings), event)
    except OSError as exc:
        say_text(f"done, but not written to the trail: {exc}", err=True)


def _unreachable(share: str) -> LackingError:
    if not share:
        return LackingError("site.share is empty, so no switch reaches the nodes", remedy="Set site.share")
    return LackingError(f"{share} does not answer or may not be written", remedy="Run it as root where it is mounted")


def _room(room: str) -> str:
    return "" if room == ALL else f" {room}"


def span_s(text: str) -> float:
    """Return seconds for `30m`, `2h`, `1d`. Raise UsageError for other text, for nothing, and for more than 30 days."""
    found = _SPAN.fullmatch(text.strip())
    seconds = float(found.group(1)) * _SPAN_S[found.group(2)] if found else 0.0
    if not 0 < seconds <= 30 * 86_400:
        raise UsageError(f"{text!r} is no span: expected 30m, 2h or 1d, at most 30d")
    return seconds


def who() -> dict[str, object]:
    """Return who runs the command, as events hold it: a name, and all that the machine knows of the person."""
    return {"by": caller(), "actor": actor().data()}


def caller() -> str:
    """Return who runs the command: behind sudo the person, not root."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
