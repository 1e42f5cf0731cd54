"""All that sysfs and /dev show of EFA, read into the form of a captured tree. Bounded. Standard library only: hooks import this."""

from __future__ import annotations

import errno
import os

from slurm_ext.gate.efa_live_files import (
    BUS,
    CLASS,
    COUNTERS_MAX,
    FOLDER,
    FUNCTIONS_MAX,
    MODULE,
    NODES,
    PORTS_MAX,
    VERBS,
    errno_of,
    names_in,
    open_entry,
    text_of,
)
from slurm_ext.gate.file_tree import Tree, Unread
from slurm_ext.typed import NamedTuple

_DEVICE_FACTS = ("vendor", "device", "p2p")


class Function(NamedTuple):
    """One function on the PCI bus that matters here. `numa` is None where it cannot be read; -1 is the kernel's not known."""

    address: str
    vendor: str
    device: str
    numa: int | None = None


class Seen(NamedTuple):
    """A tree in the form of a captured one, the functions on the PCI bus, and those on which an RDMA device sits."""

    tree: Tree
    functions: tuple[Function, ...]
    in_use: frozenset[str]


def read(root: str) -> Seen:
    """Return all that sysfs and /dev show of EFA."""
    found: dict[str, str | Unread] = {}
    in_use: set[str] = set()
    _read_class(root, found, in_use)
    _read_nodes(root, found)
    functions = _functions(root)
    if functions is not None:
        found[BUS + "/"] = ""
        for function in functions:
            if is_efa(function):
                found[f"{BUS}/{function.address}/vendor"] = function.vendor
                found[f"{BUS}/{function.address}/device"] = function.device
    module = _is_there(os.path.join(root, MODULE))
    if module:
        found[MODULE + "/"] = ""
    elif module is False and _is_there(os.path.join(root, "sys/module")):
        found["sys/module/"] = ""
    return Seen(found, functions or (), frozenset(in_use))


def _is_there(path: str) -> bool | None:
    """Say whether something is there; None where that cannot be read."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return True


def is_efa(function: Function) -> bool:
    """Say whether a PCI function is an EFA device (1d0f:efa0 and later)."""
    return function.vendor == "0x1d0f" and function.device.startswith("0xefa")


def _read_class(root: str, found: dict[str, str | Unread], in_use: set[str]) -> None:
    folder = os.path.join(root, CLASS)
    names = names_in(folder)
    if isinstance(names, Unread) and (names.error != "ENOENT" or not _is_there(os.path.dirname(folder))):
        found[CLASS] = names  # without the folder above it sysfs itself cannot be read
        return
    found[CLASS + "/"] = ""  # without the folder no RDMA driver is loaded: there is no device
    for name in () if isinstance(names, Unread) else names:
        opened = open_entry(root, folder, name)
        base = f"{CLASS}/{name}"
        if isinstance(opened, Unread):
            if opened.error not in ("ENOENT", "ENOTDIR"):  # gone meanwhile, or a file and no device
                found[f"{base}/hw_counters"] = opened
            continue
        descriptor, path = opened
        try:
            in_use.add(_read_device(root, descriptor, path, base, found))
        finally:
            os.close(descriptor)


def _read_device(root: str, descriptor: int, path: str, base: str, found: dict[str, str | Unread]) -> str:
    """Read one device; return the name of the folder of its PCI function, which is its address in a real kernel."""
    found[base + "/"] = ""
    of_pci = open_entry(root, path, "device")
    if not isinstance(of_pci, Unread):
        try:
            for name in _DEVICE_FACTS:
                _put(found, f"{base}/device/{name}", text_of(of_pci[0], name))
        finally:
            os.close(of_pci[0])
    _read_folder(descriptor, "hw_counters", base, found)
    ports = names_in(os.path.join(path, "ports"), PORTS_MAX)
    for port in () if isinstance(ports, Unread) else ports:
        _put(found, f"{base}/ports/{port}/state", text_of(descriptor, f"ports/{port}/state"))
        _read_folder(descriptor, f"ports/{port}/hw_counters", base, found)
    return "" if isinstance(of_pci, Unread) else os.path.basename(of_pci[1])


def _put(found: dict[str, str | Unread], name: str, text: str | Unread) -> None:
    """Put a file into the tree; what is not there stays out, what cannot be read is there as such."""
    if not (isinstance(text, Unread) and text.error == "ENOENT"):
        found[name] = text


def _read_folder(device: int, folder: str, base: str, found: dict[str, str | Unread]) -> None:
    try:
        opened = os.open(folder, FOLDER, dir_fd=device)
    except OSError as exc:
        if exc.errno != errno.ENOENT:  # an older driver has no such folder
            found[f"{base}/{folder}"] = Unread(errno_of(exc))
        return
    try:
        for name in sorted(os.listdir(opened))[:COUNTERS_MAX]:
            _put(found, f"{base}/{folder}/{name}", text_of(opened, name))
    except OSError as exc:
        found[f"{base}/{folder}"] = Unread(errno_of(exc))
    finally:
        os.close(opened)


def _read_nodes(root: str, found: dict[str, str | Unread]) -> None:
    folder = os.path.join(root, VERBS)
    verbs = names_in(folder)
    for name in () if isinstance(verbs, Unread) else verbs:
        if not name.startswith("uverbs"):
            continue
        opened = open_entry(root, folder, name)
        if isinstance(opened, Unread):
            if opened.error != "ENOENT":  # whose it is cannot be read: then no device is known to be without one
                found[f"{VERBS}/{name}/ibdev"] = opened
            continue
        try:
            found[f"{VERBS}/{name}/ibdev"] = text_of(opened[0], "ibdev")
        finally:
            os.close(opened[0])
    nodes = names_in(os.path.join(root, NODES))
    if isinstance(nodes, Unread):
        if nodes.error == "ENOENT" and os.path.isdir(os.path.join(root, "dev")):
            found[NODES + "/"] = ""
        return
    found[NODES + "/"] = ""
    for name in nodes:
        found[f"{NODES}/{name}"] = ""


def _functions(root: str) -> tuple[Function, ...] | None:
    """Return Amazon's and NVIDIA's functions on the PCI bus, None where it cannot be listed."""
    folder = os.path.join(root, BUS)
    names = names_in(folder, FUNCTIONS_MAX)
    if isinstance(names, Unread):
        return None
    found = []
    for name in names:
        opened = open_entry(root, folder, name)
        if isinstance(opened, Unread):
            continue
        try:
            vendor = text_of(opened[0], "vendor", 64)
            if isinstance(vendor, Unread) or vendor.strip() not in ("0x1d0f", "0x10de"):
                continue
            device, numa = text_of(opened[0], "device", 64), text_of(opened[0], "numa_node", 64)
            kind = text_of(opened[0], "class", 64) if vendor.strip() == "0x10de" else ""
        finally:
            os.close(opened[0])
        if isinstance(device, Unread) or (isinstance(kind, str) and kind and not kind.startswith("0x03")):
            continue  # NVIDIA's bridges and switches are no GPUs
        found.append(Function(name, vendor.strip(), device.strip(), _whole(numa)))
    return tuple(found)


def _whole(text: str | Unread) -> int | None:
    number = text.strip() if isinstance(text, str) else ""
    return int(number) if number.lstrip("-").isascii() and number.lstrip("-").isdigit() and len(number) < 8 else None
