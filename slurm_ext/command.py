"""The one runner of programs: argv list, never a shell, always a deadline, a session of its own, output bounded.

Standard library only: hooks import this.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from slurm_ext.errors import CommandNotFoundError
from slurm_ext.spawn import Program, spawn
from slurm_ext.typed import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import subprocess
    from typing import TypeAlias

    Child: TypeAlias = Program | "subprocess.Popen[bytes]"

#: What every program of ours gets as environment unless told otherwise: nothing of the caller's leaks in.
CLEAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CLEAN_ENV: Mapping[str, str] = {
    "PATH": CLEAN_PATH,
    "LC_ALL": "C",
    "LANG": "C",
    "SLURM_TIME_FORMAT": "%Y-%m-%dT%H:%M:%S",
}

#: After SIGKILL a process in D state cannot end; we wait this long for it and then leave it behind.
ABANDON_S = 1.0

#: Once a program has ended, what it left behind may go on writing into its output; we listen to that no longer than this.
LINGER_S = 0.5

#: Children left behind: collected once they have ended, so that a daemon gathers no zombies.
_left_programs: list[Child] = []
_left_pids: list[int] = []


class Result(NamedTuple):
    """How a program ended: `returncode` is negative for a signal, None when it was abandoned; output is decoded, lossy.

    `seconds` is what it took, `limit_s` what it was given.
    """

    argv: tuple[str, ...]
    returncode: int | None
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False
    truncated: bool = False
    limit_s: float = 0.0

    @property
    def ok(self) -> bool:
        """True where the program ended by itself, in time, with exit code 0."""
        return self.returncode == 0 and not self.timed_out

    def words(self) -> str:
        """Return one line that says what happened, for an error message or an event."""
        if self.timed_out:
            return f"{self.argv[0]}: no answer within {self.limit_s or self.seconds:.1f} s"
        said = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return f"{self.argv[0]}: exit {self.returncode}" + (f": {said[-1][:300]}" if said else "")


def clean_env(**more: str) -> dict[str, str]:
    """Return CLEAN_ENV plus `more` as a new dict."""
    return {**CLEAN_ENV, **more}


def smi_path(root: str) -> str:
    """Return the nvidia-smi to ask: the one below `root`, else the first on the fixed PATH."""
    below = os.path.join(root, "usr/bin/nvidia-smi")
    return below if os.access(below, os.X_OK) else "nvidia-smi"


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    input_text: str | None = None,
    cwd: str | None = None,
    max_output_bytes: int = 16 << 20,
    user: int | None = None,
    group: int | None = None,
) -> Result:
    """Run `argv` to its end or to `timeout_s` (seconds), then kill its whole session, and return a Result.

    A non-zero exit is not an exception. A program that ignores SIGKILL (D state) is abandoned after ABANDON_S: the
    caller is never held by it. Output past `max_output_bytes` per stream is read and dropped, and `truncated` says so.
    `user` and `group` (numeric) drop rights before exec; supplementary groups are cleared with them.

    Raise CommandNotFoundError where the program does not exist or may not be executed.
    """
    child = start(argv, env=env, feed=input_text is not None, cwd=cwd, user=user, group=group)
    return finish(child, timeout_s=timeout_s, input_text=input_text, max_output_bytes=max_output_bytes)


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    feed: bool = False,
    cwd: str | None = None,
    user: int | None = None,
    group: int | None = None,
) -> Child:
    """Start a program as `run` does, for `finish`, which must follow; `feed`: it gets an input. It runs meanwhile."""
    _collect_left()
    environment = dict(env if env is not None else CLEAN_ENV)
    try:
        if cwd is None and user is None and group is None:
            return spawn(argv, env=environment, feed=feed)
        import subprocess  # imports more than a hook has time for

        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if feed else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=cwd,
            start_new_session=True,
            close_fds=True,
            user=user,
            group=group,
            extra_groups=[] if user is not None else None,
        )
    except (OSError, ValueError) as exc:  # ValueError: a NUL in an argument
        said = getattr(exc, "strerror", None) or str(exc)
        where = f" in {cwd}" if cwd is not None and getattr(exc, "filename", None) == cwd else ""
        raise CommandNotFoundError(
            f"cannot run {argv[0]}{where}: {said}", remedy="Install it or correct its path"
        ) from exc


def finish(
    child: Child,
    *,
    timeout_s: float,
    input_text: str | None = None,
    max_output_bytes: int = 16 << 20,
    abandon_s: float | None = None,
) -> Result:
    """Let a program that `start` started run to its end or to `timeout_s` (seconds from now), as `run` does."""
    started = time.monotonic()
    deadline = started + timeout_s
    try:
        buffers, truncated, timed_out = _converse(child, input_text, deadline, max_output_bytes)
        if not timed_out:
            timed_out = not _wait(child, deadline)
    except BaseException:  # Ctrl-C does not reach a session of its own
        _kill_session(child.pid)
        raise
    # Whatever it left running in its session ends with it; a normal end leaves an empty group and ESRCH.
    _kill_session(child.pid)
    if timed_out:
        _wait(child, time.monotonic() + (ABANDON_S if abandon_s is None else abandon_s))
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None and not stream.closed:
            stream.close()
    if child.returncode is None:
        _left_programs.append(child)
    argv = tuple(map(str, child.args))  # type: ignore[arg-type]
    out, err = (buffer.decode("utf-8", "replace") for buffer in buffers)
    return Result(argv, child.returncode, out, err, time.monotonic() - started, timed_out, truncated, timeout_s)


def _converse(
    child: Child, input_text: str | None, deadline: float, limit: int
) -> tuple[tuple[bytes, bytes], bool, bool]:
    """Feed stdin and collect stdout and stderr until both close or the deadline passes; return (buffers, truncated, late)."""
    pending = memoryview(input_text.encode("utf-8", "surrogateescape")) if input_text is not None else memoryview(b"")
    collected: dict[str, bytearray] = {"out": bytearray(), "err": bytearray()}
    truncated = False
    with selectors.DefaultSelector() as selector:
        for name, stream in (("out", child.stdout), ("err", child.stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, name)
        if child.stdin is not None:
            os.set_blocking(child.stdin.fileno(), False)
            selector.register(child.stdin, selectors.EVENT_WRITE, "in")
        ended_at: float | None = None
        while selector.get_map():
            left = deadline - time.monotonic()
            if ended_at is None and child.poll() is not None:
                ended_at = time.monotonic()
            if ended_at is not None and time.monotonic() > ended_at + LINGER_S:
                break
            if left <= 0:
                return (bytes(collected["out"]), bytes(collected["err"])), truncated, True
            for key, _ in selector.select(min(left, 0.1)):
                if key.data == "in":
                    pending = _feed(child, pending)
                    if not pending:
                        selector.unregister(key.fileobj)
                        assert child.stdin is not None
                        child.stdin.close()
                    continue
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                room = limit - len(collected[key.data])
                truncated = truncated or room < len(chunk)
                collected[key.data] += chunk[: max(room, 0)]
            # A daemon that the program left behind may hold the pipes open for ever: its own end is enough for us.
            if selector.get_map() and child.poll() is not None and not selector.select(0.05):
                break
    return (bytes(collected["out"]), bytes(collected["err"])), truncated, False


def leave(child: Child) -> None:
    """Take over a program that its starter does not wait for: it is collected by a later call, once it has ended."""
    _collect_left()
    _left_pids.append(child.pid)
    child.returncode = 0  # not known: nobody asks it, and it must not warn that it runs on


def collect(child: Child, *, within_s: float) -> None:
    """Collect a program that `leave` took over and that was killed, if it ends within so many seconds."""
    give_up = time.monotonic() + within_s
    _collect_left()
    while child.pid in _left_pids and time.monotonic() < give_up:
        time.sleep(0.0005)
        _collect_left()


def _feed(child: Child, pending: memoryview) -> memoryview:
    """Write what fits to the child's stdin and return what is left; a child that stopped reading gets no more."""
    assert child.stdin is not None
    try:
        return pending[os.write(child.stdin.fileno(), pending[:65536]) :]
    except BlockingIOError:
        return pending
    except BrokenPipeError:
        return memoryview(b"")


def _wait(child: Child, deadline: float) -> bool:
    """Wait for the child until the monotonic deadline; say whether it ended."""
    left_s = max(deadline - time.monotonic(), 0.0)
    if isinstance(child, Program):
        return child.wait(left_s)
    import subprocess

    try:
        child.wait(left_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def call_bounded(work: Callable[[], bytes], *, timeout_s: float) -> bytes | None:
    """Run `work` in a forked child and return the bytes it returned, or None where it failed or took too long.

    For calls that may hang in the kernel (a dead file server, a wedged driver): the child is killed and, if it cannot
    die, left behind; the caller goes on in time. `work` must not rely on threads or open connections of the caller.
    """
    return call_all_bounded({"": work}, timeout_s=timeout_s)[""]


def call_all_bounded(works: Mapping[str, Callable[[], bytes]], *, timeout_s: float) -> dict[str, bytes | None]:
    """Run each of `works` in a forked child of its own, all at once, and return what each returned, as `call_bounded` does.

    One deadline (seconds) holds for all: a child that hangs costs the caller no more than that, however many hang.
    """
    _collect_left()
    deadline = time.monotonic() + timeout_s
    received = {name: bytearray() for name in works}
    complete: set[str] = set()
    with selectors.DefaultSelector() as selector:
        children = {name: _fork(work, selector, name) for name, work in works.items()}
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if chunk := os.read(key.fd, 65536):
                    received[key.data] += chunk
                    continue
                complete.add(key.data)
                selector.unregister(key.fd)
                os.close(key.fd)
        for key in list(selector.get_map().values()):
            os.close(key.fd)
    for name in works.keys() - complete:
        _kill_session(children[name])
        os.kill(children[name], signal.SIGKILL)  # not yet reaped, so the pid is still ours; it may have no session yet
    give_up = time.monotonic() + ABANDON_S
    answers: dict[str, bytes | None] = {}
    for name, pid in children.items():
        # Whoever has said all is on its way out, which a busy machine makes slow: no reason to take it for a failure.
        ended_well = _reap(pid, max(give_up, deadline) if name in complete else give_up)
        answers[name] = bytes(received[name]) if name in complete and ended_well else None
    return answers


def _fork(work: Callable[[], bytes], selector: selectors.BaseSelector, name: str) -> int:
    """Start one child that writes what `work` returns into a pipe which `selector` then watches; return its pid."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        selector.register(reader, selectors.EVENT_READ, name)
        return pid
    code = 1
    try:
        os.setsid()
        # A child left behind must hold nothing of ours: slurmd waits until a hook's inherited stdout closes.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        os.closerange(3, writer)
        os.closerange(writer + 1, 1024)
        answer = work()
        with os.fdopen(writer, "wb") as stream:
            stream.write(answer)
        code = 0
    finally:
        os._exit(code)


def _reap(pid: int, give_up: float) -> bool:
    """Collect a child until the monotonic time `give_up`; say whether it ended with exit code 0."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        if time.monotonic() >= give_up:
            _left_pids.append(pid)
            return False
        time.sleep(0.0005)


def _collect_left() -> None:
    """Collect children that were left behind and have ended since; make sure that the next ones can be collected."""
    for child in [child for child in _left_programs if child.poll() is not None]:
        with contextlib.suppress(ValueError):  # another thread was first
            _left_programs.remove(child)
    for pid in [pid for pid in _left_pids if _has_ended(pid)]:
        with contextlib.suppress(ValueError):
            _left_pids.remove(pid)
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        # Inherited from whoever started us; the kernel would throw every exit code away.
        with contextlib.suppress(ValueError):  # not the main thread, which has done it or will
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # we are ourselves a fork of the process whose child it is
        return True
