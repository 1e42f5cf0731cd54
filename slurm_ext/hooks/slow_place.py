"""Take a detached process out of slurmd's place: descriptors, cgroup, memory, OOM score, CPUs. A gate never gets slurmd killed.

What the machine does not allow is said in words and let be: the check runs all the same, first in line when memory runs out.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal

#: Below this folder lie the kernel's control groups, version 2 at once or version 1 by controller.
CGROUPS = "/sys/fs/cgroup"

#: How much memory a slow check may take. dcgmi itself needs little; where no daemon of DCGM runs it does the tests itself.
#: No RLIMIT_AS: CUDA maps the memory of all GPUs into its address space, which is no memory of the node.
MEMORY_BYTES = 8 << 30

#: Where memory runs out, this goes before slurmd (-1000) and before any job (0).
OOM_SCORE = 500

NICE = 10


def leave(node: str, *, cgroups: str = CGROUPS) -> str:
    """Make this process independent of slurmd, but for its descriptors; return in words where it is now."""
    os.chdir("/")
    os.umask(0o022)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    said = [_score(), _cpus(), _cgroup(node, cgroups)]
    with contextlib.suppress(OSError):
        os.nice(NICE - os.nice(0))
    return "; ".join(word for word in said if word)


def _score() -> str:
    return "" if _write("/proc/self/oom_score_adj", str(OOM_SCORE)) else "its OOM score is slurmd's"


def _cpus() -> str:
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    except OSError:
        return "its CPUs are slurmd's"
    return ""


def _cgroup(node: str, cgroups: str) -> str:
    """Move into a control group of our own with a memory limit; return what came of it."""
    name, pid = f"fmslurm-slow-{node}", str(os.getpid())
    if os.path.exists(os.path.join(cgroups, "cgroup.controllers")):  # version 2
        folder = os.path.join(cgroups, name)
        limits = (("memory.max", str(MEMORY_BYTES)),)
    else:
        folder = os.path.join(cgroups, "memory", name)
        limits = (("memory.limit_in_bytes", str(MEMORY_BYTES)),)
        for controller in ("cpuset", "cpu", "cpuacct", "cpu,cpuacct"):  # back to the top, where nobody narrows them
            _write(os.path.join(cgroups, controller, "cgroup.procs"), pid)
    try:
        os.mkdir(folder, 0o755)
    except FileExistsError:
        pass
    except OSError as exc:
        return f"in slurmd's control group ({exc.strerror})"
    bounded = all(_write(os.path.join(folder, limit), value) for limit, value in limits)
    if not _write(os.path.join(folder, "cgroup.procs"), pid):
        return "in slurmd's control group"
    return f"in a control group of its own, {'at most ' + str(MEMORY_BYTES >> 30) + ' GiB' if bounded else 'unbounded'}"


def forget(node: str, *, cgroups: str = CGROUPS, leave: bool = False) -> None:
    """Remove the control group of a slow check, which we `leave` first where we are in it; one with processes stays."""
    for top in (cgroups, os.path.join(cgroups, "memory")):
        folder = os.path.join(top, f"fmslurm-slow-{node}")
        if os.path.isdir(folder):
            if leave:
                _write(os.path.join(top, "cgroup.procs"), str(os.getpid()))
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _write(path: str, text: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, text.encode())
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
