"""One hook as slurmd starts it, and what a run of a program takes: for the benches of gate and burn-in."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PYTHON = "/usr/bin/python3"
_HOOK = str(Path(__file__).resolve().parent.parent / "bin/fmslurm-hook")


class Cost(NamedTuple):
    """What one run took, in seconds."""

    cpu_s: float
    wall_s: float


def hook(folder: Path, gpus: str, *, job_id: int = 100) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return argv and environment of the prolog of a job of one node, whose share, state and root lie below `folder`."""
    now = int(time.time())
    job = {
        "SLURM_JOB_ID": str(job_id),
        "SLURM_JOB_UID": "0",
        "SLURM_CLUSTER_NAME": "bench",
        "SLURMD_NODENAME": "n0",
        "SLURM_NODELIST": "n0",
        "SLURM_JOB_GPUS": gpus,
        "SLURM_JOB_STDOUT": "/x",
        "SLURM_JOB_START_TIME": str(now),
        "SLURM_JOB_END_TIME": str(now + 86400),
        "FMSLURM_LAB_HARDWARE": f"{folder}/root/etc/fmslurm-lab/hardware.json",
    }
    return [PYTHON, "-IS", _HOOK, "prolog", "--share", f"{folder}/share", "--local", f"{folder}/state"], job


def cost(argv: Sequence[str], env: Mapping[str, str]) -> Cost:
    """Run a program; return its time, and that of all it waited for."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(argv, env=dict(env), check=True, stdout=subprocess.DEVNULL, timeout=60)
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall_s)
