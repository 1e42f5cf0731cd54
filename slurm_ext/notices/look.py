"""What the controller sees of the nodes: ledger, what the breaker held back, records of drains, and what is new in the trails.

Runs in a child (child.py), since the share may hang; what it returns is plain data, judged in watch.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
import zlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

from slurm_ext import shared
from slurm_ext.config import snapshot
from slurm_ext.errors import FmslurmError
from slurm_ext.slurm import drain_record, ledger, suppressed

#: The whole look may take so long (seconds).
WHOLE_S = 30.0

#: Of a trail that was never read, and of one that grew much, so much is read (bytes); of all of them together so much.
TAIL_BYTES, ALL_BYTES = 256 << 10, 4 << 20

#: By so many bytes before a place (bytes) a trail is known to be the same file still.
SUM_BYTES = 200

#: Lines of trails that are worth a look hold one of these (each of a group: all of them).
_WORDS = (
    ('"decision":"would-drain"',),
    ('"node.drain"', '"dry_run":true'),
    ('"gate.health"', 'overdue"'),
    ('"topology.rolled-back"',),
    ('"topology.drift"',),
)

#: A fmslurm.yaml is no larger (bytes); see config.yaml_file.
CONFIG_BYTES = 1 << 20


class Place(NamedTuple):
    """Up to where a trail was read: inode, offset behind the last whole line, and a sum of what lies before it, since a file
    that was begun anew may get the inode of the old one."""

    inode: int
    offset: int
    sum: int


class Order(NamedTuple):
    """What to look at. `config_path` empty: no file. `drained`: node -> since when it was drained, as known so far.
    `places`: node -> up to where its trail was read; None: leave the trails alone this time."""

    share: str
    config_path: str
    drained: Mapping[str, float]
    places: Mapping[str, Place] | None


def look(order: Order) -> bytes:
    """Return what is there as JSON: see `_found` for its keys."""
    return json.dumps(_found(order)).encode()


def _found(order: Order) -> dict[str, object]:
    now = time.time()
    entries = ledger.entries(order.share)
    held_back = suppressed.read_all(order.share, now=now)
    records = drain_record.read_all(order.share)
    found: dict[str, object] = {
        "ledger": None if entries is None else [list(entry) for entry in entries],
        "held_back": None if held_back is None else [one._asdict() for one in held_back.values()],
        "drained": None if records is None else [record._asdict() for record in records.values()],
        "over": {},
        "lines": [],
        "places": {},
        "nodes": 0,
        "file": file_hash(order.config_path),
        "pushed": _pushed_hash(order.share) if records is not None else "",
    }
    if records is not None:
        found["over"] = _over(order.share, order.drained, records.keys())
        if order.places is not None:
            found["lines"], found["places"], found["nodes"] = _trails(order.share, order.places)
    return found


def file_hash(path: str) -> str:
    """Return the SHA-256 of the configuration file, empty where there is none."""
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read(CONFIG_BYTES + 1)).hexdigest()
    except (OSError, ValueError):
        return ""


def _pushed_hash(share: str) -> str:
    def work() -> str:
        return snapshot.read(os.path.join(share, snapshot.SNAPSHOT_FILE)).source_hash

    said = shared.bounded(work, shared.TIMEOUT_S)
    return said if isinstance(said, str) else ""


def _over(share: str, known: Mapping[str, float], still: Collection[str]) -> dict[str, list[object]]:
    """Return node -> (finding, when, how its drain ended) of nodes that have a record no more."""
    over: dict[str, list[object]] = {}
    for node, since_s in known.items():
        if node in still:
            continue
        past = [one for one in drain_record.history(share, node) or () if one.record.since_s == since_s]
        over[node] = [past[-1].record.finding, past[-1].ended_s, past[-1].outcome] if past else ["", 0.0, ""]
    return over


def _trails(share: str, places: Mapping[str, Place]) -> tuple[list[str], dict[str, list[int]], int]:
    """Return new lines of all trails that are worth a look, up to where each was read where that changed, and how many
    nodes have a trail."""
    lines: list[str] = []
    moved: dict[str, list[int]] = {}
    left = ALL_BYTES
    try:
        nodes = sorted(os.listdir(os.path.join(share, "nodes")))
    except OSError:
        return [], {}, 0
    for node in nodes:
        if left <= 0 or not shared.NODE_NAME.fullmatch(node):
            continue
        try:
            place, content = _new(os.path.join(share, "nodes", node, "events.jsonl"), places.get(node))
        except (OSError, FmslurmError):
            continue
        left -= len(content)
        if places.get(node) != place:
            moved[node] = list(place)
        for line in content.decode("utf-8", "replace").splitlines():
            if any(all(word in line for word in words) for words in _WORDS):
                lines.append(line)
    return lines, moved, len(nodes)


def _new(path: str, place: Place | None) -> tuple[Place, bytes]:
    """Return up to where a trail is read now, and what is new in whole lines."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        state = os.fstat(descriptor)
        trusted = state.st_uid in (0, os.geteuid()) and not state.st_mode & 0o022
        if not stat.S_ISREG(state.st_mode) or not trusted:
            return Place(state.st_ino, state.st_size, 0), b""
        known = place is not None and place == Place(state.st_ino, place.offset, _sum(descriptor, place.offset))
        start = max(place.offset if place is not None and known else 0, state.st_size - TAIL_BYTES)
        stream.seek(start)
        content = stream.read(TAIL_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        end = start + len(whole)
        return Place(state.st_ino, end, _sum(descriptor, end)), whole


def _sum(descriptor: int, offset: int) -> int:
    """Return a sum of the bytes before an offset; -1 where the file ends before it."""
    start = max(offset - SUM_BYTES, 0)
    content = os.pread(descriptor, offset - start, start)
    return zlib.crc32(content) if len(content) == offset - start else -1
