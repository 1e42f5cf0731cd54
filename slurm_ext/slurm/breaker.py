"""May one more node be taken out, and how is a job stopped? Pure: the ledger, the clock and the heartbeat come in as arguments.

Standard library only: hooks import this.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from slurm_ext.config.model import Drain, Settings
from slurm_ext.config.modes import Heartbeat, heartbeat_is_fresh
from slurm_ext.slurm.model import Node
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import REASON_PREFIX

#: The finding of a drain that a person asked for, and how the reason of such a drain begins.
MANUAL = "node.manual"
MANUAL_PREFIX = f"{REASON_PREFIX}{MANUAL} "

NO_LEDGER = "the ledger of drains cannot be read, so nothing is drained"

#: Reasons that Slurm's daemons set by themselves (read in slurmctld and slurmd 22.05 to 26.05); nobody's decision.
SLURM_REASONS = (
    "Not responding",
    "Node unexpectedly rebooted",
    "Node silently failed and came back",
    "Prolog error",
    "Epilog error",
    "Kill task failed",
    "batch job complete failure",
    "Duplicate jobid",
    "ResumeTimeout reached",
    "Low ",
    "gres/",
    "Invalid argument",
)


#: Drains of the last so many seconds count.
WINDOW_S = 3_600.0

#: The two budgets that a drain may be taken from.
HOURLY, FIRST_BOOT = "hourly", "first-boot"

#: Flags of nodes that are not there at all just now: a cloud's spare names are no part of the fleet that 1 % is taken of.
_NOT_THERE = frozenset(("POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "FUTURE", "DYNAMIC_FUTURE"))


class Entry(NamedTuple):
    """One drain in the ledger: of which node, how long ago by the share's own clock, and from which budget.

    `number` is its place in the ledger, `time` (seconds since the epoch) what the clock of the node that wrote it said.
    """

    node: str
    age_s: float
    budget: str = HOURLY
    number: int = 0
    time: float = 0.0


class Ruling(NamedTuple):
    """Whether it may be done, why in words, from which budget it is taken, and how many an hour are allowed (-1: not known,
    since there is no ledger)."""

    allowed: bool
    reason: str
    budget: str = ""
    limit: int = -1


def drain_limit(drain: Drain, nodes: int, *, first_boot: bool = False) -> int:
    """Return how many nodes may be drained in an hour: the larger of the two limits, more for a node that just booted."""
    share = math.floor(nodes * drain.max_percent_per_hour / 100)
    return max(drain.max_per_hour, share) + (drain.first_boot_budget if first_boot else 0)


def fleet_size(nodes: Iterable[Node]) -> int:
    """Return how many nodes there are that `drain.max_percent_per_hour` is a part of: those that are powered on."""
    return sum(1 for node in nodes if node.state != "FUTURE" and not _NOT_THERE.intersection(node.flags))


def drained_lately(nodes: Iterable[Node], *, now: float) -> frozenset[str]:
    """Return the nodes that Slurm says we drained within the hour: a second witness, should the ledger have lost something.

    What a person asked for does not count.
    """
    return frozenset(
        node.name
        for node in nodes
        if node.drained
        and node.reason.startswith(REASON_PREFIX)
        and not node.reason.startswith(MANUAL_PREFIX)
        and abs(now - node.reason_time) < WINDOW_S
    )


def hourly(ledger: Iterable[Entry], also: Collection[str] = (), *, but: str = "") -> tuple[set[str], set[str]]:
    """Return the nodes whose drains count for the hour, and those drained at their first job since boot; `but` is left out.

    `also` names nodes that were drained though the ledger need not say so.
    """
    others = [entry for entry in ledger if entry.node != but and entry.age_s < WINDOW_S]
    counted = {entry.node for entry in others if entry.budget != FIRST_BOOT}
    booted = {entry.node for entry in others} - counted
    return counted | (set(also) - booted - {but}), booted


def judge_drain(
    ledger: Iterable[Entry] | None,
    node: str,
    *,
    drain: Drain,
    nodes: int,
    first_boot: bool = False,
    also: Collection[str] = (),
) -> Ruling:
    """Say whether `node` may be drained, given the ledger and the number of nodes of the cluster.

    Each other node of the last hour counts once. A node that fails at its first job since boot takes from a budget of its
    own, and when that is used up from the hour's. `also` names nodes that were drained though the ledger need not say so. A
    ledger that cannot be read (None) allows nothing.
    """
    if ledger is None:
        return Ruling(False, NO_LEDGER)
    counted, booted = hourly(ledger, also, but=node)
    limit = drain_limit(drain, nodes)
    if first_boot and len(booted) < drain.first_boot_budget:
        used = f"{len(booted)} of {drain.first_boot_budget}"
        return Ruling(True, f"{used} drains of nodes at their first job since boot are used", FIRST_BOOT, limit)
    if len(counted) >= limit:
        names = ", ".join(sorted(counted)[:5])
        beside = f", and {len(booted)} at their first job since boot" if booted else ""
        return Ruling(
            False,
            f"{len(counted)} nodes were drained within the hour ({names}){beside}, {limit} are allowed",
            "",
            limit,
        )
    return Ruling(True, f"{len(counted)} of {limit} drains of this hour are used", HOURLY, limit)


def is_slurms_own(reason: str) -> bool:
    """Say whether a reason is one that Slurm's daemons set by themselves."""
    return not reason or reason.startswith(SLURM_REASONS)


def choose_stop(
    heartbeat: Heartbeat | None, restarts: int, settings: Settings, *, limit: int, when_used_up: str, now: float
) -> tuple[str, str]:
    """Return (`requeuehold`, `requeue` or `pass`, why): how to stop a job that no node is convicted for.

    Held only where a controller is alive and enforces, since nobody else would release it; else requeued plainly, at
    most `limit` times, after which the site's word decides (`when_used_up`: pass or hold).
    """
    if heartbeat_is_fresh(heartbeat, now=now) and heartbeat is not None and heartbeat.mode == "enforce":
        return "requeuehold", "the controller is alive and will release it"
    if restarts < limit:
        return "requeue", f"no controller would release it, and it was requeued {restarts} of {limit} times"
    if when_used_up == "hold":
        return "requeuehold", f"it was requeued {restarts} times, and the site wants it held then"
    return "pass", f"it was requeued {restarts} times, and the site wants it to run then"
