"""What a job's user left in /dev/shm: told in the epilog's event, and never removed.

Shared memory outlives its programs, and some want it to: a training that keeps its last checkpoint there restarts from it
after a requeue. Whether it is rubbish only its owner knows, so a person decides; the file system's own full state is a finding.
"""

from __future__ import annotations

import json
import os
import stat

from slurm_ext.command import call_bounded
from slurm_ext.hooks import jobfile
from slurm_ext.typed import NamedTuple

#: How long (seconds) the child may take that looks, and at how many names.
TIMEOUT_S = 1.0
NAMES_MAX = 4096

#: So many jobs of a node are asked whether they are the same user's.
JOBS_MAX = 1024


class Memory(NamedTuple):
    """Files of one user in /dev/shm while no job of that user runs here."""

    files: int
    bytes: int


def left(root: str, run_dir: str, job_id: str, uid: int) -> Memory | None:
    """Return what a user has in /dev/shm now that this job has ended; None: nothing, another job is there, or not known."""
    if uid <= 0:  # root's files there are the system's
        return None
    answer = call_bounded(lambda: json.dumps(_left(root, run_dir, job_id, uid)).encode(), timeout_s=TIMEOUT_S)
    files, size = json.loads(answer) if answer else (0, 0)
    return Memory(files, size) if files else None


def _left(root: str, run_dir: str, job_id: str, uid: int) -> tuple[int, int]:
    files, size = 0, 0
    try:
        with os.scandir(os.path.join(root, "dev/shm")) as entries:
            for number, entry in enumerate(entries):
                if number >= NAMES_MAX:
                    break
                state = entry.stat(follow_symlinks=False)
                if state.st_uid == uid and stat.S_ISREG(state.st_mode):
                    files, size = files + 1, size + state.st_blocks * 512
    except OSError:
        return 0, 0
    return (0, 0) if files and _other_jobs(run_dir, job_id, uid) else (files, size)


def _other_jobs(run_dir: str, job_id: str, uid: int) -> bool:
    """Say whether another job of this user is on the node, by the files that prologs left; not known is a yes."""
    try:
        names = os.listdir(os.path.join(run_dir, "jobs"))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    others = [name[:-5] for name in names if name.endswith(".json") and name[:-5].isdigit() and name[:-5] != job_id]
    if len(others) > JOBS_MAX:
        return True
    found = (jobfile.read(run_dir, other) for other in others)
    return any(file is None or file.uid == uid for file in found)
