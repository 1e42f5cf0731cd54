"""The controller's part in notices: looks at the nodes now and then, takes in what is new, and lets the courier bring it.

All that may hang is done in children; `step` returns at once and raises nothing but what it says.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from typing import Any

from slurm_ext.config.model import Settings
from slurm_ext.errors import LackingError
from slurm_ext.notices import look, watch
from slurm_ext.notices.child import Child
from slurm_ext.notices.courier import Courier
from slurm_ext.notices.model import Fact
from slurm_ext.notices.queue import TRAIL, Queue

#: Between two looks at the share, and between two readings of all nodes' trails (seconds).
LOOK_S, TRAILS_S = 5.0, 30.0

#: Who begins to listen, for the first time or after so long (seconds), is not told what is older than an hour.
SILENCE_S, OLD_S = 7 * 86_400.0, 3_600.0

_MIND, _LOOKED = "mind", "looked"


class Desk:
    """Looks and tries under way. `own_facts` returns what the caller itself has to tell, told once for its key."""

    def __init__(
        self,
        db: sqlite3.Connection,
        events_path: str,
        *,
        config_path: str = "",
        own_facts: Callable[[float], Iterable[Fact]] = lambda _now: (),
        crash: Callable[[str], None] = lambda _point: None,
    ) -> None:
        self.queue = Queue(db)
        self.courier = Courier(self.queue, events_path, crash=crash)
        self.config_path, self.own_facts = config_path, own_facts
        self.look_s, self.trails_s = LOOK_S, TRAILS_S
        self._look: Child | None = None
        self._looked_at = self._trails_at = 0.0
        self._saved_at = 0.0

    def step(self, settings: Settings, cluster: str, now: float) -> None:
        """Do what is due. Raise LackingError where the queue cannot be read or written: it is tried again at the next step."""
        try:
            if not settings.notify.targets and not settings.notify.users:
                if self.courier.busy():
                    self.courier.step(settings, cluster, now)
                return
            try:
                self._take(settings, now)
            finally:  # a disk that is full keeps nobody from hearing what was taken in before
                self.courier.step(settings, cluster, now)
        except sqlite3.Error as exc:
            raise LackingError(f"notices cannot be kept in the journal: {exc}", remedy="Is the disk full?") from exc

    def close(self) -> None:
        """End what is under way."""
        if self._look is not None:
            self._look.kill()
        self.courier.close()

    def _take(self, settings: Settings, now: float) -> None:
        found = self._found(settings, now)
        if found is None:
            return
        mind = watch.mind_from(self.queue.mark(_MIND))
        facts, mind = watch.judge(found, mind, settings, now=now)
        before = self.queue.mark(_LOOKED)
        listened = isinstance(before, (int, float)) and now - before < SILENCE_S
        marks: dict[str, object] = {_MIND: mind._asdict()}
        marks |= {f"{TRAIL}{node}": place for node, place in found["places"].items()}
        if not listened or now - self._saved_at > 60:  # often enough for a silence of days
            marks[_LOOKED] = now
            self._saved_at = now
        own = list(self.own_facts(now))
        self.queue.take([*facts, *own], now, marks=marks, silent_before=0.0 if listened else now - OLD_S)

    def _found(self, settings: Settings, now: float) -> dict[str, Any] | None:
        """Return what a look that is over found, and begin one where it is due."""
        if self._look is not None:
            if not self._look.poll():
                return None
            answer, self._look = self._look.answer, None
            return _nothing() if answer is None else json.loads(answer)
        if not 0 <= now - self._looked_at < self.look_s:
            self._looked_at = now
            share = settings.site.share
            if not share:
                return {**_nothing(), "ledger": []}  # no ledger that could be unreadable
            self._look = Child(self._order(share, settings, now), timeout_s=look.WHOLE_S)
        return None

    def _order(self, share: str, settings: Settings, now: float) -> Callable[[], bytes]:
        places: dict[str, look.Place] | None = None
        if not 0 <= now - self._trails_at < self.trails_s:
            self._trails_at = now
            kept = self.queue.marks(TRAIL)
            places = {
                node: look.Place(*map(int, at)) for node, at in kept.items() if isinstance(at, list) and len(at) == 3
            }
        mind = watch.mind_from(self.queue.mark(_MIND))
        order = look.Order(share, self.config_path, dict(mind.drained), places)
        return lambda: look.look(order)


def _nothing() -> dict[str, Any]:
    """Return what a look finds on a share that gives no answer at all."""
    return {
        "ledger": None,
        "held_back": None,
        "drained": None,
        "over": {},
        "lines": [],
        "places": {},
        "nodes": 0,
        "file": "",
        "pushed": "",
    }
