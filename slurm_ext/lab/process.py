"""Processes of a lab: started in their node's namespaces, found again by mark, namespace or start time, ended for certain.

Each node (and the head) has a holder: a `sleep` that is process 1 of the node's PID namespace. While it lives, so do the
namespaces; when it dies, the kernel kills everything in them and removes their network. Nothing is mounted or named
anywhere outside, so a lab that was killed leaves only processes, and those carry the mark in their environment.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_ext import command
from slurm_ext.errors import FmslurmError, LackingError
from slurm_ext.lab.model import MARK, LabNode, Pid

#: Wait until the namespaces are told, by the line `ready`; SIGCHLD ignored makes the kernel reap what is orphaned inside.
_HOLDER = """echo $$
exec unshare --fork --pid --mount-proc --uts --net --propagation private sh -c '
hostname "$1" && { [ -z "$2" ] || mount --bind "$2" /etc/hosts; } && echo ready &&
exec env --ignore-signal=CHLD sleep infinity </dev/null >/dev/null 2>&1' holder "$1" "$2"
"""

#: `setsid --fork` ends at once and the runner goes by its end: stay until the holder has said both lines, or is gone.
_TWO_LINES = 'setsid --fork sh -c "$@" | { read -r pid && read -r word && echo "$pid $word"; }'

#: A daemon that stays in the foreground: a session of its own, output to its log, nothing of ours left open.
_DETACH = 'exec setsid --fork sh -c \'exec "$@" </dev/null >>"$LOG" 2>&1\' daemon "$@"'

_START_S = 20.0

#: Slurm's commands (the packages' man pages, section 1), by the name the kernel has of them.
CLIENTS = frozenset(
    {"sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "sdiag", "sinfo"}
    | {"sprio", "squeue", "sreport", "srun", "sshare", "sstat", "strigger", "sview"}
)


class Found(NamedTuple):
    """One running process."""

    pid: Pid
    name: str
    parent: int


def start_holder(hostname: str, hosts_file: str, env: Mapping[str, str]) -> Pid:
    """Make a node's namespaces and return the process that holds them. Raise FmslurmError where that fails."""
    argv = ["sh", "-c", _TWO_LINES, "sh", _HOLDER, "sh", hostname, hosts_file]
    result = command.run(argv, timeout_s=_START_S, env=env)
    words = result.stdout.split()
    if len(words) != 2 or words[1] != "ready":
        raise FmslurmError(f"namespaces of {hostname}: {result.words()}", remedy="Try `--mode loopback`")
    outer = int(words[0])
    for child in everything():
        if child.parent == outer:
            return child.pid
    raise FmslurmError(f"the process that holds {hostname}'s namespaces ended at once", remedy="Try `--mode loopback`")


def enter(node: LabNode, argv: Sequence[str], *, pid: bool = True) -> list[str]:
    """Return argv that runs inside a node's namespaces, or argv itself where the lab has none. Raise LackingError for a
    node that is dead.

    nsenter, not `ip netns exec`: the latter mounts /sys anew and hides the cgroup mounts, and slurmd then does not start.
    """
    if node.holder is None:
        return list(argv)
    if not alive(node.holder):
        raise LackingError(f"{node.name} is dead", remedy=f"Boot it with `fmslurm lab heal {node.name}`")
    # --root, since entering a mount namespace alone would leave a root file system that we ourselves run in by chroot.
    namespaces = ["--net", "--uts", "--mount", "--root", *(["--pid"] if pid else [])]
    return ["nsenter", f"--target={node.holder.pid}", *namespaces, "--", *argv]


def daemonize(node: LabNode, argv: Sequence[str], *, env: Mapping[str, str], log: str, timeout_s: float = 10.0) -> None:
    """Start a program that does not detach by itself, in a session of its own on a node; its output goes to `log`."""
    result = command.run(enter(node, ["sh", "-c", _DETACH, "sh", *argv]), timeout_s=timeout_s, env={**env, "LOG": log})
    if not result.ok:
        raise FmslurmError(f"{shlex.join(argv)}: {result.words()}", remedy=f"See {log}")


def identify(pid: int) -> Pid | None:
    """Return a process with its start time, or None where there is none (a zombie counts as gone)."""
    found = _stat(pid)
    return found.pid if found else None


def alive(pid: Pid | None) -> bool:
    """Say whether this very process still runs."""
    return pid is not None and identify(pid.pid) == pid


def everything() -> list[Found]:
    """Return every process of the machine but zombies and kernel threads without parent."""
    found = (_stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [process for process in found if process]


def inside(holder: Pid) -> list[Found]:
    """Return the processes in a holder's PID namespace, the holder included; empty once it is gone."""
    if not alive(holder):
        return []
    namespace = _namespace(holder.pid)
    return [p for p in everything() if namespace and _namespace(p.pid.pid) == namespace]


def marked(directory: str, pid_files: Iterable[Path] = ()) -> list[Found]:
    """Return the lab's processes: those with its mark, those that Slurm or a pid file names, and all below them.

    A job's process has the lab's SLURM_CONF and a job id; a daemon that somebody else started in the lab has the lab's
    SLURM_CONF or FMSLURM_CONFIG and a pid file. One of Slurm's own commands with the lab's SLURM_CONF has nothing else to
    speak to, and outlives whoever started it in a session of its own. A person's shell with the lab's environment is none
    of these and is let be, as are our own process and its ancestors.
    """
    mark = f"{MARK}={directory}".encode()
    of_lab = {
        f"SLURM_CONF={directory}/etc/slurm/slurm.conf".encode(),
        f"FMSLURM_CONFIG={directory}/etc/fmslurm/fmslurm.yaml".encode(),
    }
    named = {_number(path) for path in pid_files}

    def is_ours(pid: int, entries: set[bytes]) -> bool:
        if mark in entries or not of_lab & entries:
            return mark in entries
        return pid in named or any(entry.startswith(b"SLURM_JOB_ID=") for entry in entries) or _name(pid) in CLIENTS

    return trees(is_ours)


def trees(wanted: Callable[[int, set[bytes]], bool]) -> list[Found]:
    """Return the processes whose number and environment `wanted` accepts, and all below them; never us or our ancestors."""
    processes = everything()
    ours = _ancestors({p.pid.pid: p for p in processes})
    chosen = {p.pid.pid for p in processes if wanted(p.pid.pid, _environment(p.pid.pid))} - ours
    while more := {p.pid.pid for p in processes if p.parent in chosen} - chosen - ours:
        chosen |= more
    return [p for p in processes if p.pid.pid in chosen]


def kill(pids: Iterable[Pid], *, timeout_s: float = 10.0, number: int = signal.SIGKILL) -> list[Pid]:
    """Send a signal to each process that is still the same one, wait for their end, and return those that live on."""
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        try:
            os.kill(pid.pid, number)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + timeout_s
    while (left := [pid for pid in left if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _stat(pid: int) -> Found | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    name, _, rest = text[text.index("(") + 1 :].rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    return Found(Pid(pid, int(fields[19])), name, int(fields[1]))


def _name(pid: int) -> str:
    found = _stat(pid)
    return found.name if found else ""


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _environment(pid: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _ancestors(processes: Mapping[int, Found]) -> set[int]:
    found, pid = set(), os.getpid()
    while pid in processes and pid not in found:
        found.add(pid)
        pid = processes[pid].parent
    return found | {os.getpid(), os.getppid()}
