"""The command-line backend: scontrol, squeue and scancel as argument lists, in a clean environment, each call bounded.

Standard library only: hooks import this.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from slurm_ext.command import CLEAN_PATH, Result, clean_env, run
from slurm_ext.config.model import Settings
from slurm_ext.errors import SlurmError
from slurm_ext.slurm import TIMEOUT_S, parse, parse_topology
from slurm_ext.slurm.hostlist import expand, fold, is_node_name
from slurm_ext.slurm.model import Job, Node, Partition, TopologyUnit, Version
from slurm_ext.slurm.versions import parse_version

#: Where Slurm lies on images that put it outside the usual folders (ParallelCluster).
KNOWN_FOLDERS = ("/opt/slurm/bin",)

#: Beyond these counts it is cheaper, and shorter than any command line limit, to ask for all and pick.
MANY = 200

#: scontrol reads `tag=value`: what may stand before the sign.
_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9/:_-]{0,39}")
_JOB_ID = re.compile(r"[0-9]{1,12}(_[0-9]{1,12}|\+[0-9]{1,6})?")
_PLACE = re.compile(r"[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)+(,[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)+)*")
_UNKNOWN_JOB = "Invalid job id"


class CliBackend:
    """Satisfies `slurm.protocol.Slurm`. Every method raises SlurmError with Slurm's own words, or for no answer in time."""

    name = "cli"

    def __init__(self, settings: Settings | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        """Take paths from `settings.site`; `timeout_s` bounds every single call."""
        site = (settings or Settings()).site
        self.timeout_s = timeout_s
        folders = (site.slurm_bin,) if site.slurm_bin else (*CLEAN_PATH.split(":"), *KNOWN_FOLDERS)
        self._folder = next((folder for folder in folders if os.access(os.path.join(folder, "scontrol"), os.X_OK)), "")
        # %s: seconds since the epoch, whatever the time zone; the commands pass it to strftime(3) (scontrol(1), squeue(1)).
        more = {"SLURM_TIME_FORMAT": "%s"}
        if site.slurm_conf:
            more["SLURM_CONF"] = site.slurm_conf
        self.env: Mapping[str, str] = clean_env(**more)

    def version(self) -> Version:
        """Return the version of the commands."""
        found = parse_version(self._said("scontrol", "--version"))
        if found is None:
            raise SlurmError("scontrol --version names no version")
        return found

    def cluster_name(self) -> str:
        """Return ClusterName of the running controller."""
        return self.config().get("ClusterName", "")

    def config(self) -> Mapping[str, str]:
        """Return slurm.conf as the controller holds it, keys as in slurm.conf, `(null)` as empty text."""
        return parse.config(self._said("scontrol", "show", "config"))

    def ping(self) -> bool:
        """Say whether the primary controller answers; no answer in time is a no."""
        answer = self._run("scontrol", "ping")
        return not answer.timed_out and bool(re.search(r"\(primary\).* is UP", answer.stdout))

    def jobs(self, job_ids: Sequence[str] | None = None) -> list[Job]:
        """Return the jobs the controller holds, finished ones included; an id it does not know is left out.

        While a job is completing, `nodes` holds only those that are not yet done with it: Slurm tells no more.
        """
        if job_ids is not None and not job_ids:
            return []
        wanted = [checked_job_id(job_id) for job_id in job_ids] if job_ids is not None else []
        choice = ["--jobs=" + ",".join(wanted)] if 0 < len(wanted) <= MANY else []
        found = self._squeue_jobs(choice)
        if wanted and not choice:
            keep = set(wanted)
            found = [job for job in found if {job.job_id, job.array_job_id, job.het_job_id} & keep]
        return found

    def _squeue_jobs(self, choice: Sequence[str]) -> list[Job]:
        separator = f"@fm{os.urandom(12).hex()};"
        listed = self._squeue(choice, "--states=all", "--Format", parse.job_format(separator))
        if not listed:
            return []
        # Excluded nodes are not among the fields of --Format in 22.05.
        listing = self._squeue(choice, "--states=all", "--format", f"%A{separator}%x{separator}%n{separator}")
        try:
            found = parse.jobs(listed, separator)
            lists = {
                row[0]: [parse.something(text) for text in row[1:]] for row in parse.records(listing, separator, 3)
            }
        except parse.AnswerError as exc:
            raise SlurmError(f"squeue answers in a shape that we do not know: {exc}") from exc
        # A job that the second answer lacks has left the controller between the two.
        return [
            job._replace(excluded_nodes=lists[job.job_id][0], required_nodes=lists[job.job_id][1])
            for job in found
            if job.job_id in lists
        ]

    def _squeue(self, choice: Sequence[str], *more: str) -> str:
        answer = self._run("squeue", "--all", "--local", "--noheader", *choice, *more)
        if not answer.ok and choice and _UNKNOWN_JOB in answer.stderr:
            return ""
        return self._output(answer)

    def nodes(self, names: Sequence[str] | None = None) -> list[Node]:
        """Return the nodes; a name that does not exist is left out."""
        if names is None:
            return parse.nodes(self._said("scontrol", "--oneliner", "show", "node"))
        for name in names:
            checked_node(name)
        if not names:
            return []
        if len(names) > MANY:
            keep = set(names)
            return [node for node in self.nodes() if node.name in keep]
        answer = self._run("scontrol", "--oneliner", "show", "node", fold(names))
        if not answer.ok and not answer.timed_out and re.search(r"Node \S+ not found", answer.stdout + answer.stderr):
            return parse.nodes(answer.stdout)
        return parse.nodes(self._output(answer))

    def partitions(self) -> list[Partition]:
        """Return the partitions."""
        return parse.partitions(self._said("scontrol", "--oneliner", "show", "partition"))

    def batch_script(self, job_id: str) -> str:
        """Return the batch script of a job, as submitted."""
        return self._said("scontrol", "write", "batch_script", checked_job_id(job_id), "-")

    def drain(self, node: str, reason: str) -> None:
        """Set a node to DRAIN with a reason."""
        self._said("scontrol", "update", f"NodeName={checked_node(node)}", "State=DRAIN", f"Reason={reason}")

    def resume_node(self, node: str) -> None:
        """Undo DRAIN (or DOWN) of a node."""
        self._said("scontrol", "update", f"NodeName={checked_node(node)}", "State=RESUME")

    def requeue(self, job_id: str, *, hold: bool) -> None:
        """Requeue a job; with `hold` it stays held."""
        self._said("scontrol", "requeuehold" if hold else "requeue", checked_job_id(job_id))

    def hold(self, job_id: str) -> None:
        """Hold a pending job."""
        self._said("scontrol", "hold", checked_job_id(job_id))

    def release(self, job_id: str) -> None:
        """Release a held job."""
        self._said("scontrol", "release", checked_job_id(job_id))

    def update_job(self, job_id: str, fields: Mapping[str, str]) -> None:
        """Set fields of a job as `scontrol update` names them; an empty value clears a field where Slurm allows it."""
        if not fields:
            return
        for name in fields:
            if not _FIELD.fullmatch(name):
                raise SlurmError(f"{name!r} is no field of a job")
        pairs = [f"{name}={value}" for name, value in fields.items()]
        self._said("scontrol", "update", f"JobId={checked_job_id(job_id)}", *pairs)

    def cancel(self, job_id: str) -> None:
        """Cancel a job."""
        self._said("scancel", checked_job_id(job_id))

    def reconfigure(self) -> None:
        """Make the daemons read their files again."""
        self._said("scontrol", "reconfigure")

    def topology(self, name: str = "") -> Mapping[str, tuple[str, ...]]:
        """Return node -> switch (or block) names, top first, of the topology of a name; empty where there is none."""
        return parse.topology(self._topology(*([name] if name else [])))

    def set_topology(self, nodes: str, place: str) -> None:
        """Put nodes (a hostlist) elsewhere in the running topology: `TOPOLOGY:ROOT:...:LEAF` or `TOPOLOGY:BLOCK`, by commas."""
        if not _PLACE.fullmatch(place):
            raise SlurmError(f"{place[:80]!r} is no place in a topology")
        for one in expand(nodes):
            checked_node(one)
        self._said("scontrol", "update", f"NodeName={nodes}", f"Topology={place}")

    def topology_units(self, name: str = "") -> list[TopologyUnit]:
        """Return switches or blocks in Slurm's order, of the topology of a name; none where the cluster has no topology."""
        return parse_topology.units(self._topology(*([name] if name else [])))

    def _topology(self, *name: str) -> str:
        answer = self._run("scontrol", "--oneliner", "show", "topology", *name)
        if not answer.timed_out and "No topology information" in answer.stdout + answer.stderr:
            return ""
        # It ends with 0 also where nobody answered it (22.05.8 to 26.05.5), which is not the same as no topology.
        if answer.ok and not answer.stdout.strip() and (said := answer.stderr.strip()):
            raise SlurmError(f"{answer.argv[0]}: {said.splitlines()[-1][:300]} (show topology)")
        return self._output(answer)

    def _run(self, program: str, *arguments: str) -> Result:
        path = os.path.join(self._folder, program) if self._folder else program
        try:
            return run([path, *arguments], timeout_s=self.timeout_s, env=self.env)
        except ValueError as exc:  # a NUL in an argument
            raise SlurmError(f"{program}: an argument cannot be passed on: {exc}") from exc

    def _said(self, program: str, *arguments: str) -> str:
        return self._output(self._run(program, *arguments))

    def _output(self, answer: Result) -> str:
        if not answer.ok:
            remedy = "Is slurmctld running? Try `scontrol ping`" if answer.timed_out else ""
            raise SlurmError(f"{answer.words()} ({' '.join(answer.argv[1:4])})", remedy=remedy)
        if answer.truncated:
            raise SlurmError(f"{answer.argv[0]}: the answer is too long to be read whole")
        return answer.stdout


def checked_job_id(job_id: str) -> str:
    """Return the id where it is one (12, 12_3, 12+1). Raise SlurmError for other text."""
    if not _JOB_ID.fullmatch(job_id):
        raise SlurmError(f"{job_id[:80]!r} is no job id")
    return job_id


def checked_node(name: str) -> str:
    """Return the name where it may be a node's. Raise SlurmError for other text: a hostlist or ALL is refused too."""
    if not is_node_name(name) or name.upper() == "ALL":
        raise SlurmError(f"{name[:80]!r} is no node name")
    return name
