"""Questions of users, answered over a local socket out of what the controller knows; each caller hears of own jobs only.

One line of JSON in ({"ask": "why" or "jobs", "job": "12"}), one line out. The kernel tells who calls (SO_PEERCRED). The
whole is single-threaded: a question waits for the tick that is running.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from slurm_ext.resume.controller import Controller
from slurm_ext.resume.story import jobs_table, why

#: A caller that does not say its line within this time (seconds) is let go.
CALLER_TIMEOUT_S = 1.0
MAX_QUESTION_BYTES = 4096


class Server:
    """The socket of one controller."""

    def __init__(self, path: str, controller: Controller) -> None:
        """Listen at `path`; every local user may connect, and what each hears depends on who it is."""
        self.path, self.controller = path, controller
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._listener.bind(path)
        os.chmod(path, 0o666)  # noqa: S103  a socket: who calls is told by the kernel
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Stop listening."""
        self._selector.close()
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def serve(self, *, until: float, stop: Callable[[], bool]) -> None:
        """Answer questions until a monotonic time (seconds) or until `stop` says so."""
        while not stop() and (left := until - time.monotonic()) > 0:
            # A signal does not end the wait, so look at `stop` a few times a second.
            if not self._selector.select(min(left, 0.25)):
                continue
            with contextlib.suppress(BlockingIOError, OSError):
                caller, _ = self._listener.accept()
                with caller:
                    self._answer(caller)

    def _answer(self, caller: socket.socket) -> None:
        caller.settimeout(CALLER_TIMEOUT_S)
        credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
        question = b""
        give_up = time.monotonic() + CALLER_TIMEOUT_S
        while b"\n" not in question and len(question) < MAX_QUESTION_BYTES and time.monotonic() < give_up:
            chunk = caller.recv(MAX_QUESTION_BYTES)
            if not chunk:
                break
            question += chunk
        answer = self._reply(question, uid)
        caller.sendall(json.dumps({"schema": 1, **answer}).encode() + b"\n")

    def _reply(self, question: bytes, uid: int) -> dict[str, Any]:
        try:
            asked = json.loads(question)
            ask, job = str(asked["ask"]), str(asked.get("job", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            return {"error": "not a question"}
        access = self.controller.settings.access
        everything = uid == 0 or access.users == "all_jobs" or _name(uid) in access.admins
        if access.users == "none" and not everything:
            return {"error": "this site answers administrators only"}
        see = None if everything else uid
        if ask == "why" and job.isdigit():
            return why(
                self.controller.journal,
                job,
                self.controller.jobs,
                self.controller.seen_at,
                self.controller.settings,
                see,
            )
        if ask == "jobs":
            return {"jobs": jobs_table(self.controller.journal, self.controller.settings, see)}
        return {"error": "not a question"}


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def ask(path: str, question: dict[str, str], *, timeout_s: float = 10.0) -> dict[str, Any]:
    """Ask the controller one question and return its answer. Raise OSError or ValueError where there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(timeout_s)
        caller.connect(path)
        caller.sendall(json.dumps(question).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            chunk = caller.recv(1 << 16)
            if not chunk:
                break
            answer += chunk
    found = json.loads(answer)
    if not isinstance(found, dict):
        raise ValueError("the controller answers in a shape that we do not know")
    return found
