"""What a prolog reads of a node's processors, memory, disks and leftovers, and whether all of it is plainly well.

Plainly well costs a few hundred microseconds and no rule is loaded for it; what is not plainly so is a subject that the long
rules judge. `read` is the edge, `odd` is pure. Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from slurm_ext.aws.catalogue import HostShape
from slurm_ext.config.model import at_node
from slurm_ext.gate import read_small
from slurm_ext.gate.probes import Here
from slurm_ext.typed import NamedTuple

#: Model of a local disk (AWS: "SSD instance store volumes", nvme list).
STORE_MODEL = "Instance Storage"

#: Clocks that a kernel falls back to when its good one fails. On Nitro it is tsc or kvm-clock, on Graviton the architecture's
#: (AWS: "Manage the clock source for EC2 instances"; kernel: timekeeping documentation).
POOR_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")

#: The first second of 2025: no node that runs this can have booted earlier.
EARLIEST_S = 1_735_689_600.0

#: The same limits as the rules have (host_rules, disk_rules), which are not loaded for a node that is well.
MEMORY_SHARE = 0.95
AVAILABLE_SHARE = 0.5
NEARLY_FULL = 90.0
SHM_LEFT_BYTES = 100 * 1024**2

#: A container needs some shared memory for each of its ranks (NCCL, "Troubleshooting": shared memory); a node has half of its
#: memory unless someone made it less.
SHM_LEAST_BYTES = 1 << 30

#: What a lab says of the space below its root, which lies on the host's disk: path -> [size, available, inodes, free inodes].
LAB_SPACE = "etc/fmslurm-lab/space.json"

SHM = "dev/shm"
SYSTEM, NVME = "sys/devices/system", "sys/class/nvme"
_MAY_BE_READ_ONLY = (
    "squashfs",
    "iso9660",
    "tmpfs",
    "overlay",
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "devtmpfs",
    "lustre",
)
_CONTROLLERS = ("freezer", "memory", "cpuset")


class Controller(NamedTuple):
    """One NVMe controller, with the kernel's word for its state."""

    name: str
    model: str
    state: str


class Space(NamedTuple):
    """One file system by a path on it: bytes and inodes; `key` tells which file systems are the same."""

    path: str
    size: int
    available: int
    used: int
    inodes: int
    inodes_free: int
    key: str

    @property
    def used_percent(self) -> float:
        """Return the used part as df counts it: of what is used and what users may still have."""
        whole = self.used + self.available
        return 100.0 * self.used / whole if whole else 0.0

    @property
    def inodes_percent(self) -> float:
        """Return the used part of the inodes, 0 where the file system makes them as needed."""
        return 100.0 * (self.inodes - self.inodes_free) / self.inodes if self.inodes else 0.0


class Seen(NamedTuple):
    """What was read. None: it is not there, or could not be read: then `unread` has it, by its name below the root."""

    online: str | None = None
    present: str | None = None
    numa: str | None = None
    meminfo: str | None = None
    memory_errors: Mapping[str, tuple[int, int]] = {}  # memory controller -> corrected, uncorrected
    mdstat: str | None = None
    mountinfo: str | None = None
    nvme: tuple[Controller, ...] | None = None
    spaces: tuple[Space, ...] = ()
    shm: Space | None = None
    clocksource: str = ""
    boot_s: float = 0.0  # the time of boot (seconds since the epoch) as the wall clock of now has it
    jobs: Mapping[str, str] | None = None  # job id -> its control group's folder; None: Slurm keeps none here
    lively: tuple[str, ...] = ()  # jobs other than our own that have processes
    unread: dict[str, str] = {}  # noqa: RUF012 (a NamedTuple)


BOOT_ID = "proc/sys/kernel/random/boot_id"


def read(here: Here) -> Seen:
    """Read it, each file with a limit."""
    files = read_small.Files(here.root)
    jobs = job_folders(files, here.node)
    spaces = _spaces(here, files)
    # Which boot this is, all of the gate asks; here it is told where nothing says it.
    boot_id = files.text(BOOT_ID, 64)
    if boot_id is not None and not _is_word(boot_id.strip()):
        files.unread[BOOT_ID] = "is no id"
    return Seen(
        files.text(f"{SYSTEM}/cpu/online"),
        files.text(f"{SYSTEM}/cpu/present"),
        files.text(f"{SYSTEM}/node/online"),
        files.text("proc/meminfo", 1 << 14),
        memory_errors(files),
        files.text("proc/mdstat", 1 << 16),
        files.text("proc/self/mountinfo", 1 << 20),
        _controllers(files),
        tuple(space for space in spaces if space.path != "/" + SHM),
        next((space for space in spaces if space.path == "/" + SHM), None),
        (files.text(f"{SYSTEM}/clocksource/clocksource0/current_clocksource", 64) or "").strip(),
        time.time() - time.clock_gettime(time.CLOCK_BOOTTIME),
        jobs,
        tuple(job for job, path in (jobs or {}).items() if job != here.job_id and has_processes(path)),
        files.unread,
    )


def memory_errors(files: read_small.Files) -> dict[str, tuple[int, int]]:
    """Return corrected and uncorrected errors of each memory controller since its driver loaded (kernel: EDAC)."""
    folder = f"{SYSTEM}/edac/mc"
    found = {}
    for name in (files.names(folder) or ())[:64]:
        if name.startswith("mc"):
            corrected, uncorrected = (files.number(f"{folder}/{name}/{kind}_count") for kind in ("ce", "ue"))
            if corrected is not None and uncorrected is not None:
                found[name] = (corrected, uncorrected)
    return found


def _controllers(files: read_small.Files) -> tuple[Controller, ...] | None:
    listed = files.names(NVME)
    if listed is None:
        return None
    return tuple(
        Controller(name, *((files.text(f"{NVME}/{name}/{part}", 256) or "").strip() for part in ("model", "state")))
        for name in sorted(listed)[:256]
    )


def _spaces(here: Here, files: read_small.Files) -> tuple[Space, ...]:
    """Return the space of the file systems that slurmd, its daemons and every job write to."""
    if here.root != "/":
        return _lab_spaces(here)
    site = here.settings.site
    own = [at_node(path, here.node) for path in (site.state_dir, site.log_dir)]
    found: dict[str, Space] = {}
    for path in ("/", "/var/spool/slurmd", "/var/log", "/var/tmp", "/tmp", *own, "/" + SHM):  # noqa: S108 (asked, not written)
        try:
            said = os.statvfs(path)
        except OSError as exc:
            files.note(path, exc)
            continue
        unit = said.f_frsize
        space = Space(
            path,
            said.f_blocks * unit,
            said.f_bavail * unit,
            (said.f_blocks - said.f_bfree) * unit,
            said.f_files,
            said.f_ffree,
            str(said.f_fsid),
        )
        if path == "/" + SHM and found and str(said.f_fsid) == next(iter(found.values())).key:
            continue  # nothing is mounted there
        found.setdefault(space.key, space)
    return tuple(found.values())


def _lab_spaces(here: Here) -> tuple[Space, ...]:
    said = read_small.text(here.path(LAB_SPACE), 1 << 16)
    if said is None:
        return ()
    import json  # here: a real node has no such file

    try:
        return tuple(
            Space(path, size, left, size - left, inodes, free, path)
            for path, (size, left, inodes, free) in json.loads(said).items()
        )
    except (ValueError, TypeError, AttributeError):
        return ()


def job_folders(files: read_small.Files, node: str) -> dict[str, str] | None:
    """Return the control groups of jobs, by job id; None where Slurm has none here.

    Version 2: system.slice/slurmstepd.scope/job_N, with the node's name before it where a machine has several slurmds.
    Version 1: CONTROLLER/slurm/uid_U/job_N (Slurm: cgroup_v2.html, cgroups.html).
    """
    base = "sys/fs/cgroup"
    for scope in ("slurmstepd.scope", f"{node}_slurmstepd.scope"):
        folder = f"{base}/system.slice/{scope}"
        if listed := files.names(folder):  # a control group is never empty: it has files of its own
            return {name[4:]: os.path.join(files.root, folder, name) for name in listed if _is_job(name)}
    for controller in _CONTROLLERS:
        found: dict[str, str] | None = None
        for slurm in ("slurm", f"slurm_{node}"):
            folder = f"{base}/{controller}/{slurm}"
            for user in files.names(folder) or ():
                found = {} if found is None else found
                if user.startswith("uid_"):
                    listed = files.names(f"{folder}/{user}") or []
                    within = os.path.join(files.root, folder, user)
                    found |= {name[4:]: f"{within}/{name}" for name in listed if _is_job(name)}
        if found is not None:
            return found
    return None


def _is_job(name: str) -> bool:
    return name.startswith("job_") and read_small.is_number(name[4:])


def has_processes(folder: str) -> bool:
    """Return whether there are processes in a control group; version 1 does not say, so there may be."""
    said = read_small.text(f"{folder}/cgroup.events", 256)
    return said is None or "populated 1" in said


def odd(seen: Seen, shape: HostShape | None) -> tuple[str, ...]:
    """Return the subjects that are not plainly well, for the long rules: cpus, memory, disks, arrays, ..."""
    checks = {
        "cpus": _cpus_well(seen, shape),
        "memory": _memory_well(seen.meminfo, shape) and not any(bad for _, bad in seen.memory_errors.values()),
        "disks": _disks_well(seen.nvme, shape),
        "arrays": _arrays_well(seen.mdstat, shape),
        "mounts": seen.mountinfo is None or _mounts_well(seen.mountinfo),
        "space": all(max(space.used_percent, space.inodes_percent) < NEARLY_FULL for space in seen.spaces),
        "shm": seen.shm is None or (seen.shm.used < SHM_LEFT_BYTES and seen.shm.size >= SHM_LEAST_BYTES),
        "clock": seen.clocksource not in POOR_CLOCKS and seen.boot_s >= EARLIEST_S,
        "jobs": not seen.lively and len(seen.jobs or ()) < MANY_GROUPS,
        "files": not seen.unread,
    }
    return tuple(name for name, well in checks.items() if not well)


#: So many groups of jobs that are over make the kernel's own work slow. Our own choice, without a source.
MANY_GROUPS = 200


def _cpus_well(seen: Seen, shape: HostShape | None) -> bool:
    if seen.online is None or seen.present is None:
        return True  # nothing can be said
    if shape is None:
        return seen.online == seen.present
    numa = (seen.numa or "").strip()
    nodes = int(last) + 1 if read_small.is_number(last := numa.rpartition("-")[2]) else None
    return seen.online.strip() == f"0-{shape.vcpus - 1}" and (nodes is None or nodes >= (shape.sockets or 1))


def _memory_well(text: str | None, shape: HostShape | None) -> bool:
    if text is None:
        return True
    kb = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in ("MemTotal", "MemAvailable", "HardwareCorrupted"):
            number = value.removesuffix(" kB").strip()
            if not read_small.is_number(number):
                return False
            kb[name] = int(number)
    total = kb.get("MemTotal", 0)
    wanted = MEMORY_SHARE * shape.memory_mib * 1024 if shape is not None else 1.0
    held = kb.get("MemAvailable", total) < AVAILABLE_SHARE * total
    return total >= wanted and not held and not kb.get("HardwareCorrupted")


def _disks_well(nvme: tuple[Controller, ...] | None, shape: HostShape | None) -> bool:
    if nvme is None:
        return True
    local = sum(STORE_MODEL in one.model for one in nvme)
    # Not even a root volume: then this is no list of the node's disks.
    wanted = (shape.nvme_count or 0) if shape is not None and nvme else 0
    return local >= wanted and all(one.state in ("live", "") for one in nvme)


def _is_word(text: str) -> bool:
    return 0 < len(text) < 64 and text.isascii() and text.replace("-", "").isalnum()


def _mounts_well(text: str) -> bool:
    """Return whether a table of mounts is one, has a root, and nothing in it is read-only that may not be meant so."""
    lines = text.splitlines()
    return (
        any(line.split(" ", 5)[4:5] == ["/"] for line in lines)
        and all(" - " in line and line[:1].isdecimal() for line in lines)
        and not any(map(_read_only, lines))
    )


def _arrays_well(text: str | None, shape: HostShape | None) -> bool:
    if text is not None and not text.startswith("Personalities"):
        return False
    local = 0
    for line in (text or "").splitlines():
        if line.startswith("md"):
            words = line.split()
            if len(words) < 5 or words[2] != "active" or words[3] not in ("raid0", "raid1") or "(" in line:
                return False
            local += sum(word.startswith("nvme") for word in words[4:])
        elif any(word in line for word in ("_]", "[_", "resync", "recovery", "reshape", "external")):
            return False
    wanted = (shape.nvme_count or 0) if shape is not None else 0
    return not wanted / 2 < local < wanted


def _read_only(line: str) -> bool:
    """Return whether a line of mountinfo tells of something read-only that may not be meant so."""
    if " ro" not in line and ",ro" not in line and "shutdown" not in line and "emergency_ro" not in line:
        return False
    front, _, back = line.partition(" - ")
    words, rest = front.split(), back.split()
    if len(words) < 6 or len(rest) < 3 or rest[0] in _MAY_BE_READ_ONLY:
        return False
    options = {*words[5].split(","), *rest[-1].split(",")}
    return not options.isdisjoint(("ro", "shutdown", "emergency_ro"))
