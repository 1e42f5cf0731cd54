"""Processes of our own that a hook left behind (a burn-in that could not end in time), known by pid and start time."""

from __future__ import annotations

import errno
import json
import os
import signal

from slurm_ext.files import read_trusted
from slurm_ext.hooks.environment import HookJob
from slurm_ext.typed import NamedTuple

#: Below the run folder: one file for each burn-in, `{"job_id": ..., "processes": [[pid, start ticks], ...]}`.
FOLDER = "burnin"


class Process(NamedTuple):
    """A process that cannot be mistaken for another: its number, and when it began in clock ticks since boot."""

    pid: int
    start: int


def start_ticks(pid: int) -> int | None:
    """Return when a process began (clock ticks since boot, proc(5)), None where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return int(stream.read().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def end(run_dir: str, job: HookJob) -> tuple[str, ...]:
    """Kill what is left of this job's burn-ins here, remove their files, and return in words what was killed."""
    folder = os.path.join(run_dir, FOLDER)
    killed: list[str] = []
    try:
        names = os.listdir(folder)
    except OSError:
        return ()
    for name in names:
        path = os.path.join(folder, name)
        processes = _of_job(path, job)
        if processes is None:
            continue
        for process in processes:
            if process.pid > 1 and _kill(process):
                killed.append(f"burn-in process {process.pid}")
        try:
            os.unlink(path)
        except OSError:
            continue
    return tuple(killed)


def named(run_dir: str) -> list[Process]:
    """Return the processes that the files of burn-ins name, of whatever job, alive or not. OSError is the caller's.

    What else lies in that folder (which nodes passed, and what made that void) names none.
    """
    folder = os.path.join(run_dir, FOLDER)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [one for name in names for one in _of_job(os.path.join(folder, name)) or ()]


def _kill(process: Process) -> bool:
    """Kill a process if it is still the one that began then; say whether it was killed."""
    if start_ticks(process.pid) != process.start:
        return False
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as exc:
        if exc.errno != errno.ENOSYS:
            return False  # gone
        return _kill_by_number(process)  # a kernel without pidfd (before 5.3): the moment in between is short
    try:
        # From here on the descriptor means this process, whoever gets its number later (pidfd_open(2)).
        if start_ticks(process.pid) != process.start:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _kill_by_number(process: Process) -> bool:
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _of_job(path: str, job: HookJob | None = None) -> list[Process] | None:
    """Return the processes a file names, None where it is another job's or none that root wrote."""
    try:
        data = json.loads(read_trusted(path))
        if job is not None and str(data["job_id"]) != job.job_id:
            return None
        return [Process(int(pid), int(start)) for pid, start in data["processes"]]
    except Exception:  # noqa: BLE001 - missing, untrusted or another form: not ours to end
        return None
