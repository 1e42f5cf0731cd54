"""Where a job starts from and what its tasks are told: the same step on every node, decided once on the share."""

from __future__ import annotations

import os

from slurm_ext import shared
from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import FmslurmError
from slurm_ext.hooks.environment import HookJob

#: How long (seconds) a user's file system may take to say what lies there.
LOOK_S = 5.0


def exports(job: HookJob, settings: Settings, *, share: str, staging_mode: str) -> tuple[dict[str, str], list[str]]:
    """Return the job's FMSLURM_* variables and lines for its log. Never raises: what is not known is not exported."""
    told = {"FMSLURM_RUN_ID": job.run, "FMSLURM_ATTEMPT": job.attempt}
    if job.request is None or job.request.off or job.uid < 0:
        return told, []
    lines: list[str] = []
    # Imported here: most jobs never ask, and these cost as much as the rest of the hook.
    from slurm_ext.staging import find

    if staging_mode != "off":
        nvme = _nvme(job, settings)
        if nvme:
            told["FMSLURM_NVME"] = nvme
        told["FMSLURM_CKPT_ON_FULL"] = ",".join(settings.staging.on_full)
        told["FMSLURM_CKPT_SOCKET"] = os.path.join(at_node(settings.site.run_dir, job.node), "agent.sock")
    folder = find.checkpoint_folder(settings, job.run, job.request.checkpoint_dir, job.uid)
    if folder:
        told["FMSLURM_CKPT_DIR"] = folder
        found = _decide(job, settings, share, nvme="FMSLURM_NVME" in told)
        if found is None:
            lines.append("which checkpoint to start from could not be decided: the trainer looks for itself")
        else:
            step, path = found
            told["FMSLURM_RESTORE_DIR"] = path
            if path:
                told["FMSLURM_RESUME_STEP"] = str(step)
            lines.append(
                f"starts from step {step}, {path}" if path else "starts from scratch: there is no whole checkpoint"
            )
    return told, lines


def _decide(job: HookJob, settings: Settings, share: str, *, nvme: bool) -> tuple[int, str] | None:
    """Return (step, folder) to start from, an empty folder for a fresh start; None where it cannot be known."""
    from slurm_ext.staging import find

    assert job.request is not None
    one = len(job.nodes) == 1
    asked = (settings, job.node if nvme else "", job.run, job.request.checkpoint_dir, job.uid)
    try:
        found = find.newest_complete(*asked, single_node=one, timeout_s=LOOK_S)
    except FmslurmError:
        return None
    step, folder = (found.step, found.path) if found else (-1, "")
    if one:
        return step, folder
    won = shared.decide_once(
        shared.attempt_path(share, job.attempt, shared.RESTORE_FILE), {"step": step, "node": job.node}
    )
    if won is None or type(won.get("step")) is not int:
        return None
    if won["step"] == step:
        return step, folder
    if won["step"] < 0:
        return -1, ""
    # Another node saw another step first. All start from that one, where every node can reach it.
    everywhere = find.checkpoint_folder(settings, job.run, job.request.checkpoint_dir, job.uid)
    return won["step"], find.shared_step(everywhere, won["step"])


def _nvme(job: HookJob, settings: Settings) -> str:
    """Make the run's own folder on this node's NVMe and return it; empty where that is not possible."""
    from slurm_ext.staging import nvme

    try:
        return nvme.prepare_run_folder(settings, job.node, job.run, job.uid, timeout_s=LOOK_S)
    except (FmslurmError, ValueError):
        return ""
