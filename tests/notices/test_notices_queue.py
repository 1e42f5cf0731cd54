"""The queue: told once for a key, gathered for a minute, limited, kept over restarts, and a journal of before is taken over."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from notices_support import AT, drained, journal, opened, queue, rows

from slurm_ext.errors import LackingError
from slurm_ext.notices import policy
from slurm_ext.notices.kinds import FOLD_S
from slurm_ext.notices.model import FOLDED, LOST, NOTICE, PAGE, SENT, WAITING, Sent
from slurm_ext.notices.queue import DAY_S, FACTS_MAX, SCHEMA, TRAIL, Queue
from slurm_ext.resume import journal as journal_module
from slurm_ext.resume.journal import Journal

ALL = {"mail": NOTICE, "pager": PAGE}


@pytest.fixture
def waits(tmp_path: Path) -> Iterator[Queue]:
    with closing(journal(tmp_path)) as made:
        yield queue(made)


def test_a_page_goes_to_all_and_a_notice_to_those_that_want_it(waits: Queue) -> None:
    assert waits.take([opened("1"), drained("n1")], AT) == 2
    waits.address(ALL, AT, users=False)
    assert waits.targets_due(AT) == ["mail", "pager"]
    assert [one.severity for one in waits.due("pager", AT)] == [PAGE]
    waits.address(ALL, AT + FOLD_S, users=False)
    assert [one.severity for one in waits.due("mail", AT + FOLD_S)] == [PAGE, NOTICE]
    assert len(waits.due("pager", AT + FOLD_S)) == 1


def test_what_was_told_is_not_told_again_over_a_restart(tmp_path: Path) -> None:
    for turn in range(3):
        with closing(journal(tmp_path)) as made:
            assert queue(made).take([opened("1")], AT + turn) == (1 if turn == 0 else 0)


def test_what_lasts_is_not_forgotten_and_told_anew(waits: Queue) -> None:
    assert waits.take([drained("n1")], AT) == 1
    waits.address(ALL, AT + FOLD_S, users=False)
    for delivery in waits.due("mail", AT + FOLD_S):
        waits.mark_sent(delivery, "", AT + FOLD_S)
    for day in range(1, 100):
        now = AT + day * (DAY_S + 60)
        assert waits.take([drained("n1")], now) == 0
        waits.prune(now, now)
    assert waits.is_told(drained("n1").key)
    assert rows(waits.db) == []


def test_all_of_a_minute_is_one_notice_and_the_next_minute_another(waits: Queue) -> None:
    waits.take([drained(f"n{i}") for i in range(5)], AT)
    waits.take([drained("n7")], AT + FOLD_S - 1)
    waits.take([drained("n8", dry_run=True)], AT + 1)  # what was not done is never told with what was
    waits.address(ALL, AT + FOLD_S, users=False)
    waits.take([drained("n9")], AT + FOLD_S)
    notices = [waits.notice(one.notice) for one in waits.due("mail", AT + FOLD_S)]
    assert [fact.where for fact in notices[0].facts] == ["n0", "n1", "n2", "n3", "n4", "n7"]
    waits.address(ALL, AT + 3 * FOLD_S, users=False)
    assert len(waits.due("mail", AT + 3 * FOLD_S)) == 3


def test_a_flood_of_facts_is_counted_beyond_what_is_kept(waits: Queue) -> None:
    waits.take([drained(f"n{i}") for i in range(FACTS_MAX + 50)], AT)
    waits.address(ALL, AT + FOLD_S, users=False)
    (delivery,) = waits.due("mail", AT + FOLD_S)
    facts = waits.notice(delivery.notice).facts
    assert len(facts) == FACTS_MAX
    assert sum(fact.size for fact in facts) == FACTS_MAX + 50


def test_who_begins_to_listen_hears_nothing_of_before(waits: Queue) -> None:
    assert waits.take([opened("old", AT - 7_200), opened("new", AT - 60)], AT, silent_before=AT - 3_600) == 1
    assert waits.take([opened("old", AT - 7_200)], AT) == 0


def test_marks_enter_with_their_facts_or_not_at_all(waits: Queue) -> None:
    waits.take([], AT, marks={f"{TRAIL}n1": [5, 100], "mind": {"step": 1}})
    assert waits.marks(TRAIL) == {"n1": [5, 100]}
    with pytest.raises(KeyError):
        waits.take([opened("1"), opened("2", kind="no such kind")], AT, marks={f"{TRAIL}n1": [5, 200]})
    assert waits.marks(TRAIL) == {"n1": [5, 100]}
    assert not waits.is_told("breaker.open:1")
    waits.take([], AT, gone=[f"{TRAIL}n1"])
    assert waits.marks(TRAIL) == {}
    assert waits.mark("mind") == {"step": 1}


def test_a_try_is_counted_before_it_is_made_and_the_last_one_loses(waits: Queue) -> None:
    waits.take([opened("1")], AT)
    waits.address({"pager": PAGE}, AT, users=False)
    now = AT
    for number in range(1, policy.TRIES + 1):
        (delivery,) = waits.due("pager", now)
        delivery = waits.meant(delivery, now)
        assert delivery.tries == number
        assert waits.due("pager", now) == []  # should we be killed now, it is tried again later
        again = waits.mark_failed(delivery, Sent(False, "500"), now)
        assert again == (number < policy.TRIES)
        now += 3_600
    assert rows(waits.db) == [("breaker.open", LOST)]
    assert (waits.standing("pager").lost, waits.standing("pager").said) == (1, "500")


def test_beyond_the_limit_the_rest_is_one_message(waits: Queue) -> None:
    waits.take([opened(str(i)) for i in range(policy.LIMIT + 10)], AT)
    waits.address({"pager": PAGE}, AT, users=False)
    sent = 0
    while True:
        choice = policy.choose(waits.due("pager", AT), waits.sent_lately("pager", AT))
        delivery = waits.fold(choice.folded, AT) if choice.folded else choice.one
        if delivery is None:
            break
        waits.mark_sent(delivery, "ok", AT)
        sent += 1
    assert sent == policy.LIMIT
    states = [state for _, state in rows(waits.db)]
    assert states.count(SENT) == policy.LIMIT
    assert states.count(FOLDED) == 11
    assert WAITING not in states
    digest = waits.notice(
        delivery.notice if delivery else waits.db.execute("SELECT MAX(id) FROM notices").fetchone()[0]
    )
    assert (digest.kind, digest.facts[0].size, len(digest.facts[0].lines)) == ("notices.more", 11, 11)
    later = AT + policy.WINDOW_S + 1
    waits.take([opened("later")], later)
    waits.address({"pager": PAGE}, later, users=False)
    assert policy.choose(waits.due("pager", later), waits.sent_lately("pager", later)).one is not None


def test_a_target_that_is_no_more_gets_nothing_and_holds_nothing_up(waits: Queue) -> None:
    waits.take([opened("1")], AT)
    waits.address(ALL, AT, users=False)
    assert waits.drop_others(["mail"], AT, users=False) == 1
    assert waits.targets_due(AT) == ["mail"]


def test_owners_hear_of_their_own_jobs_only_where_that_is_wanted(waits: Queue) -> None:
    def fact(uid: int):
        return drained(f"job{uid}", kind="owner.held", owner=uid, job="7")

    waits.take([fact(1000), fact(1001)], AT)
    waits.address(ALL, AT, users=True)
    assert sorted(waits.targets_due(AT)) == ["@1000", "@1001"]
    assert waits.drop_others(["mail"], AT, users=True) == 0
    assert waits.drop_others(["mail"], AT, users=False) == 2
    waits.take([fact(1002)], AT)
    waits.address(ALL, AT, users=False)
    assert waits.targets_due(AT) == []


def test_what_waits_is_never_pruned(waits: Queue) -> None:
    waits.take([opened("1"), opened("2")], AT)
    waits.address({"pager": PAGE}, AT, users=False)
    waits.mark_sent(waits.due("pager", AT)[0], "", AT)
    assert waits.prune(AT + 90 * DAY_S, AT + DAY_S) == 0
    assert waits.sent_lately("pager", AT) == {PAGE: 1}
    assert waits.prune(AT + 90 * DAY_S, AT + 90 * DAY_S) == 1
    assert [state for _, state in rows(waits.db)] == [WAITING]


def test_a_journal_of_before_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "controller.db")
    with monkeypatch.context() as before:
        before.setattr(journal_module, "VERSION", 1)
        before.setattr(journal_module, "_MIGRATIONS", journal_module._MIGRATIONS[:1])
        Journal(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            "INSERT INTO attempts (cluster, job_id, lineage, restarts, job, user_id, first_seen) VALUES ('c','7',1,0,'{}',0,1)"
        )
        db.commit()
    with closing(Journal(path)) as made:
        assert made.db.execute("SELECT COUNT(*) FROM attempts").fetchone()[0] == 1
        assert queue(made).take([opened("1")], AT) == 1
        assert made.db.execute("PRAGMA user_version").fetchone()[0] == 2
    with monkeypatch.context() as before:
        before.setattr(journal_module, "VERSION", 1)
        with pytest.raises(LackingError, match="newer fmslurm"):
            Journal(path)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans(), st.integers(0, 100)), max_size=40))
def test_each_key_is_told_once_whatever_the_order(told: list[tuple[str, bool, int]]) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.executescript(SCHEMA)
        waits = Queue(db)
        now = AT
        for name, folds, pause in told:
            now += pause
            waits.take([drained(name, key=name) if folds else opened(name, key=name)], now)
        waits.address({"all": NOTICE}, now + FOLD_S, users=False)
        facts = [fact for one in waits.due("all", now + FOLD_S) for fact in waits.notice(one.notice).facts]
        assert sorted(fact.key for fact in facts) == sorted({name for name, _, _ in told})
