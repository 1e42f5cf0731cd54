"""What is to be told and to whom it went, in the controller's journal: told once for its key, over restarts and kills.

A fact enters together with the mark of what was looked at, in one transaction. A try is counted before it is made: who is
killed between sending and marking sends once more, and never without end.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_ext.notices import policy
from slurm_ext.notices.kinds import KINDS, severity_of, takes
from slurm_ext.notices.model import (
    DROPPED,
    FOLDED,
    LOST,
    SENT,
    WAITING,
    Delivery,
    Fact,
    Notice,
    Sent,
    owner_of,
    owner_target,
)

#: The tables, as the journal's second migration made them; a change is a further migration.
SCHEMA = """
    CREATE TABLE notices (
        id INTEGER PRIMARY KEY, kind TEXT NOT NULL, dry_run INTEGER NOT NULL, made REAL NOT NULL, due REAL NOT NULL,
        ready INTEGER NOT NULL DEFAULT 0, facts TEXT NOT NULL
    );
    CREATE INDEX notices_open ON notices (due) WHERE NOT ready;
    CREATE TABLE deliveries (
        id INTEGER PRIMARY KEY, notice INTEGER NOT NULL REFERENCES notices (id) ON DELETE CASCADE,
        target TEXT NOT NULL, severity TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'waiting',
        tries INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL, at REAL, said TEXT NOT NULL DEFAULT '',
        UNIQUE (notice, target)
    );
    CREATE INDEX deliveries_waiting ON deliveries (target, due) WHERE state = 'waiting';
    CREATE INDEX deliveries_at ON deliveries (target, at);
    CREATE TABLE told (key TEXT PRIMARY KEY, at REAL NOT NULL);
    CREATE TABLE notice_marks (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

#: So many facts stand in one notice; what is more is counted there.
FACTS_MAX = 200

#: What is told again is marked as seen once a day, so that a thing that lasts is not forgotten and told anew (seconds).
DAY_S = 86_400.0

#: Nothing is dropped that is younger than this (seconds).
KEPT_S = 3 * DAY_S

#: A name in notice_marks that holds where a trail was read to begins so.
TRAIL = "trail:"


class Standing(NamedTuple):
    """How one target does. Times are seconds since the epoch, None: never; `said` is about the last try that failed."""

    waiting: int = 0
    sent: int = 0
    lost: int = 0
    last_sent: float | None = None
    last_failed: float | None = None
    said: str = ""


class Queue:
    """The tables of notices in an open database, in autocommit mode. All times are seconds since the epoch."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    # --- what there is to tell

    def take(
        self,
        facts: Iterable[Fact],
        now: float,
        *,
        marks: Mapping[str, object] | None = None,
        silent_before: float = 0.0,
        gone: Collection[str] = (),
    ) -> int:
        """Take in what was not told before, together with the marks of what was looked at; return how many facts were new.

        Facts older than `silent_before` count as told: nobody is to be woken for what was there before anybody listened.
        Marks in `gone` go.
        """
        new = 0
        with self._whole():
            for fact in facts:
                before = self.db.execute("SELECT at FROM told WHERE key=?", (fact.key,)).fetchone()
                if before is not None:
                    if now - before[0] > DAY_S:
                        self.db.execute("UPDATE told SET at=? WHERE key=?", (now, fact.key))
                    continue
                self.db.execute("INSERT INTO told (key, at) VALUES (?,?)", (fact.key, now))
                if fact.since_s < silent_before:
                    continue
                self._enter(fact, now)
                new += 1
            for name, value in (marks or {}).items():
                if self.mark(name) != value:
                    self.db.execute(
                        "INSERT INTO notice_marks (name, value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value",
                        (name, json.dumps(value)),
                    )
            for name in gone:
                self.db.execute("DELETE FROM notice_marks WHERE name=?", (name,))
        return new

    def mark(self, name: str) -> object:
        """Return what was kept under a name, None where nothing was."""
        row = self.db.execute("SELECT value FROM notice_marks WHERE name=?", (name,)).fetchone()
        return json.loads(row[0]) if row else None

    def marks(self, prefix: str) -> dict[str, object]:
        """Return all that was kept under names that begin so, by the rest of the name."""
        rows = self.db.execute("SELECT name, value FROM notice_marks WHERE substr(name, 1, ?)=?", (len(prefix), prefix))
        return {name[len(prefix) :]: json.loads(value) for name, value in rows}

    def is_told(self, key: str) -> bool:
        """Say whether a fact was taken in before."""
        return self.db.execute("SELECT 1 FROM told WHERE key=?", (key,)).fetchone() is not None

    def _enter(self, fact: Fact, now: float) -> None:
        """Add a fact to the notice of its kind that still gathers, or begin one."""
        fold_s = KINDS[fact.kind].fold_s
        if fold_s and fact.owner < 0:
            row = self.db.execute(
                "SELECT id, facts FROM notices WHERE NOT ready AND kind=? AND dry_run=? AND due>? ORDER BY id LIMIT 1",
                (fact.kind, int(fact.dry_run), now),
            ).fetchone()
            if row is not None:
                facts = _facts(row[1])
                facts = (*facts, fact) if len(facts) < FACTS_MAX else (*facts[:-1], _counted(facts[-1], fact))
                self.db.execute("UPDATE notices SET facts=? WHERE id=?", (_packed(facts), row[0]))
                return
        self.db.execute(
            "INSERT INTO notices (kind, dry_run, made, due, facts) VALUES (?,?,?,?,?)",
            (fact.kind, int(fact.dry_run), now, now + fold_s, _packed((fact,))),
        )

    def address(self, least: Mapping[str, str], now: float, *, users: bool) -> None:
        """Make a delivery to each target for every notice that has gathered long enough. `least`: target -> its severity;
        `users`: owners of jobs are told, too."""
        rows = self.db.execute("SELECT * FROM notices WHERE NOT ready AND due<=? ORDER BY id", (now,)).fetchall()
        for notice in map(_notice, rows):
            severity = severity_of(KINDS[notice.kind], dry_run=notice.dry_run)
            if notice.owner >= 0:
                names = [owner_target(notice.owner)] if users else []
            else:
                names = [name for name, lowest in least.items() if takes(lowest, severity)]
            with self._whole():
                for name in names:
                    self._deliver(notice.id, name, severity, now)
                self.db.execute("UPDATE notices SET ready=1 WHERE id=?", (notice.id,))

    def _deliver(self, notice: int, target: str, severity: str, now: float) -> int:
        cursor = self.db.execute(
            "INSERT INTO deliveries (notice, target, severity, due) VALUES (?,?,?,?) ON CONFLICT DO NOTHING",
            (notice, target, severity, now),
        )
        return int(cursor.lastrowid or 0)

    # --- to whom it goes

    def drop_others(self, targets: Collection[str], now: float, *, users: bool) -> int:
        """Give up what waits for targets that are configured no more; return how much that was."""
        dropped = 0
        for (name,) in self.db.execute("SELECT DISTINCT target FROM deliveries WHERE state='waiting'").fetchall():
            if name in targets or (users and owner_of(name) >= 0):
                continue
            dropped += self.db.execute(
                "UPDATE deliveries SET state=?, at=?, said='no such target any more' WHERE target=? AND state='waiting'",
                (DROPPED, now, name),
            ).rowcount
        return dropped

    def targets_due(self, now: float) -> list[str]:
        """Return the targets for which something is due."""
        rows = self.db.execute("SELECT DISTINCT target FROM deliveries WHERE state='waiting' AND due<=?", (now,))
        return [name for (name,) in rows]

    def due(self, target: str, now: float) -> list[Delivery]:
        """Return what is due for a target, oldest first; of very much the first."""
        rows = self.db.execute(
            "SELECT id, notice, target, severity, state, tries, due, said FROM deliveries"
            " WHERE state='waiting' AND target=? AND due<=? ORDER BY id LIMIT 1000",
            (target, now),
        )
        return [Delivery(*row) for row in rows]

    def sent_lately(self, target: str, now: float) -> dict[str, int]:
        """Return severity -> how many messages the target took within the window."""
        rows = self.db.execute(
            "SELECT severity, COUNT(*) FROM deliveries WHERE target=? AND state='sent' AND at>? GROUP BY severity",
            (target, now - policy.WINDOW_S),
        )
        return dict(rows.fetchall())

    def notice(self, number: int) -> Notice:
        """Return a notice by its row."""
        return _notice(self.db.execute("SELECT * FROM notices WHERE id=?", (number,)).fetchone())

    def fold(self, folded: Sequence[Delivery], now: float) -> Delivery:
        """Put several deliveries of one target into one message, and return its delivery."""
        rows = [self.notice(one.notice) for one in folded]
        facts = [fact for row in rows for fact in row.facts]
        lines = [f"{fact.kind}{' (not done)' if fact.dry_run else ''} {fact.where}: {fact.why}" for fact in facts]
        since_s = min((fact.since_s for fact in facts if fact.since_s), default=now)
        more = Fact(
            "notices.more",
            "",
            since_s=since_s,
            why=f"a target gets {policy.LIMIT} messages an hour, and the rest in one",
            owner=owner_of(folded[0].target),
            lines=tuple(lines[:FACTS_MAX]),
            size=len(folded),
        )
        with self._whole():
            cursor = self.db.execute(
                "INSERT INTO notices (kind, dry_run, made, due, ready, facts) VALUES (?,0,?,?,1,?)",
                (more.kind, now, now, _packed((more,))),
            )
            number = self._deliver(int(cursor.lastrowid or 0), folded[0].target, folded[0].severity, now)
            self.db.executemany(
                "UPDATE deliveries SET state=?, at=? WHERE id=?", [(FOLDED, now, one.id) for one in folded]
            )
        return self.delivery(number)

    def delivery(self, number: int) -> Delivery:
        """Return a delivery by its row."""
        row = self.db.execute(
            "SELECT id, notice, target, severity, state, tries, due, said FROM deliveries WHERE id=?", (number,)
        ).fetchone()
        return Delivery(*row)

    def meant(self, delivery: Delivery, now: float) -> Delivery:
        """Count a try before it is made, with the time of the next one should we never hear of it; return the delivery."""
        again = policy.due_again_s(delivery.tries + 1, now)
        due_s = now + policy.PAUSES_S[0] if again is None else again
        self.db.execute("UPDATE deliveries SET tries=tries+1, due=? WHERE id=?", (due_s, delivery.id))
        return delivery._replace(tries=delivery.tries + 1, due_s=due_s)

    def mark_sent(self, delivery: Delivery, said: str, now: float) -> None:
        """Record that a target took it."""
        self.db.execute("UPDATE deliveries SET state=?, at=?, said=? WHERE id=?", (SENT, now, said[:500], delivery.id))

    def mark_failed(self, delivery: Delivery, sent: Sent, now: float) -> bool:
        """Record a failed try; say whether it is tried again."""
        again = policy.due_again_s(delivery.tries, now, retry_after_s=sent.retry_after_s)
        state, due_s = (LOST, now) if again is None else (WAITING, again)
        self.db.execute(
            "UPDATE deliveries SET state=?, due=?, at=?, said=? WHERE id=?",
            (state, due_s, now, sent.said[:500], delivery.id),
        )
        return again is not None

    # --- what people ask

    def standing(self, target: str) -> Standing:
        """Return how a target does."""
        counted: dict[str, int] = {}
        last: dict[str, float | None] = {}
        for state, count, at in self.db.execute(
            "SELECT state, COUNT(*), MAX(at) FROM deliveries WHERE target=? GROUP BY state", (target,)
        ):
            counted[state], last[state] = count, at
        found = Standing(counted.get(WAITING, 0), counted.get(SENT, 0), counted.get(LOST, 0), last.get(SENT))
        failed = self.db.execute(
            "SELECT at, said FROM deliveries WHERE target=? AND (state='lost' OR (state='waiting' AND tries>0 AND at IS NOT NULL))"
            " ORDER BY at DESC LIMIT 1",
            (target,),
        ).fetchone()
        return found if failed is None else found._replace(last_failed=failed[0], said=failed[1])

    def prune(self, before: float, now: float) -> int:
        """Drop notices made before a time that wait for nobody, and return how many.

        However little a site keeps, the limits of an hour count what was sent, and what lasts is marked as seen once a day.
        """
        before = min(before, now - KEPT_S)
        self.db.execute("DELETE FROM told WHERE at<?", (before,))
        return self.db.execute(
            "DELETE FROM notices WHERE made<? AND ready AND id NOT IN (SELECT notice FROM deliveries WHERE state='waiting')",
            (before,),
        ).rowcount

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Do several changes or none."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # a full disk has rolled it back already
                self.db.execute("ROLLBACK")
            raise


def _counted(last: Fact, fact: Fact) -> Fact:
    return last._replace(size=last.size + fact.size)


def _packed(facts: Sequence[Fact]) -> str:
    return json.dumps([fact._asdict() for fact in facts])


def _facts(text: str) -> tuple[Fact, ...]:
    """Return facts from JSON; fields that this version does not know are dropped."""
    rows = [{name: row[name] for name in Fact._fields if name in row} for row in json.loads(text)]
    return tuple(Fact(**{**row, "lines": tuple(row.get("lines", ()))}) for row in rows)


def _notice(row: Sequence[object]) -> Notice:
    number, kind, _, made, due, _, facts = row
    return Notice(int(str(number)), str(kind), float(str(made)), float(str(due)), _facts(str(facts)))
