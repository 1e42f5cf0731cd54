"""May one more node be taken out, and how is a job stopped? Pure: the ledger, the clock and the heartbeat come in as arguments.

Standard library only: hooks import this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from slurm_ext.config.model import Drain, Settings
from slurm_ext.config.modes import Heartbeat, heartbeat_is_fresh
from slurm_ext.shared import Drain as LedgerEntry

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


class Ruling(NamedTuple):
    """Whether it may be done, and why in words."""

    allowed: bool
    reason: str


def drain_limit(drain: Drain, nodes: int, *, first_boot: bool = False) -> int:
    """Return how many nodes may be drained in an hour: the larger of the two limits, more for a node that just booted."""
    share = math.floor(nodes * drain.max_percent_per_hour / 100)
    return max(drain.max_per_hour, share) + (drain.first_boot_budget if first_boot else 0)


def judge_drain(
    ledger: Iterable[LedgerEntry] | None,
    node: str,
    *,
    drain: Drain,
    nodes: int,
    first_boot: bool = False,
    upto: float = math.inf,
) -> Ruling:
    """Say whether `node` may be drained, given the ledger's last hour and the number of nodes of the cluster.

    Each other node counts once. `upto` (epoch seconds) counts only what was entered before our own entry, so that of many
    who ask at once the first few win. A ledger that cannot be read (None) allows nothing.
    """
    if ledger is None:
        return Ruling(False, "the ledger of drains cannot be read, so nothing is drained")
    before = {entry.node for entry in ledger if entry.node != node and (entry.time, entry.node) < (upto, node)}
    limit = drain_limit(drain, nodes, first_boot=first_boot)
    if len(before) >= limit:
        names = ", ".join(sorted(before)[:5])
        return Ruling(False, f"{len(before)} nodes were drained within the hour ({names}), {limit} are allowed")
    return Ruling(True, f"{len(before)} of {limit} drains of this hour are used")


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
