"""Nodes that are tested together: runs the rounds that `plan` asks for, judges them, and comes to one decision.

No sockets and no clock of its own. A node that is lost on the way is left out, and the rest begins anew where time allows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_ext.burnin import judge, mnnvl, plan, roll, rules, thresholds, transport
from slurm_ext.burnin.model import OK, Decision, GroupResult, Past, RankReport, Round, RoundResult, rank_from
from slurm_ext.burnin.traffic import CHECKS
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Finding, Verdict

Send = Callable[[str, Mapping[str, Any]], None]
Broadcast = Callable[[Collection[str], Mapping[str, Any]], None]

#: After the first sign of trouble others may still tell the better reason; then the group is stopped.
TROUBLE_GRACE_S = 0.3

#: A round that could not last so long (seconds) is not begun.
LEAST_S = 2.0

#: Rounds that may take as long as the first one.
WHOLE = (*rules.LASTING, "isolate")


class Terms(NamedTuple):
    """What the leader works by: settings and facts that do not change during a burn-in. `nodes` are all of the job."""

    nodes: tuple[str, ...]
    gpus: int
    instance_type: str
    message_bytes: int
    iterations: int
    floor_busbw_gbs: float
    pair_floor_busbw_gbs: float
    rendezvous_s: float
    deadline_s: float  # from the leader's start until the verdict about nodes that are all there
    prove_efa: bool = False  # the nodes report what NCCL's logs and EFA's counters say
    survey: bool = False  # measure only: all nodes, then pairs, no judgement
    late_s: float = 0.0  # beyond deadline_s, for nodes that come late
    sustain_s: float = 0.0  # traffic without a pause, where many nodes run at once
    strict: bool = False
    leaves: Mapping[str, str] = {}  # node -> leaf switch; empty: unknown
    group_nodes: int = 64
    priors: tuple[Past, ...] = ()
    relative: thresholds.Relative | None = None
    me: str = ""  # who leads; empty: the first node
    silence_s: float = 0.0  # without a sign of life a node is lost; 0: by deadline_s


class _Running:
    """One group of the round that runs."""

    def __init__(self, nodes: tuple[str, ...], floor: float) -> None:
        self.nodes, self.floor = nodes, floor
        self.reports: dict[str, list[RankReport]] = {}
        self.stop_at = 0.0
        self.stopped = False


class Cohort:
    """The test of some nodes; `decision` is set at its end. `number` goes on over cohorts, so that no report is mistaken."""

    def __init__(
        self,
        terms: Terms,
        nodes: Sequence[str],
        send: Send,
        now: float,
        *,
        deadline: float,
        broadcast: Broadcast,
        number: int = 0,
    ) -> None:
        """`deadline` is a time like `now`. The first round begins at once."""
        self._terms, self._send, self._broadcast, self._deadline = terms, send, broadcast, deadline
        self.nodes = tuple(nodes)
        self.number = number - 1
        self.kind = ""
        self.lost: dict[str, str] = {}
        self.decision: Decision | None = None
        self.rounds: list[RoundResult] = []  # all of them, for the record
        self.facts: dict[str, Mapping[str, Any]] = {}
        self._limits = rules.limits(
            terms.deadline_s, nodes=len(nodes), group_nodes=terms.group_nodes, sustain_s=terms.sustain_s
        )
        # Where an NVLink domain spans nodes, data takes it and not EFA: each way is tested by itself.
        self._ways = list(transport.runs_for(terms.instance_type)) if len(nodes) > 1 else [""]
        self._first_facts: dict[str, Mapping[str, Any]] | None = None
        self._passed: Decision | None = None
        self._history: list[RoundResult] = []
        self._first: RoundResult | None = None
        self._running: list[_Running] = []
        self._group_of: dict[str, _Running] = {}
        self._missing = 0
        self._round_ends = 0.0
        self._void = False
        self._short = self._cut_short = False
        self._next(now)

    @property
    def sustain_s(self) -> float:
        """Return how long (seconds) the sustained traffic of a round of many nodes lasts."""
        return self._limits.sustain_s

    @property
    def first_facts(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what nodes told of the run that `headline` is about."""
        return self._first_facts if self._first_facts is not None else self.facts

    def on_message(self, node: str, message: Mapping[str, Any], now: float) -> None:
        """Take one message of a node about the round that runs; one about an earlier round is nothing."""
        group = self._group_of.get(node)
        if group is None or message.get("round") != self.number or self.decision is not None:
            return
        kind = message.get("t")
        if kind == "id":
            order = {"t": "id", "round": self.number, "id": message["id"], "gpu": message.get("gpu", -1)}
            order["nccl"] = message.get("nccl", 0)
            self._broadcast(group.nodes, order)
        elif kind == "trouble" and not group.stop_at:
            group.stop_at = now + TROUBLE_GRACE_S
        elif kind == "report" and node not in group.reports and node not in self.lost:
            ranks = [rank_from(rank, node) for rank in message["ranks"]]
            group.reports[node] = ranks
            if message.get("facts") and node not in self.facts:
                self.facts[node] = message["facts"]
            if any(rank.state != OK for rank in ranks) and not group.stop_at:
                group.stop_at = now + TROUBLE_GRACE_S
            self._missing -= 1
            if not self._missing:
                self._finish_round(now)

    def lose(self, node: str, why: str, now: float) -> None:
        """Take that a node is gone: its agent or the way to it, which says nothing of its GPUs. The rest begins anew."""
        if node in self.lost or node not in self.nodes or self.decision is not None:
            return
        self.lost[node] = why
        group = self._group_of.get(node)
        if group is not None and node not in group.reports:
            self._missing -= 1
        self._void = True
        for other in self._running:
            self._stop(other)
        if not self._missing:
            self._finish_round(now)

    def tick(self, now: float) -> None:
        """Let time pass."""
        if self.decision is not None:
            return
        for group in self._running:
            due = now >= self._round_ends or (group.stop_at and now >= group.stop_at)
            if due and not group.stopped and len(group.reports) < len(group.nodes):
                self._stop(group)
                self._cut_short |= self._short and now >= self._round_ends
        if now >= self._round_ends + self._limits.abort_s + 1.0:
            missing = [n for g in self._running for n in g.nodes if n not in g.reports and n not in self.lost]
            words = f"no report from {', '.join(missing[:5])} after the order to stop"
            self.decision = Decision(Verdict(UNKNOWN, (), words, "burnin.no-report"))
        elif now >= self._deadline:
            self._out_of_time()

    def headline(self) -> tuple[float | None, int, int]:
        """Return what the first run showed: the busbw (GB/s) of its slowest group, all its ranks, nodes of that group."""
        groups = self._first.groups if self._first is not None else ()
        if not groups:
            return None, 0, 0
        slowest = min(groups, key=lambda g: (g.busbw_gbs is not None, g.busbw_gbs or 0.0))
        return slowest.busbw_gbs, sum(g.ranks for g in groups), len(slowest.nodes)

    def _stop(self, group: _Running) -> None:
        group.stopped = True
        for name in group.nodes:
            if name not in group.reports and name not in self.lost:
                self._send(name, {"t": "stop", "round": self.number})

    def _out_of_time(self) -> None:
        """What failed must not pass for lack of time; what did not fail yet is not known. A conviction stands as it is:
        only the name of its rail is then missing."""
        failed = [g for done in self._history for g in done.groups if g.outcome != OK]
        if self._cut_short:
            failed = []  # it was given less time than a run may take, so that it did not end says nothing
        step = self._planned(conclude=True) if failed and not self._terms.survey else None
        if isinstance(step, Decision):
            self.decision = step
        elif step is not None:
            words = f"{failed[0].outcome} with all nodes, and no time was left to find the culprit"
            finding = Finding("burnin.deadline", "node", "warn", failed[0].evidence)
            suspects = plan.suspects(self.nodes, self._history, group_nodes=self._terms.group_nodes)
            self.decision = Decision(Verdict(FAIL, (finding,), words, "burnin.deadline"), suspects=suspects)
        elif self.lost:
            self.decision = self._lost()
        else:
            words = f"no result within {self._terms.deadline_s:.0f} s"
            self.decision = Decision(Verdict(UNKNOWN, (), words, "burnin.deadline"))

    def _lost(self) -> Decision:
        node, why = next(reversed(self.lost.items()))
        finding = Finding("burnin.peer-lost", f"node:{node}", "none", (why,))
        return Decision(Verdict(UNKNOWN, (finding,), f"the agent of {node} went away: {why}", "burnin.peer-lost"))

    def _next(self, now: float) -> None:
        """Ask the plan, and run what it says."""
        survey = self._terms.survey
        step: Round | Decision | None
        step = plan.survey_step(self.nodes, self._history) if survey else self._planned()
        if step is None:
            self.decision = Decision(Verdict(PASS, (), "measured, not judged", "burnin.survey"))
        elif isinstance(step, Round):
            if self._history and now + LEAST_S + rules.again_s(self._history) > self._deadline:
                self._out_of_time()
            else:
                self._start_round(step, now)
        else:
            decision = self._proven(step)
            if decision.verdict.verdict not in (PASS, WARN):
                self.decision = decision
                return
            self._passed = roll.together(self._passed, decision)
            if len(self._ways) == 1:
                self.decision = self._passed
                return
            self._ways.pop(0)
            self._first_facts = self._first_facts or self.facts
            self._history, self.facts = [], {}  # the other way is proven by facts of its own
            self._next(now)

    def _planned(self, *, conclude: bool = False) -> Round | Decision:
        terms = self._terms
        return plan.next_step(
            self.nodes,
            self._history,
            leaves=terms.leaves,
            group_nodes=terms.group_nodes,
            rails=terms.gpus > 1,
            priors=terms.priors,
            now=terms.relative.now if terms.relative is not None else None,
            conclude=conclude,
        )

    def _proven(self, decision: Decision) -> Decision:
        """Return the decision with what the fleet's history and the transport's proof make of a first run that was well."""
        terms = self._terms
        whole = [g for done in self._history for g in done.groups if done.kind in rules.SUSTAINED]
        if terms.survey or any(g.outcome != OK for g in whole):
            return decision
        if self._ways[0] != mnnvl.ON:
            busbw, _, size = self.headline()
            decision = thresholds.after_pass(
                decision,
                terms.relative,
                instance_type=terms.instance_type,
                nodes=size,
                message_bytes=terms.message_bytes,
                busbw_gbs=busbw,
                facts=self.facts,
                over_efa=terms.prove_efa,
                site_floor=terms.floor_busbw_gbs,
            )
        if not terms.prove_efa or len(self.nodes) < 2:
            return decision
        found = [self._by_transport(decision, group) for group in self._history[0].groups if len(group.nodes) > 1]
        refuted = [d for d in found if d.verdict.verdict == FAIL]
        if not refuted:
            return max(found, key=lambda d: (PASS, WARN, UNKNOWN).index(d.verdict.verdict), default=decision)
        culprits = tuple(dict.fromkeys(name for d in refuted for name in d.culprits))
        suspects = tuple(dict.fromkeys(name for d in refuted for name in d.suspects))
        findings = tuple(f for d in refuted for f in d.verdict.findings)
        if len(culprits) > max(1, len(self.nodes) // 3):
            findings, culprits = tuple(f._replace(action="warn") for f in findings), ()
        return Decision(refuted[0].verdict._replace(findings=findings), culprits, suspects)

    def _by_transport(self, decision: Decision, group: GroupResult) -> Decision:
        terms = self._terms
        ranks = len(group.nodes) * terms.gpus
        told = [int(self.facts[n]["sent_bytes"]) for n in group.nodes if "sent_bytes" in self.facts.get(n, {})]
        runs = terms.iterations + len(CHECKS)
        moved = float(min(told)) if told else runs * terms.message_bytes * 2 * (ranks - 1) / ranks
        return transport.conclude(
            decision,
            {name: self.facts[name] for name in group.nodes if name in self.facts},
            nodes=group.nodes,
            gpus=terms.gpus,
            instance_type=terms.instance_type,
            moved=moved,
        )

    def _start_round(self, step: Round, now: float) -> None:
        terms, way = self._terms, self._ways[0]
        first = not self._history
        self.number, self.kind, self._void = self.number + 1, step.kind, False
        sustain_s = self._limits.sustain_s if step.kind in rules.LASTING else rules.again_s(self._history)
        whole_s = self._limits.whole_s - self._limits.sustain_s + sustain_s
        limit_s = min(whole_s if step.kind in WHOLE else self._limits.group_s + sustain_s, self._deadline - now)
        self._short = limit_s < whole_s and step.kind in WHOLE
        self._round_ends = now + limit_s
        self._running, self._group_of = [], {}
        rails = step.kind == "rails"
        for nodes in step.groups:
            floor = 0.0 if terms.survey else self._floor(nodes)
            group = _Running(nodes, floor)
            self._running.append(group)
            ranks = len(nodes) if rails else len(nodes) * terms.gpus
            for place, name in enumerate(nodes):
                self._group_of[name] = group
                self._send(
                    name,
                    {
                        "t": "round",
                        "round": self.number,
                        "base": place if rails else place * terms.gpus,
                        "ranks": ranks,
                        "root": place == 0,
                        "bytes": terms.message_bytes,
                        "iterations": terms.iterations,
                        "limit_s": limit_s,
                        "floor_s": rules.seconds_at(floor, terms.message_bytes, ranks) if floor and not rails else 0.0,
                        "sustain_s": sustain_s,
                        "rails": rails,
                        "mnnvl": way,
                        "prove": first,
                    },
                )
        self._missing = len(self._group_of)

    def _floor(self, nodes: Sequence[str]) -> float:
        return self.floor_of(len(nodes))

    def floor_of(self, count: int) -> float:
        """Return the floor (GB/s) for a group of so many nodes, 0.0 where none is known."""
        return rules.floor_gbs(
            self._terms.instance_type,
            count,
            message_bytes=self._terms.message_bytes,
            site_floor=self._terms.floor_busbw_gbs,
            site_pair_floor=self._terms.pair_floor_busbw_gbs,
            mnnvl=self._ways[0] == mnnvl.ON,
        )

    def _finish_round(self, now: float) -> None:
        if self._void:
            self._begin_anew(now)
            return
        results = [self._judged(group) for group in self._running]
        if self.kind in ("pairs", "confirm") and not self._terms.survey:
            results = list(judge.relative(results))
        done = RoundResult(self.kind, tuple(results))
        self._history.append(done)
        self.rounds.append(done)
        self._first = self._first or done
        self._running, self._group_of = [], {}
        self._next(now)

    def _judged(self, group: _Running) -> GroupResult:
        terms = self._terms
        reports = [rank for name in group.nodes for rank in group.reports[name]]
        judged = judge.judge_rails if self.kind == "rails" else judge.judge_group
        result = judged(group.nodes, reports, message_bytes=terms.message_bytes, floor_gbs=group.floor)
        if terms.survey or self.kind == "rails":
            return result
        return thresholds.by_fleet(
            result,
            terms.relative,
            instance_type=terms.instance_type,
            message_bytes=terms.message_bytes,
            facts=self.facts,
        )

    def _begin_anew(self, now: float) -> None:
        """Test what is left after a loss, by itself: what was measured with the lost node says nothing of the others."""
        self.nodes = tuple(name for name in self.nodes if name not in self.lost)
        self._history, self._first, self.facts = [], None, {}
        self._first_facts = self._passed = None
        self._running, self._group_of, self._void = [], {}, False
        if not self.nodes or self._terms.survey or now + LEAST_S > self._deadline:
            self.decision = self._lost()
        else:
            self._next(now)
