"""What a burn-in left behind is ended by its number and start, and nobody who has that number meanwhile."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_ext.hooks import leftovers
from slurm_ext.hooks.environment import HookJob

JOB = HookJob("77", "c", 0, "n0")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    (tmp_path / leftovers.FOLDER).mkdir(mode=0o755)
    return tmp_path


def leave(run_dir: Path, pid: int, start: int, job: str = "77") -> None:
    (run_dir / leftovers.FOLDER / "x.json").write_text(json.dumps({"job_id": job, "processes": [[pid, start]]}))


def start_of(pid: int) -> int:
    start = leftovers.start_ticks(pid)
    assert start is not None
    return start


@pytest.mark.parametrize("pidfd", [True, False], ids=["pidfd", "an old kernel"])
def test_it_is_killed_and_told(
    run_dir: Path, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, pidfd: bool
) -> None:
    def missing(_: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if not pidfd:
        monkeypatch.setattr(os, "pidfd_open", missing)
    leave(run_dir, child.pid, start_of(child.pid))
    assert leftovers.end(str(run_dir), JOB) == (f"burn-in process {child.pid}",)
    assert child.wait(120) == -signal.SIGKILL
    assert list((run_dir / leftovers.FOLDER).iterdir()) == []


def test_another_process_of_that_number_is_let_be(run_dir: Path, child: subprocess.Popen[bytes]) -> None:
    leave(run_dir, child.pid, start_of(child.pid) + 1)
    assert leftovers.end(str(run_dir), JOB) == ()
    leave(run_dir, child.pid, start_of(child.pid), job="78")
    assert leftovers.end(str(run_dir), JOB) == ()
    assert child.poll() is None


def test_a_number_that_changes_hands_between_look_and_kill_is_let_be(
    run_dir: Path, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = start_of(child.pid) - 1
    leave(run_dir, child.pid, gone)
    looks = iter([gone])
    real = leftovers.start_ticks
    monkeypatch.setattr(leftovers, "start_ticks", lambda pid: next(looks, real(pid)))
    assert leftovers.end(str(run_dir), JOB) == ()
    assert child.poll() is None
