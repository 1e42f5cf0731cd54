"""What the hooks of one attempt tell one another over the share: that it ends here or goes on, and who drains whom.

The controller reads `stopped.json`, too: `policy` says whether a job that it finds held is to be let go at once (requeue) or
only when its hold expires (hold), `suspects` which nodes it is to be kept away from.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from slurm_ext import shared
from slurm_ext.hooks.environment import HookJob
from slurm_ext.typed import NamedTuple

#: That an attempt goes on although its burn-in did not pass; beside shared.STOPPED_FILE, which says that it does not.
SETTLED_FILE = "settled.json"


class Word(NamedTuple):
    """What was said of an attempt: that it `ends` here, or goes on all the same; by whom and why."""

    ends: bool
    by: str
    reason: str


def drain_mark(share: str, job: HookJob, node: str) -> str:
    """Return the path of the file by which one hook claims the drain of a node for an attempt."""
    return shared.attempt_path(share, job.attempt, f"drain-{node}.json")


def claim_drain(share: str, job: HookJob, node: str) -> str:
    """Return who drains `node` for this attempt: this node if it is the first to say so; empty where the share is silent."""
    won = shared.decide_once(drain_mark(share, job, node), {"schema": 1, "by": job.node, "time": time.time()})
    return str(won.get("by", "")) if won is not None else ""


def say_acted(share: str, job: HookJob, node: str, what: str) -> None:
    """Say that what a convicted node is due has been done, by itself or by another: nobody needs to stand in for it."""
    path = shared.attempt_path(share, job.attempt, f"acted-{node}.json")
    shared.decide_once(path, {"schema": 1, "by": job.node, "time": time.time(), "what": what})


def not_acted(share: str, job: HookJob, nodes: Collection[str]) -> tuple[str, ...] | None:
    """Return those of `nodes` that nobody has acted for yet, None where the share is silent."""
    there = shared.attempt_names(share, job.attempt, timeout_s=1.0)
    return None if there is None else tuple(node for node in nodes if f"acted-{node}.json" not in there)


def tell_partners(
    share: str, job: HookJob, reason: str, *, rule: str = "", policy: str = "", suspects: Collection[str] = ()
) -> None:
    """Say that this attempt ends here, so that innocent nodes wait for nobody.

    A job that is just being sent back looks to the controller like one that was ended from outside, and it may have said so
    already. It knows nothing of why, and by a mark of its own it would release no job that we hold: ours takes its place.
    """
    path = shared.attempt_path(share, job.attempt, shared.STOPPED_FILE)
    mark = {"schema": 1, "node": job.node, "time": time.time(), "reason": reason, "rule": rule}
    mark |= {"policy": policy, "suspects": list(suspects)}
    won = shared.decide_once(path, mark)
    if won is not None and won.get("by") == shared.BY_CONTROLLER:
        shared.write_json(path, mark)


def suspect(share: str, job: HookJob, node: str, *, policy: str, why: str) -> None:
    """Say that this attempt's job is to come back without `node`, which is convicted and stays in use. One file for each, since
    many nodes of a job may say so in one moment; `policy` is what the site wants of such a job (requeue, hold)."""
    path = shared.attempt_path(share, job.attempt, f"{shared.SUSPECT_PREFIX}{node}.json")
    mark = {"schema": 1, "node": node, "time": time.time(), "policy": policy, "reason": why}
    shared.decide_once(path, mark)


def suspects(share: str, job: HookJob) -> tuple[str, ...]:
    """Return the nodes that this attempt's job is to come back without, so far."""
    return shared.suspects_in(shared.attempt_names(share, job.attempt, timeout_s=1.0) or ())


def runs_on_bad(share: str, job: HookJob, node: str, *, reason: str, why: str) -> None:
    """Say that this attempt runs on `node`, which is convicted, and why it does: its owner is to be told (`fmslurm why`)."""
    path = shared.attempt_path(share, job.attempt, f"{shared.BAD_PREFIX}{node}.json")
    shared.decide_once(path, {"schema": 1, "node": node, "time": time.time(), "reason": reason, "why": why})


def let_go(share: str, job: HookJob, reason: str) -> bool:
    """Say that this attempt goes on without a burn-in that passed, so that nobody waits for it or stops it; say if it is said."""
    path = shared.attempt_path(share, job.attempt, SETTLED_FILE)
    mark = {"schema": 1, "node": job.node, "time": time.time(), "reason": reason}
    return shared.decide_once(path, mark) is not None


def word(share: str, job: HookJob) -> Word | None:
    """Return what was said of this attempt, None where nothing was, or the share is silent."""
    there = shared.attempt_names(share, job.attempt, timeout_s=1.0)
    for name in (shared.STOPPED_FILE, SETTLED_FILE):
        if there and name in there:
            found = shared.read_json(shared.attempt_path(share, job.attempt, name), timeout_s=1.0)
            if found:
                return Word(name == shared.STOPPED_FILE, str(found.get("node")), str(found.get("reason")))
    return None
