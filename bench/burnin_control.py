"""The burn-in's control plane alone: real hubs, real authentication and the real leader over loopback, with followers that
answer at once as stations do.

`rendezvous_512_s`: wall time from the first connect until all of 512 nodes have the verdict, all hubs in one process.
`leader_cpu_s_1024`: CPU (user and system) of a leader's process that 1,023 nodes of another process talk to, from its
start to the verdict's leaving; munged's own CPU, which is another process of the node, is printed beside it. Each by munge
and by the site's key. Two floors: a bare exchange of as many bytes over as many plain sockets, nothing proven or parsed; and
the same TLS handshakes alone, in memory, which is OpenSSL's work whatever language asks for it (`handshakes_512_floor_s` is the
wall time of both sides, `handshakes_cpu_1024_floor_s` the CPU of the server's side). A machine that is slow in one is in all.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import resource
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from multiprocessing.connection import Connection
from ssl import OPENSSL_VERSION
from typing import Any

from burnin_control_floors import bare, bare_python, handshakes

from slurm_ext import __version__, channel, keys
from slurm_ext.burnin.leader import Leader, Terms
from slurm_ext.burnin.model import RankReport, shortened
from slurm_ext.channel import Hub
from slurm_ext.credential import Authenticator, MungeAuthenticator
from slurm_ext.credential_tls import KeyAuthenticator

GPUS = 8
KEY = "bench/1-0"
LIMIT_S = 120.0
Prove = Callable[[], Authenticator]


class Node:
    """What a station answers to a leader's orders, at once, as if all went well."""

    def __init__(self, name: str, send: Callable[[Mapping[str, Any]], object]) -> None:
        self._name, self._send = name, send
        self._order: Mapping[str, Any] = {}
        self.verdict: Mapping[str, Any] | None = None

    def hello(self) -> None:
        self._send({"t": "hello", "version": __version__, "gpus": GPUS, "left_s": LIMIT_S})

    def take(self, message: Mapping[str, Any]) -> None:
        kind = message.get("t")
        if kind == "round":
            self._order = message
            self._ids = 0
            if message["base"] == 0:
                for gpu in range(GPUS) if message.get("rails") else (-1,):
                    self._send({"t": "id", "round": message["round"], "id": os.urandom(128).hex(), "gpu": gpu})
        elif kind == "id" and message["round"] == self._order.get("round"):
            self._ids += 1
            if self._ids == (GPUS if self._order.get("rails") else 1):
                ranks = [shortened(self._rank(gpu)._asdict()) for gpu in range(GPUS)]
                self._send({"t": "report", "round": message["round"], "ranks": ranks, "facts": {}})
        elif kind == "verdict":
            self.verdict = message

    def _rank(self, gpu: int) -> RankReport:
        rails = bool(self._order.get("rails"))
        rank = self._order["base"] + (0 if rails else gpu)
        median_ms = 1.0 + 0.001 * gpu
        more = {"sustain_ms": 1.0, "sustain_steps": 10} if "sustain_ms" in RankReport._fields else {}
        return RankReport(
            rank,
            self._name,
            gpu,
            phase="done",
            step=9,
            pci=f"0000:{gpu:02x}:00.0",
            min_ms=median_ms,
            median_ms=median_ms,
            max_ms=median_ms,
            checksums=("1f2e3d4c", "5b6a7980", "11223344", "55667788"),
            **more,
        )


class Lead:
    """The leader's agent: its hub, the real leader, and its own node's station."""

    def __init__(self, prove: Prove, names: tuple[str, ...]) -> None:
        self.hub = Hub(prove(), me=names[0], key=KEY, peers=names[1:])
        self.port = self.hub.listen("127.0.0.1", 0)
        self._me = names[0]
        self._own: list[Mapping[str, Any]] = []
        wanted = {
            "nodes": names,
            "gpus": GPUS,
            "instance_type": "p5.48xlarge",
            "message_bytes": 1 << 30,
            "iterations": 3,
            "floor_busbw_gbs": 0.001,
            "pair_floor_busbw_gbs": 0.001,
            "rendezvous_s": LIMIT_S,
            "deadline_s": LIMIT_S,
            "group_nodes": len(names),
        }
        terms = Terms(**{name: value for name, value in wanted.items() if name in Terms._fields})  # type: ignore[arg-type]
        self.leader = Leader(terms, self._send, time.monotonic(), broadcast=self._broadcast)
        self._node = Node(self._me, self._own.append)
        self._node.hello()
        self.rounds = 0

    def _send(self, node: str, message: Mapping[str, Any]) -> None:
        if node == self._me:
            self._node.take(message)
        else:
            self.hub.send(node, message)

    def _broadcast(self, nodes: Collection[str], message: Mapping[str, Any]) -> None:
        if self._me in nodes:
            self._node.take(message)
        self.hub.broadcast([name for name in nodes if name != self._me], message)  # as an agent does

    def turn(self, timeout_s: float) -> None:
        for event in self.hub.poll(timeout_s):
            now = time.monotonic()
            if event.kind == "message":
                self.leader.on_message(event.peer, event.body, now)
            elif event.kind != "up":
                raise RuntimeError(f"{event}")
        now = time.monotonic()
        while self._own:
            self.leader.on_message(self._me, self._own.pop(0), now)
        self.leader.tick(now)
        self.hub.flush(0)

    def check(self) -> None:
        outcome = self.leader.outcome
        assert outcome is not None
        if outcome.verdict.verdict != "pass":
            raise RuntimeError(f"the burn-in did not pass: {outcome.verdict}")


class Followers:
    """Many nodes in one process, each with a hub of its own."""

    def __init__(self, prove: Prove, names: tuple[str, ...], leader: str, port: int) -> None:
        self.selector = selectors.DefaultSelector()
        authenticator = prove()  # as in one agent each, but munge's context need not be made 1,000 times
        self.nodes: dict[str, Node] = {}
        self.hubs = []
        for name in names:
            hub = Hub(authenticator, me=name, key=KEY, peers=[leader])
            self.hubs.append(hub)
            self.nodes[name] = Node(name, lambda message, hub=hub: hub.send(leader, message))
            self.selector.register(hub.fileno(), selectors.EVENT_READ, (hub, self.nodes[name]))
            hub.connect(leader, "127.0.0.1", port)

    def turn(self, timeout_s: float) -> None:
        for key, _ in self.selector.select(timeout_s):
            hub, node = key.data
            for event in hub.poll(0):
                if event.kind == "up":
                    node.hello()
                elif event.kind == "message":
                    node.take(event.body)
                elif node.verdict is None:
                    raise RuntimeError(f"{event}")
            hub.flush(0)

    def done(self) -> bool:
        return all(node.verdict is not None for node in self.nodes.values())

    def close(self) -> None:
        for hub in self.hubs:
            hub.close()
        self.selector.close()


def names(count: int) -> tuple[str, ...]:
    return tuple(f"p5-st-gpu-{number}" for number in range(1, count + 1))


def rendezvous(prove: Prove, count: int) -> float:
    """Return the wall time (s) of one control plane, all in this process."""
    everybody = names(count)
    started = time.perf_counter()
    lead = Lead(prove, everybody)
    crowd = Followers(prove, everybody[1:], everybody[0], lead.port)
    crowd.selector.register(lead.hub.fileno(), selectors.EVENT_READ, (_Turn(lead), None))
    # The followers' verdicts count, not the leader's own.
    while lead.leader.outcome is None or not crowd.done():
        for key, _ in crowd.selector.select(0.2):
            if isinstance(key.data[0], _Turn):
                lead.turn(0)
        crowd.turn(0)
        if time.perf_counter() - started > LIMIT_S:
            raise RuntimeError("no verdict")
    seconds = time.perf_counter() - started
    lead.check()
    crowd.close()
    lead.hub.close()
    return seconds


class _Turn:
    def __init__(self, lead: Lead) -> None:
        self._lead = lead

    def poll(self, timeout_s: float) -> list[Any]:
        self._lead.turn(timeout_s)
        return []

    def flush(self, timeout_s: float) -> None:
        """Nothing is left: a turn has sent it."""


def _crowd(prove: Prove, count: int, pipe: Connection) -> None:
    everybody = names(count)
    crowd = Followers(prove, everybody[1:], everybody[0], pipe.recv())
    deadline = time.monotonic() + LIMIT_S
    while not crowd.done() and time.monotonic() < deadline:
        crowd.turn(0.2)
    pipe.send(crowd.done())
    crowd.close()


def leader_cpu(prove: Prove, count: int) -> float:
    """Return the CPU time (s) of a leader whose followers are in another process."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_crowd, args=(prove, count, theirs))
    child.start()
    try:
        started, cpu = time.monotonic(), _cpu()
        lead = Lead(prove, names(count))
        ours.send(lead.port)
        while lead.leader.outcome is None:
            lead.turn(0.05)
            if time.monotonic() - started > LIMIT_S:
                raise RuntimeError("no verdict")
        lead.hub.flush(10.0)
        seconds = _cpu() - cpu
        lead.check()
        assert ours.poll(30), "the followers did not end"
        assert ours.recv(), "a follower got no verdict"
        lead.hub.close()
        return seconds
    finally:
        child.join(30)
        child.kill()


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def own_munged(folder: str) -> Iterator[tuple[str, Callable[[], float]]]:
    """Run a munged and give its socket, and a function that returns its CPU time (s) so far."""
    os.chmod(folder, 0o755)
    with open(f"{folder}/munge.key", "wb") as stream:
        os.fchmod(stream.fileno(), 0o600)
        stream.write(os.urandom(128))
    argv = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key"]
    argv += [f"--pid-file={folder}/pid", f"--seed-file={folder}/seed", f"--log-file={folder}/log"]
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    quiet = subprocess.DEVNULL
    daemon = subprocess.Popen(argv, stdout=quiet, stderr=quiet, env={**os.environ, "PATH": path})
    try:
        while not os.path.exists(f"{folder}/munge.socket"):
            assert daemon.poll() is None, "munged ended"
            time.sleep(0.02)

        def used() -> float:
            with open(f"/proc/{daemon.pid}/stat", "rb") as stream:
                fields = stream.read().rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        yield f"{folder}/munge.socket", used
    finally:
        daemon.kill()
        daemon.wait(10)


def figures(full: bool) -> dict[str, float]:
    """Measure, print a table, and return the figures; a method that this machine lacks is left out."""
    channel.HANDSHAKE_S = 60.0  # a thousand nodes share these cores, perhaps with somebody else's work
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        print(f"skipped: only {hard} files may be open here")
        return {}
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 16), hard))
    repeats = 5 if full else 3
    gc.disable()  # as in an agent
    found: dict[str, float] = {}
    rows: list[tuple[str, ...]] = [("", "512 nodes, wall s", "1,024 nodes, leader's CPU s", "munged's CPU s")]
    try:
        with tempfile.TemporaryDirectory() as folder:
            site = f"{folder}/site/keys"
            keys.create(site)
            methods: list[tuple[str, Prove, Callable[[], float]]] = [
                ("key", lambda: KeyAuthenticator(site), lambda: 0.0)
            ]
            with contextlib.ExitStack() as stack:
                if shutil.which("munged", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
                    path, used = stack.enter_context(own_munged(folder))
                    methods.insert(0, ("munge", lambda: MungeAuthenticator(path), used))
                for name, prove, used in methods:
                    gc.collect()
                    wall = min(rendezvous(prove, 512) for _ in range(repeats))
                    before = used()
                    cpu = min(leader_cpu(prove, 1024) for _ in range(repeats))
                    munged_s = (used() - before) / repeats
                    floor = min(handshakes(prove, 512)[0] for _ in range(repeats))
                    floor_cpu = min(handshakes(prove, 1024)[1] for _ in range(repeats))
                    # munge's are the figures that are promised; the key's stand beside them.
                    suffix = "" if name == methods[0][0] else f"_{name}"
                    found[f"rendezvous_512_s{suffix}"] = round(wall, 3)
                    found[f"leader_cpu_s_1024{suffix}"] = round(cpu, 3)
                    found[f"handshakes_512_floor_s{suffix}"] = round(floor, 3)
                    found[f"handshakes_cpu_1024_floor_s{suffix}"] = round(floor_cpu, 3)
                    rows.append((f"by {name}", f"{wall:.3f}", f"{cpu:.3f}", f"{munged_s:.2f}" if munged_s else "-"))
                    rows.append(("  the handshakes alone", f"{floor:.3f}", f"{floor_cpu:.3f}", ""))
        floor = min(bare(512) for _ in range(repeats))
        found["rendezvous_512_floor_s"] = round(floor, 3)
        rows.append(("bare sockets", f"{floor:.3f}", "", ""))
        python_s = min(bare_python() for _ in range(10))
    finally:
        gc.enable()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(f"control plane of the burn-in, best of {repeats}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{OPENSSL_VERSION}, python -I -c pass: {1e3 * python_s:.1f} ms")
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, (24, 18, 28, 14), strict=True)).rstrip())
    return found


def main() -> None:
    print(json.dumps({"bench": "burnin_control", "figures": figures("--full" in sys.argv)}))


if __name__ == "__main__":
    main()
