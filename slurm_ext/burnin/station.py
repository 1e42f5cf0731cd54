"""One node's side of the burn-in: turns the leader's orders into orders for its workers, and their reports into one answer.

No sockets and no clock of its own: messages and times come in, messages go out through `send`. Orders: `round` {round, base
(first rank here), ranks, root, bytes, iterations, limit_s, floor_s, sustain_s, rails, mnnvl}, `id` {round, id, gpu},
`stop` {round}. Answers: `id` {round, id, gpu}, `trouble` {round}, `report` {round, ranks: [...], facts}.
With `rails` each GPU index is a communicator of its own, in which `base` is this node's rank; its messages carry `gpu`, which
is -1 otherwise. `mnnvl` on or off asks for workers that were started so, since NCCL reads that once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from slurm_ext.burnin.model import ERROR, HANG, LOCAL, OK, RankReport

Send = Callable[[Mapping[str, Any]], None]


class Workers(Protocol):
    """What a station needs of its workers; `pool.Pool` is the real one."""

    def alive(self, gpu: int) -> bool:
        """Say whether the worker of a GPU is there."""

    def start(self, gpu: int) -> None:
        """Start it unless it is there."""

    def leaving(self, gpu: int) -> str:
        """Return how an earlier worker of a GPU, which was killed, still runs (a state of proc(5)); empty where it ended."""

    def order(self, gpu: int, message: Mapping[str, Any]) -> None:
        """Send it an order."""

    def kill(self, gpu: int) -> None:
        """Kill it."""

    def set_environment(self, more: Mapping[str, str]) -> None:
        """Give workers that start from now on these variables beside their usual ones."""


#: A killed worker still holds its GPU so many times as long as one may take to stop: in D state it is stuck then. Any other is
#: likely to be on its way out, which a busy machine makes slow. By then the other ranks are past their start, and a GPU that
#: never started is behind them all.
STUCK, ON_ITS_WAY = 2.0, 4.0


class Station:
    """The state of one node."""

    def __init__(
        self,
        node: str,
        gpus: int,
        workers: Workers,
        send: Send,
        *,
        abort_s: float,
        facts: Callable[[int], Mapping[str, Any]] = lambda number: {},
        nics: Callable[[str], tuple[str, ...]] = lambda pci: (),
    ) -> None:
        """`facts` is asked for what else is to be told of a round (its number) that ended well here, `nics` for the network
        devices of a GPU by its PCI address."""
        self._facts, self._nics = facts, nics
        self._pci: dict[int, str] = {}
        self._node, self._gpus, self._workers, self._send = node, gpus, workers, send
        self._abort_s = abort_s
        self._round = -1
        self._base, self._ranks, self._bytes = 0, 1, 0
        self._rails, self._mnnvl = False, ""
        self._phases = {gpu: ("start", 0) for gpu in range(gpus)}
        self._reports: dict[int, RankReport] = {}
        # No worker is started beside one that cannot end: orders wait for its end, and where that does not come, in vain.
        self._awaited: dict[int, list[Mapping[str, Any]]] = {}
        self._last: dict[int, tuple[str, int]] = {}  # where those were that are waited for
        self._began = 0.0
        self._deadline = 0.0
        self._killed_at = 0.0
        self._troubled = False

    @property
    def busy(self) -> bool:
        """True while a round has been ordered and not yet answered."""
        return self._round >= 0

    def on_order(self, message: Mapping[str, Any], now: float) -> None:
        """Take one order of the leader."""
        kind, number = message.get("t"), int(message.get("round", -1))
        if kind == "round":
            self._begin(message, now)
        elif number == self._round and kind == "id":
            one = int(message.get("gpu", -1))
            for gpu in range(self._gpus) if one < 0 else (one,):
                order = {"t": "id", "round": number, "id": str(message["id"]), "nccl": int(message.get("nccl", 0))}
                self._order(gpu, order)
        elif number == self._round and kind == "stop":
            self._stop(now)

    def _begin(self, message: Mapping[str, Any], now: float) -> None:
        self._round, self._base = int(message["round"]), int(message["base"])
        self._ranks, self._bytes = int(message["ranks"]), int(message["bytes"])
        self._rails = bool(message.get("rails", False))
        self._reports, self._troubled, self._killed_at = {}, False, 0.0
        # The leader ends a round; this is for the case that its order to stop never comes.
        self._deadline = now + float(message["limit_s"]) + self._abort_s
        self._set_mnnvl(str(message.get("mnnvl", "")))
        self._began = now
        for gpu in range(self._gpus):
            if not self._workers.alive(gpu):
                self._start(gpu)
            self._order(
                gpu,
                {
                    "t": "round",
                    "round": self._round,
                    "rank": self._rank(gpu),
                    "ranks": self._ranks,
                    "root": bool(message["root"]) and (self._rails or gpu == 0),
                    "bytes": self._bytes,
                    "iterations": int(message["iterations"]),
                    "floor_s": float(message["floor_s"]),
                    "sustain_s": float(message.get("sustain_s", 0.0)),
                    "ends": now + float(message["limit_s"]),
                },
            )

    def _start(self, gpu: int) -> None:
        """Start a worker, or have it started when the earlier one has ended."""
        before, self._phases[gpu] = self._phases[gpu], ("start", 0)
        if self._workers.leaving(gpu):
            self._awaited[gpu] = []
            self._last.setdefault(gpu, before)
        else:
            self._begin_worker(gpu)

    def _begin_worker(self, gpu: int) -> None:
        self._last.pop(gpu, None)
        self._workers.start(gpu)
        for order in self._awaited.pop(gpu, ()):
            self._workers.order(gpu, order)

    def _order(self, gpu: int, message: Mapping[str, Any]) -> None:
        if gpu in self._awaited:
            self._awaited[gpu].append(message)
        else:
            self._workers.order(gpu, message)

    def _take_turns(self, now: float) -> None:
        """Start workers whose predecessors have ended; give up those whose predecessors cannot."""
        for gpu in list(self._awaited):
            state = self._workers.leaving(gpu)
            if not state:
                self._begin_worker(gpu)
                continue
            patience_s = self._abort_s * (STUCK if state == "D" else ON_ITS_WAY)
            if self.busy and gpu not in self._reports and now >= self._began + patience_s:
                phase, step = self._last[gpu]
                why = f"its worker of an earlier round, killed in {phase} {step}, cannot end ({state})"
                self._give_up(gpu, why)

    def _give_up(self, gpu: int, why: str) -> None:
        """Report a GPU that takes no part in this round: behind all others, since it never began."""
        self._awaited[gpu] = []
        self._trouble()
        self._report(RankReport(self._rank(gpu), self._node, gpu, HANG, "", "start", 0, why))

    def _rank(self, gpu: int) -> int:
        return self._base if self._rails else self._base + gpu

    def _set_mnnvl(self, wanted: str) -> None:
        """Have workers with or without NVLink between nodes: NCCL reads its environment once in a process."""
        if wanted == self._mnnvl:
            return
        self._mnnvl = wanted
        self._workers.set_environment({"NCCL_MNNVL_ENABLE": str(int(wanted == "on"))} if wanted else {})
        for gpu in range(self._gpus):
            self._workers.kill(gpu)

    def _stop(self, now: float) -> None:
        if self._killed_at:
            return
        self._killed_at = now + self._abort_s
        for gpu in [gpu for gpu in range(self._gpus) if gpu not in self._reports]:
            if gpu in self._awaited:
                self._give_up(gpu, "its worker of an earlier round has not ended")
            else:
                self._workers.order(gpu, {"t": "stop", "round": self._round})

    def on_worker(self, gpu: int, message: Mapping[str, Any], now: float) -> None:
        """Take one message of a worker."""
        kind = message.get("t")
        if kind == "phase":
            self._phases[gpu] = (str(message["phase"]), int(message["step"]))
        elif kind == "id":
            rail = gpu if self._rails else -1
            order = {"t": "id", "round": message["round"], "id": message["id"], "gpu": rail}
            self._send(order | {"nccl": message.get("nccl", 0)})
        elif kind == "slow":
            self._trouble()
        elif kind == "report" and message.get("round") == self._round:
            fields = {k: v for k, v in message.items() if k in RankReport._fields}
            fields |= {"checksums": tuple(fields.get("checksums", ())), "nics": ()}
            self._pci[gpu] = str(fields.get("pci") or self._pci.get(gpu, ""))
            if fields.get("state") == ERROR:
                # It ends now, by itself. Until its end is seen it looks alive, and the next round, given to it, would
                # fail here: a local error of a node that has none.
                self._workers.kill(gpu)
            self._report(RankReport(**{**fields, "rank": self._rank(gpu), "node": self._node, "gpu": gpu}))

    def on_worker_ended(self, gpu: int, how: str, now: float) -> None:
        """Take the end of a worker that was not told to end."""
        if self.busy and gpu not in self._reports:
            phase, step = self._phases[gpu]
            # Ended on our order, or its abort hung: the round had failed before, and this is no news of the GPU.
            state, cause = (HANG, "") if self._killed_at else (ERROR, LOCAL)
            self._report(RankReport(self._rank(gpu), self._node, gpu, state, cause, phase, step, how))

    def tick(self, now: float) -> None:
        """Let time pass: stop a round that nobody stopped, kill workers that did not stop."""
        self._take_turns(now)
        if not self.busy:
            return
        if not self._killed_at and now >= self._deadline:
            self._stop(now)
        if self._killed_at and now >= self._killed_at:
            for gpu in range(self._gpus):
                if gpu not in self._reports:
                    phase, step = self._phases[gpu]
                    self._workers.kill(gpu)
                    self._report(RankReport(self._rank(gpu), self._node, gpu, HANG, "", phase, step, "killed"))

    def abandon(self) -> bool:
        """Forget the round that runs: who ordered it is gone. Its workers are in the library with partners that are gone, too,
        so others take their place; say whether there was such a round."""
        if not self.busy:
            return False
        self._round = -1
        for gpu in range(self._gpus):
            self._workers.kill(gpu)
            self._start(gpu)
        return True

    def _trouble(self) -> None:
        if not self._troubled:
            self._troubled = True
            self._send({"t": "trouble", "round": self._round})

    def _report(self, report: RankReport) -> None:
        self._reports[report.gpu] = report
        if len(self._reports) < self._gpus:
            if report.state not in (OK, HANG):
                self._trouble()
            return
        number, self._round = self._round, -1
        if self._rails:
            named = {gpu: self._nics(self._pci.get(gpu, "")) for gpu in self._reports}
            self._reports = {gpu: report._replace(nics=named[gpu]) for gpu, report in self._reports.items()}
        ranks = [self._reports[gpu]._asdict() for gpu in range(self._gpus)]
        facts = dict(self._facts(number)) if all(r.state == OK for r in self._reports.values()) else {}
        if facts:
            drift = max(r.drift for r in self._reports.values())
            facts |= {"sent_bytes": self._sent_bytes(), "mnnvl": self._mnnvl, "drift": drift}
        self._send({"t": "report", "round": number, "ranks": ranks, "facts": facts})

    def _sent_bytes(self) -> int:
        """Return what the all-reduces that ended had this node send, by a ring: warm-up and sustained ones included."""
        steps = min(report.step for report in self._reports.values())
        rings = self._gpus if self._rails else 1
        return rings * steps * self._bytes * 2 * (self._ranks - 1) // self._ranks
