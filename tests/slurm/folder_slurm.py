"""A strict Slurm in a folder, for many processes at once: nodes and jobs as the gate touches them, each act remembered.

Where it refuses, it does so as Slurm does. What makes it slow, silent or deadly is set by the test before it forks.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_ext.errors import SlurmError
from slurm_ext.slurm.hostlist import expand
from slurm_ext.slurm.model import Job, Node, Partition, Version

#: Seconds since the epoch that this Slurm's clock shows: only the tests move it.
NOW = 1_900_000_000


class FolderSlurm:
    """Satisfies the Protocol as far as drains and jobs of the gate need it."""

    name = "folder"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before_drain: Callable[[str], None] = lambda _node: None
        self.after_drain: Callable[[str], None] = lambda _node: None
        self.now: Callable[[], float] = lambda: NOW
        self.prolog_flags = "Alloc,DeferBatch"

    @classmethod
    def create(cls, folder: Path, nodes: Sequence[str], jobs: Sequence[Job] = ()) -> FolderSlurm:
        folder.mkdir(parents=True)
        made = cls(folder)
        made._write({"nodes": {}, "jobs": {}, "acts": []})
        with made._state() as state:
            state["nodes"] = {name: Node(name, "IDLE", partitions=("gpu",))._asdict() for name in nodes}
            state["jobs"] = {job.job_id: job._asdict() for job in jobs}
        return made

    def _write(self, data: Mapping[str, Any]) -> None:
        scratch = self.folder / f"new-{os.getpid()}"
        scratch.write_text(json.dumps(data))
        scratch.replace(self.folder / "state.json")

    def read(self) -> dict[str, Any]:
        return json.loads((self.folder / "state.json").read_text())

    @contextlib.contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        with open(self.folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            data = self.read()
            yield data
            self._write(data)

    def acts(self) -> list[str]:
        return self.read()["acts"]

    # --- what others do

    def set_node(self, name: str, **fields: object) -> None:
        with self._state() as state:
            state["nodes"][name].update(fields)

    def set_job(self, job_id: str, **fields: object) -> None:
        with self._state() as state:
            state["jobs"][job_id].update(fields)

    # --- the Protocol

    def version(self) -> Version:
        return Version(24, 11, "24.11.5")

    def nodes(self, names: Sequence[str] | None = None) -> list[Node]:
        rows = self.read()["nodes"].values()
        made = [Node(**{**row, "flags": tuple(row["flags"]), "partitions": tuple(row["partitions"])}) for row in rows]
        return [node for node in made if names is None or node.name in names]

    def drain(self, node: str, reason: str) -> None:
        self.before_drain(node)
        with self._state() as state:
            state["acts"].append(f"drain {node}")
            state["nodes"][node].update(flags=["DRAIN"], reason=reason, reason_user="root", reason_time=int(self.now()))
        self.after_drain(node)

    def resume_node(self, node: str) -> None:
        with self._state() as state:
            state["acts"].append(f"resume {node}")
            state["nodes"][node].update(flags=[], reason="", reason_user="", reason_time=0)

    def jobs(self, job_ids: Sequence[str] | None = None) -> list[Job]:
        rows = self.read()["jobs"].values()
        made = [Job(**{**row, "flags": tuple(row["flags"])}) for row in rows]
        return [job for job in made if job_ids is None or job.job_id in job_ids]

    def config(self) -> Mapping[str, str]:
        return {"PrologFlags": self.prolog_flags}

    def partitions(self) -> list[Partition]:
        return [Partition("gpu")]

    def requeue(self, job_id: str, *, hold: bool) -> None:
        with self._state() as state:
            job = state["jobs"][job_id]
            if not job["requeue"]:
                raise SlurmError("Requested operation is presently disabled")
            if job["state"] == "PENDING":
                raise SlurmError("Job is pending execution")
            state["acts"].append(f"{'requeuehold' if hold else 'requeue'} {job_id}")
            job.update(state="PENDING", flags=["COMPLETING"], restarts=job["restarts"] + 1, priority=0 if hold else 10)

    def cancel(self, job_id: str) -> None:
        with self._state() as state:
            state["acts"].append(f"cancel {job_id}")
            state["jobs"][job_id].update(state="CANCELLED", flags=["COMPLETING"])

    def hold(self, job_id: str) -> None:
        self.set_job(job_id, priority=0)

    def update_job(self, job_id: str, fields: Mapping[str, str]) -> None:
        with self._state() as state:
            job = state["jobs"][job_id]
            if set(fields) == {"Requeue"}:  # taken in any state
                job["requeue"] = fields["Requeue"] == "1"
                return
            if job["state"] != "PENDING":
                raise SlurmError("Job is no longer pending execution")
            for name, value in fields.items():
                assert name == "ExcNodeList"
                if not set(expand(value)) <= set(state["nodes"]):
                    raise SlurmError("Invalid node name specified")
                job["excluded_nodes"] = value
