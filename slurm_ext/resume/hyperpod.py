"""SageMaker HyperPod restarts a step that was started with `srun --auto-resume=1` by itself, on nodes that it has replaced.

Two that bring one job back are one too many: with `resume.defer_to_hyperpod` the controller only explains such a job. Source:
HyperPod's guide for Slurm, "Automatic node recovery and auto-resume" (read 2026-11).
"""

from __future__ import annotations

import re

from slurm_ext.config.model import Settings
from slurm_ext.errors import FmslurmError
from slurm_ext.slurm import site_policy
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.verdict import one_line

#: The rule of a decision that is not carried out, since HyperPod acts.
RULE = "hyperpod.auto-resume"

#: In the script itself or in a variable that goes into srun's line; 0 turns it off.
_FLAG = re.compile(r"(?<![\w-])--auto-resume(?:=|\s+)[\"']?1(?!\w)")
_COMMENT = re.compile(r"^\s*#(?!SBATCH).*$|\s#\s.*$", re.M)

#: A script is some kilobytes; the beginning of a longer one must do.
_MOST = 1 << 20


def left_to_it(settings: Settings, slurm: Slurm, job_id: str) -> str:
    """Return in words why a job is left to HyperPod; empty where it is ours. What cannot be read may be HyperPod's."""
    if not settings.resume.defer_to_hyperpod or site_policy.kind(settings) != "hyperpod":
        return ""
    try:
        script = slurm.batch_script(job_id)
    except FmslurmError as exc:
        return f"left to HyperPod, whose it may be: its script cannot be read ({one_line(str(exc), 100)})"
    return "left to HyperPod: its script says --auto-resume=1" if asks(script) else ""


def asks(script: str) -> bool:
    """Say whether a batch script asks for HyperPod's auto-resume, in a line that is no comment. Pure."""
    return bool(_FLAG.search(_COMMENT.sub("", script[:_MOST])))
