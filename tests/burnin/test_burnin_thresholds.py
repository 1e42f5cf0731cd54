"""The fleet's median, what it makes of a run, the table of floors, and the alarm for TCP."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.aws import catalogue
from slurm_ext.burnin import rules, thresholds
from slurm_ext.burnin.model import OK, SLOW, Decision, GroupResult
from slurm_ext.burnin.thresholds import (
    DAY_S,
    DRAIN,
    FLAG,
    Fleet,
    Key,
    Relative,
    Run,
    after_pass,
    by_fleet,
    relative_floor,
)
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Finding, Verdict

NOW = 2_000_000_000.0
KEY = Key("p5.48xlarge", "5-16", 1 << 30, "2.27.7", "1.16", "580.65")
FACTS = {"n0": {"versions": ["2.27.7"], "processes": [{"plugin": [1, 16]}, {"plugin": (1, 16)}]}}
LIKE = {"instance_type": "p5.48xlarge", "message_bytes": 1 << 30, "facts": FACTS}


def run(number: int, busbw: float, *, days: float = 1.0, nodes: int = 8, key: Key = KEY) -> Run:
    """Return a run on a node set of its own."""
    return Run(NOW - days * DAY_S, tuple(f"s{number}n{i}" for i in range(nodes)), busbw, key)


def fleet(runs: list[Run], **more: float) -> Fleet | None:
    options = {"percent": 15.0, "history_d": 30.0, **more}
    return relative_floor(runs, key=KEY, now=NOW, **options)  # type: ignore[arg-type]


def test_twenty_runs_are_a_median_and_nineteen_are_not() -> None:
    runs = [run(i, 300.0 + i) for i in range(20)]
    found = fleet(runs)
    assert found is not None
    assert (found.median_gbs, found.runs, found.sets) == (309.0, 20, 20)
    assert found.floor_gbs == pytest.approx(309.0 * 0.85)
    assert fleet(runs[1:]) is None
    assert fleet(runs, percent=0.0) is None


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("instance_type", "p5en.48xlarge"),
        ("bucket", "3-4"),
        ("message_bytes", 1),
        ("nccl", "2.28.3"),
        ("plugin", ""),
        ("driver", "570"),
        ("sustained", True),
    ],
    ids=lambda value: str(value),
)
def test_only_equal_keys_are_compared(field: str, other: Any) -> None:
    assert fleet([run(i, 300.0, key=KEY._replace(**{field: other})) for i in range(40)]) is None
    assert fleet([run(i, 300.0) for i in range(40)]) is not None


def test_what_is_too_old_too_new_or_no_figure_does_not_count() -> None:
    good = [run(i, 300.0) for i in range(19)]
    for odd in (run(99, 300.0, days=31), run(99, 300.0, days=-2), run(99, math.nan), run(99, math.inf), run(99, 0.0)):
        assert fleet([*good, odd]) is None, odd
    assert fleet([*good, run(99, 300.0, days=-0.01)]) is not None, "clocks differ by minutes"


def test_old_runs_fade() -> None:
    """Thirty runs of four weeks ago weigh less than twelve of yesterday."""
    runs = [run(i, 300.0, days=28) for i in range(30)] + [run(100 + i, 350.0, days=1) for i in range(12)]
    found = fleet(runs)
    assert found is not None
    assert found.median_gbs == 350.0


def test_one_set_of_nodes_is_no_fleet_and_does_not_outvote_it() -> None:
    alone = [run(7, 200.0, days=i / 100) for i in range(500)]
    assert fleet(alone) is None, "one job that is requeued all night"
    found = fleet(alone + [run(100 + i, 300.0) for i in range(20)])
    assert found is not None
    assert (found.median_gbs, found.runs, found.sets) == (300.0, 25, 21)


@given(
    st.lists(
        st.tuples(st.floats(1e-3, 1e4), st.floats(-0.04, 29.9), st.integers(0, 12)),
        min_size=thresholds.RUNS_MIN,
        max_size=60,
    )
)
def test_the_median_is_among_the_figures_whatever_the_history(rows: list[tuple[float, float, int]]) -> None:
    runs = [run(number, busbw, days=days) for busbw, days, number in rows]
    found = fleet(runs)
    kept = sum(min(thresholds.RUNS_PER_SET, sum(r[2] == number for r in rows)) for number in {r[2] for r in rows})
    if kept < thresholds.RUNS_MIN:
        assert found is None
        return
    assert found is not None
    assert found.runs == kept
    assert min(r.busbw_gbs for r in runs) <= found.median_gbs <= max(r.busbw_gbs for r in runs)
    assert 0 < found.floor_gbs < found.median_gbs
    assert fleet(runs[::-1]) == found or len({(r.time, r.nodes) for r in runs}) < len(runs), "the order says nothing"


@given(st.lists(st.floats(290.0, 310.0), min_size=40, max_size=40), st.lists(st.floats(1e-3, 1e6), max_size=19))
def test_less_than_half_the_fleet_cannot_move_the_median_out_of_the_others(good: list[float], odd: list[float]) -> None:
    found = fleet(
        [run(i, busbw) for i, busbw in enumerate(good)] + [run(100 + i, busbw) for i, busbw in enumerate(odd)]
    )
    assert found is not None
    assert min(good) <= found.median_gbs <= max(good)


def test_the_key_comes_from_what_the_nodes_report() -> None:
    assert thresholds.key_of("p5.48xlarge", 8, 1 << 30, facts=FACTS, driver="580.65") == KEY
    mixed = {**FACTS, "n1": {"versions": ["2.28.3"], "processes": [{"plugin": [1, 17]}]}}
    assert thresholds.key_of("p5.48xlarge", 8, 1 << 30, facts=mixed)[3:6] == ("mixed", "mixed", "")
    odd = {"n0": {"versions": 5, "processes": [7, {"plugin": None}]}, "n1": {}}
    assert thresholds.key_of("p5.48xlarge", 100, 1 << 30, facts=odd) == Key("p5.48xlarge", "65+", 1 << 30)


PASSED = Decision(Verdict(PASS, (), "right results", "burnin.all-nodes"))
NO_FLOOR = Decision(Verdict(WARN, (Finding("burnin.no-floor", "node", "warn", ("x",)),), "no floor", "burnin.no-floor"))
RUNS = tuple(run(i, 350.0) for i in range(20))


def concluded(decision: Decision, busbw: float | None, *, act: str = FLAG, runs: tuple[Run, ...] = RUNS) -> Decision:
    relative = Relative(15.0, act, 30.0, runs, NOW, "580.65")
    return after_pass(decision, relative, nodes=8, busbw_gbs=busbw, **LIKE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("busbw", "act", "verdict", "rule"),
    [
        (350.0, FLAG, PASS, "burnin.all-nodes"),
        (298.0, FLAG, PASS, "burnin.all-nodes"),
        (297.0, FLAG, WARN, "burnin.below-fleet"),
        (297.0, DRAIN, FAIL, "burnin.below-fleet"),
        (298.0, DRAIN, PASS, "burnin.all-nodes"),
        (None, DRAIN, PASS, "burnin.all-nodes"),
    ],
)
def test_below_the_fleet_is_flagged_or_fails_by_policy_and_convicts_nobody(
    busbw: float | None, act: str, verdict: str, rule: str
) -> None:
    found = concluded(PASSED, busbw, act=act)
    assert (found.verdict.verdict, found.verdict.rule, found.culprits) == (verdict, rule, ())
    if rule == "burnin.below-fleet":
        assert [(f.id, f.target, f.action) for f in found.verdict.findings] == [("burnin.below-fleet", "node", "warn")]
        assert "15 % below the median 350 of 20 like runs" in found.verdict.reason


def test_without_history_nothing_changes() -> None:
    assert concluded(PASSED, 1.0, runs=RUNS[1:]) == PASSED
    assert after_pass(PASSED, None, nodes=8, busbw_gbs=1.0, **LIKE) == PASSED  # type: ignore[arg-type]


def test_the_fleet_stands_in_for_a_floor_that_nobody_knows() -> None:
    found = concluded(NO_FLOOR, 340.0)
    assert (found.verdict.verdict, found.verdict.rule, found.verdict.findings) == (PASS, "burnin.fleet", ())
    low = concluded(NO_FLOOR, 200.0)
    assert low.verdict.verdict == WARN
    assert [f.id for f in low.verdict.findings] == ["burnin.no-floor", "burnin.below-fleet"]


def test_what_failed_or_is_unknown_is_not_judged_again() -> None:
    for verdict in (FAIL, UNKNOWN):
        decision = Decision(Verdict(verdict, (), "x", "burnin.culprit"), ("n3",), ("n3",))
        assert concluded(decision, 1.0, act=DRAIN) == decision


def test_drain_makes_a_group_slow_so_that_the_culprit_is_looked_for() -> None:
    group = GroupResult(tuple(f"n{i}" for i in range(8)), OK, 297.0, 64)
    drain, flag = Relative(15.0, DRAIN, 30.0, RUNS, NOW, "580.65"), Relative(15.0, FLAG, 30.0, RUNS, NOW, "580.65")
    assert by_fleet(group, drain, **LIKE).outcome == SLOW  # type: ignore[arg-type]
    assert by_fleet(group, flag, **LIKE) == group  # type: ignore[arg-type]
    assert by_fleet(group, None, **LIKE) == group  # type: ignore[arg-type]
    assert by_fleet(group._replace(busbw_gbs=298.0), drain, **LIKE).outcome == OK  # type: ignore[arg-type]
    pair = group._replace(nodes=("n0", "n1"), busbw_gbs=10.0)
    assert by_fleet(pair, drain, **LIKE) == pair, "pairs are held against pairs alone"  # type: ignore[arg-type]


# -- floors -----------------------------------------------------------------------------------------------------------


def test_buckets_cover_every_count_once() -> None:
    assert [rules.bucket(n) for n in (1, 2, 3, 4, 5, 16, 17, 64, 65, 100_000)] == [
        *("1", "2", "3-4", "3-4", "5-16", "5-16", "17-64", "17-64", "65+", "65+")
    ]


@pytest.mark.parametrize("row", rules.FLOORS, ids=lambda row: f"{row.instance_type}-{row.nodes_min}")
def test_each_row_is_of_a_known_type_below_its_published_figure_with_a_source(row: rules.Floor) -> None:
    assert catalogue.find(row.instance_type) is not None
    assert 0 < row.busbw_gbs <= row.published_gbs
    assert "/" in row.source
    assert row.nodes_min in (1, 2, 3, 65)


def test_a_row_for_one_or_two_nodes_holds_for_no_others_and_more_nodes_have_no_higher_floor() -> None:
    for kind in {row.instance_type for row in rules.FLOORS}:
        floors = [rules.floor_gbs(kind, nodes, message_bytes=1 << 30) for nodes in (3, 16, 64, 65, 1024)]
        assert floors == sorted(floors, reverse=True), kind
    assert rules.floor_row("p6-b300.48xlarge", 1) is not None
    assert rules.floor_row("p6-b300.48xlarge", 2) is None
    assert rules.floor_row("p6-b300.48xlarge", 8) is None, "NVLink's figure says nothing of EFA"
    assert rules.floor_gbs("p4d.24xlarge", 4, message_bytes=1 << 30) < 50.0, "a ring over 400 Gb/s ends there"
    assert rules.floor_gbs("p6e-gb200.36xlarge", 4, message_bytes=1 << 30) == 0.0
    assert rules.floor_gbs("p6e-gb200.36xlarge", 4, message_bytes=1 << 30, mnnvl=True) == 440.0


@pytest.mark.parametrize(
    ("kind", "nodes", "size", "busbw", "site", "alarm"),
    [
        ("p5.48xlarge", 4, 1 << 30, 12.0, 0.0, True),
        ("p5en.48xlarge", 2, 1 << 30, 30.0, 0.0, True),
        ("p6-b300.48xlarge", 2, 64 << 20, 30.0, 310.0, True),
        ("p5.48xlarge", 4, 1 << 30, 30.1, 0.0, False),
        ("p5.48xlarge", 1, 1 << 30, 12.0, 0.0, False),
        ("p5.4xlarge", 4, 1 << 30, 5.0, 0.0, False),
        ("p4d.24xlarge", 4, 1 << 30, 12.0, 0.0, False),
        ("p5.48xlarge", 4, 1 << 20, 12.0, 0.0, False),
        ("p5.48xlarge", 4, 1 << 30, 12.0, 10.0, False),
        ("p5.48xlarge", 4, 1 << 30, None, 0.0, False),
    ],
)
def test_the_alarm_for_tcp(kind: str, nodes: int, size: int, busbw: float | None, site: float, alarm: bool) -> None:
    found = rules.tcp_alarm(kind, nodes, message_bytes=size, busbw=busbw, site_floor=site)
    assert (found is not None) is alarm
    if found is not None:
        assert (found.id, found.target, found.action) == ("burnin.tcp-alarm", "node", "warn")


def test_the_alarm_fails_a_run_and_only_joins_a_failure() -> None:
    common = {"nodes": 8, "busbw_gbs": 11.0, "over_efa": True, **LIKE}
    found = after_pass(NO_FLOOR, None, **common)  # type: ignore[arg-type]
    assert (found.verdict.verdict, found.verdict.rule, found.culprits) == (FAIL, "burnin.tcp-alarm", ())
    failed = Decision(Verdict(FAIL, (), "slow", "burnin.fabric"), suspects=("n1",))
    joined = after_pass(failed, None, **common)  # type: ignore[arg-type]
    assert (joined.verdict.rule, joined.suspects) == ("burnin.fabric", ("n1",))
    assert [f.id for f in joined.verdict.findings] == ["burnin.tcp-alarm"]
    assert after_pass(PASSED, None, **{**common, "over_efa": False}) == PASSED  # type: ignore[arg-type]


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [2, 64, 65, 1024])
@pytest.mark.parametrize("sustain_s", [0.0, 0.5, 4.0, 60.0, 1000.0])
@pytest.mark.parametrize("base_s", [15.0, 90.0])
def test_the_parts_fit_the_deadline_with_sustained_traffic_in_it(nodes: int, sustain_s: float, base_s: float) -> None:
    deadline_s = rules.deadline_for(base_s, nodes, extra_sustain_s=max(0.0, sustain_s - 4.0))
    limits = rules.limits(deadline_s, nodes=nodes, sustain_s=sustain_s)
    wholes = 2 if nodes > 64 else 1
    assert wholes * (limits.whole_s + limits.abort_s) + 3 * (limits.group_s + limits.abort_s) <= deadline_s
    assert 0 <= limits.sustain_s <= sustain_s
    assert limits.whole_s > limits.sustain_s or sustain_s == 0.0
    if base_s == 90.0 and sustain_s <= 60.0:
        assert limits.sustain_s == sustain_s, "a strict minute fits the default deadline"


def test_the_deadline_grows_with_the_nodes() -> None:
    deadlines = [rules.deadline_for(90.0, nodes) for nodes in (1, 64, 65, 256, 1024)]
    assert deadlines == sorted(deadlines)
    assert deadlines[1] == 90.0
    assert deadlines[-1] < 150.0
