"""The controller's memory: every run of every watched job, what was decided, and each step of acting, intent before deed.

SQLite in WAL mode with full flushes, on a local disk: a power cut loses nothing that was said to be done. One row is one
run: cluster, job id, lineage (the submit time the job had before its first requeue, since Slurm resets it with each), and
restart count. Steps have the phases intent, done and failed; a step found at intent after a crash is looked up in Slurm.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple

from slurm_ext.errors import LackingError
from slurm_ext.notices import queue
from slurm_ext.resume.model import HOLD, Cause, Decision
from slurm_ext.slurm.model import Job

WATCHED, DECIDED, CLOSED = "watched", "decided", "closed"
VERSION = 2

_MIGRATIONS = (
    """
    CREATE TABLE attempts (
        id INTEGER PRIMARY KEY,
        cluster TEXT NOT NULL, job_id TEXT NOT NULL, lineage INTEGER NOT NULL, restarts INTEGER NOT NULL,
        phase TEXT NOT NULL DEFAULT 'watched',
        job TEXT NOT NULL, user_id INTEGER NOT NULL, user_excluded TEXT NOT NULL DEFAULT '',
        first_seen REAL NOT NULL, ended REAL, end_state TEXT NOT NULL DEFAULT '', by_slurm INTEGER NOT NULL DEFAULT 0,
        log_start INTEGER NOT NULL DEFAULT 0, log_end INTEGER NOT NULL DEFAULT 0,
        log_start_mark TEXT NOT NULL DEFAULT '', log_end_mark TEXT NOT NULL DEFAULT '',
        cause TEXT, decision TEXT, dry_run INTEGER NOT NULL DEFAULT 0, outcome TEXT NOT NULL DEFAULT '',
        forgotten INTEGER NOT NULL DEFAULT 0,
        UNIQUE (cluster, job_id, lineage, restarts)
    );
    CREATE TABLE steps (
        attempt INTEGER NOT NULL REFERENCES attempts (id) ON DELETE CASCADE,
        step TEXT NOT NULL, phase TEXT NOT NULL, time REAL NOT NULL, tries INTEGER NOT NULL DEFAULT 0,
        detail TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (attempt, step)
    );
    CREATE INDEX attempts_open ON attempts (phase) WHERE phase <> 'closed';
    """,
    f"""
    CREATE INDEX attempts_decided ON attempts (ended) WHERE phase = 'closed' AND decision IS NOT NULL;
    {queue.SCHEMA}
    """,
)


class Step(NamedTuple):
    """One step of acting: where it stands, since when (seconds since the epoch), and how often it was tried."""

    step: str
    phase: str
    time: float
    tries: int
    detail: str


class Attempt(NamedTuple):
    """One run of one job as the journal has it. Times are seconds since the epoch."""

    id: int
    cluster: str
    job_id: str
    lineage: int
    restarts: int
    phase: str
    job: Job
    user_excluded: str
    first_seen: float
    ended: float | None
    end_state: str
    by_slurm: bool
    log_start: int
    log_end: int
    log_start_mark: str
    log_end_mark: str
    cause: Cause | None
    decision: Decision | None
    dry_run: bool
    outcome: str

    @property
    def key(self) -> str:
        """The text that names this run everywhere: `<cluster>/<jobid>-<restarts>`."""
        return f"{self.cluster}/{self.job_id}-{self.restarts}"


#: A hold of ours ends by itself after this long (seconds).
HOLD_EXPIRES_S = 7 * 86400.0


def holds(attempt: Attempt, job: Job) -> bool:
    """Say whether it is we who hold a job, by the decision about its last run."""
    decided = attempt.decision is not None and attempt.decision.action == HOLD and not attempt.dry_run
    return decided and attempt.phase == CLOSED and job.state == "PENDING" and job.priority == 0


def hold_expires(attempt: Attempt) -> float:
    """Return when a hold of ours ends (seconds since the epoch)."""
    return (attempt.ended or attempt.first_seen) + HOLD_EXPIRES_S


class Journal:
    """The database. One writer (the controller, who holds a lock); readers open it with `readonly`. Notices lie in it, too:
    slurm_ext.notices.queue."""

    def __init__(self, path: str, *, readonly: bool = False) -> None:
        """Open (and, unless `readonly`, make or migrate) the database. Raise LackingError where it cannot be used."""
        self.path = path
        try:
            if readonly:
                self.db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=2.0)
            else:
                os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
                self.db = sqlite3.connect(path, timeout=5.0, isolation_level=None)
                os.chmod(path, 0o600)  # job names and log lines of all users
                self.db.execute("PRAGMA journal_mode=WAL")
                self.db.execute("PRAGMA synchronous=FULL")
                self.db.execute("PRAGMA foreign_keys=ON")
                self._migrate()
            self.db.row_factory = sqlite3.Row
            version = int(self.db.execute("PRAGMA user_version").fetchone()[0])
        except (sqlite3.Error, OSError) as exc:
            self.close()
            raise LackingError(f"the controller's journal {path} cannot be used: {exc}") from exc
        if version > VERSION:
            self.close()
            raise LackingError(f"{path} was written by a newer fmslurm (version {version}, this one reads {VERSION})")

    def close(self) -> None:
        """Close the database; a second time does nothing."""
        if hasattr(self, "db"):  # else it could not even be opened
            self.db.close()

    def _migrate(self) -> None:
        version = int(self.db.execute("PRAGMA user_version").fetchone()[0])
        for number, script in enumerate(_MIGRATIONS[version:], start=version + 1):
            self.db.executescript(f"BEGIN; {script} PRAGMA user_version={number}; COMMIT;")

    # --- runs

    def begin(self, cluster: str, job: Job, now: float, *, restarts: int | None = None) -> Attempt:
        """Record that a run of a job exists (once; later calls bring nodes and times up to date), and return it."""
        run = job.restarts if restarts is None else restarts
        former = self.latest(cluster, job)
        if former is not None and run >= former.restarts:
            lineage, excluded = former.lineage, former.user_excluded
        else:
            lineage, excluded = job.submit_time, job.excluded_nodes
        start, mark = 0, ""
        if former is not None and former.restarts < run:
            start, mark = former.log_end, former.log_end_mark
        self.db.execute(
            "INSERT INTO attempts (cluster, job_id, lineage, restarts, job, user_id, user_excluded, first_seen, log_start,"
            " log_start_mark)"
            " VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT (cluster, job_id, lineage, restarts) DO UPDATE SET job=excluded.job"
            " WHERE phase='watched'",
            (cluster, job.job_id, lineage, run, _pack(job._asdict()), job.user_id, excluded, now, start, mark),
        )
        row = self.db.execute(
            "SELECT * FROM attempts WHERE cluster=? AND job_id=? AND lineage=? AND restarts=?",
            (cluster, job.job_id, lineage, run),
        ).fetchone()
        return _attempt(row)

    def latest(self, cluster: str, job: Job) -> Attempt | None:
        """Return the last recorded run of this very job, or None: a job id that was given out anew is another job."""
        row = self.db.execute(
            "SELECT * FROM attempts WHERE cluster=? AND job_id=? ORDER BY lineage DESC, restarts DESC LIMIT 1",
            (cluster, job.job_id),
        ).fetchone()
        if row is None:
            return None
        found = _attempt(row)
        reused = job.restarts < found.restarts or (
            job.restarts == 0 and found.restarts == 0 and job.submit_time != found.lineage
        )
        return None if reused else found

    def history(self, attempt: Attempt) -> list[Attempt]:
        """Return the earlier runs of the same job that still count, oldest first."""
        rows = self.db.execute(
            "SELECT * FROM attempts WHERE cluster=? AND job_id=? AND lineage=? AND restarts<? AND NOT forgotten ORDER BY restarts",
            (attempt.cluster, attempt.job_id, attempt.lineage, attempt.restarts),
        )
        return [_attempt(row) for row in rows]

    def runs(self, job_id: str = "", *, limit: int = 500) -> list[Attempt]:
        """Return the runs of one job id (or of all), newest last."""
        rows = self.db.execute(
            "SELECT * FROM attempts WHERE (?='' OR job_id=?) ORDER BY id DESC LIMIT ?", (job_id, job_id, limit)
        ).fetchall()
        return [_attempt(row) for row in reversed(rows)]

    def unfinished(self) -> list[Attempt]:
        """Return the runs that are not closed, oldest first."""
        rows = self.db.execute("SELECT * FROM attempts WHERE phase<>'closed' ORDER BY id")
        return [_attempt(row) for row in rows]

    def decided_since(self, moment: float) -> list[int]:
        """Return the rows of the closed runs with a decision that ended since a moment (epoch seconds), in order of that."""
        rows = self.db.execute(
            "SELECT id FROM attempts WHERE phase='closed' AND decision IS NOT NULL AND ended>? ORDER BY ended",
            (moment,),
        )
        return [int(row[0]) for row in rows]

    def end(self, attempt: Attempt, now: float, state: str, *, by_slurm: bool) -> Attempt:
        """Record that a run ended and how, the first time it is seen."""
        self.db.execute(
            "UPDATE attempts SET ended=?, end_state=?, by_slurm=? WHERE id=? AND ended IS NULL",
            (now, state, int(by_slurm), attempt.id),
        )
        return self.get(attempt.id)

    def decide(
        self, attempt: Attempt, cause: Cause, decision: Decision, *, dry_run: bool, log_end: int, log_mark: str
    ) -> Attempt:
        """Record cause and decision of a run that is still watched; a decision is never changed afterwards."""
        self.db.execute(
            "UPDATE attempts SET phase='decided', cause=?, decision=?, dry_run=?, log_end=?,"
            " log_end_mark=? WHERE id=? AND phase='watched'",
            (_pack(cause._asdict()), _pack(decision._asdict()), int(dry_run), max(log_end, 0), log_mark, attempt.id),
        )
        return self.get(attempt.id)

    def finish(self, attempt: Attempt, outcome: str) -> Attempt:
        """Close a run with a few words about how it came out."""
        self.db.execute("UPDATE attempts SET phase='closed', outcome=? WHERE id=?", (outcome[:500], attempt.id))
        return self.get(attempt.id)

    def get(self, number: int) -> Attempt:
        """Return a run by its row."""
        return _attempt(self.db.execute("SELECT * FROM attempts WHERE id=?", (number,)).fetchone())

    def forget(self, job_id: str) -> int:
        """Make closed runs of a job id count no longer, so that its budgets are whole again; return how many there were."""
        return self.db.execute(
            "UPDATE attempts SET forgotten=1 WHERE job_id=? AND phase='closed' AND NOT forgotten", (job_id,)
        ).rowcount

    def prune(self, before: float) -> int:
        """Drop closed runs last seen before a time (seconds since the epoch), and return how many."""
        return self.db.execute(
            "DELETE FROM attempts WHERE phase='closed' AND COALESCE(ended, first_seen)<?", (before,)
        ).rowcount

    # --- steps

    def step(self, attempt: Attempt, step: str) -> Step | None:
        """Return where a step stands, or None where it was never meant."""
        row = self.db.execute(
            "SELECT step, phase, time, tries, detail FROM steps WHERE attempt=? AND step=?", (attempt.id, step)
        ).fetchone()
        return Step(*row) if row else None

    def steps(self, attempt: Attempt) -> list[Step]:
        """Return the steps of a run in the order they were meant."""
        rows = self.db.execute(
            "SELECT step, phase, time, tries, detail FROM steps WHERE attempt=? ORDER BY rowid", (attempt.id,)
        )
        return [Step(*row) for row in rows]

    def mark(self, attempt: Attempt, step: str, phase: str, now: float, detail: str = "") -> None:
        """Record that a step is meant, done or failed; each intent counts as one try."""
        self.db.execute(
            "INSERT INTO steps (attempt, step, phase, time, tries, detail) VALUES (?,?,?,?,?,?)"
            " ON CONFLICT (attempt, step) DO UPDATE SET phase=excluded.phase, time=excluded.time,"
            " tries=tries+excluded.tries, detail=excluded.detail",
            (attempt.id, step, phase, now, int(phase == "intent"), detail[:500]),
        )


def _pack(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _unpack(kind: Any, text: str | None) -> Any:
    """Return a NamedTuple from JSON; fields that this version does not know are dropped."""
    if not text:
        return None
    fields = json.loads(text)
    return kind(**{name: _tuples(fields[name]) for name in kind._fields if name in fields})


def _attempt(row: sqlite3.Row) -> Attempt:
    return Attempt(
        row["id"],
        row["cluster"],
        row["job_id"],
        row["lineage"],
        row["restarts"],
        row["phase"],
        _unpack(Job, row["job"]),
        row["user_excluded"],
        row["first_seen"],
        row["ended"],
        row["end_state"],
        bool(row["by_slurm"]),
        row["log_start"],
        row["log_end"],
        row["log_start_mark"],
        row["log_end_mark"],
        _unpack(Cause, row["cause"]),
        _unpack(Decision, row["decision"]),
        bool(row["dry_run"]),
        row["outcome"],
    )
