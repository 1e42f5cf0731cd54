"""Whom a node follows: finds who leads, joins, notices when it is lost, and knows when to give up or to lead itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_ext.burnin.link import Link
from slurm_ext.burnin.model import BurninJob, Outcome, unknown
from slurm_ext.burnin.succession import Succession, shares
from slurm_ext.burnin.terms import Times
from slurm_ext.channel import Hub

#: With less time than this (seconds) nobody begins anew after the loss of a leader.
ANEW_S = 3.0


class Following:
    """`leader` is who leads, ourselves too; empty: we look for somebody. `lost` are leaders that went, and how."""

    def __init__(self, job: BurninJob, times: Times, rendezvous_s: float, now: float) -> None:
        self.leader = ""
        self.lost: dict[str, str] = {}
        self.left: list[str] = []  # who passed and went, as a leader told its witness
        self._me, self._nodes = job.node, job.nodes
        self._silence_s, self._rendezvous_s = times.limits.silence_s, rendezvous_s
        self._deadline = now + times.total_s
        step_s, ask_s = shares(rendezvous_s)
        self.step_s = step_s
        self._succession = Succession(job.nodes, job.node, now, step_s=step_s, ask_s=ask_s)
        # Without time for late nodes nobody waits for a late leader either.
        self._give_up = now + (rendezvous_s if times.late_s <= 0 else max(1.0, times.total_s - 1.0))
        self._heard = 0.0
        self._turned = now

    def attach(self, hub: Hub, addresses: Mapping[str, str], ports: Sequence[int], source: str) -> None:
        """Take the hub to knock with; see `Link`."""
        self._hub = hub
        self.link = Link(hub, self._succession, addresses, ports, source)

    @property
    def itself(self) -> bool:
        """True where this node leads."""
        return self.leader == self._me

    def targets(self) -> tuple[str, ...]:
        """Return the others who may lead."""
        return self._succession.targets()

    def later(self) -> tuple[str, ...]:
        """Return the candidates behind this node: a leader knocks at these, and they never at it, so that both meet once."""
        order = self._succession.order()
        return order[order.index(self._me) + 1 :] if self._me in order else ()

    def out(self, now: float) -> Outcome | None:
        """Return the outcome where there is nobody to look for any more."""
        return self.nobody() if now >= self._give_up or not self._succession.order() else None

    def leads(self, now: float) -> bool:
        """Say whether this node is to lead."""
        return self._succession.leads(now)

    def cannot_lead(self) -> bool:
        """Take that this node cannot lead; say whether others may."""
        self._succession.gone.add(self._me)
        return bool(self._succession.targets())

    def seek(self, now: float) -> None:
        """Knock at who may lead."""
        self.link.knock(self._succession.targets(), now)

    def join(self, leader: str, now: float) -> None:
        """Follow one, and look for no other."""
        self.leader = leader
        self.link.forget(name for name in self._nodes[:3] if name != leader)
        self._heard = now

    def heard(self, now: float) -> None:
        """Take a sign of life of the leader."""
        self._heard = now

    def turn(self, now: float) -> str:
        """Let time pass; return why the leader is to be taken for lost, or nothing."""
        if now - self._turned > self._silence_s / 2:
            self._heard = now  # it was us who stood still: what the leader said waits to be read
        self._turned = now
        silent = self.leader and not self.itself and now - self._heard > self._silence_s
        return f"no sign of life for {self._silence_s:.0f} s" if silent else ""

    def lose(self, why: str, now: float) -> Outcome | None:
        """Take that the leader, or this node as one, is lost; return the outcome where there is no time to begin anew."""
        self.lost[self.leader] = why
        self._succession.lost(self.leader, now)
        if not self.itself:
            self._hub.forget(self.leader)
        self.anew(now)
        return self.nobody() if now + ANEW_S > self._deadline or not self._succession.order() else None

    def anew(self, now: float) -> None:
        """Look for a leader again."""
        self.leader = ""
        self._give_up = min(self._deadline - 1.0, max(self._give_up, now + self._rendezvous_s))

    def nobody(self) -> Outcome:
        """Return the outcome for a node that found nobody who leads, or nobody any more."""
        if self.lost:
            name, why = next(reversed(self.lost.items()))
            return unknown("burnin.peer-lost", f"the agent of {name}, which led, went away: {why}")
        absent = [name for name in self._succession.order() if name != self._me]
        tried = "; ".join(f"{name}: {self.link.why[name]}" for name in absent if name in self.link.why)
        words = f"none of {', '.join(absent)} leads" + (f" ({tried})" if tried else "")
        # Whether they are absent or we are, nobody here can know: none of them is to be left out for it.
        return unknown("burnin.peer-absent", words, measured={"absent": absent, "suspects": [], "passed": False})
