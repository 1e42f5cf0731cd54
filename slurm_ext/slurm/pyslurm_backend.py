"""The pyslurm backend: job records read through libslurm, everything else as the command line does it.

pyslurm is GPL-2.0-only, locked to one Slurm release, and importing it without a Slurm configuration ends the process. So
it is imported in a child only, which is given up in time, for the first look and for each answer. Attribute names: pyslurm
25.11 (`pyslurm.Job`). Standard library only until asked for.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Sequence

from slurm_ext.command import call_bounded
from slurm_ext.config.model import Settings
from slurm_ext.errors import LackingError, SlurmError
from slurm_ext.slurm import TIMEOUT_S, parse
from slurm_ext.slurm.cli_backend import CliBackend, checked_job_id
from slurm_ext.slurm.model import Job
from slurm_ext.typed import Any


def _import(slurm_conf: str) -> Any:
    """Import pyslurm in a child: it reads SLURM_CONF while it is imported."""
    if slurm_conf:
        os.environ["SLURM_CONF"] = slurm_conf
    return importlib.import_module("pyslurm")


def why_missing(settings: Settings, *, timeout_s: float = TIMEOUT_S) -> str:
    """Return why pyslurm cannot be used here, or an empty text where it can; the import happens in a child."""
    conf = settings.site.slurm_conf

    def look() -> bytes:
        # Whatever it prints or raises on its way out must not reach the caller's terminal.
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        try:
            module = _import(conf)
        except ImportError as exc:
            return f"pyslurm cannot be imported: {exc}".encode()
        return b"" if hasattr(module, "Jobs") else b"this pyslurm has no Jobs: it is too old"

    answer = call_bounded(look, timeout_s=timeout_s)
    return "importing pyslurm ended the process or took too long" if answer is None else answer.decode()


class PyslurmBackend(CliBackend):
    """Satisfies `slurm.protocol.Slurm`; `jobs` comes from libslurm, the rest from the commands."""

    name = "pyslurm"

    def __init__(self, settings: Settings | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        """Look whether pyslurm can be used. Raise LackingError where it cannot."""
        super().__init__(settings, timeout_s=timeout_s)
        chosen = settings or Settings()
        if reason := why_missing(chosen, timeout_s=timeout_s):
            raise LackingError(reason, remedy="Install the pyslurm of your Slurm release, or set site.backend to cli")
        self._conf = chosen.site.slurm_conf

    def jobs(self, job_ids: Sequence[str] | None = None) -> list[Job]:
        """Return the jobs the controller holds, finished ones included; an id it does not know is left out."""
        wanted = {checked_job_id(job_id) for job_id in job_ids} if job_ids is not None else None
        if wanted is not None and not wanted:
            return []
        conf = self._conf

        def load() -> bytes:
            found = _import(conf).Jobs.load()
            return json.dumps([_as_data(job) for job in found.values()]).encode()

        answer = call_bounded(load, timeout_s=self.timeout_s)
        if answer is None:
            raise SlurmError("pyslurm did not load the jobs in time", remedy="Try site.backend cli")
        jobs = [_job(data) for data in json.loads(answer)]
        if wanted is None:
            return jobs
        return [job for job in jobs if {job.job_id, job.array_job_id, job.het_job_id} & wanted]


#: Field of Job -> attribute of pyslurm.Job, for those that need no thought.
_TEXT = {
    "name": "name",
    "partition": "partition",
    "nodes": "allocated_nodes",
    "batch_host": "batch_host",
    "excluded_nodes": "excluded_nodes",
    "comment": "comment",
    "std_out": "standard_output",
    "work_dir": "working_directory",
}
_NUMBER = {
    "node_count": "num_nodes",
    "restarts": "requeue_count",
    "submit_time": "submit_time",
    "eligible_time": "eligible_time",
    "start_time": "start_time",
    "end_time": "end_time",
    "priority": "priority",
}


def _as_data(job: Any) -> dict[str, Any]:
    """Return a pyslurm job as plain data, in the child."""
    data: dict[str, Any] = {name: getattr(job, attribute) or "" for name, attribute in _TEXT.items()}
    data |= {name: _whole(getattr(job, attribute), 0) for name, attribute in _NUMBER.items()}
    data["job_id"] = str(job.id)
    data["required_nodes"] = getattr(job, "required_nodes", "") or ""
    data["user_id"], data["group_id"] = _whole(job.user_id, -1), _whole(job.group_id, -1)
    data["word"], data["reason"] = str(job.state), str(job.state_reason or "")
    data["requeue"] = bool(job.is_requeueable)
    data["exit_code"] = f"{_whole(job.exit_code, 0)}:{_whole(job.exit_code_signal, 0)}"
    data["derived_exit_code"] = f"{_whole(job.derived_exit_code, 0)}:{_whole(job.derived_exit_code_signal, 0)}"
    data["time_limit_min"] = _whole(job.time_limit, -1)
    task = job.array_task_id if job.array_task_id is not None else job.array_tasks_waiting
    data["array_task_id"] = "" if task is None else str(task)
    data["array_job_id"] = str(job.array_id) if data["array_task_id"] and job.array_id else ""
    data["het_job_id"] = str(job.heterogeneous_id) if job.heterogeneous_id else ""
    return data


def _whole(value: Any, otherwise: int) -> int:
    return value if type(value) is int else otherwise


def _job(data: Mapping[str, Any]) -> Job:
    fields = dict(data)
    word, reason = fields.pop("word"), fields.pop("reason")
    state, flags = parse.job_state(word, reason, fields["exit_code"])
    return Job(**fields, state=state, flags=flags, reason=parse.something(reason))
