"""How ranks agree on counts: what a vote says, and what follows from it, without a GPU or a network."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ext.burnin import agreement


def summed(*votes: tuple[bool, float]) -> bytearray:
    """What an all-reduce of these votes leaves in the buffer."""
    sums = [sum(column) & 0xFFFFFFFF for column in zip(*(agreement.words(*vote) for vote in votes), strict=True)]
    return bytearray(b"".join(struct.pack("=I", word) * agreement.COPIES for word in sums))


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 4e9)), min_size=1, max_size=64))
def test_a_vote_says_who_is_for_stopping_and_the_mean(votes: list[tuple[bool, float]]) -> None:
    agreed = agreement.read(bytes(summed(*votes)), len(votes))
    assert agreed.votes == sum(stop for stop, _ in votes)
    assert agreed.mean_us == pytest.approx(max(1.0, sum(int(us) for _, us in votes) / len(votes)))


def test_sums_hold_for_thousands_of_ranks_of_slow_all_reduces() -> None:
    agreed = agreement.read(bytes(summed(*[(True, 60e6)] * 8192)), 8192)
    assert agreed == (8192, 60e6)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(0, 100))
def test_flipped_bits_change_nothing_of_what_is_read(seed: int, flips: int) -> None:
    chance = random.Random(seed)
    votes = [(chance.random() < 0.5, chance.random() * 1e6) for _ in range(8)]
    buffer, before = summed(*votes), agreement.read(bytes(summed(*votes)), 8)
    for _ in range(flips):
        buffer[chance.randrange(len(buffer))] ^= 1 << chance.randrange(8)
    assert agreement.read(bytes(buffer), 8) == before


def test_steady_is_three_batches_within_three_percent() -> None:
    assert not agreement.steady([10.0, 10.0])
    assert not agreement.steady([10.0, 10.0, 10.4])
    assert agreement.steady([14.0, 12.0, 10.0, 10.1, 10.2])


@pytest.mark.parametrize(("mean_us", "count"), [(20.0, 32), (6_000.0, 8), (40_000.0, 2), (2e6, 2)])
def test_batches_of_a_warm_up_last_alike(mean_us: float, count: int) -> None:
    assert agreement.warm_batch(mean_us) == count


@pytest.mark.parametrize("seconds", [0.5, 4.0, 60.0])
@pytest.mark.parametrize("mean_us", [15.0, 300.0, 6_000.0, 40_000.0, 90_000.0])
@pytest.mark.parametrize("pace", [0.5, 1.0, 1.7], ids=["faster", "as-measured", "slower"])
def test_sustained_traffic_ends_when_it_should_though_its_pace_was_misjudged(
    seconds: float, mean_us: float, pace: float
) -> None:
    """Play it with a clock of our own: each batch is queued when the one two before it has ended."""
    cut = agreement.share(seconds, mean_us)
    batch_us = cut.batch * mean_us
    if cut.batches:
        assert cut.batch * mean_us <= seconds * 1e6 * 1.2 or cut.batch == 1
        return
    ends, number, last = [], 0, None
    queued = [0.0, 0.0]
    while last is None or number <= last:
        ends.append((ends[-1] if ends else 0.0) + batch_us * pace)
        if last is None and agreement.enough(number, queued[number], seconds, batch_us):
            last = number + 1
        elif last is None:
            queued.append(ends[number])
        number += 1
    assert abs(ends[-1] / 1e6 - seconds) <= max(0.2 * seconds, 1.5 * batch_us * pace / 1e6)


def test_what_fits_into_a_round() -> None:
    assert agreement.affordable(20, 6_000.0, 27.0) == 20
    assert agreement.affordable(4000, 1_000.0, 2.0) == 1000
    assert agreement.affordable(20, 1e6, 2.0) == agreement.ITERATIONS_LEAST
    assert agreement.affordable(2, 1e6, -1.0) == 2
    assert agreement.sustainable(4.0, 27.0) == 4.0
    assert agreement.sustainable(60.0, 27.0) == pytest.approx(24.3)
    assert agreement.sustainable(4.0, 0.55) == 0.0
    assert agreement.sustainable(0.0, 27.0) == 0.0
    assert agreement.sustainable(0.0, -3.0) == 0.0


def test_drift_is_the_last_quarter_by_the_first() -> None:
    assert agreement.drift([1.0] * 7) == 1.0
    assert agreement.drift([1.0, 1.0, 5.0, 5.0, 5.0, 5.0, 1.3, 1.3]) == 1.3
    assert agreement.median([3.0, 1.0, 2.0, 10.0]) == 2.5


@pytest.mark.parametrize(
    ("medians", "slowest", "onset_s"),
    [
        ([1.0] * 24, 1.0, 0.24),
        ([1.0] * 12 + [3.0] * 12, 3.0, 0.12),
        ([1.0] * 17 + [3.0] * 7, 3.0, 0.17),
        ([3.0] * 24, 3.0, agreement.ONSET_LEAST_S),
        ([1.0, 9.0, *[1.0] * 22], 1.0, 0.32),  # one dip is no end of it
        ([1.0, 5.0], 3.0, 0.01),
    ],
)
def test_when_traffic_got_slower_and_what_it_came_down_to(medians: list[float], slowest: float, onset_s: float) -> None:
    assert agreement.slowest_part(medians) == slowest
    assert agreement.onset(medians, 10, 1.0) == pytest.approx(onset_s)


def test_when_traffic_stood_still_by_the_clock() -> None:
    assert agreement.onset_by_clock([100.0], 1.0) == agreement.ONSET_LEAST_S
    assert agreement.onset_by_clock([100.0, 100.02, 100.04, 100.5, 101.0], 5.0) == pytest.approx(0.04)
    assert agreement.onset_by_clock([100.0, 100.02, 100.04], 5.0) == pytest.approx(0.04)
