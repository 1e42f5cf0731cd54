"""Whose a process on a GPU is, tried with real processes that pretend, and with trees of /proc for what cannot be had here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_ext.command import Result
from slurm_ext.gate import process_owner
from slurm_ext.gate.ask_smi import holders

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
PERSON = 54321

PR_SET_DUMPABLE, PR_SET_NAME = 4, 15


@pytest.fixture
def started() -> Iterator[Callable[..., int]]:
    """Return what starts a Python program that says its number once it is as it wants to be, and waits; gives that number."""
    running: list[subprocess.Popen[str]] = []

    def start(code: str, title: str = "python3") -> int:
        libc = "import ctypes, os, sys; prctl = ctypes.CDLL(None).prctl\n"
        done = "\nprint(os.getpid(), flush=True); sys.stdin.read()"
        child = subprocess.Popen(
            [title, "-c", libc + code + done],
            executable=sys.executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(child)
        assert child.stdout is not None
        return int(child.stdout.readline())

    yield start
    for child in running:
        child.communicate("")


@AS_ROOT
def test_a_program_that_hides_behind_root_is_its_users(started: Callable[..., int]) -> None:
    pid = started(f"os.setresuid({PERSON}, 0, 0); prctl({PR_SET_DUMPABLE}, 0)")
    assert os.stat(f"/proc/{pid}").st_uid == 0, "as of any setuid program: this is what is not to be believed"
    owner = process_owner.of(pid)
    assert owner is not None
    assert (owner.user, owner.job) == (PERSON, "")
    assert owner.start > 0
    (listed,) = holders(Result(("nvidia-smi",), 0, f"{pid}, GPU-1, nvidia-persistenced\n", "", 0.1)) or ()
    assert (listed.user, listed.start) == (PERSON, owner.start)


@AS_ROOT
@pytest.mark.parametrize(
    ("ids", "user"),
    [
        ((PERSON, 0, 0), PERSON),  # a program that anybody may start as root
        ((0, PERSON, 0), PERSON),  # a service that acts for a person
        ((0, 0, 0), 0),
    ],
)
def test_the_person_behind_a_program_of_several_users(
    started: Callable[..., int], ids: tuple[int, int, int], user: int
) -> None:
    assert process_owner.user_of(started(f"os.setresuid{ids}")) == user


@AS_ROOT
def test_nobody_plays_a_step_of_another_job(started: Callable[..., int]) -> None:
    """The name, the title and the owner of /proc/PID are a user's to choose; whose process it really is, is not."""
    pid = started(
        f"prctl({PR_SET_NAME}, b'slurmstepd')\n"
        "child = os.fork()\n"
        f"if child:\n    os.setresuid({PERSON}, 0, 0); os.waitpid(child, 0); os._exit(0)\n",
        "slurmstepd: [77.0]",
    )
    status = Path(f"/proc/{pid}/stat").read_text()
    parent = int(status.rpartition(")")[2].split()[1])
    assert Path(f"/proc/{parent}/comm").read_text() == "slurmstepd\n"
    assert Path(f"/proc/{parent}/cmdline").read_text().startswith("slurmstepd: [77.0]")
    assert os.stat(f"/proc/{parent}").st_uid == 0
    owner = process_owner.of(pid)
    assert owner is not None
    assert owner.job == ""


def process(proc: Path, pid: int, *, parent: int = 1, start: int = 100, name: str = "python3", **files: str) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    fields = ["S", str(parent), *(["0"] * 17), str(start), "0"]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    for file, text in {"status": "Uid:\t1000\t1000\t1000\t1000\n", "cgroup": "0::/\n", **files}.items():
        (folder / file).write_text(text)


STEPD = {"name": "slurmstepd", "cmdline": "slurmstepd: [77.0]\0", "status": "Uid:\t0\t0\t0\t0\n"}


@pytest.mark.parametrize(
    ("stepd", "job"),
    [
        (STEPD, "77"),
        ({**STEPD, "status": "Uid:\t1000\t0\t0\t0\n"}, ""),  # setuid root, started by a person
        ({**STEPD, "status": ""}, ""),
        ({**STEPD, "cmdline": "slurmstepd: [x.0]\0"}, ""),
        ({**STEPD, "name": "slurmstepd)"}, ""),
    ],
)
def test_the_step_above_where_slurm_keeps_no_groups(tmp_path: Path, stepd: dict[str, str], job: str) -> None:
    process(tmp_path, 10, **stepd)  # type: ignore[arg-type]
    process(tmp_path, 11, parent=10, name="bash")
    process(tmp_path, 12, parent=11, name="a (b) c")
    owner = process_owner.of(12, proc=str(tmp_path))
    assert owner == process_owner.Owner(job, 1000, 100)


def test_a_number_that_became_anothers_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(tmp_path, 12, start=100, cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n")
    assert process_owner.of(12, proc=str(tmp_path)) == process_owner.Owner("7", 1000, 100)
    plain = process_owner.user_of

    def reused(pid: int, *, proc: str) -> int | None:
        found = plain(pid, proc=proc)
        stat = tmp_path / "12/stat"
        stat.write_text(stat.read_text().replace(" 100 0", " 500 0"))
        return found

    monkeypatch.setattr(process_owner, "user_of", reused)
    assert process_owner.of(12, proc=str(tmp_path)) is None
    assert process_owner.of(99, proc=str(tmp_path)) is None


@pytest.mark.parametrize(
    ("path", "job"),
    [
        ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "7"),
        ("/system.slice/n1_slurmstepd.scope/job_7/step_extern/user/task_0", "7"),
        ("/slurm/uid_1000/job_7/step_0/task_0", "7"),
        ("/slurm_n1/uid_1000/job_7/step_batch", "7"),
        ("/lab/n1/slurm_n1/uid_0/job_7/step_batch", "7"),
        ("/../../system.slice/slurmstepd.scope/job_7/step_0/slurm", "7"),
        # What a job makes below its own group is its own.
        ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/slurmstepd.scope/job_8", "7"),
        ("/system.slice/docker-1.scope/job_7/slurmstepd.scope/job_8", ""),
        # What a user's session makes is nobody's.
        ("/user.slice/user-1000.slice/user@1000.service/job_7", ""),
        ("/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_7/step_0/user/task_0", ""),
        ("/user.slice/user-1000.slice/user@1000.service/slurm/uid_1000/job_7", ""),
        ("/job_7", ""),
        ("job_7", ""),
        ("/kubepods.slice/job_7/step_0", ""),
        ("/slurm/uid_x/job_7", ""),
        ("/slurm/uid_1000/job_٧", ""),
        ("/slurm/uid_1000/job_", ""),
        ("", ""),
    ],
)
def test_which_groups_are_slurms(path: str, job: str) -> None:
    assert process_owner.job_in(path) == job


def test_an_exited_leader_of_threads_is_still_its_users(started: Callable[..., int]) -> None:
    """Its first thread has ended, the others run on: /proc/PID is a zombie's, and tells whose it is all the same."""
    pid = started(
        "import threading\n"
        "def stay():\n    print(os.getpid(), flush=True)\n    sys.stdin.read()\n    os._exit(0)\n"
        "threading.Thread(target=stay).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    for _ in range(2_000):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        os.sched_yield()
        signal.sigtimedwait([], 0.01)
    else:
        pytest.fail("its first thread does not end")
    owner = process_owner.of(pid)
    assert owner is not None
    assert owner.user == os.geteuid()
