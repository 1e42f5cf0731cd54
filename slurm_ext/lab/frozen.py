"""A file system that is frozen: who writes there sleeps in the kernel (D state), SIGKILL or not, until it is thawed.

That is how a driver that hangs looks to whoever supervises a process, and the only harmless way to have one: ext4 in a
file, on a loop device, frozen by the ioctl that backups use (linux/fs.h). Needs root and loop devices.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from slurm_ext import command
from slurm_ext.errors import FmslurmError, LackingError
from slurm_ext.lab import mounts

#: _IOWR('X', 119, int) and _IOWR('X', 120, int).
_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878

#: The file to write to, in the folder.
NAME = "stuck"

#: The last part of the path of every such mount in a lab, so that they are found again.
FOLDER = "frozen"

_SIZE = 16 << 20
_CALL_S = 30.0


def of_node(directory: str, node: str) -> Path:
    """Return where a lab mounts a node's."""
    return Path(directory, "nodes", node, FOLDER)


def make(folder: Path) -> Path:
    """Mount a file system of its own at `folder`, freeze it, and return the file to write to.

    Raise LackingError where this machine cannot; nothing is left then.
    """
    image = folder.with_suffix(".img")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with image.open("wb") as stream:
            stream.truncate(_SIZE)
        _call("mkfs.ext4", "-q", "-F", str(image))
        _call("mount", "-o", "loop", str(image), str(folder))
        (folder / NAME).touch()
        _control(folder, _FIFREEZE)
    except BaseException:
        remove(folder)
        raise
    return folder / NAME


def device(folder: Path) -> str:
    """Return the block device that is mounted at `folder`, or an empty text."""
    return mounts.devices().get(str(folder), "")


def thaw(folder: Path) -> None:
    """Wake all who sleep there. Harmless where nothing is mounted or frozen."""
    if str(folder) not in mounts.points():
        return
    try:
        _control(folder, _FITHAW)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # it is not frozen
            raise


def remove(folder: Path) -> None:
    """Thaw and unmount, and take the image away; the loop device goes with its last mount."""
    thaw(folder)
    for _ in range(8):
        if str(folder) not in mounts.points():
            break
        if not command.run(["umount", str(folder)], timeout_s=_CALL_S).ok:
            command.run(["umount", "--lazy", str(folder)], timeout_s=_CALL_S)
    folder.with_suffix(".img").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def thaw_below(directory: str) -> None:
    """Thaw every frozen folder of a lab, so that what it holds can end."""
    for point in mounts.points(kind="ext4"):
        if point.startswith(directory + "/") and point.endswith("/" + FOLDER):
            with contextlib.suppress(OSError):
                thaw(Path(point))


def _control(folder: Path, request: int) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, request, 0)
    finally:
        os.close(descriptor)


def _call(*argv: str) -> None:
    try:
        result = command.run(argv, timeout_s=_CALL_S)
    except FmslurmError as exc:
        raise LackingError(f"no frozen file system: {exc}", remedy="Install e2fsprogs and util-linux") from exc
    if not result.ok:
        raise LackingError(
            f"no frozen file system: {result.words()}", remedy="It needs root, loop devices and ext4 in the kernel"
        )
