"""The one runner of programs: in time, bounded, nothing left behind that can be ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_ext import command
from slurm_ext.command import call_all_bounded, call_bounded, run
from slurm_ext.errors import CommandNotFoundError
from slurm_ext.spawn import Program

#: Far more than anything here takes on a busy machine, and far less than what sleeps in it.
SOON_S, SLEEP_S = 60.0, 600


def sh(text: str, *, timeout_s: float = SOON_S, **more: object) -> command.Result:
    return run(["/bin/sh", "-c", text], timeout_s=timeout_s, **more)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(look: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON_S
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def goes(pid: int) -> bool:
    return until(lambda: not alive(pid))


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # one whose reader has gone may have ended by itself
        os.kill(pid, signal.SIGKILL)


def test_output_and_exit_code_come_back() -> None:
    result = sh("echo out; echo err >&2; exit 3")
    assert (result.returncode, result.stdout, result.stderr, result.ok) == (3, "out\n", "err\n", False)
    assert not result.timed_out
    assert result.words() == "/bin/sh: exit 3: err"
    assert sh("echo only").words() == "/bin/sh: exit 0: only"
    assert sh("kill -9 $$").returncode == -9


def test_nothing_of_the_callers_environment_leaks_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD_X", "1")
    names = {line.split("=")[0] for line in sh("env").stdout.splitlines()}
    assert names - {"PWD", "_", "SHLVL", "OLDPWD"} == set(command.CLEAN_ENV)
    assert sh("echo $A", env=command.clean_env(A="b")).stdout == "b\n"


def test_input_is_fed_and_a_child_that_does_not_read_is_no_trouble() -> None:
    big = "x" * 3_000_000
    assert run(["/usr/bin/wc", "-c"], timeout_s=SOON_S, input_text=big).stdout.strip() == "3000000"
    assert sh("exit 0", input_text=big).ok
    assert sh("exec <&-; sleep 0.1; echo fine", input_text=big).stdout == "fine\n"
    assert sh("cat").stdout == ""


def test_bytes_that_are_no_text_come_back_lossy() -> None:
    assert sh(r"printf '\377a\0b'").stdout == "\ufffda\0b"


def test_a_program_that_does_not_end_is_killed_with_all_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    text = f"trap '' TERM INT HUP; sleep {SLEEP_S} & echo said; echo $! >{pid}.new; mv {pid}.new {pid}; wait"
    child = command.start(["/bin/sh", "-c", text])
    assert until(pid.exists)
    begin = time.monotonic()
    result = command.finish(child, timeout_s=1.5)
    assert time.monotonic() - begin < SOON_S
    assert result.timed_out
    assert not result.ok
    assert result.returncode == -9
    assert result.stdout == "said\n"
    assert result.seconds >= 1.5
    assert result._replace(seconds=93.7).words() == "/bin/sh: no answer within 1.5 s", "its limit, not how late we were"
    assert goes(int(pid.read_text()))


def test_what_a_program_leaves_in_its_session_ends_with_it(tmp_path: Path) -> None:
    result = sh(f"sleep {SLEEP_S} & echo $! >{tmp_path}/pid; echo done")
    assert result.ok
    assert result.stdout == "done\n"
    assert goes(int((tmp_path / "pid").read_text()))


def test_a_daemon_that_holds_the_pipes_holds_nobody(tmp_path: Path) -> None:
    sleeper = f"setsid sh -c 'echo $$ >{tmp_path}/pid; exec sleep {SLEEP_S}' &"
    result = sh(f"{sleeper} while [ ! -s {tmp_path}/pid ]; do sleep 0.01; done; echo up")
    pid = int((tmp_path / "pid").read_text())
    try:
        assert result.ok
        assert result.stdout == "up\n"
        assert alive(pid), "a daemon has left the session on purpose and lives on"
    finally:
        end(pid)


def test_a_daemon_that_goes_on_writing_holds_nobody_either(tmp_path: Path) -> None:
    writer = f"setsid sh -c 'echo $$ >{tmp_path}/pid; exec yes' &"
    result = sh(f"{writer} while [ ! -s {tmp_path}/pid ]; do sleep 0.01; done", max_output_bytes=1000)
    end(int((tmp_path / "pid").read_text()))
    assert result.ok
    assert not result.timed_out


def test_output_is_bounded_and_the_program_still_ends() -> None:
    result = sh("yes | head -c 5000000; yes no | head -c 5000000 >&2; echo end", max_output_bytes=1000)
    assert result.ok
    assert result.truncated
    assert (len(result.stdout), len(result.stderr)) == (1000, 1000)
    assert not sh("printf 12345", max_output_bytes=5).truncated
    assert sh("printf 123456", max_output_bytes=5).truncated


def test_a_program_that_closes_its_output_and_goes_on_meets_the_deadline() -> None:
    result = sh(f"exec >&- 2>&-; sleep {SLEEP_S}", timeout_s=0.3)
    assert result.timed_out
    assert result.seconds < SOON_S


@pytest.mark.parametrize(
    "argv", [["/no/such/program"], ["no-such-program"], ["/etc/hostname"], ["/etc"], ["/bin/echo", "a\0b"]]
)
def test_a_program_that_cannot_run_is_said(argv: list[str]) -> None:
    with pytest.raises(CommandNotFoundError, match="cannot run"):
        run(argv, timeout_s=SOON_S)


def test_a_script_without_interpreter_line_and_a_missing_folder_are_said(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("echo\n")
    (tmp_path / "x").chmod(0o755)
    with pytest.raises(CommandNotFoundError, match="format"):
        run([str(tmp_path / "x")], timeout_s=SOON_S)
    with pytest.raises(CommandNotFoundError, match="/gone"):
        run(["/bin/true"], timeout_s=SOON_S, cwd=str(tmp_path / "gone"))


def test_the_search_path_is_the_given_environments(tmp_path: Path) -> None:
    (tmp_path / "thing").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "thing").chmod(0o755)
    assert run(["thing"], timeout_s=SOON_S, env={"PATH": str(tmp_path)}).stdout == "mine\n"
    with pytest.raises(CommandNotFoundError):
        run(["thing"], timeout_s=SOON_S)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop rights")
def test_rights_are_dropped_before_the_program_starts() -> None:
    assert sh("id -u; id -g; id -G", user=65534, group=65534).stdout.split() == ["65534", "65534", "65534"]


def test_no_descriptor_of_ours_reaches_the_program(tmp_path: Path) -> None:
    with open(tmp_path / "f", "w") as stream:
        os.set_inheritable(stream.fileno(), True)
        assert str(tmp_path) not in sh("ls -l /proc/self/fd").stdout


def test_programs_that_were_started_run_while_others_are_waited_for(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    os.mkfifo(one)
    os.mkfifo(other)
    # Each waits for the other's end: one after the other neither would come to its own.
    first = command.start(["/bin/sh", "-c", f"echo a >{one}; cat {other}"])
    second = command.start(["/bin/sh", "-c", f"cat {one}; echo b >{other}"])
    assert [command.finish(child, timeout_s=SOON_S).stdout for child in (first, second)] == ["b\n", "a\n"]


def test_a_program_that_cannot_be_killed_is_left_behind_and_collected_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """D state cannot be made everywhere: SIGKILL is held back instead, and the runner sees just what it would see then."""
    kill = command._kill_session
    monkeypatch.setattr(command, "_kill_session", lambda _: None)
    monkeypatch.setattr(command, "ABANDON_S", 0.1)
    result = run(["/bin/sleep", str(SLEEP_S)], timeout_s=0.1)
    assert result.seconds < SOON_S
    assert result.timed_out
    assert result.returncode is None
    (left,) = command._left_programs
    kill(left.pid)
    assert goes(left.pid)
    sh("true")
    assert command._left_programs == []
    assert not Path(f"/proc/{left.pid}").exists(), "no zombie stays"


def test_interrupted_it_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Program] = []

    def interrupt(child: Program, *_: object) -> None:
        started.append(child)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_converse", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(["/bin/sleep", str(SLEEP_S)], timeout_s=50)
    assert started[0].wait(SOON_S)
    assert started[0].returncode == -9
    for stream in (started[0].stdout, started[0].stderr):
        assert stream is not None
        stream.close()


def test_exit_codes_are_seen_though_our_parent_ignored_its_children() -> None:
    text = (
        "from slurm_ext.command import run, call_bounded;"
        "print(run(['/bin/false'], timeout_s=60).returncode, call_bounded(lambda: b'x', timeout_s=60))"
    )
    code = subprocess.run(
        ["/usr/bin/env", "--ignore-signal=CHLD", sys.executable, "-c", text],
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert code.stdout.decode() == "1 b'x'\n", code.stderr.decode()


def test_bounded_calls_return_what_the_work_returned() -> None:
    assert call_bounded(lambda: b"", timeout_s=SOON_S) == b""
    big = os.urandom(3_000_000)
    assert call_bounded(lambda: big, timeout_s=SOON_S) == big
    assert call_bounded(lambda: 1 // 0, timeout_s=SOON_S) is None  # type: ignore[arg-type,return-value]
    assert call_bounded(lambda: os._exit(0), timeout_s=SOON_S) == b""
    assert call_bounded(lambda: sys.exit(0), timeout_s=SOON_S) is None


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP])
def test_a_bounded_call_that_hangs_is_given_up_and_ended(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []
    fork = os.fork

    def noted() -> int:
        pids.append(fork())
        return pids[-1]

    def hang() -> bytes:
        os.kill(os.getpid(), number)
        while True:
            signal.pause()

    monkeypatch.setattr(os, "fork", noted)
    begin = time.monotonic()
    assert call_bounded(hang, timeout_s=0.5) is None
    assert time.monotonic() - begin < SOON_S
    (pid,) = pids
    assert not Path(f"/proc/{pid}").exists()


def test_no_time_at_all_is_no_answer_and_no_child() -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    before = children()  # other tests' children are none of ours
    for _ in range(20):
        assert call_bounded(lambda: time.sleep(SLEEP_S) or b"", timeout_s=0) is None
    assert children() <= before


def test_many_bounded_calls_share_one_deadline() -> None:
    begin = time.monotonic()
    hang = {f"hangs {number}": lambda: time.sleep(SLEEP_S) or b"" for number in range(30)}
    answers = call_all_bounded({"a": lambda: b"a", **hang, "d": lambda: b"d"}, timeout_s=4.0)
    assert answers == {"a": b"a", **dict.fromkeys(hang), "d": b"d"}
    assert time.monotonic() - begin < SOON_S, "one after the other they would take twice that"


def test_a_bounded_call_leaves_no_descriptor() -> None:
    before = os.listdir("/proc/self/fd")
    for timeout_s in (SOON_S, 0, 0.01):
        call_bounded(lambda: b"x", timeout_s=timeout_s)
    assert os.listdir("/proc/self/fd") == before
