"""What a group showed, from its ranks' reports: tables."""

from __future__ import annotations

import pytest

from slurm_ext.burnin import judge, rules
from slurm_ext.burnin.model import (
    ENVIRONMENT,
    ERROR,
    HANG,
    LOCAL,
    OK,
    REMOTE,
    SLOW,
    WRONG,
    GroupResult,
    RankReport,
)

MIB = 1 << 20
GOOD = {"state": OK, "phase": "done", "step": 7, "min_ms": 1.0, "median_ms": 1.0, "max_ms": 1.1, "checksums": ("a",)}


def group(*more: dict[str, object], floor: float = 0.1) -> GroupResult:
    """Two ranks a node; what a dictionary says differs from a good report."""
    reports = [RankReport(i, f"n{i // 2}", i % 2, **{**GOOD, **m}) for i, m in enumerate(more)]  # type: ignore[arg-type]
    nodes = tuple(dict.fromkeys(r.node for r in reports))
    return judge.judge_group(nodes, reports, message_bytes=MIB, floor_gbs=floor)


def suspects(result: GroupResult) -> list[str]:
    return [s.node for s in result.suspects]


def test_a_good_group_has_its_slowest_ranks_busbw() -> None:
    result = group({}, {}, {}, {"median_ms": 2.0})
    assert result.outcome == OK
    assert result.busbw_gbs == pytest.approx(MIB / 2e-3 * 2 * 3 / 4 / 1e9)
    assert result.judged


def test_without_a_floor_the_speed_is_not_judged() -> None:
    assert not group({}, {}, {}, {}, floor=0.0).judged


def test_below_the_floor_is_slow() -> None:
    assert group({}, {}, {}, {}, floor=100.0).outcome == SLOW


def sustained(times: float, **more: object) -> dict[str, object]:
    return {"sustain_ms": times, "sustain_steps": 99, "onset_s": 2.5, **more}


def test_the_speed_is_that_of_sustained_traffic_where_it_was_slower() -> None:
    alike = group(*[sustained(0.9)] * 4)
    assert (alike.outcome, alike.busbw_gbs) == (OK, pytest.approx(rules.busbw_gbs(MIB, 1e-3, 4)))
    assert (alike.evidence, alike.onset_s) == ((), 0.0)
    fallen = group(*[sustained(1.0)] * 3, sustained(2.0, drift=2.1))
    assert (fallen.outcome, fallen.busbw_gbs, fallen.onset_s) == (OK, pytest.approx(rules.busbw_gbs(MIB, 2e-3, 4)), 2.5)
    assert "in sustained traffic, 1.57 before" in fallen.evidence[0]
    assert "2.10 times" in fallen.evidence[1]


@pytest.mark.parametrize("times", [1.02, 5.0], ids=["a little", "by far"])
def test_below_the_floor_in_sustained_traffic_only_is_slow(times: float) -> None:
    result = group(*[sustained(times, drift=1.3)] * 4, floor=rules.busbw_gbs(MIB, 1.01e-3, 4))
    assert (result.outcome, result.busbw_gbs) == (SLOW, pytest.approx(rules.busbw_gbs(MIB, times / 1e3, 4)))
    assert result.onset_s == 2.5
    assert "in sustained traffic, floor" in result.evidence[0]
    assert "1.30 times" in result.evidence[1]


def test_below_the_floor_at_once_needs_no_sustained_traffic_to_show_again() -> None:
    assert group(*[sustained(5.0)] * 4, floor=100.0).onset_s == 0.0


@pytest.mark.parametrize(
    "troubled",
    [
        {"state": HANG, "phase": "run", "step": 99, "pace_ms": 3.0},
        {"state": ERROR, "cause": REMOTE},
        {"state": WRONG, "mismatches": 3, "checksums": ("b",)},
    ],
    ids=["hang", "error", "wrong"],
)
def test_what_went_wrong_in_sustained_traffic_says_when_though_its_culprit_cannot(troubled: dict[str, object]) -> None:
    dead = {**troubled, "onset_s": 0.0}
    assert group({**troubled, "onset_s": 3.0}, dead, {**troubled, "onset_s": 2.0}, {}).onset_s == 3.0
    assert group(dead, dead, dead, sustained(1.0)).onset_s == 0.0


def test_one_odd_result_points_at_its_receiver_and_all_wrong_at_nobody() -> None:
    result = group({}, {}, {"state": WRONG, "mismatches": 3, "checksums": ("b",)}, {})
    assert (result.outcome, suspects(result)) == (WRONG, ["n1"])
    same = {"state": WRONG, "mismatches": 3, "checksums": ("b",)}
    result = group(same, same, same, same)
    assert (result.outcome, suspects(result)) == (WRONG, [])
    assert "sender" in result.evidence[-1]
    result = group(same, same, same, same, {**same, "checksums": ("c",)}, same)
    assert suspects(result) == ["n2"]


def test_an_error_of_its_own_points_at_the_node_and_a_remote_one_at_nobody() -> None:
    remote = {"state": ERROR, "cause": REMOTE, "text": "remote process exited"}
    local = {"state": ERROR, "cause": LOCAL, "text": "CUDA_ERROR_UNKNOWN (999)", "phase": "context"}
    result = group(remote, remote, local, remote)
    assert (result.outcome, suspects(result)) == (ERROR, ["n1"])
    assert result.suspects[0].local
    assert suspects(group(remote, remote, remote, remote)) == []


def test_missing_software_is_no_suspicion() -> None:
    result = group({}, {}, {"state": ERROR, "cause": ENVIRONMENT, "text": "cannot load"}, {})
    assert suspects(result) == []
    assert [s.node for s in result.environment] == ["n1"]


def test_a_slow_rank_beside_remote_errors_is_slow() -> None:
    result = group({"state": SLOW, "slowest_ms": 3000.0}, {}, {"state": ERROR, "cause": REMOTE}, {})
    assert result.outcome == SLOW
    assert result.busbw_gbs is not None
    assert "below" in result.evidence[0]


def test_who_goes_on_and_does_not_end_is_slow_by_its_pace() -> None:
    unfinished = {"state": HANG, "phase": "run", "step": 3, "pace_ms": 700.0, "median_ms": 0.0}
    result = group(unfinished, unfinished, unfinished, unfinished)
    assert result.outcome == SLOW
    assert result.busbw_gbs == pytest.approx(rules.busbw_gbs(MIB, 0.7, 4))


def test_a_hang_points_at_who_stayed_behind() -> None:
    waiting = {"state": HANG, "phase": "init", "step": 0, "median_ms": 0.0}
    result = group(waiting, waiting, {**waiting, "phase": "context"}, waiting)
    assert (result.outcome, suspects(result)) == (HANG, ["n1"])
    assert result.suspects[0].local
    assert suspects(group(waiting, waiting, waiting, waiting)) == []
    running = {"state": HANG, "phase": "run", "step": 1, "median_ms": 0.0}
    result = group(running, running, {**running, "phase": "call"}, running)
    assert (suspects(result), result.suspects[0].local) == (["n1"], False)


def test_pairs_without_a_floor_are_judged_against_each_other() -> None:
    pairs = [GroupResult(("a", "b"), OK, speed, judged=False) for speed in (1.0, 0.9, 1.1, 0.2)]
    assert [r.outcome for r in judge.relative(pairs)] == [OK, OK, OK, SLOW]
    assert [r.outcome for r in judge.relative(pairs[2:])] == [OK, OK]
    known = [r._replace(judged=True) for r in pairs]
    assert [r.outcome for r in judge.relative(known)] == [OK] * 4


@pytest.mark.parametrize(
    ("kind", "nodes", "size", "site", "floor"),
    [
        ("p5.48xlarge", 4, 1 << 30, (0, 0), 310.0),
        ("p5.48xlarge", 2, 1 << 30, (0, 0), 380.0),
        ("p5.48xlarge", 1, 1 << 30, (0, 0), 400.0),
        ("p5.48xlarge", 100, 1 << 30, (0, 0), 275.0),
        ("p6-b200.48xlarge", 2, 1 << 30, (0, 0), 0.0),
        ("p5.48xlarge", 4, 1 << 20, (0, 0), 0.0),
        ("p9.48xlarge", 4, 1 << 30, (0, 0), 0.0),
        ("p5.48xlarge", 4, 1 << 20, (7, 9), 7.0),
        ("p5.48xlarge", 2, 1 << 20, (7, 9), 9.0),
        ("p5.48xlarge", 1, 1 << 20, (7, 9), 0.0),
    ],
)
def test_floors(kind: str, nodes: int, size: int, site: tuple[float, float], floor: float) -> None:
    found = rules.floor_gbs(kind, nodes, message_bytes=size, site_floor=site[0], site_pair_floor=site[1])
    assert found == floor


@pytest.mark.parametrize("deadline_s", [15.0, 30.0, 90.0, 600.0])
def test_the_parts_of_a_burn_in_fit_its_deadline(deadline_s: float) -> None:
    limits = rules.limits(deadline_s)
    assert limits.whole_s + limits.abort_s + 3 * (limits.group_s + limits.abort_s) <= deadline_s
    assert rules.seconds_at(rules.busbw_gbs(1 << 30, 0.01, 32), 1 << 30, 32) == pytest.approx(0.01)


def rails(*speeds_ms: float, floor: float = 0.0, **odd: object) -> GroupResult:
    """Two nodes, one rail for each speed; `odd` changes the first rail's report of the second node."""
    reports = [
        RankReport(place, f"n{place}", gpu, **{**GOOD, "median_ms": speed, **(odd if (gpu, place) == (0, 1) else {})})  # type: ignore[arg-type]
        for gpu, speed in enumerate(speeds_ms)
        for place in range(2)
    ]
    return judge.judge_rails(("n0", "n1"), reports, message_bytes=MIB, floor_gbs=floor)


def test_the_slow_rail_is_named_beside_the_others() -> None:
    result = rails(1.0, 1.0, 1.1, 4.0)
    assert (result.outcome, [r.outcome for r in result.rails]) == (SLOW, [OK, OK, OK, SLOW])
    assert result.rails[3].busbw_gbs == pytest.approx(rules.busbw_gbs(MIB, 4e-3, 2))
    assert result.evidence == ("rail 3 (gpu 3 and its NICs) 0.262 GB/s, others 1.05",)


def test_a_slow_rails_nics_are_named_where_the_convicted_node_knows_them() -> None:
    def of_first(*nics: str) -> str:
        reports = [
            RankReport(place, f"n{place}", gpu, **GOOD)._replace(  # type: ignore[arg-type]
                median_ms=4.0 if gpu == 3 else 1.0, nics=("theirs",) if place else nics
            )
            for gpu in range(4)
            for place in range(2)
        ]
        return judge.judge_rails(("n0", "n1"), reports, message_bytes=MIB, floor_gbs=0.0).evidence[0].partition(")")[0]

    assert of_first("rdmap79s0", "rdmap80s0") == "rail 3 (gpu 3 and rdmap79s0, rdmap80s0 beside it"
    assert of_first(*(f"rdmap{n}s0" for n in range(79, 87))).endswith("rdmap82s0 and 4 more beside it")
    assert of_first("\x1b[31m", "a b", "x" * 40) == "rail 3 (gpu 3 and its NICs"
    assert of_first() == "rail 3 (gpu 3 and its NICs"


def test_rails_that_are_alike_name_none() -> None:
    assert (rails(1.0, 1.1, 1.0).outcome, rails(1.0, 1.1, 1.0).evidence[0][:21]) == (OK, "no rail stands out: a")
    slow = rails(4.0, 4.1, 4.0, floor=2.0)
    assert (slow.outcome, slow.evidence) == (SLOW, ("all 3 rails alike: 0.262 GB/s",))
    assert rails(1.0, 1.1, 1.0, floor=2.0).outcome == OK, "each carries its part of the floor"


@pytest.mark.parametrize(
    ("odd", "outcome", "words"),
    [
        ({"state": WRONG, "mismatches": 3}, WRONG, "rail 0 (gpu 0 and its NICs) wrong"),
        ({"state": HANG, "phase": "init", "step": 0, "median_ms": 0.0}, HANG, "rail 0 (gpu 0 and its NICs) hang"),
        ({"state": ERROR, "cause": LOCAL, "text": "lost"}, ERROR, "rail 0 (gpu 0 and its NICs) error"),
    ],
)
def test_a_rail_that_fails_otherwise_is_named_by_how(odd: dict[str, object], outcome: str, words: str) -> None:
    result = rails(1.0, 1.0, 1.0, **odd)
    assert result.outcome == outcome
    assert result.evidence[0].startswith(words)


def test_no_report_of_any_rail_says_nothing() -> None:
    result = judge.judge_rails(("n0", "n1"), (), message_bytes=MIB, floor_gbs=1.0)
    assert (result.rails, result.evidence) == ((), ())
