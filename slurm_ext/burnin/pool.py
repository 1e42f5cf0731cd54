"""The worker processes of one node: forked, talked to over a socket pair, killed, and left behind where they cannot die.

Forked without exec: the agent is one small thread without a GPU library, so a child may load one, and 8 children cost
milliseconds. Only agents that must supervise their children start processes themselves; all else uses `command.run`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from slurm_ext.burnin.seclusion import configuration_files, hide
from slurm_ext.burnin.worker import Worker, WorkerPlan

#: How long killed workers may take to end before they count as left behind.
UNDEAD_S = 0.5

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


class _Child:
    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid, self.sock = pid, sock
        self.inbox = bytearray()


class Pool:
    """One worker for each GPU. `watch` and `unwatch` tell the caller's loop which descriptors to read."""

    def __init__(
        self,
        plans: Mapping[int, WorkerPlan],
        environment: Mapping[str, str],
        *,
        watch: Callable[[int, int], None],
        unwatch: Callable[[int], None],
        changed: Callable[[tuple[int, ...]], None] = lambda pids: None,
    ) -> None:
        """`changed` is told the pids of all that are there whenever a worker was started."""
        self._plans, self._environment = plans, environment
        self._more: dict[str, str] = {}
        self._watch, self._unwatch, self._changed = watch, unwatch, changed
        self._children: dict[int, _Child] = {}
        self._gone: dict[int, int] = {}  # killed and not collected yet: pid -> GPU

    def alive(self, gpu: int) -> bool:
        """Say whether the worker of a GPU is there."""
        return gpu in self._children

    def start(self, gpu: int) -> None:
        """Start the worker of a GPU unless it is there."""
        if gpu in self._children:
            return
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            self._become_worker(gpu, theirs)
        theirs.close()
        ours.setblocking(False)
        self._children[gpu] = _Child(pid, ours)
        self._watch(ours.fileno(), gpu)
        self._changed((*(child.pid for child in self._children.values()), *self._gone))

    def set_environment(self, more: Mapping[str, str]) -> None:
        """Give workers that start from now on these variables, too."""
        self._more = dict(more)

    def _become_worker(self, gpu: int, sock: socket.socket) -> None:
        """Be the worker: never returns."""
        code = 1
        try:
            descriptor = os.dup2(sock.fileno(), 3)
            os.closerange(4, max(map(int, os.listdir("/proc/self/fd"))) + 1)
            libc = ctypes.CDLL(None)
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # no agent, no worker
            libc.prctl(_PR_SET_NAME, f"fm-burnin-gpu{gpu}".encode(), 0, 0, 0)
            # The agent caps its own memory; CUDA reserves address space far beyond any such cap.
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
            if left := hide(configuration_files()):
                print(f"NCCL's settings in {', '.join(left)} cannot be hidden and count here", file=sys.stderr)  # noqa: T201
            os.environ.clear()
            os.environ.update(self._environment)
            os.environ.update(self._more)
            Worker(self._plans[gpu], descriptor).serve()
            code = 0
        except BaseException:  # noqa: BLE001 - the end of a forked child, whatever it was
            import traceback  # here: each agent would pay for what hardly one needs

            traceback.print_exc()  # to the agent's log; nothing of this process may go on in the agent's code
        finally:
            os._exit(code)

    def order(self, gpu: int, message: Mapping[str, Any]) -> None:
        """Send one order; a worker that does not read any more (or is gone) just misses it."""
        child = self._children.get(gpu)
        if child is None:
            return
        try:
            child.sock.send((json.dumps(message, separators=(",", ":")) + "\n").encode())
        except OSError:
            return

    def read(self, gpu: int) -> tuple[list[dict[str, Any]], str]:
        """Return what a worker said, and how it ended (empty: it lives)."""
        child = self._children.get(gpu)
        if child is None:
            return [], ""
        ended = ""
        try:
            chunk = child.sock.recv(1 << 16)
        except BlockingIOError:
            return [], ""
        except OSError:
            chunk = b""
        child.inbox += chunk
        *lines, rest = bytes(child.inbox).split(b"\n")
        child.inbox = bytearray(rest)
        if not chunk:
            ended = self._forget(gpu)
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                messages.append(message)
        return messages, ended

    def kill(self, gpu: int) -> None:
        """Kill a worker; one in D state is left behind and never waited for."""
        child = self._children.get(gpu)
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        self._forget(gpu)

    def _forget(self, gpu: int) -> str:
        child = self._children.pop(gpu)
        self._unwatch(child.sock.fileno())
        child.sock.close()
        self._gone[child.pid] = gpu
        return self.reap().get(child.pid, "its process ended")

    def reap(self) -> dict[int, str]:
        """Collect ended children without waiting: pid -> how."""
        found: dict[int, str] = {}
        for pid in list(self._gone):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                del self._gone[pid]
                continue
            if ended:
                del self._gone[pid]
                code = os.waitstatus_to_exitcode(status)
                found[pid] = f"its process was killed by signal {-code}" if code < 0 else f"its process ended ({code})"
        return found

    def leaving(self, gpu: int) -> str:
        """Return how a killed worker of a GPU still runs, D before any other state of proc(5); empty where none is left."""
        if gpu not in self._gone.values():
            return ""
        self.reap()
        states = "".join(_states(pid) or "?" for pid, where in self._gone.items() if where == gpu)
        return "D" if "D" in states else states[:1]

    def undead(self) -> tuple[int, ...]:
        """Return the pids of killed workers that have not ended within a moment: in the kernel's hands."""
        give_up = time.monotonic() + UNDEAD_S
        while self._gone and time.monotonic() < give_up:
            self.reap()
            time.sleep(0.002)
        return tuple(self._gone)

    def close(self) -> None:
        """Kill all."""
        for gpu in list(self._children):
            self.kill(gpu)


def _states(pid: int) -> str:
    """Return the states of a process's threads: its first may have ended while another is in the kernel's hands."""
    states = ""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat", "rb") as stream:
                states += stream.read().rpartition(b")")[2].split()[0].decode()
    return states
