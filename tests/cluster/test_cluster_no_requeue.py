"""Jobs that Slurm does not requeue meet a convicted node on a real Slurm, with the breaker closed and open."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gated_lab import restarts, shown, why
from installed_lab import config_path, configure, fmslurm, hooks_running, installed, put_nodes_back
from test_cluster_hooks import reasons, state, until

from slurm_ext.lab.cluster import Lab


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab of three nodes with the gate alone and no controller: the hooks act by themselves."""
    with installed(new_lab, "q", nodes=3) as lab:
        configure(lab, "mode", burnin="off")
        yield lab


@pytest.fixture(autouse=True)
def whole(site: Lab) -> Iterator[None]:
    before = config_path(site).read_text()
    yield
    put_nodes_back(site)
    config_path(site).write_text(before)
    fmslurm(site, "config", "push")
    for folder in ("ledger", "drained"):
        for path in site.path("share", folder).glob("*.json"):
            path.unlink()


def breaker(lab: Lab, *, is_open: bool, when_open: str = "requeue") -> None:
    limit = 0 if is_open else 3
    configure(lab, "drain", max_per_hour=limit, max_percent_per_hour=0.0, first_boot_budget=0, when_open=when_open)


def submit(lab: Lab, *options: str) -> tuple[str, Path]:
    """Submit a job of two nodes that may not be requeued and says when it runs; return its id and log."""
    script = lab.path("lustre", f"job-{time.monotonic_ns()}")
    script.write_text("#!/bin/bash\necho ran attempt ${SLURM_RESTART_COUNT:-0}\nsrun hostname\n")
    log = Path(f"{script}.out")
    done = lab.run(
        ["sbatch", "--parsable", "--no-requeue", "--gpus-per-node=8", "-t", "5", "-o", str(log), *options, str(script)]
    )
    assert done.ok, done.words()
    return done.stdout.strip(), log


ENDED = ("COMPLETED", "FAILED", "CANCELLED")


def trail(lab: Lab, node: str) -> str:
    """Return the last that a node's hooks wrote down, for whoever reads a failure."""
    lines = lab.path("share", "nodes", node, "events.jsonl").read_text().splitlines()
    return "\n".join(line[:2000] for line in lines[-4:])


def over(lab: Lab, job: str) -> str:
    until(lambda: state(lab, job) in ENDED, f"job {job} ends")
    return state(lab, job)


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("place", [0, 1], ids=["batch host", "second node"])
def test_one_that_has_not_begun_goes_back_and_runs_elsewhere(site: Lab, is_open: bool, place: int) -> None:
    breaker(site, is_open=is_open)
    bad = site.nodes[place]
    site.fault(bad, "ecc", gpu=2)
    job, log = submit(site, "-N2")
    until(lambda: restarts(site, job) == 1 or state(site, job) in ENDED, "the job is back")
    assert restarts(site, job) == 1, site.run(["scontrol", "show", "job", job]).stdout + trail(site, bad)
    until(lambda: not hooks_running(site), "all hooks have ended")
    assert shown(site, job, "Requeue") == "0", "it is still one that may not be requeued"
    assert not log.exists(), "nothing of it has run"
    assert set(reasons(site)) == (set() if is_open else {bad})
    site.run(["scontrol", "update", f"jobid={job}", "StartTime=now+4"])
    assert over(site, job) == "COMPLETED"
    assert "ran attempt 1" in log.read_text()
    assert bad not in log.read_text(), "it ran on the two others"
    for node in site.nodes:
        # Slurm would drain it again and again where slurmd's word on a failed prolog was refused.
        assert "Retrying prolog complete" not in site.path("log", f"slurmd.{node}.log").read_text()


@pytest.mark.parametrize("when_open", ["requeue", "cancel"])
def test_salloc_runs_on_the_bad_node_or_is_cancelled_as_the_site_says(site: Lab, when_open: str) -> None:
    breaker(site, is_open=True, when_open=when_open)
    bad = site.nodes[2]
    site.fault(bad, "ecc", gpu=2)
    argv = ["salloc", "-N1", "-w", bad, "--gpus-per-node=8", "-t", "5", "bash", "-c", "echo got $SLURM_JOB_ID; sleep 2"]
    done = site.run(["timeout", "60", *argv], timeout_s=240)
    job = next(word for word in (done.stdout + done.stderr).split() if word.isdigit())
    assert over(site, job) == ("CANCELLED" if when_open == "cancel" else "COMPLETED"), done.words()
    assert reasons(site) == {}
    if when_open == "requeue":
        (named,) = why(site, job)["bad_nodes"]
        assert named["node"] == bad
        assert "no batch job" in named["why"]


def test_one_that_may_have_begun_runs_there_and_is_told(site: Lab) -> None:
    """Without DeferBatch the script starts when its own host has passed, while another node's prolog goes on."""
    breaker(site, is_open=True)
    conf = site.path("etc", "slurm", "slurm.conf")
    text = conf.read_text()
    bad = site.nodes[1]
    site.fault(bad, "ecc", gpu=2)
    try:
        conf.write_text(text.replace("Alloc,DeferBatch", "Alloc"))
        assert site.run(["scontrol", "reconfigure"]).ok
        job, log = submit(site, "-N2", "-w", f"{site.nodes[0]},{bad}")
        assert over(site, job) == "COMPLETED"
    finally:
        conf.write_text(text)
        site.run(["scontrol", "reconfigure"])
    assert restarts(site, job) == 0
    said = log.read_text()
    assert "ran attempt 0" in said
    assert f"fmslurm: NOT WELL: {bad} is convicted and runs this job all the same" in said
    assert reasons(site) == {}
    told = json.loads(site.run([sys.executable, "-m", "slurm_ext.cli", "why", job, "--json"]).stdout)
    assert [one["node"] for one in told["bad_nodes"]] == [bad]
