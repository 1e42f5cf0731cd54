"""What the hooks of one attempt tell one another over the share: that it ends here, and who drains whom."""

from __future__ import annotations

import time

from slurm_ext import shared
from slurm_ext.hooks.environment import HookJob


def drain_mark(share: str, job: HookJob, node: str) -> str:
    """Return the path of the file by which one hook claims the drain of a node for an attempt."""
    return shared.attempt_path(share, job.attempt, f"drain-{node}.json")


def claim_drain(share: str, job: HookJob, node: str) -> str:
    """Return who drains `node` for this attempt: this node if it is the first to say so; empty where the share is silent."""
    won = shared.decide_once(drain_mark(share, job, node), {"schema": 1, "by": job.node, "time": time.time()})
    return str(won.get("by", "")) if won is not None else ""


def tell_partners(share: str, job: HookJob, reason: str) -> None:
    """Say that this attempt ends here, so that innocent nodes wait for nobody."""
    path = shared.attempt_path(share, job.attempt, shared.STOPPED_FILE)
    shared.decide_once(path, {"schema": 1, "node": job.node, "time": time.time(), "reason": reason})


def stopped(share: str, job: HookJob) -> str:
    """Return which node ended this attempt and why, or nothing."""
    found = shared.read_json(shared.attempt_path(share, job.attempt, shared.STOPPED_FILE), timeout_s=1.0)
    return f"{found.get('node')}: {found.get('reason')}" if found else ""
