"""The token bucket, on a clock of the test's own."""

from __future__ import annotations

import pytest
from fake_clock import Clock

from slurm_ext.aws.bucket import TokenBucket


def test_a_full_bucket_gives_at_once_and_then_as_it_is_filled(clock: Clock) -> None:
    bucket = TokenBucket(100, 20, clock=clock, sleep=clock.sleep)
    for _ in range(100):
        assert bucket.take(until=1e9)
    assert clock.now == 0
    for _ in range(40):
        assert bucket.take(until=1e9)
    assert clock.now == pytest.approx(2.0)


def test_who_would_wait_too_long_gets_nothing_and_takes_nothing(clock: Clock) -> None:
    bucket = TokenBucket(1, 1, clock=clock, sleep=clock.sleep)
    assert bucket.take(until=0)
    assert not bucket.take(until=0.5)
    assert clock.slept == []
    assert bucket.take(until=1.0)


def test_a_drained_bucket_fills_again_and_never_above_its_rim(clock: Clock) -> None:
    bucket = TokenBucket(10, 10, clock=clock, sleep=clock.sleep)
    bucket.drain()
    assert bucket.take(until=10)
    assert clock.now == pytest.approx(0.1)
    clock.now += 1000
    for _ in range(10):
        assert bucket.take(until=clock.now)
    assert not bucket.take(until=clock.now)
