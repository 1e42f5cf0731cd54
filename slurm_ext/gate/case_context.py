"""What the context of a captured folder says: which tool wrote its output, whose node it was, what it should have. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from slurm_ext.gate import process_rules, tables
from slurm_ext.typed import Any

#: Program of a command line -> the role that its output has.
_PROGRAMS = {
    **{name: name for name in ("ps", "df", "ls", "chronyc", "timedatectl", "systemctl", "lsblk", "findmnt", "lscpu")},
    **{"ntpq": "chronyc", "ntpstat": "chronyc", "ntptime": "chronyc", "adjtimex": "chronyc", "nvme": "lsblk"},
    **{"mount": "mounts", "uptime": "load", "nproc": "lscpu", "dmesg": "dmesg", "journalctl": "journal"},
}
#: Files that `cat` may have shown, and paths of a tree: end of the path -> role.
FILES = {
    "mdstat": "mdstat",
    "mountinfo": "mountinfo",
    "/mounts": "mounts",
    "fstab": "fstab",
    "meminfo": "meminfo",
    "loadavg": "load",
    "/cpuinfo": "",
}


def tool_of(command: str) -> str:
    """Return the program of a command line, behind sudo, timeout and the like."""
    for word in command.split():
        name = word.rsplit("/", 1)[-1]
        if name in _PROGRAMS or name in ("cat", "nvidia-smi", "stat", "touch", "curl", "aws"):
            return name
    return ""


def role_of(command: str) -> str:
    """Return the role of what a command prints, or nothing."""
    tool = tool_of(command)
    if tool == "cat":
        return next((role for end, role in FILES.items() if command.rstrip().endswith(end)), "")
    if tool == "nvidia-smi":
        return "compute_apps" if "compute-apps" in command else "smi_table" if command.split()[-1] == tool else ""
    if tool in ("curl", "aws"):
        return "events" if "scheduled" in command or "describe-instance-status" in command else ""
    if tool == "df" and any(word.startswith("-") and "i" in word and "output" not in word for word in command.split()):
        return "df_inodes"
    return _PROGRAMS.get(tool, "")


def files_in(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def jobs_of(context: Mapping[str, Any], now_s: float | None) -> process_rules.Jobs:
    """Return whose node it is by the context: ids and users of jobs, how long ago the last one ended or this one began."""
    told = context.get("jobs_on_node")
    ids: tuple[str, ...] | None = None
    users: list[str] = [str(context["job_user"])] if context.get("job_user") else []
    if isinstance(told, int) and not isinstance(told, bool):
        ids = ("",) * min(told, 1)
    elif isinstance(told, list):
        ids = tuple(str(job.get("id", job.get("job_id", ""))) if isinstance(job, dict) else str(job) for job in told)
        users += [str(job["user"]) for job in told if isinstance(job, dict) and job.get("user")]
    ended = next((tables.moment_s(context[key]) for key in ("last_job_end", "job_end") if key in context), None)
    began = tables.moment_s(context.get("job_start"))
    return process_rules.Jobs(
        ids,
        frozenset(users),
        now_s - ended if now_s is not None and ended is not None else None,
        now_s - began if now_s is not None and began is not None else None,
    )


def references(context: Mapping[str, Any]) -> dict[str, float]:
    """Return the reference values that the context gives (`expected_...`), by our names."""
    told: dict[str, float] = {}
    for key, value in context.items():
        if not key.startswith("expected_") or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        word = key.removeprefix("expected_")
        if any(part in word for part in ("percent", "free", "_gb_", "size", "used")):
            continue  # no number of parts
        if "nvme" in word or "disk" in word:
            told["nvme"] = value
        elif "socket" in word:
            told["sockets"] = value
        elif "numa" in word:
            told["numa_nodes"] = value
        elif "thread" in word:
            told["threads"] = value
        elif "cpu" in word:
            told["cpus"] = value
        elif "mem" in word:
            scale = {"gib": 1024.0, "gb": 1024.0, "kib": 1 / 1024, "kb": 1 / 1024, "bytes": 1 / 1024**2}
            told["memory_mib"] = value * next((by for end, by in scale.items() if word.endswith(end)), 1.0)
    return told
