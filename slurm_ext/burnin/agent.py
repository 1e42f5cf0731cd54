"""The agent of one node: supervises the workers, talks to the other nodes, and hands one outcome to the hook that waits.

Started by `gate.run_burnin` in a session of its own: configuration as JSON on stdin, one outcome as JSON on stdout, words
on stderr (a log). It goes when the verdict is known, when its hook is gone, or at its own deadline, whatever the workers do.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from slurm_ext import __version__, shared
from slurm_ext.burnin import history, history_line, surroundings
from slurm_ext.burnin.efa_look import EfaLook
from slurm_ext.burnin.leader import Leader, Terms
from slurm_ext.burnin.model import BurninJob, Outcome, outcome_from_json, outcome_to_json, unknown
from slurm_ext.burnin.nccl import candidates
from slurm_ext.burnin.pool import Pool
from slurm_ext.burnin.rules import limits
from slurm_ext.burnin.station import Station
from slurm_ext.burnin.worker import WorkerPlan
from slurm_ext.channel import Event, Hub
from slurm_ext.config.model import Burnin, Settings, Site, at_node
from slurm_ext.credential import Alone, Authenticator, for_site
from slurm_ext.errors import FmslurmError

#: How often a follower tries to reach the leader, whose prolog may start later.
RETRY_S = 0.1
RETRY_MAX_S = 1.0
TICK_S = 0.05

#: In the burn-in's folder on this node: what the leader does now.
PROGRESS = "progress.json"
TELL_EVERY_S = 0.5


class Agent:
    """All of one node's part in one burn-in."""

    def __init__(self, job: BurninJob, settings: Settings, *, deadline_s: float, survey: bool, result: int) -> None:
        self._job, self._settings, self._burnin = job, settings, settings.burnin
        self._leader_name = job.nodes[0]
        self.started = time.monotonic()
        self._deadline_s = min(deadline_s, self._burnin.deadline_s)
        self._deadline = self.started + self._deadline_s
        self._limits = limits(self._deadline_s)
        self._survey = survey
        self._result = result
        # The hooks know by this file what of a burn-in is still there when its job ends.
        self._note = os.path.join(
            at_node(settings.site.run_dir, job.node), "burnin", f"{job.job_id}-{job.restarts}.json"
        )
        self._folder = self._note.removesuffix(".json") + ".d"
        self._inbox: deque[tuple[str, Mapping[str, Any]]] = deque()  # for ourselves: (from, message)
        self._outcome: Outcome | None = None
        self._hub: Hub | None = None
        self._pool: Pool | None = None
        self._leader: Leader | None = None
        self._next_try, self._retry_s, self._tries = 0.0, RETRY_S, 0
        self._joined = False
        self._next_sign = 0.0
        self._heard_leader = 0.0
        self._told: object = None
        self._tell_at = 0.0

    def run(self) -> Outcome:
        """Take part until there is an outcome."""
        try:
            self._prepare()
            while self._outcome is None:
                self._turn(time.monotonic())
        except FmslurmError as exc:
            self._outcome = unknown("burnin.cannot-start", str(exc))
        return self._outcome

    def deliver(self) -> None:
        """Give the outcome to the hook, then to the other nodes, and end the workers."""
        assert self._outcome is not None
        with contextlib.suppress(OSError):
            os.write(self._result, json.dumps(outcome_to_json(self._outcome)).encode() + b"\n")
        os.close(self._result)
        if self._pool is not None:
            self._pool.close()
        if self._hub is not None:
            self._hub.flush(2.0)
            self._hub.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            if self._pool is None or not self._pool.undead():
                os.unlink(self._note)

    def _prepare(self) -> None:
        job, burnin = self._job, self._burnin
        os.makedirs(os.path.dirname(self._note), mode=0o755, exist_ok=True)
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        names = tuple(dict.fromkeys((job.node, self._leader_name)))
        alone = len(job.nodes) == 1
        where = {} if alone else surroundings.addresses(names, at_node(burnin.addresses, job.node))
        self._addresses = where
        authenticator: Authenticator = Alone() if alone else for_site(self._settings, job.node)
        hub = Hub(authenticator, me=job.node, key=job.key, peers=set(job.nodes) - {job.node})
        self._hub = hub
        plan = WorkerPlan(
            0,
            burnin.cuda_library or "libcuda.so.1",
            tuple(candidates(burnin.nccl_library, self._settings.site.prefix)),
            self._limits.abort_s * 0.8,
        )
        environment = surroundings.worker_environment(
            self._settings.site, burnin, node=job.node, address=where.get(job.node, ""), log_folder=self._folder
        )
        self._pool = Pool(
            {gpu: plan._replace(gpu=gpu) for gpu in range(job.gpus)},
            environment,
            watch=hub.register,
            unwatch=hub.unregister,
            changed=self._write_note,
        )
        self._prove_efa = burnin.transport == "efa" and not alone and not self._survey
        root = at_node(self._settings.site.root, job.node)
        self._efa = EfaLook(self._folder, root) if self._prove_efa else None
        self._station = Station(
            job.node, job.gpus, self._pool, self._to_leader, abort_s=self._limits.abort_s, facts=self._facts
        )
        # Contexts take seconds on real cards: open them while the other nodes are still on their way. Where an earlier pass
        # is likely to do, they are opened with the first round, if there is one.
        for gpu in range(0 if job.reusable else job.gpus):
            self._pool.start(gpu)
        hub.register(self._result, "hook")
        if job.node == self._leader_name:
            self._lead(hub)

    def _facts(self, number: int) -> Mapping[str, Any]:
        """Return what NCCL's logs and EFA's counters say of the first run, which is the one that must be proven."""
        return self._efa.facts() if self._efa is not None and number == 0 else {}

    def _write_note(self, pids: tuple[int, ...]) -> None:
        processes = [[pid, ticks] for pid in (os.getpid(), *pids) if (ticks := _start_ticks(pid)) is not None]
        note = {"schema": 1, "job_id": self._job.job_id, "processes": processes}
        with contextlib.suppress(OSError), open(self._note, "w", encoding="utf-8") as stream:
            json.dump(note, stream)

    def _lead(self, hub: Hub) -> None:
        job, burnin, now = self._job, self._burnin, time.monotonic()
        if len(job.nodes) > 1:
            address = self._addresses[job.node]
            for port in surroundings.ports(job.key, burnin):
                try:
                    hub.listen(address, port)
                    break
                except OSError as exc:
                    print(f"cannot listen on {address}:{port}: {exc}", file=sys.stderr)  # noqa: T201
            else:
                raise FmslurmError(f"no port of ours is free on {address}")
        terms = Terms(
            nodes=job.nodes,
            gpus=job.gpus,
            instance_type=job.instance_type,
            message_bytes=burnin.message_bytes,
            iterations=burnin.iterations,
            floor_busbw_gbs=burnin.floor_busbw_gbs,
            pair_floor_busbw_gbs=burnin.pair_floor_busbw_gbs,
            rendezvous_s=burnin.rendezvous_s,
            deadline_s=self._left(now),
            prove_efa=self._prove_efa,
            survey=self._survey,
        )
        self._leader = Leader(terms, self._to_node, now)
        self._joined = True
        self._hello(now)

    def _left(self, now: float) -> float:
        # The last two seconds are for the verdict's way to the others and back to the hook.
        return max(0.0, self._deadline - now - min(2.0, 0.05 * self._deadline_s))

    def _hello(self, now: float) -> None:
        left_s = self._left(now)
        hello = {"t": "hello", "version": __version__, "gpus": self._job.gpus, "left_s": left_s}
        self._to_leader(hello | {"reuse": self._job.reusable})
        self._next_sign = now + self._limits.silence_s / 3
        self._heard_leader = now

    def _to_leader(self, message: Mapping[str, Any]) -> None:
        if self._job.node == self._leader_name:
            self._inbox.append(("", message))
        elif self._hub is not None:
            self._hub.send(self._leader_name, message)

    def _to_node(self, node: str, message: Mapping[str, Any]) -> None:
        if node == self._job.node:
            self._inbox.append((self._leader_name, message))
        elif self._hub is not None:
            self._hub.send(node, message)

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
            self._outcome = unknown("burnin.deadline", f"no verdict within {self._deadline_s:.0f} s")
            return
        self._station.tick(now)
        if self._leader is not None:
            self._leader.tick(now)
        self._keep_in_touch(now)
        self._tell_hook(now)
        for event in self._hub.poll(0.0 if self._inbox else TICK_S):
            self._on_event(event, time.monotonic())

    def _tell_hook(self, now: float) -> None:
        """Leave beside the note what goes on; the hook, which may wait for the share, passes it on to who asks."""
        if self._leader is None or now < self._tell_at:
            return
        self._tell_at = now + TELL_EVERY_S
        phase, waiting = progress = self._leader.progress()
        if progress == self._told:
            return
        self._told = progress
        data = {"schema": 1, "phase": phase, "waiting": waiting[:8], "absent": len(waiting), "since": time.time()}
        path = os.path.join(self._folder, PROGRESS)
        with contextlib.suppress(OSError):
            with open(path + "~", "w", encoding="utf-8") as stream:
                json.dump(data, stream)
            os.replace(path + "~", path)

    def _keep_in_touch(self, now: float) -> None:
        """Followers look for the leader until they have it; both sides show that they live."""
        assert self._hub is not None
        if not self._joined:
            if now >= self.started + self._burnin.rendezvous_s:
                words = f"{self._leader_name} did not answer in time"
                self._outcome = unknown("burnin.peer-absent", words)
            elif now >= self._next_try and self._leader_name not in self._hub.peers():
                ports = surroundings.ports(self._job.key, self._burnin)
                port = ports[self._tries % len(ports)]
                self._tries += 1
                self._next_try = now + self._retry_s + 6.0  # `down` brings it forward
                self._hub.connect(self._leader_name, self._addresses[self._leader_name], port)
            return
        if now >= self._next_sign:
            self._next_sign = now + self._limits.silence_s / 3
            self._to_leader({"t": "alive"})
            if self._leader is not None:
                for peer in self._hub.peers():
                    self._hub.send(peer, {"t": "alive"})
        if self._leader is None and now - self._heard_leader > self._limits.silence_s:
            self._outcome = unknown(
                "burnin.peer-silent", f"no sign of life from the agent of {self._leader_name}, which leads"
            )

    def _on_event(self, event: Event, now: float) -> None:
        if event.kind == "ready":
            if event.data == "hook":
                raise SystemExit(0)  # whoever waited is gone: nobody needs an outcome
            assert isinstance(event.data, int)
            assert self._pool is not None
            messages, ended = self._pool.read(event.data)
            for message in messages:
                self._station.on_worker(event.data, message, now)
            if ended:
                self._station.on_worker_ended(event.data, ended, now)
        elif event.kind == "message":
            if self._leader is not None:
                self._leader.on_message(event.peer, event.body, now)
            elif event.peer == self._leader_name:
                self._heard_leader = now
                self._order(event.body, now)
        elif event.kind == "up" and self._leader is None and event.peer == self._leader_name:
            self._joined = True
            self._hello(now)
        elif event.kind == "down":
            self._on_down(event.peer, str(event.body.get("why")), now)

    def _on_down(self, peer: str, why: str, now: float) -> None:
        if self._leader is not None:
            self._leader.on_down(peer, why, now)
        elif self._joined:
            self._outcome = unknown("burnin.peer-lost", f"the agent of {peer}, which leads, went away: {why}")
        else:
            if self._tries % 3 == 0:
                self._retry_s = min(self._retry_s * 1.5, RETRY_MAX_S)
            self._next_try = now + self._retry_s

    def _order(self, message: Mapping[str, Any], now: float) -> None:
        if message.get("t") != "verdict":
            self._station.on_order(message, now)
            return
        try:
            self._outcome = outcome_from_json(message["outcome"])
        except (ValueError, KeyError) as exc:
            self._outcome = unknown("burnin.versions", f"{self._leader_name} sent a verdict that cannot be read: {exc}")


def _start_ticks(pid: int) -> int | None:
    """Return when a process began (clock ticks since boot): with its pid it can be mistaken for no other."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return int(stream.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def record(job: BurninJob, settings: Settings, outcome: Outcome) -> None:
    """Write the outcome down: each node its own history, here and on the share; the leader also beside the attempt."""
    line = history_line.line_of(job, outcome, now=time.time(), message_bytes=settings.burnin.message_bytes)
    with contextlib.suppress(OSError, FmslurmError):
        history.append(at_node(settings.site.state_dir, job.node), line)
    if not settings.site.share:
        return
    history.append_shared(settings.site.share, job.node, line)
    if line["leads"]:
        with contextlib.suppress(ValueError):
            shared.write_json(shared.attempt_path(settings.site.share, job.key, shared.BURNIN_FILE), line)


def main() -> None:
    """Run one agent by the configuration on stdin."""
    config = json.loads(sys.stdin.buffer.read())
    # The hook waits for the outcome, not for us: it must never have to collect this process.
    if os.fork():
        os._exit(0)
    result = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    surroundings.leave_slurmd(cgroups=bool(config["cgroups"]))
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
        record(job, settings, outcome._replace(seconds=time.monotonic() - agent.started))
    os._exit(0)
