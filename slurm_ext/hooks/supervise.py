"""A hook that keeps its deadline whatever happens below it: the process that slurmd waits for only waits, too.

The work runs in a forked worker. Where it does not answer in time it is killed and left, and the hook passes: a broken
tool of ours is never a node's fault. Standard library only, and little of it: this is imported by every hook.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable

#: Until the worker has read the settings and said how long it may take (seconds).
FIRST_S = 20.0

#: The worker keeps its own deadline; this much more (seconds) means that it is stuck.
MARGIN_S = 5.0

#: How long (seconds) we wait for tools that a stuck worker had started to end once they are killed.
ORPHANS_S = 0.5

PASS, FAIL = 0, 1


def supervise(work: Callable[[Callable[[float], None]], int], *, late: Callable[[float], None]) -> int:
    """Run `work` in a child and return its exit code, 0 or 1; 0 where it broke, was killed, or ran past its deadline.

    `work` gets a function with which it says how many seconds from now it may take at most. `late` is called with the
    seconds waited where there was no answer, and must be quick.
    """
    started = time.monotonic()
    _hold_standard()
    reader, writer = os.pipe()
    # fork and no exec: what the worker needs is imported already, and a start of Python more would double the time.
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _worker(work, writer)
    os.close(writer)
    deadline = started + FIRST_S
    text = b""
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([reader], [], [], left)
        if not ready:
            break
        chunk = os.read(reader, 4096)
        if not chunk:
            break
        text += chunk
        for line in text.split(b"\n")[:-1]:
            if line.startswith(b"within "):
                deadline = max(deadline, started + float(line[7:]) + MARGIN_S)
            elif line in (b"exit 0", b"exit 1"):
                os.close(reader)
                _reap(pid)
                return FAIL if line == b"exit 1" else PASS
        text = text[text.rfind(b"\n") + 1 :]
    os.close(reader)
    from slurm_ext.hooks import orphans

    adopted = orphans.adopt()
    os.kill(pid, signal.SIGKILL)
    _reap(pid)
    if adopted:
        orphans.end(pid, ORPHANS_S)
    late(time.monotonic() - started)
    return PASS


def _hold_standard() -> None:
    """Open what is closed of the three standard descriptors: a pipe of ours would get its number, and be written over."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free


def _worker(work: Callable[[Callable[[float], None]], int], writer: int) -> None:
    code = PASS
    started = time.monotonic()

    def within(seconds: float) -> None:
        os.write(writer, f"within {time.monotonic() - started + seconds:.3f}\n".encode())

    try:
        # slurmd waits until the hook's output closes: a worker that cannot be killed must not hold it.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1):
            os.dup2(nowhere, standard)
        if not os.environ.get("FMSLURM_TRACE"):
            os.dup2(nowhere, 2)
        code = FAIL if work(within) == FAIL else PASS
        os.write(writer, f"exit {code}\n".encode())
    except BaseException:  # noqa: BLE001 - the last line of defence: whatever broke in us, the job passes
        import traceback

        log(f"hook broke and lets the job pass: {traceback.format_exc(limit=-3)}")
        os.write(writer, b"exit 0\n")
    finally:
        os._exit(code)


def _reap(pid: int) -> None:
    """Collect the child if it ends within a moment; one in D state is left to init."""
    give_up = time.monotonic() + 0.5
    while time.monotonic() < give_up:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.001)


def log(text: str) -> None:
    """Say one line to the system log, where there is one; never raises and never waits."""
    import socket

    line = " ".join(text.split())[:1000]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(f"<28>fmslurm-hook[{os.getpid()}]: {line}".encode(), "/dev/log")
    except OSError:
        if os.environ.get("FMSLURM_TRACE"):
            sys.stderr.write(line + "\n")
