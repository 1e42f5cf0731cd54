"""Could a target be used, and how did it do so far? For `fmslurm notify list` and doctor; nothing is sent."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from slurm_ext.config.model import Settings, Target
from slurm_ext.config.targets import URL_CHARS, kind_of, masked, name_of, parse_url
from slurm_ext.errors import FmslurmError
from slurm_ext.files import read_trusted
from slurm_ext.notices.mail import SENDMAIL
from slurm_ext.notices.program import untrusted
from slurm_ext.notices.queue import Queue


class State(NamedTuple):
    """One target as it may be shown. Times are seconds since the epoch, None: never. `problem`: why it cannot work, as far as
    can be seen from here; `tried` is False where the journal could not be read."""

    name: str
    kind: str
    where: str
    severity: str
    problem: str = ""
    waiting: int = 0
    sent: int = 0
    lost: int = 0
    last_sent: float | None = None
    last_failed: float | None = None
    said: str = ""
    tried: bool = False

    @property
    def fails(self) -> bool:
        """Say whether its last try failed."""
        return self.last_failed is not None and self.last_failed > (self.last_sent or 0.0)


def states(settings: Settings, queue: Queue | None, *, mailprog: str = "") -> list[State]:
    """Return how each target of the settings does; `queue` None: the journal cannot be read here."""
    return [_state(target, queue, mailprog) for target in settings.notify.targets]


def _state(target: Target, queue: Queue | None, mailprog: str) -> State:
    kind = kind_of(target)
    state = State(name_of(target), kind, str(getattr(masked(target), kind)), target.severity, problem(target, mailprog))
    if queue is None:
        return state
    try:
        return state._replace(tried=True, **queue.standing(state.name)._asdict())
    except sqlite3.Error:  # a journal that no controller of this version has opened yet
        return state


def problem(target: Target, mailprog: str = "") -> str:
    """Return why a target cannot work, as far as files on this machine tell; empty where nothing speaks against it."""
    if target.command:
        return untrusted(target.command)
    if target.webhook_file:
        try:
            text = read_trusted(target.webhook_file, max_bytes=URL_CHARS + 2).decode("ascii", "replace").strip()
        except (OSError, FmslurmError) as exc:
            return f"{target.webhook_file}: {getattr(exc, 'strerror', None) or exc}"
        wrong = parse_url(text)[1]
        return f"{target.webhook_file}: {wrong}" if wrong else ""
    if target.mail:
        known = [*SENDMAIL, *([mailprog] if mailprog else [])]
        if not any(os.path.exists(path) for path in known):
            return f"there is neither {SENDMAIL[0]} nor Slurm's MailProg ({mailprog or 'none'})"
    return ""


def open_secrets(targets: Iterable[Target], config_path: str) -> str:
    """Return why secrets in the configuration file are none: others may read it. Empty where they may not, or there are none."""
    if not any(target.webhook for target in targets):
        return ""
    try:
        mode = os.stat(config_path).st_mode
    except OSError:
        return ""
    return f"{config_path} holds the URL of a webhook, and everyone may read it" if mode & 0o004 else ""
