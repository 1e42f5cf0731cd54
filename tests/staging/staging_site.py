"""A site for staging tests: settings and the folders they name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from slurm_ext.config.model import Settings
from slurm_ext.staging import Checkpoints, nvme


class StagingSite(NamedTuple):
    """Settings and the folders they name; the run is `run`, its owner whoever runs the tests."""

    root: Path
    settings: Settings
    nvme: Path
    shared: Path

    def trainer(self, node: str = "n0", attempt: str = "lab/12-0", **more: object) -> Checkpoints:
        """Return the client of a job on a node."""
        folder = nvme.prepare_run_folder(self.settings, node, "run", os.geteuid())
        return Checkpoints(
            run="run",
            directory=str(self.shared / "ckpt"),
            nvme=folder,
            attempt=attempt,
            environment={"SLURMD_NODENAME": node, "FMSLURM_CKPT_SOCKET": str(self.root / "run" / node / "agent.sock")},
            **more,  # type: ignore[arg-type]
        )
