"""Do the container runtimes of this node answer? Asked between jobs, in a child of its own, for a few seconds each.

Those that the site names (gate.container_runtimes); where it names none, of docker and containerd those whose daemon runs. docker's
socket may be systemd's, which starts the daemon for whoever connects: unnamed, it is asked only where the daemon's process lives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from slurm_ext import command
from slurm_ext.config.model import at_node
from slurm_ext.errors import FmslurmError
from slurm_ext.gate import container_runtime, read_small
from slurm_ext.gate.container_runtime import CONTAINERD, DOCKER, DOWN, ERROR, HANGS, PING, SOCKETS, WELL, Answer
from slurm_ext.gate.probes import HEALTH, Check, Here, Probed

#: How long (seconds) each may take, and what part of the look's own time all of them.
EACH_S, PART = 3.0, 0.8

_ANSWER_BYTES = 4096
_OUTPUT_BYTES = 64 << 10

CHECKS: tuple[Check, ...] = (
    Check("container.hangs", "a container runtime does not answer in time", "warn", (HEALTH,), "a connection each"),
    Check("container.down", "one that the site names does not run", "warn", (HEALTH,), "a connection each"),
    Check("container.error", "one answers otherwise than it should", "warn", (HEALTH,), "a connection each"),
)


def look(here: Here) -> Probed:
    """Ask each runtime in turn."""
    named = here.settings.gate.container_runtimes
    runtimes = named or tuple(name for name in (DOCKER, CONTAINERD) if _runs(here, name))
    each_s = min(EACH_S, PART * here.settings.gate.deadline_s / max(len(runtimes), 1))
    answers = [_ask(here, runtime, each_s)._replace(named=bool(named)) for runtime in runtimes]
    asked = [one.runtime for one in answers if one.named or one.how != DOWN]
    return Probed(tuple(container_runtime.judge(answers)), {"asked": asked})


def _runs(here: Here, runtime: str) -> bool:
    """Say whether a daemon that nobody named is to be asked: its socket is there, and for docker its process."""
    if not os.path.lexists(here.path(SOCKETS[runtime])):
        return False
    if runtime != DOCKER:
        return True
    pid = (read_small.text(here.path("run/docker.pid"), 32) or "").strip()
    return pid.isdigit() and (read_small.text(here.path(f"proc/{pid}/comm"), 64) or "").strip() == "dockerd"


def _ask(here: Here, runtime: str, limit_s: float) -> Answer:
    if runtime not in SOCKETS:
        return _run(here, runtime, limit_s)
    try:
        how, said = _connect(here.path(SOCKETS[runtime]), PING if runtime == DOCKER else b"", limit_s)
    except OSError as exc:
        how, said = _of_error(exc, limit_s)
    return Answer(runtime, how, said)


def _of_error(exc: OSError, limit_s: float) -> tuple[str, str]:
    if exc.errno in (errno.ENOENT, errno.ENOTDIR):
        return DOWN, "its socket is not there"
    if exc.errno == errno.ECONNREFUSED:
        return DOWN, "nobody listens on its socket"
    if isinstance(exc, TimeoutError) or exc.errno in (errno.EAGAIN, errno.ETIMEDOUT):
        return HANGS, f"no answer within {limit_s:g} s"
    return ERROR, f"its socket cannot be used: {exc.strerror or exc}"


def _connect(path: str, question: bytes, limit_s: float) -> tuple[str, str]:
    """Connect to a daemon and, where there is a question, read its answer. OSError says what went wrong."""
    import socket

    folder, name = os.path.split(path)
    descriptor = os.open(
        folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    )  # the name of a socket has 107 bytes at most
    try:
        state = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        if not stat.S_ISSOCK(state.st_mode) or state.st_uid not in (0, os.geteuid()):
            return ERROR, "what has its socket's name is no socket of root's"
        deadline = time.monotonic() + limit_s
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(limit_s)
            link.connect(f"/proc/self/fd/{descriptor}/{name}")
            if not question:
                return WELL, ""
            link.sendall(question)
            said = b""
            while len(said) < _ANSWER_BYTES and b"\n" not in said:
                link.settimeout(max(deadline - time.monotonic(), 0.001))
                part = link.recv(_ANSWER_BYTES)
                if not part:
                    break
                said += part
            return container_runtime.read_ping(said.decode("latin-1"))
    finally:
        os.close(descriptor)


def _run(here: Here, runtime: str, limit_s: float) -> Answer:
    """Ask a program for its version.

    enroot makes its folders whatever it is asked, for root alone where root is first: /run/enroot would be shut for users. So
    all of them are one of ours for as long as it runs, and so is HOME.
    """
    from slurm_ext.gate.efa_live_node import may_run

    places = [here.path(f"usr/{folder}/{runtime}") for folder in ("bin", "local/bin")]
    program = next((path for path in places if may_run(path)), "")
    if not program:
        return Answer(runtime, DOWN, "there is no such program that root may run")
    place = os.path.join(at_node(here.settings.site.run_dir, here.node), "container-probe")
    names = ("HOME", "TMPDIR", *(f"ENROOT_{name}_PATH" for name in ("CACHE", "DATA", "RUNTIME", "TEMP", "CONFIG")))
    try:
        _remove(place)  # of a look that was ended
        os.mkdir(place, 0o700)
        try:
            env = command.clean_env(**dict.fromkeys(names, place))
            said = command.run([program, "version"], timeout_s=limit_s, env=env, max_output_bytes=_OUTPUT_BYTES)
        finally:
            _remove(place)
    except (OSError, FmslurmError) as exc:
        return Answer(runtime, ERROR, f"it cannot be asked: {exc}")
    if said.timed_out:
        return Answer(runtime, HANGS, f"{runtime} version: no answer within {limit_s:g} s")
    return Answer(runtime, *container_runtime.read_version(said.returncode, said.stdout, said.stderr))


def _remove(place: str) -> None:
    import shutil

    with contextlib.suppress(OSError):
        shutil.rmtree(place)
