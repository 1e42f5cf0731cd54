"""A lab of a test file's own with fmslurm installed in it, and how such a file changes its settings."""

from __future__ import annotations

import contextlib
import glob
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.model import LabOptions

#: Far below what the simulated links do, far above what a link shaped to 100 Mbit/s does.
FLOORS = {"busbw_gbs": 0.03, "pair_busbw_gbs": 0.03}

#: Verdicts of nodes that are well: on a busy machine a first run may fail once and pass when it is repeated, which is worth a word.
WELL = ("pass", "warn")


@contextlib.contextmanager
def installed(new_lab: type[Lab], prefix: str, *, nodes: int = 4) -> Iterator[Lab]:
    """Bring up a lab with fmslurm installed, and take it down: hooks change what every job of a lab sees."""
    with tempfile.TemporaryDirectory(prefix=f"fm{prefix}-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)  # jobs run as any user
        lab = new_lab.up(LabOptions(dir=f"{folder}/lab", nodes=nodes, prefix=prefix, ready=True, s3="off"), print)
        try:
            lab.set_floors(FLOORS)
            fmslurm(lab, "install")
            yield lab
        finally:
            lab.down()


def fmslurm(lab: Lab, *arguments: str) -> str:
    """Run a command of ours in the lab, which must end well, and return what it printed."""
    done = lab.run([sys.executable, "-m", "slurm_ext.cli", *arguments], timeout_s=240)
    assert done.ok, done.words()
    return done.stdout


def config_path(lab: Lab) -> Path:
    """Return the lab's fmslurm.yaml."""
    return lab.path("etc", "fmslurm", "fmslurm.yaml")


def configure(lab: Lab, section: str = "burnin", **keys: object) -> None:
    """Set some keys of a section and push them to the nodes."""
    data = yaml.safe_load(config_path(lab).read_text())
    data.setdefault(section, {}).update(keys)
    config_path(lab).write_text(yaml.safe_dump(data))
    fmslurm(lab, "config", "push")


@contextlib.contextmanager
def own_munged(lab: Lab, node: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Give one node a munged of its own, of the lab's key, for what fmslurm says; Slurm goes on to use the lab's."""
    run = lab.path("run")
    argv = [
        "munged",
        "--foreground",
        f"--socket={run}/munge-own.socket",
        f"--key-file={lab.path('etc', 'munge.key')}",
        f"--pid-file={run}/munge-own.pid",
        f"--log-file={lab.path('log')}/munge-own.log",
        f"--seed-file={run}/munge-own.seed",
    ]
    quiet = subprocess.DEVNULL
    daemon = subprocess.Popen(argv, env={**os.environ, **environment}, stdout=quiet, stderr=quiet)
    links = [run / f"of-{name}.socket" for name in lab.nodes]
    try:
        deadline = time.monotonic() + 240.0
        while not (run / "munge-own.pid").exists():
            assert daemon.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for name, link in zip(lab.nodes, links, strict=True):
            link.symlink_to(run / ("munge-own.socket" if name == node else "munge.socket"))
        configure(lab, "site", munge_socket=f"{run}/of-%n.socket")
        yield daemon
    finally:
        daemon.terminate()
        daemon.wait(120)
        for path in (*links, *run.glob("munge-own.*")):
            path.unlink(missing_ok=True)


def hooks_running(lab: Lab) -> list[str]:
    found = []
    for entry in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ends while we look
            found.append(Path(entry).read_text(errors="replace"))
    return [text for text in found if "fmslurm-hook\0" in text and lab.dir in text]


def put_nodes_back(lab: Lab) -> None:
    """Cancel all jobs, heal all nodes, and resume them once nothing runs any more.

    A hook that convicted its node ends with 1 a moment after it drained it: who resumes the node before that gets it drained
    by Slurm's own word for it.
    """
    for node in lab.nodes:
        lab.heal(node)
    deadline = time.monotonic() + 240.0
    while lab.run(["squeue", "-h"]).stdout.strip() or hooks_running(lab):
        assert time.monotonic() < deadline, "the queue is not empty, or a hook still runs"
        lab.run(["scancel", "--user=root"])  # again: a prolog that failed brings its job back
        time.sleep(0.2)
    # Who asks too early finds a node that still completes a job, and the next job goes elsewhere. One that does not come is
    # that test's to find: it may be one that a test has ended.
    deadline = time.monotonic() + 60.0
    while (left := not_idle(lab)) and time.monotonic() < deadline:
        for node in left:
            lab.run(["scontrol", "update", f"nodename={node}", "state=resume"])
        time.sleep(0.2)


def not_idle(lab: Lab) -> list[str]:
    """Return the nodes that could not take a job at this moment."""
    rows = [line.split() for line in lab.run(["sinfo", "-h", "-N", "-o", "%N %T"]).stdout.splitlines()]
    idle = {row[0] for row in rows if row[1:] == ["idle"]}
    return [node for node in lab.nodes if node not in idle]
