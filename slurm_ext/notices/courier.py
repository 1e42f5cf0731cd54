"""Brings what waits in the queue to its targets: each try in a child of its own, one at a time for each target.

`step` returns at once, whatever a target does: a dead target delays neither a tick nor another target. What became of a try
and cannot be written (a full disk) is kept, and its target gets nothing more until it is.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from slurm_ext import events
from slurm_ext.config.model import Settings, Target
from slurm_ext.config.targets import name_of
from slurm_ext.errors import FmslurmError
from slurm_ext.events import Event
from slurm_ext.notices import policy, send, words
from slurm_ext.notices.child import Child
from slurm_ext.notices.model import Delivery, Message, Sent, owner_of
from slurm_ext.notices.queue import Queue

#: So many owners of jobs are written to at once; a site's targets each have a place of their own.
OWNERS_AT_ONCE = 4

#: How long (seconds) an ending daemon waits for tries that are under way, so that they need not be made again.
LAST_S = 2.0


class _Try(NamedTuple):
    delivery: Delivery
    message: Message
    child: Child


class Courier:
    """The tries under way. `crash` is called at named points; tests end the process there."""

    def __init__(self, queue: Queue, events_path: str, *, crash: Callable[[str], None] = lambda _point: None) -> None:
        self.queue, self.events_path, self.crash = queue, events_path, crash
        self._tries: dict[str, _Try] = {}
        self._unwritten: dict[str, tuple[_Try, Sent]] = {}

    def step(self, settings: Settings, cluster: str, now: float) -> None:
        """Collect what became of tries, and start those that are due. Raise sqlite3.Error where the queue cannot be written:
        what could be done is done."""
        broken = self._collect(now)
        targets = {name_of(target): target for target in settings.notify.targets}
        users = settings.notify.users
        self.queue.drop_others(targets, now, users=users)
        self.queue.address({name: target.severity for name, target in targets.items()}, now, users=users)
        for name in self.queue.targets_due(now):
            if name in self._tries or name in self._unwritten:
                continue
            if owner_of(name) >= 0 and sum(owner_of(one) >= 0 for one in self._tries) >= OWNERS_AT_ONCE:
                continue
            self._start(name, targets.get(name), settings, cluster, now)
        if broken is not None:
            raise broken

    def busy(self) -> bool:
        """Say whether a try is under way or waits to be written."""
        return bool(self._tries or self._unwritten)

    def close(self, *, within_s: float = LAST_S) -> None:
        """Wait a moment for tries under way, end the others, and write what can be written: the rest is tried again."""
        give_up = time.monotonic() + within_s
        for one in self._tries.values():
            one.child.wait(max(give_up - time.monotonic(), 0.0))
        with contextlib.suppress(sqlite3.Error):
            self._collect(time.time())
        for one in self._tries.values():
            one.child.kill()

    def _start(self, name: str, target: Target | None, settings: Settings, cluster: str, now: float) -> None:
        choice = policy.choose(self.queue.due(name, now), self.queue.sent_lately(name, now))
        delivery = self.queue.fold(choice.folded, now) if choice.folded else choice.one
        if delivery is None:
            return
        if delivery.tries >= policy.TRIES:  # each time killed before it could be marked
            self._lose(delivery, Sent(False, delivery.said or "no try came to an end"), now)
            return
        notice = self.queue.notice(delivery.notice)
        id_ = f"{cluster}-{int(notice.made_s)}-{notice.id}"
        message = words.message(notice, settings.notify, cluster, id_=id_, severity=delivery.severity)
        delivery = self.queue.meant(delivery, now)
        self.crash("meant")
        child = Child(send.work(settings, target, message), timeout_s=send.WHOLE_S)
        self._tries[name] = _Try(delivery, message, child)
        self.crash("started")

    def _collect(self, now: float) -> sqlite3.Error | None:
        """Write what became of tries that are over; return what kept one from being written."""
        for name, one in list(self._tries.items()):
            if one.child.poll():
                del self._tries[name]
                self._unwritten[name] = (one, send.outcome(one.child.answer, late=one.child.late))
                self.crash("sent")
        broken: sqlite3.Error | None = None
        for name, (one, sent) in list(self._unwritten.items()):
            try:
                self._mark(one, sent, now)
            except sqlite3.Error as exc:
                broken = exc
                continue
            del self._unwritten[name]
            self.crash("marked")
        return broken

    def _mark(self, one: _Try, sent: Sent, now: float) -> None:
        if sent.ok:
            self.queue.mark_sent(one.delivery, sent.said, now)
            self._tell("notice.sent", one.delivery, one.message.kind, one.message.subject, sent.said, "done")
        elif one.delivery.tries >= policy.TRIES:
            self._lose(one.delivery, sent, now)
        else:
            self.queue.mark_failed(one.delivery, sent, now)

    def _lose(self, delivery: Delivery, sent: Sent, now: float) -> None:
        notice = self.queue.notice(delivery.notice)
        self._tell("notice.lost", delivery, notice.kind, f"given up after {delivery.tries} tries", sent.said, "failed")
        self.queue.mark_failed(delivery, sent, now)

    def _tell(self, name: str, delivery: Delivery, kind: str, reason: str, said: str, phase: str) -> None:
        """Write an event; a trail that cannot be written loses nothing but that."""
        data: Mapping[str, object] = {
            "target": delivery.target,
            "kind": kind,
            "tries": delivery.tries,
            "notice": delivery.notice,
        }
        event = Event(
            name, room="notify", reason=f"{delivery.target}: {reason}", phase=phase, evidence=(said,), data=data
        )
        with contextlib.suppress(OSError, FmslurmError):
            events.append(self.events_path, event, durable=True)
