"""What an installation is made of, as data: items on disk, what is wrong with them, what has to be done by people."""

from __future__ import annotations

from typing import NamedTuple

FILE, FOLDER, LINK = "file", "folder", "link"


class Item(NamedTuple):
    """One thing that install puts somewhere. `content` is a file's bytes, or a link's target as bytes.

    `placeholder_only` marks a file that somebody else may have put there empty (comments alone) for us to fill; what it
    held comes back on uninstall. `private` folders must belong to root alone, since root decides by what is in them.
    A `seed` is put there once and then belongs to people: it is neither compared nor replaced.
    """

    path: str
    kind: str = FILE
    content: bytes = b""
    mode: int = 0o644
    placeholder_only: bool = False
    private: bool = False
    seed: bool = False


class Entry(NamedTuple):
    """One line of the manifest: what install left at `path`, and what stands there if it is ours to remove.

    `made`: it was not there before. `before`: what a placeholder held. `also`: hash of an earlier content of ours that
    may still lie there after a crash.
    """

    path: str
    kind: str
    sha256: str
    mode: int
    uid: int
    made: bool
    before: str | None = None
    also: str = ""


class Conflict(NamedTuple):
    """One thing that install will not touch, and why; `diff` shows a file's difference (unified, at most 40 lines)."""

    path: str
    why: str
    diff: str = ""


class Plan(NamedTuple):
    """All of an installation: items in the order they are made, and notes for people."""

    version: str
    items: tuple[Item, ...]
    fragment: str
    include_line: str
    includes_fragment: bool
    notes: tuple[str, ...] = ()
