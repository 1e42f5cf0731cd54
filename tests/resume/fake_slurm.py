"""A strict Slurm in a file, for crash tests only: the states of one job as measured on 22.05.8, each refusal an error.

It lives in a file so that a process that is killed leaves behind just what a real controller daemon would have done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_ext.errors import SlurmError
from slurm_ext.slurm.hostlist import expand
from slurm_ext.slurm.model import Job, Node, Partition, Version


class FakeSlurm:
    """Satisfies the Protocol as far as the controller asks; counts every act that changed something."""

    name = "fake"
    release_number = (24, 11)

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, nodes: Sequence[str], job: Job) -> FakeSlurm:
        made = cls(path)
        made.write(
            {"job": job._asdict(), "nodes": [Node(name, "IDLE")._asdict() for name in nodes], "acts": [], "clock": 0}
        )
        return made

    def read(self) -> dict:
        return json.loads(self.path.read_text())

    def write(self, data: dict) -> None:
        scratch = self.path.with_suffix(".new")
        scratch.write_text(json.dumps(data))
        scratch.replace(self.path)

    def job(self) -> Job:
        fields = self.read()["job"]
        return Job(**{**fields, "flags": tuple(fields["flags"])})

    def set_job(self, **fields: object) -> None:
        data = self.read()
        data["job"] = {**data["job"], **fields}
        self.write(data)

    def set_node(self, name: str, **fields: object) -> None:
        data = self.read()
        data["nodes"] = [{**row, **fields} if row["name"] == name else row for row in data["nodes"]]
        self.write(data)

    def acts(self) -> list[str]:
        return self.read()["acts"]

    def _did(self, text: str) -> None:
        data = self.read()
        data["acts"].append(text)
        self.write(data)

    # --- what the world does

    def finish_completing(self) -> None:
        """Let the epilogs end: a requeued job becomes pending, held or waiting for two minutes; another one is over."""
        job = self.job()
        assert "COMPLETING" in job.flags
        if job.state == "PENDING":
            # Slurm writes the begin time anew here, so a StartTime set before is lost.
            now = int(time.time())
            reason = "job_requeued_in_held_state" if job.priority == 0 else "BeginTime"
            fields = {"eligible_time": now + 121, "start_time": now + 121, "submit_time": now, "reason": reason}
            self.set_job(flags=(), nodes="", batch_host="", exit_code="0:0", **fields)
        else:
            self.set_job(flags=())

    def start(self, nodes: str) -> None:
        """Start the pending job, as the scheduler would; it must be allowed to."""
        job = self.job()
        assert job.state == "PENDING"
        assert not job.flags
        assert job.priority > 0
        assert job.eligible_time <= time.time() + 3  # the pause before a job may return to its nodes
        assert not set(expand(nodes)) & set(expand(job.excluded_nodes))
        self.set_job(state="RUNNING", nodes=nodes, batch_host=expand(nodes)[0], start_time=int(time.time()), reason="")

    # --- the Protocol

    def version(self) -> Version:
        return Version(*self.release_number, "{}.{:02}".format(*self.release_number))

    def jobs(self, job_ids: Sequence[str] | None = None) -> list[Job]:
        job = self.job()
        return [job] if job_ids is None or job.job_id in job_ids else []

    def nodes(self, names: Sequence[str] | None = None) -> list[Node]:
        rows = [Node(**{**row, "flags": tuple(row["flags"]), "partitions": ()}) for row in self.read()["nodes"]]
        return [node for node in rows if names is None or node.name in names]

    def requeue(self, job_id: str, *, hold: bool) -> None:
        job = self.job()
        if job.job_id != job_id or job.state == "PENDING":
            raise SlurmError("Job is pending execution")
        self._did("requeuehold" if hold else "requeue")
        flags = ("COMPLETING", "REQUEUED") if job.flags or job.state == "RUNNING" else ()
        now = int(time.time())
        self.set_job(state="PENDING", flags=flags, restarts=job.restarts + 1, priority=0 if hold else 10)
        if not flags:
            self.set_job(nodes="", eligible_time=now + 121, submit_time=now)

    def partitions(self) -> list[Partition]:
        return [Partition("gpu", self.read().get("max_time", -1))]

    def update_job(self, job_id: str, fields: Mapping[str, str]) -> None:
        job = self.job()
        if "TimeLimit" in fields:
            self._did(f"TimeLimit={fields['TimeLimit']}")
            self.set_job(time_limit_min=int(fields["TimeLimit"]))
            return
        if job.state != "PENDING":
            raise SlurmError("Job is no longer pending execution")
        for name, value in fields.items():
            self._did(f"{name}={value}")
            if name == "ExcNodeList":
                known = {node.name for node in self.nodes()}
                if not set(expand(value)) <= known:
                    raise SlurmError("Invalid node name specified")
                self.set_job(excluded_nodes=value)
            elif name == "StartTime":
                wait = int(value.partition("+")[2] or 0)
                self.set_job(eligible_time=int(time.time()) + wait, reason="")
            else:
                raise SlurmError(f"unknown field {name}")

    def hold(self, job_id: str) -> None:
        if self.job().state != "PENDING":
            raise SlurmError("Job is no longer pending execution")
        self._did("hold")
        self.set_job(priority=0)

    def release(self, job_id: str) -> None:
        if self.job().state != "PENDING":
            raise SlurmError("Job is no longer pending execution")
        self._did("release")
        self.set_job(priority=10)

    def drain(self, node: str, reason: str) -> None:
        self._did(f"drain {node}")
        self.set_node(node, flags=("DRAIN",), reason=reason)
