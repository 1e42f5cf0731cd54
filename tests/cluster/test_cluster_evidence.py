"""Evidence and a job's window on a real Slurm: saved before the drain, judged again, and attributed to the job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from installed_lab import configure, installed, put_nodes_back
from test_cluster_hooks import finish, reasons, state, submit, trail, until

from slurm_ext.gate import replay
from slurm_ext.lab.cluster import Lab
from slurm_ext.slurm import drain_record


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab of two nodes with fmslurm installed, whose prologs tell dcgm-exporter which job has which GPU."""
    with installed(new_lab, "v", nodes=2) as lab:
        for node in lab.nodes:
            lab.path("nodes", node, "map").mkdir(mode=0o755)
        configure(lab, "gate", dcgm_job_mapping_dir=f"{lab.path('nodes')}/%n/map")
        yield lab


@pytest.fixture(autouse=True)
def whole(site: Lab) -> Iterator[None]:
    """Heal every node and resume it after each test."""
    yield
    put_nodes_back(site)


def mapped(lab: Lab, node: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(lab.path("nodes", node, "map")).iterdir()}


def running(lab: Lab, *options: str) -> tuple[str, str]:
    """Start a job that waits, and return its id and its node once its prolog is done."""
    job, _ = submit(lab, "sleep 60\n", "-N1", *options)
    until(lambda: state(lab, job) == "RUNNING", "the job runs")
    node = lab.run(["squeue", "-h", "-j", job, "-o", "%N"]).stdout.strip()
    until(lambda: trail(lab, node, job, "gate.prolog"), "the prolog is done")
    return job, node


def test_what_convicted_a_node_lies_on_the_share_before_it_is_drained(site: Lab) -> None:
    bad = site.nodes[0]
    site.fault(bad, "gpu-lost", gpu=3)
    job, _ = submit(site, "true\n", "-N1")
    until(lambda: bad in reasons(site), f"{bad} is drained")
    until(lambda: trail(site, bad, job, "gate.prolog-acted"), "the event is there")
    bundle = trail(site, bad, job, "gate.prolog-acted")[0]["data"]["bundle"]
    assert bundle.startswith(str(site.path("share", "evidence", bad)))
    verdict = replay.judge(bundle)
    assert (verdict.verdict, verdict.rule) == ("fail", "gpu.lost")
    record = drain_record.read(str(site.path("share")), bad)
    assert record is not None
    assert record.bundle == bundle


def test_an_xid_is_attributed_to_the_job_and_the_gpus_it_has(site: Lab) -> None:
    job, node = running(site)
    assert mapped(site, node) == {str(gpu): f"{job}\n" for gpu in range(8)}
    site.fault(node, "gpu-xid", xid=31)
    site.run(["scancel", job])
    until(lambda: trail(site, node, job, "gate.epilog"), "the epilog is done")
    (event,) = trail(site, node, job, "gate.epilog")
    (told,) = [one for one in event["data"]["attributed"] if one["id"] == "gpu.xid-31"]
    assert told["of_job"] is True
    assert told["target"].startswith("gpu:")
    assert "baseline" not in event["data"]
    assert mapped(site, node) == {}


def test_a_job_that_leaves_nothing_leaves_no_file(site: Lab) -> None:
    job, _ = submit(site, "true\n", "-N1")
    finish(site, job)
    until(lambda: any(trail(site, node, job, "gate.epilog") for node in site.nodes), "the epilog is done")
    for node in site.nodes:
        assert mapped(site, node) == {}
        assert not list(Path(site.path("nodes", node)).glob("**/baselines/*.json"))
