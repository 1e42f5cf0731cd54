"""`fmslurm-agent`: the daemon of a node that moves complete shards from NVMe to the shared file system and to S3.

It holds no state that a crash could lose: what is whole lies in the tiers, what is done is noted in small files, and
everything else is found again by looking. All work is done by children (worker.py); this process only decides.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import signal
import socket
import time
from collections.abc import Callable

from slurm_ext import command
from slurm_ext.config.model import Settings, at_node
from slurm_ext.config.modes import effective_mode
from slurm_ext.errors import EXIT_OK, EXIT_PARTLY, LackingError
from slurm_ext.staging import find, nvme, plan, tasks
from slurm_ext.staging.commit import State
from slurm_ext.staging.journal import Journal
from slurm_ext.staging.local import Point, lock_folder, no_point
from slurm_ext.staging.local import Progress as Tell
from slurm_ext.staging.model import COMPLETE, REFUSED, Shard
from slurm_ext.staging.plan import ASSEMBLE, LUSTRE, S3, Action, Progress
from slurm_ext.staging.worker import Worker

#: A look at all of NVMe at least this often, though nobody woke us: the client's word may be lost, its file is not.
SCAN_EVERY_S = 10.0
#: After a word of a client, others usually follow: they are taken together.
GATHER_S = 0.1
SCAN_TIMEOUT_S = 60.0
#: A child that moved nothing for this long is ended and its task tried again.
STALL_S = 600.0
#: Children at once for one tier, and how many that nothing can end may pile up before that tier waits.
WORKERS, STUCK = 2, 4
SETTINGS_EVERY_S = 5.0


class Agent:
    """The agent of one node. `settings` is asked again and again, so a push or an off switch needs no restart."""

    def __init__(
        self, settings: Callable[[], Settings], node: str, *, point: Point = no_point, stall_s: float = STALL_S
    ) -> None:
        """Take the agent's lock and open its socket. Raise LackingError where another agent of this node runs."""
        self.read_settings, self.node, self.point, self.stall_s = settings, node, point, stall_s
        self.settings = settings()
        self.settings_at = time.monotonic()
        run_dir = at_node(self.settings.site.run_dir, node)
        lock_path = os.path.join(run_dir, "agent")
        os.makedirs(lock_path, mode=0o755, exist_ok=True)
        lock = lock_folder(lock_path)
        if lock is None:
            raise LackingError(f"an fmslurm-agent of {node} runs already", remedy=f"See who holds {lock_path}")
        self.lock = lock
        self.journal = Journal(self.settings, node)
        self.known: dict[tuple[str, str], Progress] = self.journal.load()
        self.shards: dict[str, Shard] = {}
        self.groups: dict[int, int] = {}
        self.workers: dict[int, Worker] = {}
        self.stuck: list[Worker] = []
        self.told: set[tuple[str, str]] = set()
        self.scan_at = 0.0
        self.selector = selectors.DefaultSelector()
        self.socket = _wake_socket(os.path.join(run_dir, "agent.sock"))
        self.selector.register(self.socket, selectors.EVENT_READ, "wake")
        self.stopping = False
        self.stop_pipe = os.pipe()
        for end in self.stop_pipe:
            os.set_blocking(end, False)
        self.selector.register(self.stop_pipe[0], selectors.EVENT_READ, "stop")

    def close(self) -> None:
        """End all children and give up lock and socket."""
        for worker in self.workers.values():
            worker.kill()
        limit = time.monotonic() + command.ABANDON_S
        while any(not worker.reap() for worker in self.workers.values()) and time.monotonic() < limit:
            time.sleep(0.005)
        self.selector.close()
        self.socket.close()
        for end in (*self.stop_pipe, self.lock):
            os.close(end)

    def stop(self, *_: object) -> None:
        """Have `run` return soon; fit to be a signal handler."""
        self.stopping = True
        with contextlib.suppress(OSError):
            os.write(self.stop_pipe[1], b"x")

    def run(self) -> int:
        """Move what there is and what comes until `stop`; return 0."""
        while not self.stopping:
            self.turn()
        return EXIT_OK

    def run_once(self) -> int:
        """Look once, try everything once, and return 0 where all is complete (or refused for good), else 4."""
        self.scan()
        tried: set[tuple[str, str]] = set()
        while not self.stopping:
            self.start(skip=tried)
            tried |= {(worker.action.kind, worker.action.shard.key) for worker in self.workers.values()}
            if not self.workers:
                break
            self.wait(1.0)
        self.journal.status(self.settings, self.shards.values(), self.known, (), time.time())
        wanted = [(kind, key) for key in self.shards for kind in self.tiers()]
        done = all(self.known.get(pair, Progress()).state in (COMPLETE, REFUSED) for pair in wanted)
        return EXIT_OK if done else EXIT_PARTLY

    def turn(self) -> None:
        """Do one round: look where it is time, start what is due, wait until something happens."""
        now = time.monotonic()
        if now - self.settings_at > SETTINGS_EVERY_S:
            self.settings, self.settings_at = self.read_settings(), now
        if now >= self.scan_at:
            self.scan()
        self.start()
        running = [worker.action for worker in self.workers.values()]
        self.journal.status(self.settings, self.shards.values(), self.known, running, time.time())
        wait_s = max(0.0, min(self.scan_at - time.monotonic(), SETTINGS_EVERY_S))
        self.wait(plan.next_wait_s(self.known.values(), time.time(), wait_s))

    def enforcing(self) -> bool:
        """Say whether staging may act here. Partitions were narrowed when the job got its NVMe folder, not here."""
        everywhere = self.settings._replace(mode=self.settings.mode._replace(partitions=()))
        return effective_mode(everywhere, "staging", node=self.node, now=time.time())[0] == "enforce"

    def tiers(self) -> list[str]:
        """Return the tiers below NVMe that this site has, by urgency."""
        return [kind for kind in (LUSTRE, S3) if find.tier_of(self.settings, kind) is not None]

    def scan(self) -> None:
        """Look at NVMe, user by user, as that user; what does not answer keeps what was known of it."""
        self.scan_at = time.monotonic() + SCAN_EVERY_S
        tier = find.tier_of(self.settings, "nvme")
        if tier is None or not tier.url:
            return
        root, tiers, now = at_node(tier.url, self.node), self.tiers(), time.time()
        finished = (COMPLETE, REFUSED)
        done = frozenset(
            key
            for key in {key for _, key in self.known} | set(self.shards)
            if tiers and all(self.known.get((kind, key), Progress()).state in finished for kind in tiers)
        )
        listed: set[str] = set()
        answered: set[str] = set()
        for uid, gid in nvme.users(root):
            self.groups[uid] = gid
            work = tasks.scan_as(os.path.join(root, str(uid)), uid, gid, done, now)
            answer = command.call_bounded(work, timeout_s=SCAN_TIMEOUT_S)
            if answer is None:
                listed |= {key for key, shard in self.shards.items() if shard.uid == uid}
                continue
            answered.add(str(uid))
            found, keys = tasks.read_scan(answer)
            listed |= set(keys)
            self.shards.update({shard.key: shard for shard in found})
        for key in [key for key in self.shards if key not in listed]:
            del self.shards[key]
        self.journal.forget({key for _, key in self.known if key.partition("/")[0] in answered} - listed, self.known)

    def start(self, skip: set[tuple[str, str]] | None = None) -> None:
        """Start children for what is due, most urgent first; where staging may not act, only write down what would be done."""
        now = time.time()
        self._reap()
        running = {(worker.action.kind, worker.action.shard.key) for worker in self.workers.values()} | (skip or set())
        actions = plan.due(self.shards.values(), self.known, tiers=self.tiers(), running=running, now=now)
        if not self.enforcing():
            for action in actions:
                if self.settings.mode.staging != "off" and (action.kind, action.shard.key) not in self.told:
                    self.told.add((action.kind, action.shard.key))
                    self.journal.tell(self.settings, "ckpt.move", action, "intent", dry_run=True)
            return
        for shard in plan.to_assemble(self.shards.values(), self.known):
            if (ASSEMBLE, shard.key) not in running:
                actions.insert(0, Action(ASSEMBLE, shard, "all-here", "this node holds all shards"))
        for action in actions:
            working = [worker.action.kind for worker in (*self.workers.values(), *self.stuck)].count(action.kind)
            blocked = [worker.action.kind for worker in self.stuck].count(action.kind)
            if working - blocked < WORKERS and blocked < STUCK:
                self._start(action)

    def _start(self, action: Action) -> None:
        """Start the child for one action."""
        if action.rule != "look-again":
            self.journal.tell(self.settings, "ckpt.move", action, "intent")
        settings, gid, point = self.settings, self.groups.get(action.shard.uid, action.shard.uid), self.point

        def perform(tell: Tell) -> State:
            return tasks.perform(action.kind, action.shard, gid, settings, point, tell)

        worker = Worker(action, perform)
        self.workers[worker.descriptor] = worker
        self.selector.register(worker.descriptor, selectors.EVENT_READ, "worker")

    def wait(self, timeout_s: float) -> None:
        """Wait for children, for a client's word, or for `timeout_s` seconds; take in what came."""
        stall_s = [worker.last_sign + self.stall_s - time.monotonic() for worker in self.workers.values()]
        for key, _ in self.selector.select(max(0.0, min([timeout_s, *stall_s]))):
            if key.data == "worker" and self.workers[key.fd].read():
                self._finish(self.workers[key.fd])
            elif key.data == "wake":
                self._woken()
        for worker in list(self.workers.values()):
            if time.monotonic() - worker.last_sign > self.stall_s:
                worker.kill(f"nothing moved for {self.stall_s:g} s")
                self._finish(worker)

    def _woken(self) -> None:
        """Take in the words of clients; whatever they say means only: look."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(1000):
                self.socket.recv(16)
        self.scan_at = min(self.scan_at, time.monotonic() + GATHER_S)

    def _finish(self, worker: Worker) -> None:
        """Take in how a child ended."""
        self.selector.unregister(worker.descriptor)
        del self.workers[worker.descriptor]
        outcome, action = worker.outcome(), worker.action
        worker.close()
        self.stuck.append(worker)
        self._reap()
        pair = (action.kind, action.shard.key)
        before, now, jitter = self.known.get(pair, Progress()), time.time(), random.random()
        if outcome.state is None:
            self.known[pair] = plan.after_failure(before, outcome.error, now, jitter)
            self.journal.failed(self.settings, action, outcome)
        else:
            state = outcome.state
            self.known[pair] = plan.after_answer(before, state.state, state.words, now, jitter)
            self.journal.answered(self.settings, action, outcome)
        self.journal.keep(action.shard.key, self.known)

    def _reap(self) -> None:
        """Collect children that have ended; those that nothing can end stay in `stuck`."""
        self.stuck = [worker for worker in self.stuck if not worker.reap()]


def _wake_socket(path: str) -> socket.socket:
    """Open the socket where clients say that there is something new. Anybody may: a word carries nothing but that."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    wake = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    wake.setblocking(False)
    wake.bind(path)
    os.chmod(path, 0o666)  # noqa: S103 - see above
    return wake


def serve(settings: Callable[[], Settings], node: str, *, once: bool) -> int:
    """Run the agent until SIGTERM or SIGINT (or, with `once`, one round) and return the exit code."""
    agent = Agent(settings, node)
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, agent.stop)
        return agent.run_once() if once else agent.run()
    finally:
        agent.close()
