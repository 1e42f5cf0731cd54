"""The prolog with a burn-in of one node, as a real process with stand-in GPUs: what is told, remembered and forgotten."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_hooks_run import Site

from slurm_ext import shared

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hooks run as root, and trust only what root owns")

LOST = "3,1,1,-;NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus.\n"


class Gated(Site):
    """One node with one GPU, whose jobs get a burn-in of their own."""

    def __init__(self, folder: Path, libraries: Path) -> None:
        super().__init__(folder)
        boot = folder / "root/proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("11111111-2222-3333-4444-555555555555\n")
        hardware = folder / "root/etc/fmslurm-lab/hardware.env"
        hardware.parent.mkdir(parents=True)
        hardware.write_text("node=n0\ngpus=1\n")
        hardware.with_suffix(".json").write_text("{}")
        burnin = self.settings.burnin._replace(
            min_nodes=1,
            transport="socket",
            message_bytes=1 << 20,
            iterations=3,
            sustain_s=0.0,
            strict_sustain_s=0.0,
            deadline_s=20.0,
            rendezvous_s=10.0,
            floor_busbw_gbs=0.001,
            pair_floor_busbw_gbs=0.001,
            nccl_library=str(libraries / "libnccl.so.2"),
            cuda_library=str(libraries / "libcuda.so.1"),
        )
        mode = self.settings.mode._replace(gate="warn", burnin="warn")
        self.push(self.settings._replace(burnin=burnin, mode=mode))

    def set(self, **burnin: object) -> None:
        self.push(self.settings._replace(burnin=self.settings.burnin._replace(**burnin)))

    def gate(self, job: str, **more: str) -> dict[str, object]:
        """Run the prolog of a job; return what its event says of the burn-in."""
        said = {"SLURM_JOB_GPUS": "0", "SLURM_JOB_COMMENT": "", "SLURM_JOB_PARTITION": "gpu", **more}
        assert self.run("prolog", timeout=300, SLURM_JOB_ID=job, **said) == (0, "", "")
        (event,) = [event for event in self.events() if event.get("job") == job and event["event"] == "gate.prolog"]
        return event["data"]["burnin"]

    def ran(self, job: str, **more: str) -> bool:
        """Say whether the job got a burn-in (True), or none for a pass that still holds (False)."""
        told = self.gate(job, **more)
        if "skipped" not in told:
            assert told["verdict"] == "pass", told
            return True
        assert "passed together" in str(told["skipped"]), told
        return False

    def end(self, job: str, code: str = "0:0") -> None:
        assert self.run("epilog", SLURM_JOB_ID=job, SLURM_JOB_EXIT_CODE2=code)[0] == 0


@pytest.fixture
def site(tmp_path: Path, libraries: Path) -> Gated:
    (tmp_path / "site").mkdir()
    return Gated(tmp_path / "site", libraries / "lib")


def test_a_pass_counts_again_until_something_speaks_against_it(site: Gated) -> None:
    assert site.ran("1")
    site.end("1")
    assert not site.ran("2")
    site.end("2", "1:0")  # how a job ended may say something of the node
    assert site.ran("3")
    site.end("3", "0:15")
    assert site.ran("4")
    site.end("4")
    assert not site.ran("5")
    boot = site.folder / "root/proc/sys/kernel/random/boot_id"
    boot.write_text("99999999-2222-3333-4444-555555555555\n")
    assert site.ran("6")
    driver = site.folder / "root/proc/driver/nvidia/version"
    driver.parent.mkdir(parents=True)
    driver.write_text("NVRM version: NVIDIA UNIX Open Kernel Module  580.65.06\n")
    assert site.ran("7")
    assert not site.ran("8")
    site.set(reuse_pass_h=0.0)
    assert site.ran("9")


def test_a_strict_pass_is_not_had_for_a_normal_one(site: Gated) -> None:
    assert site.ran("1")
    assert site.gate("2", SLURM_JOB_COMMENT="fm:1;b=strict")["strict"] is True
    assert not site.ran("3", SLURM_JOB_COMMENT="fm:1;b=strict")
    assert not site.ran("4")
    site.set(user_may=("normal",), strict_partitions=("large",), reuse_pass_h=0.0)
    assert site.gate("5", SLURM_JOB_COMMENT="fm:1;b=strict")["strict"] is False
    assert site.gate("6", SLURM_JOB_COMMENT="fm:1;b=skip", SLURM_JOB_PARTITION="large")["strict"] is True


def test_a_finding_of_the_health_check_between_jobs_voids_a_pass(site: Gated) -> None:
    assert site.ran("1")
    site.end("1")
    site.run("health")
    assert not site.ran("2")
    kmsg = site.folder / "root/var/log/kmsg.log"
    before = kmsg.read_text()
    kmsg.write_text(before + LOST)
    site.run("health")
    kmsg.write_text(before)  # gone again: what was seen was seen
    assert site.ran("3")


def test_a_finding_in_the_jobs_own_time_voids_a_pass(site: Gated) -> None:
    assert site.ran("1")
    kmsg = site.folder / "root/var/log/kmsg.log"
    before = kmsg.read_text()
    kmsg.write_text(before + LOST)
    site.end("1")
    kmsg.write_text(before)
    assert site.ran("2")


def test_the_jobs_log_gets_one_line_of_what_was_measured(site: Gated) -> None:
    assert site.ran("1")
    lines = site.job_file("1")["lines"]
    assert len(lines) == 1
    assert lines[0].startswith("1 node, 1 GPUs: all-reduce right, ")
    assert " GB/s inside the node" in lines[0]
    site.end("1")
    assert not site.ran("2")
    (line,) = site.job_file("2")["lines"]
    assert "no burn-in: these nodes passed together 0 min ago (c/1-0)" in line


def test_the_job_is_told_where_its_nccl_was_not_tested(site: Gated) -> None:
    assert site.ran("1")
    batch = {"SLURM_JOB_ID": "1", "ENVIRONMENT": "BATCH"}
    step = {**batch, "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_NODES": "2"}
    said = "print fmslurm: NCCL_ALGO=Ring in this job, the nodes were tested without it\n"
    assert said in site.run("task-prolog", NCCL_ALGO="Ring", **batch)[1]
    assert site.run("task-prolog", NCCL_ALGO="Ring", **step)[1].endswith(said)
    for other in (
        {"SLURM_PROCID": "1"},
        {"SLURM_STEP_NUM_NODES": "1"},
        {"ENVIRONMENT": ""},
        {"SLURM_STEP_NUM_NODES": "x"},
    ):
        assert "print" not in site.run("task-prolog", NCCL_ALGO="Ring", **{**step, **other})[1]
    assert "NCCL" not in site.run("task-prolog", NCCL_DEBUG="INFO", **batch)[1]
    hostile = "a\nprint evil\nexport PATH=/evil"
    out = site.run("task-prolog", NCCL_ALGO=hostile, **batch)[1]
    assert "NCCL_ALGO=a?print evil?export PATH=/evil in this job" in out
    assert not [line for line in out.splitlines() if line.startswith(("print evil", "export PATH"))]
    site.set(nccl_check=False, reuse_pass_h=0.0)
    assert site.ran("2")
    assert "NCCL" not in site.run("task-prolog", **{**batch, "SLURM_JOB_ID": "2", "NCCL_ALGO": "Ring"})[1]


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Put a file system without a free byte over a folder."""
    for name in ("burnin", "jobs"):
        (folder / name).mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "none", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as stream:
            while stream.write(b"x" * 4096):
                pass
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("name", ["run", "log", "state"])
def test_a_full_disk_holds_no_job_and_convicts_no_node(site: Gated, name: str) -> None:
    site.mode(gate="enforce", burnin="enforce")
    site.set(on_unknown="pass")
    site.run("prolog", SLURM_JOB_ID="1")
    with full_disk(site.folder / name):
        code, out, err = site.run("prolog", timeout=300, SLURM_JOB_ID="2", SLURM_JOB_GPUS="0")
        assert (code, out, err) == (0, "", "")
        assert site.run("epilog", SLURM_JOB_ID="2", SLURM_JOB_EXIT_CODE2="1:0")[0] == 0
    told = (site.folder / "share/nodes/n0/events.jsonl").read_text().splitlines()
    (event,) = [line for line in map(json.loads, told) if line.get("job") == "2" and line["event"] == "gate.prolog"]
    assert event["decision"] == "pass"
    assert event["data"]["burnin"]["verdict"] in ("pass", "unknown")
    assert event["data"]["burnin"]["culprits"] == []


def test_what_goes_on_in_the_gate_can_be_asked(site: Gated) -> None:
    share = str(site.folder / "share")
    assert shared.gate_state(share, "c/77-0") is None
    path = shared.attempt_path(share, "c/77-0", shared.gate_file("n0"))
    state = {
        "schema": 1,
        "node": "n0",
        "phase": "waiting",
        "waiting": ["n3"],
        "absent": 2,
        "since": 100.0,
        "began": 90.0,
    }
    assert shared.write_json(path, state)
    newer = {**state, "node": "n1", "phase": "pairs", "waiting": [], "absent": 0, "since": 120.0}
    found = shared.gate_state(share, "c/77-0")
    assert found is not None
    assert shared.gate_words(found, now=107.0) == "burn-in: waiting for n3 and 1 more for 7 s"
    assert shared.write_json(shared.attempt_path(share, "c/77-0", shared.gate_file("n1")), newer)
    found = shared.gate_state(share, "c/77-0")
    assert found is not None
    assert shared.gate_words(found, now=125.0) == "burn-in: finding the culprit: in pairs for 5 s"
    for broken in ({"phase": "x\ny"}, {"waiting": ["../x"]}, {"since": "soon"}, {"node": ""}):
        assert shared.gate_state_from({**state, **broken}) is None
