"""A notice as JSON on the input of a site's own program, which root must own: anybody who may change it would be root."""

from __future__ import annotations

import json
import os
import stat

from slurm_ext.command import clean_env, run
from slurm_ext.errors import CommandNotFoundError
from slurm_ext.files import owner_is_trusted
from slurm_ext.notices.model import Message, Sent
from slurm_ext.verdict import one_line

#: A program may take so long (seconds), then it is killed with all it started; so much of what it says is kept.
TIMEOUT_S, SAID_BYTES = 20.0, 16 << 10


def untrusted(path: str) -> str:
    """Return why root must not run a program; empty where it may.

    Program and folders up to / belong to root (or to us) and are written by nobody else; a folder such as /tmp, where each
    may only remove what is one's own, is fine.
    """
    real = os.path.realpath(path)
    try:
        state = os.stat(real)
    except OSError as exc:
        return f"{path}: {exc.strerror}"
    if not stat.S_ISREG(state.st_mode):
        return f"{path} is no program"
    if not owner_is_trusted(state):
        return (
            f"{real} belongs to uid {state.st_uid} with mode {stat.S_IMODE(state.st_mode):04o}: chown root, chmod go-w"
        )
    if not state.st_mode & 0o111:
        return f"{real} may not be run: chmod +x"
    folder = os.path.dirname(real)
    while True:
        found = os.stat(folder)
        shared = found.st_uid == 0 and bool(found.st_mode & stat.S_ISVTX)
        if not (owner_is_trusted(found) or shared):
            return f"{folder}, in which it lies, may be written by others: chown root, chmod go-w"
        if folder == "/":
            return ""
        folder = os.path.dirname(folder)


def as_json(message: Message) -> str:
    """Return what a program reads: one JSON object on one line. Pure."""
    told = {name: value for name, value in message._asdict().items() if name != "owner"}
    return json.dumps({"schema": 1, **told}) + "\n"


def send(path: str, message: Message, *, timeout_s: float = TIMEOUT_S) -> Sent:
    """Run the program, with a clean environment and no arguments; exit code 0 means that it told somebody."""
    if wrong := untrusted(path):
        return Sent(False, one_line(wrong))
    try:
        done = run(
            [path],
            timeout_s=timeout_s,
            env=clean_env(),
            input_text=as_json(message),
            cwd="/",
            max_output_bytes=SAID_BYTES,
        )
    except CommandNotFoundError as exc:
        return Sent(False, one_line(str(exc)))
    said = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return Sent(True, one_line(said[-1]) if said else "exit 0") if done.ok else Sent(False, one_line(done.words()))
