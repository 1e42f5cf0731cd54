"""Where a job starts from and what its tasks are told: the same step on every node, decided once on the share."""

from __future__ import annotations

import os
import stat

from slurm_ext import shared
from slurm_ext.command import call_bounded
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
    mine = {"step": found.step if found else -1, "folder": found.path if found else "", "node": job.node}
    if one:
        return int(str(mine["step"])), str(mine["folder"])
    won = shared.decide_once(shared.attempt_path(share, job.attempt, "restore.json"), mine)
    if won is None:
        return None
    step, folder = won.get("step"), won.get("folder")
    if type(step) is not int or not isinstance(folder, str):
        return None
    if step < 0 or step == mine["step"]:
        return step, str(mine["folder"]) if step >= 0 else ""
    # Another node saw another step first: all start from that one, and it must be one that every node can reach.
    shared_folder = find.checkpoint_folder(settings, job.run, job.request.checkpoint_dir, job.uid)
    return (step, folder) if folder.startswith(shared_folder.rstrip("/") + "/") else None


def _nvme(job: HookJob, settings: Settings) -> str:
    """Make the user's own folder on this node's NVMe and return the run's folder in it; empty where that is not possible."""
    from slurm_ext.staging import find

    home = find.nvme_user_folder(settings, job.node, job.uid)
    if not home:
        return ""

    def make() -> bytes:
        try:
            os.mkdir(home, 0o700)
            os.chown(home, job.uid, job.gid if job.gid >= 0 else job.uid, follow_symlinks=False)
        except FileExistsError:
            pass
        state = os.lstat(home)
        return b"yes" if stat.S_ISDIR(state.st_mode) and state.st_uid == job.uid else b"no"

    made = call_bounded(make, timeout_s=LOOK_S)
    return find.nvme_run_folder(settings, job.node, job.run, job.uid) if made == b"yes" else ""
