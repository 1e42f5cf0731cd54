"""Slurm's and munge's daemons of a lab: start them, see whether they live, wait until Slurm calls every node up."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from slurm_ext import command
from slurm_ext.command import CLEAN_PATH
from slurm_ext.errors import FmslurmError, LackingError
from slurm_ext.lab import process
from slurm_ext.lab.model import HARDWARE, MARK, LabNode, Pid, State

#: Programs a lab cannot do without, and the Debian package of each.
PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "scontrol": "slurm-client",
    "munged": "munge",
    "mungekey": "munge",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
    "tc": "iproute2",
}

#: States of a node (sinfo %T without its suffixes) in which jobs may start on it.
_UP = {"idle", "mixed", "allocated", "completing", "draining", "drained"}
_CALL_S = 15.0
_START_S = 30.0


def missing() -> list[str]:
    """Return what this machine lacks for a lab, in words; empty where nothing is missing."""
    lacking = [] if os.geteuid() == 0 else ["root (run it through sudo)"]
    packages = sorted({package for name, package in PROGRAMS.items() if not shutil.which(name, path=CLEAN_PATH)})
    return lacking + [f"package {package}" for package in packages]


def slurm_version() -> tuple[tuple[int, int], str]:
    """Return the version of the installed slurmctld, as numbers and as text."""
    result = command.run(["slurmctld", "-V"], timeout_s=_CALL_S)
    found = re.search(r"(\d+)\.(\d+)\.\d+\S*", result.stdout)
    if not found:
        raise LackingError(f"slurmctld -V: {result.words()}", remedy="Install Slurm's packages: `make setup`")
    return (int(found[1]), int(found[2])), found[0]


def environment(state: State, node: LabNode | None = None) -> dict[str, str]:
    """Return the environment of whatever runs in the lab; with a node, its hardware too."""
    home = state.dir
    env = command.clean_env(
        PATH=f"{home}/bin:{CLEAN_PATH}",
        SLURM_CONF=f"{home}/etc/slurm/slurm.conf",
        FMSLURM_CONFIG=f"{home}/etc/fmslurm/fmslurm.yaml",
    )
    if node is not None:
        env[HARDWARE] = f"{home}/nodes/{node.name}/root/etc/fmslurm-lab/hardware.json"
    return env


def marked_environment(state: State, node: LabNode | None = None) -> dict[str, str]:
    """Return `environment` plus the mark by which `down` finds a process again."""
    return {**environment(state, node), MARK: state.dir}


def start_munged(state: State) -> None:
    """Start the lab's own munged, with a key of its own."""
    home = state.dir
    key = f"{home}/etc/munge.key"
    if not os.path.exists(key):
        _must(command.run(["mungekey", "--create", f"--keyfile={key}"], timeout_s=_CALL_S))
    argv = [
        "munged",
        f"--socket={home}/run/munge.socket",
        f"--key-file={key}",
        f"--pid-file={home}/run/munged.pid",
        f"--log-file={home}/log/munged.log",
        f"--seed-file={home}/run/munge.seed",
        "--num-threads=4",
    ]
    _must(command.run(process.enter(state.head, argv), timeout_s=_CALL_S, env=marked_environment(state)))


def start_slurmctld(state: State) -> None:
    """Start slurmctld; it detaches by itself once it has read its configuration."""
    argv = process.enter(state.head, ["slurmctld"])
    _must(command.run(argv, timeout_s=_START_S, env=marked_environment(state)))


def start_slurmd(state: State, node: LabNode) -> None:
    """Start one node's slurmd; it detaches by itself."""
    argv = process.enter(node, ["slurmd", "-N", node.name])
    _must(command.run(argv, timeout_s=_START_S, env=marked_environment(state, node)))


def find(state: State, node: LabNode, name: str) -> list[Pid]:
    """Return the daemon's processes on a node: name is slurmd, slurmctld, munged or weed."""
    if node.holder is not None:
        return [p.pid for p in process.inside(node.holder) if p.name in _names(name)]
    if name == "weed":
        return [p.pid for p in process.marked(state.dir) if p.name == name]
    files = {"slurmd": f"slurmd.{node.name}.pid", "slurmctld": "slurmctld.pid", "munged": "munged.pid"}
    try:
        pid = process.identify(int((Path(state.dir) / "run" / files[name]).read_text()))
    except (FileNotFoundError, ValueError):
        return []
    return [pid] if pid and _name(pid) in _names(name) else []


def stop(state: State, node: LabNode, name: str, *, timeout_s: float = 10.0) -> None:
    """End a daemon: SIGTERM, and SIGKILL for one that does not go in time; jobs of a slurmd live on, as Slurm has it."""
    left = process.kill(find(state, node, name), timeout_s=timeout_s, number=signal.SIGTERM)
    if process.kill(left, timeout_s=5.0):
        raise FmslurmError(f"{name} on {node.name} cannot be ended", remedy=f"See {state.dir}/log")


def node_states(state: State, *, timeout_s: float = _CALL_S) -> Mapping[str, str]:
    """Return each node's state in Slurm's own word (sinfo %T); empty while the controller does not answer."""
    result = command.run(["sinfo", "--noheader", "-N", "-o", "%N %T"], timeout_s=timeout_s, env=environment(state))
    pairs = (line.split() for line in result.stdout.splitlines()) if result.ok else ()
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def responding(states: Mapping[str, str], names: Collection[str]) -> set[str]:
    """Return those of `names` that Slurm calls up and that answer it (`*` at a state means that they do not)."""
    return {name for name in names if states.get(name, "").rstrip("~#!%$@+^-") in _UP}


def started(state: State, *, timeout_s: float = _CALL_S) -> Mapping[str, float]:
    """Return when each node's slurmd that is registered now was started, in seconds since the epoch."""
    env = {**environment(state), "SLURM_TIME_FORMAT": "%s"}
    result = command.run(["scontrol", "--oneliner", "show", "nodes"], timeout_s=timeout_s, env=env)
    found = re.findall(r"^NodeName=(\S+).*? SlurmdStartTime=(\d+)", result.stdout, re.MULTILINE)
    return {name: float(at) for name, at in found}


def wait_up(state: State, nodes: Iterable[LabNode], *, timeout_s: float, since: float = 0.0) -> None:
    """Wait until Slurm calls all nodes up, each with a slurmd started at `since` (epoch) or later.

    A controller that was restarted calls nodes up from memory: only a registration that is younger says that it is so.
    Raise LackingError, naming those that are not up, after `timeout_s`.
    """
    wanted = {node.name for node in nodes}
    deadline = time.monotonic() + timeout_s
    pause_s = 0.1
    while True:
        states = node_states(state, timeout_s=5.0)
        ready = responding(states, wanted)
        if since and ready == wanted:
            times = started(state, timeout_s=5.0)
            ready = {name for name in ready if times.get(name, 0.0) >= int(since)}
        waiting = wanted - ready
        if not waiting:
            return
        if time.monotonic() > deadline:
            some = ", ".join(f"{name} ({states.get(name, 'no answer')})" for name in sorted(waiting)[:5])
            raise LackingError(
                f"{len(waiting)} of {len(wanted)} nodes are not up after {timeout_s:.0f} s: {some}; "
                f"slurmctld's log ends with {last_lines(state, 'slurmctld')}",
                remedy=f"See {state.dir}/log (with `up --keep-logs` after a failed start)",
            )
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 1.0)


def last_lines(state: State, name: str, count: int = 2) -> str:
    """Return the end of a daemon's log on one line; empty where it has none."""
    try:
        lines = (Path(state.dir) / "log" / f"{name}.log").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return " / ".join(lines[-count:])[:600]


def _names(name: str) -> tuple[str, str]:
    """Return what the kernel calls a daemon: since Slurm 23.11 `scontrol reconfigure` starts it anew by its real path,
    which on Debian ends in -wlm."""
    return name, f"{name}-wlm"


def _name(pid: Pid) -> str:
    try:
        return Path(f"/proc/{pid.pid}/comm").read_text().strip()
    except OSError:
        return ""


def _must(result: command.Result) -> None:
    if not result.ok:
        said = " / ".join((result.stderr or result.stdout).strip().splitlines()[-3:])
        raise FmslurmError(f"{result.words()}: {said[:500]}" if said else result.words())
