"""A job's log: bounded windows of files of any size and encoding, cleaned lines, the last run of several, who said it and when."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import stat
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from slurm_ext import command

HEAD_BYTES = 256 << 10
TAIL_BYTES = 4 << 20
MARK_BYTES = 4096
#: Longer lines are cut in the middle of nowhere useful: dumps of arguments and tensors.
LINE_CHARS = 4000

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PROGRESS = re.compile(r"\d%\||\d(?:it|examples|s|B)/(?:s|it)\b|\bETA\b")


def decode(data: bytes) -> str:
    """Return bytes as text whatever they are: UTF-16 by its mark, else UTF-8 with replacement characters."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace")


def lines(text: str) -> list[str]:
    """Return cleaned lines: no colours, no control characters; of progress drawn over itself only the last state stays."""
    cleaned: list[str] = []
    for raw in _ANSI.sub("", text).split("\n"):
        pieces = [piece for piece in raw.split("\r") if piece.strip()]
        for index, piece in enumerate(pieces):
            if index < len(pieces) - 1 and _PROGRESS.search(piece):
                continue
            cleaned.append(_CONTROL.sub("", piece)[:LINE_CHARS].rstrip())
    return [line for line in cleaned if line]


class Window(NamedTuple):
    """What was read of a log: its text, the file's size (-1: it could not be read), and a mark of what lies before that end."""

    text: str
    size: int
    mark: str


def read_window(
    path: str,
    *,
    start: int = 0,
    mark: str = "",
    since: float = 0.0,
    uid: int = -1,
    gid: int = -1,
    timeout_s: float = 5.0,
) -> Window:
    """Return head and tail of a log from byte `start` on, where an earlier run's output ended with `mark`.

    A log that a new run wrote over is read from its beginning: it is shorter, or other bytes lie before `start`, or nothing
    follows `start` though it was written to after `since` (seconds since the epoch). A bounded child does it, as the user
    when `uid` is given and we are root: the path is the user's own choice and may be a link, a pipe or on a dead file server.
    """

    def work() -> bytes:
        if uid >= 0 and os.geteuid() == 0:
            _become(uid, gid)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            return b""
        begin = max(start, 0)
        written_over = begin > state.st_size or (mark != "" and _mark(descriptor, begin) != mark)
        if written_over or (begin == state.st_size and state.st_mtime > since):
            begin = 0
        if state.st_size - begin <= HEAD_BYTES + TAIL_BYTES:
            body = _pread(descriptor, begin, state.st_size - begin)
        else:
            gap = b"\n[fmslurm: the middle of the log is left out]\n"
            tail = _pread(descriptor, state.st_size - TAIL_BYTES, TAIL_BYTES)
            body = _pread(descriptor, begin, HEAD_BYTES) + gap + tail
        return f"{state.st_size} {_mark(descriptor, state.st_size)}\n".encode() + body

    answer = command.call_bounded(work, timeout_s=timeout_s)
    if not answer:
        return Window("", -1, "")
    first, _, body = answer.partition(b"\n")
    size, _, now_mark = first.decode().partition(" ")
    return Window(decode(body), int(size), now_mark)


def _mark(descriptor: int, end: int) -> str:
    """Return a digest of the bytes before `end`."""
    begin = max(0, end - MARK_BYTES)
    return hashlib.sha256(_pread(descriptor, begin, end - begin)).hexdigest()[:16]


def _become(uid: int, gid: int) -> None:
    """Take on the user's rights for good, in a child that ends right after."""
    try:
        name = pwd.getpwuid(uid).pw_name
        os.initgroups(name, gid)
    except KeyError:
        os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def _pread(descriptor: int, offset: int, size: int) -> bytes:
    collected = bytearray()
    while len(collected) < size:
        chunk = os.pread(descriptor, size - len(collected), offset + len(collected))
        if not chunk:
            break
        collected += chunk
    return bytes(collected)


_RESTART = re.compile(r"\bSLURM_RESTART_COUNT=(\d*)\b")
_REQUEUED = re.compile(
    r"slurmstepd(?:-\S+)?: error: \*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ DUE TO (?:JOB REQUEUE|NODE FAILURE|PREEMPTION)"
)


def runs(log: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the lines of each recorded run, oldest first: parted by lines that print SLURM_RESTART_COUNT, or by Slurm's own.

    Slurm's line about a cancelled JOB parts only where at least three lines of another run follow it: what tasks still
    print in their teardown is little.
    """
    parts: list[list[str]] = [[]]
    counts = [_RESTART.search(line) for line in log]
    if any(counts):
        seen = ""
        for line, found in zip(log, counts, strict=True):
            if found and found.group(1) != seen:
                if parts[-1] and (seen or len(parts) > 1):
                    parts.append([])
                seen = found.group(1)
            parts[-1].append(line)
        return [tuple(part) for part in parts]
    cut = False
    for index, line in enumerate(log):
        if cut and not is_teardown_talk(line) and len(log) - index >= 3:
            parts.append([])
        cut = bool(_REQUEUED.search(line)) or (cut and is_teardown_talk(line))
        parts[-1].append(line)
    return [tuple(part) for part in parts]


_TALK = re.compile(
    r"^(?:srun|slurmstepd(?:-\S+)?|salloc|\[20\d\d-[^\]]+\] error): |^srun:|signal: 15|closing signal|death signal|Terminated"
)


def is_teardown_talk(line: str) -> bool:
    """Say whether a line is what Slurm and launchers print while a run is being taken down."""
    return bool(_TALK.search(line))


class Said(NamedTuple):
    """One line with who said it: `rank` -1 and `node` "" where the line does not tell, `time` None likewise."""

    text: str
    rank: int
    node: str
    time: float | None


_RANK = re.compile(r"\[[Rr]ank ?(\d+)\]|\brank[=:] ?(\d+)\b|\bRank (\d+)\b")
_LABEL = re.compile(r"^\s*(\d{1,5}): ")
_ISO = re.compile(r"(20\d\d)-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_CTIME = re.compile(r"\[\w{3} (\w{3}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (20\d\d)\]")
_GLOG = re.compile(r"(?:^|[\[: ])[IWEFC](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9})")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def time_of(line: str, *, year: int = 0) -> float | None:
    """Return the first time stamp in a line as seconds (UTC assumed: one clock for all evidence), or None."""
    head = line[:400]
    try:
        if found := _ISO.search(head):
            parts = [int(found.group(index)) for index in range(1, 7)]
            fraction = float(f"0.{found.group(7)}") if found.group(7) else 0.0
            return datetime(*parts, tzinfo=timezone.utc).timestamp() + fraction  # type: ignore[misc,arg-type]
        if found := _CTIME.search(head):
            month = _MONTHS.index(found.group(1)) + 1
            day, hour, minute, second, of_year = (int(found.group(index)) for index in range(2, 7))
            return datetime(of_year, month, day, hour, minute, second, tzinfo=timezone.utc).timestamp()
        if year and (found := _GLOG.search(head)):
            month, day, hour, minute, second = (int(found.group(index)) for index in range(1, 6))
            fraction = float(f"0.{found.group(6)}")
            return datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc).timestamp() + fraction
    except ValueError:
        return None
    return None


def year_of(log: Sequence[str], fallback: float | None = None) -> int:
    """Return the year the log speaks of, for stamps that leave it out; 0 where nothing tells."""
    if fallback is not None:
        return datetime.fromtimestamp(fallback, tz=timezone.utc).year
    for line in reversed(log):
        if found := _ISO.search(line[:400]):
            return int(found.group(1))
    return 0


class Locator:
    """Tells which node said a line, by rank, by host prefix, or by srun's task label."""

    def __init__(self, nodes: Sequence[str], ranks_per_node: int, log: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self.ranks_per_node = ranks_per_node
        names = sorted((re.escape(node) for node in self.nodes), key=len, reverse=True)
        self._host = re.compile(rf"(?:^|[\s\[(=,/@])({'|'.join(names)})(?=$|[\s:\])>,<.;])") if names else None
        labels = [int(found.group(1)) for line in log if (found := _LABEL.match(line))]
        self._label_is_node = bool(labels) and max(labels) < len(self.nodes)
        self._labelled = len(labels) > max(3, len(log) // 2)

    def node_of_rank(self, rank: int) -> str:
        """Return the node a rank runs on, or "" where that is not known."""
        if self.ranks_per_node <= 0 or rank < 0:
            return self.nodes[0] if len(self.nodes) == 1 else ""
        index = rank // self.ranks_per_node
        return self.nodes[index] if index < len(self.nodes) else ""

    def named(self, text: str) -> tuple[str, ...]:
        """Return the nodes of the job that a text names, in order, each once."""
        return tuple(dict.fromkeys(self._host.findall(text))) if self._host else ()

    def locate(self, text: str, *, year: int = 0) -> Said:
        """Return the line with its rank, node and time."""
        rank = -1
        if found := _RANK.search(text[:300]):
            rank = int(next(group for group in found.groups() if group))
        node = self.node_of_rank(rank) if rank >= 0 else ""
        if not node and (hosts := self.named(text[:120])):
            node = hosts[0]
        if not node and self._labelled and (found := _LABEL.match(text)):
            label = int(found.group(1))
            node = self.nodes[label] if self._label_is_node else self.node_of_rank(label)
        if not node and len(self.nodes) == 1:
            node = self.nodes[0]
        return Said(text, rank, node, time_of(text, year=year))
