"""One node's part of a round, without processes: what it asks of its workers and what it tells the leader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_ext.burnin.model import ERROR, LOCAL, OK
from slurm_ext.burnin.station import Station


class Hands:
    """Workers that do as they are told and remember it."""

    def __init__(self) -> None:
        self.living: set[int] = {0, 1}
        self.orders: list[tuple[int, str, int]] = []
        self.started: list[int] = []

    def alive(self, gpu: int) -> bool:
        return gpu in self.living

    def start(self, gpu: int) -> None:
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
