"""A share that hangs on one node of a real cluster, which is bad besides: the hook ends in time and the job goes back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
from gated_lab import restarts
from installed_lab import configure, fmslurm, hooks_running, installed
from test_cluster_hooks import reasons, submit, until

from slurm_ext.lab import process, stale_mount
from slurm_ext.lab.cluster import Lab


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab of two nodes with the gate alone, and no controller."""
    with installed(new_lab, "sh", nodes=2) as lab:
        configure(lab, "mode", burnin="off")
        yield lab


def told(lab: Lab, node: str, job: str) -> dict[str, dict]:
    """Return what the node itself keeps of a job, by event."""
    (found,) = json.loads(fmslurm(lab, "config", "show", "site.log_dir", "--json"))["values"]
    with open(f"{found['value'].replace('%n', node)}/events.jsonl", encoding="utf-8") as stream:
        lines = [json.loads(line) for line in stream]
    return {line["event"]: line for line in lines if line.get("job") == job}


def test_a_bad_node_whose_share_hangs_is_not_drained_and_its_job_goes_back(site: Lab) -> None:
    if "namespaces" in site.state.why_mode and site.state.mode != "netns":
        pytest.skip("a hanging file system for one node needs namespaces")
    node = site.nodes[0]
    first, _ = submit(site, "true\n", "-N1", "-w", node)  # leaves the last good configuration on the node
    until(lambda: not site.run(["squeue", "-h", "-j", first]).stdout.strip(), "a first job has ended")
    until(lambda: not hooks_running(site), "all hooks have ended")
    share = str(site.path("share"))
    site.start("silent-share", [sys.executable, "-I", stale_mount.__file__, share, "hang"], node=node)
    until(lambda: f" {share} fuse" in site.run(["cat", "/proc/mounts"], node=node).stdout, "the share hangs there")
    holder = site.state.node(node).holder
    assert holder is not None
    try:
        site.fault(node, "ecc", gpu=1)
        job, _ = submit(site, "echo ran\n", "-N1", "-w", node)
        until(lambda: restarts(site, job) == 1, "the job is back")
        until(lambda: told(site, node, job).keys() & {"gate.prolog-acted", "hook.broke"}, "its hook has told")
        site.run(["scancel", job])
    finally:  # what the hooks left behind hangs till then
        process.kill([found.pid for found in process.inside(holder) if stale_mount.is_server(found.pid.pid)])
    assert reasons(site) == {}
    events = told(site, node, job)
    assert "hook.broke" not in events
    assert events["gate.prolog-acted"]["decision"].startswith("job sent back")
    assert "(on the node" in events["gate.prolog-acted"]["data"]["bundle"]
