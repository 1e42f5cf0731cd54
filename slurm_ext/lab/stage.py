"""How the demo acts and what it looks at: commands as a person runs them at the lab's head node, bounded waits, the trail."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slurm_ext import command, events
from slurm_ext.errors import FmslurmError
from slurm_ext.lab import model
from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.show import Show

#: The job: small enough to end in a quarter of a minute, long enough to be hit in the middle. Checkpoints every 2 s.
STEPS, CHECKPOINT_EVERY, STEP_MS = 240, 20, 90
RUN = "demo"

SOURCE = Path(__file__).resolve().parents[2]
FMSLURM = str(SOURCE / "bin/fmslurm")


class BrokenStoryError(FmslurmError):
    """The story cannot go on: something it waits for did not happen in time."""


class Stage:
    """Where one showing plays. `lab` is there once it is up; every wait is bounded."""

    def __init__(self, directory: str, show: Show) -> None:
        self.directory = directory
        self.show = show
        self.lab: Lab | None = None
        self.job = ""

    # --- how it acts -------------------------------------------------------------------------------------------

    def env(self) -> dict[str, str]:
        """Return the environment of a user at the lab's head node."""
        assert self.lab is not None
        more = {
            "PYTHON": sys.executable,
            "TRAIN": str(SOURCE / "examples/train.py"),
            "STEPS": str(STEPS),
            "CHECKPOINT_EVERY": str(CHECKPOINT_EVERY),
            "STEP_MS": str(STEP_MS),
            "OUT": str(self.lab.path("lustre", "weights.npy")),
            "LD_LIBRARY_PATH": str(self.lab.path("lib")),
            "HOME": "/root",
            model.MARK: self.lab.dir,  # a demo that is killed leaves nothing that `lab down` does not find
        }
        return {**self.lab.env(), **more}

    def run(self, *argv: str, timeout_s: float = 60.0, check: bool = True) -> command.Result:
        """Run a command at the lab's head node. Raise BrokenStoryError where it fails and `check` is set."""
        assert self.lab is not None
        result = command.run(argv, timeout_s=timeout_s, env=self.env(), cwd=str(self.lab.path("lustre")))
        if check and not result.ok:
            raise BrokenStoryError(f"{' '.join(argv[:4])}: {result.words()}")
        return result

    def fmslurm(self, *arguments: str, timeout_s: float = 60.0, check: bool = True) -> command.Result:
        """Run one of our own commands, as the story's user does, and print it."""
        self.show.say(f"$ fmslurm {' '.join(arguments)}"[: self.show.width * 2], "note")
        return self.run(FMSLURM, *arguments, timeout_s=timeout_s, check=check)

    def wait(self, what: str, look: Callable[[], Any], timeout_s: float) -> Any:
        """Look until there is something true, and return it. Raise BrokenStoryError after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while True:
            if found := look():
                return found
            if time.monotonic() > deadline:
                raise BrokenStoryError(f"waited {timeout_s:.0f} s in vain: {what}")
            self.show.waiting(f"{what} ({deadline - time.monotonic():.0f} s left)")
            time.sleep(0.2)

    # --- what it looks at --------------------------------------------------------------------------------------

    def job_fields(self) -> dict[str, str]:
        """Return the job as squeue sees it: state, reason, nodes, excluded nodes."""
        form = "%T|%r|%N|%x"
        result = self.run("squeue", "-h", "-t", "all", "-j", self.job, "-o", form, timeout_s=15, check=False)
        parts = result.stdout.strip().split("|")
        if len(parts) != 4:
            return {}
        return dict(zip(("state", "reason", "nodes", "excluded"), parts, strict=True))

    def restarts(self) -> int:
        """Return how often Slurm has put the job back into the queue."""
        found = re.search(
            r"\bRestarts=(\d+)", self.run("scontrol", "show", "job", self.job, timeout_s=15, check=False).stdout
        )
        return int(found.group(1)) if found else 0

    def expand(self, hostlist: str) -> list[str]:
        """Return the names in a hostlist, as Slurm expands it."""
        if not hostlist or hostlist == "(null)":
            return []
        return self.run("scontrol", "show", "hostnames", hostlist, timeout_s=15).stdout.split()

    def reason(self, node: str) -> str:
        """Return why a node is drained; empty where it is not."""
        result = self.run("sinfo", "-h", "-N", "-n", node, "-o", "%T|%E", timeout_s=15, check=False)
        state, _, why = (result.stdout.strip().splitlines() or ["|"])[0].partition("|")
        return why if "drain" in state else ""

    def drained(self) -> dict[str, str]:
        """Return every drained node with its reason."""
        assert self.lab is not None
        return {node: why for node in self.lab.nodes if (why := self.reason(node))}

    def trail(self) -> Iterator[events.Event]:
        """Yield the events of all nodes and of the controller."""
        assert self.lab is not None
        for path in sorted(Path(self.lab.dir, "nodes").glob("*/log/events.jsonl")):
            yield from events.read(str(path))

    def find(self, name: str, **wanted: str) -> list[events.Event]:
        """Return the events of one name whose fields have the wanted values, in order of time."""
        rows = [e for e in self.trail() if e.event == name and all(getattr(e, k) == v for k, v in wanted.items())]
        return sorted(rows, key=lambda e: e.time)
