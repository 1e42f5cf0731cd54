"""Faults of the simulated node beside its GPUs and EFA: a disk is gone, memory errs, a file system turned, Lustre evicted."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from slurm_ext.aws import catalogue
from slurm_ext.errors import LackingError
from slurm_ext.files import write_atomic
from slurm_ext.lab import hardware, hardware_host
from slurm_ext.lab.fault_site import Site

_UNCORRECTED = "sys/devices/system/edac/mc/mc0/ue_count"
_MOUNTS = "proc/self/mountinfo"
_TARGET = f"{hardware_host.FILE_SYSTEM}-OST0002"

#: So long ago (seconds) Lustre's server threw the client out: longer than it takes to come back.
_AGO_S = 600


def nvme_gone(site: Site) -> str:
    """The last local disk vanishes from sysfs, as after a controller that the kernel gave up."""
    number = _disks(site)
    if not number:
        raise LackingError(f"{site.node.name} plays a type without local disks", remedy="Choose another --type at `up`")
    for folder in {(site.root / path).parent for path in _disk_files(number)}:
        shutil.rmtree(folder, ignore_errors=True)
    return f"nvme{number} is gone: {number - 1} of {number} local disks are there"


def heal_nvme(site: Site) -> str:
    """The disk is back."""
    _restore(site, *_disk_files(_disks(site)))
    return "all local disks are there"


def memory_error(site: Site) -> str:
    """A memory controller counts uncorrected errors."""
    count = int(site.options.get("count") or 1)
    write_atomic(str(site.root / _UNCORRECTED), f"{count}\n")
    return f"{count} uncorrected memory errors"


def heal_memory(site: Site) -> str:
    """As after a reboot: the counter begins anew."""
    _restore(site, _UNCORRECTED)
    return "no memory errors are counted"


def root_read_only(site: Site) -> str:
    """The kernel turned the root file system read-only: its super block says so, its mount does not."""
    _rewrite(site, " rw,", " ro,")
    return "the root file system is read-only"


def heal_root(site: Site) -> str:
    """As after a reboot."""
    _rewrite(site, " ro,", " rw,")
    return "the root file system takes writes"


def _rewrite(site: Site, old: str, new: str) -> None:
    """Change the options of the root's super block: they stand behind the dash, those of its mount before."""
    path, lines = site.root / _MOUNTS, []
    for line in path.read_text().splitlines():
        front, dash, back = line.partition(" - ")
        lines.append(f"{front}{dash}{back.replace(old, new)}" if front.split()[3:5] == ["/", "/"] else line)
    write_atomic(str(path), "\n".join(lines) + "\n")


def lustre_evicted(site: Site) -> str:
    """A server of Lustre threw this client out, and it has not come back."""
    path = _state(site.root)
    text = path.read_text().replace("current_state: FULL", "current_state: EVICTED")
    write_atomic(str(path), f"{text} - [ {int(time.time()) - _AGO_S}, EVICTED ]\n")
    return f"{_TARGET} evicted this node {_AGO_S} s ago"


def heal_lustre(site: Site) -> str:
    """The client is connected again; the history of the connection keeps the eviction."""
    path = _state(site.root)
    text = path.read_text().replace("current_state: EVICTED", "current_state: FULL")
    write_atomic(str(path), f"{text} - [ {int(time.time())}, FULL ]\n")
    return f"{_TARGET} is connected again"


def _state(root: Path) -> Path:
    return root / f"proc/fs/lustre/osc/{_TARGET}-osc-{hardware_host.CLIENT}/state"


def _disks(site: Site) -> int:
    row = catalogue.find(hardware.read_state(site.root).get("type", ""))
    return row.nvme_count if row is not None else 0


def _disk_files(number: int) -> tuple[str, ...]:
    base = f"sys/class/nvme/nvme{number}"
    return (f"{base}/model", f"{base}/state", f"sys/block/nvme{number}n1/size", f"sys/block/nvme{number}n1/ro")


def _restore(site: Site, *paths: str) -> None:
    """Write files as a healthy node has them."""
    row = catalogue.find(hardware.read_state(site.root).get("type", ""))
    if row is not None:
        healthy = hardware_host.healthy(row, {})
        for path in paths:
            (site.root / path).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(str(site.root / path), healthy[path])
