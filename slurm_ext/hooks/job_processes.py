"""What a job left running on this node, known by its cgroup and by nothing else: ended by an epilog whose mode enforces.

Never by user (another job of the same user may run here) and never by the text of a process table. The paths are slurmd's:
`system.slice/[NODE_]slurmstepd.scope/job_N/step_M/user/task_K` (slurm.schedmd.com/cgroup_v2.html), and with cgroup v1
`CONTROLLER/slurm[_NODE]/uid_U/job_N/step_M/task_K` (slurm.schedmd.com/cgroups.html); proctrack's own, the freezer, has no tasks: a
step's programs lie in `step_M`, and slurmstepd in `job_N` (seen on 22.05.8). slurmstepd itself lies beside `user` and above
`task_K`, and is let be, wherever it is; so are this hook and its ancestors, which are in the job's cgroup with PrologFlags=RunInJob.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Iterator

from slurm_ext.command import call_bounded
from slurm_ext.hooks.environment import HookJob
from slurm_ext.hooks.leftovers import start_ticks
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple

#: How long (seconds) the child may take that looks and ends.
TIMEOUT_S = 2.0

#: So many processes are looked at and told of; so many folders are looked through.
PROCESSES_MAX, TOLD_MAX, FOLDERS_MAX = 4096, 32, 2048

#: So many open files of one process are looked at for a GPU.
FILES_MAX = 512

#: Controllers of cgroup v1 under which Slurm keeps a job's tree: proctrack/cgroup's first.
_V1 = ("freezer", "memory", "cpuset", "devices")
_GPU_FILE = pattern(r"/dev/nvidia(\d+)")


class Left(NamedTuple):
    """A process of a job that has ended: `state` is the kernel's letter, `gpus` are minor numbers that it holds open."""

    pid: int
    start: int
    state: str
    gpus: tuple[int, ...] = ()
    ended: bool = False

    def words(self) -> str:
        """Return one line for a person."""
        holds = f", holds GPU {', '.join(map(str, self.gpus))}" if self.gpus else ""
        stuck = " in D state: it ends when the kernel lets it" if self.state == "D" else ""
        return f"job process {self.pid}{holds}{stuck}{' (ended)' if self.ended else ' (left)'}"


def folders(root: str, job: HookJob) -> tuple[str, ...]:
    """Return the cgroups of a job on this node that hold its programs' trees, none where there are none (any more)."""
    top = os.path.join(root, "sys/fs/cgroup")
    places = [(os.path.join(top, "system.slice"), f"{job.node}_slurmstepd.scope", "slurmstepd.scope", "")]
    places += [(os.path.join(top, name), f"slurm_{job.node}", "slurm", f"uid_{job.uid}") for name in _V1]
    found = []
    for above, of_node, of_host, between in places:
        # Several slurmds on one machine have a tree each, and jobs of one number are not one job.
        name = of_node if os.path.isdir(os.path.join(above, of_node)) else of_host
        path = os.path.join(above, name, between, f"job_{job.job_id}")
        if os.path.isdir(path):
            found.append(path)
    return tuple(found)


def end(root: str, job: HookJob, *, kill: bool) -> tuple[Left, ...] | None:
    """Find what is left of a job, and end it where `kill` says so; nothing is waited for. None: no answer in time."""
    trees = folders(root, job)
    if not trees:
        return ()
    answer = call_bounded(lambda: json.dumps(_end(root, job, trees, kill)).encode(), timeout_s=TIMEOUT_S)
    if answer is None:
        return None
    return tuple(
        Left(pid, start, state, tuple(minors), ended) for pid, start, state, minors, ended in json.loads(answer)
    )


def _end(root: str, job: HookJob, trees: tuple[str, ...], kill: bool) -> list[Left]:
    spared = _ancestors()
    found: dict[int, Left] = {}
    for _ in range(2 if kill else 1):  # twice: what was being forked meanwhile
        new = [pid for pid in _members(trees) if pid not in found and pid not in spared and pid > 1]
        for pid in new[:PROCESSES_MAX]:
            if (one := _one(root, job, pid, kill)) is not None:
                found[pid] = one
        if not new:
            break
    return list(found.values())


def _members(trees: Iterable[str]) -> Iterator[int]:
    """Yield the processes below the folders of a job's programs, each once."""
    seen: set[int] = set()
    looked = 0
    for tree in trees:
        for folder, _, files in os.walk(tree):
            looked += 1
            if looked > FOLDERS_MAX:
                return
            parts = folder[len(tree) :].split("/")
            if "cgroup.procs" not in files or not _is_programs(parts, is_freezer="/freezer/" in tree):
                continue
            try:
                with open(os.path.join(folder, "cgroup.procs"), encoding="ascii", errors="replace") as stream:
                    listed = stream.read(1 << 20).split()
            except OSError:
                continue
            for word in listed:
                if word.isdigit() and int(word) not in seen:
                    seen.add(int(word))
                    yield int(word)


def _is_programs(parts: list[str], *, is_freezer: bool) -> bool:
    """Say whether a folder below `job_N` (`['', 'step_0', 'user', 'task_0']`) holds a job's programs, not Slurm's own."""
    if len(parts) < 2 or not parts[1].startswith("step_"):
        return False
    return parts[2] == "user" or parts[2].startswith("task_") or is_freezer if len(parts) > 2 else is_freezer


def _one(root: str, job: HookJob, pid: int, kill: bool) -> Left | None:
    """Look at one process, and end it; a number that meanwhile is another process's is let be."""
    start = start_ticks(pid)
    if start is None:
        return None
    ended = False
    descriptor = -1
    try:
        # From here on the descriptor means this process, whoever gets its number later (pidfd_open(2)).
        descriptor = os.pidfd_open(pid)
        if start_ticks(pid) != start or not _is_member(root, job, pid):
            return None
        if _is_slurms(pid):
            return None
        state, held = _state(pid), _gpus(pid)
        if kill:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            ended = state != "D"
    except OSError:  # gone, or a kernel without pidfd: told of, if it is still there, and not ended
        if start_ticks(pid) != start:
            return None
        state, held = _state(pid), ()
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return None if state == "Z" else Left(pid, start, state, held, ended)


def _is_member(root: str, job: HookJob, pid: int) -> bool:
    """Say whether the kernel tells of this process that it is in the job's cgroup (proc_pid_cgroup(5))."""
    try:
        with open(os.path.join(root, f"proc/{pid}/cgroup"), encoding="utf-8", errors="replace") as stream:
            lines = stream.read(1 << 16).splitlines()
    except OSError:
        return False
    return any(f"/job_{job.job_id}/step_" in line and "slurm" in line.partition("/job_")[0] for line in lines)


def _is_slurms(pid: int) -> bool:
    """Say whether a process is a slurmstepd: by its name, which anybody may choose, and its real user, which nobody may."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as stream:
            told = dict(line.partition(":")[::2] for line in stream.read(8192).splitlines())
    except OSError:
        return False
    return told.get("Name", "").strip() == "slurmstepd" and told.get("Uid", "").split()[:1] == ["0"]


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read(4096).rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _gpus(pid: int) -> tuple[int, ...]:
    """Return the minor numbers of the GPUs that a process holds open, by its own open files."""
    minors: set[int] = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd")[:FILES_MAX]:
            if found := _GPU_FILE.fullmatch(os.readlink(f"/proc/{pid}/fd/{name}")):
                minors.add(int(found[1]))
    except OSError:
        pass
    return tuple(sorted(minors))


def _ancestors() -> frozenset[int]:
    """Return this process and those that started it, up to the first."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 1 and pid not in found and len(found) < 64:
        found.add(pid)
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
                pid = int(stream.read(4096).rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            break
    return frozenset(found)
