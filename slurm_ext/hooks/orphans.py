"""What a worker that was killed leaves running: tools that hang, which only it would have ended.

Each has a session of its own, so the worker's end does not reach it. The burn-in's agent is left alone: it ends by its own
deadline, and acts for the node meanwhile. Imported only where a worker did not answer in time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from slurm_ext.gate import read_small

#: prctl(2): whoever loses its parent below us becomes our child.
_PR_SET_CHILD_SUBREAPER = 36

#: In the command line of the burn-in's agent.
AGENT = "slurm_ext.burnin"


def adopt() -> bool:
    """Become the parent of whatever loses its own from now on; say whether the kernel agrees."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def end(worker: int, within_s: float) -> int:
    """Kill our children and the worker's, with their sessions, but for the agent; say how many.

    They are waited for at most so many seconds. A worker in D state keeps its children, the kill notwithstanding.
    """
    parents = {os.getpid(), worker}
    give_up = time.monotonic() + within_s
    killed: set[int] = set()
    # Killing one hands us its own children in turn.
    while (found := _children(parents) - killed - {worker}) and time.monotonic() < give_up:
        for pid in found:
            with contextlib.suppress(OSError):  # no leader of a session, or gone
                if os.getsid(pid) == pid:
                    os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
        _collect(killed, give_up)
    return len(killed)


def _children(parents: set[int]) -> set[int]:
    """Return who has one of these parents, but for the agent. Not every kernel lists a process's children by itself."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if (
                name.isdecimal()
                and _parent(name) in parents
                and AGENT not in (read_small.text(f"/proc/{name}/cmdline") or "")
            ):
                found.add(int(name))
    return found


def _parent(pid: str) -> int:
    words = (read_small.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return int(words[1]) if len(words) > 1 else 0


def _collect(pids: set[int], give_up: float) -> None:
    """Collect those that end; one in D state is left to init."""
    left = set(pids)
    while left and time.monotonic() < give_up:
        for pid in list(left):
            with contextlib.suppress(ChildProcessError):
                if not os.waitpid(pid, os.WNOHANG)[0]:
                    continue
            left.discard(pid)
        time.sleep(0.001)
