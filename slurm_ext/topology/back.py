"""Read back where Slurm has the nodes, and put back what it did not take: a file, its places, and a slurmctld that is gone."""

from __future__ import annotations

import os
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
from slurm_ext.topology import running
from slurm_ext.topology.change_model import NODE_UPDATE, RECONFIGURE, RESTART, rank
from slurm_ext.topology.drift import LEFT, Move, moves
from slurm_ext.topology.look import Look
from slurm_ext.topology.memory import Undo
from slurm_ext.topology.render_yaml import grouped
from slurm_ext.topology.written import DEFAULT

#: slurmctld may take so long (seconds) to be there again with what it read; large trees take minutes (budget.py).
UP_S = 180.0

#: A supervisor (systemd's Restart=) may have brought a slurmctld back by itself within this (seconds).
REVIVED_S = 10.0

#: A slurmctld that was restarted may not listen for so long (seconds).
STARTING_S = 60.0

#: A program that restarts slurmctld may take so long (seconds).
RESTART_S = 120.0

#: An answer that stays the same for so long (seconds) is the last one.
STEADY_S = 1.0

PAUSE_S = 0.2

Paths = Mapping[str, Mapping[str, tuple[str, ...]]]


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


def restart(settings: Settings) -> None:
    """Run topology.restart_command. Raise LackingError where it fails, or there is none."""
    argv: Sequence[str] = settings.topology.restart_command
    if not argv:
        raise LackingError("topology.restart_command is empty", remedy="Restart slurmctld by hand")
    result = command.run(list(argv), timeout_s=RESTART_S, env=command.clean_env())
    if not result.ok:
        raise LackingError(f"slurmctld cannot be restarted: {result.words()}", remedy="Restart it by hand")


class _Gone:
    """Counts for how long nobody has listened where slurmctlds do."""

    def __init__(self, controllers: Sequence[tuple[str, int]], most_s: float) -> None:
        self._controllers, self._most_s, self._since = controllers, most_s, 0.0

    def for_good(self) -> bool:
        """Look, and say whether nobody has listened for too long."""
        now = time.monotonic()
        self._since = (self._since or now) if running.refuses(self._controllers) else 0.0
        return bool(self._since) and now - self._since > self._most_s


def await_paths(site: Site, one: Look, wanted: Paths, *, strict: bool) -> list[Move]:
    """Wait until Slurm has the paths that are wanted, and return what still differs. Raise SlurmError where it is not there.

    An answer that stays the same for a while is Slurm's last word: it reads all its files before it answers anybody. A slurmctld
    that builds a large tree answers nobody for minutes; one whose port refuses for a while is gone.
    """
    until = time.monotonic() + UP_S
    gone = _Gone(one.seen.controllers, STARTING_S if one.plan.level == RESTART else REVIVED_S)
    before: list[Move] | None = None
    since = 0.0
    while True:
        try:
            wrong = _differing(site, one, wanted, strict=strict)
        except SlurmError:
            if time.monotonic() > until or gone.for_good():
                raise
            before = None
        else:
            now = time.monotonic()
            if not wrong or now > until or (wrong == before and now - since > STEADY_S):
                return wrong
            if wrong != before:
                before, since = wrong, now
        time.sleep(PAUSE_S)


def _differing(site: Site, one: Look, wanted: Paths, *, strict: bool) -> list[Move]:
    found = []
    for name, paths in wanted.items():
        known = {node: path for node, path in paths.items() if node in one.seen.known}
        tree = any(len(path) > 1 for path in paths.values()) or (name == DEFAULT and one.wanted.format == "tree")
        there = running.placed(site.slurm, one.seen.version, name, tree=tree)
        found += [move for move in moves(known, there) if strict or move.kind != LEFT]
    return found


def roll_back(site: Site, one: Look, kept: Kept | None, wrong: str) -> Done:
    """Put the file back and make Slurm have what it had; the file goes first, so that whatever starts slurmctld finds it."""
    said: list[str] = []
    try:
        if kept is not None and (theirs := conf_file.restore(kept)):
            said.append(f"what somebody else wrote meanwhile is {theirs}")
    except FmslurmError as exc:
        said.append(str(exc))
    try:
        if one.plan.level == NODE_UPDATE:
            _put_back(site, one)
        elif rank(one.plan.level) >= rank(RECONFIGURE):
            if _is_gone(site, one.seen.controllers):
                restart(site.settings)
                said.append("slurmctld was gone, and was restarted")
            elif kept is not None:
                site.slurm.reconfigure()
    except FmslurmError as exc:
        said.append(str(exc))  # what Slurm has counts, below
    up = is_up(site.slurm, UP_S)
    left: list[Move] = []
    if up:
        try:
            left = await_paths(site, one, one.seen.paths, strict=False)
        except FmslurmError as exc:
            said.append(str(exc))
            up = is_up(site.slurm, REVIVED_S)
    file = conf_file.look(one.seen.held.path).text == one.seen.held.text
    words = "; ".join(
        (
            wrong,
            *said,
            *([] if file else [f"{one.seen.held.path} is not what it was"]),
            *([f"{len(left)} nodes still sit elsewhere in Slurm"] if left else []),
            *([] if up else ["slurmctld does not answer"]),
        )
    )
    if file and up and not left:
        return Done(False, f"{words}; all is as it was before", rolled_back=True)
    return Done(False, words, up=up)


def recover(site: Site, undo: Undo) -> str:
    """Make good what a change that was killed in the middle left: a slurmctld that died of the file, put back what it had.

    Return what was done in words; empty where nobody is missing. Raise LackingError where it cannot be done.
    """
    if not running.refuses(undo.controllers) or not _is_gone(site, undo.controllers):
        return ""
    now = conf_file.look(undo.path)
    said = "slurmctld was gone after a change that had no end"
    if conf_file.digest(now.text) == undo.written:
        if undo.copy:
            conf_file.put(Kept(now, "", conf_file.look(undo.copy).text))
        else:
            os.unlink(undo.path)
        said += f"; {undo.path} is put back"
    restart(site.settings)
    if not is_up(site.slurm, UP_S):
        raise LackingError(f"{said}; slurmctld does not answer all the same", remedy="Start it, and see its log")
    return f"{said}; slurmctld is restarted"


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


def _is_gone(site: Site, controllers: Sequence[tuple[str, int]]) -> bool:
    """Wait until slurmctld answers, and say whether it is gone in place of that; one that is busy is waited for, and not gone."""
    until = time.monotonic() + UP_S
    gone = _Gone(controllers, REVIVED_S)
    while not site.slurm.ping():
        if gone.for_good():
            return True
        if time.monotonic() > until:
            return False
        time.sleep(PAUSE_S)
    return False


def is_up(slurm: Slurm, within_s: float) -> bool:
    """Say whether slurmctld answers within so many seconds."""
    until = time.monotonic() + within_s
    while not slurm.ping():
        if time.monotonic() > until:
            return False
        time.sleep(PAUSE_S)
    return True
