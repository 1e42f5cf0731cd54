"""The first node's extra part: gathers all nodes of the job, runs the rounds that `plan` asks for, and tells everybody.

No sockets and no clock of its own: `on_message`, `on_down` and `tick` take what happens and when, `send` gets what each node
must be told. From a node: `hello` {version, gpus, left_s, reuse}, then what `station` answers, and `alive`. To a node: what
`station` takes, and `verdict` {outcome}. A node that is absent or falls silent ends the burn-in as unknown: nobody's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_ext import __version__
from slurm_ext.burnin import judge, plan, rules, transport
from slurm_ext.burnin.model import (
    Decision,
    GroupResult,
    Outcome,
    RankReport,
    Round,
    RoundResult,
    unknown,
)
from slurm_ext.burnin.worker import CHECKS
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, Finding, Verdict

Send = Callable[[str, Mapping[str, Any]], None]

#: After the first sign of trouble others may still tell the better reason; then the group is stopped.
TROUBLE_GRACE_S = 0.3


class Terms(NamedTuple):
    """What the leader works by: settings and facts that do not change during a burn-in."""

    nodes: tuple[str, ...]
    gpus: int
    instance_type: str
    message_bytes: int
    iterations: int
    floor_busbw_gbs: float
    pair_floor_busbw_gbs: float
    rendezvous_s: float
    deadline_s: float
    prove_efa: bool = False  # the nodes report what NCCL's logs and EFA's counters say
    survey: bool = False  # measure only: all nodes, then pairs, no judgement


class _Running:
    """One group of the round that runs."""

    def __init__(self, nodes: tuple[str, ...], floor: float) -> None:
        self.nodes, self.floor = nodes, floor
        self.reports: dict[str, list[RankReport]] = {}
        self.stop_at = 0.0
        self.stopped = False


class Leader:
    """The state of one burn-in; `outcome` is set at its end."""

    def __init__(self, terms: Terms, send: Send, now: float) -> None:
        self._terms, self._send = terms, send
        self._started = now
        self._deadline = now + terms.deadline_s
        self._limits = rules.limits(terms.deadline_s)
        self._heard: dict[str, float] = {}
        self._versions: dict[str, str] = {}
        self._reusable: set[str] = set()
        self._history: list[RoundResult] = []
        self._round = -1
        self._kind = ""
        self._running: list[_Running] = []
        self._round_ends = 0.0
        self._facts: dict[str, Mapping[str, Any]] = {}
        self.outcome: Outcome | None = None

    def on_message(self, node: str, message: Mapping[str, Any], now: float) -> None:
        """Take one message of a node."""
        if self.outcome is not None:
            self._send(node, self._verdict_message())
            return
        self._heard[node] = now
        kind = message.get("t")
        if kind == "hello":
            self._hello(node, message, now)
            return
        group = next((g for g in self._running if node in g.nodes), None)
        if group is None or message.get("round") != self._round:
            return
        if kind == "id":
            for name in group.nodes:
                self._send(name, {"t": "id", "round": self._round, "id": message["id"]})
        elif kind == "trouble" and not group.stop_at:
            group.stop_at = now + TROUBLE_GRACE_S
        elif kind == "report":
            ranks = [RankReport(**{**rank, "checksums": tuple(rank["checksums"])}) for rank in message["ranks"]]
            group.reports[node] = ranks
            if self._round == 0 and message.get("facts"):
                self._facts[node] = message["facts"]
            if any(rank.state != "ok" for rank in ranks) and not group.stop_at:
                group.stop_at = now + TROUBLE_GRACE_S
            if all(len(g.reports) == len(g.nodes) for g in self._running):
                self._finish_round(now)

    def _hello(self, node: str, message: Mapping[str, Any], now: float) -> None:
        first = node not in self._versions
        self._versions[node] = str(message.get("version"))
        if message.get("reuse") is True:
            self._reusable.add(node)
        # The hook that waits least decides when all must be done.
        self._deadline = min(self._deadline, now + float(message.get("left_s", self._terms.deadline_s)))
        if int(message.get("gpus", 0)) != self._terms.gpus:
            words = f"{node} has {message.get('gpus')} GPUs in this job, {self._terms.nodes[0]} {self._terms.gpus}"
            self._end(unknown("burnin.uneven", words))
        elif not first:
            self._end(unknown("burnin.agent-restarted", f"the agent of {node} started anew in the middle"))
        elif len(self._versions) == len(self._terms.nodes):
            if len(set(self._versions.values())) > 1:
                other = next(n for n, v in self._versions.items() if v != __version__)
                words = f"{other} runs fmslurm {self._versions[other]}, {self._terms.nodes[0]} {__version__}"
                self._end(unknown("burnin.versions", words))
            elif self._reusable.issuperset(self._terms.nodes):
                # Only together: one node that rebooted, or whose last job ended badly, has all of them tested again.
                words = f"these {len(self._terms.nodes)} nodes passed together lately, and each still stands by it"
                self._end(Outcome(Verdict(PASS, (), words, "burnin.reused")))
            else:
                self._next(now)

    def on_down(self, node: str, why: str, now: float) -> None:
        """Take the loss of a node's connection: its agent or the way to it is gone, which says nothing of its GPUs."""
        if self.outcome is None and node in self._versions:
            finding = Finding("burnin.peer-lost", f"node:{node}", "none", (why,))
            verdict = Verdict(UNKNOWN, (finding,), f"the agent of {node} went away: {why}", "burnin.peer-lost")
            self._end(Outcome(verdict))

    def tick(self, now: float) -> None:
        """Let time pass."""
        if self.outcome is not None:
            return
        if self._round < 0:
            if now >= min(self._started + self._terms.rendezvous_s, self._deadline):
                self._absent()
            return
        silent = [n for n in self._terms.nodes if now - self._heard[n] > self._limits.silence_s]
        if silent:
            words = f"no sign of life from the agent of {silent[0]} for {self._limits.silence_s:.0f} s"
            finding = Finding("burnin.peer-silent", f"node:{silent[0]}", "none", (words,))
            self._end(Outcome(Verdict(UNKNOWN, (finding,), words, "burnin.peer-silent")))
            return
        for group in self._running:
            due = now >= self._round_ends or (group.stop_at and now >= group.stop_at)
            if due and not group.stopped and len(group.reports) < len(group.nodes):
                group.stopped = True
                for name in group.nodes:
                    self._send(name, {"t": "stop", "round": self._round})
        if now >= self._round_ends + self._limits.abort_s + 1.0:
            missing = [n for g in self._running for n in g.nodes if n not in g.reports]
            self._end(unknown("burnin.no-report", f"no report from {', '.join(missing[:5])} after the order to stop"))
        elif now >= self._deadline:
            self._out_of_time()

    def progress(self) -> tuple[str, tuple[str, ...]]:
        """Return what goes on, `waiting` or the kind of the round that runs, and the nodes that are waited for."""
        if self._round < 0:
            return "waiting", tuple(name for name in self._terms.nodes if name not in self._versions)
        return self._kind, ()

    def _absent(self) -> None:
        absent = [name for name in self._terms.nodes if name not in self._versions]
        findings = tuple(
            Finding("burnin.peer-absent", f"node:{n}", "none", ("its prolog did not come",)) for n in absent
        )
        some = ", ".join(absent[:5]) + (" and more" if len(absent) > 5 else "")
        words = f"{len(absent)} of {len(self._terms.nodes)} nodes did not come in time: {some}"
        self._end(Outcome(Verdict(UNKNOWN, findings, words, "burnin.peer-absent")))

    def _out_of_time(self) -> None:
        """What failed must not pass for lack of time; what did not fail yet is not known."""
        failed = [g for done in self._history for g in done.groups if g.outcome != "ok"]
        if failed and not self._terms.survey:
            words = f"{failed[0].outcome} with all nodes, and no time was left to find the culprit"
            finding = Finding("burnin.deadline", "node", "warn", failed[0].evidence)
            self._decide(Decision(Verdict(FAIL, (finding,), words, "burnin.deadline")))
        else:
            self._end(unknown("burnin.deadline", f"no result within {self._terms.deadline_s:.0f} s"))

    def _next(self, now: float) -> None:
        """Ask the plan, and run what it says."""
        step: Round | Decision | None
        step = (plan.survey_step if self._terms.survey else plan.next_step)(self._terms.nodes, self._history)
        if step is None:
            self._decide(Decision(Verdict("pass", (), "measured, not judged", "burnin.survey")))
        elif isinstance(step, Decision):
            self._decide(self._proven(step))
        elif self._history and now + 2.0 > self._deadline:
            self._out_of_time()
        else:
            self._start_round(step, now)

    def _proven(self, decision: Decision) -> Decision:
        """Return the decision with what the transport's proof makes of a first run that passed."""
        terms = self._terms
        if not terms.prove_efa or len(terms.nodes) < 2 or self._history[0].groups[0].outcome != "ok":
            return decision
        ranks = len(terms.nodes) * terms.gpus
        runs = terms.iterations + len(CHECKS)
        return transport.conclude(
            decision,
            self._facts,
            nodes=terms.nodes,
            gpus=terms.gpus,
            instance_type=terms.instance_type,
            moved=runs * terms.message_bytes * 2 * (ranks - 1) / ranks,
        )

    def _start_round(self, step: Round, now: float) -> None:
        self._round, self._kind = self._round + 1, step.kind
        whole = step.kind in ("all", "again", "isolate")
        limit_s = min(self._limits.whole_s if whole else self._limits.group_s, self._deadline - now)
        self._round_ends = now + limit_s
        self._running = []
        for nodes in step.groups:
            floor = 0.0 if self._terms.survey else self._floor(nodes)
            self._running.append(_Running(nodes, floor))
            ranks = len(nodes) * self._terms.gpus
            for place, name in enumerate(nodes):
                order = {
                    "t": "round",
                    "round": self._round,
                    "base": place * self._terms.gpus,
                    "ranks": ranks,
                    "root": place == 0,
                    "bytes": self._terms.message_bytes,
                    "iterations": self._terms.iterations,
                    "limit_s": limit_s,
                    "floor_s": rules.seconds_at(floor, self._terms.message_bytes, ranks) if floor else 0.0,
                }
                self._send(name, order)

    def _floor(self, nodes: Sequence[str]) -> float:
        return rules.floor_gbs(
            self._terms.instance_type,
            len(nodes),
            message_bytes=self._terms.message_bytes,
            site_floor=self._terms.floor_busbw_gbs,
            site_pair_floor=self._terms.pair_floor_busbw_gbs,
        )

    def _finish_round(self, now: float) -> None:
        results = [
            judge.judge_group(
                group.nodes,
                [rank for name in group.nodes for rank in group.reports[name]],
                message_bytes=self._terms.message_bytes,
                floor_gbs=group.floor,
            )
            for group in self._running
        ]
        pairs = self._kind in ("pairs", "confirm") and not self._terms.survey
        self._history.append(RoundResult(self._kind, judge.relative(results) if pairs else tuple(results)))
        self._running = []
        self._next(now)

    def _decide(self, decision: Decision) -> None:
        first = self._history[0].groups[0] if self._history else GroupResult((), "", None, 0)
        outcome = Outcome(decision.verdict, decision.culprits, first.busbw_gbs, first.ranks)
        self._end(outcome, suspects=list(decision.suspects))

    def _end(self, outcome: Outcome, **more: Any) -> None:
        rounds = [
            {
                "kind": done.kind,
                "groups": [
                    {
                        "nodes": list(g.nodes) if len(g.nodes) <= 8 else [f"{len(g.nodes)} nodes"],
                        "outcome": g.outcome,
                        "busbw_gbs": g.busbw_gbs,
                        "evidence": list(g.evidence),
                    }
                    for g in done.groups
                ],
            }
            for done in self._history
        ]
        measured = {"nodes": list(self._terms.nodes), "rounds": rounds, "suspects": [], **more}
        self.outcome = outcome._replace(measured=measured)
        for name in self._versions:
            self._send(name, self._verdict_message())

    def _verdict_message(self) -> dict[str, Any]:
        from slurm_ext.burnin.model import outcome_to_json

        assert self.outcome is not None
        return {"t": "verdict", "outcome": outcome_to_json(self.outcome)}
