"""Whole or not at all: one way to write a file that others read. Standard library only: hooks import this."""

from __future__ import annotations

import os
import secrets


def write_atomic(path: str, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new one: temp, fsync, rename, fsync folder.

    The temporary file lies in the same folder and is made with O_EXCL, so a link planted there is never followed.
    OSError is the caller's to handle; the temporary file does not stay.
    """
    folder = os.path.dirname(path) or "."
    temporary = os.path.join(folder, f".{os.path.basename(path)}.{secrets.token_hex(6)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_folder(folder)


def sync_folder(folder: str) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
