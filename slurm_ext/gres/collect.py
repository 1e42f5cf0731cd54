"""A node's own GPUs and processors, read below a root directory: /dev, the driver's /proc, and sysfs. Nothing is run."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter

from slurm_ext.gres.model import Gpu, NodeFacts
from slurm_ext.gres.read_conf import numbers
from slurm_ext.patterns import pattern

_BUS = pattern(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")

MOST_GPUS, MOST_CPUS = 64, 4096


def facts(root: str) -> NodeFacts:
    """Return what the node below `root` shows; `unread` names what could not be read."""
    unread: list[str] = []
    gpus = _gpus(root, unread)
    cpus = _numbered(os.path.join(root, "sys/devices/system/cpu"), "cpu")
    place: dict[int, tuple[int, int]] = {}
    for cpu in cpus[:MOST_CPUS]:
        folder = os.path.join(root, f"sys/devices/system/cpu/cpu{cpu}/topology")
        package, core = _number(os.path.join(folder, "physical_package_id")), _number(os.path.join(folder, "core_id"))
        if package is not None and core is not None:
            place[cpu] = (package, core)
    if not place:
        unread.append("sys/devices/system/cpu/*/topology")
    # Slurm counts cores socket by socket, each where its first processor stands (hwloc's logical order): ids have gaps, and a
    # socket of the first processors may have the larger id.
    first_of: dict[int, int] = {}
    for cpu, (package, _) in place.items():
        first_of.setdefault(package, cpu)
    in_order = sorted(dict.fromkeys(place.values()), key=lambda core: first_of[core[0]])
    logical = {core: number for number, core in enumerate(in_order)}
    packages = first_of.keys()
    numa: dict[int, frozenset[int]] = {}
    for node in _numbered(os.path.join(root, "sys/devices/system/node"), "node"):
        try:
            members = numbers(_text(os.path.join(root, f"sys/devices/system/node/node{node}/cpulist")))
        except ValueError:
            continue  # memory alone: a GPU's own may be a node without processors
        numa[node] = frozenset(logical[place[cpu]] for cpu in members if cpu in place)
    sockets, sizes = len(packages), set(Counter(package for package, _ in logical).values())
    return NodeFacts(
        _text(os.path.join(root, "sys/class/dmi/id/product_name")),
        tuple(gpus),
        sockets,
        len(logical) // sockets if len(sizes) == 1 else 0,
        len(place) // len(logical) if logical else 0,
        len(place),
        numa,
        tuple(unread),
    )


def _gpus(root: str, unread: list[str]) -> list[Gpu]:
    folder = os.path.join(root, "proc/driver/nvidia/gpus")
    try:
        buses = sorted(name for name in os.listdir(folder) if _BUS.fullmatch(name))
    except OSError:
        unread.append("proc/driver/nvidia/gpus")
        return []
    found = []
    for bus in buses[:MOST_GPUS]:
        told = _text(os.path.join(folder, bus, "information"), 8192)
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in told.splitlines())}
        if not re.fullmatch(r"[0-9]{1,4}", fields.get("Device Minor", "")):
            unread.append(f"proc/driver/nvidia/gpus/{bus}/information")
            continue
        number = int(fields["Device Minor"])
        pci = os.path.join(root, "sys/bus/pci/devices", _short(bus), "numa_node")
        numa = _number(pci)
        if numa is None:
            unread.append(os.path.relpath(pci, root))
        device = os.path.join(root, f"dev/nvidia{number}")
        found.append(Gpu(number, fields.get("Model", ""), bus, -1 if numa is None else numa, is_device(device)))
    return sorted(found)


def _short(bus: str) -> str:
    """Return a PCI address as sysfs has it: four digits of domain."""
    domain, rest = bus.split(":", 1)
    return f"{domain[-4:].lower()}:{rest.lower()}"


def is_device(path: str) -> bool:
    """Say whether a character device has the name."""
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def _numbered(folder: str, prefix: str) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(name[len(prefix) :]) for name in names if re.fullmatch(rf"{prefix}[0-9]{{1,5}}", name))


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None


def _text(path: str, most: int = 4096) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(descriptor, most).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)
