"""Real agents with stand-in GPUs, a share, and a fleet that was faster: the median reaches the leader, the line the share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from slurm_ext.burnin import history, history_line
from slurm_ext.burnin.model import BurninJob, Outcome
from slurm_ext.verdict import FAIL, PASS, WARN, Verdict


@pytest.fixture
def shared_cluster(make_cluster: Any, tmp_path: Path) -> Any:
    """Return a function that makes a cluster of N nodes with a share."""

    def make(nodes: int, **burnin: Any) -> Any:
        cluster = make_cluster(nodes, **{"sustain_s": 0.2, **burnin})
        share = tmp_path / "share"
        (share / "ledger").mkdir(parents=True)
        cluster.settings = cluster.settings._replace(site=cluster.settings.site._replace(share=str(share)))
        return cluster

    return make


def record(cluster: Any, key: dict[str, Any], busbw: float) -> None:
    """Write twenty runs of the fleet under a key, each on a set of nodes of its own."""
    for number in range(20):
        job = BurninJob("c", f"9{number}", 0, (f"a{number}", f"b{number}"), f"a{number}", 2, "p5.48xlarge")
        outcome = Outcome(Verdict(PASS, (), "right", "burnin.all-nodes"), (), busbw, 4, 1.0, {"key": key})
        line = history_line.line_of(job, outcome, now=time.time() - 3600, message_bytes=1 << 20)
        assert history.append_shared(cluster.settings.site.share, job.node, line)


def leaders_line(cluster: Any, job_id: str) -> dict[str, Any]:
    """Return the leader's line of a job once its agent, which outlives the hook, has written it."""
    deadline = time.monotonic() + 120
    while True:
        for line in history.read_shared(cluster.settings.site.share):
            if line["job"] == f"c/{job_id}-0" and line["leads"]:
                return line
        assert time.monotonic() < deadline, f"no line\n{cluster.log()}"
        time.sleep(0.05)


@pytest.mark.parametrize(("act", "verdict"), [("flag", WARN), ("drain", FAIL)])
def test_a_run_far_below_the_fleet_is_flagged_or_stopped_and_nobody_is_convicted(
    shared_cluster: Any, act: str, verdict: str
) -> None:
    cluster = shared_cluster(2, relative_act=act)
    first = cluster.run(job_id="7")
    assert {outcome.verdict.verdict for outcome in first.values()} == {PASS}, cluster.log()
    line = leaders_line(cluster, "7")
    run = history_line.run_of(line)
    assert run is not None
    assert (run.key.instance_type, run.key.bucket, run.key.message_bytes) == ("p5.48xlarge", "2", 1 << 20)
    record(cluster, line["key"], 1e6)
    second = cluster.run(job_id="8")
    assert {outcome.verdict.verdict for outcome in second.values()} == {verdict}, cluster.log()
    assert {outcome.culprits for outcome in second.values()} == {()}
    if act == "flag":
        assert {outcome.verdict.rule for outcome in second.values()} == {"burnin.below-fleet"}
    assert history_line.run_of(leaders_line(cluster, "8")) is None, "it does not pull the median down"
