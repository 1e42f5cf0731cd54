"""Slow checks with real processes: detached from who starts them, one at a time, ended for a job, and never taken for another's."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_ext.gate import slow_result
from slurm_ext.gate.slow_result import BROKE, DONE, ENDED, LATE, Last
from slurm_ext.hooks import slow, slow_end, slow_place, slow_run, slow_state
from slurm_ext.hooks.slow_run import Order
from slurm_ext.hooks.slow_state import Running
from slurm_ext.verdict import FAIL, UNKNOWN

CHECKOUT = Path(__file__).resolve().parents[2]
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

ANSWER = {
    "DCGM Diagnostic": {
        "test_categories": [
            {
                "category": "Hardware",
                "tests": [
                    {
                        "name": "memory",
                        "results": [
                            {
                                "entity_group": "GPU",
                                "entity_id": 3,
                                "status": "Fail",
                                "warnings": [{"warning": "dbe", "error_id": 4, "error_severity": 2}],
                            }
                        ],
                    }
                ],
            }
        ]
    }
}


def until(true: Callable[[], object], what: str, *, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.01)


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    yield str(folder)
    who = slow_state.running(str(folder))
    for process in slow_end.alive(who) if who is not None else ():
        if process.ours:
            os.kill(process.pid, signal.SIGKILL)
    until(lambda: is_gone(node_of(str(folder))), "its control group is gone")


def is_gone(node: str) -> bool:
    slow_place.forget(node)
    return not Path(f"{slow_place.CGROUPS}/memory/fmslurm-slow-{node}").exists()


def program(run_dir: str, script: str) -> str:
    """Write a stand-in for dcgmi, which says in a file of its own that it runs."""
    path = Path(run_dir).parent / "dcgmi"
    path.write_text(f'#!/bin/sh\necho $$ >"{run_dir}/pid.new"\nmv "{run_dir}/pid.new" "{run_dir}/pid"\n{script}\n')
    path.chmod(0o755)
    return str(path)


def node_of(run_dir: str) -> str:
    """Return a node's name of this test's own: control groups have it, and tests run beside one another."""
    return f"t{zlib.crc32(run_dir.encode()):08x}"


def order(run_dir: str, script: str, *, limit_s: float = 60.0) -> Order:
    return Order(
        node_of(run_dir), run_dir, (program(run_dir, script), "diag", "-r", "1", "-j"), "r1", "boot-1", limit_s
    )


def start(run_dir: str, script: str, *, limit_s: float = 60.0, idle: Callable[[], str] = str) -> bool:
    return slow_run.start(order(run_dir, script, limit_s=limit_s), idle=idle)


def runs(run_dir: str) -> bool:
    return (Path(run_dir) / "pid").exists()


def last(run_dir: str, *, outcome: str = "") -> Last:
    until(lambda: slow_result.read(run_dir) is not None, "a result")
    found = slow_result.read(run_dir)
    assert found is not None
    assert not outcome or found.outcome == outcome, found
    return found


def is_over(run_dir: str) -> bool:
    return not (Path(run_dir) / slow.RUNNING).exists()


def test_it_says_what_it_found_and_leaves_nothing_running(run_dir: str) -> None:
    assert start(run_dir, f"cat <<'X'\n{json.dumps(ANSWER)}\nX\nexit 226")
    found = last(run_dir, outcome=DONE)
    assert [(item.verdict, *item.finding[:3]) for item in found.items] == [(FAIL, "dcgm.memory", "gpu:3", "reset-gpu")]
    assert (found.level, found.boot_id) == ("r1", "boot-1")
    until(lambda: is_over(run_dir), "it is over")
    until(lambda: is_unlocked(run_dir), "its leader has gone")
    assert not Path(f"{slow_place.CGROUPS}/memory/fmslurm-slow-{node_of(run_dir)}").exists()
    assert slow.end_running(run_dir, 1.0)


def test_who_starts_it_holds_nothing_of_it_and_it_holds_nothing_of_them(run_dir: str) -> None:
    made = order(run_dir, "sleep 600")
    code = (
        "import os, sys\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from slurm_ext.hooks import slow_run\n"
        f"order = slow_run.Order(*{tuple(made)!r})\n"
        "print(slow_run.start(order, idle=str))\n"
    )
    # Its output comes to an end though the check goes on: slurmd waits for just that.
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=1200, check=True
    )
    assert done.stdout == "True\n", done.stderr
    until(lambda: runs(run_dir), "it runs")
    who = slow_state.running(run_dir)
    assert who is not None
    leader = slow_end.read(who.pid)
    assert leader is not None
    assert (leader.start, leader.session) == (who.start, who.pid)
    held = {os.readlink(f"/proc/{who.pid}/fd/{name}") for name in os.listdir(f"/proc/{who.pid}/fd")}
    assert {name for name in held if not name.startswith("/memfd:")} == {"/dev/null", f"{run_dir}/{slow_state.LOCK}"}
    pid = int((Path(run_dir) / "pid").read_text())
    assert os.sched_getaffinity(pid) == os.sched_getaffinity(1 if os.geteuid() == 0 else 0)
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == str(slow_place.OOM_SCORE)
    assert {os.readlink(f"/proc/{pid}/fd/{number}") for number in (1, 2)} == {
        "/memfd:out (deleted)",
        "/memfd:err (deleted)",
    }
    assert slow.end_running(run_dir, 120.0)


@AS_ROOT
def test_it_leaves_slurmds_control_group_and_is_bounded_in_one_of_its_own(run_dir: str) -> None:
    assert start(run_dir, "cat /proc/self/cgroup >&2; sleep 600")
    until(lambda: runs(run_dir), "it runs")
    pid = int((Path(run_dir) / "pid").read_text())
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    folder = f"/fmslurm-slow-{node_of(run_dir)}"
    if not any(line.endswith(folder) for line in lines):
        pytest.skip(f"no control groups that can be made here: {lines}")
    assert slow.end_running(run_dir, 120.0)
    assert not Path(f"{slow_place.CGROUPS}{folder}").exists()
    assert not Path(f"{slow_place.CGROUPS}/memory{folder}").exists()


def test_a_machine_that_allows_nothing_stops_no_check(tmp_path: Path) -> None:
    assert slow_place._cgroup("n1", str(tmp_path / "none")).startswith("in slurmd's control group")


def test_two_at_once_are_one(run_dir: str) -> None:
    assert start(run_dir, "sleep 600")
    until(lambda: runs(run_dir), "it runs")
    first = slow_state.running(run_dir)
    assert not slow_run.start(order(run_dir, "sleep 600"), idle=str)
    assert slow_state.running(run_dir) == first
    assert slow.end_running(run_dir, 120.0)


def test_a_job_ends_it_kindly_and_finds_the_gpus_free(run_dir: str) -> None:
    assert start(run_dir, f"trap 'echo asked >{run_dir}/asked; exit 1' TERM\n>{run_dir}/ready\nsleep 600 & wait")
    until((Path(run_dir) / "ready").exists, "it runs, and listens")
    assert slow.end_running(run_dir, 120.0)
    assert (Path(run_dir) / "asked").read_text() == "asked\n", "dcgmi is asked first: DCGM stops its diagnostic for it"
    assert last(run_dir).outcome == ENDED
    assert last(run_dir).items == ()
    assert is_over(run_dir)


def test_one_that_is_ended_for_a_job_leaves_what_an_earlier_one_found(run_dir: str) -> None:
    assert start(run_dir, f"cat <<'X'\n{json.dumps(ANSWER)}\nX\nexit 226")
    found = last(run_dir, outcome=DONE)
    until(lambda: is_over(run_dir) and is_unlocked(run_dir), "it is over")
    again = Path(run_dir) / "again"
    told = Path(run_dir) / "told"
    assert slow_run.start(order(run_dir, f">{again}; sleep 600 & wait"), idle=str, tell=lambda one: told.touch())
    until(again.exists, "the second runs")
    assert slow.end_running(run_dir, 120.0)
    kept = last(run_dir, outcome=DONE)
    assert (kept.items, kept.ended_s) == (found.items, found.ended_s)
    assert kept.tried_said == "ended for a job"
    assert kept.tried_s > found.ended_s
    until(lambda: is_unlocked(run_dir), "its leader has gone")
    assert not told.exists(), "nothing new was found"


def test_what_does_not_heed_a_word_is_killed_in_time(run_dir: str) -> None:
    assert start(run_dir, f"trap '' TERM\n>{run_dir}/ready\nwhile :; do sleep 600 & wait; done")
    until((Path(run_dir) / "ready").exists, "it runs, and is deaf")
    pid = int((Path(run_dir) / "pid").read_text())
    assert slow.end_running(run_dir, 2.0)
    assert slow_end.read(pid) is None or slow_end.read(pid).state in "ZX"  # type: ignore[union-attr]
    assert is_over(run_dir)


def test_what_sleeps_in_the_kernel_is_not_called_gone(run_dir: str, stuck: Path) -> None:
    from slurm_ext.lab import frozen

    assert start(run_dir, f"exec dd if=/dev/zero of={stuck} bs=1M count=1")
    until(lambda: runs(run_dir), "it runs")
    pid = int((Path(run_dir) / "pid").read_text())
    until(lambda: (found := slow_end.read(pid)) is not None and found.state == "D", "it sleeps in the kernel")
    assert not slow.end_running(run_dir, 1.0)
    assert not is_over(run_dir), "the next job must find it out, too"
    until(lambda: is_unlocked(run_dir), "its leader is dead")
    assert start(run_dir, "true")
    until(lambda: is_unlocked(run_dir), "the second leader has looked, and gone")
    assert int((Path(run_dir) / "pid").read_text()) == pid, "no second one beside it"
    frozen.thaw(stuck.parent)
    assert slow.end_running(run_dir, 120.0)
    assert is_over(run_dir)


def is_unlocked(run_dir: str) -> bool:
    descriptor = os.open(f"{run_dir}/{slow_state.LOCK}", os.O_WRONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_programs_whose_leader_was_killed_are_ended_by_their_token(run_dir: str) -> None:
    assert start(run_dir, "sleep 600 & sleep 601")
    until(lambda: runs(run_dir), "it runs")
    who = slow_state.running(run_dir)
    assert who is not None
    os.kill(who.pid, signal.SIGKILL)
    until(lambda: (found := slow_end.read(who.pid)) is None or found.state in "ZX", "the leader is dead")
    until(lambda: len(slow_end.alive(who)) == 3, "the shell and both its programs live")
    assert slow.end_running(run_dir, 120.0)
    assert slow_end.alive(who) == []


def spoof(folder: Path, *above: str, user: int = 1000, token: str = "", hides: bool = False) -> subprocess.Popen[str]:
    """Start a program named nvvs as a user, below programs with the names `above`; it says when it runs."""
    script = (
        "import ctypes, os, sys, time\n"
        "libc, names = ctypes.CDLL(None), sys.argv[4:]\n"
        "def be(name): libc.prctl(15, name.encode(), 0, 0, 0)\n"
        "for name in names:\n"
        "    be(name)\n"
        "    if os.fork(): os.wait(); os._exit(0)\n"
        "libc.prctl(1, 9, 0, 0, 0)\n"
        "os.setresuid(*[int(sys.argv[1])] * 3)\n"
        "libc.prctl(4, int(sys.argv[2]), 0, 0, 0)\n"
        "be('nvvs')\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", script, str(user), "0" if hides else "1", "-", *above]
    env = {**os.environ, "FMSLURM_SLOW": token}
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True, cwd="/")


@pytest.fixture
def spoofed(tmp_path: Path) -> Iterator[Callable[..., int]]:
    started: list[subprocess.Popen[str]] = []
    pids: list[int] = []

    def begin(*above: str, **more: object) -> int:
        started.append(spoof(tmp_path, *above, **more))  # type: ignore[arg-type]
        assert started[-1].stdout is not None
        pids.append(int(started[-1].stdout.readline()))
        return pids[-1]

    yield begin
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for one in started:
        one.communicate(timeout=120)


def ended_now() -> Running:
    """Return a slow check whose leader has ended."""
    me = slow_end.read(os.getpid())
    assert me is not None
    return Running(999_999_999, me.start, "ab" * 16, slow_state.machine_boot_id(), "r1", time.time())


@AS_ROOT
@pytest.mark.parametrize(
    ("above", "more"),
    [
        ((), {}),
        ((), {"hides": True}),  # then /proc/PID is root's
        (("nv-hostengine",), {}),  # root's own, yet the program is no diagnostic of DCGM's account
        ((), {"token": "ab" * 16}),
        ((), {"user": 0}),  # a person's, not the daemon's
    ],
)
def test_a_users_program_with_the_diagnostics_name_is_nobodys_slow_check(
    run_dir: str, spoofed: Callable[..., int], above: tuple[str, ...], more: dict[str, object]
) -> None:
    pid = spoofed(*above, **more)
    assert (found := slow_end.read(pid)) is not None
    assert found.name == "nvvs"
    slow_state.write_running(run_dir, ended_now())
    assert slow_end.alive(ended_now()) == []
    assert slow.end_running(run_dir, 0.0)
    assert is_over(run_dir)
    os.kill(pid, 0)


@AS_ROOT
@pytest.mark.parametrize("user", [0, 1234])
def test_the_diagnostic_of_dcgms_daemon_is_waited_for_and_never_killed(
    run_dir: str, spoofed: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    table = tmp_path / "passwd"
    table.write_text("root:x:0:0::/:\nodd\nnvidia-dcgm:x:1234:1234::/:\nevil:x:nvidia-dcgm:1000\n")
    monkeypatch.setattr(slow_end, "_PASSWD", str(table))
    pid = spoofed("nv-hostengine", user=user)
    slow_state.write_running(run_dir, ended_now())
    assert [(process.pid, process.ours) for process in slow_end.alive(ended_now())] == [(pid, False)]
    assert not slow.end_running(run_dir, 0.1)
    os.kill(pid, 0)


def test_only_root_may_read_the_token(run_dir: str) -> None:
    slow_state.write_running(run_dir, ended_now())
    assert (Path(run_dir) / slow.RUNNING).stat().st_mode & 0o777 == 0o600
    slow_state.remove_running(run_dir)


def test_a_file_of_another_boot_and_a_number_that_is_anothers_by_now_end_nobody(run_dir: str) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        there = slow_end.read(bystander.pid)
        assert there is not None
        here = slow_state.machine_boot_id()
        for who in (
            Running(bystander.pid, there.start, "0" * 32, "another-boot"),
            Running(bystander.pid, there.start - 1, "0" * 32, here),
        ):
            slow_state.write_running(run_dir, who)
            assert slow.end_running(run_dir, 5.0)
            assert is_over(run_dir)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "pid": 1, "start": 1, "token": "x"}']
)
def test_a_file_that_is_none_of_ours_ends_nobody(run_dir: str, content: str) -> None:
    path = Path(run_dir) / slow.RUNNING
    path.write_text(content)
    assert slow.end_running(run_dir, 1.0)
    assert is_over(run_dir)


def test_no_answer_in_time_is_not_known_and_convicts_nobody(run_dir: str) -> None:
    assert start(run_dir, "sleep 600", limit_s=0.2)
    found = last(run_dir, outcome=LATE)
    assert [(item.verdict, item.finding.id) for item in found.items] == [(UNKNOWN, "dcgm.no-answer")]
    assert "no answer within 0 s" in found.items[0].finding.evidence[0]


@pytest.mark.parametrize(
    "script", ["echo 'Error: unable to establish a connection to the specified host: localhost'; exit 1", "kill -9 $$"]
)
def test_trouble_of_dcgmi_itself_is_not_known(run_dir: str, script: str) -> None:
    assert start(run_dir, script)
    found = last(run_dir, outcome=BROKE)
    assert [(item.verdict, item.finding.id) for item in found.items] == [(UNKNOWN, "dcgm.no-answer")]


def test_a_program_that_cannot_be_started_is_not_known(run_dir: str) -> None:
    assert slow_run.start(Order(node_of(run_dir), run_dir, ("/nonexistent/dcgmi",), "r1", "b", 5.0), idle=str)
    assert "cannot be started" in last(run_dir, outcome=BROKE).said


def test_a_node_that_is_not_idle_is_left_alone(run_dir: str) -> None:
    assert start(run_dir, "true", idle=lambda: "a job is here: 7.json")
    assert last(run_dir, outcome=ENDED).said == "a job is here: 7.json"
    assert not runs(run_dir)


def test_a_prolog_that_comes_while_it_begins_is_seen_or_sees_it(run_dir: str) -> None:
    def idle() -> str:
        # Whoever asks whether the node is idle can be ended already.
        return "" if (Path(run_dir) / slow.RUNNING).exists() else "nobody could end it"

    assert start(run_dir, "echo", idle=idle)
    assert last(run_dir).outcome == BROKE, "dcgmi was run"


@AS_ROOT
def test_a_full_disk_costs_the_result_and_starts_no_second_one(tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.mkdir(mode=0o755)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "none", str(folder)], check=True)
    try:
        script = f"echo >{tmp_path}/ran\nhead -c 1M /dev/zero >{folder}/fill 2>/dev/null\necho '{json.dumps(ANSWER)}'"
        made = Order("t-full", str(folder), (program(str(tmp_path), script),), "r1", "b", 30.0)
        assert slow_run.start(made, idle=str)
        until((tmp_path / "ran").exists, "it ran")
        until(lambda: not (folder / slow.RUNNING).exists(), "it is over")
        assert slow_result.read(str(folder)) is None
        begun = slow_state.begun_s(str(folder))
        assert begun is not None
        assert abs(begun - time.time()) < 60
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_nothing_running_costs_a_prolog_one_open_that_fails(run_dir: str) -> None:
    code = (
        "import sys\n"
        "from slurm_ext.hooks import slow\n"
        f"assert slow.end_running({run_dir!r}, 5.0)\n"
        "print([name for name in sys.modules if name.startswith('slurm_ext.') and 'slow' in name])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=1200, check=True
    )
    assert done.stdout == "['slurm_ext.hooks.slow']\n"


@AS_ROOT
def test_a_job_whose_gpus_are_not_free_meets_an_unknown_gate(tmp_path: Path, stuck: Path) -> None:
    from hook_site import Site

    from slurm_ext.lab import frozen

    (tmp_path / "site").mkdir()
    site = Site(tmp_path / "site")
    run_dir = str(tmp_path / "site/run")
    assert start(run_dir, f"exec dd if=/dev/zero of={stuck} bs=1M count=1")
    until(lambda: runs(run_dir), "it runs")
    pid = int((Path(run_dir) / "pid").read_text())
    until(lambda: (found := slow_end.read(pid)) is not None and found.state == "D", "it sleeps in the kernel")
    assert site.run("prolog")[0] == 0
    (event,) = [one for one in site.events() if one["event"] == "gate.prolog"]
    assert event["data"]["gate"]["verdict"] == UNKNOWN  # type: ignore[index]
    assert event["data"]["gate"]["rule"] == "dcgm.stays"  # type: ignore[index]
    assert event["data"]["slow_check"] == "did not end for this job in time"  # type: ignore[index]
    frozen.thaw(stuck.parent)
    assert slow.end_running(run_dir, 120.0)


@AS_ROOT
def test_a_prolog_ends_a_slow_check_and_its_job_passes(tmp_path: Path) -> None:
    from hook_site import Site

    (tmp_path / "site").mkdir()
    site = Site(tmp_path / "site")
    run_dir = str(tmp_path / "site/run")
    assert start(run_dir, "sleep 600 & wait")
    until(lambda: runs(run_dir), "it runs")
    assert site.run("prolog")[0] == 0
    (event,) = [one for one in site.events() if one["event"] == "gate.prolog"]
    assert event["decision"] == "pass"
    assert event["data"]["gate"]["rule"] != "dcgm.stays"  # type: ignore[index]
    assert event["data"]["slow_check"] == "ended for this job"  # type: ignore[index]
    assert last(run_dir).outcome == ENDED
    assert is_over(run_dir)


@AS_ROOT
def test_control_groups_of_version_2_are_used_as_such() -> None:
    unified = next((path for path in (slow_place.CGROUPS, f"{slow_place.CGROUPS}/unified") if is_version_2(path)), "")
    if not unified:
        pytest.skip("no control groups of version 2 here")
    code = (
        "from slurm_ext.hooks import slow_place\n"
        f"print(slow_place._cgroup('t-two', {unified!r}))\n"
        "print(open('/proc/self/cgroup').read().count('/fmslurm-slow-t-two'))\n"
        f"slow_place.forget('t-two', cgroups={unified!r}, leave=True)\n"
        "print(open('/proc/self/cgroup').read().count('/fmslurm-slow-t-two'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=1200, check=True
    )
    where, inside, after = done.stdout.splitlines()
    assert where.startswith("in a control group of its own, ")
    assert (inside, after) == ("1", "0")
    assert not Path(unified, "fmslurm-slow-t-two").exists()


def is_version_2(path: str) -> bool:
    return Path(path, "cgroup.controllers").exists() and os.access(path, os.W_OK)
