"""Children of the agent: one task each, with progress, ended when they stand still, never waited for without end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from slurm_ext.staging.commit import State
from slurm_ext.staging.identity import die_with_parent
from slurm_ext.staging.local import Progress
from slurm_ext.staging.plan import Action

_TELL_EVERY_S = 0.5


class Outcome(NamedTuple):
    """How a child ended: a state, or `error` in words where its task can be tried again."""

    state: State | None
    error: str
    moved_bytes: int
    seconds: float


class Worker:
    """One child at work. `descriptor` becomes readable when it has something to tell or has ended."""

    def __init__(self, action: Action, perform: Callable[[Progress], State]) -> None:
        """Start the child: `perform` does the task in it, telling its progress in bytes."""
        self.action = action
        self.started = self.last_sign = time.monotonic()
        self.moved_bytes = 0
        self._buffer = b""
        self._answer = b""
        self._why = "the mover ended without an answer"
        reader, writer = os.pipe()
        parent = os.getpid()
        # A fork of this small, single-threaded process: no exec, so the user need not be able to read our install,
        # and no credentials are in memory yet.
        self.pid = os.fork()
        if self.pid == 0:
            _child(writer, parent, perform)
        os.close(writer)
        os.set_blocking(reader, False)
        self.descriptor = reader

    def read(self) -> bool:
        """Take in what the child tells; return True once it has ended telling."""
        try:
            while chunk := os.read(self.descriptor, 65536):
                self._buffer += chunk
                self.last_sign = time.monotonic()
        except BlockingIOError:
            return False
        finally:
            *lines, rest = self._buffer.split(b"\n")
            for line in lines:
                if line.isdigit():
                    self.moved_bytes += int(line)
                elif line:
                    self._answer = line
            self._buffer = rest
        return True

    def reap(self) -> bool:
        """Collect the child if it has ended; False where it is still there (in the kernel, where nothing ends it)."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def kill(self, why: str = "") -> None:
        """End the child; `why` becomes its outcome unless it told one."""
        self._why = why or self._why
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            # Before its setsid there is no group yet.
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.descriptor)

    def outcome(self) -> Outcome:
        """Return how the child ended; a child that told nothing was killed or crashed."""
        seconds = time.monotonic() - self.started
        if not self._answer:
            return Outcome(None, self._why, self.moved_bytes, seconds)
        told = json.loads(self._answer)
        if told["error"]:
            return Outcome(None, told["error"], self.moved_bytes, seconds)
        return Outcome(State(told["state"], told["words"]), "", self.moved_bytes, seconds)


def _child(writer: int, parent: int, perform: Callable[[Progress], State]) -> None:
    """Run a task in this forked child and tell how it went; never returns."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        # The agent's lock and sockets are not the child's business; stdio stays for what libraries may say.
        os.closerange(3, writer)
        os.closerange(writer + 1, 1024)
        die_with_parent(parent)
        told: dict[str, str]
        try:
            state = perform(_teller(writer))
            told = {"state": state.state, "words": state.words, "error": ""}
        except Exception as exc:  # noqa: BLE001 - whatever a task meets is an answer, and it is tried again
            told = {"state": "", "words": "", "error": f"{type(exc).__name__}: {exc}"[:1000]}
        os.set_blocking(writer, True)
        os.write(writer, b"\n" + json.dumps(told).encode() + b"\n")
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def _teller(writer: int) -> Progress:
    """Return a function that tells moved bytes now and then and never blocks the mover."""
    os.set_blocking(writer, False)
    pending, told_at = 0, time.monotonic()

    def tell(moved: int) -> None:
        nonlocal pending, told_at
        pending += moved
        now = time.monotonic()
        if now - told_at < _TELL_EVERY_S:
            return
        try:
            os.write(writer, b"%d\n" % pending)
            pending = 0
        except BlockingIOError:
            pass
        told_at = now

    return tell
