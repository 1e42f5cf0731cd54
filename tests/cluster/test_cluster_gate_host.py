"""The node itself and Lustre on a real Slurm: what convicts drains exactly its node, and says why."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from installed_lab import installed, put_nodes_back

from slurm_ext.config.model import Settings
from slurm_ext.gate import probes, system_jobs, system_quick
from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.model import LabOptions


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    with installed(new_lab, "h") as lab:
        yield lab


@pytest.fixture(autouse=True)
def whole(site: Lab) -> Iterator[None]:
    """Heal every node and resume it after each test."""
    yield
    put_nodes_back(site)


def until(true: Callable[[], object], what: str, *, timeout_s: float = 240.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.1)


def submit(lab: Lab, script: str, *options: str) -> str:
    path = lab.path("lustre", f"job-{time.monotonic_ns()}")
    path.write_text("#!/bin/bash\n" + script)
    done = lab.run(["sbatch", "--parsable", "--gpus-per-node=8", "-t", "5", "-o", f"{path}.out", *options, str(path)])
    assert done.ok, done.words()
    return done.stdout.strip()


def reasons(lab: Lab) -> dict[str, str]:
    """Return each drained node's reason."""
    rows = [line.split("|", 2) for line in lab.run(["sinfo", "-h", "-N", "-o", "%N|%T|%E"]).stdout.splitlines()]
    return {name: reason for name, how, reason in rows if how.startswith("drain")}


def state(lab: Lab, job: str) -> str:
    return lab.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip()


def test_a_healthy_nodes_look_finds_nothing(site: Lab) -> None:
    """First of all: what the faults below leave in a node's history is told for ever."""
    job = submit(site, "true\n", "-N1", "--exclusive")
    until(lambda: state(site, job) == "COMPLETED", f"job {job} ends")
    path = site.path("share", "nodes", site.nodes[0], "events.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    said = [line for line in lines if line.get("job") == job and line["event"] in ("gate.prolog", "gate.epilog")]
    found = {f["id"] for line in said for f in line["data"]["gate"]["findings"]}
    assert not {
        id_ for id_ in found if id_.startswith(("host.", "disk.", "raid.", "fs.", "lustre.", "lnet.", "memory."))
    }, found


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nvme-gone", "fmslurm: disk.nvme-missing node: 7 of 8 local NVMe disks"),
        ("root-read-only", "fmslurm: fs.read-only fs:/: "),
        ("memory-error", "fmslurm: memory.dimm-uncorrected node: "),
        ("lustre-evicted", "fmslurm: lustre.import-bad ost:fsxlab-OST0002: EVICTED for "),
    ],
)
def test_a_node_that_is_not_whole_is_drained_and_the_job_starts_elsewhere(site: Lab, kind: str, reason: str) -> None:
    bad = site.nodes[0]
    site.fault(bad, kind)
    job = submit(site, "true\n", "-N1", "--exclusive", "-w", bad)
    until(lambda: reasons(site), "a node is drained")
    assert list(reasons(site)) == [bad]
    assert reasons(site)[bad].startswith(reason)
    site.run(["scancel", job])
    other = submit(site, "true\n", "-N2", "--exclusive")
    until(lambda: state(site, other) == "COMPLETED", f"job {other} ends")


def test_the_jobs_that_run_are_known_by_their_slurmstepd(site: Lab) -> None:
    here = probes.Here("/", site.nodes[0], "health", Settings())

    def alive() -> frozenset[str]:
        return system_jobs.live(here, system_jobs.scan(here)) or frozenset()

    job = submit(site, "sleep 60\n", "-N1", "--exclusive")
    until(lambda: job in alive(), f"a slurmstepd of job {job} is seen")
    assert site.run(["scancel", job]).ok
    until(lambda: job not in alive(), f"job {job} is over")


def programs(group: Path) -> set[str]:
    """Return the names of the programs in a control group and below it."""
    found = set()
    for listed in group.rglob("cgroup.procs"):
        for pid in listed.read_text().split():
            with contextlib.suppress(OSError):  # it has just ended
                found.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


@pytest.mark.skipif(not os.path.exists("/sys/fs/cgroup/freezer/cgroup.procs"), reason="no cgroup v1 freezer here")
def test_what_a_job_left_is_known_by_its_control_group(new_lab: type[Lab], short_dir: Path) -> None:
    """A slurmstepd that was killed leaves the job's processes in their control group, and nobody who ends them."""
    options = LabOptions(dir=f"{short_dir}/lab", nodes=1, ready=True, s3="off", cgroup=True)
    made = new_lab.up(options, print)
    try:
        node = made.nodes[0]
        # The lab's slurmd has a part of the machine's tree of its own; so has a node, of which it is the whole.
        root = short_dir / "root"
        (root / "sys/fs/cgroup").mkdir(parents=True)
        (root / "sys/fs/cgroup/freezer").symlink_to(f"/sys/fs/cgroup/freezer/{made.state.link}/{node}")
        (root / "proc").symlink_to("/proc")

        def left(phase: str, job: str) -> list[str]:
            here = probes.Here(str(root), node, phase, Settings(), job)
            return [item.finding.evidence[0] for item in system_jobs.leftovers(here, system_quick.read(here))]

        done = made.run(["sbatch", "--parsable", "-N1", "-t", "5", "-o", "/dev/null", "--wrap", "sleep 300"])
        job = done.stdout.strip()
        until(lambda: made.run(["squeue", "-h", "-o", "%T"]).stdout.strip() == "RUNNING", "the job runs")
        group = root / f"sys/fs/cgroup/freezer/slurm_{node}/uid_0/job_{job}/cgroup.procs"
        until(lambda: group.exists() and group.read_text().strip(), "its slurmstepd is in the job's group")
        # A step that ends before its program has begun leaves nothing.
        until(lambda: "sleep" in programs(group.parent), "its program runs")
        assert left("prolog", "0") == left("health", "") == []
        os.kill(int(group.read_text().split()[0]), signal.SIGKILL)
        until(lambda: left("prolog", "0"), "what it left is seen")
        assert f"of job {job}, which is over" in left("epilog", job)[0]
    finally:
        made.down()
