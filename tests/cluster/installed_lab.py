"""A lab of a test file's own with fmslurm installed in it, and how such a file changes its settings."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.model import LabOptions

#: Far below what the simulated links do, far above what a link shaped to 100 Mbit/s does.
FLOORS = {"busbw_gbs": 0.03, "pair_busbw_gbs": 0.03}


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
    done = lab.run([sys.executable, "-m", "slurm_ext.cli", *arguments], timeout_s=90)
    assert done.ok, done.words()
    return done.stdout


def config_path(lab: Lab) -> Path:
    """Return the lab's fmslurm.yaml."""
    return lab.path("etc", "fmslurm", "fmslurm.yaml")


def configure(lab: Lab, section: str = "burnin", **keys: object) -> None:
    """Set some keys of a section and push them to the nodes."""
    data = yaml.safe_load(config_path(lab).read_text())
    data[section].update(keys)
    config_path(lab).write_text(yaml.safe_dump(data))
    fmslurm(lab, "config", "push")
