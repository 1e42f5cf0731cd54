"""GPUs on a real Slurm: what a job's time or its end shows, and whose GPU decides on a node that jobs share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest
from installed_lab import installed, put_nodes_back

from slurm_ext.lab.cluster import Lab


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    with installed(new_lab, "g") as lab:
        yield lab


@pytest.fixture(autouse=True)
def whole(site: Lab) -> Iterator[None]:
    """Heal every node and resume it after each test."""
    yield
    put_nodes_back(site)


def empty(lab: Lab) -> bool:
    """Cancel what a failing prolog sent back meanwhile, and say whether nothing is left."""
    lab.run(["scancel", "--user=root"])
    return not lab.run(["squeue", "-h"]).stdout.strip()


def until(true: Callable[[], object], what: str, *, timeout_s: float = 240.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.1)


def submit(lab: Lab, *options: str) -> str:
    path = lab.path("lustre", f"job-{time.monotonic_ns()}")
    path.write_text("#!/bin/bash\nsleep 60\n")
    done = lab.run(["sbatch", "--parsable", "-N1", "-t", "5", "-o", "/dev/null", *options, str(path)])
    assert done.ok, done.words()
    return done.stdout.strip()


def reasons(lab: Lab) -> dict[str, str]:
    rows = [line.split("|", 2) for line in lab.run(["sinfo", "-h", "-N", "-o", "%N|%T|%E"]).stdout.splitlines()]
    return {name: reason for name, how, reason in rows if how.startswith("drain")}


def trail(lab: Lab, node: str, job: str, event: str) -> list[dict[str, object]]:
    path = lab.path("share", "nodes", node, "events.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line.get("job") == job and line["event"] == event]


def begun(lab: Lab, job: str) -> str:
    """Wait until a job's prolog is done, and return its node."""
    until(lambda: lab.run(["squeue", "-h", "-j", job, "-o", "%N"]).stdout.strip(), f"job {job} has a node")
    node = lab.run(["squeue", "-h", "-j", job, "-o", "%N"]).stdout.strip()
    until(lambda: trail(lab, node, job, "gate.prolog"), "the prolog is done")
    return node


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nvlink-down", "fmslurm: gpu.nvlink-down gpu:2: 17 of 18 NVLinks are up"),
        ("gpu-memory", "fmslurm: gpu.memory-leak gpu:2: 40960 MiB in use, and no program is listed"),
    ],
)
def test_what_a_job_leaves_behind_drains_its_node_in_the_epilog(site: Lab, kind: str, reason: str) -> None:
    job = submit(site, "--gpus-per-node=8")
    node = begun(site, job)
    site.fault(node, kind, gpu=2)
    site.run(["scancel", job])
    until(lambda: node in reasons(site), f"{node} is drained")
    assert reasons(site) == {node: reason}


def test_a_gpu_that_was_slowed_in_the_jobs_time_is_told_with_the_job(site: Lab) -> None:
    job = submit(site, "--gpus-per-node=8")
    node = begun(site, job)
    site.fault(node, "gpu-hot", gpu=2)
    site.run(["scancel", job])
    until(lambda: trail(site, node, job, "gate.epilog"), "the epilog is done")
    (event,) = trail(site, node, job, "gate.epilog")
    found = {one["id"]: one["target"] for one in event["data"]["gate"]["findings"]}  # type: ignore[index]
    # A share of a few seconds proves nothing: told, and not held against the node.
    assert found["gpu.hw-thermal"] == "gpu:2"
    assert found["gpu.hot"] == "gpu:2"
    assert reasons(site) == {}


def test_on_a_shared_node_another_jobs_gpu_stops_nobody(site: Lab) -> None:
    first = submit(site, "--gpus-per-node=1", "--mem=10")
    node = begun(site, first)
    site.fault(node, "ecc", gpu=7)
    other = submit(site, "--gpus-per-node=1", "--mem=10", f"--nodelist={node}")
    assert begun(site, other) == node
    (event,) = trail(site, node, other, "gate.prolog")
    assert event["decision"] == "pass"
    (found,) = [one for one in event["data"]["gate"]["findings"] if one["id"] == "gpu.ecc-uncorrected"]  # type: ignore[index]
    assert found["evidence"][-1] == "this GPU is not one of the job's"
    assert reasons(site) == {}
    for job in (first, other):
        site.run(["scancel", job])
    until(lambda: empty(site), "both are gone")
    submit(site, "--gpus-per-node=8", f"--nodelist={node}")
    until(lambda: node in reasons(site), f"{node} is drained for the job that gets all its GPUs")
    assert reasons(site)[node].startswith("fmslurm: gpu.ecc-uncorrected gpu:7: ")


def test_a_job_without_gpus_is_stopped_by_none_and_one_with_the_node_to_itself_by_each(site: Lab) -> None:
    first = submit(site, "--mem=10")
    node = begun(site, first)
    site.fault(node, "ecc", gpu=7)
    other = submit(site, "--mem=10", f"--nodelist={node}")
    assert begun(site, other) == node
    (event,) = trail(site, node, other, "gate.prolog")
    assert event["decision"] == "pass"
    (found,) = [one for one in event["data"]["gate"]["findings"] if one["id"] == "gpu.ecc-uncorrected"]  # type: ignore[index]
    assert found["evidence"][-1] == "the job has no GPUs", "GresTypes stands in a file that slurm.conf includes"
    assert reasons(site) == {}
    for job in (first, other):
        site.run(["scancel", job])
    until(lambda: empty(site), "both are gone")
    submit(site, "--exclusive", f"--nodelist={node}")  # asks for no GPU, and is given all of the node's
    until(lambda: node in reasons(site), f"{node} is drained for the job that has the whole node")
    assert reasons(site)[node].startswith("fmslurm: gpu.ecc-uncorrected gpu:7: ")
    until(lambda: empty(site), "the job that was sent back is gone")
