"""Faults of a node's simulated EFA devices: one is gone, or counts errors while a job runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from slurm_ext.errors import UsageError
from slurm_ext.lab.fault_site import Site

#: What a device counts when its packets get lost, per unit of --count.
_ERRORS = {"rx_drops": 1, "retrans_pkts": 10, "retrans_bytes": 10_000, "retrans_timeout_events": 1}
_WAS = "etc/fmslurm-lab/efa-was"


def lost(site: Site) -> str:
    """The last device vanishes from sysfs, from the PCI bus and from /dev."""
    name = _names(site.root)[-1]
    verbs = next(
        path
        for path in (site.root / "sys/class/infiniband_verbs").iterdir()
        if (path / "ibdev").read_text().strip() == name
    )
    was = site.root / _WAS
    was.mkdir(parents=True, exist_ok=True)
    for path in (
        site.root / "sys/class/infiniband" / name,
        *_on_bus(site.root, name),
        verbs,
        site.root / "dev/infiniband" / verbs.name,
    ):
        kept = was / path.relative_to(site.root)
        kept.parent.mkdir(parents=True, exist_ok=True)
        path.rename(kept)
    return f"{name} is gone"


def heal_lost(site: Site) -> str:
    """The device is back."""
    was = site.root / _WAS
    for kept in sorted(path for path in was.rglob("*") if path.exists()):
        target = site.root / kept.relative_to(was)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            kept.rename(target)
    shutil.rmtree(was, ignore_errors=True)
    return "all EFA devices are there"


def errors(site: Site) -> str:
    """The first device counts lost packets: what stands there grows by --count and multiples of it."""
    name, count = _names(site.root)[0], int(site.options.get("count") or 100_000)
    for counter, factor in _ERRORS.items():
        path = site.root / "sys/class/infiniband" / name / "ports/1/hw_counters" / counter
        path.write_text(f"{int(path.read_text()) + factor * count}\n")
    return f"{name} counted {count} dropped packets and {10 * count} retransmissions"


def heal_errors(site: Site) -> str:
    """Counters stay as they are until the driver is loaded anew; nothing grows any more."""
    return "nothing is lost any more; the counters keep what they counted"


def _names(root: Path) -> list[str]:
    folder = root / "sys/class/infiniband"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not names:
        raise UsageError("this node has no EFA device", remedy="Choose a node of a type with EFA")
    return names


def _on_bus(root: Path, name: str) -> list[Path]:
    bus, slot = name.removeprefix("rdmap").split("s")
    address = f"0000:{int(bus):02x}:{int(slot):02x}.0"
    return [root / f"sys/bus/pci/devices/{address}", root / f"sys/bus/pci/drivers/efa/{address}"]
