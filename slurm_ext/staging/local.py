"""Folders on NVMe and on the shared file system: durable writes, and copies that are there whole or not at all.

Everything here runs as the user who owns the files. Standard library only: trainers import this.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterable

from slurm_ext.files import sync_folder
from slurm_ext.staging.checksum import Checksum
from slurm_ext.staging.model import FILE, FOLDER, LINK, PART_PREFIX, CheckpointRefused, Entry

#: Called with the name of each step that a crash may fall behind; tests crash there.
Point = Callable[[str], None]
#: Called with the number of bytes moved since the last call.
Progress = Callable[[int], None]

_BLOCK = 1 << 20
_ZEROS = bytes(_BLOCK)


def no_point(name: str) -> None:
    """Do nothing at a step; the default of every `point`."""


def no_progress(moved_bytes: int) -> None:
    """Do nothing with progress."""


def part_path(folder: str, prefix: str = PART_PREFIX) -> str:
    """Return a fresh hidden name in `folder` for something that is not complete yet."""
    return os.path.join(folder, prefix + os.urandom(8).hex())


def write_durable(
    folder: str, name: str, content: bytes, *, prefix: str = PART_PREFIX, point: Point = no_point
) -> None:
    """Write a small file of ours whole or not at all, and durably."""
    temporary = part_path(folder, prefix)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        point(f"written {name}")
        os.rename(temporary, os.path.join(folder, name))
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    point(f"renamed {name}")
    sync_folder(folder)


def sync_tree(folder: str, entries: Iterable[Entry]) -> None:
    """Make every file and folder of a tree durable. A link is durable with the folder that it lies in."""
    for entry in entries:
        path = os.path.join(folder, entry.path)
        if entry.kind == FILE:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        elif entry.kind == FOLDER:
            sync_folder(path)
    sync_folder(folder)


def open_checked(path: str, entry: Entry, *, uid: int | None = None) -> int:
    """Open a file for reading as it was when its manifest was written. `uid` demands an owner.

    Raise CheckpointRefused (`damaged`) where it is another kind of thing, changed, or belongs to somebody else.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        raise CheckpointRefused(f"{entry.path}: {exc.strerror}", reason="damaged") from exc
    try:
        check_unchanged(descriptor, entry)
        if uid is not None and os.fstat(descriptor).st_uid != uid:
            raise CheckpointRefused(f"{entry.path} belongs to somebody else", reason="damaged")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_unchanged(descriptor: int, entry: Entry) -> None:
    """Raise CheckpointRefused where an open file is not what its manifest says (kind, size, time of change)."""
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        raise CheckpointRefused(f"{entry.path} is no regular file any more", reason="damaged")
    if (state.st_size, state.st_mtime_ns) != (entry.size, entry.mtime_ns):
        raise CheckpointRefused(
            f"{entry.path} was changed after its checkpoint was closed",
            reason="damaged",
            remedy="Write nothing into a step once it is closed",
        )


def copy_file(
    source: str, target: str, entry: Entry, *, staging: str, point: Point = no_point, progress: Progress = no_progress
) -> Entry:
    """Copy one file to `target` by way of a hidden name in the folder `staging`; return its entry with a checksum.

    Durable apart from the folder itself, which the caller syncs once. Holes of a sparse file stay holes. A checksum
    that the entry has already is compared: CheckpointRefused (`damaged`) where the bytes are others.
    """
    temporary = part_path(staging)
    descriptor = open_checked(source, entry)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        written = os.open(temporary, flags, 0o600)
        try:
            text = _copy_bytes(descriptor, written, entry, progress)
            point(f"copied {entry.path}")
            check_unchanged(descriptor, entry)
            if entry.checksum and entry.checksum != text:
                raise CheckpointRefused(f"{entry.path}: {text}, not {entry.checksum}", reason="damaged")
            os.fchmod(written, entry.mode)
            os.utime(written, ns=(entry.mtime_ns, entry.mtime_ns))
            os.fsync(written)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(written)
    finally:
        os.close(descriptor)
    point(f"synced {entry.path}")
    os.rename(temporary, target)
    point(f"renamed {entry.path}")
    return entry._replace(checksum=text)


def _copy_bytes(source: int, target: int, entry: Entry, progress: Progress) -> str:
    """Copy all bytes of an open file and return their checksum."""
    checksum = Checksum(entry.checksum.partition(":")[0])
    sparse = os.fstat(source).st_blocks * 512 < entry.size
    buffer, offset = memoryview(bytearray(_BLOCK)), 0
    while got := os.preadv(source, [buffer], offset):
        block = buffer[:got]
        checksum.update(block)
        if not (sparse and block == _ZEROS[:got]):
            done = 0
            while done < got:
                done += os.pwrite(target, block[done:], offset + done)
        offset += got
        progress(got)
    os.ftruncate(target, offset)
    return checksum.text


def copy_link(target: str, entry: Entry, *, staging: str) -> None:
    """Make a symbolic link under a hidden name and move it into place; where it points to is not looked at."""
    temporary = part_path(staging)
    os.symlink(entry.target, temporary)
    os.rename(temporary, target)


def copy_tree(
    source: str,
    target: str,
    entries: Iterable[Entry],
    *,
    point: Point = no_point,
    progress: Progress = no_progress,
) -> tuple[Entry, ...]:
    """Copy the entries of a tree into `target`, durably; return them with checksums.

    Folders stay writable for their owner: `apply_modes` gives them their own modes once everything is in.
    """
    copied: list[Entry] = []
    folders = [target]
    for entry in sorted(entries, key=lambda entry: entry.path):  # a folder sorts before what is in it
        here, there = os.path.join(source, entry.path), os.path.join(target, entry.path)
        if entry.kind == FOLDER:
            os.makedirs(there, mode=0o700, exist_ok=True)
            folders.append(there)
        elif entry.kind == LINK:
            copy_link(there, entry, staging=target)
        else:
            entry = copy_file(here, there, entry, staging=target, point=point, progress=progress)
        copied.append(entry)
    for folder in reversed(folders):
        sync_folder(folder)
    point("synced folders")
    return tuple(copied)


def apply_modes(folder: str, entries: Iterable[Entry]) -> None:
    """Give folders the modes that their manifest holds, the deepest first."""
    for entry in sorted(entries, key=lambda entry: entry.path, reverse=True):
        if entry.kind == FOLDER:
            os.chmod(os.path.join(folder, entry.path), entry.mode)


def link_tree(source: str, target: str, entries: Iterable[Entry]) -> None:
    """Make a second view of a tree on the same file system: hard links, no bytes moved."""
    for entry in sorted(entries, key=lambda entry: entry.path):
        here, there = os.path.join(source, entry.path), os.path.join(target, entry.path)
        if entry.kind == FOLDER:
            os.makedirs(there, mode=0o700, exist_ok=True)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(here, there, follow_symlinks=False)


def remove_tree(folder: str) -> None:
    """Remove a folder of ours and all below it, links as links; what has gone already is fine."""
    try:
        with os.scandir(folder) as names:
            children = list(names)
    except (FileNotFoundError, NotADirectoryError):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder)
        return
    for child in children:
        if child.is_dir(follow_symlinks=False):
            os.chmod(child.path, 0o700)
            remove_tree(child.path)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(child.path)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(folder)


def lock_folder(path: str) -> int | None:
    """Lock a folder for as long as the descriptor that is returned stays open; None where another process has the lock."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass  # a file system without locks (Lustre without -o flock): the lock is a courtesy there, never the commit
    return descriptor
