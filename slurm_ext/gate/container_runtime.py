"""What container runtimes answered, and what it means. Pure.

Sources: docker's Engine API, GET /_ping (docs.docker.com/engine/api: 200 and OK, without a lock of the daemon's); containerd's socket
(github.com/containerd/containerd, defaults/defaults_unix.go); github.com/NVIDIA/enroot, enroot.in: its configuration is read and
its folders are made before `version` prints; `apptainer version`. Nothing of this convicts a node: jobs that need no container run
on, and restarting a daemon is a person's to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext.gate.model import Judged, judged
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import WARN, one_line

#: Those that have a daemon with a socket, below the root; and those that are a program only.
DOCKER, CONTAINERD = "docker", "containerd"
SOCKETS = {DOCKER: "run/docker.sock", CONTAINERD: "run/containerd/containerd.sock"}
PROGRAMS = ("enroot", "apptainer")

#: How a runtime answered: well; not in time; not at all (no socket, nobody listens, no program); otherwise than it should.
WELL, HANGS, DOWN, ERROR = "well", "hangs", "down", "error"

PING = b"GET /_ping HTTP/1.0\r\nHost: docker\r\nUser-Agent: fmslurm\r\n\r\n"

_STATUS = pattern(r"HTTP/1\.[01] (\d{3})\b", needs="HTTP/1.")
_VERSION = pattern(r"v?\d+\.\d+")


class Answer(NamedTuple):
    """How one runtime answered, and what was seen in words. `named`: the site asks for it."""

    runtime: str
    how: str
    said: str = ""
    named: bool = True


def read_ping(text: str) -> tuple[str, str]:
    """Return how docker's daemon answered PING, and what it said."""
    status = _STATUS.match(text)
    if status is None:
        return ERROR, f"no HTTP: {one_line(text, 120)}" if text.strip() else "it closed the connection without a word"
    return (WELL, "") if status[1] == "200" else (ERROR, one_line(text.partition("\n")[0], 120))


def read_version(code: int | None, out: str, err: str) -> tuple[str, str]:
    """Return how a program answered that was asked for its version."""
    last = next((line for line in reversed(f"{out}\n{err}".splitlines()) if line.strip()), "it said nothing")
    if code == 0 and _VERSION.search(out):
        return WELL, ""
    return ERROR, f"exit {code}: {one_line(last, 160)}"


def judge(answers: Sequence[Answer]) -> list[Judged]:
    """Return what answers mean. A daemon that nobody named and that does not run is no finding."""
    items = []
    for one in answers:
        target = f"runtime:{one.runtime}"
        if one.how == HANGS:
            items.append(judged(WARN, "container.hangs", target, "warn", one.said))
        elif one.how == DOWN and one.named:
            items.append(judged(WARN, "container.down", target, "warn", one.said))
        elif one.how == ERROR:
            items.append(judged(WARN, "container.error", target, "warn", one.said))
    return items
