"""Carry a change out: remembered and told first, the file whole or not at all, read back node by node, rolled back if refused."""

from __future__ import annotations

import time

from slurm_ext.errors import FmslurmError, LackingError, SlurmError
from slurm_ext.slurm import conf_file
from slurm_ext.slurm.conf_file import Kept
from slurm_ext.slurm.versions import has
from slurm_ext.topology import memory
from slurm_ext.topology.back import PAUSE_S, UP_S, Done, Site, await_paths, restart, roll_back
from slurm_ext.topology.change import FILE, MAX_UPDATES, NODE_UPDATE, RECONFIGURE, RESTART, Plan, Refusal, refused_key
from slurm_ext.topology.change_model import rank
from slurm_ext.topology.drift import words
from slurm_ext.topology.look import Look
from slurm_ext.topology.memory import Memory, Undo
from slurm_ext.topology.render_yaml import grouped
from slurm_ext.topology.undisturbed import undisturbed

__all__ = ["Done", "Site", "carry_out", "evidence"]


def carry_out(site: Site, one: Look) -> Done:
    """Do what the plan of a look says, and return what became of it. Raise LackingError where nothing could be begun.

    Before anything is changed it is remembered that it may be, and how it is undone, so that a crash in the middle is made good by
    the next look. What asks this process to end is heard once there is an end.
    """
    with undisturbed():
        return _carry_out(site, one)


def _carry_out(site: Site, one: Look) -> Done:
    now = site.clock()
    when = conf_file.moment(now)
    path, writes = one.seen.held.path, one.plan.writes
    kept: Kept | None = conf_file.keep(one.seen.held, one.text, when=when) if writes else None
    past = one.memory.past._replace(unconfirmed=one.digest)
    if rank(one.plan.level) >= rank(RECONFIGURE):
        past = past._replace(acted_at=now)
    undo = Undo(path, conf_file.digest(one.text), kept.copy, one.seen.controllers) if kept is not None else None
    held = one.memory._replace(past=past, undo=undo)
    memory.write(site.settings, held)
    event = site.event._replace(
        decision=one.plan.level,
        reason=one.plan.why,
        evidence=tuple(evidence(one.plan)),
        data={**site.event.data, "file": path},
    )
    if not site.journal.write(event._replace(phase="intent")):
        _remember(site, one.memory)
        raise LackingError(
            "the intent could be written nowhere, so nothing was done", remedy="Is the trail's folder full?"
        )
    try:
        if kept is not None:
            conf_file.put(kept)
    except FmslurmError as exc:
        _remember(site, one.memory)
        site.journal.write(event._replace(phase="failed", evidence=(*event.evidence, str(exc)), time=""))
        raise
    wrong = _done(site, one)
    if not wrong:
        past = held.past._replace(unconfirmed="", differs="", differs_since=0.0)
        forgot = _remember(site, Memory(past, {placement.node: placement for placement in one.placements}))
        site.journal.write(event._replace(phase="done", time=""))
        return Done(True, f"{one.plan.why}{forgot}", kept.copy if kept else "")
    site.journal.write(event._replace(phase="failed", evidence=(*event.evidence, wrong), time=""))
    done = roll_back(site, one, kept, wrong)
    key = refused_key(one.digest, one.seen.version)
    times = held.past.refused[key].times + 1 if key in held.past.refused else 1
    refused = {**held.past.refused, key: Refusal(now, times, wrong[:500])}
    after = held.past._replace(unconfirmed="", refused=refused)
    forgot = _remember(site, held._replace(past=after, undo=None if done.up else held.undo))
    site.journal.write(
        event._replace(
            event="topology.rolled-back", phase="done" if done.rolled_back else "failed", reason=done.words, time=""
        )
    )
    return done._replace(copy=kept.copy if kept else "", words=f"{done.words}{forgot}")


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
    except LackingError as exc:  # nothing was restarted
        return str(exc)
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
        _restart_anew(site)


def _restart_anew(site: Site) -> None:
    """Restart slurmctld and wait until another one answers: some commands return before they act."""
    before = site.slurm.config().get("BOOT_TIME", "")
    restart(site.settings)
    until = time.monotonic() + UP_S
    while time.monotonic() < until:
        try:
            if site.slurm.config().get("BOOT_TIME", "") != before:
                return
        except SlurmError:
            pass
        time.sleep(PAUSE_S)
    raise LackingError(
        f"slurmctld was not started anew within {UP_S:.0f} s", remedy="Does topology.restart_command restart it?"
    )


def _read_back(site: Site, one: Look) -> str:
    """Return an empty text where Slurm has every node where it should be, else what is to be seen instead."""
    if one.plan.level == FILE:
        again = conf_file.look(one.seen.held.path)
        return "" if again.text == one.text else f"{again.path} has changed meanwhile"
    strict = rank(one.plan.level) >= rank(RECONFIGURE)
    wrong = await_paths(site, one, one.wanted.paths, strict=strict)
    if wrong and strict and has(one.seen.version, "node-topology-update"):
        # What was said of a node while it ran beats the file (25.05, and later while a cloud node is up): say it anew.
        strings = {move.node: one.wanted.strings.get(move.node, "") for move in wrong}
        if all(strings.values()) and len(grouped(strings)) <= MAX_UPDATES:
            for nodes, place in grouped(strings):
                site.slurm.set_topology(nodes, place)
            wrong = await_paths(site, one, one.wanted.paths, strict=strict)
    if not wrong:
        return ""
    return f"{len(wrong)} nodes sit elsewhere afterwards: {'; '.join(words(wrong, most=3))}"
