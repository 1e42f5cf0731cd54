"""A quick look at EFA: where everything is there and bound, only the counters are read. Anything else is for `efa_live_read`.

Some 400 small files on a node with 32 devices. Standard library only: hooks import this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from slurm_ext.gate.efa_live_files import BOUND, CLASS, FOLDER, NODES, VERBS, modes_of, names_in, open_entry, text_of
from slurm_ext.gate.file_tree import Unread
from slurm_ext.typed import Any, NamedTuple

#: The counters whose growth over a job says something, those of the device first. Names: amzn-drivers efa_verbs.c.
COUNTERS = (
    *("cmds_err", "no_completion_cmds"),
    *("rx_drops", "rdma_read_wr_err", "rdma_write_wr_err", "retrans_bytes", "retrans_pkts"),
    *("retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events"),
)
OF_DEVICE = 2


class Quick(NamedTuple):
    """What a quick look saw: for each device the values of COUNTERS, None for one that its driver does not have."""

    values: dict[str, tuple[int | None, ...]]
    peer_memory: str | None = None  # as the first device's driver says; the driver has one answer for all of them


def quick(root: str, at_least: int) -> Quick | None:
    """Return the counters where everything else looks well: enough devices, every one bound, with a node under /dev.

    None: something is missing, unreadable or not as in a real kernel; then the whole tree tells what.
    """
    names, bound = names_in(os.path.join(root, CLASS)), names_in(os.path.join(root, BOUND))
    if isinstance(names, Unread) or isinstance(bound, Unread) or len(names) < max(at_least, 1):
        return None
    addresses = set(filter(_is_address, bound))
    bound_count = len(addresses)
    verbs, nodes = names_in(os.path.join(root, VERBS)), names_in(os.path.join(root, NODES))
    if isinstance(verbs, Unread) or isinstance(nodes, Unread):
        return None
    uverbs = {name for name in verbs if name.startswith("uverbs")}
    if len(uverbs) != len(names) or not uverbs <= set(nodes) or not _open_to_all(root, sorted(uverbs)):
        return None
    folder = os.path.join(root, CLASS)
    values: dict[str, tuple[int | None, ...]] = {}
    peer: str | None = None
    for name in names:
        opened = open_entry(root, folder, name)
        if isinstance(opened, Unread):
            return None
        try:
            found = _quick_counters(opened[0])
            if found is None:
                return None
            values[name] = found
            addresses.discard(_address_of(opened[0], name, addresses))
            if len(values) == 1:
                said = _peer(root, *opened)
                if isinstance(said, Unread):
                    return None
                peer = said
        finally:
            os.close(opened[0])
    # Each device sits on a function that the driver has bound, and no bound function is without a device.
    return Quick(values, peer) if len(names) == bound_count and not addresses else None


def _quick_counters(device: int) -> tuple[int | None, ...] | None:
    found: list[int | None] = []
    for folder, counters in (("hw_counters", COUNTERS[:OF_DEVICE]), ("ports/1/hw_counters", COUNTERS[OF_DEVICE:])):
        try:
            opened = os.open(folder, FOLDER, dir_fd=device)
        except OSError:
            return None
        try:
            for counter in counters:
                text = text_of(opened, counter, 64)
                if isinstance(text, Unread):
                    if text.error != "ENOENT":
                        return None
                    found.append(None)
                elif (number := text.strip()).isascii() and number.isdigit() and len(number) < 20:
                    found.append(int(number))
                else:
                    return None
        finally:
            os.close(opened)
    return tuple(found)


def _peer(root: str, descriptor: int, path: str) -> str | Unread | None:
    """Return who gives the driver GPU memory, None where there is no such file; Unread where it cannot be read."""
    opened = open_entry(root, path, "device")
    if isinstance(opened, Unread):
        return None if opened.error == "ENOENT" else opened
    try:
        text = text_of(opened[0], "p2p", 64)
    finally:
        os.close(opened[0])
    if isinstance(text, Unread):
        return None if text.error == "ENOENT" else text
    return text.strip()


def _open_to_all(root: str, uverbs: list[str]) -> bool:
    """Say whether the nodes are devices that everybody may open. Below another root they are plain files, which tell nothing."""
    folder = os.path.join(root, NODES)
    return root != "/" or all(mode is not None and mode & 0o6 == 0o6 for mode in modes_of(folder, uverbs).values())


def _is_address(name: str) -> bool:
    return len(name) == 12 and name[4] == name[7] == ":" and name[10] == "."


def _address_of(device: int, name: str, addresses: set[str]) -> str:
    """Return the PCI address that a device sits on, by its own link, else by the name that a kernel gives it there."""
    try:
        return os.path.basename(os.readlink("device", dir_fd=device))
    except OSError:  # a simulated tree has a folder there
        return next((address for address in addresses if _name_at(address) == name), "")


def _name_at(address: str) -> str:
    """Return the kernel's name for the device at an address, as efa_facts does; another text for what is no address."""
    try:
        domain, bus, slot = int(address[:4], 16), int(address[5:7], 16), int(address[8:10], 16)
    except ValueError:
        return address
    return f"rdmap{bus}s{slot}" if domain == 0 else f"rdmaP{domain}p{bus}s{slot}"


def keep(values: Mapping[str, Sequence[int | None]], at_s: float) -> dict[str, Any]:
    """Return what a prolog keeps: `at_s` in seconds since the epoch, the counters' names, and each device's values."""
    rows = {name: list(row) for name, row in values.items()}
    return {"at_s": round(at_s, 3), "counters": list(COUNTERS), "devices": rows}


def counter_files(root: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the files of the counters of devices whose names are known, COUNTERS in order for each device."""
    folders = ["hw_counters" if at < OF_DEVICE else "ports/1/hw_counters" for at in range(len(COUNTERS))]
    return tuple(
        os.path.join(root, CLASS, name, folder, counter)
        for name in names
        for folder, counter in zip(folders, COUNTERS, strict=True)
    )


def counters_in(said: str, root: str, names: Sequence[str]) -> dict[str, tuple[int | None, ...]]:
    """Return the counters in lines of `FILE:NUMBER`, as grep prints them; nothing where a device has none. Pure."""
    told = {}
    for line in said.splitlines():
        path, _, number = line.rpartition(":")
        if number.isascii() and number.isdigit():
            told[path] = int(number)
    files = iter(counter_files(root, names))
    values = {name: tuple(told.get(next(files)) for _ in COUNTERS) for name in names}
    return values if all(any(one is not None for one in row) for row in values.values()) else {}
