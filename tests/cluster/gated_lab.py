"""A lab in which the controller runs, too, and what tests of the gate ask of it."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

from installed_lab import config_path, fmslurm, hooks_running
from test_cluster_hooks import state, until

from slurm_ext import shared
from slurm_ext.lab import process
from slurm_ext.lab.cluster import Lab

CHECKOUT = Path(__file__).resolve().parents[2]

#: The daemon, with a gate that counts as stuck after so many seconds; all else is the real thing.
IMPATIENT = """
import sys
sys.path.insert(0, sys.argv[2])
from slurm_ext.resume import daemon, gates
gates.SLACK_S, gates.longest_s = 0.0, lambda _settings, _nodes: {stuck_s}
sys.exit(daemon.main(["--config", sys.argv[1]]))
"""


def controllers(lab: Lab) -> list[process.Found]:
    def is_one(pid: int) -> bool:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return b"slurm_ext.resume.daemon" in line or b"gates.longest_s" in line

    return [found for found in process.marked(lab.dir) if is_one(found.pid.pid)]


def start(lab: Lab, *, stuck_s: float | None = None) -> None:
    """Start a controller, in the stead of the one that runs, and wait for its sign of life."""
    assert not process.kill([found.pid for found in controllers(lab)], number=signal.SIGTERM, timeout_s=240)
    began = time.time()
    config = str(config_path(lab))
    argv = [str(CHECKOUT / "bin" / "fmslurm-controller"), "--config", config]
    if stuck_s is not None:
        argv = [sys.executable, "-c", IMPATIENT.format(stuck_s=stuck_s), config, str(CHECKOUT)]
    lab.start("fmslurm-controller", argv)

    def lives() -> bool:
        beat = shared.heartbeat(str(lab.path("share")))
        return beat is not None and beat.time > began and beat.mode == "enforce"

    until(lives, "the controller lives")


def why(lab: Lab, job: str) -> dict:
    return json.loads(fmslurm(lab, "why", job, "--json"))


def run(lab: Lab, job: str, number: int = 0) -> dict:
    """Return one run of a job's story, empty as long as nobody has decided about it."""
    found = [one for one in why(lab, job)["runs"] if one["restarts"] == number and "decision" in one]
    return found[0] if found else {}


def shown(lab: Lab, job: str, key: str) -> str:
    words = lab.run(["scontrol", "show", "job", job]).stdout.split()
    return next((word.partition("=")[2] for word in words if word.startswith(f"{key}=")), "")


def restarts(lab: Lab, job: str) -> int:
    return int(shown(lab, job, "Restarts"))


def names(lab: Lab, hostlist: str) -> set[str]:
    return set(lab.run(["scontrol", "show", "hostnames", hostlist]).stdout.split()) if hostlist else set()


def agent_of(lab: Lab, node: str) -> list[process.Pid]:
    holder = lab.state.node(node).holder
    assert holder is not None
    found = []
    for one in process.inside(holder):
        try:
            line = Path(f"/proc/{one.pid.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"slurm_ext.burnin.agent" in line:
            found.append(one.pid)
    return found


def phase(lab: Lab, job: str) -> str:
    """Return what the gate of a job's first run does now (see `leader.Leader.progress`), empty where nobody tells."""
    found = shared.gate_state(str(lab.path("share")), f"{lab.state.cluster}/{job}-0")
    return found.phase if found is not None else ""


def finish(lab: Lab, job: str, *, restarted: int | None = None, timeout_s: float = 240.0) -> None:
    """Wait for a job's good end; `restarted`: how often it must have gone back before, None where that is not told."""
    until(lambda: state(lab, job) in ("COMPLETED", "FAILED", "CANCELLED"), f"job {job} ends", timeout_s=timeout_s)
    assert state(lab, job) == "COMPLETED"
    assert restarted is None or restarts(lab, job) == restarted


def put_back(lab: Lab, configuration: str) -> None:
    """Make a lab whole again after a test: its settings, its nodes, an empty queue; shows what jobs met, for one that failed."""
    for job in lab.run(["squeue", "-h", "-t", "all", "-S", "-i", "-o", "%A"]).stdout.split()[:2]:
        print(lab.run([sys.executable, "-m", "slurm_ext.cli", "why", job]).stdout)
        print(lab.run(["scontrol", "show", "job", job]).stdout)
    lab.run(["scancel", "--user=root"])
    if config_path(lab).read_text() != configuration:
        config_path(lab).write_text(configuration)
        fmslurm(lab, "config", "push")
    for node in lab.nodes:
        lab.heal(node)
    until(lambda: not lab.run(["squeue", "-h"]).stdout.strip(), "the queue is empty")
    until(lambda: not hooks_running(lab), "no hook runs")
    for node in lab.nodes:
        lab.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    until(lambda: all_idle(lab), "all nodes are idle")


def all_idle(lab: Lab) -> bool:
    """Say whether every node may take a job at once."""
    return set(lab.run(["sinfo", "-h", "-N", "-o", "%T"]).stdout.split()) == {"idle"}
