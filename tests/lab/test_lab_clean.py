"""What counts as a lab's, and what a lab's end does not touch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_ext.errors import UsageError
from slurm_ext.lab import clean, daemons, journal, process
from slurm_ext.lab.model import MARK, Pid

SLEEP = ["sleep", "1000"]


def test_without_root_or_packages_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(daemons, "PROGRAMS", {"no-such-slurmd": "slurmd", "no-such-munged": "munge", "sh": "dash"})
    assert daemons.missing() == ["root (run it through sudo)", "package munge", "package slurmd"]


def test_only_marked_processes_and_those_below_them_are_a_lab_s(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"]}
    lab = str(tmp_path)
    below = subprocess.Popen(["sh", "-c", "env -u FMSLURM_LAB sleep 1000 & wait"], env={**env, MARK: lab})
    shell = subprocess.Popen(SLEEP, env={**env, "SLURM_CONF": f"{lab}/etc/slurm/slurm.conf"})
    job = subprocess.Popen(SLEEP, env={**env, "SLURM_CONF": f"{lab}/etc/slurm/slurm.conf", "SLURM_JOB_ID": "1"})
    daemon = subprocess.Popen(SLEEP, env={**env, "FMSLURM_CONFIG": f"{lab}/etc/fmslurm/fmslurm.yaml"})
    other = subprocess.Popen(SLEEP, env={**env, MARK: f"{lab}-other"})
    started = (below, shell, job, daemon, other)
    try:
        pid_file = tmp_path / "daemon.pid"
        pid_file.write_text(f"{daemon.pid}\n")
        # A process shows its environment once it has been through exec.
        while not all(process._environment(each.pid) >= {b"PATH=" + env["PATH"].encode()} for each in started):
            assert all(each.poll() is None for each in started)
        while len(found := process.marked(lab, [pid_file])) < 4:
            assert all(each.poll() is None for each in started)
        pids = {each.pid.pid for each in found}
        assert {below.pid, job.pid, daemon.pid} < pids
        assert len(pids) == 4  # and the sleep below `below`, which has no mark
        assert not pids & {shell.pid, other.pid, os.getpid(), os.getppid()}
        assert process.kill([each.pid for each in found]) == []
        assert shell.poll() is None
        assert other.poll() is None
    finally:
        for each in started:
            each.kill()
            each.wait()


def test_a_reused_number_is_not_the_same_process() -> None:
    child = subprocess.Popen(SLEEP)
    try:
        pid = process.identify(child.pid)
        assert pid is not None
        assert process.alive(pid)
        assert not process.alive(Pid(pid.pid, pid.start - 1))
        process.kill([Pid(pid.pid, pid.start - 1)])
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    assert not process.alive(pid)


def test_one_at_a_time_takes_a_lab_up_or_down(tmp_path: Path) -> None:
    with (
        clean.lock(str(tmp_path)),
        pytest.raises(UsageError, match="somebody is changing"),
        clean.lock(str(tmp_path), wait_s=0.1),
    ):
        pass
    with clean.lock(str(tmp_path)):
        pass


def test_a_lock_ends_with_its_holder(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal; from slurm_ext.lab import clean\n"
        "with clean.lock(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, cwd=Path(__file__).parents[2])
    with clean.lock(str(tmp_path)):
        pass


def test_a_folder_without_journal_is_no_lab_and_is_left(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="holds no lab"):
        clean.down(str(tmp_path))
    assert (tmp_path / "mine").exists()


def test_down_removes_files_outside_that_the_journal_names_and_the_folder(tmp_path: Path) -> None:
    lab, outside = tmp_path / "lab", tmp_path / "socket"
    (lab / "deep/er").mkdir(parents=True)
    (lab / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    outside.touch()
    journal.intend(str(lab), "lab", id="abcdef")
    journal.intend(str(lab), "file", path=str(outside))
    journal.intend(str(lab), "link", name="fmlabnothere")
    clean.down(str(lab))
    assert not lab.exists()
    assert not outside.exists()
    assert (tmp_path / "kept").exists()


def test_logs_may_be_kept(tmp_path: Path) -> None:
    journal.intend(str(tmp_path), "lab", id="abcdef")
    (tmp_path / "log").mkdir()
    (tmp_path / "log/slurmctld.log").write_text("why")
    (tmp_path / "run").mkdir()
    clean.down(str(tmp_path), keep_logs=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


def test_a_folder_that_only_its_owner_may_pass_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert str(closed) in clean.closed_folders(str(closed / "lab"))
    closed.chmod(0o755)
    assert str(closed) not in clean.closed_folders(str(closed / "lab"))


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_cleaning_up_after_one_signal_is_not_skipped_for_the_next(first: signal.Signals) -> None:
    program = """
import os, signal, sys
from slurm_ext.lab import clean
with clean.stopped_once():
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
        signal.pause()
    finally:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        with clean.undisturbed():
            os.kill(os.getpid(), signal.SIGINT)
            print("cleaned", flush=True)
"""
    result = subprocess.run(
        [sys.executable, "-c", program, str(int(first))], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.stdout == "cleaned\n"
    assert result.returncode == (-signal.SIGINT if first == signal.SIGINT else 128 + first)
    assert "race condition" not in result.stderr
