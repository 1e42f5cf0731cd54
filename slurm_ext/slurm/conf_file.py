"""A file of Slurm's that fmslurm may own: whose it is, written whole or not at all, what was there kept, put back.

The first line of a file of ours carries a digest of all that follows, so that a line changed by hand is seen, also on a new
head node that has no memory of its own. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from hashlib import blake2b
from typing import NamedTuple

from slurm_ext.errors import LackingError, UsageError
from slurm_ext.files import sync_folder, write_atomic, write_exclusive

#: What a file is to us. edited: ours, and changed since by somebody else. foreign: never ours.
MISSING, OURS, EDITED, FOREIGN = "missing", "ours", "edited", "foreign"

#: The largest topology.conf that anybody has is far smaller.
MAX_BYTES = 64 << 20

_STAMP = "# fmslurm-content: "
_STAMPED = re.compile(rf"{_STAMP}([0-9a-f]{{32}})\n")

#: Slurm 25.05, and 25.11 up to .5, cannot read a topology.yaml of a whole number of pages (render_yaml.py).
_PAGE = 4096


class Held(NamedTuple):
    """What lies at a path: its text (bytes that are no UTF-8 kept), whose it is, its mode and owner."""

    path: str
    text: str = ""
    state: str = MISSING
    mode: int = 0o644
    owner: tuple[int, int] = (-1, -1)


class Kept(NamedTuple):
    """What was replaced, where a copy of it lies (empty: nothing was there), and what was written in its place, and when."""

    before: Held
    copy: str = ""
    written: str = ""
    when: str = ""

    def words(self) -> str:
        """Return what to add to the word that a file was written: where a copy of somebody else's lies."""
        return f"; what was there: {self.copy}" if self.copy and self.before.state != OURS else ""


def moment(seconds: float | None = None) -> str:
    """Return a time (seconds since the epoch; None: now) as it stands in the name of a copy."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))


def whose(state: str) -> str:
    """Return in words why a file is somebody else's: EDITED or FOREIGN."""
    return "was changed by hand since fmslurm wrote it" if state == EDITED else "was not written by fmslurm"


def stamped(text: str) -> str:
    """Return the text of a file of ours: its digest in the first line, and never a whole number of pages."""
    size = len(_STAMP) + 33 + len(text.encode("utf-8", "surrogateescape"))
    if size % _PAGE == 0:
        text += "# \n"
    return f"{_STAMP}{digest(text)}\n{text}"


def digest(text: str) -> str:
    """Return 32 hexadecimal digits that stand for a text."""
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def bare(text: str) -> str:
    """Return the text of a file without our stamp, as it is where it has none."""
    found = _STAMPED.match(text)
    return text[found.end() :] if found else text


def state_of(text: str) -> str:
    """Return OURS, EDITED or FOREIGN."""
    found = _STAMPED.match(text)
    if found is None:
        return FOREIGN
    return OURS if digest(text[found.end() :]) == found[1] else EDITED


def look(path: str) -> Held:
    """Return what lies at a path, a link followed to the file itself. Raise LackingError where it cannot be read."""
    real = os.path.realpath(path)
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return Held(real)
    except OSError as exc:
        raise LackingError(f"{path}: {exc.strerror}", remedy="Run this as root, where slurm.conf lies") from exc
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise LackingError(f"{path} is no regular file", remedy="Name a file")
    with os.fdopen(descriptor, "rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise LackingError(
            f"{path} is larger than {MAX_BYTES >> 20} MiB", remedy="Look at it: it is no file of Slurm's"
        )
    text = content.decode("utf-8", "surrogateescape")
    return Held(real, text, state_of(text), stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid))


def refuse_foreign(held: Held, *, force: bool) -> None:
    """Raise UsageError for a file that somebody else wrote or changed, unless it may be replaced (`force`)."""
    if force or held.state in (MISSING, OURS):
        return
    raise UsageError(f"{held.path} {whose(held.state)}", remedy="--force replaces it; a copy of it stays beside it")


def keep(held: Held, text: str, *, when: str) -> Kept:
    """Put a copy of what was looked at beside it, and return how `put` writes `text` in its place.

    A file of ours leaves one copy, PATH.fmslurm-previous; one of somebody else's a copy of its own, named by `when` (a time as
    it may stand in a file's name). Raise UsageError where the file changed since it was looked at, LackingError where there is no
    room.
    """
    if look(held.path) != held:
        raise UsageError(f"{held.path} changed while it was looked at", remedy="Run this again")
    try:
        _sweep(held.path)
        return Kept(held, _copy(held, when), text, when)
    except OSError as exc:
        raise _unwritten(held.path, exc) from exc


def put(kept: Kept) -> None:
    """Write what is to be in a file's place, whole or not at all; mode and owner stay. Raise LackingError where it cannot be."""
    try:
        _put(kept.before, kept.written)
    except OSError as exc:
        raise _unwritten(kept.before.path, exc) from exc


def replace(held: Held, text: str, *, when: str) -> Kept:
    """Keep a copy of what was looked at and write `text` in its place; as `keep` and `put`."""
    kept = keep(held, text, when=when)
    put(kept)
    return kept


def _unwritten(path: str, exc: OSError) -> LackingError:
    return LackingError(
        f"{path} is as it was: a new one cannot be written: {exc.strerror}",
        remedy=f"Make room in {os.path.dirname(path)}, or run this as root",
    )


def restore(kept: Kept) -> str:
    """Put back what was replaced: its text, or nothing where nothing was.

    What somebody else wrote there meanwhile is kept, and its path returned. On a full disk the copy itself takes the place.
    Raise LackingError where nothing can be done.
    """
    before = kept.before
    try:
        now = look(before.path)
        theirs = "" if now.text in (kept.written, before.text) or now.state == MISSING else _keep(now, kept.when)
        if before.state == MISSING:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(before.path)
            sync_folder(os.path.dirname(before.path) or ".")
            return theirs
        try:
            _put(before, before.text)
        except OSError:
            if not kept.copy:
                raise
            os.replace(kept.copy, before.path)  # takes no room
            sync_folder(os.path.dirname(before.path) or ".")
    except OSError as exc:
        remedy = f"Copy {kept.copy} over it" if kept.copy else "Remove it"
        raise LackingError(f"{before.path} cannot be put back: {exc.strerror}", remedy=remedy) from exc
    return theirs


#: A temporary file that a killed process left is older than this (seconds); nobody writes for so long.
_OLD_S = 3600.0


def _sweep(path: str) -> None:
    """Remove temporary files of ours (files.write_atomic) that were left beside a file by a process that was killed."""
    folder, name = os.path.split(path)
    left = re.compile(rf"\.{re.escape(name)}(\.before-fmslurm-[^/]*|\.fmslurm-previous)?\.[0-9a-f]{{12}}")
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder or "."):
            state = entry.stat(follow_symlinks=False)
            if left.fullmatch(entry.name) and stat.S_ISREG(state.st_mode) and time.time() - state.st_mtime > _OLD_S:
                os.unlink(entry.path)


def _copy(held: Held, when: str) -> str:
    if held.state == MISSING:
        return ""
    content = held.text.encode("utf-8", "surrogateescape")
    if held.state == OURS:
        path = f"{held.path}.fmslurm-previous"
        write_atomic(path, content, mode=held.mode)
        return path
    return _keep(held, when)


def _keep(held: Held, when: str) -> str:
    """Put a copy of somebody else's file beside it, by a name that nothing has, and return its path."""
    content = held.text.encode("utf-8", "surrogateescape")
    number = 1
    while True:
        path = f"{held.path}.before-fmslurm-{when}" + (f"-{number}" if number > 1 else "")
        if write_exclusive(path, content, mode=held.mode):
            return path
        number += 1


def _put(held: Held, text: str) -> None:
    write_atomic(held.path, text.encode("utf-8", "surrogateescape"), mode=held.mode, owner=held.owner)
