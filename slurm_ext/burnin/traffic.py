"""What one rank sends in a round: verified all-reduces, a warm-up until times are steady, timed ones, sustained traffic.

Every rank does exactly the same number of all-reduces in the same order; where that depends on time, all agree on it by an
all-reduce of a few words (`agreement`). Nothing here waits inside a library: `Watch.poll` looks at events between orders.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from slurm_ext.burnin import agreement, kernels
from slurm_ext.burnin.cuda import Cuda
from slurm_ext.burnin.nccl import Nccl

#: Results that are verified, each after an all-reduce of its own; the first also connects the ranks.
CHECKS = (("u32", 0), ("u32", 1), ("bf16", 0), ("u32", 2))

#: A warm-up takes at most WARM_S (seconds), less where the sustained traffic behind it is short or there is none.
WARM_S, WARM_LEAST_S, WARM_SHARE = 1.0, 0.1, 0.25

#: Two batches of sustained traffic are always queued, so that the GPU never waits for this process.
_DEPTH = 2

_RECORD_BYTES = 256  # 24 are used; what lies behind stays aligned


class Watch(Protocol):
    """What the traffic needs of its process."""

    def phase(self, phase: str, step: int | None = None) -> None:
        """Announce what comes next."""

    def poll(self, done: Callable[[], bool], limit_s: float = 0.0, *, soon: bool = False) -> None:
        """Wait until `done()`, which is expected at once where `soon`; raises on an order to stop, or after too long."""

    def stepped(self) -> None:
        """Count one all-reduce of the whole message that ended."""


class Sustained(NamedTuple):
    """Sustained traffic: one all-reduce (milliseconds; the median, or the last quarter's where that is more), how many there
    were, the last quarter by the first, and after how long (seconds) they became slower than those before."""

    ms: float = 0.0
    steps: int = 0
    drift: float = 1.0
    onset_s: float = 0.0


class Bad(NamedTuple):
    """Mismatches of all checks so far, where the first was, and the checksum of each result."""

    mismatches: int = 0
    first: int = -1
    checksums: tuple[str, ...] = ()

    def plus(self, found: tuple[int, int, int]) -> Bad:
        """Return this with one more check."""
        mismatches, first, checksum = found
        return Bad(
            self.mismatches + mismatches,
            first if mismatches and not self.mismatches else self.first,
            (*self.checksums, f"{checksum:016x}"),
        )


class Traffic:
    """The buffers of one GPU, and the all-reduces on them; one stream, so all is in order."""

    def __init__(self, cuda: Cuda, nccl: Nccl, watch: Watch) -> None:
        """Needs an open `cuda`; allocates the small buffers."""
        self._cuda, self._nccl, self._watch = cuda, nccl, watch
        self._record = cuda.allocate(_RECORD_BYTES + _DEPTH * agreement.BYTES)
        self._votes = [self._record + _RECORD_BYTES + slot * agreement.BYTES for slot in range(_DEPTH)]
        self._send = self._receive = self._size = 0
        self._rank, self._ranks, self._limit_s = 0, 1, 0.0
        self._events: list[ctypes.c_void_p] = []
        self._result = Bad()

    @property
    def result(self) -> Bad:
        """What the checks of this round found."""
        return self._result

    def begin(self, size: int, rank: int, ranks: int, limit_s: float) -> None:
        """Get ready for a round with messages of `size` bytes; one all-reduce may take `limit_s` (0: any time)."""
        self._rank, self._ranks, self._limit_s, self._result = rank, ranks, limit_s, Bad()
        if self._size != size:
            for address in (self._send, self._receive):
                if address:
                    self._cuda.free(address)
            self._send, self._receive, self._size = self._cuda.allocate(size), self._cuda.allocate(size), size

    def verify(self, connected: Callable[[], None]) -> None:
        """Reduce and check every pattern; `connected` is told when the first, which connects the ranks, is through."""
        for index, (family, pattern) in enumerate(CHECKS):
            count = self._size // kernels.ELEMENT_BYTES[family]
            self._cuda.fill(family, self._send, count, pattern, self._rank, self._ranks)
            self._reduce(family)
            (event,) = self._take_events(1)
            self._cuda.record(event)
            self._watch.phase("run")
            self._watch.poll(partial(self._passed, event), self._limit_s if index else 0.0)
            self._watch.stepped()
            self.check(family, pattern)
            if not index:
                connected()

    def warm_up(self, sustain_s: float) -> float:
        """Reduce until all ranks agree that times are steady or it took long enough; return the agreed microseconds."""
        budget_s = min(WARM_S, max(WARM_LEAST_S, WARM_SHARE * sustain_s))
        count, spent_us, medians = agreement.WARM_LEAST, 0.0, []
        for _ in range(agreement.WARM_MAX_BATCHES):
            times_ms = self._timed(count)
            medians.append(agreement.median(times_ms))
            # Steady by the middle, but what is left of the round is shared out by the mean: stalls count there.
            agreed = self._agree(agreement.steady(medians), sum(times_ms) / count * 1e3)
            spent_us += count * agreed.mean_us
            if agreed.votes >= self._ranks or spent_us >= budget_s * 1e6:
                break
            count = agreement.warm_batch(agreed.mean_us)
        return agreed.mean_us

    def agree_left(self, seconds: float) -> float:
        """Return how much time (seconds) all ranks take to be left, by what each says."""
        return self._agree(False, seconds * 1e6).mean_us / 1e6

    def measure(self, iterations: int) -> list[float]:
        """Return the milliseconds of each of some all-reduces, queued at once so that no polling is measured; check."""
        self._cuda.clear(self._receive, self._size)
        times_ms = self._timed(iterations)
        self.check("u32", 2)
        return times_ms

    def sustain(self, seconds: float, median_ms: float) -> Sustained:
        """Reduce back to back for about `seconds`, however long one takes, then check the last result."""
        agreed = self._agree(False, median_ms * 1e3)
        cut = agreement.share(seconds, agreed.mean_us)
        self._cuda.clear(self._receive, self._size)
        if cut.batches:
            times_ms = self._timed(cut.batch)
            found = Sustained(agreement.median(times_ms), len(times_ms), 1.0, max(agreement.ONSET_LEAST_S, seconds))
        else:
            found = self._back_to_back(seconds, cut.batch, agreed.mean_us * cut.batch, median_ms)
        self.check("u32", 2)
        return found

    def check(self, family: str, pattern: int) -> None:
        """Compare the whole result with what it must be."""
        count = self._size // kernels.ELEMENT_BYTES[family]
        self._cuda.check(family, self._receive, count, pattern, self._ranks, self._record)
        (event,) = self._take_events(1)
        self._cuda.record(event)
        self._watch.poll(lambda: self._cuda.done(event))
        self._result = self._result.plus(self._cuda.read_record(self._record))

    def _take_events(self, count: int) -> list[ctypes.c_void_p]:
        """Return events, the same ones each time: whoever takes them has waited for all that others queued."""
        while len(self._events) < count:
            self._events.append(self._cuda.event())
        return self._events[:count]

    def _reduce(self, family: str, *, announced: bool = False) -> None:
        """Queue one all-reduce; `call` is the phase while the library has it."""
        if not announced:
            self._watch.phase("call")
        count = self._size // kernels.ELEMENT_BYTES[family]
        self._nccl.all_reduce(self._send, self._receive, count, family, self._cuda.stream)
        self._watch.poll(self._nccl.settled, soon=True)

    def _passed(self, event: ctypes.c_void_p) -> bool:
        self._nccl.settled()  # an error of the communicator (a peer died) ends the wait, too
        return self._cuda.done(event)

    def _queue(self, events: list[ctypes.c_void_p]) -> None:
        """Queue as many all-reduces as there are events behind the first."""
        self._watch.phase("call")
        self._cuda.record(events[0])
        for event in events[1:]:
            self._reduce("u32", announced=True)
            self._cuda.record(event)
        self._watch.phase("run")

    def _await(self, events: list[ctypes.c_void_p]) -> list[float]:
        """Wait for what `_queue` queued; return the milliseconds of each."""
        for event in events[1:]:
            self._watch.poll(partial(self._passed, event), self._limit_s)
            self._watch.stepped()
        return [self._cuda.elapsed_ms(a, b) for a, b in itertools.pairwise(events)]

    def _timed(self, count: int) -> list[float]:
        events = self._take_events(count + 1)
        self._queue(events)
        return self._await(events)

    def _queue_vote(self, slot: int, stop: bool, microseconds: float, event: ctypes.c_void_p) -> None:
        address = self._votes[slot]
        for index, word in enumerate(agreement.words(stop, microseconds)):
            self._cuda.set_words(address + 4 * agreement.COPIES * index, word, agreement.COPIES)
        self._nccl.all_reduce(address, address, agreement.BYTES // 4, "u32", self._cuda.stream)
        self._watch.poll(self._nccl.settled, soon=True)
        self._cuda.record(event)

    def _read_vote(self, slot: int, event: ctypes.c_void_p) -> agreement.Agreed:
        self._watch.poll(lambda: self._passed(event), self._limit_s)
        return agreement.read(self._cuda.read(self._votes[slot], agreement.BYTES), self._ranks)

    def _agree(self, stop: bool, microseconds: float) -> agreement.Agreed:
        """Return what all ranks together say."""
        self._watch.phase("call")
        (event,) = self._take_events(1)
        self._queue_vote(0, stop, microseconds, event)
        self._watch.phase("run")
        return self._read_vote(0, event)

    def _back_to_back(self, seconds: float, batch: int, batch_us: float, usual_ms: float) -> Sustained:
        """Keep two batches queued until all ranks agree that time is up; a vote goes along with each batch."""
        events = self._take_events(_DEPTH * (batch + 2))
        slots = [events[at : at + batch + 2] for at in range(0, len(events), batch + 2)]
        started = time.monotonic()

        def queue(number: int) -> None:
            *around, vote = slots[number % _DEPTH]
            self._queue(around)
            self._queue_vote(number % _DEPTH, False, (time.monotonic() - started) * 1e6, vote)

        medians: list[float] = []
        for number in range(_DEPTH):
            queue(number)
        last: int | None = None
        while last is None or len(medians) <= last:
            number = len(medians)
            *around, vote = slots[number % _DEPTH]
            medians.append(agreement.median(self._await(around)))
            agreed = self._read_vote(number % _DEPTH, vote)
            if last is None:
                if agreement.enough(number, agreed.mean_us, seconds, batch_us):
                    last = number + 1
                else:
                    queue(number + _DEPTH)
        onset_s = agreement.onset(medians, batch, usual_ms)
        return Sustained(agreement.slowest_part(medians), batch * len(medians), agreement.drift(medians), onset_s)
