"""What a fault of the lab acts on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_ext import command
from slurm_ext.errors import FmslurmError, LackingError, UsageError
from slurm_ext.lab import hardware, process
from slurm_ext.lab.model import LabNode, State

_RATE = re.compile(r"[1-9][0-9]{0,5}[kmg]bit")


def megabits(rate: str) -> int:
    """Return a rate as tc writes it (100mbit, 1gbit) in Mbit/s, at least 1. Raise UsageError where it is none."""
    if not _RATE.fullmatch(rate):
        raise UsageError(f"--rate {rate}: not a rate", remedy="Write it as tc does: 100mbit, 1gbit")
    return max(1, int(float(rate[:-4]) * {"k": 0.001, "m": 1, "g": 1000}[rate[-4]]))


@dataclass
class Site:
    """What a fault acts on: the lab, one node of it, and what the command line said. A fault may put a new `state` here."""

    state: State
    node: LabNode
    options: Mapping[str, Any]

    @property
    def root(self) -> Path:
        """Return the root of the node's simulated facts."""
        return Path(self.state.dir, "nodes", self.node.name, "root")

    @property
    def nvme(self) -> str:
        """Return the node's NVMe folder."""
        return f"{self.state.dir}/nodes/{self.node.name}/nvme"

    @property
    def lustre(self) -> str:
        """Return the shared folder that plays Lustre."""
        return f"{self.state.dir}/lustre"

    def gpu(self) -> int:
        """Return the GPU chosen, the first one by default. Raise UsageError where the node has none of that index."""
        gpu, count = int(self.options.get("gpu") or 0), int(hardware.read_state(self.root).get("gpus", "0"))
        if not 0 <= gpu < count:
            raise UsageError(f"{self.node.name} has GPUs 0 to {count - 1}, not {gpu}", remedy="Choose --gpu")
        return gpu

    def set(self, **changes: str | None) -> None:
        """Change keys of the node's hardware state; None takes a key out. `__` in a name stands for a dot."""
        self.put({name.replace("__", "."): value for name, value in changes.items()})

    def put(self, changes: Mapping[str, str | None]) -> None:
        """Change keys of the node's hardware state; None takes a key out."""
        state = hardware.read_state(self.root)
        for key, value in changes.items():
            state.pop(key, None)
            if value is not None:
                state[key] = value
        hardware.write_state(self.root, state)

    def inside(self, *argv: str, timeout_s: float = 10.0) -> command.Result:
        """Run a program in the node's namespaces. Raise FmslurmError where it fails."""
        result = command.run(process.enter(self.node, argv), timeout_s=timeout_s)
        if not result.ok:
            raise FmslurmError(f"{self.node.name}: {result.words()}")
        return result

    def needs_namespaces(self, what: str) -> None:
        """Raise LackingError in a lab without namespaces, where `what` would hit every node or the machine itself."""
        if self.state.mode != "netns":
            raise LackingError(
                f"{what} needs a lab whose nodes have namespaces; this one is {self.state.mode}",
                remedy="Use a machine where `fmslurm lab up --mode netns` works",
            )
