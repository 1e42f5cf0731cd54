"""One job's time on a node, from its prolog to its epilog, in real processes: what is attributed to it, and what goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from hook_site import Site
from simulated_node import Node, csv, folders

from slurm_ext.gate import replay
from slurm_ext.hooks import epilog
from slurm_ext.hooks.environment import HookJob
from slurm_ext.hooks.jobfile import JobFile

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hooks run as root, and trust only what root owns")

GPUS = {"SLURM_JOB_GPUS": "0-7"}
USER_FAULT = "NVRM: Xid (PCI:0000:64:00): 31, pid=4242, name=python3, Ch 00000008, MMU Fault"
HARD_FAULT = "NVRM: Xid (PCI:0000:64:00): 79, pid=4242, name=python3, GPU has fallen off the bus."


class JobNode(Node, Site):
    """A simulated node on which the hooks run, with a gate that enforces and no Slurm to ask."""

    def __init__(self, folder: Path) -> None:
        Node.__init__(self, folder)
        (folder / "share/ledger").mkdir(mode=0o755, exist_ok=True)
        self.change(slurm_bin=str(folder / "no-slurm"))
        self.mode(gate="enforce")

    def change(self, **site: str) -> None:
        self.push(self.settings._replace(site=self.settings.site._replace(**site)))

    def hook(self, kind: str, **more: str) -> dict[str, object]:
        """Run one hook and return its event."""
        before = len(self.events())
        code, _, err = self.run(kind, **{**GPUS, **more})
        assert (code, err) == (0, "")
        (event,) = [one for one in self.events()[before:] if one["event"] == f"gate.{kind}"]
        return event

    def attributed(self, **more: str) -> list[dict[str, object]]:
        return self.hook("epilog", **more)["data"]["attributed"]


@pytest.fixture
def node(tmp_path):
    return JobNode(tmp_path / "node")


@pytest.fixture
def mount(tmp_path):
    """Put a file system in place of a folder."""
    mounted: list[Path] = []

    def mount(folder: Path, options: str) -> None:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no mount here: {done.stderr.strip()}")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_job_that_leaves_nothing_is_told_as_such(node):
    node.hook("prolog")
    assert (node.folder / "run/baselines/77.json").exists()
    event = node.hook("epilog")
    assert (event["data"]["attributed"], event["data"]["cleaned"]) == ([], [])
    assert "baseline" not in event["data"]
    assert os.listdir(node.folder / "run/baselines") == []


def test_an_xid_of_the_jobs_time_names_process_and_gpu(node):
    # Of the job before: a minute after boot.
    node.write("var/log/kmsg.log", f"4,1,60000000,-;{USER_FAULT.replace('4242', '1111')}\n")
    node.hook("prolog")
    node.kernel(USER_FAULT)
    (told,) = node.attributed(SLURM_JOB_EXIT_CODE2="1:0")
    assert (told["id"], told["target"], told["pid"], told["of_job"]) == ("gpu.xid-31", "gpu:1", 4242, True)


def test_a_gpu_of_another_job_is_told_apart(node):
    node.hook("prolog", SLURM_JOB_GPUS="4-7")
    node.kernel(USER_FAULT)
    (told,) = node.attributed(SLURM_JOB_GPUS="4-7")
    assert told["of_job"] is False


def test_counters_that_grew_are_told_in_numbers(node):
    node.hook("prolog")
    node.smi(csv({(2, "ecc.errors.corrected.volatile.total"): "5"}))
    efa = sorted(os.listdir(node.root / "sys/class/infiniband"))[0]
    folder = os.path.realpath(node.root / "sys/class/infiniband" / efa)
    counter = Path(folder, "ports/1/hw_counters/unresponsive_remote_events")
    counter.unlink()
    counter.write_text("3000\n")
    told = {one["target"]: one for one in node.attributed()}
    assert told["gpu:2"]["delta"] == {"ecc_corrected": 5}
    assert told[f"efa:{efa}"]["delta"] == {"unresponsive_remote_events": 3000}


def test_of_another_attempt_nothing_is_taken(node):
    node.hook("prolog", SLURM_JOB_RESTART_COUNT="0")
    kept = (node.folder / "run/baselines/77.json").read_text()
    node.hook("epilog", SLURM_JOB_RESTART_COUNT="0")
    node.smi(csv({(2, "ecc.errors.corrected.volatile.total"): "5"}))
    node.hook("prolog", SLURM_JOB_RESTART_COUNT="1")
    (node.folder / "run/baselines/77.json").write_text(kept)
    event = node.hook("epilog", SLURM_JOB_RESTART_COUNT="1")
    assert "another attempt" in event["data"]["baseline"]
    assert event["data"]["attributed"] == []


def test_a_boot_in_between_leaves_no_baseline(node):
    node.hook("prolog")
    from slurm_ext.lab import hardware

    hardware.reboot(node.root)
    node.smi(csv({(2, "ecc.errors.corrected.volatile.total"): "5"}))
    event = node.hook("epilog")
    assert event["data"]["baseline"] == "of another boot"
    assert event["data"]["attributed"] == []


def test_an_epilog_without_a_prolog(node):
    node.kernel(USER_FAULT)
    event = node.hook("epilog", SLURM_JOB_START_TIME=str(int(time.time()) - 60))
    assert event["data"]["baseline"] == "none was written"
    assert [one["id"] for one in event["data"]["attributed"]] == ["gpu.xid-31"]
    event = node.hook("epilog")
    assert (event["data"]["window"], event["data"]["attributed"]) == (None, [])


def test_two_jobs_on_one_node_keep_to_themselves(node):
    one, two = {"SLURM_JOB_ID": "77", "SLURM_JOB_GPUS": "0-3"}, {"SLURM_JOB_ID": "78", "SLURM_JOB_GPUS": "4-7"}
    children = [node.start("prolog", **job) for job in (one, two)]
    for child in children:
        child.communicate(timeout=300)
    assert [child.returncode for child in children] == [0, 0]
    assert sorted(os.listdir(node.folder / "run/baselines")) == ["77.json", "78.json"]
    node.smi(csv({(5, "ecc.errors.corrected.volatile.total"): "5"}))
    told = {}
    for job in (one, two):
        told[job["SLURM_JOB_ID"]] = {each["target"]: each["of_job"] for each in node.attributed(**job)}
    assert told["78"] == {"gpu:5": True}
    assert told["77"] in ({}, {"gpu:5": False})
    assert os.listdir(node.folder / "run/baselines") == []


def test_a_node_that_is_renamed_meanwhile(node):
    node.hook("prolog")
    node.kernel(USER_FAULT)
    event = node.hook("epilog", SLURMD_NODENAME="n9")
    assert (event["node"], event["decision"]) == ("n9", "pass")
    assert [one["id"] for one in event["data"]["attributed"]] == ["gpu.xid-31"]
    assert (node.folder / "share/nodes/n9/events.jsonl").exists()


def test_a_node_that_is_renamed_and_whose_folders_have_its_name(node):
    node.change(run_dir=f"{node.folder}/run/%n")
    node.hook("prolog")
    node.kernel(USER_FAULT)
    event = node.hook("epilog", SLURMD_NODENAME="n9")
    assert (event["decision"], event["data"]["baseline"], event["data"]["window"]) == ("pass", "none was written", None)


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_meanwhile_moves_no_window(node, jump_s):
    node.hook("prolog")
    for name in ("jobs/77.json", "baselines/77.json"):  # as if it had been read before the clock was set
        path = node.folder / "run" / name
        data = json.loads(path.read_text())
        for key in ("started", "at_s"):
            if key in data:
                data[key] -= jump_s
        if "kept" in data:
            data["kept"]["gpu"]["at_s"] -= jump_s
        path.write_text(json.dumps(data))
    # Held down for a second in the job's two: had the clock moved the window, it would be all of it, or more.
    node.smi(csv({(2, "clocks_event_reasons_counters.hw_thermal_slowdown"): "1000000 us"}))
    node.kernel(USER_FAULT)
    event = node.hook("epilog")
    assert event["decision"] == "pass"
    assert "gpu.xid-31" in [one["id"] for one in event["data"]["attributed"]]
    begun, ended = event["data"]["window"]
    assert 0 <= ended - begun < 60


def test_with_var_full_the_verdict_is_right_and_the_event_is_on_the_share(node, mount):
    (node.folder / "var").mkdir()
    node.change(log_dir=f"{node.folder}/var/log", state_dir=f"{node.folder}/var/state")
    mount(node.folder / "var", "size=4k,mode=755")
    (node.folder / "var/filler").touch()  # a page is all there is
    with contextlib.suppress(OSError):
        (node.folder / "var/filler").write_bytes(b"x" * 4096)
    node.kernel(HARD_FAULT)
    for kind, code in (("prolog", 86), ("epilog", 0)):
        assert node.run(kind, **GPUS)[0] == code
    lines = (node.folder / "share/nodes/n0/events.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [
        (one["event"], one["rule"]) for one in found if one["event"].startswith("gate.") and "acted" not in one["event"]
    ] == [
        ("gate.prolog", "gpu.xid-79"),
        ("gate.epilog", "gpu.xid-79"),
    ]
    bundles = folders(node.folder / "share/evidence/n0")
    assert {replay.judge(str(path)).rule for path in bundles} == {"gpu.xid-79"}


def test_with_a_run_folder_that_takes_nothing_the_job_runs_and_the_event_says_so(node, mount):
    mount(node.folder / "run", "ro,mode=755")
    event = node.hook("prolog")
    assert event["decision"] == "pass"
    assert "Read-only file system" in event["data"]["baseline"]
    assert "Read-only file system" in event["data"]["job_file"]
    node.kernel(USER_FAULT)
    event = node.hook("epilog", SLURM_JOB_START_TIME=str(int(time.time()) - 60))
    assert event["data"]["baseline"] == "none was written"
    assert [one["id"] for one in event["data"]["attributed"]] == ["gpu.xid-31"]


def test_evidence_is_saved_before_a_drain_and_the_event_says_where(node):
    node.kernel(HARD_FAULT)
    assert node.run("prolog", **GPUS)[0] == 86
    acted = next(one for one in node.events() if one["event"] == "gate.prolog-acted")
    (path,) = folders(node.folder / "share/evidence/n0")
    assert acted["data"]["bundle"] == str(path)
    assert replay.judge(str(path)).rule == "gpu.xid-79"
    assert node.run("epilog", **GPUS)[0] == 0
    acted = next(one for one in node.events() if one["event"] == "gate.epilog-acted")
    assert acted["data"]["bundle"] in {str(path) for path in folders(node.folder / "share/evidence/n0")}


def test_in_shadow_no_evidence_is_saved(node):
    node.mode(gate="shadow")
    node.kernel(HARD_FAULT)
    assert node.hook("prolog")["decision"] == "would-drain"
    assert node.hook("epilog")["decision"] == "would-drain"
    assert not (node.folder / "share/evidence").exists()


@pytest.mark.parametrize(("mode", "ends"), [("enforce", True), ("warn", False), ("shadow", False)])
def test_what_a_job_left_running_is_ended_where_the_gate_enforces(node, mode, ends):
    node.mode(gate=mode)
    node.hook("prolog")
    child = subprocess.Popen(["sleep", "600"])
    try:
        group = "system.slice/slurmstepd.scope/job_77/step_0/user/task_0"
        node.write(f"sys/fs/cgroup/{group}/cgroup.procs", f"{child.pid}\n")
        node.write(f"proc/{child.pid}/cgroup", f"0::/{group}\n")
        data = node.hook("epilog")["data"]
        assert (child.poll() is not None or child.wait(60)) if ends else child.poll() is None
        assert [f"job process {child.pid}" in line for line in data["cleaned"]] == [True] * ends
        assert [f"job process {child.pid} (left)" == line for line in data.get("left", [])] == [True] * (not ends)
    finally:
        child.kill()
        child.wait()


def test_dcgm_exporter_is_told_which_job_has_which_gpu(node):
    folder = node.folder / "map"
    folder.mkdir(mode=0o755)
    (folder / "0").write_text("foreign\n")
    node.gate(dcgm_job_mapping_dir=str(folder))
    node.push(node.settings)
    node.hook("prolog", SLURM_JOB_GPUS="0,1")
    from simulated_node import uuid

    event = node.hook("prolog", SLURM_JOB_ID="78", SLURM_JOB_GPUS=f"{uuid(1)},GPU-99999999-d9cf-fef3-62e9-d92044ab6e52")
    assert "its number is not known" in event["data"]["dcgm_job_mapping"]
    assert {name: (folder / name).read_text() for name in os.listdir(folder)} == {"0": "foreign\n77\n", "1": "77\n78\n"}
    node.mode(gate="off")  # whoever turns the gate off while a job runs leaves no line behind
    assert node.run("epilog", **GPUS)[0] == 0
    assert {name: (folder / name).read_text() for name in os.listdir(folder)} == {"0": "foreign\n", "1": "78\n"}


FILE = JobFile("77", "c/77-0", "r", 0, 1000.0, began_s=50.0, boot_id="b")
JOB = HookJob("77", "c", 0, "n0", start_s=900.0)


@pytest.mark.parametrize(
    ("file", "job", "boot", "now", "boottime", "window"),
    [
        (FILE, JOB, "b", 1100.0, 150.0, (998.0, 1100.0)),
        (FILE, JOB, "b", 9000.0, 150.0, (8898.0, 9000.0)),  # the clock was set forward
        (FILE, JOB, "b", 500.0, 150.0, (398.0, 500.0)),  # or back
        (FILE, JOB, "other", 1100.0, 20.0, (998.0, 1100.0)),  # booted since: the wall clock is all there is
        (FILE, JOB, "other", 500.0, 20.0, None),
        (FILE._replace(began_s=0.0), JOB, "b", 1100.0, 150.0, (998.0, 1100.0)),  # an older release wrote it
        (FILE._replace(began_s=400.0), JOB, "b", 1100.0, 150.0, (998.0, 1100.0)),  # a future of this boot is nonsense
        (FILE._replace(boot_id=""), JOB, "", 1100.0, 150.0, (998.0, 1100.0)),
        (None, JOB, "b", 1100.0, 150.0, (898.0, 1100.0)),
        (None, JOB._replace(start_s=None), "b", 1100.0, 150.0, None),
    ],
)
def test_the_window_is_placed_by_the_kernels_clock(file, job, boot, now, boottime, window):
    assert epilog.window_of(file, job, boot, now=now, boottime=boottime) == window
