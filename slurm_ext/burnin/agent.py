"""The agent of one node: supervises the workers, talks to the other nodes, and hands one outcome to the hook that waits.

Started by `gate.run_burnin` in a session of its own: configuration as JSON on stdin, one outcome as JSON on stdout, words
on stderr (a log). It goes when the verdict is known, when its hook is gone, or at its own deadline, whatever the workers do.
It follows whoever leads, or leads itself where `succession` says so; it may lose a leader and find the next one.

Beside what `leader` and `station` say, agents that lead tell one another: `lead` {reach} (I do, too, and speak for so many
nodes), `leads` {name} (the answer: who of us goes on), and to those that followed: `moved` {to}.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from slurm_ext import __version__
from slurm_ext.burnin import addresses, attempt, rules, surroundings
from slurm_ext.burnin.following import Following
from slurm_ext.burnin.leader import Leader
from slurm_ext.burnin.model import BurninJob, Outcome, outcome_from_json, outcome_to_json, shortened, unknown
from slurm_ext.burnin.succession import prevails
from slurm_ext.burnin.terms import terms, times
from slurm_ext.burnin.workplace import Workplace
from slurm_ext.channel import Event, Hub
from slurm_ext.config.model import Burnin, Settings, Site
from slurm_ext.credential import Alone, Authenticator, for_site
from slurm_ext.errors import FmslurmError

TICK_S = 0.05
TELL_EVERY_S = 0.5

#: How often (seconds) a leader looks whether another one leads, and who has found nobody whether it is all over.
PROBE_EVERY_S, LOOK_EVERY_S = 1.0, 3.0

#: Until then (seconds) a new leader does not say how many follow it: they are on their way.
SETTLE_S = 2.5


class Agent:
    """All of one node's part in one burn-in."""

    def __init__(self, job: BurninJob, settings: Settings, *, deadline_s: float, survey: bool, result: int) -> None:
        self._job, self._settings, self._burnin = job, settings, settings.burnin
        self.started = now = time.monotonic()
        self._times = times(job, settings, deadline_s)
        self._limits = self._times.limits
        self._deadline = now + deadline_s
        self._survey = survey
        self._result = result
        self._place = Workplace(job, settings)
        self._voice = self._place.voice()
        self._inbox: deque[tuple[str, Mapping[str, Any]]] = deque()  # for ourselves: (from, message)
        self._outcome: Outcome | None = None
        self._hub: Hub | None = None
        self._leader: Leader | None = None
        self._following = Following(job, self._times, settings.burnin.rendezvous_s, now)
        self._look_at = now + self._following.step_s
        self._probe_at = self._tell_at = self._next_sign = 0.0
        self._told: object = None
        self._led_since = 0.0
        self._others: dict[str, int] = {}  # who leads, too, and of how many nodes it speaks

    def run(self) -> Outcome:
        """Take part until there is an outcome."""
        try:
            self._prepare()
            while self._outcome is None:
                self._turn(time.monotonic())
        except (FmslurmError, OSError) as exc:
            self._outcome = unknown("burnin.cannot-start", str(exc))
        return self._outcome

    def deliver(self) -> None:
        """Give the outcome to the hook, then to the other nodes, and end the workers."""
        assert self._outcome is not None
        with contextlib.suppress(OSError):
            os.write(self._result, json.dumps(outcome_to_json(self._outcome)).encode() + b"\n")
        if self._hub is not None:
            self._hub.unregister(self._result)
        os.close(self._result)
        self._place.end_workers()  # first of all: the job may start now
        if self._hub is not None:
            self._hub.flush(2.0)
            self._hub.close()
        self._place.close()

    def _prepare(self) -> None:
        job, burnin = self._job, self._burnin
        found: dict[str, str] = {}
        tables: dict[str, str] = {}
        authenticator: Authenticator = Alone()
        if len(job.nodes) > 1:
            found, tables = addresses.to_meet(
                job,
                self._settings,
                job.nodes[:3],
                give_up=self.started + burnin.rendezvous_s,
                wanted=lambda: addresses.is_read(self._result),
            )
            authenticator = for_site(self._settings, job.node)
        peers = set(job.nodes) - {job.node}
        self._hub = hub = Hub(authenticator, me=job.node, key=job.key, peers=peers, addresses=tables)
        self._address = found.get(job.node, "")
        source = self._address if self._address and surroundings.interface_of(self._address) else ""
        self._following.attach(hub, found, surroundings.ports(job.key, burnin), source)
        self._prove_efa = burnin.transport == "efa" and len(job.nodes) > 1 and not self._survey
        self._station = self._place.open(
            hub, self._to_leader, address=self._address, abort_s=self._limits.abort_s, prove=self._prove_efa
        )
        hub.register(self._result, "hook")

    def _lead(self, now: float) -> None:
        """Begin to lead."""
        job, burnin = self._job, self._burnin
        self._following.link.forget(self._following.targets())
        if len(job.nodes) > 1 and not self._listen():
            if not self._following.cannot_lead():
                raise FmslurmError(f"no port of ours is free on {self._address}")
            return
        margin_s = rules.way_s(self._times.total_s)
        conditions = terms(
            job,
            self._settings,
            self._times,
            rendezvous_s=max(burnin.rendezvous_s - (now - self.started), burnin.rendezvous_s / 4),
            deadline_s=max(0.0, self.started + self._times.work_s - now - margin_s),
            prove=self._prove_efa,
            survey=self._survey,
        )
        now = time.monotonic()
        self._leader = Leader(conditions, self._to_node, now, broadcast=self._to_nodes, gone=self._following.lost)
        self._probe_at = now + PROBE_EVERY_S
        self._led_since = now
        self._others.clear()
        self._follow(job.node, now)

    def _listen(self) -> bool:
        assert self._hub is not None
        for port in surroundings.ports(self._job.key, self._burnin):
            try:
                self._hub.listen(self._address, port)
            except OSError as exc:
                print(f"cannot listen on {self._address}:{port}: {exc}", file=sys.stderr)  # noqa: T201
            else:
                return True
        return False

    def _follow(self, leader: str, now: float) -> None:
        """Join who leads."""
        self._following.join(leader, now)
        left_s = max(0.0, self._deadline - now - rules.way_s(self._times.total_s))
        hello = {"t": "hello", "version": __version__, "gpus": self._job.gpus, "left_s": left_s}
        self._to_leader(hello | {"reuse": self._job.reusable, "left": self._following.left})
        self._next_sign = now + self._limits.silence_s / 3

    def _to_leader(self, message: Mapping[str, Any]) -> None:
        if self._following.itself:
            self._inbox.append(("", message))
        elif self._following.leader and self._hub is not None:
            if "ranks" in message and message.get("t") == "report":
                message = {**message, "ranks": [shortened(rank) for rank in message["ranks"]]}
            self._hub.send(self._following.leader, message)

    def _to_node(self, node: str, message: Mapping[str, Any]) -> None:
        self._to_nodes((node,), message)

    def _to_nodes(self, nodes: Collection[str], message: Mapping[str, Any]) -> None:
        if self._job.node in nodes:
            self._inbox.append((self._job.node, message))
        if self._hub is not None:
            self._hub.broadcast([name for name in nodes if name != self._job.node], message)

    def _turn(self, now: float) -> None:
        """Let one moment pass."""
        assert self._hub is not None
        while self._inbox and self._outcome is None:
            sender, message = self._inbox.popleft()
            if sender:
                self._order(message, now)
            elif self._leader is not None:
                self._leader.on_message(self._job.node, message, now)
        if self._outcome is not None:
            return
        if now >= self._deadline:
            self._outcome = unknown("burnin.deadline", f"no verdict within {self._times.total_s:.0f} s")
            return
        self._station.tick(now)
        if silent := self._following.turn(now):
            self._lose_leader(silent, now)
        if self._leader is not None:
            self._leader.tick(now)
            if self._leader.isolated:
                # It is more likely us who are lost than most of the others at once: find out whom they follow.
                self._lose_leader("most nodes lost the way to it", now)
        if not self._following.leader and self._outcome is None:
            self._seek(now)
        if self._following.leader:
            self._show_life(now)
        if self._leader is not None:
            self._look_around(now)
            self._tell_hook(now)
        for event in self._hub.poll(0.0 if self._inbox else TICK_S):
            if self._outcome is None:
                self._on_event(event, time.monotonic())

    def _seek(self, now: float) -> None:
        """Look for who leads, or lead."""
        self._outcome = self._following.out(now)
        if self._outcome is not None or self._over(now):
            return
        if self._following.leads(now):
            self._lead(now)
        else:
            self._following.seek(now)

    def _over(self, now: float) -> bool:
        """Say whether this attempt's burn-in is over, by what the others left on the share; a look now and then."""
        share = self._settings.site.share
        if not share or self._survey or now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY_S
        outcome = attempt.known_outcome(share, self._job, since=time.time() - 2 * self._times.total_s)
        if outcome is not None and self._leader is not None:
            self._leader.adopt(outcome)
        elif outcome is not None:
            self._outcome = outcome
        return outcome is not None

    def _look_around(self, now: float) -> None:
        """As leader: look whether a later candidate leads, too, and whether all is over where nothing has begun."""
        assert self._leader is not None
        if not self._leader.begun and self._over(now):
            return
        if self._others and now >= self._led_since + SETTLE_S:
            self._settle(*self._others.popitem(), now)
            return
        if now >= self._probe_at:
            self._probe_at = now + PROBE_EVERY_S
            if self._leader.progress()[1]:  # else all are there, or a run goes on that nobody shall disturb
                joined = self._leader.joined
                self._following.link.knock((name for name in self._following.later() if name not in joined), now)

    def _show_life(self, now: float) -> None:
        assert self._hub is not None
        if now >= self._next_sign:
            self._next_sign = now + self._limits.silence_s / 3
            self._to_leader({"t": "alive"})
            if self._leader is not None:
                self._hub.broadcast(self._hub.peers(), {"t": "alive"})

    def _lose_leader(self, why: str, now: float) -> None:
        """The leader is gone: the next candidate leads, and all begin anew, where there is the time for it."""
        self._outcome = self._following.lose(why, now)
        self._begin_anew()
        if self._survey:
            self._outcome = self._following.nobody()

    def _begin_anew(self) -> None:
        """Leave the lead, if we had it, and the round that runs."""
        assert self._hub is not None
        if self._leader is not None:
            self._hub.stop_listening()
            self._leader = None
            self._inbox.clear()
        self._place.begin_anew(others=self._station.abandon())

    def _yield_to(self, other: str, now: float) -> None:
        """Follow another leader, and tell those that followed us."""
        assert self._hub is not None
        assert self._leader is not None
        followers = [name for name in self._leader.joined if name not in (self._job.node, other)]
        self._hub.broadcast(followers, {"t": "moved", "to": other})
        self._following.anew(now)
        self._begin_anew()
        self._follow(other, now)

    def _on_event(self, event: Event, now: float) -> None:
        if event.kind == "ready":
            if event.data == "hook":
                self._on_hook_gone()
            assert isinstance(event.data, int)
            messages, ended = self._place.read(event.data)
            for message in messages:
                self._station.on_worker(event.data, message, now)
            if ended:
                self._station.on_worker_ended(event.data, ended, now)
        elif event.kind == "message":
            self._on_message(event.peer, event.body, now)
        elif event.kind == "up":
            self._on_up(event.peer, now)
        elif event.kind == "down":
            self._following.link.failed(event.peer, str(event.body.get("why")), now)
            if self._leader is not None:
                self._leader.on_down(event.peer, str(event.body.get("why")), now)
            elif event.peer == self._following.leader:
                self._lose_leader(str(event.body.get("why")), now)
        elif event.kind == "version":
            self._on_version(event.peer, event.body.get("version"), now)
        elif event.kind == "refused":
            print(f"refused: {event.body.get('why')}", file=sys.stderr)  # noqa: T201
            if self._leader is not None:
                self._leader.on_refused(str(event.body.get("reason")), str(event.body.get("why")))

    def _on_up(self, peer: str, now: float) -> None:
        assert self._hub is not None
        if not self._following.link.knocked(peer):
            return  # it came to us
        if self._leader is not None:
            self._hub.send(peer, {"t": "lead", "reach": self._leader.reach})
        elif not self._following.leader:
            self._follow(peer, now)
        elif peer != self._following.leader:
            self._hub.forget(peer)

    def _on_message(self, peer: str, body: Mapping[str, Any], now: float) -> None:
        assert self._hub is not None
        kind = body.get("t")
        if kind == "lead":
            self._others[peer] = int(body.get("reach", 0))
        elif kind == "leads" and self._leader is not None:
            if body.get("name") == peer:
                self._yield_to(peer, now)
        elif self._leader is not None:
            self._leader.on_message(peer, body, now)
        elif peer == self._following.leader:
            self._following.heard(now)
            if kind == "moved":
                self._hub.forget(peer)
                self._following.anew(now)
                self._begin_anew()
            else:
                self._order(body, now)

    def _settle(self, peer: str, reach: int, now: float) -> None:
        """Another one leads, too: one of us goes on, and it is for the one that was found to say who."""
        assert self._hub is not None
        assert self._leader is not None
        stays = prevails(self._leader.reach, self._job.node, reach, peer, self._job.nodes)
        self._hub.send(peer, {"t": "leads", "name": self._job.node if stays else peer})
        if not stays:
            self._yield_to(peer, now)

    def _on_version(self, peer: str, version: object, now: float) -> None:
        if self._leader is not None:
            self._leader.on_version(peer, version, now)
        elif not self._following.leader:
            words = f"{peer} speaks version {version} of the channel, {self._job.node} another"
            self._outcome = unknown("burnin.versions", words)

    def _on_hook_gone(self) -> None:
        """Whoever waited is gone and needs no outcome. Where the attempt is over, the others need not wait either."""
        share = self._settings.site.share
        reason = attempt.ended(share, self._job.key) if share and not self._survey else ""
        if reason and self._leader is not None:
            self._leader.over(reason)
        elif reason:
            self._to_leader({"t": "over", "reason": reason})
        if self._hub is not None:
            self._hub.unregister(self._result)
            self._hub.flush(1.0)
        self._place.close()
        raise SystemExit(0)

    def _order(self, message: Mapping[str, Any], now: float) -> None:
        """Take what the leader says."""
        kind = message.get("t")
        if kind == "propose":
            culprits = [str(name) for name in message.get("culprits", ())]
            yes = self._voice.ask(culprits) and self._place.keep(self._voice)
            self._to_leader({"t": "voice", "culprits": culprits, "yes": yes})
        elif kind == "stay":
            self._following.left = [str(name) for name in message.get("left", ())]
        elif kind == "verdict":
            self._take_verdict(message)
        elif kind != "alive":
            self._place.on_order(message)
            self._station.on_order(message, now)

    def _take_verdict(self, message: Mapping[str, Any]) -> None:
        leader, nodes = self._following.leader, list(self._job.nodes)
        try:
            outcome = outcome_from_json(message["outcome"])
        except (ValueError, KeyError) as exc:
            self._outcome = unknown("burnin.versions", f"{leader} sent a verdict that cannot be read: {exc}")
            return
        if message.get("leave") and self._voice.leave(leader) and self._place.keep(self._voice):
            self._to_leader({"t": "voice", "left": True})
        self._outcome = outcome._replace(measured={"nodes": nodes, "tested": nodes, **outcome.measured})

    def _tell_hook(self, now: float) -> None:
        """Leave what goes on for the hook to pass on."""
        if self._leader is None or now < self._tell_at:
            return
        self._tell_at = now + TELL_EVERY_S
        if (progress := self._leader.progress()) != self._told:
            self._told = progress
            self._place.tell_progress(*progress)


def main() -> None:
    """Run one agent by the configuration on stdin."""
    config = json.loads(sys.stdin.buffer.read())
    result = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    surroundings.leave_slurmd(cgroups=bool(config["cgroups"]))
    gc.disable()  # it lives minutes and leaves few cycles; with 1,024 nodes looking for them is a tenth of the leader's CPU
    job = BurninJob(**{**config["job"], "nodes": tuple(config["job"]["nodes"])})
    site = surroundings.from_mapping(Site, config["site"])
    burnin = surroundings.from_mapping(Burnin, config["burnin"])
    assert isinstance(site, Site)
    assert isinstance(burnin, Burnin)
    settings = Settings(site=site, burnin=burnin)
    agent = Agent(job, settings, deadline_s=float(config["deadline_s"]), survey=bool(config["survey"]), result=result)
    outcome = agent.run()
    agent.deliver()
    if not config["survey"]:
        attempt.record(job, settings, outcome._replace(seconds=time.monotonic() - agent.started))
    os._exit(0)
