"""What the breaker held back: convicted nodes that are still in use, for people to see, and one event each time it opens.

`<share>/suppressed/<opening>/<node>.json`, where an opening is named after the last drain before it: as long as nobody else
is drained, all that is held back belongs together. The first of an opening says so in an event, which is what a page is made
of, and so do the tenth, the hundredth and the thousandth. Old openings are removed, so the list is bounded.
Standard library only: hooks import this.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterable

from slurm_ext import shared
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import read_trusted, write_atomic
from slurm_ext.slurm import ledger
from slurm_ext.slurm.breaker import WINDOW_S, Entry, hourly
from slurm_ext.typed import Any, NamedTuple

FOLDER = "suppressed"

#: So many openings are kept, and shown as long as they are younger than this (seconds).
OPENINGS, SHOWN_S = 5, 86_400.0

#: From so many nodes on it is worth saying again.
STEPS = (1, 10, 100, 1000)

#: A record is below a kilobyte; so many are read at most, and so many names stand in an event.
RECORD_BYTES, RECORDS_MAX, NAMED = 16 << 10, 2_000, 50

_MARK = ".said-"


class Suppressed(NamedTuple):
    """One node that was to be drained and was not: for what, why not, since when (epoch seconds)."""

    node: str
    finding: str
    target: str
    action: str
    evidence: str
    why: str
    at_s: float
    job: str = ""
    opening: str = ""
    allowed: int = 0  # drains an hour that were allowed then


class Noted(NamedTuple):
    """What became of a note: the opening it belongs to, whom that one holds back so far, and whether to say so now."""

    opening: str
    nodes: tuple[str, ...]
    total: int
    step: int  # one of STEPS where this note is the first to reach it, else 0
    first: bool = False  # nobody has said yet that the breaker is open


def note(share: str, one: Suppressed, *, timeout_s: float = shared.TIMEOUT_S) -> Noted | None:
    """Write down that a node was not drained; None where the share cannot be written."""
    if not share or not shared.NODE_NAME.fullmatch(one.node):
        return None
    found = shared.bounded(lambda: _note(share, one) if shared.is_share(share) else None, timeout_s)
    return Noted(found[0], tuple(found[1]), *found[2:]) if isinstance(found, list) else None


def read_all(share: str, *, now: float, timeout_s: float = shared.TIMEOUT_S) -> dict[str, Suppressed] | None:
    """Return what was held back of each node within a day, the last of each; None where the share does not answer.

    Who was drained since, or is well again, is the caller's to leave out.
    """

    def work() -> list[Any] | None:
        return [one._asdict() for one in _read_all(share)] if shared.is_share(share) else None

    listed = shared.bounded(work, timeout_s) if share else None
    if not isinstance(listed, list):
        return None
    records = sorted((Suppressed(**data) for data in listed), key=lambda one: one.at_s)
    return {one.node: one for one in records if now - one.at_s < SHOWN_S}


def is_open(
    entries: Iterable[Entry] | None,
    held_back: Collection[Suppressed],
    *,
    now: float,
    limit: int | None = None,
    also: Collection[str] = (),
) -> bool:
    """Say whether the breaker is open: it held something back within the hour, and as many drains count still. Pure.

    `limit` is what is allowed now (None: what was allowed then); `also` names nodes that Slurm says were drained within the hour.
    """
    if entries is None:
        return True
    recent = [one for one in held_back if now - one.at_s < WINDOW_S]
    if not recent:
        return False
    return len(hourly(entries, also)[0]) >= (max(recent, key=lambda one: one.at_s).allowed if limit is None else limit)


def drained_since(one: Suppressed, entries: Iterable[Entry], *, now: float) -> bool:
    """Say whether a node was drained after it was held back: then it is held back no more, whoever resumed it meanwhile."""
    return any(entry.node == one.node and now - entry.age_s > one.at_s for entry in entries)


def _note(share: str, one: Suppressed) -> list[Any]:
    """Write the record and look who else is there, in the child."""
    try:
        opening = ledger.newest(ledger.folder_of(share))
    except OSError:
        opening = f"no-ledger-{int(one.at_s // WINDOW_S)}"
    above = os.path.join(share, FOLDER)
    folder = os.path.join(above, opening)
    write_atomic(
        os.path.join(folder, f"{one.node}.json"), json.dumps({"schema": 1, **one._asdict(), "opening": opening})
    )
    nodes = sorted(name[:-5] for name in os.listdir(folder) if name.endswith(".json") and not name.startswith("."))
    # Of many at once the first to look may find ten already: the steps below are said with it.
    said = [step for step in STEPS if len(nodes) >= step and _first(os.path.join(folder, f"{_MARK}{step}"))]
    if said:
        _prune(above)
    return [opening, nodes[:NAMED], len(nodes), max(said, default=0), STEPS[0] in said]


def _first(path: str) -> bool:
    """Say whether nobody has made this mark before."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644))
    except FileExistsError:
        return False
    return True


def _openings(above: str) -> list[str]:
    """Return the openings' folders, newest first."""
    dated = []
    with contextlib.suppress(OSError), os.scandir(above) as listed:
        for entry in listed:
            if entry.is_dir(follow_symlinks=False):
                dated.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    return [path for _, path in sorted(dated, reverse=True)]


def _prune(above: str) -> None:
    for path in _openings(above)[OPENINGS:]:
        shutil.rmtree(path, ignore_errors=True)


def _read_all(share: str) -> list[Suppressed]:
    found: list[Suppressed] = []
    for folder in _openings(os.path.join(share, FOLDER))[:OPENINGS]:
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder)):
                if name.endswith(".json") and len(found) < RECORDS_MAX and (one := _read(folder, name)) is not None:
                    found.append(one)
    return found


def _read(folder: str, name: str) -> Suppressed | None:
    try:
        data = json.loads(read_trusted(os.path.join(folder, name), max_bytes=RECORD_BYTES))
        texts = {key: data[key] for key in Suppressed._fields if key not in ("at_s", "allowed")}
        if not all(isinstance(text, str) for text in texts.values()):
            return None
        one = Suppressed(**texts, at_s=float(data["at_s"]), allowed=int(data["allowed"]))
    except (OSError, UntrustedFileError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    return one if one.node == name[:-5] else None
