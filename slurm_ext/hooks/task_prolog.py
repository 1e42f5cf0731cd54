"""What Slurm runs as the user before each task, and before the batch script: tells the job what it may know.

Tried on 22.05.8, 24.11.5 and 26.05.5.

Standard output is read by slurmstepd: `export NAME=VALUE` and `print TEXT`. A failing task prolog would fail the task, so
nothing here can: whatever is missing or broken is left out. Only what is needed is imported, since each task waits for it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

DEFAULT_RUN_DIR = "/run/fmslurm"
_NAME = re.compile(r"FMSLURM_[A-Z_]{1,40}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_MAX_BYTES = 1 << 20

#: SLURM_STEP_ID of the batch step: none, SLURM_BATCH_SCRIPT as an unsigned number, or as 26.05.5 prints it.
_BATCH_STEPS = ("", "4294967291", "-5")


def run(environ: Mapping[str, str], local_dir: str) -> str:
    """Return what is to be printed for the task in `environ`; empty where there is nothing to tell."""
    node, job_id = environ.get("SLURMD_NODENAME", ""), environ.get("SLURM_JOB_ID", "")
    if not _NODE.fullmatch(node) or not job_id.isdigit() or len(job_id) > 12:
        return ""
    job = _object(os.path.join(run_dir(local_dir.replace("%n", node), node), "jobs", f"{job_id}.json"))
    if job is None or job.get("uid") != os.getuid():
        return ""
    said = []
    exports, lines = job.get("exports"), job.get("lines")
    for name, value in exports.items() if isinstance(exports, dict) else ():
        # One line each: slurmstepd reads them so, and a value of ours has none.
        if _NAME.fullmatch(name) and isinstance(value, str) and value.isprintable():
            said.append(f"export {name}={value}")
    # Every task runs this; the job's log needs it once: from the batch script.
    if _is_batch_script(environ):
        said += [f"print fmslurm: {line}" for line in _texts(lines)]
    # A node that is not well tells so wherever the job first prints from it: the batch script may run on another one.
    if _is_batch_script(environ) or _is_first_here(environ):
        said += [f"print fmslurm: {line}" for line in _texts(job.get("warned"))]
    proven = job.get("proven")
    if isinstance(proven, dict) and proven and (_is_batch_script(environ) or _is_first_of_many(environ)):
        said += [f"print fmslurm: {line}" for line in _not_proven(environ, proven)]
    return "".join(f"{line}\n" for line in said)


def _texts(lines: object) -> list[str]:
    return [line for line in lines if isinstance(line, str) and line.isprintable()] if isinstance(lines, list) else []


def _not_proven(environ: Mapping[str, str], proven: Mapping[str, str]) -> list[str]:
    """Return where this task's NCCL is set up differently from what the job's nodes were tested with."""
    from slurm_ext.hooks import nccl_check

    # A step's log need not repeat the file: it was told by the batch script.
    conf = (
        nccl_check.parse_conf(_text(nccl_check.CONF_FILE, nccl_check.CONF_MAX_BYTES))
        if _is_batch_script(environ)
        else {}
    )
    return nccl_check.differences(environ, conf, {str(name): str(value) for name, value in proven.items()})


def _text(path: str, max_bytes: int) -> str:
    """Return the beginning of a plain file, read as the job's user; nothing where that is not possible at once."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(descriptor, max_bytes).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _is_first_of_many(environ: Mapping[str, str]) -> bool:
    """Say whether this is the first task of a batch job's step over several nodes: the training itself, seldom a helper."""
    nodes = environ.get("SLURM_STEP_NUM_NODES", "")
    return (
        environ.get("ENVIRONMENT") == "BATCH"
        and environ.get("SLURM_PROCID") == "0"
        and environ.get("SLURM_STEP_ID", "") not in _BATCH_STEPS
        and nodes.isdigit()
        and int(nodes) > 1
    )


def _is_first_here(environ: Mapping[str, str]) -> bool:
    """Say whether this is this node's first task of a batch job's step over several nodes."""
    nodes = environ.get("SLURM_STEP_NUM_NODES", "")
    return (
        environ.get("ENVIRONMENT") == "BATCH"
        and environ.get("SLURM_LOCALID") == "0"
        and environ.get("SLURM_STEP_ID", "") not in _BATCH_STEPS
        and nodes.isdigit()
        and int(nodes) > 1
    )


def _is_batch_script(environ: Mapping[str, str]) -> bool:
    """Say whether this is the batch script: what srun prints for a person may be read by a program."""
    return environ.get("ENVIRONMENT") == "BATCH" and environ.get("SLURM_STEP_ID", "") in _BATCH_STEPS


def run_dir(local_dir: str, node: str) -> str:
    """Return the run folder the pushed configuration names, out of this node's last good copy; else the default."""
    kept = _object(os.path.join(local_dir, "last-good-config.json")) if local_dir else None
    try:
        folder = json.loads(str((kept or {})["snapshot"]))["settings"]["site"]["run_dir"]
    except (KeyError, TypeError, ValueError):
        return DEFAULT_RUN_DIR
    return str(folder).replace("%n", node) if isinstance(folder, str) and folder.startswith("/") else DEFAULT_RUN_DIR


def _object(path: str) -> dict[str, object] | None:
    """Return the JSON object in a file that root owns and nobody else may write, else None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        state = os.fstat(descriptor)
        if state.st_uid != 0 or state.st_mode & 0o022 or state.st_size > _MAX_BYTES:
            return None
        data = json.loads(os.read(descriptor, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    return data if isinstance(data, dict) else None
