"""Work in a child that nobody waits for: started, looked at now and then, and killed at its deadline.

For a daemon of one thread: no network and no file server ever holds its tick. The child has a session and no descriptor of
ours but a place in memory for its answer, and ends by itself should the daemon be gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

#: An answer is no longer than this; of a longer one nothing is taken.
ANSWER_BYTES = 16 << 20

#: So long (seconds) behind its deadline a child's own alarm ends it, should nobody be there to kill it.
ALARM_S = 5

#: Killed children that sleep in the kernel: collected once they have ended.
_left: list[int] = []


class Child:
    """One running piece of work. `answer` is what it returned: None as long as it runs, and where it broke or was late."""

    def __init__(self, work: Callable[[], bytes], *, timeout_s: float) -> None:
        """Start `work`; it may use nothing of ours that a fork must not share: no database, no socket."""
        _left[:] = [pid for pid in _left if _ended(pid) is None]
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self.answer: bytes | None = None
        self.late = False
        self._over = False
        # Not a pipe: that is full after 64 KiB, and we look seldom.
        self._place = os.memfd_create("fmslurm-answer", os.MFD_CLOEXEC)
        self.pid = os.fork()
        if not self.pid:
            _be_child(work, self._place, timeout_s)

    def poll(self) -> bool:
        """Look at it; say whether it is over. At its deadline its whole session is killed."""
        if self._over:
            return True
        code = _ended(self.pid)
        if code is None and time.monotonic() >= self.deadline:
            self.late = True
            self.kill()
            return True
        if code is not None:
            self._finish(code)
        return self._over

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end for so long (seconds); say whether it is over."""
        give_up = time.monotonic() + timeout_s
        while not self.poll():
            if time.monotonic() >= give_up:
                return False
            time.sleep(0.01)
        return True

    def kill(self) -> None:
        """End it and all that is in its session; one that cannot die is left behind."""
        if self._over:
            return
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(self.pid, signal.SIGKILL)
        give_up = time.monotonic() + 0.2
        while (code := _ended(self.pid)) is None and time.monotonic() < give_up:
            time.sleep(0.005)
        if code is None:
            _left.append(self.pid)
        self._finish(1)

    def _finish(self, code: int) -> None:
        self._over = True
        size = os.fstat(self._place).st_size
        if code == 0 and size <= ANSWER_BYTES:
            self.answer = os.pread(self._place, size, 0)
        os.close(self._place)


def _ended(pid: int) -> int | None:
    """Return a child's exit code (negative for a signal), None as long as it runs."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # somebody else collected it
        return 1
    return os.waitstatus_to_exitcode(status) if found else None


def _be_child(work: Callable[[], bytes], place: int, timeout_s: float) -> None:
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(int(timeout_s) + ALARM_S)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        os.closerange(3, place)
        os.closerange(place + 1, 4096)
        answer = work()
        os.ftruncate(place, 0)
        with os.fdopen(place, "wb") as stream:
            stream.write(answer)
        code = 0
    finally:
        os._exit(code)
