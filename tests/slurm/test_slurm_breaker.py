"""How many nodes may go, and how a job is stopped: tables."""

from __future__ import annotations

import pytest

from slurm_ext.config.model import Drain, Settings
from slurm_ext.config.modes import Heartbeat
from slurm_ext.shared import Drain as Entry
from slurm_ext.slurm.breaker import choose_stop, drain_limit, is_slurms_own, judge_drain

TWO = (Entry(10.0, "n1"), Entry(11.0, "n2"))


@pytest.mark.parametrize(
    ("nodes", "first_boot", "limit"), [(4, False, 2), (8, True, 4), (199, False, 2), (300, False, 3), (1000, True, 12)]
)
def test_limit(nodes: int, first_boot: bool, limit: int) -> None:
    assert drain_limit(Drain(), nodes, first_boot=first_boot) == limit


@pytest.mark.parametrize(
    ("ledger", "node", "allowed"),
    [
        ((), "n1", True),
        (TWO[:1], "n2", True),
        (TWO, "n3", False),
        (TWO, "n2", True),  # its own entry does not stand against it
        ((Entry(1.0, "n1"), Entry(2.0, "n1")), "n3", True),  # one node, twice
        (None, "n1", False),
    ],
)
def test_judge_drain(ledger: tuple[Entry, ...] | None, node: str, allowed: bool) -> None:
    ruling = judge_drain(ledger, node, drain=Drain(), nodes=8)
    assert ruling.allowed == allowed
    assert ruling.reason


def test_of_many_at_once_the_first_win() -> None:
    # Everybody has entered a line before anybody looks again.
    ledger = tuple(Entry(float(number // 2), f"n{number}") for number in range(10))
    won = [
        entry.node
        for entry in ledger
        if judge_drain(ledger, entry.node, drain=Drain(), nodes=10, upto=entry.time).allowed
    ]
    assert won == ["n0", "n1"]


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
