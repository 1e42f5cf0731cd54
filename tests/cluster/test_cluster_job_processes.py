"""A real slurmd with proctrack/cgroup: what escaped from a job is ended by its epilog, what another job runs is left alone."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed_lab import configure, fmslurm
from test_cluster_hooks import trail, until

from slurm_ext.lab.build import FREEZER
from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.model import LabOptions

pytestmark = pytest.mark.skipif(not os.path.exists(f"{FREEZER}/cgroup.procs"), reason="no cgroup v1 freezer here")

#: It leaves its session and its parent: neither a process group nor the tree of processes leads from the job to it.
SCRIPT = "#!/bin/bash\n(setsid bash -c 'exec -a escaped sleep 611' &)\nsleep 300\n"


@pytest.fixture
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab of one node whose slurmd keeps each job in a control group, with the gate alone."""
    with tempfile.TemporaryDirectory(prefix="fmleft-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        options = LabOptions(dir=f"{folder}/lab", nodes=1, prefix="left", ready=True, s3="off", cgroup=True)
        lab = new_lab.up(options, print)
        try:
            fmslurm(lab, "install")
            configure(lab, "mode", burnin="off")
            # A node's hardware is a tree of its own here; its control groups are the machine's.
            above = lab.root(lab.nodes[0]) / "sys/fs/cgroup"
            above.mkdir(parents=True, exist_ok=True)
            (above / "freezer").symlink_to(FREEZER)
            yield lab
        finally:
            lab.down()


def group(lab: Lab, job: str) -> Path:
    node = lab.nodes[0]
    return Path(FREEZER, lab.state.link, node, f"slurm_{node}/uid_0/job_{job}")


def members(folder: Path) -> list[int]:
    path = folder / "cgroup.procs"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def escaped(lab: Lab, job: str) -> int:
    """Return the process (as this machine numbers it) that left its job's session, 0 where there is none (yet)."""
    for pid in members(group(lab, job) / "step_batch"):
        line = Path(f"/proc/{pid}/cmdline")
        if line.exists() and line.read_bytes().startswith(b"escaped\0"):
            return pid
    return 0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def submit(lab: Lab) -> str:
    script = lab.path("lustre", "escape")
    script.write_text(SCRIPT)
    argv = ["sbatch", "--parsable", "-N1", "-n1", "--gpus-per-node=1", "-t", "5", "-o", "/dev/null", str(script)]
    done = lab.run(argv)
    assert done.ok, done.words()
    return done.stdout.strip()


def seen_by_hooks(lab: Lab, pid: int) -> None:
    """Let the hooks find the kernel's word on a process in the node's tree, under the number that it has on the node."""
    told = Path(f"/proc/{pid}/status").read_text().splitlines()
    number = next(line.split()[-1] for line in told if line.startswith("NSpid:"))
    (lab.root(lab.nodes[0]) / "proc" / number).symlink_to(f"/proc/{number}")


def test_what_escaped_is_ended_and_another_jobs_is_not(site: Lab) -> None:
    node = site.nodes[0]
    jobs = [submit(site), submit(site)]
    for job in jobs:
        until(lambda job=job: escaped(site, job), f"a process of job {job} has escaped")
    mine, other = (escaped(site, job) for job in jobs)
    for pid in (mine, other):
        seen_by_hooks(site, pid)
    assert os.getsid(mine) not in members(group(site, jobs[0])), "no session of its slurmstepd"
    # slurmstepd ends all that is in its group, the escaped too; where it dies itself nobody does.
    (stepd,) = members(group(site, jobs[0]))
    others_stepd = members(group(site, jobs[1]))
    os.kill(stepd, signal.SIGKILL)
    assert site.run(["scancel", jobs[0]]).ok
    until(lambda: trail(site, node, jobs[0], "gate.epilog"), "its epilog has run")
    (event,) = trail(site, node, jobs[0], "gate.epilog")
    assert len([line for line in event["data"]["cleaned"] if line.startswith("job process ")]) >= 1, event
    until(lambda: not alive(mine), "it is ended")
    assert alive(other)
    assert members(group(site, jobs[1])) == others_stepd != []
    assert site.run(["squeue", "-h", "-j", jobs[1], "-o", "%T"]).stdout.strip() == "RUNNING"
