"""Install and uninstall, step by step, each step safe to repeat: files, configuration, Slurm, daemons - and back."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from slurm_ext.config import snapshot
from slurm_ext.config.model import ROOMS, Settings
from slurm_ext.config.modes import ALL
from slurm_ext.errors import FmslurmError, LackingError
from slurm_ext.files import write_atomic
from slurm_ext.site import apply, manifest
from slurm_ext.site.apply import Change
from slurm_ext.site.manifest import Manifest
from slurm_ext.site.model import Conflict, Entry, Plan
from slurm_ext.site.plan import EMPTY_FRAGMENT, GPUS, PLACES
from slurm_ext.slurm.protocol import Slurm

#: slurmd takes a new configuration in after `scontrol reconfigure` has returned; a prolog that begins in between still
#: goes by the old one, so its folder stays filled for so long (seconds).
SETTLE_S = 3.0

Say = Callable[[str], None]


class Daemons(Protocol):
    """Whoever keeps our daemons running here: systemd, or a lab."""

    def start(self, *, anew: bool) -> list[str]:
        """Start what is not running, with `anew` also restart what is, and return the names of all."""

    def stop(self) -> list[str]:
        """Stop what is running and return names."""


class Installed(NamedTuple):
    """What install did: changes on disk, generation pushed (0: none was), daemons started, and whether Slurm uses the hooks."""

    version: str
    changes: tuple[Change, ...]
    generation: int
    daemons: tuple[str, ...]
    active: bool


class Removed(NamedTuple):
    """What uninstall left behind, and why."""

    left: tuple[Conflict, ...]
    daemons: tuple[str, ...]


def install(settings: Settings, plan: Plan, known: Manifest, slurm: Slurm, daemons: Daemons, say: Say) -> Installed:
    """Put everything in place. Call it only where apply.conflicts found nothing.

    Raise FmslurmError or OSError where a step fails; what is done by then is in the manifest, and a second call goes on.
    """
    path = manifest.manifest_path(settings)
    done, changes = apply.apply(plan, known, path)
    changed = [change for change in changes if change.what != "keep"]
    say(f"files: {len(changed)} of {len(changes)} changed, release {done.version}")
    generation = push(settings)
    if generation:
        say(f"configuration: generation {generation} is on {settings.site.share}")
    hooks = _hooks(plan)
    active = uses(slurm, hooks)
    # Ended after the files and before this, an earlier install left Slurm and daemons with what was there before.
    unsettled = known.settled != done.version
    if plan.includes_fragment and (not active or unsettled or any(change.path == plan.fragment for change in changed)):
        slurm.reconfigure()
        active = _wait_for(lambda: uses(slurm, hooks), timeout_s=15.0)
    say(f"Slurm: {'runs the hooks' if active else 'does not run the hooks yet'}")
    started = daemons.start(anew=bool(changed) or unsettled)
    manifest.save(path, done._replace(settled=done.version))
    say(f"daemons: {', '.join(started) if started else 'none'}")
    return Installed(done.version, tuple(changes), generation, tuple(started), active)


def push(settings: Settings) -> int:
    """Hand the settings to the nodes unless they have them already; return the generation, 0 where there is no share."""
    share = settings.site.share
    if not share or not settings.source_hash:
        return 0
    try:
        there = snapshot.read(os.path.join(share, snapshot.SNAPSHOT_FILE))
    except FmslurmError:
        there = Settings()
    if there.generation and there == settings._replace(generation=there.generation):
        return there.generation
    return snapshot.push(settings, share).generation


def uses(slurm: Slurm, hooks: str) -> bool:
    """Say whether the running controller has our prolog folder as Prolog."""
    return hooks in slurm.config().get("Prolog", "")


def _hooks(plan: Plan) -> str:
    return next(os.path.dirname(item.path) for item in plan.items if item.path.endswith("/prolog.d/00-keep")) + "/"


def _wait_for(true: Callable[[], bool], *, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def uninstall(
    settings: Settings,
    known: Manifest,
    slurm: Slurm | None,
    daemons: Daemons,
    say: Say,
    *,
    included: bool,
    settle_s: float = SETTLE_S,
) -> Removed:
    """Take out what install put in: Slurm's lines first, then daemons, then files; the manifest goes last.

    `slurm` is None where no controller is to be told (a node); `included` says whether slurm.conf still includes our
    fragment, which then stays as a comment. Trails, ledger and evidence are records and stay.
    Raise LackingError where Slurm still uses the hooks afterwards: then no file of theirs is touched.
    """
    fragment = known.entries.get(known.fragment)
    hooks = next((os.path.dirname(path) for path in known.entries if path.endswith("/prolog.d/00-keep")), "")
    if fragment is not None:
        _empty(fragment)
    if slurm is not None and hooks and uses(slurm, hooks + "/"):
        slurm.reconfigure()
        if not _wait_for(lambda: not uses(slurm, hooks + "/"), timeout_s=15.0):
            raise LackingError(
                f"Slurm still has {hooks} as Prolog",
                remedy="Take that line out of slurm.conf, then run uninstall again",
            )
        time.sleep(settle_s)
        say("Slurm: runs the hooks no more")
    stopped = daemons.stop()
    say(f"daemons: {', '.join(stopped) + ' stopped' if stopped else 'none'}")
    path = manifest.manifest_path(settings)
    switches = [f"{snapshot.OFF_FOLDER}/{room}.json" for room in (ALL, *ROOMS)]
    for name in (snapshot.SNAPSHOT_FILE, snapshot.HEARTBEAT_FILE, snapshot.TYPES_FILE, *switches):
        _forget(os.path.join(settings.site.share, name) if settings.site.share else "")
    for told in (PLACES, GPUS) if settings.site.share else ():
        folder = os.path.join(settings.site.share, told)
        with contextlib.suppress(OSError):
            for name in [name for name in os.listdir(folder) if name.endswith(".json")]:
                _forget(os.path.join(folder, name))
    if fragment is not None and fragment.made and not included:
        _forget(fragment.path)
    above = {entry.path for entry in known.entries.values() if f"{path}/".startswith(f"{entry.path}/")}
    left = apply.remove(known.entries.values(), keep=lambda entry: entry.path in above or entry.path == known.fragment)
    if any(conflict.why.startswith("was changed") for conflict in left):
        stuck = {conflict.path for conflict in left}
        kept = {name: entry for name, entry in known.entries.items() if name in stuck or name in above}
        manifest.save(path, known._replace(entries=kept, complete=False))
    else:
        _forget(path)
        left += apply.remove(entry for entry in known.entries.values() if entry.path in above)
    say(f"files: {len(known.entries) - len(left)} gone, {len(left)} left")
    return Removed(tuple(left), tuple(stopped))


def _empty(fragment: Entry) -> None:
    """Give the fragment back what it held, or a comment: slurm.conf may go on including it, and a missing file stops Slurm."""
    try:
        with open(fragment.path, "rb") as stream:
            there = stream.read()
    except FileNotFoundError:
        return
    wanted = (fragment.before if fragment.before is not None else EMPTY_FRAGMENT).encode()
    if there == wanted:
        return
    if hashlib.sha256(there).hexdigest() not in (fragment.sha256, fragment.also):
        raise LackingError(
            f"{fragment.path} was changed since install wrote it", remedy="Empty it by hand, then run uninstall again"
        )
    write_atomic(fragment.path, wanted)


def _forget(path: str) -> None:
    if path and os.path.lexists(path):
        os.unlink(path)
