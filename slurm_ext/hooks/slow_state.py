"""What slow checks leave in the run folder beside their result (gate/slow_result.py): who runs, and when one was begun last.

Standard library only: hooks import this.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping

from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import open_regular, read_trusted, write_passing
from slurm_ext.gate.slow_result import DCGM, EFA
from slurm_ext.hooks.slow import RUNNING
from slurm_ext.typed import Any, NamedTuple

SCHEMA = 1

#: The lock that a slow check holds as long as it lives; the time of its last change is when DCGM's was begun last.
LOCK = "slow.lock"
MARKS = {DCGM: LOCK, EFA: "slow-efa.begun"}

MAX_BYTES = 1 << 20

#: Where the kernel tells which boot this is. Not below site.root: pids belong to the machine we run on.
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Running(NamedTuple):
    """A slow check that runs: its leader's pid and start (clock ticks since boot), and what its programs have as FMSLURM_SLOW."""

    pid: int
    start: int
    token: str
    boot_id: str
    level: str = ""
    began_s: float = 0.0
    node: str = ""


def machine_boot_id() -> str:
    """Return the boot id of the machine we run on."""
    try:
        with open(BOOT_ID, encoding="ascii", errors="replace") as stream:
            return stream.read(64).strip()
    except OSError:
        return ""


def running(run_dir: str) -> Running | None:
    """Return who runs, None where nobody does or the file is none that root wrote."""
    data = _read(os.path.join(run_dir, RUNNING))
    try:
        assert data is not None
        found = Running(
            int(data["pid"]),
            int(data["start"]),
            str(data["token"]),
            str(data["boot_id"]),
            str(data.get("level", "")),
            float(data.get("began_s", 0.0)),
            str(data.get("node", "")),
        )
    except (AssertionError, KeyError, TypeError, ValueError, OverflowError):
        return None
    return found if found.pid > 1 and len(found.token) >= 16 else None


def write_running(run_dir: str, who: Running) -> None:
    """Say who runs, to root alone: whoever knows the token could have a program of his own taken for ours.

    OSError is the caller's: without this a job could not end it, so it must not begin.
    """
    write_passing(os.path.join(run_dir, RUNNING), json.dumps({"schema": SCHEMA, **who._asdict()}), mode=0o600)


def remove_running(run_dir: str) -> None:
    """Say that nobody runs."""
    try:
        os.unlink(os.path.join(run_dir, RUNNING))
    except OSError:
        return


def begun_s(run_dir: str, kind: str = DCGM) -> float | None:
    """Return when a slow check of a kind was begun here last, also one that could not write a word; None where none was."""
    try:
        return os.stat(os.path.join(run_dir, MARKS[kind])).st_mtime
    except OSError:
        return None


def mark_begun(run_dir: str, kind: str, lock: int) -> None:
    """Say that one begins now. On the lock itself this needs no room on the disk; other kinds have a file of their own."""
    now = time.time()
    if kind == DCGM:
        os.utime(lock, (now, now))
        return
    try:
        descriptor = open_regular(os.path.join(run_dir, MARKS[kind]), os.O_WRONLY | os.O_CREAT)
    except (OSError, UntrustedFileError):
        return  # then it is begun again a little sooner
    try:
        os.utime(descriptor, (now, now))
    finally:
        os.close(descriptor)


def _read(path: str) -> Mapping[str, Any] | None:
    try:
        data = json.loads(read_trusted(path, max_bytes=MAX_BYTES))
    except (OSError, ValueError, RecursionError, UntrustedFileError):
        return None
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else None
