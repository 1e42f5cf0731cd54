"""What people read: one short line and a text that answers what, where, since when, why, and what next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.config.model import Notify
from slurm_ext.notices.kinds import KINDS, severity_of, takes
from slurm_ext.notices.model import NOTICE, PAGE, Fact, Notice
from slurm_ext.notices.words import LINES, SUBJECT_CHARS, message

AT = 1_900_000_000.0


def words(*facts: Fact, notify: Notify | None = None, cluster: str = "c1"):
    return message(Notice(1, facts[0].kind, AT, AT, facts), notify or Notify(), cluster, id_="c1-1-1")


def test_a_page_says_all_that_a_person_needs_at_night() -> None:
    fact = Fact(
        "breaker.open",
        "k",
        "n[4-5]",
        AT - 60,
        "2 nodes were drained within the hour (n1, n2), 2 are allowed",
        lines=("n4: gpu.xid-79 gpu:3: fell off", "n5: gpu.xid-79 gpu:1: fell off"),
        size=2,
    )
    told = words(fact)
    assert told.subject == "fmslurm c1: PAGE: the drain breaker is open: 2 convicted nodes are still in use: n[4-5]"
    assert told.severity == PAGE
    lines = told.text.splitlines()
    assert lines[0] == "What:  the drain breaker is open: 2 convicted nodes are still in use"
    assert lines[1] == "Where: n[4-5], cluster c1"
    assert lines[2] == "Since: 2030-03-17 17:45:40 UTC"
    assert lines[3] == "Why:   2 nodes were drained within the hour (n1, n2), 2 are allowed"
    assert "fmslurm status" in lines[4]
    assert "-w n[4-5]" in lines[4]
    assert lines[6:] == ["  n4: gpu.xid-79 gpu:3: fell off", "  n5: gpu.xid-79 gpu:1: fell off"]


def test_in_shadow_it_says_would_and_wakes_nobody() -> None:
    told = words(Fact("breaker.open", "k", "n[1-3]", AT, "3 nodes, 2 are allowed", dry_run=True, size=3))
    assert told.severity == NOTICE
    assert told.subject == (
        "fmslurm c1: the drain breaker would be open: 3 nodes would have been drained within an hour: n[1-3]"
    )
    assert "Nothing was done" in told.text
    assert "PAGE" not in told.subject


def test_many_things_of_a_minute_are_one_notice() -> None:
    facts = [
        Fact("node.drained", str(i), f"n{i}", AT + i, f"gpu.xid-79 gpu:{i}", lines=(f"n{i}: x",)) for i in range(30)
    ]
    told = words(*facts)
    assert told.subject == "fmslurm c1: 30 nodes drained: n[0-29]"
    assert told.why == "30 reasons, below"
    assert told.since.endswith("17:46:40 UTC")
    assert f"  and {30 - LINES} more" in told.text


def test_an_owner_reads_what_slurm_itself_would_begin_with() -> None:
    fact = Fact("owner.requeued", "k", "job 7", AT, "xid-79 on n2", owner=1000, job="7", job_name="train")
    told = words(fact)
    assert told.subject == "Slurm Job_id=7 Name=train Requeued by fmslurm: xid-79 on n2"
    assert "fmslurm why 7" in told.text
    assert told.owner == 1000


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_words_of_its_own(kind: str) -> None:
    for dry_run in (False, True):
        told = words(Fact(kind, "k", "job 7" if "job" in kind else "n1", AT, "for a reason", job="7", dry_run=dry_run))
        assert told.what
        assert told.next
        assert len(told.subject) <= SUBJECT_CHARS
        assert "{" not in told.text + told.subject
        assert told.severity == severity_of(KINDS[kind], dry_run=dry_run)


def test_pages_are_what_the_site_must_wake_somebody_for() -> None:
    assert {kind.id for kind in KINDS.values() if kind.severity == PAGE} == {
        "breaker.open",
        "ledger.unreadable",
        "notice.test",
        "topology.stuck",
    }
    assert [takes(PAGE, PAGE), takes(PAGE, NOTICE), takes(NOTICE, PAGE), takes(NOTICE, NOTICE)] == [
        True,
        False,
        True,
        True,
    ]


def test_a_site_has_words_of_its_own() -> None:
    notify = Notify(subject="[$cluster] $severity ${kind} für $where", text="$what\n\n$next $$HOME $since $time $why")
    told = words(Fact("node.drained", "k", "n1", AT, "because"), notify=notify)
    assert told.subject == "[c1] notice node.drained für n1"
    assert told.text.startswith("1 node drained\n\n`fmslurm node show n1`")
    assert "$HOME 2030-03-17 17:46:40 UTC 2030-03-17 17:46:40 UTC because" in told.text


HOSTILE = st.text(max_size=200) | st.text("\n\r\x1b[31m$\u202e`<!channel>", max_size=60)


@given(HOSTILE, HOSTILE, HOSTILE, st.sampled_from(sorted(KINDS)))
def test_whatever_users_wrote_stays_one_short_line(where: str, why: str, name: str, kind: str) -> None:
    fact = Fact(kind, "k", where, AT, why, job="7", job_name=name, lines=(why,), owner=5)
    for notify in (Notify(), Notify(subject="$where $why", text="$what $where $why")):
        told = words(fact, notify=notify)
        assert len(told.subject) <= SUBJECT_CHARS
        assert told.subject.isprintable()
        assert all(line.isprintable() for line in told.text.split("\n"))
        assert all(value.isprintable() for value in (told.where, told.why, told.next))
