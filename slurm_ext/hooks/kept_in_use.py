"""A convicted node that stays in use: the breaker is open, or somebody else has it in hand. What becomes of the job that came to it?

Imported only by a prolog that acts. The choices are in docs/decisions/0015.
"""

from __future__ import annotations

from slurm_ext.config.model import Settings
from slurm_ext.hooks import act, marks, no_requeue
from slurm_ext.hooks.decide import Plan
from slurm_ext.hooks.environment import HookJob
from slurm_ext.verdict import one_line


def settle(
    job: HookJob, settings: Settings, share: str, plan: Plan, room: str, done: act.Done
) -> tuple[bool, str, str]:
    """Send the job back without this node, or let it run here, as `drain.when_open` says.

    Return whether it runs here, what was done, and what its owner is to read (empty where it does not run here).
    """
    when_open = settings.drain.when_open
    if when_open == "pass" and not done.in_hand:
        why = f"not drained: {done.reason}"
        return True, f"passed, since it was {why}", _tell(job, share, plan, "drain.when_open is pass")
    policy = "hold" if when_open == "hold" else "pass"
    reason = f"{plan.reason}; not drained: {done.reason}"
    # Said before it is stopped: whoever finds the job back must know.
    marks.suspect(share, job, job.node, policy="hold" if when_open == "hold" else "requeue", why=reason)
    stopped = act.stop_job(settings, job, reason=reason, rule=plan.rule, room=room, policy=policy)
    if stopped.done:
        without = {job.node, *marks.suspects(share, job)}
        away = act.leave_out(settings, job, without, reason=reason, rule=plan.rule, room=room)
        return False, f"job sent back, {away}, not drained: {done.reason}", ""
    never = "" if stopped.suppressed else no_requeue.why_not(settings, job)
    if never and when_open == "cancel":
        ended = no_requeue.cancel(settings, job, reason=f"{reason}; {never}", rule=plan.rule, room=room)
        if ended.done:
            return False, f"job cancelled, since {never}; not drained: {done.reason}", ""
        never = f"{never}, and it was not cancelled: {ended.reason}"
    why = never or f"it could not be sent back: {stopped.reason}"
    return True, f"job passed ({why}), not drained: {done.reason}", _tell(job, share, plan, why)


def _tell(job: HookJob, share: str, plan: Plan, why: str) -> str:
    """Say that the job runs on a convicted node, for `fmslurm why`; return the line for its log."""
    said = f"NOT WELL: {job.node} is convicted and runs this job all the same: {plan.reason}; {why}"
    marks.runs_on_bad(share, job, job.node, reason=plan.reason, why=why)
    return one_line(said, 400)
