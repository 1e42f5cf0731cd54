"""A worker that is stuck is killed, and what it had started goes with it: tools that hang, but not the burn-in's agent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: A hook whose worker starts what argv[2] says, stops itself as the kernel stops one in D state, and never answers.
HOOK = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from slurm_ext.hooks import supervise
from slurm_ext.spawn import spawn
supervise.FIRST_S, supervise.MARGIN_S = 8.0, 0.1

def work(within):
    folder = sys.argv[3]
    child = spawn(["/bin/sh", "-c", sys.argv[2], "sh", folder], env=dict(os.environ), feed=False)
    while not os.path.exists(folder + "/started"):
        pass
    os.kill(os.getpid(), signal.SIGSTOP)
    return 1

sys.exit(supervise.supervise(work, late=lambda seconds: None))
"""

#: A tool with a child of its own that both ignore what can be ignored.
TOOL = """trap '' TERM HUP INT; echo $$ >>"$1/pids"
setsid sh -c 'trap "" TERM HUP INT; echo $$ >>"$1/pids"; mv "$1/pids" "$1/started"; while :; do sleep 1; done' sh "$1"
"""

AGENT = """mkfifo "$1/hold"
exec sh -c 'echo $$ >"$1/pids"; mv "$1/pids" "$1/started"; read -r line <"$1/hold"' slurm_ext.burnin "$1"
"""


def play(folder: Path, tool: str) -> list[int]:
    """Run the hook to its end; return the pids of what its worker had started."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", HOOK, str(ROOT), tool, str(folder)], timeout=60, check=False, cwd="/"
    )
    assert done.returncode == 0
    return [int(line) for line in (folder / "started").read_text().split()]


def lives(pid: int) -> bool:
    """Say whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"


def wait_until_gone(pids: list[int]) -> bool:
    give_up = time.monotonic() + 30
    while any(lives(pid) for pid in pids) and time.monotonic() < give_up:
        time.sleep(0.02)
    return not any(lives(pid) for pid in pids)


def test_tools_of_a_stuck_worker_go_with_it(tmp_path: Path) -> None:
    pids = play(tmp_path, TOOL)
    assert len(pids) == 2
    assert wait_until_gone(pids)


def test_the_agent_of_a_burn_in_stays(tmp_path: Path) -> None:
    (pid,) = play(tmp_path, AGENT)
    try:
        assert lives(pid)
    finally:
        os.kill(pid, 9)


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_a_worker_that_ends_has_nobody_killed(tmp_path: Path, how: str) -> None:
    """What a healthy worker leaves on purpose, an agent or a slow check, is its own affair."""
    end = "return 1" if how == "returns" else "raise ValueError('broken')"
    hook = HOOK.replace("os.kill(os.getpid(), signal.SIGSTOP)\n    return 1", end)
    tool = 'echo $$ >"$1/pids"; mv "$1/pids" "$1/started"; exec sleep 60'
    done = subprocess.run(
        [sys.executable, "-I", "-c", hook, str(ROOT), tool, str(tmp_path)], timeout=60, check=False, cwd="/"
    )
    assert done.returncode == (1 if how == "returns" else 0)
    pid = int((tmp_path / "started").read_text())
    try:
        assert lives(pid)
    finally:
        os.kill(pid, 9)
