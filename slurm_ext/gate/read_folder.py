"""What lies in a folder that users may write to: looked at by lstat alone, nothing is opened, no link is followed."""

from __future__ import annotations

import os
import stat

from slurm_ext.gate.read_small import MOST_NAMES
from slurm_ext.typed import NamedTuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class Entry(NamedTuple):
    """One entry of a folder as lstat tells it."""

    name: str
    uid: int
    held_bytes: int  # in blocks: a sparse file holds less than it is long
    is_file: bool


def entries(path: str) -> list[Entry] | None:
    """Return what lies in a folder that users may write to: nothing is followed, nothing is opened."""
    found: list[Entry] = []
    try:
        descriptor = os.open(path, _FOLDER)
    except (OSError, ValueError):
        return None
    try:
        with os.scandir(descriptor) as listed:
            for entry, _ in zip(listed, range(MOST_NAMES), strict=False):
                try:
                    state = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # gone meanwhile
                found.append(Entry(entry.name, state.st_uid, state.st_blocks * 512, stat.S_ISREG(state.st_mode)))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found
