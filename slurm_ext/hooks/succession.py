"""Who acts for a job when several hooks could: one after the other, and each only where the one before did not.

What is done twice all the same (the one before was only slow) is done once in Slurm: a requeue names the restart count that
it ends, and a drain leaves a drained node as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from slurm_ext import shared
from slurm_ext.config.model import Settings
from slurm_ext.hooks import decide, marks
from slurm_ext.hooks.decide import Plan
from slurm_ext.hooks.environment import HookJob
from slurm_ext.verdict import PASS, WARN, Verdict

T = TypeVar("T")

#: How long (seconds) the first to act waits for a convicted partner to act for itself.
SELF_ACT_S = 3.0

#: A file on a share has no event that could be awaited; a look costs a child (seconds).
LOOK_EVERY_S = 0.2


def stop(job: HookJob, settings: Settings, share: str, plan: Plan, room: str) -> tuple[bool, str]:
    """Send the job back unless another node has, or has let it go; return whether it runs after all, and what was done.

    No hook of the job's actors returns before one of them has acted: a job whose leader died would start.
    """
    said = _until(lambda: marks.word(share, job), plan.rank * decide.TAKE_OVER_S)
    if said is not None:
        return not said.ends, f"{'stopped' if said.ends else 'let go'} by {said.by}: {said.reason}"
    if plan.rank > 0 and (passed := _passed_elsewhere(job, share)):
        return True, passed
    from slurm_ext.hooks import act

    done = act.stop_job(settings, job, reason=plan.reason, rule=plan.rule, room=room, policy=plan.used_up)
    if not done.done:
        if done.suppressed:  # where Slurm did not answer here, it may answer the next
            marks.let_go(share, job, f"not stopped: {done.reason}")
        return True, f"passed, since it was not stopped: {done.reason}"
    marks.tell_partners(share, job, plan.reason, rule=plan.rule, policy=plan.policy, suspects=plan.suspects)
    return False, f"job {done.reason}" if done.reason.startswith(act.OVER) else "job sent back"


def _passed_elsewhere(job: HookJob, share: str) -> str:
    """Return in words that the job passed where it was led, though nothing of it came here; else nothing."""
    found = shared.read_json(shared.attempt_path(share, job.attempt, shared.BURNIN_FILE)) or {}
    if found.get("verdict") not in (PASS, WARN):
        return ""
    return f"the burn-in passed, as {found.get('node')} says, though its end was not heard here"


def stand_in(job: HookJob, settings: Settings, share: str, found: Verdict, culprits: tuple[str, ...], rank: int) -> str:
    """Act for convicted partners that do not: drain them, send the job back. Return what was done, or nothing.

    `rank` is this node's place among those that may.
    """

    def settled() -> tuple[str, ...] | None:
        left = marks.not_acted(share, job, culprits)
        return () if left is None else None if left else ()

    if _until(settled, SELF_ACT_S + rank * decide.TAKE_OVER_S) is not None:
        return ""
    silent = marks.not_acted(share, job, culprits) or ()
    if not silent:
        return ""
    from slurm_ext.hooks import acked, act

    # A culprit that a person keeps in use starts the job, however late its own hook says so.
    known = [node for node in silent if acked.of(decide.finding_about(found, node), share, node, time.time())]
    silent = tuple(node for node in silent if node not in known)
    if not silent:
        return f"{', '.join(known)} convicted and acknowledged"

    for node in silent:
        marks.claim_drain(share, job, node)  # whoever holds it: it came to nothing
        act.drain(settings, job, node, decide.finding_about(found, node), room="burnin", exits=False)
    reason = f"{', '.join(silent)} convicted and silent: {found.reason}"
    done = act.requeue(settings, job, reason=reason, rule=found.rule, room="burnin")
    if done.done:  # where Slurm did not answer here, it may answer the next
        marks.tell_partners(share, job, reason, rule=found.rule, policy="requeue", suspects=silent)
        for node in silent:
            marks.say_acted(share, job, node, "drained by another")
    return f"acted for {', '.join(silent)}: {done.reason}"


def _until(look: Callable[[], T | None], wait_s: float) -> T | None:
    """Look at once and then again until there is something, for `wait_s` seconds at most."""
    give_up = time.monotonic() + wait_s
    while (found := look()) is None and time.monotonic() < give_up:
        time.sleep(LOOK_EVERY_S)
    return found
