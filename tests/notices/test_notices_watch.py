"""What a look at the nodes means, as tables: what is told, once, and what is kept for the next look."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext import events
from slurm_ext.config.model import Drain, Mode, Settings, Site
from slurm_ext.events import Event
from slurm_ext.notices.model import Fact
from slurm_ext.notices.watch import STALE_S, UNREADABLE_S, Mind, judge, mind_from
from slurm_ext.slurm.breaker import WINDOW_S, Entry
from slurm_ext.slurm.drain_record import DAY_S, DrainRecord
from slurm_ext.slurm.suppressed import Suppressed

AT = 1_900_000_000.0
ENFORCE = Settings(site=Site(share="/share"), mode=Mode(gate="enforce"), drain=Drain(max_per_hour=2))
SHADOW = ENFORCE._replace(mode=Mode(gate="shadow"))


def seen(**more: Any) -> dict[str, Any]:
    """Return a look that found nothing to tell, with some of it replaced."""
    found = {
        "ledger": [],
        "held_back": [],
        "drained": [],
        "over": {},
        "lines": [],
        "places": {},
        "nodes": 0,
        "file": "",
        "pushed": "",
    }
    return {**found, **more}


def entries(*ages_s: float) -> list[list[Any]]:
    return [list(Entry(f"d{i}", age_s, number=i + 1)) for i, age_s in enumerate(ages_s)]


def held(node: str, opening: str, at_s: float = AT, allowed: int = 2) -> dict[str, Any]:
    one = Suppressed(node, "gpu.xid-79", "gpu:1", "replace", "fell off", "2 are allowed", at_s, "7", opening, allowed)
    return one._asdict()


def record(node: str, since_s: float = AT, **more: Any) -> dict[str, Any]:
    made = DrainRecord(
        node, "gpu.xid-79", "gpu:1", "replace", "fmslurm: gpu.xid-79 gpu:1: fell off", since_s, owner="fmslurm gate"
    )
    return made._replace(**more)._asdict()


def kinds(facts: list[Fact]) -> list[str]:
    return [fact.kind for fact in facts]


def test_the_breaker_from_its_opening_to_its_end() -> None:
    facts, mind = judge(seen(ledger=entries(10, 20), held_back=[held("n4", "o1")]), Mind(), ENFORCE, now=AT)
    assert kinds(facts) == ["breaker.open"]
    assert (facts[0].key, facts[0].where, facts[0].size, facts[0].since_s) == ("breaker.open:o1", "n4", 1, AT)
    assert facts[0].lines == ("n4: gpu.xid-79 gpu:1: fell off",)
    assert mind.opening == "o1"
    # The same again: the same key, which is told once. More nodes: the next step.
    many = [held(f"n{i}", "o1") for i in range(12)]
    facts, mind = judge(seen(ledger=entries(10, 20), held_back=many), mind, ENFORCE, now=AT + 60)
    assert [fact.key for fact in facts] == ["breaker.open:o1", "breaker.more:o1:10"]
    assert facts[1].size == 12
    facts, mind = judge(seen(ledger=entries(10, 20), held_back=many), mind, ENFORCE, now=AT + 65)
    assert kinds(facts) == ["breaker.open"]
    # One drain no longer counts.
    facts, mind = judge(seen(ledger=entries(10), held_back=many), mind, ENFORCE, now=AT + 70)
    assert [fact.key for fact in facts if fact.kind != "breaker.open"] == ["breaker.closed:o1"]
    assert mind.opening == ""
    facts, mind = judge(seen(ledger=entries(10), held_back=many), mind, ENFORCE, now=AT + 75)
    assert kinds(facts) == ["breaker.open"]
    # It opens again behind another drain: another time, another page.
    again = [*many, held("n20", "o2", AT + 80)]
    facts, mind = judge(seen(ledger=entries(1, 10), held_back=again), mind, ENFORCE, now=AT + 80)
    assert [fact.key for fact in facts] == ["breaker.open:o1", "breaker.open:o2"]
    assert mind.opening == "o2"


def test_a_breaker_that_lets_nothing_through_opens_anew_for_the_next_night() -> None:
    """With drain.max_per_hour 0 no drain ever comes between: every time has one name."""
    none = "00000000-none"
    mind, told = Mind(), []
    first = held("n1", none, AT, allowed=0)
    second = held("n2", none, AT + 5 * WINDOW_S, allowed=0)
    for now, listed in [
        (AT + 1, [first]),
        (AT + 2, [first]),
        (AT + WINDOW_S + 1, [first]),
        (AT + 2 * WINDOW_S, [first]),
        (AT + 5 * WINDOW_S + 1, [first, second]),
        (AT + 5 * WINDOW_S + 2, [first, second]),
        (AT + 7 * WINDOW_S, [first, second]),
        (AT + 8 * WINDOW_S, [first, second]),
    ]:
        facts, mind = judge(seen(held_back=listed), mind, ENFORCE, now=now)
        told += [fact.key for fact in facts if fact.key not in told]
        again = [fact for fact in facts if fact.key == f"breaker.open:{none}:1"]
        if now == AT + 5 * WINDOW_S + 1:
            assert [fact.where for fact in again] == ["n2"]
    assert told == [
        f"breaker.{name}" for name in (f"open:{none}", f"closed:{none}", f"open:{none}:1", f"closed:{none}:1")
    ]


def test_a_drain_behind_the_end_opens_nothing_by_itself() -> None:
    mind = Mind()
    bad = [held("n4", "o1", AT)]
    _, mind = judge(seen(ledger=entries(10, 20), held_back=bad), mind, ENFORCE, now=AT)
    _, mind = judge(seen(ledger=entries(10), held_back=bad), mind, ENFORCE, now=AT + 60)
    facts, mind = judge(seen(ledger=entries(1, 10), held_back=bad), mind, ENFORCE, now=AT + 120)
    assert [fact.key for fact in facts] == ["breaker.open:o1"]
    assert mind.opening == ""


def test_the_breaker_on_a_share_that_is_silent_is_neither_opened_nor_closed() -> None:
    mind = Mind(opening="o1", step=1)
    facts, after = judge(seen(ledger=None, held_back=None, drained=None), mind, ENFORCE, now=AT)
    assert facts == []
    assert after.opening == "o1"


def test_a_breaker_of_yesterday_is_not_open() -> None:
    old = held("n4", "o1", AT - 2 * WINDOW_S)
    facts, mind = judge(seen(held_back=[old]), Mind(), ENFORCE, now=AT)
    assert kinds(facts) == ["breaker.open"]  # which the queue knows, or takes for old
    assert mind.opening == ""


@pytest.mark.parametrize(
    ("mode", "told"), [(Mode(gate="enforce"), [False]), (Mode(gate="shadow"), [True]), (Mode(gate="off"), [])]
)
def test_a_ledger_that_cannot_be_read(mode: Mode, told: list[bool]) -> None:
    settings = ENFORCE._replace(mode=mode)
    none = seen(ledger=None, held_back=None, drained=None)
    facts, mind = judge(none, Mind(), settings, now=AT)
    assert facts == []
    facts, mind = judge(none, mind, settings, now=AT + UNREADABLE_S)
    assert [fact.dry_run for fact in facts] == told
    assert {fact.key for fact in facts} <= {f"ledger.unreadable:{AT:.0f}"}
    later, _ = judge(none, mind, settings, now=AT + 9_000)
    assert [fact.key for fact in later] == [fact.key for fact in facts]
    facts, mind = judge(seen(), mind, settings, now=AT + 9_001)
    assert kinds(facts) == (["ledger.readable"] if told else [])
    assert mind.unreadable_s == 0
    facts, mind = judge(seen(), mind, settings, now=AT + 9_002)
    assert facts == []


def test_a_moment_without_an_answer_is_worth_no_word() -> None:
    facts, mind = judge(seen(ledger=None), Mind(), ENFORCE, now=AT)
    facts, mind = judge(seen(), mind, ENFORCE, now=AT + 5)
    assert facts == []


def test_nodes_that_cannot_count_while_we_can() -> None:
    facts, _ = judge(seen(held_back=[held("n4", "no-ledger-500")]), Mind(), ENFORCE, now=AT)
    assert [(fact.kind, fact.where) for fact in facts] == [("ledger.unreadable", "n4")]
    facts, _ = judge(seen(ledger=None, held_back=[held("n4", "no-ledger-500")]), Mind(), ENFORCE, now=AT)
    assert facts == []


def test_a_node_is_drained_stands_too_long_and_comes_back() -> None:
    found = seen(drained=[record("n1", expires_s=AT + DAY_S), record("n2", owner="user alice")])
    facts, mind = judge(found, Mind(), ENFORCE, now=AT)
    assert [(fact.kind, fact.where, fact.why) for fact in facts] == [
        ("node.drained", "n1", "gpu.xid-79 gpu:1: fell off")
    ]
    assert mind.drained == {"n1": AT}  # what a person drained, that person knows
    facts, mind = judge(found, mind, ENFORCE, now=AT + 2 * DAY_S)
    assert kinds(facts) == ["node.drained", "node.drain-expired"]
    assert "longer than drain.expires_d" in facts[1].why
    week, _ = judge(found, mind, ENFORCE, now=AT + 8 * DAY_S)
    assert week[1].key != facts[1].key
    over = {"n1": ["gpu.xid-79", AT + 3 * DAY_S, "resumed on proof: its GPUs are well"]}
    facts, mind = judge(seen(over=over), mind, ENFORCE, now=AT + 3 * DAY_S)
    assert [(fact.kind, fact.where, fact.since_s) for fact in facts] == [("node.back", "n1", AT + 3 * DAY_S)]
    assert facts[0].lines == ("n1: resumed on proof: its GPUs are well (it was drained for gpu.xid-79)",)
    assert mind.drained == {}


def line(event: str, node: str, at_s: float, **fields: Any) -> str:
    return events.to_line(Event(event, node=node, time=events.stamp(at_s), **fields))


def would(node: str, at_s: float = AT) -> str:
    reason = "fmslurm: gpu.xid-79 gpu:1: fell off"
    return line("node.drain", node, at_s, rule="gpu.xid-79", reason=reason, dry_run=True, phase="intent")


def test_in_shadow_what_would_have_been_is_told_and_the_breaker_with_it() -> None:
    facts, mind = judge(seen(lines=[would("n1"), would("n1", AT + 1), would("n2")]), Mind(), SHADOW, now=AT + 2)
    assert {(fact.kind, fact.dry_run) for fact in facts} == {("node.drained", True)}
    assert len({fact.key for fact in facts}) == 2  # a node that fails at each job is told once a day
    facts, mind = judge(seen(lines=[would("n3", AT + 60)]), mind, SHADOW, now=AT + 61)
    assert [(fact.kind, fact.dry_run, fact.where, fact.size) for fact in facts[1:]] == [
        ("breaker.open", True, "n[1-3]", 3)
    ]
    key = facts[1].key
    facts, mind = judge(seen(lines=[would("n4", AT + 70)]), mind, SHADOW, now=AT + 71)
    assert facts[1].key == key
    facts, mind = judge(seen(), mind, SHADOW, now=AT + 60 + WINDOW_S)
    assert facts == []
    assert (mind.would_open_s, mind.would) == (0.0, {"n4": AT + 70})


@pytest.mark.parametrize("event", ["gate.prolog", "gate.epilog", "gate.health"])
def test_what_a_hook_would_have_done_is_told_by_its_finding(event: str) -> None:
    finding = {"id": "gpu.xid-79", "target": "gpu:1", "action": "replace", "evidence": ["fell off"]}
    gate = {"verdict": "fail", "reason": "gpu.xid-79 on gpu:1: fell off", "rule": "findings", "findings": [finding]}
    about = {"rule": "findings", "decision": "would-drain", "dry_run": True, "data": {"gate": gate}}
    lines = [
        line(event, "n1", AT, **about),
        line("node.drain", "n1", AT, rule="gpu.xid-79", reason="fmslurm: x", dry_run=True),
    ]
    facts, mind = judge(seen(lines=lines), Mind(), SHADOW, now=AT)
    assert [(fact.kind, fact.why) for fact in facts] == [
        ("node.drained", "gpu.xid-79 gpu:1: fell off"),
        ("node.drained", "x"),
    ]
    assert facts[0].key == facts[1].key
    assert mind.would == {"n1": AT}
    burnin = {
        "rule": "burnin.slow",
        "reason": "mode shadow: would drain: n1 is slow",
        "decision": "would-drain",
        "dry_run": True,
    }
    facts, _ = judge(seen(lines=[line(event, "n1", AT, **burnin)]), Mind(), SHADOW, now=AT)
    assert [(fact.why, "burnin.slow" in fact.key) for fact in facts] == [("n1 is slow", True)]


def test_a_slow_check_that_is_overdue() -> None:
    finding = {
        "id": "dcgm.overdue",
        "target": "node",
        "action": "none",
        "evidence": ["no slow check came to its end for 50 h"],
    }
    gate = {"verdict": "pass", "reason": "well", "rule": "", "findings": [finding]}
    told = line("gate.health", "n1", AT, reason="nothing", evidence=("other",), data={"gate": gate})
    facts, _ = judge(seen(lines=[told, line("gate.health", "n2", AT)]), Mind(), ENFORCE, now=AT)
    assert [(fact.kind, fact.where, fact.why) for fact in facts] == [
        ("node.slow-check-overdue", "n1", "no slow check came to its end for 50 h")
    ]


@pytest.mark.parametrize(
    ("event", "more", "kind"),
    [
        ("topology.drift", {"data": {"mode": "shadow"}, "dry_run": True}, ""),
        ("topology.drift", {}, ""),
        ("topology.drift", {"data": {"mode": "warn"}, "dry_run": True}, "topology.drift"),
        ("topology.drift", {"data": {"mode": "enforce"}}, "topology.drift"),
        ("topology.rolled-back", {"phase": "done"}, "topology.refused"),
        ("topology.rolled-back", {"phase": "failed"}, "topology.stuck"),
        ("topology.change", {"phase": "done"}, ""),
    ],
)
def test_a_topology_that_may_not_be_mended_or_was_refused(event: str, more: dict[str, object], kind: str) -> None:
    told = line(event, "head", AT, reason="8 nodes moved", **more)
    facts, _ = judge(seen(lines=[told]), Mind(), ENFORCE, now=AT)
    assert [(fact.kind, fact.why) for fact in facts] == ([(kind, "8 nodes moved")] if kind else [])


def test_an_edit_that_nobody_pushed() -> None:
    edited = seen(file="b" * 64, pushed="a" * 64)
    facts, mind = judge(edited, Mind(), ENFORCE, now=AT)
    assert facts == []
    facts, mind = judge(edited, mind, ENFORCE, now=AT + STALE_S - 1)
    assert facts == []
    facts, mind = judge(edited, mind, ENFORCE, now=AT + STALE_S)
    assert [(fact.kind, fact.since_s) for fact in facts] == [("config.stale", AT)]
    facts, mind = judge(seen(file="c" * 64, pushed="a" * 64), mind, ENFORCE, now=AT + STALE_S + 1)
    assert facts == []
    facts, mind = judge(seen(file="c" * 64, pushed="c" * 64), mind, ENFORCE, now=AT + STALE_S + 2)
    assert (facts, mind.stale) == ([], "")


@given(st.lists(st.text(max_size=80) | st.just('{"schema":1,"event":"node.drain","dry_run":true}'), max_size=5))
def test_lines_of_any_kind_break_nothing(lines: list[str]) -> None:
    facts, _ = judge(seen(lines=lines), Mind(), SHADOW, now=AT)
    assert facts == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(Mind._fields), inner, max_size=4),
    max_leaves=8,
)


@given(JSON)
def test_a_mind_of_another_form_is_as_good_as_none(data: object) -> None:
    judge(seen(), mind_from(data), ENFORCE, now=AT)


def test_a_mind_is_kept_whole() -> None:
    mind = Mind("o1", 10, "o0", 4.0, 3, 5.0, {"n1": 6.0}, {"n2": 7.0}, 8.0, "a", 9.0, 5)
    assert mind_from(mind._asdict()) == mind
