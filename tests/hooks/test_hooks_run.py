"""The hooks as slurmd starts them: real processes, hostile environments, things that hang, and always an exit code of 0 or 1."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from hook_site import HOOK, ROOT, SMI, Site, silent

from slurm_ext.hooks import jobfile

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hooks run as root, and trust only what root owns")


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path / "site") if (tmp_path / "site").mkdir() is None else None


def test_a_passing_job_is_told_what_was_measured(site):
    assert site.run("prolog") == (0, "", "")
    (event,) = site.events()
    assert (event["event"], event["decision"], event["attempt"]) == ("gate.prolog", "pass", "c/77-0")
    on_share = (site.folder / "share/nodes/n0/events.jsonl").read_text()
    assert json.loads(on_share)["attempt"] == "c/77-0"
    code, out, _ = site.run("task-prolog", ENVIRONMENT="BATCH")
    assert code == 0
    assert "export FMSLURM_RUN_ID=c-77\n" in out
    assert "export FMSLURM_ATTEMPT=c/77-0\n" in out
    assert "print fmslurm: gate on n0: pass in" in out
    assert site.run("epilog", SLURM_JOB_EXIT_CODE2="0:0")[0] == 0
    assert not (site.folder / "run/jobs/77.json").exists()
    assert site.events()[-1]["event"] == "gate.epilog"


def test_the_jobs_log_gets_its_line_once(site):
    site.run("prolog")
    printed = [
        "print" in site.run("task-prolog", **env)[1]
        for env in (
            {"ENVIRONMENT": "BATCH"},
            {"ENVIRONMENT": "BATCH", "SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0"},
            {"ENVIRONMENT": "BATCH", "SLURM_STEP_ID": "-5", "SLURM_PROCID": "0"},
            {"ENVIRONMENT": "BATCH", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"},
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"},
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3"},
            {"SLURM_STEP_ID": "1", "SLURM_PROCID": "0"},
        )
    ]
    assert printed == [True, True, True, False, False, False, False]


def test_in_shadow_nobody_is_told_and_nothing_is_done(site):
    site.mode(gate="shadow")
    site.smi("#!/bin/sh\necho 'Unable to determine the device handle for GPU 0000:53:00.0: GPU is lost.'; exit 15\n")
    assert site.run("prolog")[0] == 0
    (event,) = site.events()
    assert (event["decision"], event["dry_run"], event["rule"]) == ("would-drain", True, "gpu.lost")
    assert site.job_file()["lines"] == []


HOSTILE = [
    "$(touch {marker})",
    "`touch {marker}`; touch {marker}; 'x' \"y\"",
    "line\nSLURM_JOB_ID=1\nX=$(touch {marker})",
    "fm:1;c=/etc/../etc;n=..",
    "fm:1;r=99999;n=-rf",
    "fm:1;c=%2Fetc%0A%00passwd",
    "\u202e\U0001f600 ünï \x1b[2J",
    "x" * 100_000,
    "fm:1;" * 20_000,
    "%s%n{0}{job}%(x)s",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_of_users_stays_text(site, tmp_path, text):
    marker = tmp_path / "marker"
    hostile = text.replace("{marker}", str(marker))
    more = {"SLURM_JOB_COMMENT": hostile, "SLURM_JOB_WORK_DIR": hostile, "SLURM_JOB_USER": hostile}
    more["SLURM_JOB_PARTITION"] = hostile[:1000]
    assert site.run("prolog", **more)[0] == 0
    assert site.run("task-prolog", **more)[0] == 0
    assert site.run("epilog", SLURM_JOB_EXIT_CODE2=hostile[:50], **more)[0] == 0
    assert not marker.exists()
    assert {path.name for path in (site.folder / "run").iterdir()} - {"place.json", "gpus-told.json"} == {"jobs"}
    assert [event["event"] for event in site.events()] == ["gate.prolog", "gate.epilog"]


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_JOB_ID": "../../../tmp/x"},
        {"SLURM_JOB_ID": ""},
        {"SLURMD_NODENAME": "/etc"},
        {"SLURM_NODELIST": "n[0-99999999999]"},
        {"SLURM_NODELIST": "[[["},
        {"SLURM_CLUSTER_NAME": "../.."},
        {"SLURM_JOB_RESTART_COUNT": "-1"},
        {"SLURM_JOB_UID": "99999999999999"},
        {"PYTHONPATH": "/nonexistent", "PYTHONSTARTUP": "/etc/passwd", "LD_PRELOAD": ""},
    ],
    ids=str,
)
def test_an_environment_that_makes_no_sense_passes(site, change):
    assert site.run("prolog", **change)[0] == 0
    assert site.run("epilog", **change)[0] == 0
    assert not [event for event in site.events() if event["event"] == "hook.broke"]


def test_a_tool_that_hangs_and_ignores_signals_holds_no_job(site):
    site.push(site.settings._replace(gate=site.settings.gate._replace(deadline_s=1.0)))
    site.smi("#!/bin/sh\ntrap '' TERM INT HUP\nwhile :; do sleep 60; done\n")
    started = time.monotonic()
    assert site.run("prolog")[0] == 0
    assert time.monotonic() - started < 60
    assert site.events()[0]["data"]["gate"]["verdict"] == "unknown"


def test_a_share_that_hangs_holds_no_job(site, tmp_path):
    # Opening a FIFO that nobody writes to hangs as a dead file server does; the last good configuration holds then.
    site.run("prolog")
    (site.folder / "share/config/snapshot.json").unlink()
    os.mkfifo(site.folder / "share/config/snapshot.json")
    started = time.monotonic()
    assert site.run("prolog")[0] == 0
    assert time.monotonic() - started < 60
    assert site.events()[-1]["data"]["settings"].startswith("generation 1, the last good one")


@pytest.mark.parametrize("kind", ["prolog", "health"])
def test_on_a_silent_share_a_convicted_node_is_told_of_long_before_the_hooks_deadline(site, kind):
    site.mode(gate="enforce")
    site.run("epilog")  # the last good configuration holds then
    site.smi(SMI.replace("Enabled, 0, None", "Enabled, 3, None"))
    child = site.start(kind, under=silent(site.folder / "share"))
    child.communicate(timeout=180)
    if child.returncode == 99:
        pytest.skip("no FUSE here")
    assert child.returncode == 0
    events = {event["event"]: event for event in site.events()}
    assert "hook.broke" not in events
    acted = events["gate.prolog-acted" if kind == "prolog" else "gate.health-acted"]
    assert acted["data"]["bundle"].startswith(str(site.folder / "state/evidence"))
    first = events["gate.prolog" if kind == "prolog" else "gate.health"]
    moments = [datetime.fromisoformat(event["time"].replace("Z", "+00:00")) for event in (first, acted)]
    # A dozen calls that each wait for the share take twice that.
    assert (moments[1] - moments[0]).total_seconds() < 20


def test_a_share_that_is_gone(site):
    site.run("prolog")
    for share in ("/nonexistent/share", str(site.folder / "state/last-good-config.json")):
        assert site.run("prolog", share=share)[0] == 0
    assert all(event["decision"] == "pass" for event in site.events())


def test_without_any_configuration_every_job_passes(site, tmp_path):
    assert site.run("prolog", share=str(tmp_path / "none"), local=str(tmp_path / "none")) == (0, "", "")
    assert site.events() == []


def test_a_run_folder_that_cannot_be_written_holds_no_job(site):
    (site.folder / "run").rmdir()
    (site.folder / "run").write_text("not a folder")
    assert site.run("prolog")[0] == 0
    assert "not written" in site.events()[-1]["data"]["job_file"]
    assert site.run("task-prolog") == (0, "", "")


def test_a_log_folder_that_cannot_be_written_holds_no_job(site):
    (site.folder / "log").rmdir()
    (site.folder / "log").write_text("not a folder")
    assert site.run("prolog")[0] == 0
    assert json.loads((site.folder / "share/nodes/n0/events.jsonl").read_text())["decision"] == "pass"


def test_two_prologs_at_once(site):
    both = [site.start("prolog", SLURM_JOB_ID=str(number)) for number in (1, 2, 3, 4)]
    for child in both:
        child.communicate(timeout=180)
    assert [child.returncode for child in both] == [0, 0, 0, 0]
    assert {event["job"] for event in site.events()} == {"1", "2", "3", "4"}
    assert site.job_file("3")["attempt"] == "c/3-0"


def test_the_worker_may_be_killed_and_the_job_passes(site):
    site.push(site.settings._replace(gate=site.settings.gate._replace(deadline_s=150.0)))
    site.smi(f"#!/bin/sh\necho $$ > {site.folder}/smi.pid\nsleep 600\n")
    child = site.start("prolog")
    pid_file = site.folder / "smi.pid"
    deadline = time.monotonic() + 120
    while not pid_file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    assert len(children) == 1
    os.kill(int(children[0]), signal.SIGKILL)
    started = time.monotonic()
    child.communicate(timeout=180)
    assert child.returncode == 0
    assert time.monotonic() - started < 60, "long before the hook's deadline"
    assert [event["event"] for event in site.events()] == ["hook.broke"]
    os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_a_broken_hook_passes_and_says_so(site, tmp_path):
    shutil.copytree(ROOT / "slurm_ext", tmp_path / "slurm_ext", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "bin").mkdir()
    shutil.copy(HOOK, tmp_path / "bin/fmslurm-hook")
    site.run("prolog")
    with open(tmp_path / "slurm_ext/gate/rules.py", "a") as stream:
        stream.write("\nraise RuntimeError('a release that is broken')\n")
    argv = [sys.executable, "-IS", tmp_path / "bin/fmslurm-hook", "prolog", "--share", site.folder / "share"]
    done = subprocess.run([*argv, "--local", site.folder / "state"], env=site.environ(), timeout=180)
    assert done.returncode == 0
    assert site.events()[-1]["event"] == "hook.broke"
    assert "a release that is broken" in str(site.events()[-1]["evidence"])


def test_a_hook_that_must_act_without_slurm_exits_one_only_with_a_ledger(site):
    site.mode(gate="enforce")
    site.smi("#!/bin/sh\necho 'Unable to determine the device handle for GPU 0000:53:00.0: GPU is lost.'; exit 15\n")
    # Slurm's commands are missing here: the node is convicted, the ledger allows it, Slurm drains by the exit code.
    assert site.run("prolog")[0] == 86
    assert list((site.folder / "share/ledger").iterdir())
    assert site.events()[-1]["decision"].startswith("exit 1")
    site.push(site.settings._replace(site=site.settings.site._replace(share="")))
    assert site.run("prolog", SLURM_JOB_ID="78")[0] == 0  # no ledger, no drain


def test_the_task_prolog_believes_root_alone(site):
    site.run("prolog")
    path = site.folder / "run/jobs/77.json"
    forged = json.loads(path.read_text())
    forged["exports"] = {"PATH": "/evil", "FMSLURM_RUN_ID": "a\nexport X=1", "FMSLURM_ATTEMPT": "fine"}
    path.write_text(json.dumps(forged))
    assert site.run("task-prolog")[1].splitlines()[:1] == ["export FMSLURM_ATTEMPT=fine"]
    path.chmod(0o666)
    assert site.run("task-prolog") == (0, "", "")
    path.chmod(0o644)
    os.chown(path, 12345, 12345)
    assert site.run("task-prolog") == (0, "", "")


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({}, True),  # the batch script
        ({"SLURM_STEP_ID": "0", "SLURM_LOCALID": "0", "SLURM_PROCID": "8", "SLURM_STEP_NUM_NODES": "2"}, True),
        ({"SLURM_STEP_ID": "0", "SLURM_LOCALID": "1", "SLURM_PROCID": "9", "SLURM_STEP_NUM_NODES": "2"}, False),
        ({"SLURM_STEP_ID": "0", "SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_NODES": "1"}, False),
        ({"SLURM_STEP_ID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "2", "ENVIRONMENT": ""}, False),
    ],
)
def test_a_job_that_runs_on_a_convicted_node_reads_so_wherever_it_runs(site, step, told):
    site.run("prolog")
    run_dir = str(site.folder / "run")
    file = jobfile.read(run_dir, "77")
    jobfile.write(run_dir, file._replace(warned=("NOT WELL: n1 is convicted",)))
    assert jobfile.read(run_dir, "77").warned == ("NOT WELL: n1 is convicted",)
    said = site.run("task-prolog", **{"ENVIRONMENT": "BATCH", **step})[1].splitlines()
    assert ("print fmslurm: NOT WELL: n1 is convicted" in said) == told


@pytest.mark.parametrize("argv", [[], ["prolog", "--share"], ["nonsense"], ["prolog", "epilog"]])
def test_a_mistake_in_how_it_was_installed_takes_no_node_away(argv):
    done = subprocess.run(
        [sys.executable, "-IS", HOOK, *argv], env={"SLURMD_NODENAME": "n0"}, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0
    assert "usage" in done.stderr


def filled(kind: str, tmp_path: Path, root: str) -> Path:
    """Return the shell hook as install writes it."""
    text = (ROOT / kind).read_text()
    for mark, value in (
        ("ROOT", root),
        ("SHARE", "/none"),
        ("LOCAL", str(tmp_path / "%n")),
        ("PYTHON", sys.executable),
    ):
        text = text.replace(f"@FMSLURM_{mark}@", value)
    path = tmp_path / kind.replace("/", "-")
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "kind", ["prolog/50-fmslurm", "epilog/50-fmslurm", "prolog/task-prolog", "prolog/health-check"]
)
@pytest.mark.parametrize("root", [str(ROOT), "/nonexistent"])
def test_the_shell_hooks_pass_with_and_without_an_install(tmp_path, kind, root):
    env = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n0", "LD_LIBRARY_PATH": "/nonexistent", "BASH_ENV": "/etc/passwd"}
    done = subprocess.run([filled(kind, tmp_path, root)], env=env, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(("said", "code"), [(0, 0), (86, 1), (1, 0), (2, 0), (127, 0), (137, 0)])
def test_only_a_conviction_leaves_the_shell_hook_as_one(tmp_path, said, code):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/fmslurm-hook").write_text(f"import os; os._exit({said})\n")
    hook = filled("prolog/50-fmslurm", tmp_path, str(tmp_path))
    assert subprocess.run([hook], env={"SLURMD_NODENAME": "n0"}, timeout=180).returncode == code


def test_a_hook_whose_file_is_cut_takes_no_node_away(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/fmslurm-hook").write_text(HOOK.read_text()[:300] + "\n(")
    hook = filled("prolog/50-fmslurm", tmp_path, str(tmp_path))
    assert subprocess.run([hook], env={"SLURMD_NODENAME": "n0"}, timeout=180, stderr=subprocess.DEVNULL).returncode == 0


def test_health_says_only_what_is_new(site):
    for _ in range(3):
        assert site.run("health")[0] == 0
    assert [event["event"] for event in site.events()] == ["gate.health"]
    (site.folder / "root/var/log/kmsg.log").write_text(
        "6,0,0,-;Linux\n3,1,1,-;NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus.\n"
    )
    site.run("health")
    assert site.events()[-1]["decision"] == "would-drain"


@pytest.mark.parametrize("name", ["health.lock", "health.json"])
def test_a_pipe_in_the_place_of_its_own_files_does_not_hold_the_health_check(site, name):
    os.mkfifo(site.folder / "run" / name)
    assert site.run("health")[0] == 0
    assert not [event for event in site.events() if event["event"] == "hook.broke"], "the supervisor had to end it"


def test_what_holds_a_broken_hooks_files_does_not_hold_its_supervisor(tmp_path):
    os.mkfifo(tmp_path / "last-good-config.json")
    start = "import sys; from slurm_ext.hooks import trouble; trouble.record('prolog', {'SLURMD_NODENAME': 'n0'}, *sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", start, str(tmp_path), "it broke"], cwd=ROOT, timeout=180)
    assert done.returncode == 0
