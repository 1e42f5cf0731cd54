"""The hooks on a real Slurm: a job that passes and what it is told, a node that is convicted, checks that hang."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from installed_lab import config_path, configure, fmslurm, hooks_running, installed, put_nodes_back

from slurm_ext.lab.cluster import Lab


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab of four nodes of its own with fmslurm installed: hooks change what every job of a lab sees."""
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


def submit(lab: Lab, script: str, *options: str) -> tuple[str, str]:
    """Submit a batch script and return the job's id and the path of its output on the shared file system."""
    path = lab.path("lustre", f"job-{time.monotonic_ns()}")
    path.write_text("#!/bin/bash\n" + script)
    out = f"{path}.out"
    argv = ["sbatch", "--parsable", "--gpus-per-node=8", "-t", "5", "-o", out, *options, str(path)]
    done = lab.run(argv)
    assert done.ok, done.words()
    return done.stdout.strip(), out


def read(path: str) -> str:
    return Path(path).read_text()


def state(lab: Lab, job: str) -> str:
    return lab.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip()


def finish(lab: Lab, job: str, *, timeout_s: float = 240.0) -> None:
    until(lambda: state(lab, job) in ("COMPLETED", "FAILED", "CANCELLED"), f"job {job} ends", timeout_s=timeout_s)
    assert state(lab, job) == "COMPLETED"


def reasons(lab: Lab) -> dict[str, str]:
    """Return each drained node's reason."""
    said = lab.run(["sinfo", "-h", "-N", "-o", "%N|%T|%E"]).stdout
    rows = [line.split("|", 2) for line in said.splitlines()]
    return {name: reason for name, how, reason in rows if how.startswith("drain")}


def trail(lab: Lab, node: str, job: str, event: str) -> list[dict[str, object]]:
    path = lab.path("share", "nodes", node, "events.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line.get("job") == job and line["event"] == event]


def test_a_job_passes_and_its_batch_script_knows_its_run(site: Lab) -> None:
    job, out = submit(
        site,
        'echo "run $FMSLURM_RUN_ID attempt $FMSLURM_ATTEMPT restore <${FMSLURM_RESTORE_DIR-unset}>"\n'
        "srun bash -c 'echo \"task $FMSLURM_RUN_ID\"'\n",
        "-N2",
        "--comment=mine fm:1;r=;n=llama",
    )
    finish(site, job)
    said = read(out)
    assert f"run llama attempt {site.state.cluster}/{job}-0 restore <>" in said
    assert said.count("task llama") == 2
    assert "fmslurm: 2 nodes, 16 GPUs: all-reduce right, " in said
    assert f" s; leader {site.nodes[0]}\n" in said
    assert said.count("fmslurm: ") == 2  # what was measured, and where it starts from
    assert reasons(site) == {}


def test_a_job_of_one_node_without_our_token_gets_the_local_gate_alone(site: Lab) -> None:
    job, out = submit(site, "echo done\n", "-N1")
    finish(site, job)
    said = read(out)
    assert "done" in said
    assert said.count("fmslurm: gate on") == 1
    assert "8 GPUs, 32 EFA devices" in said
    assert "; no burn-in: 1 node, fewer than burnin.min_nodes" in said


def test_a_lost_gpu_drains_exactly_that_node_and_the_job_starts_elsewhere(site: Lab) -> None:
    bad = site.nodes[0]
    site.fault(bad, "gpu-lost", gpu=3)
    job, out = submit(site, "echo ran on $SLURMD_NODENAME\n", "-N1", "--comment=fm:1;r=")
    # Slurm fills nodes in order: the first node is tried first.
    until(lambda: bad in reasons(site), f"{bad} is drained")
    assert reasons(site)[bad].startswith("fmslurm: gpu.lost gpu@0000:86:00: ")
    # With or without a controller that does it: the wait after a requeue is not what is tried here.
    until(lambda: state(site, job) in ("PENDING", "COMPLETED"), "the job is back")
    site.run(["scontrol", "update", f"jobid={job}", "StartTime=now+4"])
    finish(site, job)
    assert f"ran on {bad}" not in read(out)
    assert list(reasons(site)) == [bad]
    assert trail(site, bad, job, "gate.prolog")[0]["decision"] == "drain"
    assert trail(site, bad, job, "node.drain")


def test_an_xid_during_the_job_drains_its_node_in_the_epilog_with_the_kernels_words(site: Lab) -> None:
    job, _ = submit(site, "sleep 30\n", "-N1")
    until(lambda: state(site, job) == "RUNNING", "the job runs")
    node = site.run(["squeue", "-h", "-j", job, "-o", "%N"]).stdout.strip()
    until(lambda: trail(site, node, job, "gate.prolog"), "the prolog is done")
    site.fault(node, "gpu-xid", xid=95)
    site.run(["scancel", job])
    until(lambda: node in reasons(site), f"{node} is drained")
    assert reasons(site)[node].startswith("fmslurm: gpu.xid-95 ")
    (event,) = trail(site, node, job, "gate.epilog")
    assert any("95, " in line for line in event["data"]["kernel"])
    assert list(reasons(site)) == [node]


def test_a_users_own_fault_drains_nothing(site: Lab) -> None:
    job, _ = submit(site, "sleep 30\n", "-N1")
    until(lambda: state(site, job) == "RUNNING", "the job runs")
    node = site.run(["squeue", "-h", "-j", job, "-o", "%N"]).stdout.strip()
    until(lambda: trail(site, node, job, "gate.prolog"), "the prolog is done")
    site.fault(node, "gpu-xid", xid=31)
    site.run(["scancel", job])
    until(lambda: trail(site, node, job, "gate.epilog"), "the epilog is done")
    assert reasons(site) == {}
    assert trail(site, node, job, "gate.epilog")[0]["data"]["gate"]["verdict"] == "pass"


def test_a_file_system_that_hangs_holds_no_job(site: Lab) -> None:
    for node in site.nodes:
        if "namespaces" in site.state.why_mode and site.state.mode != "netns":
            pytest.skip("a hanging file system for one node needs namespaces")
        site.fault(node, "lustre-stale", how="hang")
    script = site.path("job-hang")
    script.write_text("#!/bin/bash\ntrue\n")
    started = time.monotonic()
    argv = ["sbatch", "--parsable", "-N1", "--gpus-per-node=8", "-o", "/dev/null", "-D", "/", str(script)]
    job = site.run(argv).stdout.strip()
    finish(site, job)
    assert time.monotonic() - started < 240, "it waits for no file system"
    assert reasons(site) == {}


def test_hostile_text_reaches_nothing(site: Lab) -> None:
    marker = site.path("marker")
    comment = f"$(touch {marker})\n`touch {marker}`\nFMSLURM_X=1 fm:1;c=/../etc"
    job, _ = submit(site, "true\n", "-N1", f"--comment={comment}")
    finish(site, job)
    assert not marker.exists()
    assert reasons(site) == {}


def test_who_cancels_in_the_gate_waits_for_nobody_and_gets_no_job_back(site: Lab) -> None:
    bad = site.nodes[3]
    site.fault(bad, "nccl-hang", where="init")
    configuration = config_path(site).read_text()
    configure(site, deadline_s=240.0)
    try:
        job, out = submit(site, "echo ran\n", "-N4")
        until(lambda: hooks_running(site), "the gate has begun")
        time.sleep(2)  # into the burn-in, where nothing would happen for minutes
        site.run(["scancel", job])
        until(lambda: not site.run(["squeue", "-h", "-j", job]).stdout.strip(), "the job has gone", timeout_s=80.0)
    finally:
        config_path(site).write_text(configuration)
        fmslurm(site, "config", "push")
    assert not hooks_running(site)
    assert state(site, job) == "CANCELLED"
    assert reasons(site) == {}
    assert not Path(out).exists()


def test_salloc_and_srun_are_gated_and_run(site: Lab) -> None:
    done = site.run(
        ["srun", "-N2", "--gpus-per-node=8", "-t", "2", "bash", "-c", "echo it is $FMSLURM_RUN_ID"], timeout_s=240
    )
    assert done.ok, done.words()
    assert done.stdout.count(f"it is {site.state.cluster}-") == 2
