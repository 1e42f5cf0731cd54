"""Small files of /sys, /proc and /dev: listed and read up to a limit, never waited for, and no link followed but the kernel's own.

In a real kernel the entries of /sys/class and /sys/bus are links into /sys/devices, and so is a device's own `device`: those
are followed, and nothing else is. Standard library only: hooks import this.
"""

from __future__ import annotations

import errno
import os

from slurm_ext.gate.file_tree import Unread

CLASS, VERBS, NODES = "sys/class/infiniband", "sys/class/infiniband_verbs", "dev/infiniband"
BUS, BOUND, MODULE = "sys/bus/pci/devices", "sys/bus/pci/drivers/efa", "sys/module/efa"

#: One attribute of sysfs is at most a page; nothing that is read here is longer.
FILE_BYTES = 4096

#: More of one kind than any instance has; what is beyond is not read.
DEVICES_MAX, PORTS_MAX, COUNTERS_MAX, FUNCTIONS_MAX = 256, 4, 64, 4096

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def names_in(path: str, most: int = DEVICES_MAX) -> list[str] | Unread:
    """Return the names in a folder, sorted; Unread with the errno where it cannot be listed."""
    try:
        return sorted(os.listdir(path))[:most]
    except OSError as exc:
        return Unread(errno_of(exc))


def open_entry(root: str, folder: str, name: str) -> tuple[int, str] | Unread:
    """Open a folder that may be a link into /sys/devices; return its descriptor and the path it really has."""
    path = os.path.join(folder, name)
    try:
        return os.open(path, FOLDER), path
    except OSError as exc:
        if exc.errno not in (errno.ENOTDIR, errno.ELOOP):
            return Unread(errno_of(exc))
    try:
        target = os.path.normpath(os.path.join(folder, os.readlink(path)))
        devices = os.path.join(root, "sys/devices")
        if not target.startswith(devices + os.sep):
            return Unread("ELOOP")
        return os.open(target, FOLDER), target
    except OSError as exc:
        return Unread(errno_of(exc))


def text_of(descriptor: int, name: str, limit: int = FILE_BYTES) -> str | Unread:
    """Return a file's text below an open folder, at most `limit` bytes of it."""
    try:
        file = os.open(name, FILE, dir_fd=descriptor)
    except OSError as exc:
        return Unread(errno_of(exc))
    try:
        return os.read(file, limit).decode("utf-8", "replace")
    except OSError as exc:
        return Unread(errno_of(exc))
    finally:
        os.close(file)


def text_at(path: str, limit: int = FILE_BYTES) -> str | None:
    """Return the text of a file of the system, at most `limit` bytes; None where there is none to be read."""
    try:
        file = os.open(path, FILE)
    except OSError:
        return None
    try:
        parts = []
        while limit > 0 and (part := os.read(file, limit)):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(file)


def node_modes(root: str) -> dict[str, int | None] | None:
    """Return the permissions of each uverbs node, None for one that is no device; None where this is no real /dev."""
    names = names_in(os.path.join(root, NODES))
    if root != "/" or isinstance(names, Unread):
        return None
    return modes_of(os.path.join(root, NODES), [name for name in names if name.startswith("uverbs")])


def modes_of(folder: str, names: list[str]) -> dict[str, int | None]:
    """Return the permissions of some nodes, None for one that is no character device."""
    modes: dict[str, int | None] = {}
    for name in names:
        try:
            mode = os.lstat(os.path.join(folder, name)).st_mode
        except OSError:
            continue  # gone meanwhile
        modes[name] = mode & 0o777 if mode & 0o170000 == 0o020000 else None  # a character device
    return modes


def errno_of(exc: OSError) -> str:
    """Return the name of an errno."""
    return errno.errorcode.get(exc.errno or 0, str(exc.errno))
