"""What a job left is known by its cgroup alone: nothing of another job, of Slurm itself or of ours is ever ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_ext.hooks import job_memory, job_processes, jobfile, leftovers
from slurm_ext.hooks.environment import HookJob

JOB = HookJob("77", "c", 0, "n0", uid=0)
V2 = "system.slice/slurmstepd.scope"
V2_NODE = "system.slice/n0_slurmstepd.scope"
V1 = "freezer/slurm/uid_0"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hooks run as root")


class Machine:
    """A tree with cgroups, and real processes that are said to be in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.children: list[subprocess.Popen[bytes]] = []

    def process(self, cgroup: str, *, listed: str = "") -> subprocess.Popen[bytes]:
        """Start a process that the kernel says is in `cgroup`, and list it in that one's folder, or in another."""
        child = subprocess.Popen(["sleep", "600"])
        self.children.append(child)
        self.member(child.pid, cgroup, listed=listed or cgroup)
        return child

    def member(self, pid: int, cgroup: str, *, listed: str) -> None:
        folder = self.root / "sys/fs/cgroup" / listed
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "cgroup.procs", "a") as stream:
            stream.write(f"{pid}\n")
        told = self.root / f"proc/{pid}/cgroup"
        told.parent.mkdir(parents=True, exist_ok=True)
        told.write_text(f"0::/{cgroup}\n")

    def end(self, *, kill: bool = True, job: HookJob = JOB) -> dict[int, job_processes.Left]:
        return {one.pid: one for one in job_processes.end(str(self.root), job, kill=kill)}


@pytest.fixture
def machine(tmp_path):
    found = Machine(tmp_path)
    yield found
    for child in found.children:
        child.kill()
        child.wait()


def was_ended(child: subprocess.Popen[bytes]) -> bool:
    try:
        return child.wait(60) == -signal.SIGKILL
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.parametrize(
    "cgroup",
    [
        f"{V2}/job_77/step_0/user/task_0",
        f"{V2}/job_77/step_batch/user/task_0/made/by/a/program",
        f"{V2}/job_77/step_extern/user/task_special",
        f"{V2_NODE}/job_77/step_0/user/task_0",
        f"{V1}/job_77/step_0/task_0",
        "freezer/slurm_n0/uid_0/job_77/step_batch/task_0",
        "freezer/slurm_n0/uid_0/job_77/step_batch",  # proctrack/cgroup of version 1 makes no folders of tasks
        "freezer/slurm_n0/uid_0/job_77/step_batch/made/by/a/program",
    ],
)
def test_what_is_in_the_jobs_cgroup_is_ended(machine, cgroup):
    child = machine.process(cgroup)
    start = leftovers.start_ticks(child.pid)
    (left,) = machine.end().values()
    assert (left.pid, left.start, left.ended) == (child.pid, start, True)
    assert was_ended(child)


@pytest.mark.parametrize(
    ("cgroup", "listed"),
    [
        (f"{V2}/job_78/step_0/user/task_0", ""),  # the same user's other job
        (f"{V2}/job_770/step_0/user/task_0", ""),
        (f"{V2}/job_77/step_0/slurm", ""),  # slurmstepd
        (f"{V2}/job_77", ""),
        ("memory/slurm/uid_0/job_77/step_0", ""),  # slurmstepd, there
        ("freezer/slurm/uid_1000/job_77/step_0/task_0", ""),
        ("freezer/slurm_n0/uid_0/job_77", ""),  # slurmstepd's, there
        ("freezer/slurm_n0/uid_0/job_78/step_batch", ""),
        ("user.slice/user-0.slice/session-1.scope", ""),
        (
            f"{V2}/job_78/step_0/user/task_0",
            f"{V2}/job_77/step_0/user/task_0",
        ),  # another process has the number meanwhile
        ("user.slice/job_77/step_0/user/task_0", f"{V2}/job_77/step_0/user/task_0"),
    ],
)
def test_what_is_in_another_is_not(machine, cgroup, listed):
    child = machine.process(cgroup, listed=listed)
    assert machine.end() == {}
    assert child.poll() is None


def test_of_several_slurmds_on_one_machine_only_the_nodes_own_tree_counts(machine):
    mine = machine.process(f"{V2_NODE}/job_77/step_0/user/task_0")
    machine.process("system.slice/n1_slurmstepd.scope/job_77/step_0/user/task_0")
    machine.process(f"{V2}/job_77/step_0/user/task_0")
    assert list(machine.end()) == [mine.pid]


def test_a_slurmstepd_is_spared_wherever_it_lies(machine):
    """Seen where a controller moved it: by its name and root's, both, since a name is anybody's to choose."""
    named = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'slurmstepd'); print(1, flush=True); sys.stdin.read()"
    plays = f"import os; os.setresuid(54321, 0, 0); {named}"
    for code, spared in ((named, True), (plays, False)):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
            assert child.stdout.readline() == b"1\n"
            machine.member(child.pid, f"{V2}/job_77/step_0/user/task_0", listed=f"{V2}/job_77/step_0/user/task_0")
            assert (child.pid not in machine.end()) == spared
            assert (child.poll() is None) == spared or was_ended(child)
            if child.poll() is None:
                child.communicate(b"")


def test_the_hook_itself_and_who_started_it_are_spared(machine):
    for pid in (os.getpid(), os.getppid(), 1):
        machine.member(pid, f"{V2}/job_77/step_extern/user/task_0", listed=f"{V2}/job_77/step_extern/user/task_0")
    child = machine.process(f"{V2}/job_77/step_0/user/task_0")
    assert list(machine.end()) == [child.pid]


def test_in_shadow_they_are_told_of_and_live_on(machine):
    child = machine.process(f"{V2}/job_77/step_0/user/task_0")
    (left,) = machine.end(kill=False).values()
    assert left.words() == f"job process {child.pid} (left)"
    assert child.poll() is None


def test_one_in_d_state_is_told_of_and_not_waited_for(machine, monkeypatch):
    child = machine.process(f"{V2}/job_77/step_0/user/task_0")
    monkeypatch.setattr(job_processes, "_state", lambda pid: "D")
    monkeypatch.setattr(job_processes, "_gpus", lambda pid: (3,))
    (left,) = machine.end().values()
    assert left.words() == f"job process {child.pid}, holds GPU 3 in D state: it ends when the kernel lets it (left)"


def test_a_look_that_hangs_is_given_up(machine, monkeypatch):
    machine.process(f"{V2}/job_77/step_0/user/task_0")
    monkeypatch.setattr(job_processes, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(job_processes, "_members", lambda trees: iter(signal.pause, 0))
    assert job_processes.end(str(machine.root), JOB, kill=True) is None


def test_names_of_users_are_never_a_path(machine, tmp_path):
    assert machine.end(job=JOB._replace(job_id="77", node="n0")) == {}
    (tmp_path / "sys/fs/cgroup/system.slice").mkdir(parents=True)
    (tmp_path / "elsewhere/step_0/user/task_0").mkdir(parents=True)
    (tmp_path / "elsewhere/step_0/user/task_0/cgroup.procs").write_text("not a number\n99999999999999\n\0\n")
    (tmp_path / "sys/fs/cgroup/system.slice/slurmstepd.scope").mkdir()
    (tmp_path / "sys/fs/cgroup/system.slice/slurmstepd.scope/job_77").symlink_to(tmp_path / "elsewhere")
    assert machine.end() == {}


def test_a_process_that_holds_a_gpu_is_known_by_its_open_files(tmp_path):
    assert job_processes._GPU_FILE.fullmatch("/dev/nvidia3")[1] == "3"
    for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/tmp/dev/nvidia3", "/dev/nvidia3 (deleted)"):
        assert not job_processes._GPU_FILE.fullmatch(path)
    assert job_processes._gpus(os.getpid()) == ()


def test_in_a_real_cgroup(tmp_path):
    """The kernel's own word in place of a tree of ours, where this machine lets us make one (cgroup v1)."""
    top = Path("/sys/fs/cgroup/freezer")
    own = HookJob("999999", "c", 0, f"fmtest{os.getpid()}", uid=0)
    folder = top / f"slurm_{own.node}/uid_0/job_999999/step_0/task_0"
    child = subprocess.Popen(["sleep", "600"])
    other = subprocess.Popen(["sleep", "600"])
    try:
        try:
            folder.mkdir(parents=True)
            (folder / "cgroup.procs").write_text(str(child.pid))
        except OSError as exc:
            pytest.skip(f"no cgroup v1 to write here: {exc}")
        (left,) = job_processes.end("/", own, kill=True)
        assert (left.pid, left.ended) == (child.pid, True)
        assert was_ended(child)
        assert other.poll() is None
        assert job_processes.end("/", own, kill=True) == ()
    finally:
        for process in (child, other):
            process.kill()
            process.wait()
        while folder != top:
            with contextlib.suppress(OSError):
                folder.rmdir()
            folder = folder.parent


def shm(root: Path, name: str, uid: int, size: int = 4096) -> Path:
    path = root / "dev/shm" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.chown(path, uid, uid)
    return path


def test_shared_memory_of_a_user_without_a_job_is_told_and_stays(tmp_path):
    kept = [shm(tmp_path, "a", 1000), shm(tmp_path, "b", 1000), shm(tmp_path, "c", 1001), shm(tmp_path, "d", 0)]
    (tmp_path / "dev/shm/link").symlink_to(kept[3])
    os.lchown(tmp_path / "dev/shm/link", 1000, 1000)
    run_dir = str(tmp_path / "run")
    assert job_memory.left(str(tmp_path), run_dir, "77", 1000) == (2, 8192)
    assert job_memory.left(str(tmp_path), run_dir, "77", 0) is None
    assert job_memory.left(str(tmp_path), run_dir, "77", -1) is None
    jobfile.write(run_dir, jobfile.JobFile("77", "c/77-0", "r", 1000, 1.0))
    assert job_memory.left(str(tmp_path), run_dir, "77", 1000) == (2, 8192)
    jobfile.write(run_dir, jobfile.JobFile("78", "c/78-0", "r", 1000, 1.0))
    assert job_memory.left(str(tmp_path), run_dir, "77", 1000) is None
    assert all(path.exists() for path in kept)
