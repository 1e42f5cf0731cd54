"""Real workers under real stations and pools, without agents: warm-up, sustained traffic, rails, MNNVL, stops, faults."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Cluster

from slurm_ext.burnin import agreement, surroundings
from slurm_ext.burnin.efa_look import EfaLook
from slurm_ext.burnin.model import ENVIRONMENT, ERROR, HANG, LOCAL, OK, REMOTE, SLOW, WRONG
from slurm_ext.burnin.pool import Pool
from slurm_ext.burnin.station import Station
from slurm_ext.burnin.worker import CHECKS, WorkerPlan

#: Nothing here takes so long (seconds) unless it hangs.
PATIENCE_S = 150.0


class Bench:
    """The nodes of a cluster as stations with pools in this process, and what their leader would do."""

    def __init__(self, cluster: Cluster, libraries: Path) -> None:
        self.cluster, self.inbox = cluster, {name: [] for name in cluster.nodes}
        self.watched: dict[int, tuple[str, int]] = {}
        self.pools: dict[str, Pool] = {}
        self.stations: dict[str, Station] = {}
        self.looks: dict[str, EfaLook] = {}
        self.messages: list[tuple[str, dict[str, Any]]] = []
        plan = WorkerPlan(0, str(libraries / "libcuda.so.1"), (str(libraries / "libnccl.so.2"),), 2.0)
        for name in cluster.nodes:
            logs = cluster.folder / name / "logs"
            logs.mkdir()
            site, burnin = cluster.settings.site, cluster.settings.burnin
            environment = surroundings.worker_environment(
                site, burnin, node=name, address=cluster.addresses[name], log_folder=str(logs)
            )
            self.looks[name] = EfaLook(str(logs), str(cluster.folder / name / "root"))
            pool = Pool(
                {gpu: plan._replace(gpu=gpu) for gpu in range(cluster.gpus)},
                environment,
                watch=lambda fd, gpu, name=name: self.watched.update({fd: (name, gpu)}),
                unwatch=lambda fd: self.watched.pop(fd, None),
            )
            self.pools[name] = pool
            self.stations[name] = Station(
                name,
                cluster.gpus,
                pool,
                lambda message, name=name: self.messages.append((name, dict(message))),
                abort_s=3.0,
                facts=lambda number, name=name: self.looks[name].facts(),
            )

    def order(self, number: int = 0, nodes: tuple[str, ...] = (), **more: Any) -> None:
        """Order one round of all nodes, or of some."""
        nodes, gpus = nodes or self.cluster.nodes, self.cluster.gpus
        self.group, self.rails = nodes, bool(more.get("rails"))
        for place, name in enumerate(nodes):
            order = {"t": "round", "round": number, "base": place * (1 if self.rails else gpus), "root": place == 0}
            order |= {"ranks": len(nodes) * (1 if self.rails else gpus), "bytes": 1 << 18, "iterations": 3}
            order |= {"limit_s": PATIENCE_S, "floor_s": 0.0, "sustain_s": 0.0}
            self.stations[name].on_order({**order, **more}, time.monotonic())

    def turn(self, timeout_s: float = 0.02) -> None:
        """Let workers speak and stations answer; ids go where they belong."""
        readable, _, _ = select.select(list(self.watched), [], [], timeout_s)
        for fd in readable:
            if fd not in self.watched:
                continue
            name, gpu = self.watched[fd]
            messages, ended = self.pools[name].read(gpu)
            for message in messages:
                self.inbox[name].append((gpu, message))
                self.stations[name].on_worker(gpu, message, time.monotonic())
            if ended:
                self.stations[name].on_worker_ended(gpu, ended, time.monotonic())
        for station in self.stations.values():
            station.tick(time.monotonic())
        for _, message in [m for m in self.messages if m[1]["t"] == "id"]:
            for name in self.group:
                self.stations[name].on_order({**message, "t": "id"}, time.monotonic())
        self.messages = [m for m in self.messages if m[1]["t"] != "id"]

    def reports(self, meanwhile: Callable[[], None] = lambda: None) -> dict[str, dict[str, Any]]:
        """Return the report of each node of the round."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            self.turn()
            meanwhile()
            found = {name: message for name, message in self.messages if message["t"] == "report"}
            if set(found) == set(self.group):
                self.messages.clear()
                return found
            assert time.monotonic() < give_up, (self.inbox, found)

    def ranks(self, meanwhile: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """Return the reports of all ranks, in the order of the nodes."""
        return [rank for _, report in sorted(self.reports(meanwhile).items()) for rank in report["ranks"]]

    def stop(self, number: int = 0) -> None:
        for name in self.group:
            self.stations[name].on_order({"t": "stop", "round": number}, time.monotonic())

    def steps(self, name: str) -> int:
        """How many all-reduces the first worker of a node has announced to be through."""
        return max((m["step"] for _, m in self.inbox[name] if m["t"] == "phase"), default=0)

    def close(self) -> None:
        for pool in self.pools.values():
            pool.close()
            assert pool.undead() == ()


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(make_cluster: Callable[..., Cluster], standin_libraries: Path) -> Iterator[MakeBench]:
    benches: list[Bench] = []

    def make(nodes: int, faults: dict[str, dict[str, object]] | None = None, **more: Any) -> Bench:
        cluster = make_cluster(nodes, **more)
        for name, keys in (faults or {}).items():
            cluster.hardware(name, **keys)
        benches.append(Bench(cluster, standin_libraries))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@pytest.mark.parametrize("size", [1 << 12, 1 << 18, 1 << 22], ids=["4K", "256K", "4M"])
def test_sustained_traffic_has_the_same_count_everywhere_and_ends_on_time(make_bench: MakeBench, size: int) -> None:
    bench = make_bench(2)
    began = time.monotonic()
    bench.order(bytes=size, sustain_s=1.0)
    ranks = bench.ranks()
    assert time.monotonic() - began > 0.9
    assert [r["state"] for r in ranks] == [OK] * 4, [r["text"] for r in ranks]
    (steps,) = {r["sustain_steps"] for r in ranks}
    assert len({r["step"] for r in ranks}) == 1
    assert ranks[0]["step"] >= len(CHECKS) + agreement.WARM_LEAST + 3 + steps
    assert all(r["sustain_ms"] > 0 and r["drift"] > 0 for r in ranks)
    # By the middle of all times, which on a busy machine is far below their mean.
    spent = steps * sum(r["sustain_ms"] for r in ranks) / len(ranks) / 1e3
    assert 0.02 < spent < 15.0
    (checksums,) = {r["checksums"] for r in ranks}
    assert len(checksums) == len(CHECKS) + 2


def test_without_sustained_traffic_there_is_none(make_bench: MakeBench) -> None:
    bench = make_bench(1)
    bench.order()
    ranks = bench.ranks()
    assert [(r["state"], r["sustain_ms"], r["sustain_steps"], r["drift"]) for r in ranks] == [(OK, 0.0, 0, 1.0)] * 2
    assert all(len(r["checksums"]) == len(CHECKS) + 1 for r in ranks)


@pytest.mark.parametrize("side", ["send", "recv"])
def test_a_flipped_bit_shows_as_a_wrong_result_though_ranks_vote_by_sums(make_bench: MakeBench, side: str) -> None:
    bench = make_bench(2, {"n1": {"nccl__wrong_result": side}})
    bench.order(sustain_s=0.3)
    ranks = bench.ranks()
    wrong = [(r["node"], r["gpu"]) for r in ranks if r["state"] == WRONG]
    assert {r["state"] for r in ranks} <= {OK, WRONG}, ranks
    assert wrong == ([("n1", 0)] if side == "recv" else [(n, g) for n in ("n0", "n1") for g in (0, 1)])
    assert len({r["sustain_steps"] for r in ranks}) == 1


def test_an_order_to_stop_ends_sustained_traffic(make_bench: MakeBench) -> None:
    bench = make_bench(2)
    bench.order(sustain_s=600.0)
    at: list[float] = []

    def stop() -> None:
        if not at and min(bench.steps("n0"), bench.steps("n1")) > 40:
            at.append(time.monotonic())
            bench.stop()

    ranks = bench.ranks(stop)
    assert at
    assert time.monotonic() - at[0] < 60.0
    # All went on before they were stopped: such a round is slow, not stuck.
    assert all(r["state"] in (HANG, ERROR) and r["cause"] in ("", REMOTE) and r["step"] > 2 for r in ranks), ranks
    assert HANG in {r["state"] for r in ranks}


def test_a_healthy_run_comes_to_its_end_however_much_was_asked_of_it(make_bench: MakeBench) -> None:
    """What would not fit into the round is left out by agreement: a run must not look slow for its length alone."""
    bench = make_bench(2)
    bench.order(iterations=1_000_000, sustain_s=600.0, limit_s=10.0)
    ranks = bench.ranks()
    assert [r["state"] for r in ranks] == [OK] * 4, [(r["phase"], r["step"], r["text"]) for r in ranks]
    assert len({(r["step"], r["sustain_steps"]) for r in ranks}) == 1
    assert 10 < ranks[0]["step"] < 1_000_000


def test_a_worker_that_dies_in_sustained_traffic_ends_it_for_all(make_bench: MakeBench) -> None:
    bench = make_bench(2)
    bench.order(sustain_s=600.0)
    killed: list[int] = []

    def kill() -> None:
        if not killed and bench.steps("n1") > 40:
            killed.append(bench.pools["n1"]._children[1].pid)
            os.kill(killed[0], signal.SIGKILL)

    def kill_then_stop() -> None:
        kill()
        if any(message["t"] == "trouble" for _, message in bench.messages):
            bench.stop()

    ranks = {(r["node"], r["gpu"]): r for r in bench.ranks(kill_then_stop)}
    assert (ranks["n1", 1]["state"], ranks["n1", 1]["cause"]) == (ERROR, LOCAL)
    # Whoever lost it reports a peer that went away, never a fault of its own.
    others = [r for place, r in ranks.items() if place != ("n1", 1)]
    assert all(r["state"] in (ERROR, HANG) and r["cause"] in (REMOTE, "") for r in others), others


def test_traffic_that_turns_slow_is_given_up(make_bench: MakeBench) -> None:
    bench = make_bench(2)
    bench.order(bytes=1 << 20, sustain_s=600.0, floor_s=0.1)
    slowed: list[float] = []

    def slow_down() -> None:
        if not slowed and min(bench.steps("n0"), bench.steps("n1")) > 30:
            slowed.append(time.monotonic())
            bench.cluster.hardware("n1", nccl__rate_mbit=1)

    def then_stop() -> None:
        slow_down()
        if any(message["t"] == "trouble" for _, message in bench.messages):
            bench.stop()

    ranks = bench.ranks(then_stop)
    assert slowed
    assert SLOW in {r["state"] for r in ranks}, ranks
    assert all(r["state"] in (SLOW, HANG, ERROR) for r in ranks)


def test_rails_are_communicators_of_their_own(make_bench: MakeBench) -> None:
    bench = make_bench(3, {"n2": {"nccl__wrong_result": "recv"}})
    bench.order(rails=True)
    reports = bench.reports()
    for place, (name, report) in enumerate(sorted(reports.items())):
        assert [(r["rank"], r["gpu"], r["node"]) for r in report["ranks"]] == [(place, 0, name), (place, 1, name)]
    by_gpu = {gpu: [r["ranks"][gpu]["state"] for _, r in sorted(reports.items())] for gpu in (0, 1)}
    # Each rank is its node's first in its communicator, so both rails of the bad node are wrong; sums are over 3 ranks.
    assert by_gpu == {0: [OK, OK, WRONG], 1: [OK, OK, WRONG]}
    bench.order(1)
    assert [r["rank"] for r in bench.ranks()] == list(range(6))


def test_a_bad_rail_leaves_the_others_alone(make_bench: MakeBench) -> None:
    bench = make_bench(2, {"n1": {"gpu__1__cuda_error": 719}})
    bench.order(rails=True)
    stopped: list[int] = []

    def stop() -> None:
        good = [name for name in ("n0", "n1") if (0, "report") in [(gpu, m["t"]) for gpu, m in bench.inbox[name]]]
        if not stopped and len(good) == 2:  # the good rail came to its end by itself
            stopped.append(1)
            bench.stop()

    reports = bench.reports(stop)
    assert [reports[name]["ranks"][0]["state"] for name in ("n0", "n1")] == [OK, OK]
    assert (reports["n1"]["ranks"][1]["state"], reports["n1"]["ranks"][1]["cause"]) == (ERROR, LOCAL)
    assert reports["n0"]["ranks"][1]["state"] in (HANG, ERROR)


def test_workers_start_anew_when_mnnvl_changes(make_bench: MakeBench) -> None:
    bench = make_bench(1)

    def pids() -> list[int]:
        return [child.pid for child in bench.pools["n0"]._children.values()]

    seen: list[int] = []
    for number, mode in enumerate(("off", "on", "on", "")):
        bench.order(number, mnnvl=mode)
        report = bench.reports()["n0"]
        assert [r["state"] for r in report["ranks"]] == [OK, OK]
        assert report["facts"]["mnnvl"] == mode
        assert (pids() == seen) == (number == 2)
        seen = pids()
        assert bench.pools["n0"]._more == ({"NCCL_MNNVL_ENABLE": str(int(mode == "on"))} if mode else {})


def test_what_was_sent_counts_warm_up_and_sustained_traffic(make_bench: MakeBench) -> None:
    bench = make_bench(2, transport="efa")
    for name in bench.cluster.nodes:
        bench.cluster.efa_counters(name, 4)
        bench.cluster.hardware(name, efa=4)
        bench.looks[name] = EfaLook(
            str(bench.cluster.folder / name / "logs"), str(bench.cluster.folder / name / "root")
        )
    bench.order(sustain_s=0.3)
    for name, report in bench.reports().items():
        facts, rank = report["facts"], report["ranks"][0]
        assert rank["state"] == OK
        assert facts["sent_bytes"] == rank["step"] * (1 << 18) * 6 // 4
        # A flat ring sends just that, one that first reduces within the node two thirds; and votes go along.
        assert 0.6 * facts["sent_bytes"] < facts["efa_bytes"] < 1.5 * facts["sent_bytes"], name
        assert facts["retransmits"] is None


@pytest.mark.parametrize(
    ("keys", "cause", "word"),
    [
        ({"nccl__version": 30001}, ENVIRONMENT, "NCCL 3.0.1 is not known"),
        ({"nccl__version": 21402}, ENVIRONMENT, "NCCL 2.14.2 is older than 2.18.0"),
        ({"gpu__0__absent": 1}, LOCAL, "gpu 1 was promised, and the driver shows 1: 0000:64:00.0"),
        ({"driver__missing": 1}, LOCAL, "CUDA_ERROR_NO_DEVICE"),
    ],
    ids=["nccl-3", "nccl-2.14", "gpu-absent", "no-driver"],
)
def test_what_a_node_lacks_is_said_in_words(
    make_bench: MakeBench, keys: dict[str, object], cause: str, word: str
) -> None:
    bench = make_bench(1, {"n0": keys})
    bench.order()
    stopped: list[int] = []

    def stop() -> None:
        if not stopped and any(m["t"] == "trouble" for _, m in bench.messages):
            stopped.append(1)
            bench.stop()

    errors = [r for r in bench.ranks(stop) if r["state"] == ERROR]
    assert errors
    assert {r["cause"] for r in errors} == {cause}
    assert any(word in r["text"] for r in errors), errors
