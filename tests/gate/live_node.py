"""What the tests of the node's own probe and of Lustre's share: a healthy tree with a few files changed, and one look at it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_ext.aws import catalogue
from slurm_ext.config.model import Settings
from slurm_ext.gate import probes
from slurm_ext.gate.probes import Here, Probed
from slurm_ext.lab import hardware_host

TYPES = (*catalogue.CATALOGUE, "m7i.large", "hpc7a.96xlarge")
MOUNTS = {"/fsx": "lustre", "/nvme": "xfs"}

#: A control group of slurmd's without any job: then it is known that none is here.
NO_JOB = {"sys/fs/cgroup/system.slice/slurmstepd.scope/cgroup.procs": ""}

P5 = "p5.48xlarge"

Found = tuple[str, str, str, str]  # id, verdict, target, action


def healthy(name: str = P5) -> dict[str, str]:
    """Return the files of a healthy node; a type that no table has looks like a small one without local disks."""
    row = catalogue.CATALOGUE.get(name)
    if row is None:
        shape = catalogue.host(name)
        plain = catalogue.CATALOGUE[P5]._replace(name=name, gpus=0, efa_devices=0, nvme_count=0)
        row = plain if shape is None else plain._replace(vcpus=shape.vcpus, memory_mib=shape.memory_mib)
    return {**hardware_host.healthy(row, MOUNTS), "sys/class/dmi/id/product_name": f"{name}\n"}


def here(folder: Path, files: Mapping[str, str | bytes | None], *, phase: str, **told: Any) -> Here:
    """Write the files below a folder and return what a probe of that node is told."""
    root = folder / "root"
    shutil.rmtree(root, ignore_errors=True)
    for name, text in files.items():
        if text is not None:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
    plain = Settings()
    gate = plain.gate._replace(nvme_dirs=told.pop("scratch", ("/nvme",)), lustre_mounts=told.pop("lustre", ("/fsx",)))
    settings = plain._replace(site=plain.site._replace(root=str(root)), gate=gate)
    return Here(str(root), "n0", phase, settings, **told)


def look(told: Here, probe: str = "system") -> Probed:
    """Return what one probe finds, in this process."""
    return probes.module_of(probe).look(told)


def found(told: Here, probe: str = "system") -> list[Found]:
    """Return id, verdict, target and action of each finding."""
    return [(item.finding.id, item.verdict, *item.finding[1:3]) for item in look(told, probe).items]


def stat(pid: int, comm: str, state: str, *, start_ticks: int = 100, kernel: bool = False, threads: int = 1) -> str:
    """Return one line of /proc/PID/stat (proc(5)): the flags are the ninth field, the threads the twentieth."""
    flags = 0x00200040 if kernel else 0x00400040
    return f"{pid} ({comm}) {state} 1 1 1 0 -1 {flags} {'0 ' * 10}{threads} 0 {start_ticks} 0 0\n"


def process(
    pid: int, comm: str, state: str = "S", *, uid: int = 1000, group: str = "/user.slice", **more: Any
) -> dict[str, str]:
    """Return the files of one process."""
    return {
        f"proc/{pid}/stat": stat(pid, comm, state, **{k: v for k, v in more.items() if k != "wchan"}),
        f"proc/{pid}/status": f"Name:\t{comm}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nvoluntary_ctxt_switches:\t7\n",
        f"proc/{pid}/wchan": more.get("wchan", "0"),
        f"proc/{pid}/cgroup": f"0::{group}\n",
        f"proc/{pid}/cmdline": f"{comm}\0",
    }


def job(number: int, pids: tuple[int, ...], *, populated: bool = True) -> dict[str, str]:
    """Return a job's control group of version 2, with processes in a task of its batch step."""
    base = f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_{number}"
    return {
        f"{base}/cgroup.events": f"populated {int(populated)}\nfrozen 0\n",
        f"{base}/cgroup.procs": "",
        f"{base}/step_batch/user/task_0/cgroup.procs": "".join(f"{pid}\n" for pid in pids),
    }


def stepd(pid: int, number: int) -> dict[str, str]:
    """Return a job's slurmstepd."""
    return {
        **process(pid, "slurmstepd", uid=0, group=f"/system.slice/slurmstepd.scope/job_{number}/step_batch/slurm"),
        f"proc/{pid}/cmdline": f"slurmstepd: [{number}.batch]\0\0",
    }
