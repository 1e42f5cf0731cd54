"""The trails of controller and nodes as one: find the files, read what is new in them, merge by time, filter.

A trail on the share is read in a child that is given up in time; lines seen twice (a node writes its trail locally and to
the share) count once. Nothing here is trusted: it is shown, never acted on.
"""

from __future__ import annotations

import calendar
import fnmatch
import glob
import json
import os
import re
import time
from collections.abc import Iterable
from typing import NamedTuple

from slurm_ext import events
from slurm_ext.command import call_bounded
from slurm_ext.config.hostlist import contains
from slurm_ext.config.model import Settings
from slurm_ext.errors import LackingError
from slurm_ext.events import Event

#: How long (seconds) reading what is new may take before a trail counts as unreachable.
TIMEOUT_S = 10.0

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_SPAN_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_MOMENTS = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")


class Wanted(NamedTuple):
    """Which events: empty fields take all. `nodes` is a hostlist, `event` a name or pattern, `since` a time of the trail."""

    job: str = ""
    nodes: str = ""
    event: str = ""
    since: str = ""


def takes(wanted: Wanted, event: Event) -> bool:
    """Say whether an event is wanted. Raise HostlistError where `nodes` is no hostlist."""
    if wanted.job and event.job != wanted.job and not re.search(rf"/{re.escape(wanted.job)}-\d+$", event.attempt):
        return False
    if wanted.nodes and not (event.node and contains(wanted.nodes, event.node)):
        return False
    if wanted.event and not fnmatch.fnmatchcase(event.event, wanted.event):
        return False
    return not (wanted.since and event.time < wanted.since)


def since_text(text: str, *, now: float) -> str:
    """Return the time of `10m`, `2h`, `1d`, `2031-05-01T12:00` (local) or `...Z` (UTC) as the trail writes times.

    Raise ValueError for other text.
    """
    if span := _SPAN.fullmatch(text.strip()):
        return events.stamp(now - float(span.group(1)) * _SPAN_S[span.group(2)])
    universal = text.endswith("Z")
    for form in _MOMENTS:
        try:
            moment = time.strptime(text.removesuffix("Z"), form)
        except ValueError:
            continue
        return events.stamp(calendar.timegm(moment) if universal else time.mktime(moment))
    raise ValueError(f"{text!r} is no time: expected 10m, 2h, 1d, 2031-05-01 or 2031-05-01T12:00:00")


class Trails:
    """Reads several files forward; each call of `fresh` returns the whole lines that were added since the last one."""

    def __init__(self, settings: Settings, *, timeout_s: float = TIMEOUT_S) -> None:
        self._patterns = [os.path.join(settings.site.log_dir.replace("%n", "*"), "events.jsonl")]
        if settings.site.share:
            self._patterns.append(os.path.join(glob.escape(settings.site.share), "nodes", "*", "events.jsonl"))
        self._places: dict[str, tuple[int, int]] = {}  # path -> (inode, offset behind the last whole line)
        self._seen: set[int] = set()
        self._timeout_s = timeout_s

    def fresh(self) -> list[Event]:
        """Return new events of all trails, oldest first. Raise LackingError where reading them does not end in time."""
        places = dict(self._places)
        answer = call_bounded(lambda: json.dumps(_read_new(self._patterns, places)).encode(), timeout_s=self._timeout_s)
        if answer is None:
            raise LackingError(
                f"the trails could not be read within {self._timeout_s:g} s", remedy="Is site.share mounted and alive?"
            )
        found: list[Event] = []
        for path, inode, offset, lines in json.loads(answer):
            self._places[path] = (inode, offset)
            for line in lines:
                event = events.from_line(line)
                if event is not None and hash(line) not in self._seen:
                    self._seen.add(hash(line))
                    found.append(event)
        return sorted(found, key=lambda event: event.time)


def _read_new(patterns: Iterable[str], places: dict[str, tuple[int, int]]) -> list[tuple[str, int, int, list[str]]]:
    read = []
    for path in sorted({path for pattern in patterns for path in glob.glob(pattern)}):
        try:
            with open(path, "rb", opener=_open_quietly) as stream:
                state = os.fstat(stream.fileno())
                inode, offset = places.get(path, (state.st_ino, 0))
                if inode != state.st_ino or state.st_size < offset:  # rotated or truncated: begin anew
                    offset = 0
                stream.seek(offset)
                content = stream.read()
        except OSError:
            continue
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.decode("utf-8", "replace").splitlines()
        read.append((path, state.st_ino, offset + len(whole), lines))
    return read


def _open_quietly(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO under that name must not hold us
