"""The ledger of drains on the share: a log of numbered files that decides, for all nodes together, who may still be drained.

`<share>/ledger/<number>.json` is one drain. Whoever wants to drain takes the next free number, which only one can (link(2)
fails where the name exists, over NFS and Lustre too), and only if all entries before it leave room: so 200 nodes that fail
in one moment take just as many numbers as are allowed, without a lock, and whoever dies between entry and drain has counted.
An entry's age is the share's own time (the file's against that of a file made just now), so that a node whose clock is an
hour off neither opens the breaker nor goes round it; on Lustre, where clients set file times, it can add itself at most.

The folder is made by install, never here: where it is missing (removed, or the share is not mounted and an empty folder
lies in its place) nothing is drained. Standard library only: hooks import this.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Mapping

from slurm_ext import shared
from slurm_ext.config.model import Drain
from slurm_ext.config.snapshot import LEDGER_FOLDER
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import owner_is_trusted, read_trusted, sync_folder
from slurm_ext.patterns import pattern
from slurm_ext.slurm.breaker import FIRST_BOOT, HOURLY, NO_LEDGER, WINDOW_S, Entry, Ruling, judge_drain
from slurm_ext.typed import Any

SCHEMA = 2

#: An entry is some hundred bytes; what is longer is none of ours, and counts as a drain of an unknown node.
ENTRY_BYTES = 16 << 10

#: So many times a number may be lost to others before the claim is given up: each loss is a drain of another node.
TRIES = 200

#: Entries beyond this many are removed, oldest first, once they are older than this (seconds).
KEPT, KEPT_S = 500, 30 * 86_400.0

#: A claim takes seconds: a file that it writes first and that is this old (seconds) is nobody's.
SCRATCH_S = 3_600.0

NOT_WRITTEN = "the ledger of drains cannot be written, so nothing is drained"

_NUMBER = pattern(r"([0-9]{8})\.json")


def folder_of(share: str) -> str:
    """Return the folder of the ledger."""
    return os.path.join(share, LEDGER_FOLDER)


def claim(
    share: str,
    node: str,
    *,
    drain: Drain,
    nodes: int,
    first_boot: bool = False,
    also: Collection[str] = (),
    data: Mapping[str, Any] | None = None,
    timeout_s: float = shared.TIMEOUT_S,
) -> Ruling:
    """Enter a drain of `node` if one more is allowed, and say whether it is; see `judge_drain` for the rest.

    It is entered before the ruling allows it, so a crash afterwards counts. What is suppressed leaves no entry.
    """
    if not share or not shared.NODE_NAME.fullmatch(node):
        return Ruling(False, NO_LEDGER)

    def work() -> list[Any] | None:
        if not shared.is_share(share) or not _is_ledger(folder_of(share)):
            return None
        return list(_claim(folder_of(share), node, drain, nodes, first_boot, also, dict(data or {})))

    # Not read and not written is one: whoever cannot tell must not drain.
    found = shared.bounded(work, timeout_s)
    return Ruling(*found) if isinstance(found, list) else Ruling(False, NO_LEDGER)


def entries(share: str, *, timeout_s: float = shared.TIMEOUT_S) -> tuple[Entry, ...] | None:
    """Return the drains of the last hour, oldest first, or None where the ledger cannot be read: that is not zero."""
    if not share:
        return None

    def work() -> list[list[Any]] | None:
        if not shared.is_share(share) or not _is_ledger(folder_of(share)):
            return None
        return [list(entry) for entry in _entries(folder_of(share), time.time()) if entry.age_s < WINDOW_S]

    listed = shared.bounded(work, timeout_s)
    return tuple(Entry(*item) for item in listed) if isinstance(listed, list) else None


def newest(folder: str) -> str:
    """Return a text that names the last drain in a ledger's folder, in a ledger that was begun anew too. For children only."""
    number = max((int(found[1]) for name in os.listdir(folder) if (found := _NUMBER.fullmatch(name))), default=0)
    try:
        return f"{number:08d}-{int(os.lstat(os.path.join(folder, f'{number:08d}.json')).st_mtime)}"
    except FileNotFoundError:
        return f"{number:08d}-none"


def _is_ledger(folder: str) -> bool:
    try:
        return owner_is_trusted(os.stat(folder)) and os.path.isdir(folder)
    except OSError:
        return False


def _claim(
    folder: str,
    node: str,
    drain: Drain,
    nodes: int,
    first_boot: bool,
    also: Collection[str],
    data: dict[str, Any],
) -> Ruling:
    """Claim, in the child."""
    scratch = os.path.join(folder, f".{node}.{os.urandom(6).hex()}")
    written = ""
    try:
        # Written first: it proves that the ledger can be written, tells the share's time, and makes NFS look anew.
        _write(scratch, node, HOURLY, data)
        written = HOURLY
        known = {entry.number: entry for entry in _entries(folder, os.stat(scratch).st_mtime)}
        for _ in range(TRIES):
            ruling = judge_drain(known.values(), node, drain=drain, nodes=nodes, first_boot=first_boot, also=also)
            if not ruling.allowed:
                return ruling
            if ruling.budget != written:
                os.unlink(scratch)
                _write(scratch, node, ruling.budget, data)
                written = ruling.budget
            number = max(known, default=0) + 1
            path = os.path.join(folder, f"{number:08d}.json")
            try:
                os.link(scratch, path)
            except FileExistsError:
                # Somebody was first. Its entry is read by name: a listing may be an old one, a name is not.
                known[number] = _entry(path, number, os.stat(scratch).st_mtime)
                continue
            sync_folder(folder)
            _prune(folder, known, os.stat(scratch).st_mtime)
            return ruling
        return Ruling(False, f"{TRIES} others were first in the ledger of drains, so nothing is drained")
    except OSError as exc:
        return Ruling(False, f"{NOT_WRITTEN} ({exc.strerror or exc})")
    finally:
        with contextlib.suppress(OSError):
            os.unlink(scratch)


def _write(path: str, node: str, budget: str, data: Mapping[str, Any]) -> None:
    content = json.dumps({"schema": SCHEMA, "node": node, "time": time.time(), "budget": budget, **data}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(stream.fileno(), 0o644)
        stream.write(content.encode())
        stream.flush()
        os.fsync(stream.fileno())


def _entries(folder: str, now: float) -> list[Entry]:
    """Return all entries in order; `now` is the share's time. Those that are old anyhow are not opened."""
    found = []
    for name in sorted(os.listdir(folder)):
        if number := _NUMBER.fullmatch(name):
            found.append(_entry(os.path.join(folder, name), int(number[1]), now))
    return found


def _entry(path: str, number: int, now: float) -> Entry:
    """Return one entry. What cannot be read counts as a fresh drain of a node that nobody knows."""
    unknown = Entry(f"?{number}", 0.0, HOURLY, number)
    try:
        age_s = now - os.lstat(path).st_mtime
        if age_s >= WINDOW_S:
            return Entry(f"?{number}", age_s, HOURLY, number)
        unknown = unknown._replace(age_s=age_s)
        data = json.loads(read_trusted(path, max_bytes=ENTRY_BYTES))
        node, at = data["node"], float(data["time"])
        if not isinstance(node, str) or not shared.NODE_NAME.fullmatch(node):
            return unknown
        return Entry(node, age_s, FIRST_BOOT if data.get("budget") == FIRST_BOOT else HOURLY, number, at)
    except FileNotFoundError:
        return unknown._replace(age_s=WINDOW_S)  # removed between listing and looking: it was old, or a person took it
    except (OSError, UntrustedFileError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return unknown


def _prune(folder: str, known: Mapping[int, Entry], now: float) -> None:
    """Remove the oldest entries beyond KEPT, and what claims that were killed left behind. The last numbers always stay, since
    the next one is counted from them."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith(".") and now - os.lstat(path).st_mtime > SCRATCH_S:
                os.unlink(path)
    for number in sorted(known)[:-KEPT]:
        if known[number].age_s > KEPT_S:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, f"{number:08d}.json"))
