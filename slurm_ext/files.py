"""Whole or not at all: one way to write a file that others read, and one to read what root decides by.

Standard library only: hooks import this.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from slurm_ext.errors import UntrustedFileError

#: A configuration or evidence file of ours is far smaller; a larger one is a mistake or an attack.
MAX_BYTES = 4 << 20


def owner_is_trusted(state: os.stat_result) -> bool:
    """Say whether root (or the user we run as) owns it and nobody else may write it."""
    return state.st_uid in (0, os.geteuid()) and not state.st_mode & 0o022


def read_trusted(path: str, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file owned by root (or by us) that others may neither write nor replace.

    Raise UntrustedFileError where it is not so (a symbolic link, a FIFO, a writable folder around it, too large),
    FileNotFoundError where it is missing, and OSError where it cannot be read.
    """
    folder = os.path.dirname(path) or "."
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as exc:
        if os.path.islink(path):
            raise UntrustedFileError(f"{path} is a symbolic link", remedy="Put the file itself there") from exc
        raise
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise UntrustedFileError(f"{path} is no regular file", remedy="Remove it")
        for name, found in ((path, state), (folder, os.stat(folder))):
            if not owner_is_trusted(found):
                raise UntrustedFileError(
                    f"{name} belongs to uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}",
                    remedy=f"chown root {name}; chmod go-w {name}",
                )
        if state.st_size > max_bytes:
            raise UntrustedFileError(f"{path} has {state.st_size} bytes, {max_bytes} are allowed", remedy="Look at it")
        return stream.readall()[:max_bytes]


def open_regular(path: str, flags: int, mode: int = 0o600) -> int:
    """Open a regular file and return its descriptor; `flags` and `mode` as of os.open. Close-on-exec.

    Raise UntrustedFileError where a link, a FIFO or another such thing has the name: never followed, never waited for.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    except OSError as exc:
        # ENXIO: a FIFO or a socket, to be written, that nobody reads.
        if exc.errno in (errno.ELOOP, errno.ENXIO) and os.path.lexists(path):
            raise UntrustedFileError(f"{path} is no regular file", remedy="Remove it") from exc
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UntrustedFileError(f"{path} is no regular file", remedy="Remove it")
    return descriptor


def write_passing(path: str, content: str, *, mode: int = 0o644) -> None:
    """Write a small file of this boot: whole or not at all for readers, and not flushed to a disk.

    Whatever has the name (a link, a FIFO) is replaced and never followed. OSError is the caller's to handle.
    """
    temporary = path + "~"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(content)
    os.replace(temporary, path)


def write_atomic(path: str, content: str | bytes, *, mode: int = 0o644, owner: tuple[int, int] = (-1, -1)) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new one: temp, fsync, rename, fsync folder.

    Missing folders are made, mode 0755. The temporary file lies in the same folder and is made with O_EXCL, so a link
    planted there is never followed. `owner` (uid, gid) is given to it where it is not our own. OSError is the caller's to
    handle; the temporary file does not stay.
    """
    temporary = _write_temporary(path, content, mode, owner)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path) or ".")


def write_exclusive(path: str, content: str | bytes, *, mode: int = 0o644) -> bool:
    """Write a file that must not exist yet, whole or not at all; say whether we were the first (False: it was there)."""
    temporary = _write_temporary(path, content, mode)
    try:
        # link(2) fails where the name exists, over NFS and Lustre too, and readers never see a half-written file.
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    sync_folder(os.path.dirname(path) or ".")
    return True


def _write_temporary(path: str, content: str | bytes, mode: int, owner: tuple[int, int] = (-1, -1)) -> str:
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, mode=0o755, exist_ok=True)
    temporary = os.path.join(folder, f".{os.path.basename(path)}.{os.urandom(6).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if owner != (-1, -1):
                os.fchown(stream.fileno(), *owner)
            os.fchmod(stream.fileno(), mode)  # whatever the umask says
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def link_atomic(path: str, target: str) -> None:
    """Make a symbolic link, or turn it elsewhere, so that a reader sees the old one or the new: as `write_atomic` does."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.urandom(6).hex()}")
    os.symlink(target, temporary)
    os.replace(temporary, path)
    sync_folder(folder or ".")


def sync_folder(folder: str) -> None:
    """Make renames in a folder durable; a file system that cannot flush folders is let be."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
