"""What is told of jobs: read from the journal, to the site and to owners, and not of what is a user's own affair."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slurm_ext.notices.kinds import KINDS
from slurm_ext.resume import telling
from slurm_ext.resume.journal import Attempt, Journal
from slurm_ext.resume.model import HOLD, NONE, REQUEUE, REQUEUE_EXCLUDE, STOP, WAIT_REQUEUE, Cause, Decision
from slurm_ext.slurm.model import Job

JOB = Job("7", name="train\n<!channel>", user_id=1000, submit_time=5)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(str(tmp_path / "controller.db"))) as made:
        yield made


def decided(
    journal: Journal, action: str, rule: str, *, outcome: str = "", dry_run: bool = False, closed: bool = True
) -> Attempt:
    now = time.time()
    attempt = journal.end(journal.begin("c", JOB, now), now, "FAILED", by_slurm=False)
    cause = Cause("infra-node", REQUEUE, "kernel.hardware", reason="xid-79 on n2")
    attempt = journal.decide(
        attempt, cause, Decision(action, "xid-79 on n2", rule), dry_run=dry_run, log_end=0, log_mark=""
    )
    return journal.finish(attempt, outcome or action) if closed else attempt


#: action, rule, outcome, dry run -> kinds that are told.
CASES = [
    (REQUEUE, "advice.x", "", False, ["owner.requeued"]),
    (REQUEUE_EXCLUDE, "advice.x", "", False, ["owner.requeued"]),
    (WAIT_REQUEUE, "advice.x", "", False, ["owner.requeued"]),
    (HOLD, "budget.infra", "", False, ["job.held", "owner.held"]),
    (HOLD, "advice.x", "", False, ["job.held", "owner.held"]),
    (STOP, "budget.infra", "", False, ["job.given-up", "owner.given-up"]),
    (STOP, "budget.same-root", "", False, ["job.given-up", "owner.given-up"]),
    (STOP, "advice.user-code", "", False, []),
    (NONE, "advice.slurm.requeued", "", False, []),
    (REQUEUE, "advice.x", "given up: Slurm refused", False, ["job.given-up", "owner.given-up"]),
    (HOLD, "budget.infra", "would hold: mode is not enforce", True, ["job.held"]),
    (STOP, "budget.infra", "would stop: mode is not enforce", True, ["job.given-up"]),
    (REQUEUE, "advice.x", "would requeue: mode is not enforce", True, []),
]


@pytest.mark.parametrize(("action", "rule", "outcome", "dry_run", "told"), CASES)
def test_what_is_told(action: str, rule: str, outcome: str, dry_run: bool, told: list[str], journal: Journal) -> None:
    decided(journal, action, rule, outcome=outcome, dry_run=dry_run)
    teller = telling.Teller(journal)
    facts = teller.facts(time.time())
    assert [fact.kind for fact in facts] == told
    assert all(fact.kind in KINDS for fact in facts)
    assert all(fact.dry_run == dry_run for fact in facts)
    for fact in facts:
        assert fact.owner == (1000 if fact.kind.startswith("owner.") else -1)
        assert KINDS[fact.kind].to_owner == (fact.owner >= 0)
        assert "xid-79 on n2" in fact.why
        assert (fact.where, fact.job) == ("job 7", "7")
        assert all(line.isprintable() for line in fact.lines)
    assert teller.facts(time.time()) == facts  # the same again: the queue knows what it told


def test_nothing_is_told_before_it_is_carried_out(journal: Journal) -> None:
    attempt = decided(journal, HOLD, "budget.infra", closed=False)
    assert telling.Teller(journal).facts(time.time()) == []
    journal.finish(attempt, HOLD)
    assert len(telling.Teller(journal).facts(time.time())) == 2
    assert telling.Teller(journal).facts(time.time() + 2 * telling.BACK_S) == []


def test_each_run_of_a_job_and_each_job_of_an_id_is_told(journal: Journal) -> None:
    keys = []
    for job in (JOB, JOB._replace(restarts=1), JOB._replace(submit_time=99)):
        attempt = journal.begin("c", job, time.time())
        attempt = journal.end(attempt, time.time(), "FAILED", by_slurm=False)
        cause = Cause("infra-node", REQUEUE, "r", reason="r")
        attempt = journal.decide(
            attempt, cause, Decision(REQUEUE, "r", "advice.r"), dry_run=False, log_end=0, log_mark=""
        )
        journal.finish(attempt, REQUEUE)
        keys = [fact.key for fact in telling.Teller(journal).facts(time.time())]
    assert len(set(keys)) == 3
