"""A simulated node in a temporary folder that a fixture can break and mend again: files, kernel log, nvidia-smi, settings.

The tree is built by a function that is handed in (the lab's), so this room knows no other. Every change is written down and
taken back by `undo`, since building a node costs more than looking at it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from slurm_ext.aws import catalogue
from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.config.model import Settings
from slurm_ext.gate import local, smi, system_idle
from slurm_ext.gate.local import Look
from slurm_ext.gate.probes import EPILOG, PROLOG
from slurm_ext.typed import Any

#: Makes a healthy node: root, type, mount point -> file system type.
Build = Callable[[Path, InstanceType, Mapping[str, str]], None]

TYPE = "p5.48xlarge"
NODE = "proof"
KERNEL_LOG = "var/log/kmsg.log"
BOOT_ID = "proc/sys/kernel/random/boot_id"
ANSWERS = "etc/fmslurm-prove"

#: The job in whose name prolog and epilog look: nobody's on a real cluster.
JOB_ID, JOB_UID, JOB_S = "4711", 61001, 60.0

#: Answers as the real program: a file for each question. No compiler is needed for it.
_SMI = f"""#!/bin/sh
here=${{0%/usr/bin/nvidia-smi}}/{ANSWERS}
[ -f "$here/instead" ] && exec sh "$here/instead"
case "$*" in
    *--query-gpu*) exec cat "$here/table" ;;
    *--query-compute-apps*) exec cat "$here/apps" ;;
    *"nvlink -s"*) exec cat "$here/nvlink-s" ;;
    *"nvlink -e"*) exec cat "$here/nvlink-e" ;;
    *) exec cat "$here/list" ;;
esac
"""

#: One healthy GPU, by the field's name.
_GPU = {
    "driver_version": "570.133.20",
    "vbios_version": "96.00.74.00.01",
    "persistence_mode": "Enabled",
    "mig.mode.current": "Disabled",
    "memory.used": "1 MiB",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "pstate": "P0",
    "clocks.applications.graphics": "1980 MHz",
    "clocks.default_applications.graphics": "1980 MHz",
    "clocks.applications.memory": "2619 MHz",
    "clocks.default_applications.memory": "2619 MHz",
    "clocks.max.graphics": "1980 MHz",
    "power.limit": "700.00 W",
    "power.default_limit": "700.00 W",
    "gpu_recovery_action": "None",
    "fabric.state": "Completed",
    "fabric.status": "Success",
    "temperature.gpu.tlimit": "50",
    "remapped_rows.pending": "No",
    "remapped_rows.failure": "No",
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "No",
}
#: As /proc/net/route shows a node's way out of its subnet.
_ROUTE = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
ens32\t00000000\t0100000A\t0003\t0\t0\t512\t00000000\t0\t0\t0
ens32\t0000000A\t00000000\t0001\t0\t0\t512\t00FFFFFF\t0\t0\t0
"""
_LINKS, _SPEED = 18, "26.562 GB/s"


class Bench:
    """One simulated node, healthy until a fixture changes it; `settings` are those that the gate looks with."""

    def __init__(self, folder: Path, build: Build, type_: str = TYPE) -> None:
        """Build the node below `folder`, which is empty and stays the caller's to remove."""
        row = catalogue.find(type_)
        assert row is not None, type_
        self.row, self.root = row, folder / "root"
        self.scratch, self.mount, self._aside = folder / "nvme", folder / "fsx", folder / "aside"
        for path in (self.scratch, self.mount, self._aside):
            path.mkdir()
        build(self.root, row, {str(self.scratch): "xfs", str(self.mount): "lustre"})
        plain = Settings()
        places = {name: str(folder / name) for name in ("state_dir", "run_dir", "log_dir")}
        self._places = tuple(places.values())
        for place in self._places:
            os.mkdir(place)
        self.healthy = plain._replace(
            site=plain.site._replace(root=str(self.root), **places),
            gate=plain.gate._replace(
                nvme_dirs=(str(self.scratch),), lustre_mounts=(str(self.mount),), min_free_percent=0.0
            ),
        )
        self.settings = self.healthy
        self.deadline_s = 10.0
        self._gpus = self._fresh()
        self._undo: list[Callable[[], None]] = []
        self._names = 0
        self._answer_all()
        # A process list that is whole: then it is known that no job is here.
        self.process(1, "systemd", "S")
        self.write(system_idle.ROUTES, _ROUTE)
        self.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
        self._undo.clear()  # so far nothing is a fixture's
        self.kept: Mapping[str, Mapping[str, Any]] = {}
        self.baseline: dict[str, dict[str, Any]] = {}

    def _fresh(self) -> list[dict[str, str]]:
        names = smi.fields()
        return [
            {
                **{name: "0" for name in names},
                **{name: value for name, value in _GPU.items() if name in names},
                "index": str(number),
                "pci.bus_id": f"00000000:{0x53 + 17 * number:02X}:00.0",
                "uuid": f"GPU-{number:08d}-0000-0000-0000-000000000000",
            }
            for number in range(self.row.gpus)
        ]

    # --- what a fixture changes ---

    def gpu(self, number: int, **fields: str) -> None:
        """Change what nvidia-smi says of one GPU; `__` in a name stands for a dot."""
        self._gpus[number] |= {name.replace("__", "."): value for name, value in fields.items()}
        self._answer_all()

    def without_gpu(self, number: int) -> None:
        """Let nvidia-smi list one GPU less."""
        del self._gpus[number]
        self._answer_all()

    def answer(self, question: str, text: str) -> None:
        """Change what nvidia-smi says to one question: table, apps, nvlink-s, nvlink-e or list."""
        self.write(f"{ANSWERS}/{question}", text)

    def instead(self, script: str) -> None:
        """Let nvidia-smi do this whatever it is asked: lines of sh."""
        self.write(f"{ANSWERS}/instead", script)

    def kernel(self, *texts: str) -> None:
        """Let the kernel say something now."""
        log = self.root / KERNEL_LOG
        said = log.read_text()
        first = said.count("\n")
        stamp = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        lines = [f"4,{first + at},{stamp + at},-;{text}\n" for at, text in enumerate(texts)]
        self.write(KERNEL_LOG, said + "".join(lines))

    def write(self, name: str, text: str, mode: int | None = None) -> None:
        """Replace a file below the root, or make it."""
        path = self.root / name
        self._put_aside(path)
        for folder in reversed(path.relative_to(self.root).parents):
            made = self.root / folder
            if not made.is_dir():
                made.mkdir()
                self._undo.append(lambda made=made: shutil.rmtree(made, ignore_errors=True))  # type: ignore[misc]
        path.write_text(text)
        if mode is not None:
            path.chmod(mode)

    def remove(self, name: str) -> None:
        """Take away a file or a folder below the root."""
        self._put_aside(self.root / name)

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace text in a file below the root. Raise ValueError where it is not there: the fixture is out of date."""
        text = (self.root / name).read_text()
        if old not in text:
            raise ValueError(f"{name} holds no {old!r}")
        self.write(name, text.replace(old, new))

    def set(self, section: str, **keys: Any) -> None:
        """Change the site's settings."""
        self.settings = self.settings._replace(**{section: getattr(self.settings, section)._replace(**keys)})

    def _put_aside(self, path: Path) -> None:
        if not path.exists() and not path.is_symlink():
            self._undo.append(lambda: shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True))
            return
        self._names += 1
        kept = self._aside / str(self._names)
        path.rename(kept)

        def back() -> None:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            kept.rename(path)

        self._undo.append(back)

    def undo(self) -> None:
        """Make the node healthy again."""
        while self._undo:
            self._undo.pop()()
        for place in self._places:  # what one look remembers must not be known to the next fixture
            shutil.rmtree(place)
            os.mkdir(place)
        self.settings, self.deadline_s, self._gpus = self.healthy, 10.0, self._fresh()
        self.baseline = json.loads(json.dumps(self.kept))

    def replace(self, module: str, name: str, value: object) -> None:
        """Put something in the place of a name of one of the gate's modules: a clock, or what only a real machine tells."""
        found = import_module(f"slurm_ext.gate.{module}")
        before = getattr(found, name)
        self._undo.append(lambda: setattr(found, name, before))
        setattr(found, name, value)

    def process(self, pid: int, comm: str, state: str, *, wchan: str = "", group: str = "") -> None:
        """Add a process as /proc shows it, of a user, begun a second after boot."""
        stat = f"{pid} ({comm}) {state} 1 {pid} {pid} 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n"
        self.write(f"proc/{pid}/stat", stat)
        self.write(f"proc/{pid}/cmdline", f"{comm}\0")
        ids = "\t".join([str(JOB_UID)] * 4)
        self.write(f"proc/{pid}/status", f"Name:\t{comm}\nUid:\t{ids}\nvoluntary_ctxt_switches:\t7\n")
        self.write(f"proc/{pid}/wchan", wchan)
        self.write(f"proc/{pid}/cgroup", f"0::{group or '/'}\n")

    # --- what is asked of it ---

    def begin(self) -> None:
        """Let the job begin: what its prolog keeps is what its epilog compares with."""
        self.kept = self.look(PROLOG).kept
        self.baseline = json.loads(json.dumps(self.kept))

    def look(self, phase: str) -> Look:
        """Look at it with the very code of the live gate."""
        now = time.time()
        job = local.Job(JOB_ID, JOB_UID, tuple(str(number) for number in range(self.row.gpus)), self.baseline)
        return local.look(
            self.settings,
            NODE,
            phase=phase,
            job_window=(now - JOB_S, now + 1.0) if phase == EPILOG else None,
            deadline_s=self.deadline_s,
            job=job if phase != "health" else local.Job(),
        )

    def _answer_all(self) -> None:
        names = smi.fields()
        told = {"count": str(len(self._gpus))}
        rows = [", ".join((gpu | told)[name] for name in names) for gpu in self._gpus]
        self.write("usr/bin/nvidia-smi", _SMI, 0o755)
        self.answer("table", "\n".join([", ".join(names), *rows]) + "\n")
        self.answer("apps", "")
        heads = [f"GPU {gpu['index']}: NVIDIA H100 80GB HBM3 (UUID: {gpu['uuid']})" for gpu in self._gpus]
        links = [f"\t Link {number}: {_SPEED}" for number in range(_LINKS)]
        zeros = [
            f"\t Link {number}: {kind} Errors: 0" for number in range(_LINKS) for kind in ("Replay", "Recovery", "CRC")
        ]
        self.answer("nvlink-s", "".join("\n".join([head, *links]) + "\n" for head in heads))
        self.answer("nvlink-e", "".join("\n".join([head, *zeros]) + "\n" for head in heads))
        self.answer("list", "\n".join(heads) + "\n")
