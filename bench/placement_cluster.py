"""A real slurmctld and a real slurmd for each node, all on this machine, that run lists of jobs.

Every slurmd is Slurm's own program under a name and a port of its own; jobs are batch jobs that sleep. Meant to be started in
network and process namespaces of their own (bench/placement does that): ports are not looked for, and whatever is left behind
ends with the process namespace.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from placement_fabric import Arm
from placement_jobs import Job
from placement_log import Run, runs

from slurm_ext.lab.conf import cgroup_conf
from slurm_ext.slurm.hostlist import expand, fold
from slurm_ext.slurm.model import Version

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "cluster"))
from bare_controller import BareController

UP_S = 120.0
#: After the last arrival jobs still wait and run.
DRAIN_S = 240.0

#: Slurm shall start a job as soon as it can: what would wait for a timer to expire would blur what waits for nodes.
SCHEDULER = "batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_max_job_test=2000,default_queue_depth=2000"


class Fleet:
    """The nodes of one arm, up and idle; `play` runs one list of jobs on them after the other."""

    def __init__(self, controller: BareController, daemons: Sequence[subprocess.Popen[bytes]], arm: Arm) -> None:
        self._controller = controller
        self._daemons = daemons
        self._arm = arm

    @property
    def slurmd_mib(self) -> float:
        """Return the memory of all slurmd together in MiB, what they share counted once."""
        found = 0
        for daemon in self._daemons:
            text = Path(f"/proc/{daemon.pid}/smaps_rollup").read_text()
            found += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        return found / 1024

    def play(
        self, jobs: Sequence[Job], fewest_leaves: Mapping[int, int], stop: threading.Event
    ) -> tuple[dict[int, Run], dict[int, Job]]:
        """Submit each job at its time, wait for all, and return what became of them by job id, and the jobs by job id.

        Where the arm's jobs ask, they ask for `fewest_leaves` switches of their size and wait up to their own length for them.
        Raise InterruptedError soon after `stop` is set.
        """
        known: dict[int, Job] = {}
        begin = time.monotonic()
        for job in jobs:
            if stop.wait(max(0.0, begin + job.arrival_s - time.monotonic())):
                raise InterruptedError("the bench was stopped")
            argv = ["sbatch", "--parsable", f"--nodes={job.nodes}", f"--time={job.limit_min}", "--exclusive"]
            if self._arm.asks:
                patience_s = job.limit_min
                argv.append(f"--switches={fewest_leaves[job.nodes]}@{patience_s // 60}:{patience_s % 60:02}")
            argv += ["--chdir=/", "--output=/dev/null", f"--wrap=exec sleep {job.length_s}"]
            known[int(self._controller.ask(*argv))] = job
        deadline = time.monotonic() + DRAIN_S
        while self._controller.ask("squeue", "--noheader", "--format=%i").strip():
            if time.monotonic() > deadline:
                left = self._controller.ask("squeue", "--noheader", "--format=%i %T %D %r").splitlines()
                raise TimeoutError(f"{len(left)} jobs are left after {DRAIN_S:.0f} s, the first of them {left[0]}")
            if stop.wait(0.2):
                raise InterruptedError("the bench was stopped")
        lines = (self._controller.folder / "slurmctld.log").read_text().splitlines()
        found = {number: run for number, run in runs(lines).items() if number in known}
        self._hold_against_squeue(found, known, lines)
        return found, known

    def _hold_against_squeue(self, found: Mapping[int, Run], known: Mapping[int, Job], lines: Sequence[str]) -> None:
        """Compare the log's nodes with those that squeue says, and raise where a job did not run as it should."""
        seen: dict[int, tuple[str, str]] = {}
        for line in self._controller.ask("squeue", "--noheader", "--states=all", "--format=%i|%T|%N").splitlines():
            text, state, nodes = line.split("|")
            seen[int(text)] = state, nodes
        for number in known:
            state, nodes = seen.get(number, ("unknown to squeue", ""))
            run = found.get(number)
            if run is None or state != "COMPLETED" or set(expand(nodes)) != set(run.nodes):
                said = [line for line in lines if f"JobId={number} " in line][-4:]
                raise ValueError(f"job {number} is {state} on {nodes}, by the log {run}: {said}")


@contextmanager
def fleet(folder: Path, nodes: Sequence[str], arm: Arm, version: Version, *, first_port: int) -> Iterator[Fleet]:
    """Start everything, wait until all nodes are idle and Slurm has each node where it was told, yield, and end everything.

    The slurmds listen from `first_port` on.
    """
    with BareController(folder) as controller:
        _write(controller, nodes, arm, version, first_port)
        with controller.running() as came_up:
            if not came_up:
                raise RuntimeError(f"slurmctld did not come up: {controller.said()[-1000:]}")
            daemons: list[subprocess.Popen[bytes]] = []
            try:
                for node in nodes:
                    argv = ["slurmd", "-D", "-N", node, "-f", str(controller.conf)]
                    quiet = subprocess.DEVNULL
                    daemons.append(
                        subprocess.Popen(argv, env=controller.env(), stdin=quiet, stdout=quiet, stderr=quiet)
                    )
                _wait_idle(controller, len(nodes))
                if arm.told is not None:
                    _hold_against_slurm(controller, arm)
                yield Fleet(controller, daemons, arm)
            finally:
                for daemon in daemons:
                    daemon.kill()
                for daemon in daemons:
                    daemon.wait(UP_S)


def _write(controller: BareController, nodes: Sequence[str], arm: Arm, version: Version, first_port: int) -> None:
    home = controller.folder
    more = (
        f"SlurmdSpoolDir={home}/spool/%n",
        f"SlurmdPidFile={home}/spool/%n.pid",
        f"SlurmdLogFile={home}/spool/%n.log",
        "SlurmdParameters=config_overrides",
        "JobAcctGatherType=jobacct_gather/none",
        "SelectTypeParameters=CR_Core",
        "PropagateResourceLimits=NONE",
        "MpiDefault=none",
        "MaxJobCount=20000",
        "MinJobAge=3600",
        "CompleteWait=0",
        "LogTimeFormat=iso8601_ms",
        # 26.05 says only with these where its backfill started a job; older ones say it anyway.
        "DebugFlags=HetJob",
        "SlurmctldDebug=verbose",
        f"SchedulerParameters={SCHEDULER}",
        f"TopologyPlugin={arm.plugin}",
    )
    (home / "spool").mkdir(exist_ok=True)
    (home / "cgroup.conf").write_text(cgroup_conf(cgroup=False, version=(version.major, version.minor)))
    defined = f"{fold(nodes)} Port=[{first_port}-{first_port + len(nodes) - 1}] NodeHostname={socket.gethostname()}"
    controller.write({"topology.conf": arm.conf} if arm.conf else {}, defined, more="\n".join(more))


def _wait_idle(controller: BareController, count: int) -> None:
    deadline = time.monotonic() + UP_S
    said = ""
    while time.monotonic() < deadline:
        said = controller.ask("sinfo", "--noheader", "--format=%T %D")
        if said.split() == ["idle", str(count)]:
            return
        time.sleep(0.2)
    raise TimeoutError(f"not all of {count} nodes are idle after {UP_S:.0f} s: {said}")


def _hold_against_slurm(controller: BareController, arm: Arm) -> None:
    """Compare the map that Slurm has with the one that it was told."""
    heard = controller.places()
    told = arm.told or {}
    wrong = sorted(node for node in told if heard.get(node, ())[-len(told[node]) :] != told[node])
    if wrong:
        raise ValueError(
            f"{len(wrong)} nodes are elsewhere in Slurm than it was told: {wrong[0]} in {heard.get(wrong[0])}"
        )
