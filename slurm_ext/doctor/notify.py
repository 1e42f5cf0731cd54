"""Doctor's part on notices: is anybody told, and does it arrive? `collect` looks, `rule` judges."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from slurm_ext.command import call_bounded
from slurm_ext.config.model import Settings
from slurm_ext.doctor.model import OK, UNKNOWN, WARN, Result
from slurm_ext.errors import LackingError
from slurm_ext.notices import ready
from slurm_ext.notices.queue import Queue
from slurm_ext.notices.ready import State
from slurm_ext.resume.daemon import journal_path
from slurm_ext.resume.journal import Journal

#: Looking at files and journal may take so long (seconds).
PROBE_S = 5.0


class Notices(NamedTuple):
    """What doctor knows of notices: each target, and why secrets of theirs are none."""

    targets: tuple[State, ...] = ()
    secret: str = ""
    unknown: str = ""


def collect(settings: Settings, config_path: str, slurm_config: Mapping[str, str] | None) -> Notices:
    """Look at the targets and at what the controller's journal says of them; nothing is sent."""
    if not settings.notify.targets:
        return Notices()
    mailprog = (slurm_config or {}).get("MailProg", "")

    def look() -> bytes:
        try:
            journal = Journal(journal_path(settings), readonly=True)
        except LackingError:
            return json.dumps(ready.states(settings, None, mailprog=mailprog)).encode()
        with contextlib.closing(journal):
            return json.dumps(ready.states(settings, Queue(journal.db), mailprog=mailprog)).encode()

    answer = call_bounded(look, timeout_s=PROBE_S)  # a program may lie on a file server that hangs
    if answer is None:
        return Notices(unknown=f"the targets could not be looked at within {PROBE_S:g} s")
    secret = ready.open_secrets(settings.notify.targets, config_path)
    return Notices(tuple(State(*row) for row in json.loads(answer)), secret)


def rule(settings: Settings, found: Notices) -> Iterator[Result]:
    """Judge what was found. Pure."""
    if found.unknown:
        yield Result("notify.targets", UNKNOWN, found.unknown)
        return
    if not found.targets:
        acting = [room for room in ("gate", "burnin", "resume") if getattr(settings.mode, room) == "enforce"]
        if acting:
            text = f"nobody is told when the breaker opens or a node is drained, and {', '.join(acting)} enforces"
            yield Result("notify.targets", WARN, text, "Name a target in notify.targets, then `fmslurm notify test`")
        return
    if found.secret:
        yield Result("notify.secret", WARN, found.secret, "Use webhook_file, a file that only root may read")
    bad = False
    for state in found.targets:
        if state.problem:
            bad = True
            yield Result(
                "notify.target",
                WARN,
                f"{state.name} cannot work: {state.problem}",
                f"`fmslurm notify test {state.name}`",
            )
        elif state.fails:
            bad = True
            text = f"the last try of {state.name} failed ({state.said}); {state.waiting} wait, {state.lost} were lost"
            yield Result("notify.target", WARN, text, f"`fmslurm notify test {state.name}`, `fmslurm notify list`")
    if not bad:
        names = ", ".join(state.name for state in found.targets)
        if not all(state.tried for state in found.targets):
            names += "; whether notices arrived stands in the controller's journal, which is root's, and on its machine"
        elif not any(state.last_sent for state in found.targets):
            names += "; none was used yet: `fmslurm notify test` tries them"
        yield Result("notify.targets", OK, names)
