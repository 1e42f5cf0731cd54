"""Which device-mapper devices are the node's own, so that the kernel's words about their file systems convict it.

A device-mapper device is LVM's or a container's alike (an encrypted image, a verity image), and the kernel's log has its number
alone. It is the node's where it lies on disks or arrays only, and where the node itself mounted it: as /, by fstab, or below a
scratch folder of the site's settings. Sources: kernel Documentation/ABI/testing/sysfs-block (dev) and sysfs-block-dm, proc(5)
(mountinfo). Read in a bounded child, and only where the log names such a device. Standard library only: hooks import this.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from slurm_ext.gate import read_small

#: More device-mapper devices, and deeper stacks of them, than a node is built with.
_MOST, _DEEPEST = 256, 4

_MOUNTINFO_BYTES, _FSTAB_BYTES = 1 << 20, 1 << 18


def named(records: Iterable[str]) -> bool:
    """Return whether a kernel log says anything of a device-mapper device."""
    return any("(dm-" in record or "device dm-" in record for record in records)


def find(root: str, scratch: Sequence[str]) -> list[str]:
    """Return the names (`dm-0`) of the node's own; `scratch` are the folders that jobs are promised."""
    block = os.path.join(root, "sys/block")
    wanted = {"/", *_fstab(read_small.text(os.path.join(root, "etc/fstab"), _FSTAB_BYTES) or "")}
    mounted = {
        number
        for number, target in _mounted(
            read_small.text(os.path.join(root, "proc/self/mountinfo"), _MOUNTINFO_BYTES) or ""
        )
        if target in wanted or any(f"{path.rstrip('/')}/".startswith(f"{target}/") for path in scratch)
    }
    names = [name for name in read_small.names(block) or () if name.startswith("dm-")][:_MOST]
    return [
        name
        for name in names
        if (read_small.text(f"{block}/{name}/dev", 64) or "").strip() in mounted and _on_disks(block, name, _DEEPEST)
    ]


def _on_disks(block: str, name: str, deepest: int) -> bool:
    """Return whether all that a device lies on are disks and arrays; what cannot be read is not known to be."""
    below = read_small.names(f"{block}/{name}/slaves")
    if not below or not deepest:
        return False
    return all(
        _on_disks(block, one, deepest - 1) if one.startswith("dm-") else one.startswith(("nvme", "sd", "xvd", "md"))
        for one in below
    )


def _mounted(mountinfo: str) -> Iterable[tuple[str, str]]:
    """Yield `major:minor` and the place of each mount; a last line that was cut tells nothing."""
    for line in mountinfo.splitlines()[: None if mountinfo.endswith("\n") else -1]:
        words = line.split(" ", 5)
        if len(words) == 6:
            yield words[2], words[4].replace("\\040", " ")


def _fstab(text: str) -> Iterable[str]:
    """Yield the places that fstab names."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 2 and not words[0].startswith("#") and words[1].startswith("/"):
            yield words[1].replace("\\040", " ").rstrip("/") or "/"
