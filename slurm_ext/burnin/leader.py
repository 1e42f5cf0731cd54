"""Who leads: gathers the nodes of the job, has them tested, waits for those that come late, and tells everybody.

No sockets and no clock of its own: `on_message`, `on_down`, `on_version` and `tick` take what happens and when; `send` gets
what a node must be told, `broadcast` what many must be. From a node: `hello` {version, gpus, left_s, reuse, left}, what
`station` answers, `voice` {culprits, yes, left}, `over` {reason}, `alive`. To a node: what `station` takes, `propose`
{culprits}, `stay` {left} (it passed, and waits as a witness), `verdict` {outcome, leave}.

Nodes that are there in time are the first cohort. If it passes and others are still to come, all but the leader and its
witnesses may go. Who comes late is tested together with these; `cohort` and `plan` know nothing of that. A node that
never comes, or is lost, makes the outcome unknown: nobody's fault.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from slurm_ext import __version__
from slurm_ext.burnin import roll, rules, thresholds, transport
from slurm_ext.burnin.cohort import LEAST_S, Broadcast, Cohort, Send, Terms
from slurm_ext.burnin.model import Decision, Outcome, RoundResult, outcome_to_json, unknown
from slurm_ext.burnin.succession import LEADERS, Poll
from slurm_ext.verdict import FAIL, PASS, WARN, Verdict

__all__ = ["Leader", "Send", "Terms"]

#: Known-good nodes beside the leader that wait for late ones: with three partners a node can be convicted.
WITNESSES = 2

#: Late nodes often come together: so long (seconds) the first one waits for more.
GATHER_S = 0.5

#: How long (seconds) nodes may take, at most, to answer whether they agree to a conviction: each writes its voice to disk first.
#: Whoever is gone is not waited for, so this costs time only where somebody is there and silent.
VOICE_S = 10.0


class Leader:
    """The state of one burn-in; `outcome` is set at its end. `isolated`: most nodes went at once, so we may be what is lost."""

    def __init__(
        self,
        terms: Terms,
        send: Send,
        now: float,
        *,
        broadcast: Broadcast | None = None,
        gone: Mapping[str, str] | None = None,
    ) -> None:
        """`gone` are nodes that were lost before, and how: nobody waits for them."""
        self._terms, self._send = terms, send
        self._broadcast = broadcast or self._to_each
        self._me = terms.me or terms.nodes[0]
        self._started = now
        self._limits = rules.limits(terms.deadline_s)
        self._silence_s = terms.silence_s or self._limits.silence_s
        self._ticked = now
        self._roll = roll.Roll(terms.nodes, gone or {})
        self._keepers: list[str] = []
        self._cohort: Cohort | None = None
        self._first: Cohort | None = None
        self._rounds: list[RoundResult] = []
        self._number = 0
        self._passed: Decision | None = None
        self._refusal: Outcome | None = None
        self._gather_until = 0.0
        self._look_at = 0.0
        self._poll = Poll(terms.nodes)
        self._proposed: Decision | None = None
        self._voices_until = 0.0
        self.isolated = False
        self.outcome: Outcome | None = None

    @property
    def joined(self) -> Collection[str]:
        """Return the nodes that are there."""
        return self._roll.there.keys()

    @property
    def lost(self) -> Mapping[str, str]:
        """Return the nodes that were lost, and how."""
        return self._roll.lost

    @property
    def begun(self) -> bool:
        """True once nodes are, or were, tested."""
        return self._first is not None

    @property
    def reach(self) -> int:
        """Return of how many nodes this leader speaks: those that are there, and those that passed and went."""
        return len(self._roll.left.union(self._roll.there))

    def on_message(self, node: str, message: Mapping[str, Any], now: float) -> None:
        """Take one message of a node."""
        if self.outcome is not None:
            self._send(node, self._message(self.outcome))
            return
        if node in self._roll.heard:
            self._roll.heard[node] = now
        kind = message.get("t")
        if kind == "hello":
            self._hello(node, message, now)
        elif kind == "voice":
            self._voice(node, message)
        elif kind == "over":
            self.over(str(message.get("reason")))
        elif self._cohort is not None:
            self._cohort.on_message(node, message, now)
            self._look(now)

    def _hello(self, node: str, message: Mapping[str, Any], now: float) -> None:
        if node in self._roll.left:
            self._send(node, self._message(self._so_far(), leave=True))
            return
        if node in self._roll.there and self._first is not None:
            self._lose(node, "started anew in the middle", now)
            if self.outcome is not None or self.isolated:
                return
        if self._first is not None and not self._roll.untested():
            self._gather_until = now + GATHER_S
        self._roll.come(node, now + float(message.get("left_s", self._terms.deadline_s)), now)
        if (told := message.get("left")) and (left := set(self._terms.nodes).intersection(told)):
            self._roll.left |= left
            words = "they passed together under a leader that went away"
            self._passed = self._passed or Decision(Verdict(PASS, (), words, "burnin.all-nodes"))
        if message.get("reuse") is True:
            self._roll.reusable.add(node)
        if (version := message.get("version")) != __version__:
            self._refuse("burnin.versions", f"{node} runs fmslurm {version}, {self._me} {__version__}")
        elif int(message.get("gpus", 0)) != self._terms.gpus:
            words = f"{node} has {message.get('gpus')} GPUs in this job, {self._me} {self._terms.gpus}"
            self._refuse("burnin.uneven", words)
        self._go_on(now)

    def _refuse(self, rule: str, words: str) -> None:
        """Nothing can come of it; but the others must still come to hear so, or each would look for somebody who leads."""
        if self._refusal is None:
            self._refusal = unknown(rule, words)

    def on_version(self, node: str, version: object, now: float) -> None:
        """Take that a node speaks another version of the channel: it is there, and cannot take part."""
        if self.outcome is None:
            self._roll.strange.add(node)
            self._refuse("burnin.versions", f"{node} speaks version {version} of the channel, {self._me} another")
            self._go_on(now)

    def on_refused(self, reason: str, why: str) -> None:
        """Take that somebody did not get in (clock, key): it may explain why a node is absent, and ends nothing."""
        self._roll.refused.setdefault(reason, why)

    def on_down(self, node: str, why: str, now: float) -> None:
        """Take the loss of a node's connection: its agent or the way to it is gone, which says nothing of its GPUs."""
        if self.outcome is not None or node not in self._roll.there:
            return
        if self._first is not None:
            self._lose(node, why, now)
        else:
            self._roll.go(node)  # it may come again, and nothing has begun

    def _lose(self, node: str, why: str, now: float) -> None:
        self._roll.lose(node, why)
        if node in self._keepers:
            self._keepers.remove(node)
        if self._cohort is not None:
            nodes = self._cohort.nodes
            if 2 * sum(name in self._roll.lost for name in nodes) > len(nodes):
                self.isolated = True
                return
            self._cohort.lose(node, why, now)
            self._look(now)
        else:
            self._count()
            self._go_on(now)

    def tick(self, now: float) -> None:
        """Let time pass."""
        if self.outcome is not None or self.isolated:
            return
        if now - self._ticked > self._silence_s / 2:
            self._roll.excuse(now)  # it was us who stood still: what they said waits to be read
        self._ticked = now
        if now >= self._look_at and self._first is not None:
            # A look at all nodes, of which a thousand make it too dear for every turn.
            self._look_at = now + self._silence_s / 8
            for node in self._roll.silent(now, self._silence_s):
                if self.outcome is None and not self.isolated and node in self._roll.there:
                    words = f"no sign of life from the agent of {node} for {self._silence_s:.0f} s"
                    self._lose(node, words, now)
        if self._cohort is not None:
            self._cohort.tick(now)
            self._look(now)
        elif self._proposed is not None and now >= self._voices_until:
            self._not_carried()
        else:
            self._go_on(now)

    def progress(self) -> tuple[str, tuple[str, ...]]:
        """Return what goes on, `waiting` or the kind of the round that runs, and the nodes that are waited for."""
        if self._cohort is None:
            return "waiting", tuple(self._roll.awaited())
        return self._cohort.kind, ()

    def adopt(self, outcome: Outcome) -> None:
        """Take the outcome that others came to before us."""
        self.outcome = outcome
        self._broadcast(list(self._roll.there), self._message(outcome))

    def over(self, reason: str) -> None:
        """Take that the attempt has ended elsewhere: everybody may go."""
        if self.outcome is None:
            self._end(unknown("burnin.ended-elsewhere", f"this attempt has ended: {reason}"))

    def _go_on(self, now: float) -> None:
        """Begin what can begin while nothing runs: the first cohort, one of late nodes, or the end."""
        if self._cohort is not None or self._proposed is not None or self.outcome is not None or not self._roll.there:
            return
        in_time = now < self._started + self._terms.rendezvous_s
        if self._first is None and in_time and not self._roll.all_known():
            return  # a thousand nodes say hello one by one, and this look is cheap
        awaited = self._roll.awaited()
        if self._first is not None:
            self._begin_late(awaited, now)
        elif not (awaited and in_time):
            self._begin_first(now)

    def _begin_first(self, now: float) -> None:
        terms = self._terms
        missing = self._roll.missing()
        if self._refusal is not None:
            self._end(self._refusal)
        elif not missing and self._roll.reusable.issuperset(terms.nodes):
            # Only together: one node that rebooted, or whose last job ended badly, has all of them tested again.
            words = f"these {len(terms.nodes)} nodes passed together lately, and each still stands by it"
            self._end(Outcome(Verdict(PASS, (), words, "burnin.reused")))
        elif missing and terms.survey:
            self._end(roll.absent(self._roll, missing))
        else:
            self._roll.excuse(now)  # a thousand of them came one by one
            self._first = self._begin(self._roll.untested(), self._started + terms.deadline_s, now)

    def _begin(self, nodes: Sequence[str], deadline: float, now: float) -> Cohort:
        """Test nodes together; the hook that waits least decides when they must be done."""
        deadline = min(deadline, *(self._roll.there[name] for name in nodes))
        self._cohort = cohort = Cohort(
            self._terms, nodes, self._send, now, deadline=deadline, broadcast=self._broadcast, number=self._number
        )
        self._look(now)
        return cohort

    def _begin_late(self, awaited: Sequence[str], now: float) -> None:
        """Test nodes that came late together with witnesses; end where none can come any more."""
        late = self._roll.untested()
        nodes = [name for name in self._terms.nodes if name in late or name in self._keepers]
        if self._refusal is not None:
            self._end(self._refusal)
        elif late and min(self._roll.there[name] for name in nodes) > now + LEAST_S:
            if not awaited or now >= self._gather_until:
                self._begin(nodes, now + self._terms.deadline_s, now)
        elif late or not awaited or now >= self._closing():
            missing = [*late, *self._roll.missing()]
            self._end(roll.absent(self._roll, missing) if missing else self._so_far())

    def _closing(self) -> float:
        """Return when it is too late for a node to be tested: those that wait for it must have the time for one more run."""
        if self._terms.late_s <= 0:
            return 0.0
        end = self._started + self._terms.deadline_s + self._terms.late_s
        end = min(end, *(self._roll.there.get(name, end) for name in (self._me, *self._keepers)))
        return end - self._limits.group_s - self._limits.abort_s

    def _look(self, now: float) -> None:
        """Take what the cohort that runs came to, if it did."""
        cohort = self._cohort
        if cohort is None or cohort.decision is None:
            return
        decision = cohort.decision
        self._cohort, self._number = None, cohort.number + 1
        self._first = self._first or cohort
        self._rounds += cohort.rounds
        if decision.verdict.verdict not in (PASS, WARN):
            self._conclude(decision, now)
            return
        self._roll.tested.update(cohort.nodes)
        self._passed = roll.together(self._passed, decision)
        if not self._roll.missing() and not self._roll.untested():
            self._end(self._so_far())
            return
        self._let_go(cohort.nodes)
        self._gather_until = now + GATHER_S
        self._go_on(now)

    def _let_go(self, nodes: Sequence[str]) -> None:
        """Let nodes that passed go, with a pass of their own, but for witnesses: whether the job starts is for these."""
        first = not self._keepers
        if first:
            others = sorted((n for n in nodes if n != self._me), key=lambda n: n not in self._terms.nodes[:LEADERS])
            self._keepers = [self._me, *others[: WITNESSES if len(nodes) > 2 else 1]]
        leavers = [name for name in nodes if name not in self._keepers]
        self._roll.left.update(leavers)
        self._broadcast(leavers, self._message(self._so_far(), leave=True))
        for name in leavers:
            self._roll.go(name)
        if self._roll.left:
            self._broadcast(self._keepers, {"t": "stay", "left": sorted(self._roll.left)})

    def _conclude(self, decision: Decision, now: float) -> None:
        """End with a decision; a conviction only with the voices of most nodes (see `succession`)."""
        if not decision.culprits or len(self._terms.nodes) == 1:
            self._decide(decision)
            return
        self._proposed, self._voices_until = decision, self._voices_end(now)
        self._poll.put(decision.culprits)
        self._broadcast(list(self._roll.there), {"t": "propose", "culprits": list(decision.culprits)})

    def _voices_end(self, now: float) -> float:
        """Return until when nodes may answer: while hooks wait, and for half of the verdict's way at their end.

        Any later the verdict would reach nobody, and what failed would look as if it had not been tried.
        """
        left_s = min(self._roll.there.values(), default=now) - now
        return now + min(VOICE_S, max(left_s, 0.0) + rules.way_s(self._terms.deadline_s) / 2)

    def _voice(self, node: str, message: Mapping[str, Any]) -> None:
        if message.get("left") is True:
            self._poll.left(node)
        else:
            self._poll.answer(node, message.get("culprits", ()), yes=message.get("yes") is True)
        self._count()

    def _count(self) -> None:
        if self._proposed is None or self.outcome is not None:
            return
        if self._poll.carried:
            self._decide(self._proposed)
        elif not self._poll.waits_for(self._roll.there):
            self._not_carried()

    def _not_carried(self) -> None:
        """Too few nodes agree that a node is bad: the job is stopped, and nobody drained."""
        assert self._proposed is not None
        was = self._proposed
        words = f"{was.verdict.reason}; but too few of the job's {len(self._terms.nodes)} nodes took part to convict"
        findings = tuple(f._replace(action="warn") for f in was.verdict.findings)
        self._decide(Decision(Verdict(FAIL, findings, words, "burnin.no-majority"), (), was.suspects or was.culprits))

    def _so_far(self) -> Outcome:
        """Return the outcome of those that were tested, which passed."""
        assert self._passed is not None
        return Outcome(self._passed.verdict)

    def _decide(self, decision: Decision) -> None:
        self._end(Outcome(decision.verdict, decision.culprits), suspects=list(decision.suspects))

    def _end(self, outcome: Outcome, **more: Any) -> None:
        self.outcome = self._measured(outcome, **more)
        self._broadcast(list(self._roll.there), self._message(self.outcome))

    def _measured(self, outcome: Outcome, **more: Any) -> Outcome:
        """Return the outcome with what was measured and who was there; the names of all nodes everybody knows."""
        first, terms = self._first, self._terms
        busbw, ranks, size = first.headline() if first is not None else (None, 0, 0)
        running = self._cohort.rounds if self._cohort is not None else []
        missing = self._roll.missing()
        measured: dict[str, Any] = {
            "rounds": roll.rounds_to_json((*self._rounds, *running)),
            "suspects": missing if outcome.verdict.rule == "burnin.peer-absent" else [],
            "absent": missing,
            "passed": self._passed is not None,
            "leader": self._me,
            "acts": self._roll.acts(self._me, outcome.culprits),
            **more,
        }
        if len(self._roll.tested) < len(terms.nodes):
            measured["tested"] = [name for name in terms.nodes if name in self._roll.tested]
        if first is not None:
            like = terms.relative or thresholds.Relative()
            key = thresholds.key_for(like, terms.instance_type, size, terms.message_bytes, facts=first.first_facts)
            measured["key"] = key._asdict()
            measured["floor_gbs"] = 0.0 if terms.survey else first.floor_of(size)
            if terms.prove_efa and size > 1:
                measured["transport"] = transport.carrier(terms.instance_type)
        return outcome._replace(busbw_gbs=busbw, ranks=ranks, measured=measured)

    def _message(self, outcome: Outcome, *, leave: bool = False) -> dict[str, Any]:
        outcome = outcome if outcome.measured else self._measured(outcome)
        return {"t": "verdict", "outcome": outcome_to_json(outcome), "leave": leave}

    def _to_each(self, nodes: Collection[str], message: Mapping[str, Any]) -> None:
        for name in nodes:
            self._send(name, message)
