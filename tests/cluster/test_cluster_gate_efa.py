"""EFA on a real Slurm: what a job lost is written down as the job's, and a device that was there before and is gone drains its node."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from installed_lab import installed

from slurm_ext.lab.cluster import Lab


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    with installed(new_lab, "e", nodes=2) as lab:
        yield lab


def until(true: Callable[[], object], what: str, *, timeout_s: float = 240.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.1)


def submit(lab: Lab, node: str, script: str) -> str:
    path = lab.path("lustre", f"job-{time.monotonic_ns()}")
    path.write_text("#!/bin/bash\n" + script)
    options = ["--gpus-per-node=8", "-t", "5", "-o", f"{path}.out", "-N1", "--exclusive", "-w", node]
    done = lab.run(["sbatch", "--parsable", *options, str(path)])
    assert done.ok, done.words()
    return done.stdout.strip()


def state(lab: Lab, job: str) -> str:
    return lab.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip()


def said(lab: Lab, node: str, job: str, event: str) -> list[dict[str, Any]]:
    """Return the findings of EFA in a job's event of the gate."""
    path = lab.path("share", "nodes", node, "events.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    mine = [line for line in lines if line.get("job") == job and line["event"] == event]
    found = [finding for line in mine for finding in line["data"]["gate"]["findings"]]
    return [finding for finding in found if finding["id"].startswith("efa.")]


def test_what_a_job_lost_is_its_own_and_a_device_that_was_there_is_missed(site: Lab) -> None:
    node = site.nodes[0]
    go, began = site.path("lustre", "go"), site.path("lustre", "began")
    job = submit(site, node, f"touch {began}\nuntil [ -e {go} ]; do sleep 0.1; done\n")
    until(began.exists, f"job {job} has begun: Slurm calls it running while its prolog looks")
    site.fault(node, "efa-errors", count=10**7)
    go.write_text("")
    until(lambda: said(site, node, job, "gate.epilog"), "the epilog tells what was lost")
    told = {finding["id"]: finding for finding in said(site, node, job, "gate.epilog")}
    assert set(told) == {"efa.drops", "efa.retransmission-timeouts"}
    assert told["efa.drops"]["evidence"][-1] == f"in the time of job {job}"
    until(lambda: state(site, job) == "COMPLETED", f"job {job} ends")

    site.fault(node, "efa-lost")
    submit(site, node, "true\n")
    row = ["sinfo", "-h", "-N", "-o", "%N|%T|%E"]
    until(lambda: "|drain" in site.run(row).stdout, "a node is drained")
    drained = [line.split("|") for line in site.run(row).stdout.splitlines() if "|drain" in line]
    assert [line[0] for line in drained] == [node]
    assert drained[0][2].startswith("fmslurm: efa.missing efa:rdmap198s3: ") or drained[0][2].startswith(
        "fmslurm: efa.missing node: "
    )
