"""How many nodes may go, and how a job is stopped: tables."""

from __future__ import annotations

import pytest

from slurm_ext.config.model import Drain, Settings
from slurm_ext.config.modes import Heartbeat
from slurm_ext.slurm.breaker import (
    FIRST_BOOT,
    HOURLY,
    Entry,
    choose_stop,
    drain_limit,
    drained_lately,
    fleet_size,
    is_slurms_own,
    judge_drain,
)
from slurm_ext.slurm.model import Node

TWO = (Entry("n1", 10.0), Entry("n2", 11.0))
BOOTED = (Entry("b1", 1.0, FIRST_BOOT), Entry("b2", 2.0, FIRST_BOOT))


@pytest.mark.parametrize(
    ("nodes", "first_boot", "limit"), [(4, False, 2), (8, True, 4), (199, False, 2), (300, False, 3), (1000, True, 12)]
)
def test_limit(nodes: int, first_boot: bool, limit: int) -> None:
    assert drain_limit(Drain(), nodes, first_boot=first_boot) == limit


@pytest.mark.parametrize(
    ("ledger", "node", "first_boot", "allowed", "budget"),
    [
        ((), "n1", False, True, HOURLY),
        (TWO[:1], "n2", False, True, HOURLY),
        (TWO, "n3", False, False, ""),
        (TWO, "n2", False, True, HOURLY),  # its own entry does not stand against it
        ((Entry("n1", 1.0), Entry("n1", 2.0)), "n3", False, True, HOURLY),  # one node, twice
        ((Entry("n1", 1.0), Entry("n2", 3_599.9)), "n3", False, False, ""),
        ((Entry("n1", 1.0), Entry("n2", 3_600.0)), "n3", False, True, HOURLY),  # the hour is over
        ((Entry("n1", -9_000.0), Entry("n2", -1.0)), "n3", False, False, ""),  # from the future: it counts
        (None, "n1", False, False, ""),
        (None, "n1", True, False, ""),
        # New nodes have a budget of their own, neither counts against the other.
        (TWO, "n3", True, True, FIRST_BOOT),
        ((*TWO, *BOOTED[:1]), "n3", True, True, FIRST_BOOT),
        ((*TWO, *BOOTED), "n3", True, False, ""),
        (BOOTED, "n3", True, True, HOURLY),  # used up: then the hour's
        (BOOTED, "n3", False, True, HOURLY),
        ((*BOOTED, *TWO[:1]), "n3", False, True, HOURLY),
        # A node in both counts once.
        ((Entry("n1", 1.0, FIRST_BOOT), Entry("n1", 2.0), Entry("n2", 1.0)), "n3", False, False, ""),
        ((Entry("n1", 1.0, FIRST_BOOT), Entry("n1", 2.0), Entry("b2", 1.0, FIRST_BOOT)), "n3", True, True, FIRST_BOOT),
    ],
)
def test_judge_drain(ledger: tuple[Entry, ...] | None, node: str, first_boot: bool, allowed: bool, budget: str) -> None:
    ruling = judge_drain(ledger, node, drain=Drain(), nodes=8, first_boot=first_boot)
    assert (ruling.allowed, ruling.budget) == (allowed, budget)
    assert ruling.reason
    assert (ruling.limit == -1) == (ledger is None)


def test_what_slurm_says_was_drained_counts_though_the_ledger_lost_it() -> None:
    assert judge_drain((), "n3", drain=Drain(), nodes=8, also=("n1",)).allowed
    assert not judge_drain((), "n3", drain=Drain(), nodes=8, also=("n1", "n2")).allowed
    assert not judge_drain(TWO[:1], "n3", drain=Drain(), nodes=8, also=("n2",)).allowed
    assert judge_drain(TWO[:1], "n3", drain=Drain(), nodes=8, also=("n1", "n3")).allowed
    assert judge_drain(BOOTED, "n3", drain=Drain(), nodes=8, also=("b1", "b2")).allowed


def drained(name: str, reason: str, at: int, *flags: str) -> Node:
    return Node(name, "IDLE", flags or ("DRAIN",), reason, reason_time=at)


def test_drained_lately_are_our_own_of_the_last_hour() -> None:
    nodes = [
        drained("a", "fmslurm: gpu.lost gpu:1: x", 9_000),
        drained("b", "fmslurm: gpu.lost gpu:1: x", 5_000),
        drained("c", "ticket 4711", 9_000),
        drained("d", "fmslurm: node.manual node: noise (by ada)", 9_000),
        drained("e", "fmslurm: gpu.lost gpu:1: x", 9_000, "CLOUD"),
        drained("f", "fmslurm: gpu.lost gpu:1: x", 11_000),  # the controller's clock is ahead
    ]
    assert drained_lately(nodes, now=10_000.0) == {"a", "f"}


def test_a_clouds_spare_names_are_no_part_of_the_fleet() -> None:
    nodes = [
        Node("a", "IDLE"),
        Node("b", "IDLE", ("CLOUD",)),
        Node("c", "IDLE", ("CLOUD", "POWERED_DOWN")),
        Node("d", "IDLE", ("POWERING_DOWN",)),
        Node("e", "FUTURE"),
        Node("f", "DOWN", ("DRAIN",)),
    ]
    assert fleet_size(nodes) == 3


@pytest.mark.parametrize(
    ("beat", "restarts", "used_up", "how"),
    [
        (Heartbeat(100.0, "enforce"), 0, "pass", "requeuehold"),
        (Heartbeat(100.0, "shadow"), 0, "pass", "requeue"),
        (Heartbeat(1.0, "enforce"), 0, "pass", "requeue"),
        (None, 4, "pass", "requeue"),
        (None, 5, "pass", "pass"),
        (None, 5, "hold", "requeuehold"),
    ],
)
def test_choose_stop(beat: Heartbeat | None, restarts: int, used_up: str, how: str) -> None:
    assert choose_stop(beat, restarts, Settings(), limit=5, when_used_up=used_up, now=110.0)[0] == how


@pytest.mark.parametrize(
    ("reason", "own"),
    [
        ("", True),
        ("Not responding", True),
        ("Low RealMemory (reported:1)", True),
        ("fan broken", False),
        ("fmslurm: x", False),
    ],
)
def test_slurms_own_reasons(reason: str, own: bool) -> None:
    assert is_slurms_own(reason) == own
