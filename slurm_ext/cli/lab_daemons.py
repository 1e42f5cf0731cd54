"""Our daemons in a lab: started in their nodes' namespaces, found again by a mark in their environment."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from slurm_ext.errors import FmslurmError
from slurm_ext.lab import process
from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.model import MARK, Pid

#: Says which daemon a process is (or belongs to); the value is its name.
ROLE = "FMSLURM_DAEMON"

_STOP_S = 20.0


class LabDaemons:
    """The controller on the lab's head and an agent on each node, each only where its program is in the release."""

    def __init__(self, lab: Lab, root: str, config_path: str, programs: tuple[str, ...]) -> None:
        self._lab, self._root, self._config, self._programs = lab, root, config_path, programs

    def start(self, *, anew: bool) -> list[str]:
        """Start what does not run (with `anew` all, after stopping what runs), and return the names of all."""
        if anew:
            self.stop()
        running = self.running()
        names = []
        for name, program, node in self._wanted():
            names.append(name)
            if name in running:
                continue
            argv = ["env", f"{ROLE}={name}", f"{self._root}/bin/{program}", "--config", self._config]
            self._lab.start(name, argv, node=node)
        return names

    def stop(self) -> list[str]:
        """Stop every daemon of ours in the lab: SIGTERM, then SIGKILL. Raise FmslurmError where one cannot be ended."""
        running = self.running()
        left = process.kill(
            [pid for pids in running.values() for pid in pids], timeout_s=_STOP_S, number=signal.SIGTERM
        )
        if stuck := process.kill(left, timeout_s=5.0):
            raise FmslurmError(f"processes {', '.join(str(p.pid) for p in stuck)} of our daemons cannot be ended")
        return sorted(running)

    def running(self) -> dict[str, list[Pid]]:
        """Return daemon name -> its processes."""
        found: dict[str, list[Pid]] = {}
        for each in process.everything():
            environment = _environment(each.pid.pid)
            if environment.get(MARK) == self._lab.dir and (name := environment.get(ROLE)):
                found.setdefault(name, []).append(each.pid)
        return found

    def _wanted(self) -> list[tuple[str, str, str | None]]:
        wanted: list[tuple[str, str, str | None]] = []
        if "fmslurm-controller" in self._programs:
            wanted.append(("fmslurm-controller", "fmslurm-controller", None))
        if "fmslurm-agent" in self._programs:
            wanted += [(f"fmslurm-agent-{node}", "fmslurm-agent", node) for node in self._lab.nodes]
        return wanted


def _environment(pid: int) -> dict[str, str]:
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).split("=", 1) for entry in content.split(b"\0") if b"=" in entry)
    return {pair[0]: pair[1] for pair in pairs}
