"""Starting programs by posix_spawn: what they inherit, how they are found, and that no descriptor is lost on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_ext.spawn import Program, spawn

ENV = {"PATH": "/usr/bin:/bin"}


def said(child: Program) -> str:
    assert child.stdout is not None
    text = child.stdout.read()
    assert child.wait(60.0)
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    return (text or b"").decode()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_it_gets_a_session_an_environment_and_nothing_else_of_ours(tmp_path: Path) -> None:
    leak = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(leak, True)
    try:
        child = spawn(
            ["sh", "-c", "ps -o sid= -p $$; ls /proc/$$/fd | tr '\\n' ' '; env | grep -c ="], env={**ENV, "A": "1"}
        )
        session, rest = said(child).split("\n", 1)
    finally:
        os.close(leak)
    assert int(session) == child.pid
    numbers, count = rest.rsplit(" ", 1)
    assert set(numbers.split()) <= {"0", "1", "2", "3", "255"}, "at most the standard ones and the shell's own"
    assert str(leak) not in numbers.split() or leak == 3
    assert int(count) <= 5  # A, PATH, and what the shell itself sets


@pytest.mark.parametrize("ignored", [signal.SIGPIPE, signal.SIGXFSZ])
def test_signals_that_python_ignores_are_as_programs_expect_them(ignored: signal.Signals) -> None:
    assert signal.getsignal(ignored) == signal.SIG_IGN
    text = said(spawn(["grep", "SigIgn", "/proc/self/status"], env=ENV))
    assert not int(text.split()[1], 16) & 1 << (ignored - 1)


def test_input_arrives_and_errors_go_where_they_should(tmp_path: Path) -> None:
    with (tmp_path / "errors").open("wb") as errors:
        child = spawn(["sh", "-c", "cat; echo wrong >&2"], env=ENV, feed=True, stderr=errors.fileno())
        assert child.stdin is not None
        child.stdin.write(b"hello")
        child.stdin.close()
        assert said(child) == "hello"
    assert (tmp_path / "errors").read_text() == "wrong\n"
    assert child.stderr is None


@pytest.mark.parametrize("argv", [["/nonexistent/tool"], ["no-such-tool"], ["/etc/passwd"], ["/tmp"]])
def test_what_cannot_start_costs_no_descriptor(argv: list[str]) -> None:
    before = descriptors()
    with pytest.raises(OSError, match=r".+"):
        spawn(argv, env=ENV, feed=True)
    with pytest.raises(ValueError, match="null"):
        spawn(["/bin/true", "a\0b"], env=ENV)
    assert descriptors() == before


def test_a_folder_and_a_file_that_cannot_run_are_passed_over_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "a/tool").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/tool").write_text("no program")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/tool").write_text("#!/bin/sh\necho c\n")
    (tmp_path / "c/tool").chmod(0o755)
    assert said(spawn(["tool"], env={"PATH": f"{tmp_path}/a:{tmp_path}/b:{tmp_path}/c:/bin"})) == "c\n"


def test_the_end_is_seen_once_and_remembered() -> None:
    child = spawn(["sh", "-c", "kill -9 $$"], env=ENV)
    assert child.wait(60.0)
    assert child.returncode == child.poll() == -9
    slow = spawn(["sleep", "60"], env=ENV)
    assert not slow.wait(0.01)
    os.killpg(slow.pid, signal.SIGKILL)
    assert slow.wait(60.0)
    for one in (child, slow):
        said(one)


def test_closed_standard_descriptors_do_not_mix_up_the_pipes() -> None:
    """A hook started with its input, output and errors closed: the pipes of its child then get just these numbers."""
    text = (
        "import os\n"
        "report = os.dup(1)\n"
        "for number in (0, 1, 2): os.close(number)\n"
        "from slurm_ext.spawn import spawn\n"
        "child = spawn(['sh', '-c', 'cat; echo wrong >&2'], env={'PATH': '/bin:/usr/bin'}, feed=True)\n"
        "child.stdin.write(b'hello'); child.stdin.close()\n"
        "os.write(report, child.stdout.read() + b' ' + child.stderr.read())\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=120, check=False)
    assert done.stdout == b"hello wrong\n", done.stderr.decode()
