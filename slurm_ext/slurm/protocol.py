"""What fmslurm asks of Slurm: one Protocol, satisfied by each backend and tried by one contract test suite.

Every call is bounded and raises SlurmError with Slurm's own words where Slurm refuses or does not answer.
Standard library only: hooks import this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from slurm_ext.slurm.model import Job, Node, Partition, TopologyUnit, Version


class Slurm(Protocol):
    """A backend. `name` is what doctor shows: cli, pyslurm or slurmrestd."""

    name: str

    def version(self) -> Version:
        """Return the version of the commands (or of the library) in use."""

    def cluster_name(self) -> str:
        """Return ClusterName of the running controller."""

    def config(self) -> Mapping[str, str]:
        """Return slurm.conf as the controller holds it (`scontrol show config`), keys as in slurm.conf; several values are one."""

    def ping(self) -> bool:
        """Say whether the primary controller answers."""

    def jobs(self, job_ids: Sequence[str] | None = None) -> list[Job]:
        """Return the jobs the controller holds (all, or those asked for that it still knows), finished ones included."""

    def nodes(self, names: Sequence[str] | None = None) -> list[Node]:
        """Return the nodes (all, or those named that exist)."""

    def partitions(self) -> list[Partition]:
        """Return the partitions."""

    def batch_script(self, job_id: str) -> str:
        """Return the batch script of a job, as submitted."""

    def drain(self, node: str, reason: str) -> None:
        """Set a node to DRAIN with a reason."""

    def resume_node(self, node: str) -> None:
        """Undo DRAIN (or DOWN) of a node."""

    def requeue(self, job_id: str, *, hold: bool) -> None:
        """Requeue a job; with `hold` it stays held (requeuehold)."""

    def hold(self, job_id: str) -> None:
        """Hold a pending job."""

    def release(self, job_id: str) -> None:
        """Release a held job."""

    def update_job(self, job_id: str, fields: Mapping[str, str]) -> None:
        """Set fields of a job as `scontrol update jobid=` names them (ExcNodeList, StartTime, TimeLimit, Comment, ...)."""

    def cancel(self, job_id: str) -> None:
        """Cancel a job."""

    def reconfigure(self) -> None:
        """Make the daemons read their files again."""

    def topology(self, name: str = "") -> Mapping[str, tuple[str, ...]]:
        """Return each node's path of switch (or block) names, top first, in the topology of a name (25.05 and later)."""

    def set_topology(self, nodes: str, place: str) -> None:
        """Put nodes (a hostlist) elsewhere in the running topology (25.05 and later); `place` as `Topology=` of a node."""

    def topology_units(self, name: str = "") -> list[TopologyUnit]:
        """Return switches or blocks as Slurm reports them, in its order, of the topology of a name (25.05 and later)."""
