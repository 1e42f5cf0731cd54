"""What to move next: tables."""

from __future__ import annotations

import pytest

from slurm_ext.staging import plan
from slurm_ext.staging.model import COMPLETE, COPIED, REFUSED, WAITING, Shard
from slurm_ext.staging.plan import ASSEMBLE, LUSTRE, S3, Progress


def _shard(step: int, shard: int = 0, world: int = 1) -> Shard:
    return Shard(7, "run", step, "a", shard, world, 10, "/ckpt", 0.0, f"/nvme/{step}/{shard}")


def _due(shards: list[Shard], known: dict[tuple[str, str], Progress], now: float = 100.0, running=()) -> list[tuple]:  # type: ignore[no-untyped-def,type-arg]
    actions = plan.due(shards, known, tiers=(LUSTRE, S3), running=running, now=now)
    return [(action.kind, action.shard.step, action.rule) for action in actions]


def test_the_shared_tier_first_and_the_newest_step_first() -> None:
    assert _due([_shard(1), _shard(2)], {}) == [
        (LUSTRE, 2, "new-shard"),
        (LUSTRE, 1, "new-shard"),
        (S3, 2, "new-shard"),
        (S3, 1, "new-shard"),
    ]


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (Progress(COMPLETE), []),
        (Progress(REFUSED), []),
        (Progress(COPIED), [(LUSTRE, 1, "look-again")]),
        (Progress(COPIED, not_before=101.0), []),
        (Progress(WAITING, failures=3), [(LUSTRE, 1, "retry")]),
        (Progress(WAITING, failures=3, not_before=101.0), []),
    ],
)
def test_what_is_known_decides(progress: Progress, expected: list[tuple[str, int, str]]) -> None:
    shard = _shard(1)
    assert _due([shard], {(LUSTRE, shard.key): progress, (S3, shard.key): Progress(COMPLETE)}) == expected


def test_what_runs_is_not_started_again() -> None:
    shard = _shard(1)
    assert _due([shard], {}, running=[(LUSTRE, shard.key)]) == [(S3, 1, "new-shard")]


def test_a_tier_that_is_down_keeps_no_other_from_its_turn() -> None:
    shard = _shard(1)
    assert _due([shard], {(LUSTRE, shard.key): Progress(WAITING, 9, 0, 1e9)}) == [(S3, 1, "new-shard")]


def test_failures_wait_longer_each_time_and_never_for_ever() -> None:
    known, waits = Progress(), []
    for _ in range(40):
        known = plan.after_failure(known, "down", 0.0, 1.0)
        waits.append(known.not_before)
    assert waits == sorted(waits)
    assert waits[0] == plan.FIRST_WAIT_S
    assert waits[-1] == plan.LONGEST_WAIT_S
    assert plan.backoff_s(3, 1.0, 60.0, 0.0) == 3.0  # jitter takes off a quarter at most


def test_an_answer_ends_the_row_of_failures() -> None:
    failed = plan.after_failure(Progress(), "down", 0.0, 0.0)
    assert plan.after_answer(failed, COMPLETE, "there", 5.0, 0.0) == Progress(COMPLETE, words="there")
    waiting = plan.after_answer(failed, COPIED, "waits for shard 1", 5.0, 1.0)
    assert (waiting.failures, waiting.looks, waiting.not_before) == (0, 1, 5.0 + plan.FIRST_LOOK_S)


def test_a_checkpoint_is_put_together_once_this_node_has_all_of_it() -> None:
    shards = [_shard(1, 0, 2), _shard(1, 1, 2), _shard(2, 0, 2), _shard(3)]
    assert plan.to_assemble(shards, {}) == [shards[0]]
    assert plan.to_assemble(shards, {(ASSEMBLE, shards[0].key): Progress(COMPLETE)}) == []


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([], 10.0),
        ([Progress(not_before=103.0)], 3.0),
        ([Progress(not_before=99.0)], 10.0),
        ([Progress(COMPLETE)], 10.0),
    ],
)
def test_how_long_nothing_becomes_due(known: list[Progress], expected: float) -> None:
    assert plan.next_wait_s(known, 100.0, 10.0) == expected


def test_the_nearest_tier_that_has_it() -> None:
    order = ("nvme", "lustre", "s3")
    assert plan.nearest({"nvme": False, "lustre": True, "s3": True}, order) == "lustre"
    assert plan.nearest({"s3": False}, order) == ""
