"""Start a program by posix_spawn(3), in a session of its own: a third of what importing and using subprocess costs a hook.

For command.py and the burn-in's agent. Standard library only, and little of it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from io import FileIO

#: Between two looks at a child that nothing else tells of (seconds): from, to.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.0005, 0.05


class Program:
    """A running program. `returncode` is None until `poll` or `wait` saw its end, then its exit code, negative for a signal."""

    def __init__(
        self, args: Sequence[str], pid: int, stdin: FileIO | None, stdout: FileIO | None, stderr: FileIO | None
    ) -> None:
        self.args, self.pid = tuple(args), pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return `returncode`, looked at now."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else collected it, or we are a fork of its parent: its code is lost
                self.returncode = 0
            else:
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end for at most so many seconds; say whether it has ended."""
        give_up = time.monotonic() + timeout_s
        pause_s = _FIRST_LOOK_S
        while self.poll() is None:
            left_s = give_up - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LAST_LOOK_S)
        return True


def spawn(argv: Sequence[str], *, env: Mapping[str, str], feed: bool = False, stderr: int | None = None) -> Program:
    """Start `argv`; its output comes through pipes, its errors too unless `stderr` is a descriptor that takes them.

    `feed`: it gets an input. A name without a slash is looked for on the PATH of `env`. Raise OSError where it cannot start,
    ValueError for a NUL in an argument.
    """
    path = _found(argv[0], env.get("PATH", ""))
    mine: list[int] = []
    its: list[int] = []

    def pipe(writes: bool) -> int:
        reader, writer = os.pipe()  # neither is inherited
        mine.append(writer if writes else reader)
        its.append(reader if writes else writer)
        return its[-1]

    try:
        standard = [
            pipe(True) if feed else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC),
            pipe(False),
            pipe(False) if stderr is None else stderr,
        ]
        if not feed:
            its.append(standard[0])
        actions: list[tuple[int, ...]] = [
            (os.POSIX_SPAWN_DUP2, _high(fd, its), number) for number, fd in enumerate(standard)
        ]
        actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable() if fd > 2]
        pid = os.posix_spawn(
            path,
            list(argv),
            dict(env),
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # which Python ignores, and programs do not expect
        )
    except BaseException:
        for descriptor in mine:
            os.close(descriptor)
        raise
    finally:
        for descriptor in its:
            os.close(descriptor)
    streams = iter(mine)
    return Program(
        argv,
        pid,
        FileIO(next(streams), "wb") if feed else None,
        FileIO(next(streams), "rb"),
        FileIO(next(streams), "rb") if stderr is None else None,
    )


def _high(descriptor: int, to_close: list[int]) -> int:
    """Return a descriptor above the standard ones: where these are closed, a pipe of ours can have got one of their numbers,
    and be overwritten before its turn comes."""
    if descriptor > 2:
        return descriptor
    import fcntl  # slurmd's hooks have all three open, so this is rare

    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    to_close.append(moved)
    return moved


def _inheritable() -> list[int]:
    """Return the descriptors that a program would inherit: what slurmd left open is none of its business."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:  # the one that read the list
            continue
    return found


def _found(name: str, path: str) -> str:
    """Return the program's path. A name that is nowhere is returned as it is: starting it tells what is wrong."""
    if "/" in name:
        return name
    for folder in path.split(":"):
        candidate = f"{folder}/{name}"
        if folder and os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    return name
