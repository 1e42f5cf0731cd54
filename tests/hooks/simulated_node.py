"""A simulated p5.48xlarge in a folder, healthy until a test spoils it, with an nvidia-smi that prints what it is given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from slurm_ext.aws import catalogue
from slurm_ext.config.model import Settings
from slurm_ext.gate import smi
from slurm_ext.lab import hardware

ROW = catalogue.CATALOGUE["p5.48xlarge"]
_VALUES = {
    "driver_version": "570.133.20",
    "vbios_version": "96.00.99.00.01",
    "persistence_mode": "Enabled",
    "mig.mode.current": "Disabled",
    "memory.used": "4 MiB",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "pstate": "P0",
    "gpu_recovery_action": "None",
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "No",
    "fabric.state": "Completed",
    "fabric.status": "Success",
    "temperature.gpu.tlimit": "50",
}


def uuid(gpu: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{gpu:08x}-d9cf-fef3-62e9-d92044ab6e52"


def csv(changes: Mapping[tuple[int, str], str] | None = None, *, gpus: int = 8) -> str:
    """Return what nvidia-smi prints for healthy GPUs, with some values changed by GPU and field."""
    names = smi.fields()
    lines = [", ".join(names)]
    for gpu in range(gpus):
        row = {**_VALUES, "index": str(gpu), "pci.bus_id": f"0000{hardware.pci_address(gpu)}", "uuid": uuid(gpu)}
        row["count"] = str(gpus)
        lines.append(", ".join((changes or {}).get((gpu, name), row.get(name, "0")) for name in names))
    return "\n".join(lines) + "\n"


class Node:
    """The folder, and the settings that point at it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name in ("share", "share/ledger", "state", "run", "log", "nvme"):
            (folder / name).mkdir(mode=0o755, exist_ok=True)
        hardware.build_root(self.root, ROW, "n0", "i-0123456789abcdef0", {})
        (self.root / "usr/bin").mkdir(parents=True, exist_ok=True)
        (self.root / "etc/slurm").mkdir(parents=True, exist_ok=True)
        (self.root / "etc/slurm/slurm.conf").write_text("ClusterName=c\n")  # Slurm hands out no GPUs: each job has all
        self.smi(csv())
        plain = Settings()
        places = {"share": "share", "state_dir": "state", "run_dir": "run", "log_dir": "log", "root": "root"}
        self.settings = plain._replace(
            site=plain.site._replace(**{key: str(folder / name) for key, name in places.items()})
        )

    def smi(self, text: str, *, code: int = 0) -> None:
        """Have nvidia-smi answer the question about all GPUs with a text."""
        (self.folder / "smi.csv").write_text(text)
        path = self.root / "usr/bin/nvidia-smi"
        path.write_text(f'#!/bin/sh\ncase "$*" in *query-gpu*) cat {self.folder}/smi.csv; exit {code};; esac\n')
        path.chmod(0o755)

    def write(self, name: str, text: str) -> None:
        """Replace a file of the tree; many are one file with several names."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)

    def kernel(self, text: str) -> None:
        """Have the kernel say something now."""
        hardware.kernel_says(self.root, text)

    def gate(self, **values: object) -> None:
        """Change settings of the gate."""
        self.settings = self.settings._replace(gate=self.settings.gate._replace(**values))


def folders(path: Path) -> list[Path]:
    """Return the folders inside a folder, none where it is not there."""
    return sorted(Path(path, name) for name in os.listdir(path)) if path.is_dir() else []
