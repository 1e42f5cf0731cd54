"""What kernel messages say of disks and of the file systems on them. Pure.

Only a device of the node's own convicts it. A loop, network block or RAM device, a CD and a device-mapper device may hold an
image that a user wrote, broken as it pleases and with errors=remount-ro in its super block: container runtimes mount them
through the kernel. A failed request convicts by the operation and the status that the kernel names.

Sources: the kernel's block/blk-core.c (blk_errors[], blk_print_req_error), include/linux/blk_types.h (enum req_op),
drivers/nvme/host/core.c (nvme_error_status) and pci.c, fs/ext4/super.c, fs/xfs/xfs_fsops.c, drivers/md/{raid0,raid1,raid5,
raid10}.c; github.com/spdk/spdk/issues/1714 (healthy disks that know no WRITE_ZEROES).
"""

from __future__ import annotations

from collections.abc import Collection

from slurm_ext.gate.model import Judged, judged
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL, WARN

_NVME_TIMEOUT = pattern(r"nvme (nvme\d+): (?:I/O (?:tag )?\d.*timeout|controller is down; will reset)", needs="nvme ")
_NVME_DEAD = pattern(
    r"nvme (nvme\d+): (?:Removing after probe failure|Disabling device after reset failure|Device not ready)",
    needs="nvme ",
)
_NVME_PATH = pattern(r"block (nvme\d+n\d+): no available path - failing I/O", needs="no available path")
#: Only a disk that stays: a floppy drive, a CD or a loop device that is read in vain says nothing of the node.
_BLOCK = pattern(
    r"(?:blk_update_request: |print_req_error: )?(I/O|critical (?:medium|target|space allocation|nexus)|"
    r"operation not supported|protection|device resource) error, dev (nvme\d+n\d+|sd[a-z]+|xvd[a-z]+), sector"
    r"(?: \d+ op (?:0x([0-9a-f]+))?)?",
    needs="error, dev ",
)
_BUFFER = pattern(
    r"Buffer I/O error on dev(?:ice)? ((?:nvme\d+n\d+|sd[a-z]+|xvd[a-z]+|md\d+)(?:p?\d+)?), ", needs="Buffer I/O"
)
_TURNED = pattern(
    r"(?:EXT[234]-fs|XFS|F2FS-fs)(?: error)? \((?:device )?([\w-]+)\): .{0,200}?"
    r"(?:Remounting filesystem read-only|Shutting down filesystem|Filesystem has been shut down)",
    needs="ilesystem",
)
_FORCED = pattern(r"BTRFS(?: \w+)? \(device ([\w-]+)(?: state \w+)?\):? .*forced readonly", needs="forced readonly")
_ABORTED = pattern(r"Aborting journal on device ([\w-]+?)(?:-\d+)?\.", needs="Aborting journal")
_FS_ERROR = pattern(r"EXT[234]-fs error \(device ([\w-]+)\)", needs="-fs error")
_XFS_ERROR = pattern(
    r"XFS \(([\w-]+)\): (?:Metadata (?:corruption|CRC error) detected|Corruption detected|log I/O error)", needs="XFS ("
)
_RAID = pattern(
    r"md/(raid\w*|linear|faulty):(\w+): Disk failure on (\S+?),? (?:detected|disabling)", needs="Disk failure"
)

#: Disks and arrays of them, with their partitions. A user can make none of them.
_NODES = pattern(r"(?:nvme\d+n\d+|sd[a-z]+|xvd[a-z]+|md\d+)(?:p?\d+)?$|md_d\d+$")

#: enum req_op: READ, WRITE, FLUSH. Others (DISCARD 3, SECURE_ERASE 5, WRITE_SAME 7, WRITE_ZEROES 9, zones) may be unknown to
#: a healthy disk, and what asked for them does without.
_DATA = ("0", "1", "2")

#: Data was not read or written as it should be, after the driver's retries: blk_errors[] of IOERR, MEDIUM and PROTECTION.
_OF_DATA = ("I/O", "critical medium", "protection")
#: The disk refused it for good: TARGET. Older kernels name no operation, and say this of discards that it does not know.
_REFUSED = ("critical target",)
# NOTSUPP, NOSPC (a thin pool), NEXUS (another host's reservation) and DEV_RESOURCE (busy) are no fault of the disk.


def judge(text: str, own: Collection[str] = ()) -> Judged | None:
    """Return what one message says of a disk. `own` names the device-mapper devices (`dm-0`) that are the node's."""
    if found := _NVME_DEAD.match(text):
        return judged(FAIL, "disk.nvme-dead", f"disk:{found[1]}", "replace", text)
    if found := _NVME_TIMEOUT.match(text):
        return judged(WARN, "disk.nvme-timeout", f"disk:{found[1]}", "warn", text)
    if found := _NVME_PATH.match(text) or _BUFFER.match(text):
        return judged(FAIL, "disk.error", f"disk:{found[1]}", "replace", text)
    if found := _BLOCK.match(text):
        if _lost_data(found[1], found[3], has_op=" op " in text[found.start() : found.end()]):
            return judged(FAIL, "disk.error", f"disk:{found[2]}", "replace", text)
        return judged(WARN, "disk.request-refused", f"disk:{found[2]}", "warn", text)
    if found := _TURNED.match(text) or _FORCED.match(text) or _ABORTED.match(text):
        if _NODES.match(found[1]) or found[1] in own:
            return judged(FAIL, "disk.read-only", f"disk:{found[1]}", "reboot", text)
        line = "no disk of the node's own, as far as is known: it may hold a user's image"
        return judged(WARN, "disk.file-system-error", f"disk:{found[1]}", "warn", text, line)
    if found := _FS_ERROR.match(text) or _XFS_ERROR.match(text):
        return judged(WARN, "disk.file-system-error", f"disk:{found[1]}", "warn", text)
    if found := _RAID.match(text):
        lost = found[1] in ("raid0", "linear")
        id_, word, action = ("raid.broken", FAIL, "replace") if lost else ("raid.degraded", WARN, "warn")
        return judged(word, id_, f"disk:{found[2]}", action, text)
    return None


def _lost_data(status: str, operation: str | None, *, has_op: bool) -> bool:
    """Return whether a failed request lost data. `operation` is its number; with `has_op` alone it was cut off."""
    if operation is None:
        return not has_op and status in _OF_DATA
    return operation in _DATA and status in _OF_DATA + _REFUSED
