"""One node's part of a round, without processes: what it asks of its workers and what it tells the leader."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slurm_ext.burnin.model import ERROR, HANG, LOCAL, OK, rank_from, shortened
from slurm_ext.burnin.station import Station


class Hands:
    """Workers that do as they are told and remember it."""

    def __init__(self) -> None:
        self.living: set[int] = {0, 1}
        self.orders: list[tuple[int, str, int]] = []
        self.started: list[int] = []
        self.undead: dict[int, str] = {}

    def alive(self, gpu: int) -> bool:
        return gpu in self.living

    def leaving(self, gpu: int) -> str:
        return self.undead.get(gpu, "")

    def start(self, gpu: int) -> None:
        assert gpu not in self.undead
        self.living.add(gpu)
        self.started.append(gpu)

    def order(self, gpu: int, message: Mapping[str, Any]) -> None:
        assert gpu in self.living
        self.orders.append((gpu, message["t"], message["round"]))

    def kill(self, gpu: int) -> None:
        self.living.discard(gpu)


def round_of(number: int) -> dict[str, Any]:
    order = {"t": "round", "round": number, "base": 0, "ranks": 2, "root": True, "bytes": 4, "iterations": 1}
    return {**order, "floor_s": 0.0, "limit_s": 5.0}


def report(number: int, state: str) -> dict[str, Any]:
    return {"t": "report", "round": number, "state": state, "cause": "remote" if state == ERROR else "", "phase": "run"}


def test_a_worker_that_reported_an_error_has_no_part_in_the_next_round() -> None:
    hands, told = Hands(), []
    station = Station("n1", 2, hands, told.append, abort_s=1.0)
    station.on_order(round_of(0), 0.0)
    station.on_worker(0, report(0, ERROR), 0.1)  # its peer died; it ends by itself, and nobody has seen that yet
    station.on_worker(1, report(0, OK), 0.1)
    assert [row["state"] for row in told[-1]["ranks"]] == [ERROR, OK]
    station.on_order(round_of(1), 0.2)
    assert hands.started == [0]
    station.on_worker(0, report(1, OK), 0.3)
    station.on_worker(1, report(1, OK), 0.3)
    assert [row["state"] for row in told[-1]["ranks"]] == [OK, OK]


def test_a_worker_that_ends_in_a_round_is_an_error_of_this_node() -> None:
    hands, told = Hands(), []
    station = Station("n1", 2, hands, told.append, abort_s=1.0)
    station.on_order(round_of(0), 0.0)
    station.on_worker_ended(1, "its process was killed by signal 9", 0.1)
    station.on_worker(0, report(0, OK), 0.1)
    assert [(row["state"], row["cause"]) for row in told[-1]["ranks"]] == [(OK, ""), (ERROR, LOCAL)]


def stuck_in_round_0() -> tuple[Hands, list[Mapping[str, Any]], Station]:
    """A station whose GPU 1 was killed in its first round and is in D state since then."""
    hands, told = Hands(), []
    station = Station("n1", 2, hands, told.append, abort_s=1.0)
    station.on_order(round_of(0), 0.0)
    station.on_worker(1, {"t": "phase", "phase": "run", "step": 3}, 0.1)
    station.on_worker(0, report(0, OK), 0.1)
    station.on_order({"t": "stop", "round": 0}, 1.0)
    hands.undead[1] = "D"
    station.tick(2.0)
    assert [(row["state"], row["phase"]) for row in told[-1]["ranks"]] == [(OK, "run"), (HANG, "run")]
    return hands, told, station


def test_no_worker_is_started_beside_one_that_cannot_end_and_its_gpu_is_reported() -> None:
    hands, told, station = stuck_in_round_0()
    for number in (1, 2):
        began = 10.0 * number
        station.on_order(round_of(number), began)
        assert hands.orders[-1] == (0, "round", number)
        station.tick(began + 1.9)
        assert told[-1]["t"] == "report"
        station.tick(began + 2.0)  # long before the round's own limit
        assert told[-1] == {"t": "trouble", "round": number}
        station.on_order({"t": "stop", "round": number}, began + 2.3)
        assert hands.orders[-1] == (0, "stop", number)
        station.on_worker(0, report(number, HANG) | {"phase": "init"}, began + 2.4)
        rows = told[-1]["ranks"]
        assert [(row["state"], row["phase"]) for row in rows] == [(HANG, "init"), (HANG, "start")]
        assert "run 3" in rows[1]["text"]
        assert not station.busy
    assert hands.started == []


def test_a_worker_whose_predecessor_ends_late_gets_its_orders_then() -> None:
    hands, told, station = stuck_in_round_0()
    station.on_order(round_of(1), 2.0)
    station.on_order({"t": "id", "round": 1, "id": "00"}, 2.1)
    del hands.undead[1]
    station.tick(2.2)
    assert hands.started == [1]
    assert [(kind, number) for gpu, kind, number in hands.orders[-2:] if gpu == 1] == [("round", 1), ("id", 1)]
    for gpu in (0, 1):
        station.on_worker(gpu, report(1, OK), 2.3)
    assert [row["state"] for row in told[-1]["ranks"]] == [OK, OK]


def test_one_that_is_only_slow_to_end_gets_more_time() -> None:
    hands, told, station = stuck_in_round_0()
    hands.undead[1] = "R"
    station.on_order(round_of(1), 2.0)
    station.tick(5.9)
    assert told[-1]["t"] == "report"
    station.tick(6.0)
    assert told[-1]["t"] == "trouble"


def test_a_round_that_is_stopped_waits_for_no_worker_that_never_began() -> None:
    hands, told, station = stuck_in_round_0()
    station.on_order(round_of(1), 2.0)
    station.on_worker(0, report(1, OK), 2.1)
    station.on_order({"t": "stop", "round": 1}, 2.2)
    assert [row["state"] for row in told[-1]["ranks"]] == [OK, HANG]
    station.abandon()
    del hands.undead[1]
    station.tick(2.3)
    assert hands.started == [1]


def test_in_a_round_of_rails_each_gpu_tells_its_network_devices() -> None:
    hands, told = Hands(), []
    station = Station("n1", 2, hands, told.append, abort_s=1.0, nics=lambda pci: (f"by {pci}",))
    station.on_order(round_of(0), 0.0)
    for gpu in (0, 1):
        station.on_worker(gpu, {**report(0, OK), "pci": f"0000:5{gpu}:00.0", "nics": ["of its own"]}, 0.1)
    assert [row["nics"] for row in told[-1]["ranks"]] == [(), ()], "nobody asks for them in other rounds"
    station.on_order({**round_of(1), "rails": True}, 0.2)
    station.on_worker(0, {**report(1, OK), "pci": "0000:50:00.0"}, 0.3)
    station.on_worker_ended(1, "signal 9", 0.3)
    rows = told[-1]["ranks"]
    assert [row["nics"] for row in rows] == [("by 0000:50:00.0",), ("by 0000:51:00.0",)], "known from an earlier round"
    sent = json.loads(json.dumps([shortened(row) for row in rows]))
    assert [rank_from(row, "n1").nics for row in sent] == [("by 0000:50:00.0",), ("by 0000:51:00.0",)]
