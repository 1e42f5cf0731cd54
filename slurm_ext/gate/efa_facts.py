"""EFA devices as sysfs shows them: names, counters, device files. Pure parser over a tree of files, never raises.

Source: amzn/amzn-drivers kernel/linux/efa (efa_verbs.c). State, rate and GUID are fixed words of the driver and prove
nothing; counters are 64 bits wide and begin at zero when the driver is loaded. Standard library only, light to import.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slurm_ext.gate.file_tree import Tree, Unread, has_folder, index, word
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple

_INFINIBAND = "sys/class/infiniband"
_VERBS = "sys/class/infiniband_verbs"
_NAME = pattern(r"(?:rdmap\d+s\d+\S*|rdmaP\d+p\d+s\d+\S*|efa_?\d+)")
Folders = Mapping[str, Mapping[str, None]]

_PCI_ADDRESS = pattern(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")


#: No counter is wider than 64 bits.
_BEYOND = 1 << 64

#: Words for the state of a port that is not up (include/rdma/ib_verbs.h, drivers/infiniband/core/sysfs.c).
NOT_UP = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE_DEFER")


class Device(NamedTuple):
    """One RDMA device. `counters` holds what could be read, `unread` the errno of each counter that could not."""

    name: str
    counters: Mapping[str, int] = {}
    unread: Mapping[str, str] = {}
    port_states: tuple[str, ...] = ()
    peer_memory: str | None = None  # who gives the driver GPU memory (`NVIDIA`), empty for nobody; None where not told
    has_file: bool | None = None  # its node under /dev/infiniband; None where that folder was not looked at


class Efa(NamedTuple):
    """What a tree says of EFA. None is not known; `unlisted` is the errno with which the class folder answered."""

    devices: tuple[Device, ...] = ()
    others: tuple[str, ...] = ()  # RDMA devices of other makers
    on_bus: tuple[str, ...] | None = None  # PCI addresses of EFA functions
    module: bool | None = None
    unlisted: str = ""
    looked: bool = False  # the folder of RDMA devices was listed, empty or not


def is_efa_name(name: str) -> bool:
    """Say whether a device name is one that the kernel or the older rdma-core gives to EFA."""
    return bool(_NAME.fullmatch(name))


def name_at(address: str) -> str:
    """Return the kernel's name for the EFA device at a PCI address, empty where it is no address."""
    found = _PCI_ADDRESS.fullmatch(address)
    if found is None:
        return ""
    domain, bus, slot = int(found[1] or "0", 16), int(found[2], 16), int(found[3], 16)
    return f"rdmap{bus}s{slot}" if domain == 0 else f"rdmaP{domain}p{bus}s{slot}"


def read(tree: Tree) -> Efa:
    """Return what a tree of /sys and /dev says of EFA."""
    folder = tree.get(_INFINIBAND, tree.get(_INFINIBAND + "/"))
    folders = index(tree)
    names = folders.get(_INFINIBAND, {})
    files = _device_files(tree, folders, names)
    devices, others = [], []
    for name in names:
        if _is_efa(tree, name):
            devices.append(_device(tree, folders, name, files))
        else:
            others.append(name)
    on_bus = [
        address
        for address in folders.get("sys/bus/pci/devices", ())
        if word(tree, f"sys/bus/pci/devices/{address}/vendor") == "0x1d0f"
        and (word(tree, f"sys/bus/pci/devices/{address}/device") or "").startswith("0xefa")
    ]
    return Efa(
        devices=tuple(devices),
        others=tuple(others),
        on_bus=tuple(on_bus) if has_folder(tree, "sys/bus/pci/devices") else None,
        module=_module(tree),
        unlisted=folder.error if isinstance(folder, Unread) else "",
        looked=has_folder(tree, _INFINIBAND) or isinstance(folder, str),
    )


def _is_efa(tree: Tree, name: str) -> bool:
    base = f"{_INFINIBAND}/{name}"
    vendor, device = word(tree, f"{base}/device/vendor"), word(tree, f"{base}/device/device")
    if vendor and device and len(vendor) == len(device) == 6:  # sysfs writes 0x and four digits
        return vendor == "0x1d0f" and device.startswith("0xefa")
    return is_efa_name(name)


def _device(tree: Tree, below: Folders, name: str, files: Mapping[str, bool] | None) -> Device:
    base = f"{_INFINIBAND}/{name}"
    counters: dict[str, int] = {}
    unread: dict[str, str] = {}
    folders = [f"{base}/hw_counters"]
    ports = below.get(f"{base}/ports", {})
    folders += [f"{base}/ports/{port}/hw_counters" for port in ports]
    for folder in folders:
        listed = tree.get(folder, tree.get(folder + "/"))
        if isinstance(listed, Unread):
            unread[folder[len(base) + 1 :]] = listed.error
        for counter in below.get(folder, {}):
            if counter == "lifespan":  # how long the core caches values: a setting, not a counter
                continue
            content = tree[f"{folder}/{counter}"] if f"{folder}/{counter}" in tree else Unread("EISDIR")
            text = content.strip() if isinstance(content, str) else ""
            if text.isascii() and text.isdecimal() and int(text) < _BEYOND:
                counters[counter] = counters.get(counter, 0) + int(text)
            else:
                unread[counter] = content.error if isinstance(content, Unread) else "EINVAL"
    states = tuple(
        said.rpartition(":")[2].strip().upper()
        for port in ports
        if (said := word(tree, f"{base}/ports/{port}/state")) is not None
    )
    has_file = files.get(name, False) if files is not None else None
    peer = word(tree, f"{base}/device/p2p")
    return Device(name, counters, unread, states, peer, has_file)


def _device_files(tree: Tree, below: Folders, names: Collection[str]) -> Mapping[str, bool] | None:
    """Return whether each RDMA device has its node under /dev; None where /dev or the map to it was not captured."""
    verbs = [name for name in below.get(_VERBS, {}) if name.startswith("uverbs")]
    looked = any(path.startswith("dev/") for path in tree)
    if not verbs or not looked:
        return None
    nodes = below.get("dev/infiniband", {})
    found: dict[str, bool] = {}
    for verb in verbs:
        device = word(tree, f"{_VERBS}/{verb}/ibdev")
        if device is None or device not in names:
            return None  # which device a node belongs to cannot be read, or it is of one that just went
        found[device] = found.get(device, False) or verb in nodes
    return found


def _module(tree: Tree) -> bool | None:
    """Return whether the driver is loaded, None where neither place that tells was captured."""
    if has_folder(tree, "sys/module/efa"):
        return True
    modules = word(tree, "proc/modules")
    if modules is not None:
        return any(line.split()[:1] == ["efa"] for line in modules.splitlines())
    return False if has_folder(tree, "sys/module") else None
