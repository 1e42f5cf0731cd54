"""What was read of the node itself and is good, target by target: the proof that a fault of it has gone (proof.py).

Only in the health check: no node that is in use needs a proof.
"""

from __future__ import annotations

from slurm_ext.aws.catalogue import HostShape
from slurm_ext.gate import block_rules, host_rules, mount_rules, read_small, service_rules, system_services
from slurm_ext.gate.probes import Here
from slurm_ext.gate.system_jobs import Scan
from slurm_ext.gate.system_quick import MEMORY_SHARE, NVME, STORE_MODEL, Seen


def of(here: Here, seen: Seen, shape: HostShape | None, scan: Scan, services: str) -> dict[str, list[str]]:
    """Return, by what is read, the targets of which it was read and is good; what could not be read is not named.

    `services`: what systemd said, empty where it did not.
    """
    edac_read = bool(seen.memory_errors) and not any("/edac/" in name for name in seen.unread)
    return {
        "edac": ["node"] if edac_read and not any(bad for _, bad in seen.memory_errors.values()) else [],
        "memory": _memory(seen, shape),
        "nvme": _count(seen, shape),
        "disks": _disks(here, seen),
        "arrays": _arrays(seen.mdstat),
        "mounts": _mounts(seen.mountinfo),
        "space": [f"fs:{one.path}" for one in seen.spaces if one.size > 0],
        "processes": ["node"] if scan.whole else [],
        "services": _services(services, scan),
    }


def _memory(seen: Seen, shape: HostShape | None) -> list[str]:
    values = host_rules.parse_meminfo(seen.meminfo) if seen.meminfo is not None else None
    if values is None or shape is None:
        return []
    return ["node"] if values.get("MemTotal", 0) >= MEMORY_SHARE * shape.memory_mib * 1024 else []


def _count(seen: Seen, shape: HostShape | None) -> list[str]:
    """The number is proven where the type has local disks, and so many controllers of that model are alive."""
    alive = sum(STORE_MODEL in one.model and one.state == "live" for one in seen.nvme or ())
    return ["node"] if shape is not None and shape.nvme_count and alive >= shape.nvme_count else []


def _disks(here: Here, seen: Seen) -> list[str]:
    """Disks of a controller that is alive, with a size, that take writes; by the name of the disk and of the controller."""
    files = read_small.Files(here.root)
    found = []
    for one in seen.nvme or ():
        inside = [name for name in files.names(f"{NVME}/{one.name}") or () if name.startswith(f"{one.name}n")]
        name = min(inside, default=f"{one.name}n1")
        if one.state == "live" and files.number(f"sys/block/{name}/size") and _is_open(files, name):
            found += [f"disk:{name}", f"disk:{one.name}"]
    for name in files.names("sys/block") or ():
        state = files.text(f"sys/block/{name}/device/state", 64)
        if not name.startswith("nvme") and (state is None or state.strip() == "running"):
            found += [f"disk:{name}"] if files.number(f"sys/block/{name}/size") and _is_open(files, name) else []
    return found


def _is_open(files: read_small.Files, name: str) -> bool:
    return files.number(f"sys/block/{name}/ro") == 0


def _services(text: str, scan: Scan) -> list[str]:
    """Return the findings of services that are disproven: systemd calls the unit active, or its program is in the list."""
    active = {unit.name for unit in service_rules.parse(text) or () if unit.active == "active"}
    up = [unit for unit, names in system_services.UNITS.items() if unit in active or not scan.names.isdisjoint(names)]
    return [f"service.{unit.removesuffix('.service').removeprefix('nvidia-')}-down" for unit in up]


def _arrays(text: str | None) -> list[str]:
    """Arrays that are listed as active, with all their members, and take writes."""
    found = block_rules.parse_mdstat(text) if text is not None and text.strip() else []
    return [
        f"disk:{one.name}"
        for one in found or ()
        if one.state == "active" and one.counted and not one.failed and not one.flags and one.wanted == one.working
    ]


def _mounts(text: str | None) -> list[str]:
    """Mounts in a table that was read to its end, which take writes."""
    found = mount_rules.parse_mountinfo(text) if text is not None and text.endswith("\n") else None
    shut = ("ro", "shutdown", "emergency_ro")
    return [
        f"fs:{one.target}"
        for one in found or ()
        if not any(word in shut for word in (*one.options, *(one.super_options or ())))
    ]
