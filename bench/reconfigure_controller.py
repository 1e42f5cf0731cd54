"""A real slurmctld with a tree of so many switches: what a start and a reconfigure cost it, with the new content read back.

Nodes are cloud nodes that are powered down: defined, on switches, and never spoken to, so that the controller has nothing else
to do. A slurmctld that was started in the foreground keeps its process over a reconfigure (from 23.11 on it executes itself
anew), so the processor's time of one process holds all of it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bare_controller import BareController

from slurm_ext.slurm.model import Version
from slurm_ext.topology import render
from slurm_ext.topology.build import build
from slurm_ext.topology.model import Placement, Tree

#: As many for every tree, so that only the switches differ; the leaves are the smaller the more there are.
NODES = 8192
LEAVES_PER_MIDDLE = 16
WAIT_S = 300.0

#: `ask` waits for its answer through all of a reconfigure: the sockets stay open, and slurmctld answers once it is done.
_MORE = "\n".join(
    (
        f"NodeName=n[1-{NODES}] CPUs=2 State=CLOUD",
        "SuspendProgram=/bin/true",
        "ResumeProgram=/bin/true",
        "SuspendTime=100000",
        "MessageTimeout=100",
        "SlurmctldTimeout=300",
    )
)


class Cost(NamedTuple):
    """What slurmctld took until it answered with the new content: seconds of the processor and by the clock, and its peak memory."""

    cpu_s: float
    wall_s: float
    peak_mb: float


class Run(NamedTuple):
    """One slurmctld: its start and its reconfigures, each with the other of two contents."""

    switches: int
    start: Cost
    reconfigures: tuple[Cost, ...]


def tree_of(switches: int, generation: int) -> Tree:
    """Return a tree of three tiers with about so many switches; another generation has other names in all places."""
    # One root, and a middle for each 16 leaves.
    leaves = max(1, round((switches - 1) * LEAVES_PER_MIDDLE / (LEAVES_PER_MIDDLE + 1)))
    paths = [
        (f"top-{generation}", f"middle-{generation}-{i // LEAVES_PER_MIDDLE}", f"leaf-{generation}-{i}")
        for i in range(leaves)
    ]
    return build(Placement(f"n{i + 1}", path=paths[i * leaves // NODES], zone="z") for i in range(NODES))


def measure(switches: int, repeats: int, version: Version) -> Run:
    """Return what a tree of about so many switches costs a slurmctld of this machine (0: no topology at all)."""
    trees = [tree_of(switches, generation) for generation in (0, 1)] if switches else []
    with (
        tempfile.TemporaryDirectory(prefix="fmreconf-", dir="/var/tmp") as folder,
        BareController(Path(folder), WAIT_S) as controller,
    ):
        _write(controller, trees, 0, version)
        started = time.monotonic()
        with controller.running() as up:
            assert up, controller.said()
            start = _answered(controller, started, 0.0, 0)
            _check(controller, trees, 0)
            costs = []
            for number in range(1, repeats + 1):
                costs.append(_reconfigure(controller, trees, number, version))
                _check(controller, trees, number)
    return Run(len(trees[0].switches) if trees else 0, start, tuple(costs))


def _write(controller: BareController, trees: list[Tree], number: int, version: Version) -> None:
    """Write the files of one generation. What changes without a topology is the name of the partition."""
    files, plugin = {}, ""
    if trees:
        files = {"topology.conf": render.topology_conf(trees[number % 2], origin="a bench", version=version)}
        plugin = "TopologyPlugin=topology/tree"
    partition = f"PartitionName=p{number} Nodes=ALL Default=YES"
    if number == 0:
        controller.write(files, "spare", more=f"{_MORE}\n{plugin}", partitions=partition)
        return
    # Ports and state stay.
    for name, text in files.items():
        (controller.folder / name).write_text(text)
    lines = [line for line in controller.conf.read_text().splitlines() if not line.startswith("PartitionName=")]
    controller.conf.write_text("\n".join([*lines, partition, ""]))


def _reconfigure(controller: BareController, trees: list[Tree], number: int, version: Version) -> Cost:
    _write(controller, trees, number, version)
    before, started = _cpu_s(controller), time.monotonic()
    controller.ask("scontrol", "reconfigure")
    return _answered(controller, started, before, number)


def _answered(controller: BareController, started: float, before: float, number: int) -> Cost:
    """Wait until slurmctld answers with the partition of a generation, and return what it took until then."""
    wanted, deadline = f"PartitionName=p{number} ", started + WAIT_S
    while wanted not in controller.ask("scontrol", "--oneliner", "show", "partition"):
        assert time.monotonic() < deadline, f"no {wanted}within {WAIT_S:.0f} s: {controller.said()[-2000:]}"
        time.sleep(0.01)
    return Cost(_cpu_s(controller) - before, time.monotonic() - started, _peak_mb(controller))


def _check(controller: BareController, trees: list[Tree], number: int) -> None:
    """Hold the place of each node, as slurmctld has it, against the tree that it was given."""
    if trees:
        assert controller.places() == trees[number % 2].paths(), f"generation {number} was not taken in"


def _pid(controller: BareController) -> int:
    return int((controller.folder / "slurmctld.pid").read_text())


def _cpu_s(controller: BareController) -> float:
    """Return the processor's seconds of all threads of slurmctld, those that ended included (clock_getcpuclockid(3))."""
    return time.clock_gettime((~_pid(controller) << 3) | 2)


def _peak_mb(controller: BareController) -> float:
    status = Path(f"/proc/{_pid(controller)}/status").read_text()
    return next(float(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024
