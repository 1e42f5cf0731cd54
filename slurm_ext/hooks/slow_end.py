"""End a slow check: its leader, its programs (by a token in their environment), and the diagnostic that DCGM runs for it.

`dcgmi` told to end (SIGTERM) asks DCGM's daemon to stop its diagnostic `nvvs`, which is the daemon's child and not ours: it is
waited for and never killed (dcgmi/Diag.cpp, dcgmi/main_dcgmi.cpp). Processes are known by start time, never by number alone.

A name and an environment are anybody's to choose: only what root or DCGM's own account runs counts.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection

from slurm_ext import shared
from slurm_ext.config.model import Settings
from slurm_ext.gate import rules, slow_result
from slurm_ext.gate.local import Look
from slurm_ext.gate.model import conclude, judged
from slurm_ext.hooks import slow_place, slow_state
from slurm_ext.hooks.slow_state import Running
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import UNKNOWN

#: The program that DCGM's daemon starts for a diagnostic, and the daemon.
DIAGNOSTIC, DAEMON = "nvvs", "nv-hostengine"

#: As whom the daemon starts it (nvidia-dcgm.service: nv-hostengine --service-account nvidia-dcgm), else as root.
ACCOUNT = "nvidia-dcgm"
_PASSWD, _PASSWD_BYTES = "/etc/passwd", 1 << 20

#: How long (seconds) of the given time programs may take to end by themselves; the rest is for SIGKILL.
KINDLY, PAUSE_S = 0.7, 0.02

_ENVIRON_BYTES = 64 << 10


class Process(NamedTuple):
    """One process of /proc: `start` in clock ticks since boot, `session` its session id, `ours` that we may signal it."""

    pid: int
    start: int
    state: str
    session: int
    name: str
    ours: bool = True
    parent: int = 0


def end(run_dir: str, timeout_s: float) -> bool:
    """End what the running file tells of, within `timeout_s` seconds; say whether nothing of it is left."""
    who = slow_state.running(run_dir)
    if who is None or who.boot_id != slow_state.machine_boot_id():
        slow_state.remove_running(run_dir)  # no file of ours, or what it tells of ended with its boot
        return True
    began = time.monotonic()
    killing = False
    asked: set[int] = set()
    while left := alive(who):
        now = time.monotonic() - began
        if now >= timeout_s:
            return False
        killing = killing or now >= timeout_s * KINDLY
        for process in left:
            if process.ours and (killing or process.pid not in asked):
                asked.add(process.pid)
                _signal(process, signal.SIGKILL if killing else signal.SIGTERM)
        time.sleep(PAUSE_S)
    if shared.NODE_NAME.fullmatch(who.node):
        slow_place.forget(who.node)
    slow_state.remove_running(run_dir)
    return True


def alive(who: Running) -> list[Process]:
    """Return the processes of a slow check that have not ended. One that only waits to be collected has."""
    found = []
    accounts: frozenset[int] | None = None
    for process in processes(since=who.start):
        if process.state in "ZX":
            continue
        if (process.pid, process.start) == (who.pid, who.start):
            found.append(process)
            continue
        has_token = _has_token(process.pid, who.token)
        if not has_token and process.name != DIAGNOSTIC:
            continue
        accounts = trusted() if accounts is None else accounts
        if not is_run_by(process.pid, accounts):
            continue
        if has_token:
            found.append(process)
        elif _is_of_daemon(process, accounts):
            found.append(process._replace(ours=False))
    return found


def trusted() -> frozenset[int]:
    """Return the user ids as whom a slow check runs: root's, our own, and DCGM's account by this machine's own table.

    The name service is not asked: it may hang, and its answer may be anybody's.
    """
    found = {0, os.geteuid()}
    try:
        with open(_PASSWD, encoding="utf-8", errors="replace") as stream:
            for line in stream.read(_PASSWD_BYTES).splitlines():
                fields = line.split(":")
                if fields[0] == ACCOUNT and len(fields) > 3 and fields[2].isascii() and fields[2].isdigit():
                    found.add(int(fields[2]))
    except OSError:
        pass
    return frozenset(found)


def is_run_by(pid: int, accounts: Collection[int]) -> bool:
    """Say whether each of a process's user ids is one of these.

    Who owns /proc/PID does not say that: root does where a program may not be dumped, whoever runs it (proc(5)).
    """
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as stream:
            uids = next((line.split()[1:] for line in stream.read(8192).splitlines() if line.startswith("Uid:")), [])
        return bool(uids) and all(int(uid) in accounts for uid in uids)
    except (OSError, ValueError):
        return False


def _is_of_daemon(process: Process, accounts: Collection[int]) -> bool:
    """Say whether DCGM's daemon started a process, or did and has ended since."""
    if process.parent == 1:
        return True
    parent = read(process.parent)
    return parent is not None and parent.name == DAEMON and is_run_by(parent.pid, accounts)


def stays(look: Look, settings: Settings, run_dir: str) -> Look:
    """Return the look with what it means for a job that a slow check is still on the node: it is not known what it would meet."""
    who = slow_state.running(run_dir)
    is_efa = who is not None and slow_result.kind_of_level(who.level) == slow_result.EFA
    id_, where = ("efa.loopback-stays", "EFA devices") if is_efa else ("dcgm.stays", "GPUs")
    line = f"a slow check of ours did not end in time, and may still be on the {where}"
    more = rules.enabled([judged(UNKNOWN, id_, "node", "none", line)], settings.gate.disabled)
    items = (*look.items, *more)
    return look._replace(items=items, verdict=conclude(items, rule="gate.local"))


def processes(*, since: int = 0) -> list[Process]:
    """Return the processes of this machine that began at `since` (clock ticks since boot) or later."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := read(int(name))) is not None and process.start >= since:
            found.append(process)
    return found


def read(pid: int) -> Process | None:
    """Return a process as proc(5) tells it, None where it has gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            before, _, after = stream.read(4096).rpartition(")")
        fields = after.split()
        name = before.partition("(")[2]
        return Process(pid, int(fields[19]), fields[0], int(fields[3]), name, parent=int(fields[1]))
    except (OSError, IndexError, ValueError):
        return None


def _has_token(pid: int, token: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            return f"FMSLURM_SLOW={token}".encode() in stream.read(_ENVIRON_BYTES).split(b"\0")
    except OSError:
        return False


def _signal(process: Process, number: signal.Signals) -> None:
    """Signal a process, unless its number is another's by now."""
    found = read(process.pid)
    if found is None or found.start != process.start:
        return
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return
