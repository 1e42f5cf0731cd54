"""One process for one GPU: takes orders as JSON lines from its agent, runs rounds of all-reduces, reports every phase.

Orders: `round` {round, rank, ranks, root, bytes, iterations, floor_s}, `id` {round, id}, `stop`, `quit`.
Answers: `phase` {phase, step}, `id` {round, id}, `report` {round, ...fields of RankReport}. It never waits inside a library
where that can be avoided, and where it cannot, the last phase it announced says so. The agent kills what does not answer.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import select
import statistics
import threading
import time
from typing import Any, NamedTuple

from slurm_ext.burnin import kernels
from slurm_ext.burnin.cuda import ENVIRONMENT_CODES, Cuda, CudaError
from slurm_ext.burnin.model import ENVIRONMENT, ERROR, HANG, LOCAL, OK, REMOTE, SLOW, WRONG
from slurm_ext.burnin.nccl import REMOTE as NCCL_REMOTE
from slurm_ext.burnin.nccl import SYSTEM as NCCL_SYSTEM
from slurm_ext.burnin.nccl import Nccl, NcclError
from slurm_ext.errors import FmslurmError

#: Between two looks at events and communicator. Times are taken by the GPU, so this adds nothing to them.
POLL_S = 0.004

#: Sooner (seconds) no run is given up as too slow: a busy machine stalls for so long.
SLOW_S = 1.5

#: How long a rank that found itself too slow waits for the order to stop.
TOGETHER_S = 1.0

#: Results that are verified, each after an all-reduce of its own; the first also connects the ranks.
CHECKS = (("u32", 0), ("u32", 1), ("bf16", 0), ("u32", 2))


class Stopped(Exception):
    """The agent ordered the round to end."""


class TooSlow(Exception):
    """One all-reduce took longer than its limit."""


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
        self._buffers: tuple[int, int, int] = (0, 0, 0)
        self._size = 0

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

    def _poll(self, done: Any, limit_s: float = 0.0) -> None:
        """Wait for `done()`. Raise Stopped on order, TooSlow after `limit_s` or when all took too long (0: no limit)."""
        started = time.monotonic()
        while not done():
            self._pump(POLL_S)
            if self._stopped():
                self._slowest_s = max(self._slowest_s, time.monotonic() - started)
                raise Stopped
            now = time.monotonic()
            if limit_s and (now - started > limit_s or self._behind(now)):
                self._slowest_s = max(self._slowest_s, now - started)
                raise TooSlow

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
            self._record = self._cuda.allocate(24)
            self.phase("ready")
        except (FmslurmError, AttributeError) as exc:
            failure = self._failed(exc)
        while True:
            while order := self._take("round"):
                self._round, self._step = int(order["round"]), 0
                self._slowest_s = self._connected_at = 0.0
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
            # A peer that went away shows as a remote error, in older releases as a system error: no word on this node.
            cause = REMOTE if exc.code in (NCCL_REMOTE, NCCL_SYSTEM) else LOCAL
        return {"state": ERROR, "cause": cause, "phase": self._phase, "step": self._step, "text": str(exc)[:300]}

    def _guarded(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._run(order)
        except Stopped:
            state = HANG
        except TooSlow:
            state = SLOW
        except (FmslurmError, AttributeError) as exc:
            failed = self._failed(exc)
            self._abort()
            return failed
        report = {
            "state": state,
            "phase": self._phase,
            "step": self._step,
            "slowest_ms": self._slowest_s * 1e3,
            "pace_ms": self._pace_ms(),
        }
        if state == SLOW:
            # The others are still in the collective, and our leaving would look like an error there: leave together.
            self.tell(t="slow", round=self._round)
            leave_at = time.monotonic() + TOGETHER_S
            while time.monotonic() < leave_at and not self._stopped():
                self._pump(POLL_S)
        self._abort()
        return report

    def _pace_ms(self) -> float:
        """Return the average time of the all-reduces that ended after the first, which connects; 0 where there is none."""
        steps = self._step - 1
        return (time.monotonic() - self._connected_at) / steps * 1e3 if self._connected_at and steps > 0 else 0.0

    def _abort(self) -> None:
        """Leave a communicator that did not end well; an abort that hangs ends the process, and the agent knows."""
        thread = threading.Thread(target=self._nccl.abort, daemon=True)
        thread.start()
        thread.join(self._plan.abort_s)
        if thread.is_alive():
            self.tell(t="abort-hangs", phase=self._phase, step=self._step)
            os._exit(3)

    def _run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Join, verify every pattern, measure, leave; return the report."""
        rank, ranks, size = int(order["rank"]), int(order["ranks"]), int(order["bytes"])
        floor_s, iterations = float(order["floor_s"]), int(order["iterations"])
        limit_s = max(1.0, 10 * floor_s) if floor_s else 0.0
        nccl = self._nccl
        self._allocate(size)
        self.phase("id", 0)
        if order["root"]:
            identity = nccl.unique_id()
            self.tell(t="id", round=self._round, id=identity.hex())
        else:
            identity = self._await_id()
        self.phase("init-calling")
        nccl.begin(identity, rank, ranks)
        self.phase("init")
        self._poll(nccl.settled)
        mismatches, first_bad, checksums = 0, -1, []
        for index, (family, pattern) in enumerate(CHECKS):
            bad, first, checksum = self._verified(family, pattern, rank, ranks, size, limit_s if index else 0.0)
            if bad and not mismatches:
                first_bad = first
            mismatches += bad
            checksums.append(f"{checksum:016x}")
            if not index:
                self._connected_at = time.monotonic()
                self._floor_s = floor_s
        times_ms = self._measure(size, iterations, limit_s)
        bad, first, checksum = self._check("u32", 2, ranks, size)
        if bad and not mismatches:
            first_bad = first
        mismatches += bad
        checksums.append(f"{checksum:016x}")
        self.phase("done")
        nccl.finalize()
        self._poll(nccl.settled)
        nccl.destroy()
        return {
            "state": WRONG if mismatches else OK,
            "phase": self._phase,
            "step": self._step,
            "mismatches": mismatches,
            "first_bad": first_bad,
            "checksums": checksums,
            "min_ms": min(times_ms),
            "median_ms": statistics.median(times_ms),
            "max_ms": max(times_ms),
        }

    def _allocate(self, size: int) -> None:
        if self._size != size:
            for address in self._buffers[:2]:
                if address:
                    self._cuda.free(address)
            self._buffers = (self._cuda.allocate(size), self._cuda.allocate(size), self._record)
            self._size = size

    def _await_id(self) -> bytes:
        found: list[bytes] = []

        def arrived() -> bool:
            while order := self._take("id"):
                if order["round"] == self._round:
                    found.append(bytes.fromhex(order["id"]))
            return bool(found)

        self._poll(arrived)
        return found[0]

    def _reduce(self, family: str, size: int) -> None:
        """Queue one all-reduce; `call` is the phase while the library has it."""
        self.phase("call")
        send, receive, _ = self._buffers
        self._nccl.all_reduce(send, receive, size // kernels.ELEMENT_BYTES[family], family, self._cuda.stream)
        self._poll(self._nccl.settled)

    def _passed(self, event: ctypes.c_void_p) -> bool:
        self._nccl.settled()  # an error of the communicator (a peer died) ends the wait, too
        return self._cuda.done(event)

    def _verified(
        self, family: str, pattern: int, rank: int, ranks: int, size: int, limit_s: float
    ) -> tuple[int, int, int]:
        """Fill, all-reduce, check: mismatches, first bad index, checksum."""
        count = size // kernels.ELEMENT_BYTES[family]
        self._cuda.fill(family, self._buffers[0], count, pattern, rank, ranks)
        self._reduce(family, size)
        event = self._cuda.event()
        self._cuda.record(event)
        self.phase("run")
        self._poll(lambda: self._passed(event), limit_s)
        self._step += 1
        return self._check(family, pattern, ranks, size)

    def _check(self, family: str, pattern: int, ranks: int, size: int) -> tuple[int, int, int]:
        _, receive, record = self._buffers
        self._cuda.check(family, receive, size // kernels.ELEMENT_BYTES[family], pattern, ranks, record)
        event = self._cuda.event()
        self._cuda.record(event)
        self._poll(lambda: self._cuda.done(event))
        return self._cuda.read_record(record)

    def _measure(self, size: int, iterations: int, limit_s: float) -> list[float]:
        """Queue all timed all-reduces at once, so that no polling is measured, and return the milliseconds of each."""
        events = [self._cuda.event() for _ in range(iterations + 1)]
        self._cuda.record(events[0])
        for event in events[1:]:
            self._reduce("u32", size)
            self._cuda.record(event)
        self.phase("run")
        for event in events[1:]:
            self._poll(lambda event=event: self._passed(event), limit_s)
            self._step += 1
        return [self._cuda.elapsed_ms(a, b) for a, b in itertools.pairwise(events)]
