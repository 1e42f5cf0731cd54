"""How ranks that share nothing but an all-reduce agree on when to go on: votes as words of a buffer that is summed. Pure.

Each rank puts in whether it is for stopping and a time; all read the same sums, so all decide the same and none waits for
one that left. Each word travels in many copies and the most frequent sum counts: one flipped bit, which the burn-in is
there to find, must show as a wrong result and not as a hang.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

#: Copies of each word; words: ranks for stopping, and a time in microseconds as its upper and its lower 16 bits.
COPIES, WORDS = 256, 3
BYTES = 4 * COPIES * WORDS

#: Steady: the medians of this many batches in a row lie within this share of each other.
STEADY_BATCHES, STEADY_SHARE = 3, 1.03
WARM_MAX_BATCHES, WARM_BATCH_US = 20, 50_000
WARM_LEAST, WARM_MOST = 2, 32

#: So many timed all-reduces are made however little time is left; and what is kept (seconds, share of what is left) for the
#: end behind sustained traffic, which is left out where it could not last for SUSTAIN_LEAST_S.
ITERATIONS_LEAST = 3
END_LEAST_S, END_SHARE, SUSTAIN_LEAST_S = 0.5, 0.1, 0.1

#: Slower than before by this factor is no jitter; a wait (seconds) longer than between two looks at what is awaited; and the
#: least onset (seconds), since 0 means that the traffic was not sustained yet.
SLOWER, STALL_S, ONSET_LEAST_S = 1.1, 0.05, 0.001

#: Sustained traffic is cut into about so many batches; fewer all-reduces than FEW are queued without a vote.
BATCHES, BATCH_MOST, FEW = 24, 128, 6


def median(values: Sequence[float]) -> float:
    """Return the middle of one value or more. The module `statistics` takes longer to import than a round of pairs."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


class Agreed(NamedTuple):
    """What all ranks read out of one vote: how many are for stopping, and the mean of their times (microseconds)."""

    votes: int
    mean_us: float


def words(stop: bool, microseconds: float) -> tuple[int, int, int]:
    """Return the words that a rank puts in. Times above 71 minutes count as that."""
    whole = min(max(int(microseconds), 0), (1 << 32) - 1)
    return int(stop), whole >> 16, whole & 0xFFFF


def read(buffer: bytes, ranks: int) -> Agreed:
    """Return what a summed buffer of BYTES says: for each word the most frequent of its copies."""
    numbers = struct.unpack(f"={COPIES * WORDS}I", buffer)
    votes, upper, lower = (
        Counter(numbers[at : at + COPIES]).most_common(1)[0][0] for at in range(0, COPIES * WORDS, COPIES)
    )
    return Agreed(votes, max(1.0, ((upper << 16) + lower) / ranks))


def steady(medians: Sequence[float]) -> bool:
    """Say whether the last batches took the same time, so that clocks have come up."""
    last = medians[-STEADY_BATCHES:]
    return len(last) == STEADY_BATCHES and max(last) <= STEADY_SHARE * min(last)


def warm_batch(mean_us: float) -> int:
    """Return the size of the next batch of a warm-up whose last all-reduces took `mean_us` each."""
    return min(WARM_MOST, max(WARM_LEAST, round(WARM_BATCH_US / mean_us)))


def affordable(iterations: int, mean_us: float, left_s: float) -> int:
    """Return how many of the wanted timed all-reduces are made where all ranks have `left_s` (seconds) to the round's end.

    Half of that at most: a healthy run must come to its end, or it looks slow for its length alone.
    """
    return max(1, min(iterations, max(ITERATIONS_LEAST, int(left_s * 5e5 / mean_us))))


def sustainable(seconds: float, left_s: float) -> float:
    """Return for how long (seconds) traffic can be sustained; 0.0 where too little is left to make it worth its name."""
    room = left_s - max(END_LEAST_S, END_SHARE * left_s)
    return 0.0 if room < min(seconds, SUSTAIN_LEAST_S) else min(seconds, room)


class Share(NamedTuple):
    """How sustained traffic is cut: all-reduces in a batch, and how many batches where that needs no vote (0: it does)."""

    batch: int
    batches: int


def share(seconds: float, mean_us: float) -> Share:
    """Return how traffic of `seconds` is cut where one all-reduce takes `mean_us` by all ranks' agreement."""
    total = max(1, round(seconds * 1e6 / mean_us))
    if total < FEW:
        return Share(total, 1)
    return Share(min(BATCH_MOST, max(1, round(total / BATCHES))), 0)


def enough(done: int, elapsed_us: float, seconds: float, batch_us: float) -> bool:
    """Say whether the batch that runs behind number `done` (from 0) shall be the last one.

    Two batches are always under way, so batch `done` was queued at `elapsed_us`, when `done` - 1 batches were through.
    `batch_us` is what one batch should take by the first agreement; it counts until there is better.
    """
    if done >= 2:
        batch_us = elapsed_us / (done - 1)
        ends_us = elapsed_us + 3 * batch_us
    else:
        ends_us = (done + 2) * batch_us
    return ends_us + batch_us / 2 >= seconds * 1e6


def slowest_part(medians: Sequence[float]) -> float:
    """Return the median of all batches, or of the last quarter where that is more: what traffic came down to counts."""
    quarter = len(medians) // 4
    whole = median(medians)
    return whole if quarter < 2 else max(whole, median(medians[-quarter:]))


def onset(medians: Sequence[float], batch: int, usual_ms: float) -> float:
    """Return after how many seconds traffic that was `usual_ms` each got slower for good; all of its time where it did not."""
    most_ms = SLOWER * usual_ms
    for index, batch_ms in enumerate(medians):
        if batch_ms > most_ms and median(medians[index:]) > most_ms:
            return max(ONSET_LEAST_S, sum(medians[:index]) * batch / 1e3)
    return max(ONSET_LEAST_S, sum(medians) * batch / 1e3)


def onset_by_clock(ends: Sequence[float], usual_ms: float) -> float:
    """Return the same for traffic that did not come to its end; `ends` (seconds) are its start and the end of each all-reduce.

    Ends are seen by looks that lie up to STALL_S apart, so only a longer wait says something; else it is the last one's.
    """
    for before, after in itertools.pairwise(ends):
        if after - before > max(STALL_S, 2 * usual_ms / 1e3):
            return max(ONSET_LEAST_S, before - ends[0])
    return max(ONSET_LEAST_S, ends[-1] - ends[0])


def drift(medians: Sequence[float]) -> float:
    """Return the last quarter's median by the first's; 1.0 for traffic too short to have quarters."""
    quarter = len(medians) // 4
    if quarter < 2:
        return 1.0
    first = median(medians[:quarter])
    return median(medians[-quarter:]) / first if first > 0 else 1.0
