"""One process for one GPU: takes orders as JSON lines from its agent, runs rounds of all-reduces, reports every phase.

Orders: `round` {round, rank, ranks, root, bytes, iterations, floor_s, sustain_s, ends}, `id` {round, id}, `stop`, `quit`.
Answers: `phase` {phase, step}, `id` {round, id}, `report` {round, ...fields of RankReport}. It never waits inside a library
where that can be avoided, and where it cannot, the last phase it announced says so. The agent kills what does not answer.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from slurm_ext.burnin import agreement
from slurm_ext.burnin.cuda import ENVIRONMENT_CODES, Cuda, CudaError
from slurm_ext.burnin.model import ENVIRONMENT, ERROR, HANG, LOCAL, OK, REMOTE, SLOW, WRONG
from slurm_ext.burnin.nccl import Nccl, NcclError, version_words
from slurm_ext.burnin.traffic import CHECKS as CHECKS
from slurm_ext.burnin.traffic import Sustained, Traffic
from slurm_ext.errors import FmslurmError

#: Between two looks at events and communicator (seconds): at least, at most, and by what was waited already. Times are taken by
#: the GPU, so this adds nothing to them; and a look that is late by a part of what it waits for leaves the GPU its next batch.
LEAST_PAUSE_S, MOST_PAUSE_S, PAUSE_SHARE = 0.002, 0.025, 0.5

#: NCCL queues a collective of a non-blocking communicator on a thread of its own (ncclGroupEnd in src/group.cc), and none may
#: follow before that is done: some ten microseconds. A pause after each would starve the GPU.
SPIN_S = 0.002

#: Sooner (seconds) no run is given up as too slow: a busy machine stalls for so long.
SLOW_S = 1.5

#: How long a rank that found itself too slow waits for the order to stop.
TOGETHER_S = 1.0


def pause(waited_s: float) -> float:
    """Return how long (seconds) to pause before the next look at what has been waited for so long."""
    return min(MOST_PAUSE_S, max(LEAST_PAUSE_S, PAUSE_SHARE * waited_s))


class Stopped(Exception):
    """The agent ordered the round to end."""


class TooSlow(Exception):
    """One all-reduce took longer than its limit."""


class UnlikeError(FmslurmError):
    """The nodes do not hold the same software: no word on anybody's hardware."""


class WorkerPlan(NamedTuple):
    """What a worker needs to know from its start."""

    gpu: int
    cuda_library: str
    nccl_libraries: tuple[str, ...]
    abort_s: float


class Worker:
    """The state of the process; `serve` never returns before it is told to quit or its agent is gone."""

    def __init__(self, plan: WorkerPlan, descriptor: int) -> None:
        self._plan, self._fd = plan, descriptor
        self._inbox = bytearray()
        self._orders: list[dict[str, Any]] = []
        self._phase, self._step = "start", 0
        self._round = -1
        self._slowest_s = 0.0
        self._connected_at = 0.0
        self._floor_s = 0.0
        self._usual_ms = self._heated_s = 0.0
        self._sustained: list[float] = []  # when sustained traffic began and each of its all-reduces ended

    def tell(self, **message: Any) -> None:
        """Send one line to the agent; an agent that is gone ends the process."""
        data = memoryview((json.dumps(message, separators=(",", ":")) + "\n").encode())
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError:
                os._exit(1)

    def phase(self, phase: str, step: int | None = None) -> None:
        """Announce what comes next, before it is done."""
        self._phase = phase
        self._step = self._step if step is None else step
        self.tell(t="phase", phase=phase, step=self._step)

    def _pump(self, timeout_s: float) -> None:
        """Read orders for at most `timeout_s`; `quit` and the agent's end are obeyed at once."""
        readable, _, _ = select.select([self._fd], [], [], timeout_s)
        if readable:
            chunk = os.read(self._fd, 65536)
            if not chunk:
                os._exit(0)
            self._inbox += chunk
            *lines, rest = bytes(self._inbox).split(b"\n")
            self._inbox = bytearray(rest)
            self._orders += [json.loads(line) for line in lines]
        if any(order["t"] == "quit" for order in self._orders):
            os._exit(0)

    def _stopped(self) -> bool:
        """Say whether the round that runs was ordered to stop, and forget that order."""
        for order in self._orders:
            if order["t"] == "stop" and order["round"] >= self._round:
                self._orders.remove(order)
                return True
        return False

    def stepped(self) -> None:
        """Count one all-reduce that ended."""
        self._step += 1
        if self._sustained:
            self._sustained.append(time.monotonic())

    def poll(self, done: Callable[[], bool], limit_s: float = 0.0, *, soon: bool = False) -> None:
        """Wait for `done()`. Raise Stopped on order, TooSlow after `limit_s` or when all took too long (0: no limit).

        `soon`: it is about to be done, and until then the GPU gets no more work: look without a pause for SPIN_S.
        """
        started = time.monotonic()
        while soon and time.monotonic() - started < SPIN_S:
            if done():
                return
            os.sched_yield()
        pause_s = LEAST_PAUSE_S
        while not done():
            self._pump(pause_s)
            if self._stopped():
                self._slowest_s = max(self._slowest_s, time.monotonic() - started)
                raise Stopped
            now = time.monotonic()
            if limit_s and (now - started > limit_s or self._behind(now)):
                self._slowest_s = max(self._slowest_s, now - started)
                raise TooSlow
            pause_s = pause(now - started)

    def _behind(self, now: float) -> bool:
        """Say whether what ran since the ranks are connected took three times as long as it may at the floor."""
        steps = max(2, self._step)  # those that ended behind the first, and the one that runs
        return bool(self._connected_at) and now > self._connected_at + max(SLOW_S, 3 * self._floor_s * steps)

    def serve(self) -> None:
        """Open the GPU, then run rounds as ordered."""
        failure: dict[str, Any] | None = None
        pci = ""
        try:
            self.phase("library")
            self._nccl = Nccl(self._plan.nccl_libraries)
            self._cuda = Cuda(self._plan.cuda_library)
            self.phase("context")
            pci = self._cuda.open(self._plan.gpu)
            self._traffic = Traffic(self._cuda, self._nccl, self)
            self.phase("ready")
        except Exception as exc:  # noqa: BLE001 - whatever it was, it is told, and no fault of the GPU's
            failure = self._failed(exc)
        while True:
            while order := self._take("round"):
                self._round, self._step = int(order["round"]), 0
                self._slowest_s = self._connected_at = 0.0
                self._sustained = []
                result = failure or self._guarded(order)
                self.tell(t="report", round=self._round, pci=pci, **result)
                if result["state"] == ERROR:
                    os._exit(2)  # a context that saw an error stays bad: the next round gets a new process
            self._pump(3600.0)

    def _take(self, kind: str) -> dict[str, Any] | None:
        for order in self._orders:
            if order["t"] == kind:
                self._orders.remove(order)
                return order
        return None

    def _failed(self, exc: Exception) -> dict[str, Any]:
        """Return the report of an error: whose fault it shows, where, and its words."""
        cause = ENVIRONMENT
        if isinstance(exc, CudaError):
            cause = ENVIRONMENT if exc.code in ENVIRONMENT_CODES else LOCAL
        elif isinstance(exc, NcclError):
            cause = {"remote": REMOTE, "environment": ENVIRONMENT}.get(exc.whose, LOCAL)
        words = str(exc) if isinstance(exc, FmslurmError) else repr(exc)
        place = {"phase": self._phase, "step": self._step, "onset_s": self._onset_s()}
        return {"state": ERROR, "cause": cause, "text": words[:300], **place}

    def _guarded(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._run(order)
        except Stopped:
            state = HANG
        except TooSlow:
            state = SLOW
        except Exception as exc:  # noqa: BLE001 - an error of our own must not look like the node's
            failed = self._failed(exc)
            self._abort()
            return failed
        report = {
            "state": state,
            "phase": self._phase,
            "step": self._step,
            "slowest_ms": self._slowest_s * 1e3,
            "pace_ms": self._pace_ms(),
            "onset_s": self._onset_s(),
        }
        if state == SLOW:
            # The others are still in the collective, and our leaving would look like an error there: leave together.
            self.tell(t="slow", round=self._round)
            leave_at = time.monotonic() + TOGETHER_S
            while (left_s := leave_at - time.monotonic()) > 0 and not self._stopped():
                self._pump(left_s)
        self._abort()
        return report

    def _pace_ms(self) -> float:
        """Return the average time of the all-reduces that ended after the first, which connects; 0 where there is none."""
        if self._sustained:
            began = self._connected_at + self._onset_s()
            steps = sum(end > began for end in self._sustained)
            return (time.monotonic() - began) / steps * 1e3 if steps else 0.0
        steps = self._step - 1
        return (time.monotonic() - self._connected_at) / steps * 1e3 if self._connected_at and steps > 0 else 0.0

    def _onset_s(self) -> float:
        """Return after how much traffic (seconds, since the ranks are connected) it went wrong; 0 if not in sustained."""
        if not self._sustained:
            return 0.0
        return round(self._heated_s + agreement.onset_by_clock(self._sustained, self._usual_ms), 3)

    def _abort(self) -> None:
        """Leave a communicator that did not end well; an abort that hangs ends the process, and the agent knows."""
        thread = threading.Thread(target=self._nccl.abort, daemon=True)
        thread.start()
        thread.join(self._plan.abort_s)
        if thread.is_alive():
            self.tell(t="abort-hangs", phase=self._phase, step=self._step)
            os._exit(3)

    def _run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Join, verify every pattern, warm up, measure, keep the traffic up, leave; return the report."""
        rank, ranks, sustain_s = int(order["rank"]), int(order["ranks"]), float(order.get("sustain_s", 0.0))
        floor_s = float(order["floor_s"])
        nccl, traffic = self._nccl, self._traffic
        traffic.begin(int(order["bytes"]), rank, ranks, max(1.0, 10 * floor_s) if floor_s else 0.0)
        self.phase("id", 0)
        if order["root"]:
            identity = nccl.unique_id()
            self.tell(t="id", round=self._round, id=identity.hex(), nccl=nccl.version)
        else:
            identity = self._await_id()
        self.phase("init-calling")
        nccl.begin(identity, rank, ranks)
        self.phase("init")
        self.poll(nccl.settled)

        def connected() -> None:
            self._connected_at, self._floor_s = time.monotonic(), floor_s

        traffic.verify(connected)
        mean_us, iterations = traffic.warm_up(sustain_s), int(order["iterations"])
        if ends := float(order.get("ends", 0.0)):
            iterations = agreement.affordable(iterations, mean_us, traffic.agree_left(ends - time.monotonic()))
        times_ms = traffic.measure(iterations)
        median_ms = agreement.median(times_ms)
        if ends and sustain_s > 0:  # by what it took, which a busy machine's warm-up does not foretell
            sustain_s = agreement.sustainable(sustain_s, traffic.agree_left(ends - time.monotonic()))
        sustained, wrong_before = Sustained(), traffic.result.mismatches > 0
        if sustain_s > 0:
            self._usual_ms, self._sustained = median_ms, [time.monotonic()]
            self._heated_s = self._sustained[0] - self._connected_at
            sustained = traffic.sustain(sustain_s, median_ms)
            self._sustained = []
        found = traffic.result
        onset_s = 0.0 if wrong_before or sustain_s <= 0 else sustain_s if found.mismatches else sustained.onset_s
        self.phase("done")
        nccl.finalize()
        self.poll(nccl.settled)
        nccl.destroy()
        return {
            "state": WRONG if found.mismatches else OK,
            "phase": self._phase,
            "step": self._step,
            "mismatches": found.mismatches,
            "first_bad": found.first,
            "checksums": found.checksums,
            "min_ms": min(times_ms),
            "median_ms": median_ms,
            "max_ms": max(times_ms),
            "sustain_ms": sustained.ms,
            "sustain_steps": sustained.steps,
            "drift": round(sustained.drift, 4),
            "onset_s": round(onset_s and self._heated_s + onset_s, 3),
        }

    def _await_id(self) -> bytes:
        """Return the id of this round. Raise UnlikeError where its maker has another release of NCCL."""
        found: list[dict[str, Any]] = []

        def arrived() -> bool:
            while order := self._take("id"):
                if order["round"] == self._round:
                    found.append(order)
            return bool(found)

        self.poll(arrived)
        theirs, ours = int(found[0].get("nccl", 0)), self._nccl.version
        if theirs and theirs != ours:
            # NCCL itself would say so, too, but as an error of whoever looks first, and any node of the odd ones.
            raise UnlikeError(
                f"NCCL {version_words(ours)} here and {version_words(theirs)} on the node that began: nothing was tested",
                remedy="Install the same NCCL on all nodes, or set burnin.nccl_library",
            )
        return bytes.fromhex(found[0]["id"])
