"""What burn-ins measured, one JSON line each: on each node's own disk, and on the share for the other nodes to read.

Each node writes `burnin-history.jsonl` in its state folder and `<share>/burnin/history/<node>.jsonl`, and no other's. A
file that has grown too large is renamed (`.1`) and begun anew, so that nobody's line is lost who writes at the same time.
No service has to be up. A share that hangs, is absent, or holds what root did not write is as good as empty.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_ext import shared
from slurm_ext.burnin import history_line
from slurm_ext.burnin.model import Past
from slurm_ext.burnin.thresholds import DAY_S, Key, Run
from slurm_ext.command import call_bounded
from slurm_ext.errors import FmslurmError, UntrustedFileError
from slurm_ext.files import open_regular, owner_is_trusted
from slurm_ext.slurm.hostlist import is_node_name
from slurm_ext.verdict import UNKNOWN

NAME = "burnin-history.jsonl"
OLD = ".1"

#: A file that is larger is renamed; with the one before it a node that is gated every hour keeps years, on the share months.
MAX_BYTES = 8 << 20
SHARED_MAX_BYTES = 256 << 10

#: How long (seconds) the children may take that write to and read from the share.
APPEND_S = 2.0
READ_S = 5.0
#: So long another agent of this node may hold the file before we write beside it.
LOCK_S = 1.0
#: What a reader takes from the share at most, newest files first, each a fair part.
READ_MAX_BYTES = 16 << 20
#: A slow share: what was read by then (of the child's time) is better than a child that is killed with all of it.
_SCAN_SHARE = 0.6
_LEAST_PART = 8 << 10
#: A file that changed less than this before the time that is asked for may hold later lines: clocks differ.
_SLACK_S = 3_600.0
#: Partners of earlier failures whose later runs are read as well.
_PARTNERS_MAX = 64
#: Runs of each key that a leader gets, and nodes of one that it gets by name.
_RUNS_MAX, _NAMED_MAX = 400, 4

#: So often in a row the file may be renamed before our eyes.
_RENAMED_MAX = 20

FOLDER = ("burnin", "history")


class Look(NamedTuple):
    """What the history holds for one burn-in: the fleet's passed runs, and what happened to its nodes before, oldest first."""

    runs: tuple[Run, ...] = ()
    pasts: tuple[Past, ...] = ()


def append(state_dir: str, line: Mapping[str, Any]) -> None:
    """Append one line to this node's own file. Raise UntrustedFileError where others may write it, OSError where it failed."""
    os.makedirs(state_dir, mode=0o755, exist_ok=True)
    folder = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _append(folder, NAME, history_line.text_of(line), MAX_BYTES)
    finally:
        os.close(folder)


def append_shared(share: str, node: str, line: Mapping[str, Any], *, timeout_s: float = APPEND_S) -> bool:
    """Append one line to this node's file on the share, in a child that is given up in time; say whether it is there."""
    if not share or not is_node_name(node):
        return False
    data = history_line.shared_text(line)

    def work() -> bytes:
        try:
            folder = _shared_folder(share, make=True)
            _append(folder, f"{node}.jsonl", data, SHARED_MAX_BYTES)
        except (OSError, FmslurmError):
            return b""
        return b"done"

    return call_bounded(work, timeout_s=timeout_s) == b"done"


def _append(folder: int, name: str, data: bytes, max_bytes: int) -> None:
    """Append in one write below an open folder. The lock keeps others from renaming the file in between."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for _ in range(_RENAMED_MAX):
        descriptor = os.open(name, flags, 0o644, dir_fd=folder)
        try:
            _check(os.fstat(descriptor), name)
            may_rename = _lock(descriptor)
            if not _is_still(descriptor, folder, name):
                continue  # renamed while we waited: the line belongs into the new one
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = b"\n" + data if torn else data
            written = os.write(descriptor, data)
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
            if size + written > max_bytes and may_rename and _is_still(descriptor, folder, name):
                os.rename(name, name + OLD, src_dir_fd=folder, dst_dir_fd=folder)
            return
        finally:
            os.close(descriptor)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)


def _check(state: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise UntrustedFileError(f"{name} is no regular file", remedy="Remove it")
    if not owner_is_trusted(state):
        raise UntrustedFileError(f"{name} may be written by others", remedy=f"chown root {name}; chmod 0644 {name}")


def _lock(descriptor: int) -> bool:
    """Lock a file against other agents of this node; say whether it may be renamed. A stopped one holds us only LOCK_S."""
    give_up = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                return False
            time.sleep(0.005)
        except OSError:
            return True  # a file system without locks (Lustre without -o flock): renaming keeps what others write
        else:
            return True


def _is_still(descriptor: int, folder: int, name: str) -> bool:
    """Say whether a name still means the open file."""
    ours = os.fstat(descriptor)
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _shared_folder(share: str, *, make: bool = False) -> int:
    """Return the open folder of all nodes' files. Raise FileNotFoundError, or UntrustedFileError where root did not make it."""
    # The share itself is made by install: one that is not mounted must not come to be on the disk below it.
    if make and not shared.is_share(share):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), share)
    folder = os.open(share, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    _check_folder(folder, share)
    for name in FOLDER:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=folder)
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
        _check_folder(folder, name)
    return folder


def _check_folder(folder: int, name: str) -> None:
    if not owner_is_trusted(os.fstat(folder)):
        raise UntrustedFileError(f"{name} may be written by others", remedy=f"chown root {name}; chmod go-w {name}")


def read(path: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of one file, oldest first; a torn line is skipped, a missing file is empty.

    Raise UntrustedFileError where it is no regular file, or others than root (or we) may write it.
    """
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    with os.fdopen(descriptor, "rb") as stream:
        _check(os.fstat(descriptor), path)
        for text in stream:
            if (line := history_line.parse(text)) is not None:
                yield line


def read_local(state_dir: str, *, refused: Callable[[str], object] = str) -> list[dict[str, Any]]:
    """Return the lines of a node's own files, oldest first. `refused` is told why one that others may write is left out."""
    path = os.path.join(state_dir, NAME)
    lines: list[dict[str, Any]] = []
    for name in (path + OLD, path):
        try:
            lines += read(name)
        except UntrustedFileError as exc:
            refused(str(exc))
    return lines


def read_shared(
    share: str,
    nodes: Iterable[str] | None = None,
    *,
    since: float = 0.0,
    max_bytes: int = READ_MAX_BYTES,
    timeout_s: float = READ_S,
) -> list[dict[str, Any]]:
    """Return the lines that nodes (None: all) wrote on the share since a time (seconds since 1970), oldest first.

    Read in a child that is given up in time; what is absent, hangs or is not root's counts as empty.
    """
    names = None if nodes is None else tuple(nodes)
    if not share:
        return []

    stop_at = time.monotonic() + _SCAN_SHARE * timeout_s

    def work() -> bytes:
        with contextlib.suppress(OSError, FmslurmError):
            return json.dumps(list(_lines(share, names, since, max_bytes, stop_at))).encode()
        return b"[]"

    lines = _loads(call_bounded(work, timeout_s=timeout_s))
    return sorted(lines, key=history_line.time_of) if isinstance(lines, list) else []


def _loads(answer: bytes | None) -> Any:
    try:
        return json.loads(answer) if answer else None
    except ValueError:
        return None


def _lines(
    share: str, nodes: Sequence[str] | None, since: float, max_bytes: int, stop_at: float, *, leads: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the lines since a time, in the child, until the monotonic time `stop_at`. `leads`: only the leaders' own."""
    folder = _shared_folder(share)
    files: list[tuple[float, str]] = []
    for name in _names(folder, nodes):
        with contextlib.suppress(OSError):
            changed = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
            if changed >= since - _SLACK_S:
                files.append((changed, name))
    part = max(_LEAST_PART, max_bytes // max(1, len(files)))
    for _, name in sorted(files, reverse=True):
        if max_bytes <= 0 or time.monotonic() >= stop_at:
            return
        with contextlib.suppress(OSError, FmslurmError):
            content = _tail(folder, name, min(part, max_bytes))
            max_bytes -= len(content)
            for text in content.splitlines():
                if leads and b'"leads":true' not in text:
                    continue
                line = history_line.parse(text)
                if line is not None and history_line.time_of(line) >= since:
                    yield line


def _names(folder: int, nodes: Sequence[str] | None) -> list[str]:
    if nodes is not None:
        return [f"{node}.jsonl{end}" for node in nodes if is_node_name(node) for end in ("", OLD)]
    endings = (".jsonl", ".jsonl" + OLD)
    return [name for name in os.listdir(folder) if name.endswith(endings) and is_node_name(name.split(".jsonl")[0])]


def _tail(folder: int, name: str, size: int) -> bytes:
    """Return the last whole lines of a file that root wrote."""
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        state = os.fstat(descriptor)
        _check(state, name)
        start = max(0, state.st_size - size)
        stream.seek(start)
        content = stream.read(size)
        return content if start == 0 else content.partition(b"\n")[2]


def look(
    share: str, nodes: Sequence[str], *, now: float, history_d: float, state_dir: str = "", timeout_s: float = READ_S
) -> Look:
    """Return what the history of the last `history_d` days holds for a burn-in of `nodes`, within `timeout_s` (seconds).

    With a share: the leaders' newest runs (a token in place of larger sets of nodes), and every line of these nodes and of
    the partners they failed with. Without one, or where it does not answer: this node's own file. `now` is seconds since
    1970.
    """
    since = now - history_d * DAY_S
    stop_at = time.monotonic() + _SCAN_SHARE * timeout_s

    def work() -> bytes:
        lines: list[dict[str, Any]] = []
        leading: list[dict[str, Any]] = []
        with contextlib.suppress(OSError, FmslurmError):
            if share:
                lines = list(_lines(share, nodes, since, READ_MAX_BYTES // 4, stop_at))
                lines += _lines(share, _partners(lines, nodes), since, READ_MAX_BYTES // 8, stop_at)
                leading = list(_lines(share, None, since, READ_MAX_BYTES, stop_at, leads=True))
        if not lines and not leading and state_dir:
            with contextlib.suppress(OSError):
                lines = leading = [line for line in read_local(state_dir) if history_line.time_of(line) >= since]
        pasts: dict[str, Past] = {}
        for line in lines:
            past = history_line.past_of(line)
            # Of the lines of one job all say the same, but for nodes that got no verdict in time.
            if past is not None and pasts.get(past.job, past).verdict in (UNKNOWN, past.verdict):
                pasts[past.job] = past
        runs = [run for line in leading if (run := history_line.run_of(line)) is not None]
        return json.dumps([_newest(runs), sorted(pasts.values(), key=lambda past: past.time)]).encode()

    answer = _loads(call_bounded(work, timeout_s=timeout_s))
    if not isinstance(answer, list):
        return Look()
    runs = tuple(Run(time, tuple(names), busbw, Key(*key)) for time, names, busbw, key in answer[0])
    pasts = (dict(zip(Past._fields, map(_tuple, past), strict=True)) for past in answer[1])
    return Look(runs, tuple(Past(**past) for past in pasts))


def _newest(runs: Sequence[Run]) -> list[Run]:
    """Return the newest runs of each key, oldest first, with a token in place of many names: who reads them only asks
    whether two sets of nodes are the same, and a leader has no time for a year of a thousand nodes."""
    count: dict[Key, int] = {}
    kept = []
    for run in sorted(runs, reverse=True):
        count[run.key] = count.get(run.key, 0) + 1
        if count[run.key] <= _RUNS_MAX:
            text = " ".join(sorted(run.nodes)).encode()
            token = f"{len(run.nodes)}-{zlib.crc32(text):08x}-{zlib.adler32(text):08x}"
            kept.append(run if len(run.nodes) <= _NAMED_MAX else run._replace(nodes=(token,)))
    return kept[::-1]


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _partners(lines: Sequence[Mapping[str, Any]], nodes: Sequence[str]) -> list[str]:
    """Return other nodes that were suspects together with one of `nodes`: whether they passed later bears on it."""
    known = set(nodes)
    found: dict[str, None] = {}
    for line in lines:
        past = history_line.past_of(line)
        if past is not None and known.intersection(past.suspects):
            found.update(dict.fromkeys(name for name in past.suspects if name not in known))
    return list(found)[-_PARTNERS_MAX:]
