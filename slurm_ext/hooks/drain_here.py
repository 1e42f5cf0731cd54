"""A prolog that convicts its own node: drain it, and say what becomes of the job. Imported only where a node is convicted."""

from __future__ import annotations

from slurm_ext.config.model import Settings, at_node
from slurm_ext.hooks import act, jobfile, kept_in_use, no_requeue
from slurm_ext.hooks.decide import Plan
from slurm_ext.hooks.environment import HookJob
from slurm_ext.hooks.supervise import FAIL, PASS


def drain(
    job: HookJob, settings: Settings, share: str, plan: Plan, room: str, boot_id: str, bundle: str, gpu: str
) -> tuple[int, bool, str, str]:
    """Return the exit code, whether the job runs here after all, what was done, and what its owner is to read of it.

    `bundle`: where the evidence lies; `gpu`: which GPU the finding is about (proof.gpu_of).
    """
    assert plan.finding is not None, "a node is drained for a finding"
    if job.het:  # a component that fails does not stop the others: the whole job goes back first
        act.requeue(settings, job, reason=plan.reason, rule=plan.rule, room=room)
    first = jobfile.is_first(at_node(settings.site.run_dir, job.node), boot_id)
    done = act.drain(
        settings,
        job,
        job.node,
        plan.finding,
        room=room,
        boot_id=boot_id,
        first_boot=first,
        bundle=bundle,
        gpu=gpu,
    )
    if done.done:
        # Slurm requeues the job of a prolog that fails, also one that its owner has cancelled (seen on 22.05.8).
        if over := act.ended(settings, job):
            return PASS, False, f"{done.words()}; the job is {act.OVER} {over}", ""
        if said := no_requeue.end_for_good(settings, job, reason=plan.reason, rule=plan.rule, room=room):
            return PASS, False, f"{done.words()}; {said}", ""
        return FAIL, False, done.words(), ""
    if done.acked:
        return PASS, True, f"passed: {done.reason}", ""
    if not done.suppressed:
        act.exit_drains(settings, job, plan.finding, room=room, boot_id=boot_id, bundle=bundle, gpu=gpu)
        return FAIL, False, f"exit 1, by which Slurm drains it later: {done.reason}", ""
    runs, note, said = kept_in_use.settle(job, settings, share, plan, room, done)
    return PASS, runs, note, said
