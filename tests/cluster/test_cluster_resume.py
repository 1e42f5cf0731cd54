"""fmslurm-controller on a real Slurm: who is brought back and who is not, at once, with dependants alive, over its own death."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_ext.command import call_bounded
from slurm_ext.config import yaml_file
from slurm_ext.lab import process
from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.model import Pid
from slurm_ext.resume import serve
from slurm_ext.resume.daemon import socket_path
from slurm_ext.slurm import connect
from slurm_ext.slurm.model import Job

CHECKOUT = Path(__file__).resolve().parents[2]
STEP = 'echo "step: ${SLURM_RESTART_COUNT:-0} loss: 1.5"\n'


def until(what: Callable[[], object], timeout_s: float = 240.0) -> object:
    deadline = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
    return found


def _is_controller(pid: int) -> bool:
    try:
        return b"slurm_ext.resume.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Site:
    """The lab with a controller of ours in it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.settings = yaml_file.load(str(lab.path("etc/fmslurm/fmslurm.yaml")))
        self.slurm = connect(self.settings)
        self.share = Path(self.settings.site.share)

    def beat(self) -> dict:
        try:
            return json.loads((self.share / "controller" / "heartbeat.json").read_text())
        except (OSError, ValueError):
            return {}

    def start(self) -> None:
        """Start the daemon (one that runs already stays) and wait for its sign of life."""
        began = time.time()
        program = str(CHECKOUT / "bin" / "fmslurm-controller")
        config = str(self.lab.path("etc/fmslurm/fmslurm.yaml"))
        self.lab.start("fmslurm-controller", [program, "--config", config])
        until(lambda: self.beat().get("time", 0) > began)

    def daemons(self) -> list[Pid]:
        """Return the controllers of this very lab. The pid in a heartbeat counts in the lab's own PID namespace: never kill by it."""
        return [found.pid for found in process.marked(self.lab.dir) if _is_controller(found.pid.pid)]

    def end(self, number: int) -> None:
        """Send a signal to this lab's controllers and wait for their end."""
        assert not process.kill(self.daemons(), timeout_s=240, number=number)

    def submit(self, script: str, *options: str, comment: str = "fm:1;r=") -> str:
        path = self.lab.path("lustre", f"job-{time.monotonic_ns()}.sbatch")
        path.write_text("#!/bin/bash\n" + script)
        log = f"--output={self.lab.path('lustre')}/%j.out"
        argv = [
            "sbatch",
            "--parsable",
            "--requeue",
            "--open-mode=append",
            f"--comment={comment}",
            log,
            *options,
            str(path),
        ]
        result = self.lab.run(argv, timeout_s=240)
        assert result.ok, result.words()
        return result.stdout.strip()

    def job(self, job_id: str) -> Job:
        found = self.slurm.jobs([job_id])
        assert found, f"Slurm knows no job {job_id}"
        return found[0]

    def is_in(self, job_id: str, state: str, restarts: int = 0) -> bool:
        job = self.job(job_id)
        return job.state == state and job.restarts == restarts and "COMPLETING" not in job.flags

    def why(self, job_id: str) -> dict:
        result = self.lab.run([sys.executable, "-m", "slurm_ext.cli", "why", job_id, "--json"])
        return json.loads(result.stdout) if result.ok else {}

    def decided(self, job_id: str) -> dict | None:
        runs = self.why(job_id).get("runs", [])
        return next((run for run in runs if "decision" in run), None)


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    made = Site(lab)
    for name in ("controller", "nodes", "jobs", "ledger", "config"):
        (made.share / name).mkdir(exist_ok=True)
    ran_before = bool(made.daemons())
    made.start()
    yield made
    if not ran_before:
        made.end(signal.SIGTERM)


def test_a_bug_is_not_requeued_and_why_says_so(site: Site):
    job = site.submit(STEP + "echo \"KeyError: 'pixel_values'\"; exit 1\n", "-N2")
    until(lambda: site.is_in(job, "FAILED"))
    run = until(lambda: site.decided(job))
    assert run["decision"]["action"] == "stop"
    assert run["cause"]["class"] == "user-code"
    assert site.job(job).restarts == 0
    text = site.lab.run([sys.executable, "-m", "slurm_ext.cli", "why", job]).stdout
    assert "KeyError: 'pixel_values'" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_a_job_that_did_not_ask_is_left_alone(site: Site):
    job = site.submit(STEP + "echo 'uncorrectable ECC error encountered'; exit 1\n", comment="mine")
    until(lambda: site.is_in(job, "FAILED"))
    asked = site.submit(STEP + "echo \"KeyError: 'x'\"; exit 1\n")
    until(lambda: site.decided(asked))  # the controller has looked since
    assert site.job(job).restarts == 0


def test_killed_slurmd_the_job_runs_again_elsewhere_at_once(site: Site):
    script = STEP + 'if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then sleep 300; fi\nexit 0\n'
    job = site.submit(script, "-N2", "--exclude=" + site.lab.nodes[-1])
    after = site.submit("true\n", f"--dependency=afterok:{job}", comment="")
    until(lambda: site.is_in(job, "RUNNING"))
    first = site.lab.run(["scontrol", "show", "hostnames", site.job(job).nodes]).stdout.split()
    until(lambda: site.why(job).get("runs"))  # the controller has seen it run, and where
    victim = first[-1]
    site.lab.fault(victim, "slurmd-kill")
    try:
        # Once it has missed it: an answer from before the kill, looked at late, would put the node back into service.
        until(
            lambda: (
                {"*", "down"}
                & set(site.lab.run(["sinfo", "-h", "-n", victim, "-o", "%T"]).stdout.strip().partition("*"))
            ),
        )
        # slurmctld would say so itself after SlurmdTimeout; that wait is not what is tried here.
        site.lab.run(["scontrol", "update", f"nodename={victim}", "state=down", "reason=Not responding"])
        lost_at = time.monotonic()
        until(lambda: site.job(job).restarts == 1 and site.job(job).state in ("RUNNING", "COMPLETED"))
        waited_s = time.monotonic() - lost_at
        until(lambda: site.is_in(job, "COMPLETED", 1))
        assert waited_s < 100, "Slurm's own wait of two minutes is gone"
        second = site.lab.run(["scontrol", "show", "hostnames", site.job(job).nodes]).stdout.split()
        assert victim not in second
        run = site.decided(job)
        assert run["cause"]["culprit_nodes"] == [victim]
        assert set(run["cause"]["innocent_nodes"]) == set(first) - {victim}
        excluded = site.lab.run(["scontrol", "show", "hostnames", site.job(job).excluded_nodes]).stdout.split()
        assert set(excluded) == {victim, site.lab.nodes[-1]}  # the user's own stays
        until(lambda: site.is_in(after, "COMPLETED"))
    finally:
        site.lab.heal(victim)
        site.lab.run(["scontrol", "update", f"nodename={victim}", "state=resume"])


def test_what_failed_while_the_controller_was_dead_is_found_afterwards(site: Site):
    script = (
        STEP + 'sleep 2\nif [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then echo "Segmentation fault"; exit 139; fi\nexit 0\n'
    )
    job = site.submit(script)
    until(lambda: site.why(job).get("runs"))
    site.end(signal.SIGKILL)
    until(lambda: site.is_in(job, "FAILED"))
    site.start()
    until(lambda: site.is_in(job, "COMPLETED", 1))
    assert site.decided(job)["decision"]["action"] == "requeue"
    assert [step["step"] for step in site.decided(job)["steps"]] == ["requeue", "release"]


def test_a_user_hears_of_own_jobs_only(site: Site):
    job = site.submit(STEP + "exit 0\n")
    until(lambda: site.why(job).get("runs"))
    path = socket_path(site.settings)

    def as_nobody() -> bytes:
        os.setgid(65534)
        os.setuid(65534)
        return json.dumps([serve.ask(path, {"ask": "why", "job": job}), serve.ask(path, {"ask": "jobs"})]).encode()

    told = json.loads(call_bounded(as_nobody, timeout_s=240) or b"null")
    assert "error" in told[0]
    assert told[1]["jobs"] == []
    assert serve.ask(path, {"ask": "why", "job": job})["job"] == job
    assert "error" in serve.ask(path, {"ask": "rm -rf"})
