"""Disks, arrays, mounts and space of this node by the rules that captures are judged by. Thin readers around pure rules.

Users may write to /dev/shm and /tmp: what lies there is looked at by lstat alone, nothing is opened, no link is followed.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_ext.aws.catalogue import HostShape
from slurm_ext.config.model import at_node
from slurm_ext.gate import block_rules, disk_rules, mount_rules, read_folder, read_small
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.probes import HEALTH, Here
from slurm_ext.gate.process_rules import Jobs
from slurm_ext.gate.system_quick import NVME, SHM, SHM_LEAST_BYTES, SHM_LEFT_BYTES, Controller, Seen, Space
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

#: Without space here slurmd can start nothing.
_SLURMD_NEEDS = ("/", "/var/spool/slurmd")

_DEAD = ("offline", "transport-offline", "blocked")
_NO_DISKS = ("nvme", "loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd")


def judge(here: Here, seen: Seen, shape: HostShape | None, jobs: Jobs, subjects: tuple[str, ...]) -> list[Judged]:
    """Return what the named subjects say."""
    items: list[Judged] = []
    if "disks" in subjects:
        items += _disks(read_small.Files(here.root, seen.unread), seen.nvme, shape)
    if "arrays" in subjects:
        items += arrays(seen.mdstat, shape, seen.nvme)
    if "mounts" in subjects:
        items += _mounts(here, seen)
    if "space" in subjects:
        items += space(seen.spaces, jobs, phase=here.phase)
    if "shm" in subjects:
        items += _shared_memory(here, seen, jobs)
    if here.phase == HEALTH:
        left = read_folder.entries(here.path("tmp"))
        items += disk_rules.judge_leftover_files(_listed(left), "/tmp", jobs) if left else []  # noqa: S108 (looked at)
    return items


def _disks(files: read_small.Files, nvme: tuple[Controller, ...] | None, shape: HostShape | None) -> list[Judged]:
    # Where the list of controllers cannot be read, that is told with all else that cannot (unread_rules).
    items = [] if nvme is None else disks(nvme, [_disk(files, one) for one in nvme], shape)
    for name in files.names("sys/block") or ():
        if not name.startswith(_NO_DISKS):
            state = (files.text(f"sys/block/{name}/device/state", 64) or "").strip()
            if state in _DEAD:
                items.append(judged(WARN, "disk.offline", f"disk:{name}", "warn", f"state {state}"))
    return items


def _disk(files: read_small.Files, one: Controller) -> block_rules.Disk:
    """Return the first namespace of a controller with its size and whether it takes writes, as far as they are told."""
    inside = files.names(f"{NVME}/{one.name}") or []
    name = next((name for name in sorted(inside) if name.startswith(f"{one.name}n")), f"{one.name}n1")
    sectors, shut = files.number(f"sys/block/{name}/size"), files.number(f"sys/block/{name}/ro")
    size = None if sectors is None else sectors * 512.0
    # A model of other words, or none, tells nothing: then the size may.
    model = one.model if block_rules.STORE_MODEL in one.model or block_rules.EBS_MODEL in one.model else ""
    return block_rules.Disk(name, size, model, None if shut is None else shut == 1, one.state)


def disks(nvme: tuple[Controller, ...], listed: list[block_rules.Disk], shape: HostShape | None) -> list[Judged]:
    """Return what NVMe controllers and their disks say against the type."""
    if not nvme:
        return []  # on Nitro the root volume is one as well: this is no list of the node's disks
    models, sizes = any(disk.model for disk in listed), any(disk.size is not None for disk in listed)
    expected = shape.nvme_count if shape is not None else None
    listing = block_rules.Listing(tuple(listed), models, sizes)
    items = block_rules.judge_disks(listing, expected=expected, disk_gb=shape.nvme_gb if shape else 0)
    blind = [disk.name for disk in listed if not disk.model and disk.size is None]
    if blind and any(item.finding.id == "disk.nvme-missing" for item in items):
        line = f"what {', '.join(blind[:4])} is cannot be read, so the local disks cannot be counted"
        items = [item for item in items if item.finding.id != "disk.nvme-missing"]
        items.append(judged(UNKNOWN, "disk.nvme-unclear", "node", "none", line))
    for one in nvme:
        if one.state in ("resetting", "connecting", "new"):
            line = f"the controller is {one.state}: the disk does not answer at this moment"
            items.append(judged(WARN, "disk.nvme-state", f"disk:{one.name}", "warn", line))
    return items


def arrays(text: str | None, shape: HostShape | None, nvme: tuple[Controller, ...] | None = None) -> list[Judged]:
    """Return what /proc/mdstat says; without the file there is no array.

    A stripe over fewer disks than are there was made so, or boot did not wait for one: no disk is missing.
    """
    found = block_rules.parse_mdstat(text) if text is not None else []
    if found is None:
        return [judged(UNKNOWN, "raid.unreadable", "node", "none", "/proc/mdstat has another form")]
    expected = shape.nvme_count if shape is not None else None
    items = block_rules.judge_arrays(found, expected=expected)
    if not nvme or expected is None:
        # A stripe may be short by how it was made, and without the list of controllers nothing tells.
        return [item._replace(verdict=UNKNOWN) if item.finding.id == "disk.nvme-missing" else item for item in items]
    there = sum(block_rules.STORE_MODEL in one.model for one in nvme)
    short = [item for item in items if item.finding.id == "disk.nvme-missing"]
    items = [item for item in items if item.finding.id != "disk.nvme-missing"]  # the controllers tell of that
    if short and there >= expected:
        line = f"all {there} disks are there"
        items.append(judged(WARN, "raid.short-stripe", "node", "warn", *short[0].finding.evidence, line))
    return items


def _mounts(here: Here, seen: Seen) -> list[Judged]:
    if seen.mountinfo is None:
        return []
    gate = here.settings.gate
    own = tuple(at_node(path, here.node).rstrip("/") for path in (*gate.nvme_dirs, *gate.lustre_mounts))
    files = read_small.Files(here.root, seen.unread)
    fstab = files.text("etc/fstab", 1 << 18) if here.phase == HEALTH else None
    return mounts(seen.mountinfo, fstab, own)


def mounts(text: str, fstab: str | None, own: tuple[str, ...]) -> list[Judged]:
    """Return what the table of mounts says. What the kernel turned read-only is certain; what fstab says is worth a note.

    `own`: folders that are tried by writing or asked apart, so that a word from here would be a second one.
    """
    whole = text if text.endswith("\n") else text.rpartition("\n")[0]  # a last line that was cut says nothing
    found = mount_rules.parse_mountinfo(whole)
    if found is None:
        return [judged(UNKNOWN, "fs.mounts-unreadable", "node", "none", "a line of mountinfo has another form")]
    if not any(mount.target == "/" for mount in found):  # as for who lives outside of the root of every mount
        return [judged(UNKNOWN, "fs.mounts-unreadable", "node", "none", "nothing is mounted at / by mountinfo")]
    listed = [
        mount
        for mount in found
        if mount.fstype != "lustre" and not any(f"{path}/".startswith(f"{mount.target}/") for path in own)
    ]
    certain = [item for item in mount_rules.judge(listed, None, whole=False) if item.verdict == FAIL]
    if fstab is None:
        return certain
    told = {item.finding.target for item in certain}
    wanted = [entry for entry in mount_rules.parse_fstab(fstab) if entry.fstype != "lustre" and entry.target not in own]
    items = mount_rules.judge(listed, wanted, whole=whole is text)
    # Set-up or fault: a table and a file that disagree do not tell.
    return certain + [noted(item) for item in items if item.verdict in (FAIL, WARN) and item.finding.target not in told]


def noted(item: Judged) -> Judged:
    """Return a failure as a warning."""
    return item._replace(verdict=WARN) if item.verdict == FAIL else item


def space(spaces: Iterable[Space], jobs: Jobs, *, phase: str) -> list[Judged]:
    """Return what is full or nearly so. A node fails for it only between jobs, and only where slurmd itself needs the space."""
    items: list[Judged] = []
    for one in spaces:
        free = disk_rules.Usage(
            *(one.path, one.key, ""), float(one.size), float(one.used), float(one.available), one.used_percent
        )
        found = disk_rules.judge([free], jobs)
        if one.inodes:
            used = float(one.inodes - one.inodes_free)
            count = disk_rules.Usage(
                *(one.path, one.key, ""), float(one.inodes), used, float(one.inodes_free), one.inodes_percent
            )
            found += disk_rules.judge([count], jobs, "inodes")
        sure = phase == HEALTH and jobs.none_here and one.path in _SLURMD_NEEDS
        items += found if sure else map(noted, found)
    return items


def _shared_memory(here: Here, seen: Seen, jobs: Jobs) -> list[Judged]:
    one = seen.shm
    if one is None:
        return []
    items = []
    if one.size < SHM_LEAST_BYTES:
        line = f"it holds {one.size / 1024**2:.0f} MiB: NCCL's ranks share memory there"
        items.append(judged(WARN, "disk.shm-small", "fs:/dev/shm", "warn", line))
    if one.used >= SHM_LEFT_BYTES:
        left = disk_rules.judge_leftover_files(_listed(read_folder.entries(here.path(SHM)) or []), disk_rules.SHM, jobs)
        usage = disk_rules.Usage(disk_rules.SHM, "tmpfs", "tmpfs", one.size, one.used, one.available, one.used_percent)
        # A full one without a job is a fault, whoever filled it.
        full = jobs.none_here and one.used_percent >= disk_rules.NEARLY_FULL
        items += left or (disk_rules.judge([usage], jobs) if full else [])
    return items


def _listed(found: Iterable[read_folder.Entry]) -> list[disk_rules.Entry]:
    """Return the entries with their owners by number: asking for a name may wait for a directory service."""
    return [disk_rules.Entry(one.name, str(one.uid), float(one.held_bytes), one.is_file) for one in found]
