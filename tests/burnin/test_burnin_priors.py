"""A second offence: whom earlier burn-ins convict, and whom they must not."""

from __future__ import annotations

import pytest
from plan_player import Behaviour, bad_with_partners, names, play

from slurm_ext.burnin import priors
from slurm_ext.burnin.model import HANG, OK, SLOW, Past
from slurm_ext.verdict import FAIL, PASS, WARN

NOW = 1_800_000_000.0
HOUR = 3600.0


def failed(hours_ago: float, *nodes: str, rule: str = "burnin.two-nodes", culprits: tuple[str, ...] = ()) -> Past:
    return Past(NOW - hours_ago * HOUR, "7", nodes, FAIL, rule, nodes, culprits)


def passed(hours_ago: float, *nodes: str, verdict: str = PASS) -> Past:
    return Past(NOW - hours_ago * HOUR, "8", nodes, verdict)


FIRST = failed(5, "n0", "old")
CLEARED = passed(3, "old", "x")

CASES: dict[str, tuple[tuple[Past, ...], tuple[str, ...]]] = {
    "another partner, and the first one passed since": ((FIRST, CLEARED), ("n0",)),
    "nothing is known": ((), ()),
    "the first partner has not passed since": ((FIRST,), ()),
    "it passed, but before": ((passed(6, "old", "x"), FIRST), ()),
    "it passed by itself, which says nothing of its links": ((FIRST, passed(3, "old")), ()),
    "it passed with the suspect": ((FIRST, passed(3, "old", "n0", "x")), ()),
    "the suspect passed with others since": ((FIRST, CLEARED, passed(2, "n0", "y")), ()),
    "a warning is no pass": ((FIRST, passed(3, "old", "x", verdict=WARN)), ()),
    "the same partner": ((failed(5, "n0", "n1"), passed(3, "n1", "x")), ()),
    "too long ago": ((failed(30, "n0", "old"), CLEARED), ()),
    "in the future, by a clock that jumped": ((failed(-5, "n0", "old"), passed(-6, "old", "x")), ()),
    "the job then failed for another reason": ((failed(5, "n0", "old", rule="burnin.fabric"), CLEARED), ()),
    "more than two were suspects then": ((failed(5, "n0", "old", "more"), CLEARED), ()),
    "the other was convicted then": ((failed(5, "n0", "old", culprits=("old",)), CLEARED), ()),
    "it was as slow as now": ((FIRST._replace(busbw_gbs=44.0), CLEARED), ("n0",)),
    "it was slow otherwise": ((FIRST._replace(busbw_gbs=70.0), CLEARED), ()),
    "both did it before": ((FIRST, CLEARED, failed(5, "n1", "old2"), passed(3, "old2", "x")), ()),
    "both did it, but the other passed since": (
        (FIRST, CLEARED, failed(9, "n1", "old2"), passed(8, "old2", "x"), passed(2, "n1", "z")),
        ("n0",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_of_two_nodes(case: str) -> None:
    pasts, culprits = CASES[case]
    decision, _ = play(names(2), bad_with_partners("n0"), priors=pasts, now=NOW)
    assert decision.culprits == culprits
    assert decision.verdict.verdict == FAIL
    assert decision.suspects == ("n0", "n1")
    rule = "burnin.second-offence" if culprits else "burnin.two-nodes"
    assert decision.verdict.rule == rule
    if culprits:
        finding = decision.verdict.findings[0]
        assert (finding.id, finding.target, finding.action) == ("burnin.slow", "node:n0", "drain")
        assert "job 7" in finding.evidence[0]
        assert "job 8" in finding.evidence[0]


@pytest.mark.parametrize(("share", "culprits"), [(1.0, ("n0",)), (1.2, ("n0",)), (0.5, ()), (2.0, ())])
def test_slowness_of_another_speed_is_no_second_offence(share: float, culprits: tuple[str, ...]) -> None:
    decision, history = play(names(2), bad_with_partners("n0"), priors=(), now=NOW)
    speed = history[0].groups[0].busbw_gbs
    assert decision.culprits == ()
    assert speed
    pasts = (FIRST._replace(busbw_gbs=speed * share), CLEARED)
    assert play(names(2), bad_with_partners("n0"), priors=pasts, now=NOW)[0].culprits == culprits


def test_without_a_clock_the_caller_has_chosen_the_window() -> None:
    old = (failed(50, "n0", "old"), passed(49, "old", "x"))
    assert play(names(2), bad_with_partners("n0"), priors=old)[0].culprits == ("n0",)
    assert play(names(2), bad_with_partners("n0"), priors=old, now=NOW)[0].culprits == ()


def test_a_longer_window_may_be_asked_for() -> None:
    decision, _ = play(names(2), bad_with_partners("n0"))
    from slurm_ext.burnin.model import GroupResult
    from slurm_ext.burnin.plan_evidence import weigh

    evidence = weigh(names(2), GroupResult(names(2), SLOW), [], leaves={})
    old = (failed(50, "n0", "old"), passed(49, "old", "x"))
    found = priors.second_offence(decision, evidence, old, now=NOW, window_s=72 * HOUR)
    assert found.culprits == ("n0",)


def test_who_passes_now_is_not_convicted_for_the_past() -> None:
    def fabric(group: tuple[str, ...], run: int) -> str:
        return SLOW if {"n0", "n1"} <= set(group) else OK

    decision, _ = play(names(6), fabric, priors=(FIRST, CLEARED), now=NOW)
    assert (decision.verdict.rule, decision.culprits) == ("burnin.pair", ())


def test_a_job_that_passes_convicts_nobody() -> None:
    decision, _ = play(names(2), bad_with_partners(), priors=(FIRST, CLEARED), now=NOW)
    assert (decision.verdict.verdict, decision.culprits) == (PASS, ())


@pytest.mark.parametrize(
    ("leaves", "kind", "culprits"),
    [
        ({"n0": "a", "n1": "b", "old": "c"}, SLOW, ()),
        ({"n0": "a", "n1": "a", "old": "c"}, SLOW, ("n0",)),
        ({"n0": "a", "n1": "b", "old": "a"}, SLOW, ("n0",)),
        ({"n0": "a", "n1": "b", "old": "c"}, HANG, ("n0",)),
        ({}, SLOW, ("n0",)),
    ],
)
def test_a_slow_switch_that_explains_both_is_no_offence(
    leaves: dict[str, str], kind: str, culprits: tuple[str, ...]
) -> None:
    fabric: Behaviour = bad_with_partners("n0", kind=kind)
    decision, _ = play(names(2), fabric, leaves=leaves, priors=(FIRST, CLEARED), now=NOW)
    assert decision.culprits == culprits
