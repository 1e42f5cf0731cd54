"""Carry a change out: remembered and told first, the file whole or not at all, read back node by node, rolled back if refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from slurm_ext import command
from slurm_ext.config.model import Settings
from slurm_ext.errors import FmslurmError, LackingError, SlurmError
from slurm_ext.events import Event
from slurm_ext.slurm import conf_file
from slurm_ext.slurm.conf_file import Kept
from slurm_ext.slurm.journal import Journal
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.slurm.versions import has
from slurm_ext.topology import memory, running
from slurm_ext.topology.change import (
    FILE,
    LEVELS,
    MAX_UPDATES,
    NODE_UPDATE,
    RECONFIGURE,
    RESTART,
    Plan,
    Refusal,
    refused_key,
)
from slurm_ext.topology.drift import LEFT, Move, moves, words
from slurm_ext.topology.look import Look
from slurm_ext.topology.memory import Memory
from slurm_ext.topology.render_yaml import grouped
from slurm_ext.topology.written import DEFAULT

#: slurmctld may take so long (seconds) to be there again with what it read; large trees take minutes (budget.py).
UP_S = 180.0

#: A supervisor (systemd's Restart=) may have brought a slurmctld back by itself within this (seconds).
REVIVED_S = 10.0

#: A program that restarts slurmctld may take so long (seconds).
RESTART_S = 120.0

#: An answer that stays the same for so long (seconds) is the last one.
STEADY_S = 1.0

_PAUSE_S = 0.2


class Done(NamedTuple):
    """What became of a change. `copy`: where what was replaced lies; `up`: whether slurmctld answers afterwards."""

    ok: bool
    words: str
    copy: str = ""
    rolled_back: bool = False
    up: bool = True


class Site(NamedTuple):
    """What acts: Slurm, how slurmctld is restarted, where it is remembered and told."""

    slurm: Slurm
    settings: Settings
    journal: Journal
    event: Event
    clock: Callable[[], float] = time.time


def carry_out(site: Site, one: Look) -> Done:
    """Do what the plan of a look says, and return what became of it. Raise LackingError where nothing could be begun.

    Before anything is changed it is remembered that it may be, so that a crash in the middle is made good by the next look.
    """
    now = site.clock()
    level = one.plan.level
    past = one.memory.past._replace(unconfirmed=one.digest)
    if LEVELS.index(level) >= LEVELS.index(RECONFIGURE):
        past = past._replace(acted_at=now)
    held = one.memory._replace(past=past)
    memory.write(site.settings, held)
    event = site.event._replace(
        decision=level,
        reason=one.plan.why,
        evidence=tuple(evidence(one.plan)),
        data={**site.event.data, "file": one.seen.held.path},
    )
    if not site.journal.write(event._replace(phase="intent")):
        memory.write(site.settings, one.memory)
        raise LackingError(
            "the intent could be written nowhere, so nothing was done", remedy="Is the trail's folder full?"
        )
    kept: Kept | None = None
    try:
        if one.plan.writes:
            when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
            kept = conf_file.replace(one.seen.held, one.text, when=when)
    except FmslurmError as exc:
        memory.write(site.settings, one.memory)
        site.journal.write(event._replace(phase="failed", evidence=(*event.evidence, str(exc)), time=""))
        raise
    copy = kept.copy if kept else ""
    wrong = _done(site, one)
    if not wrong:
        past = held.past._replace(unconfirmed="", differs="", differs_since=0.0)
        forgot = _remember(site, Memory(past, {placement.node: placement for placement in one.placements}))
        site.journal.write(event._replace(phase="done", time=""))
        return Done(True, f"{one.plan.why}{forgot}", copy)
    site.journal.write(event._replace(phase="failed", evidence=(*event.evidence, wrong), time=""))
    done = _roll_back(site, one, kept, wrong)
    key = refused_key(one.digest, one.seen.version)
    count = held.past.refused[key].times + 1 if key in held.past.refused else 1
    refused = {**held.past.refused, key: Refusal(now, count, wrong[:500])}
    forgot = _remember(site, held._replace(past=held.past._replace(unconfirmed="", refused=refused)))
    site.journal.write(
        event._replace(
            event="topology.rolled-back", phase="done" if done.rolled_back else "failed", reason=done.words, time=""
        )
    )
    return done._replace(copy=copy, words=f"{done.words}{forgot}")


def evidence(plan: Plan) -> list[str]:
    """Return the lines of an event: which nodes go where."""
    return [line for found in plan.moves.values() for line in words(found)]


def _remember(site: Site, held: Memory) -> str:
    """Remember what was done; return what to add to its words where that fails: what is done is done."""
    try:
        memory.write(site.settings, held)
    except LackingError as exc:
        return f"; and it could not be remembered: {exc}"
    return ""


def _done(site: Site, one: Look) -> str:
    """Act and read back; return what is wrong, empty where nothing is.

    What Slurm has counts, and not what its command said: a large tree takes longer than a command waits for an answer.
    """
    said = ""
    try:
        _act(site, one)
    except FmslurmError as exc:
        said = str(exc)
    try:
        wrong = _read_back(site, one)
    except FmslurmError as exc:
        wrong = str(exc)
    return "; ".join(filter(None, (said, wrong))) if wrong else ""


def _act(site: Site, one: Look) -> None:
    level = one.plan.level
    if level == NODE_UPDATE:
        for nodes, place in one.plan.updates:
            site.slurm.set_topology(nodes, place)
    elif level == RECONFIGURE:
        site.slurm.reconfigure()
    elif level == RESTART:
        _restart(site)


def _restart(site: Site) -> None:
    argv: Sequence[str] = site.settings.topology.restart_command
    if not argv:
        raise LackingError("topology.restart_command is empty", remedy="Restart slurmctld by hand")
    result = command.run(list(argv), timeout_s=RESTART_S, env=command.clean_env())
    if not result.ok:
        raise LackingError(f"slurmctld cannot be restarted: {result.words()}", remedy="Restart it by hand")


def _read_back(site: Site, one: Look) -> str:
    """Return an empty text where Slurm has every node where it should be, else what is to be seen instead."""
    if one.plan.level == FILE:
        again = conf_file.look(one.seen.held.path)
        return "" if again.text == one.text else f"{again.path} has changed meanwhile"
    strict = LEVELS.index(one.plan.level) >= LEVELS.index(RECONFIGURE)
    wrong = _await_paths(site, one, one.wanted.paths, strict=strict)
    if wrong and strict and has(one.seen.version, "node-topology-update"):
        # What was said of a node while it ran beats the file (25.05, and later while a cloud node is up): say it anew.
        strings = {move.node: one.wanted.strings.get(move.node, "") for move in wrong}
        if all(strings.values()) and len(grouped(strings)) <= MAX_UPDATES:
            for nodes, place in grouped(strings):
                site.slurm.set_topology(nodes, place)
            wrong = _await_paths(site, one, one.wanted.paths, strict=strict)
    if not wrong:
        return ""
    return f"{len(wrong)} nodes sit elsewhere afterwards: {'; '.join(words(wrong, most=3))}"


def _await_paths(
    site: Site, one: Look, wanted: Mapping[str, Mapping[str, tuple[str, ...]]], *, strict: bool
) -> list[Move]:
    """Wait until Slurm has the paths that are wanted, and return what still differs. Raise SlurmError where it is not there.

    An answer that stays the same for a while is Slurm's last word: it reads all its files before it answers anybody. A slurmctld
    that builds a large tree answers nobody for minutes; one whose port refuses for a while is gone.
    """
    until = time.monotonic() + UP_S
    before: list[Move] | None = None
    since = gone_since = 0.0
    while True:
        now = time.monotonic()
        try:
            wrong = _differing(site, one, wanted, strict=strict)
        except SlurmError:
            refuses = one.plan.level != RESTART and running.refuses(one.seen.controllers)
            gone_since = (gone_since or now) if refuses else 0.0
            if now > until or (gone_since and now - gone_since > REVIVED_S):
                raise
            before = None
        else:
            if not wrong or (wrong == before and now - since > STEADY_S):
                return wrong
            if wrong != before:
                before, since = wrong, now
            if now > until:
                return wrong
        time.sleep(_PAUSE_S)


def _differing(
    site: Site, one: Look, wanted: Mapping[str, Mapping[str, tuple[str, ...]]], *, strict: bool
) -> list[Move]:
    found = []
    for name, paths in wanted.items():
        known = {node: path for node, path in paths.items() if node in one.seen.known}
        tree = any(len(path) > 1 for path in paths.values()) or (name == DEFAULT and one.wanted.format == "tree")
        there = running.placed(site.slurm, one.seen.version, name, tree=tree)
        found += [move for move in moves(known, there) if strict or move.kind != LEFT]
    return found


def _roll_back(site: Site, one: Look, kept: Kept | None, wrong: str) -> Done:
    """Put the file back and make Slurm have what it had; the file goes first, so that whatever starts slurmctld finds it."""
    try:
        if kept is not None:
            conf_file.restore(kept)
        if one.plan.level == NODE_UPDATE:
            _put_back(site, one)
        elif LEVELS.index(one.plan.level) >= LEVELS.index(RECONFIGURE):
            if _is_gone(site, one):
                _restart(site)
            elif kept is not None:
                site.slurm.reconfigure()
        up = _is_up(site, UP_S)
        left = _await_paths(site, one, one.seen.paths, strict=False) if up else []
    except FmslurmError as exc:
        return Done(False, f"{wrong}; and it could not be put back: {exc}", up=_is_up(site, REVIVED_S))
    if not up:
        return Done(False, f"{wrong}; the file is put back, and slurmctld does not answer", up=False)
    if left:
        return Done(False, f"{wrong}; the file is put back, and {len(left)} nodes still sit elsewhere in Slurm")
    return Done(False, f"{wrong}; all is as it was before", rolled_back=True)


def _put_back(site: Site, one: Look) -> None:
    """Say anew where the updated nodes were, in every topology that they were in."""
    moved = {move.node for found in one.plan.moves.values() for move in found}
    strings = {}
    for node in moved:
        parts = [f"{name}:{':'.join(paths[node])}" for name, paths in one.seen.paths.items() if paths.get(node)]
        if parts:
            strings[node] = ",".join(parts)
    for nodes, place in grouped(strings):
        site.slurm.set_topology(nodes, place)


def _is_gone(site: Site, one: Look) -> bool:
    """Wait until slurmctld answers, and say whether it is gone in place of that; one that is busy is waited for."""
    until = time.monotonic() + UP_S
    gone_since = 0.0
    while not site.slurm.ping():
        now = time.monotonic()
        gone_since = (gone_since or now) if running.refuses(one.seen.controllers) else 0.0
        if now > until or (gone_since and now - gone_since > REVIVED_S):
            return True
        time.sleep(_PAUSE_S)
    return False


def _is_up(site: Site, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while not site.slurm.ping():
        if time.monotonic() > until:
            return False
        time.sleep(_PAUSE_S)
    return True
