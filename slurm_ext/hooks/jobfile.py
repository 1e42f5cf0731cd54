"""What the prolog leaves for the job's own hooks on this node: one file for each job, written by root, read by the user."""

import json
import os
import time

from slurm_ext.files import read_trusted, write_atomic, write_passing
from slurm_ext.typed import Any, NamedTuple

SCHEMA = 1

#: Holds the boot in which a job last started here. A node that has been up for longer than this (seconds) without the file
#: may have run jobs that we did not see, so what fails then is nobody's first.
RAN, FIRST_JOB_S = "ran-in-boot", 86_400.0


class JobFile(NamedTuple):
    """One job on one node. `exports` become the job's environment, `lines` stand in its log. Times: epoch seconds.

    `began_s` is CLOCK_BOOTTIME of boot `boot_id` when the prolog began: a clock that is set meanwhile moves no window.
    `warned`: lines that its log must have even where another node's are printed: it runs here on a convicted node.
    `proven`: with which NCCL_* and like settings its nodes were tested; empty where they were not, or nobody is to compare.
    """

    job_id: str
    attempt: str
    run: str
    uid: int
    started: float
    restarts: int = 0
    exports: dict[str, str] = {}  # noqa: RUF012 - a default that nobody changes
    lines: tuple[str, ...] = ()
    opted_in: bool = False
    proven: dict[str, str] = {}  # noqa: RUF012 - likewise
    began_s: float = 0.0
    boot_id: str = ""
    warned: tuple[str, ...] = ()
    schema: int = SCHEMA


def path_of(run_dir: str, job_id: str) -> str:
    """Return the path of a job's file. Raise ValueError for what is no job id."""
    if not job_id.isdigit() or len(job_id) > 12:
        raise ValueError(f"not a job id: {job_id!r}")
    return os.path.join(run_dir, "jobs", f"{job_id}.json")


def write(run_dir: str, job: JobFile) -> None:
    """Write a job's file, whole. Raise OSError where the run folder cannot be written."""
    write_atomic(path_of(run_dir, job.job_id), json.dumps(job._asdict()))


def read(run_dir: str, job_id: str) -> JobFile | None:
    """Return a job's file, or None where there is none that root wrote in this form."""
    try:
        data = json.loads(read_trusted(path_of(run_dir, job_id)))
    except Exception:  # noqa: BLE001 - missing, untrusted or broken: for a hook all the same, there is nothing to go by
        return None
    return from_plain(data)


def from_plain(data: Any) -> JobFile | None:
    """Return the job file in plain data, or None where it has another form."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return None
    exports, lines = data.get("exports"), data.get("lines")
    if not isinstance(exports, dict) or not isinstance(lines, list):
        return None
    try:
        return JobFile(
            str(data["job_id"]),
            str(data["attempt"]),
            str(data["run"]),
            int(data["uid"]),
            float(data["started"]),
            int(data["restarts"]),
            {str(name): str(value) for name, value in exports.items()},
            tuple(str(line) for line in lines),
            bool(data.get("opted_in")),
            {str(name): str(value) for name, value in (data.get("proven") or {}).items()},
            float(data.get("began_s") or 0.0),
            str(data.get("boot_id") or ""),
            tuple(str(line) for line in data.get("warned") or ()),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def job_starts(run_dir: str, boot_id: str) -> None:
    """Remember that a job started here since this boot; where that cannot be written the next one counts as the first, too."""
    path = os.path.join(run_dir, RAN)
    try:
        if boot_id and _line(path) != boot_id:
            write_passing(path, boot_id)
    except OSError:
        return


def is_first(run_dir: str, boot_id: str) -> bool:
    """Say whether no job has started here since this boot, as far as is known: `drain.first_boot_budget` is for those."""
    if not boot_id or time.clock_gettime(time.CLOCK_BOOTTIME) > FIRST_JOB_S:
        return False
    try:
        return _line(os.path.join(run_dir, RAN)) != boot_id
    except OSError:
        return False


def _line(path: str) -> str:
    """Return what a small file of ours holds, empty where there is none. OSError where it is there and cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return ""
    try:
        return os.read(descriptor, 100).decode("ascii", "replace")
    finally:
        os.close(descriptor)


def remove(run_dir: str, job_id: str) -> None:
    """Remove a job's file, if it is there and can be."""
    try:
        os.unlink(path_of(run_dir, job_id))
    except OSError:
        return
