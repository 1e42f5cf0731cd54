"""Programs of a slow check, seen from its leader: started with its token, waited for together, ended when a job asks for it."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Sequence

from slurm_ext.command import clean_env
from slurm_ext.gate.slow_result import ENDED, LATE

#: What one may write into one file (bytes): answers are far smaller.
OUTPUT_BYTES = 8 << 20

#: How long a program gets to end by itself when told so, and after SIGKILL (seconds).
STOP_S, KILL_S = 30.0, 5.0


class Program:
    """One program that runs: `code` is its exit code, negative for a signal, and None as long as it has not ended."""

    def __init__(self, argv: Sequence[str], token: str, **environment: str) -> None:
        """Start it. OSError is the caller's."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
        self.code: int | None = None
        self._out, self._err = os.memfd_create("out"), os.memfd_create("err")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_BYTES, limits[1]))
        try:
            self.pid = os.posix_spawn(
                argv[0],
                list(argv),
                clean_env(FMSLURM_SLOW=token, **environment),
                file_actions=[(os.POSIX_SPAWN_DUP2, self._out, 1), (os.POSIX_SPAWN_DUP2, self._err, 2)],
                setsigmask=[],
                setsigdef=[signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE],
            )
        except OSError:
            self._close()
            raise
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def has_ended(self) -> bool:
        """Say whether it has ended, without waiting."""
        if self.code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.code = 0
            else:
                self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def end(self, *, kindly_s: float = STOP_S) -> None:
        """End it: by a word that it may heed for so long (seconds), then by force. One that sleeps in the kernel is left."""
        if not self.has_ended():
            os.kill(self.pid, signal.SIGTERM)
            if wait([self], time.monotonic() + kindly_s, heed=False):
                os.kill(self.pid, signal.SIGKILL)
                wait([self], time.monotonic() + KILL_S, heed=False)

    def said(self) -> tuple[str, str]:
        """Return what it wrote so far to its two outputs, and forget both."""
        texts = _content(self._out), _content(self._err)
        self._close()
        return texts

    def _close(self) -> None:
        for descriptor in (self._out, self._err):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def wait(programs: Sequence[Program], deadline: float, *, heed: bool = True) -> str:
    """Wait until all have ended; return why not (LATE, ENDED), empty where they have. `heed`: stop on SIGTERM."""
    while not all([program.has_ended() for program in programs]):
        left = deadline - time.monotonic()
        if left <= 0:
            return LATE
        woken = signal.sigtimedwait({signal.SIGCHLD, *({signal.SIGTERM} if heed else ())}, min(left, 5.0))
        if woken is not None and woken.si_signo == signal.SIGTERM:
            return ENDED
    return ""


def pause(seconds: float) -> str:
    """Wait a moment; return ENDED where a job asks for the end, else empty."""
    return ENDED if signal.sigtimedwait({signal.SIGTERM}, seconds) is not None else ""


def _content(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, min(size, OUTPUT_BYTES), 0).decode("utf-8", "replace")
