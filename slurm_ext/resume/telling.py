"""What people are told of jobs, by what the journal says became of them: held, given up, and to their owners also requeued.

Read from the journal after the fact, so that a kill between a decision and its notice loses nothing. In shadow the site hears
what would have been, and owners nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_ext.notices.model import Fact
from slurm_ext.resume.journal import Attempt, Journal
from slurm_ext.resume.model import COMES_BACK, HOLD, STOP
from slurm_ext.verdict import one_line

#: How far back (seconds) decisions are looked at: what was told is told once.
BACK_S = 86_400.0

#: How the rules of decisions begin that a job met since its budgets were used up.
BUDGET = "budget."


class Teller:
    """Asks one journal; what was read once of a run that is closed is not read again."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._known: dict[int, tuple[Fact, ...]] = {}

    def facts(self, now: float) -> list[Fact]:
        """Return what there is to tell of the runs that were decided about within a day; the same again each time."""
        rows = self.journal.decided_since(now - BACK_S)
        before = self._known
        self._known = {row: before[row] if row in before else tuple(of_attempt(self.journal.get(row))) for row in rows}
        return [fact for row in rows for fact in self._known[row]]


def of_attempt(attempt: Attempt) -> Iterable[Fact]:
    """Return what there is to tell of one run whose decision was carried out, to the site and to the job's owner. Pure."""
    decision = attempt.decision
    if decision is None:
        return ()
    refused = attempt.outcome.startswith("given up")
    if refused:
        word, why = "given-up", f"{decision.reason}; Slurm refused to {decision.action} it"
    elif decision.action == HOLD:
        word, why = "held", decision.reason
    elif decision.action == STOP and decision.rule.startswith(BUDGET):
        word, why = "given-up", decision.reason
    elif decision.action in COMES_BACK:
        word, why = "requeued", decision.reason
    else:
        return ()
    why = one_line(why, 400)
    job = Fact(
        "",
        "",
        f"job {attempt.job_id}",
        attempt.ended or attempt.first_seen,
        why,
        dry_run=attempt.dry_run,
        job=attempt.job_id,
        job_name=one_line(attempt.job.name, 24),
        lines=(f"job {attempt.job_id} ({one_line(attempt.job.name, 40)}): {why}",),
    )
    told = []
    if word != "requeued":
        told.append(job._replace(kind=f"job.{word}", key=f"job.{word}:{attempt.lineage}:{attempt.key}"))
    if not attempt.dry_run:
        key = f"owner.{word}:{attempt.lineage}:{attempt.key}"
        told.append(job._replace(kind=f"owner.{word}", key=key, owner=attempt.job.user_id, lines=()))
    return told
