"""Taking a lab down, whatever state it is in: what it made is found by journal, mark and name, ended, and looked for again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from slurm_ext import command
from slurm_ext.errors import LackingError, PartlyDoneError, UsageError
from slurm_ext.lab import frozen, journal, mounts, network, process

#: Held while a lab is going up or down; the kernel lets go of it when its holder dies.
LOCK = ".lock"

#: Removing files is bounded by their number, killing by this: what is left then is reported.
KILL_S = 15.0


@contextlib.contextmanager
def lock(directory: str, *, create: bool = False, wait_s: float = 0.0) -> Iterator[None]:
    """Be the only one that takes this lab up or down. Raise LackingError without a folder, UsageError where it is held."""
    if create:
        os.makedirs(directory, mode=0o755, exist_ok=True)
    try:
        descriptor = os.open(Path(directory) / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise LackingError(f"no lab in {directory}: {exc.strerror}", remedy="Name its folder with --dir") from exc
    try:
        _take(descriptor, directory, wait_s)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, directory: str, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as exc:
            if time.monotonic() >= deadline:
                raise UsageError(
                    f"somebody is changing the lab in {directory} at this moment", remedy="Wait for them"
                ) from exc
            time.sleep(0.05)


#: How a person, a service manager or a closed terminal ends a program.
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stopped_once() -> Iterator[None]:
    """Make the first Ctrl-C, SIGTERM or SIGHUP an exception, and pass over those that follow (in a main thread).

    They come in pairs: a terminal that is closed sends SIGHUP right after Ctrl-C, and between the `except` or `finally`
    of the first and its first line there is room for the second, which would then skip all cleaning up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _STOPS}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}  # nohup stays nohup

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in before:
            # Not SIG_IGN: of a signal that has come already Python would complain.
            signal.signal(each, lambda *_: None)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let no second Ctrl-C, SIGTERM or SIGHUP stop what cleans up after the first (in a main thread; else no signal comes)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def processes(directory: str) -> list[process.Found]:
    """Return every process of the lab; see `process.marked` for what counts as one."""
    home = Path(directory)
    return process.marked(directory, [*home.glob("run/*.pid"), *home.glob("nodes/*/run/*.pid")])


def running(directory: str) -> bool:
    """Say whether any process of a lab in this folder lives."""
    return bool(process.marked(directory))


def leftovers(directory: str, made: Sequence[Mapping[str, Any]] | None = None) -> list[str]:
    """Return, in words, what a lab has outside its folder at this moment: processes, links, mounts, control groups.

    `made` is what its journal said; None: what the journal says now, which is gone where the lab was taken down.
    """
    found = [f"process {p.pid.pid} ({p.name})" for p in processes(directory)]
    for entry in journal.read(directory) if made is None else made:
        if entry["make"] == "link":
            found += [f"link {name}" for name in network.links_of_host(entry["name"])]
        if entry["make"] == "file" and os.path.lexists(entry["path"]):
            found.append(f"file {entry['path']}")
        if entry["make"] == "cgroup" and os.path.isdir(entry["path"]):
            found.append(f"control group {entry['path']}")
    return found + [f"mount {point}" for point in mounts_below(directory)]


def closed_folders(directory: str) -> list[str]:
    """Return the folders above a lab's that not everybody may pass through."""
    above = [str(path) for path in Path(directory).parents]
    return [path for path in above if os.path.isdir(path) and not os.stat(path).st_mode & 0o001]


def mounts_below(directory: str) -> list[str]:
    """Return mount points in or below a folder, deepest first."""
    found = [point for point in mounts.points() if point == directory or point.startswith(directory + "/")]
    return sorted(found, reverse=True)


def down(directory: str, *, keep_logs: bool = False, keep_folder: bool = False) -> None:
    """Remove everything a lab made, and its folder; a second run does nothing. The caller holds the lock.

    `keep_logs` leaves the log folder, `keep_folder` the empty folder and its lock. Raise UsageError where the folder is
    no lab's, PartlyDoneError naming what could not be removed.
    """
    entries = journal.read(directory)
    if not entries:
        if set(os.listdir(directory)) - {LOCK}:
            raise UsageError(f"{directory} holds no lab", remedy="Name a lab's folder with --dir")
        if not keep_folder:
            _remove(directory)
        return
    frozen.thaw_below(directory)  # what sleeps in the kernel cannot end
    _end_processes(directory)
    for entry in entries:
        if entry["make"] == "link":
            network.remove_link(entry["name"])
        if entry["make"] == "file":
            Path(entry["path"]).unlink(missing_ok=True)
        if entry["make"] == "cgroup":
            _remove_control_group(entry["path"])
    for point in mounts_below(directory):
        command.run(["umount", "--lazy", point], timeout_s=10.0)
    if left := leftovers(directory):
        raise PartlyDoneError(f"still there: {', '.join(left[:10])}", remedy="Run `fmslurm lab down` again")
    _empty(directory, keep={LOCK, journal.NAME, *(("log",) if keep_logs else ())})
    (Path(directory) / journal.NAME).unlink(missing_ok=True)
    if not keep_folder and not keep_logs:
        _remove(directory)
    elif keep_logs:
        (Path(directory) / LOCK).unlink(missing_ok=True)


def _end_processes(directory: str) -> None:
    """Kill what there is until three looks in a row find nothing: a process in the middle of exec(2) shows no environment."""
    deadline = time.monotonic() + KILL_S
    quiet = 0
    while quiet < 3 and time.monotonic() < deadline:
        found = processes(directory)
        quiet = 0 if found else quiet + 1
        if found:
            process.kill([p.pid for p in found], timeout_s=5.0, number=signal.SIGKILL)
        else:
            time.sleep(0.03)


def _remove_control_group(path: str) -> None:
    deadline = time.monotonic() + 5.0
    for folder, _, _ in os.walk(path, topdown=False):
        while os.path.isdir(folder):
            try:
                os.rmdir(folder)
            except OSError:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.05)


def _empty(directory: str, *, keep: set[str]) -> None:
    for entry in os.scandir(directory):
        if entry.name in keep:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _remove(directory: str) -> None:
    (Path(directory) / LOCK).unlink(missing_ok=True)
    os.rmdir(directory)
