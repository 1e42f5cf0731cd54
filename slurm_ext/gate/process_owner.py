"""Whose is a process on a GPU: job, user and start, as the kernel tells them and nobody can choose. Standard library only: hooks.

What is not believed, and why: who owns /proc/PID (its effective user: root, of a setuid program that anybody may start; most
files in it root's, where it made itself undumpable: proc(5)); the name and the command line (prctl(2), argv); any part `job_N`
of a control group's path (a user's own session may make such a folder below user.slice: only slurmstepd's places count, which
are root's); a number alone (it may be another process's by now). hidepid hides nothing from root, and where we are not root
nothing is known of others. In a user namespace the kernel tells ids as ours.
"""

from __future__ import annotations

import os

from slurm_ext.typed import NamedTuple

#: A program is so many generations below the step that started it, at most.
GENERATIONS = 32

#: Below such a part of a path whoever owns the session makes the folders.
_OF_USERS = ("user.slice", "user@", "user-")


class Owner(NamedTuple):
    """A process: `job` is Slurm's (empty: none's that is known), `user` a user id, `start` in clock ticks since boot."""

    job: str = ""
    user: int | None = None
    start: int = 0


class _Stat(NamedTuple):
    parent: int
    start: int
    name: str


def of(pid: int, *, proc: str = "/proc") -> Owner | None:
    """Return whose a process is; None where there is none, or its number was given to another one meanwhile."""
    before = _stat(proc, pid)
    if before is None:
        return None
    user = user_of(pid, proc=proc)
    job = _by_cgroup(proc, pid) or _by_step(proc, before)
    after = _stat(proc, pid)
    if after is None or after.start != before.start:
        return None
    return Owner(job, user, before.start)


def user_of(pid: int, *, proc: str = "/proc") -> int | None:
    """Return the person behind a process: its real user, unless that is root and another of its ids is not."""
    for line in _text(f"{proc}/{pid}/status", 8192).splitlines():
        if line.startswith("Uid:"):
            ids = [int(word) for word in line.split()[1:] if word.isdecimal()]
            return next((uid for uid in ids if uid), 0) if ids else None
    return None


def job_in(path: str) -> str:
    """Return the job that slurmd made a control group for; empty where the path is none of Slurm's. Pure.

    `system.slice/[NODE_]slurmstepd.scope/job_N/...` (slurm.schedmd.com/cgroup_v2.html) and, in version 1,
    `/slurm[_NODE]/uid_U/job_N/...` (slurm.schedmd.com/cgroups.html).
    """
    parts = path.split("/")
    for at, part in enumerate(parts):
        if part.startswith(_OF_USERS):
            return ""
        if not (part.startswith("job_") and part[4:].isascii() and part[4:].isdecimal()) or at == 0:
            continue
        above, top = parts[at - 1], parts[at - 2] if at > 1 else ""
        is_v1 = above.startswith("uid_") and above[4:].isdecimal() and (top == "slurm" or top.startswith("slurm_"))
        # The first that begins so decides: what lies below a job's group is of its own making.
        return part[4:] if is_v1 or above == "slurmstepd.scope" or above.endswith("_slurmstepd.scope") else ""
    return ""


def _by_cgroup(proc: str, pid: int) -> str:
    lines = _text(f"{proc}/{pid}/cgroup", 8192).splitlines()
    return next((job for line in lines if (job := job_in(line.split(":", 2)[-1]))), "")


def _by_step(proc: str, of_: _Stat) -> str:
    """Return the job of the slurmstepd above a process, where Slurm keeps no groups; empty where there is none."""
    pid = of_.parent
    for _ in range(GENERATIONS):
        if pid < 2 or (above := _stat(proc, pid)) is None:
            return ""
        # Its real user: one that anybody may start as root says nothing.
        if above.name == "slurmstepd" and is_roots_own(proc, pid):
            job = _text(f"{proc}/{pid}/cmdline", 256).partition("[")[2].partition(".")[0]  # slurmstepd: [JOB.STEP]
            return job if job.isascii() and job.isdecimal() else ""
        pid = above.parent
    return ""


def is_roots_own(proc: str, pid: int) -> bool:
    """Return whether root started a process: by its real user, since one that anybody may start as root says nothing."""
    lines = _text(f"{proc}/{pid}/status", 8192).splitlines()
    words = next((line.split()[1:] for line in lines if line.startswith("Uid:")), [])
    return words[:1] == ["0"]


def _stat(proc: str, pid: int) -> _Stat | None:
    front, _, back = _text(f"{proc}/{pid}/stat", 4096).rpartition(")")
    fields = back.split()
    try:
        return _Stat(int(fields[1]), int(fields[19]), front.partition("(")[2])
    except (IndexError, ValueError):
        return None


def _text(path: str, most: int) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, most).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
