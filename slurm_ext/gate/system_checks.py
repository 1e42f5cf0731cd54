"""What the probe of the node itself can find, as rows for people. No hook imports this."""

from __future__ import annotations

from slurm_ext.gate.probes import EPILOG, HEALTH, Check

_FILE = "a small file"
_SCAN = "one line of each process"
_LATER, _IDLE = (EPILOG, HEALTH), (HEALTH,)

CHECKS: tuple[Check, ...] = (
    Check(
        "host.cpu-count",
        "fewer processors on line than the type has",
        "warn: SMT, EC2's CPU options, or off line",
        cost=_FILE,
    ),
    Check("host.socket-missing", "a socket of the type has no processor", "warn, replace", cost=_FILE),
    Check("host.numa", "fewer NUMA nodes than sockets", "warn", cost=_FILE),
    Check("host.cpus-unreadable", "the list of processors cannot be read, or has another form", "unknown", cost=_FILE),
    Check(
        "host.memory-missing",
        "less than 90 % of the type's memory",
        "health check: fail, replace; else warn",
        cost=_FILE,
    ),
    Check("host.memory-short", "less than 95 % of the type's memory", "warn", cost=_FILE),
    Check("host.memory-poisoned", "memory taken out of use after hardware errors", "warn", cost=_FILE),
    Check("host.memory-held", "less than half of the memory is available, and no job is here", "warn", cost=_FILE),
    Check("host.memory-unreadable", "/proc/meminfo cannot be read, or has another form", "unknown", cost=_FILE),
    Check("host.swapped", "1 GiB or more lies in swap", "warn", cost=_FILE),
    Check("host.load", "a high load, and no job is here", "warn", _IDLE, _FILE),
    Check(
        "host.cpu-governor",
        "processors held at their lowest clock, where the system may choose it",
        "warn",
        _IDLE,
        _FILE,
    ),
    Check("host.cpu-governor-unreadable", "the governor is there and cannot be read", "unknown", _IDLE, _FILE),
    Check("network.no-default-route", "no default route, on an EC2 type", "warn", _IDLE, _FILE),
    Check("network.link-down", "the interface of the default route is down", "warn", _IDLE, _FILE),
    Check("network.unreadable", "routes or an interface's state are there and cannot be read", "unknown", _IDLE, _FILE),
    Check("host.machine-checks", "machine check exceptions since boot", "warn", _IDLE, "/proc/interrupts"),
    Check("host.load-unreadable", "/proc/loadavg is there and cannot be read", "unknown", _IDLE, _FILE),
    Check("host.machine-checks-unreadable", "/proc/interrupts is there and cannot be read", "unknown", _IDLE, _FILE),
    Check("host.boot-id-unreadable", "the kernel's id of this boot is there and cannot be read", "unknown", cost=_FILE),
    Check("memory.counters-unreadable", "a memory controller's counters cannot be read", "unknown", cost=_FILE),
    Check("memory.dimm-uncorrected", "uncorrected errors counted by a memory controller", "fail, replace", cost=_FILE),
    Check("memory.many-corrected", "1000 or more corrected errors while the job ran", "warn", (EPILOG,), _FILE),
    Check("clock.slow-source", "the kernel fell back to a slow clock", "warn", cost=_FILE),
    Check("clock.source-unreadable", "the name of the kernel's clock cannot be read", "unknown", cost=_FILE),
    Check("clock.impossible", "the wall clock says a year before 2025", "warn", cost=_FILE),
    Check("clock.jumped", "the wall clock was set while the job ran", "warn", (EPILOG,), _FILE),
    Check(
        "disk.nvme-missing",
        "fewer local NVMe disks than the type has",
        "fail, replace where gate.nvme_dirs names folders; else warn",
        cost="two small files a disk",
    ),
    Check("disk.dead", "a disk of no size, or a controller that is dead", "as disk.nvme-missing", cost=_FILE),
    Check("disk.read-only", "a disk that takes no writes", "as disk.nvme-missing", cost=_FILE),
    Check("disk.nvme-state", "a controller that resets or connects again", "warn", cost=_FILE),
    Check("disk.nvme-", "nothing tells which disks are local, or the list cannot be read", "unknown", cost=_FILE),
    Check("disk.offline", "a SCSI disk that is off line", "warn", _LATER, _FILE),
    Check(
        "raid.",
        "/proc/mdstat: broken, inactive, degraded, rebuilding, a stripe over fewer disks than are there",
        "health check: fail; else warn",
        cost=_FILE,
    ),
    Check("probe.output-cut", "/proc/mdstat ends too early, or is of another form", "unknown", cost=_FILE),
    Check("fs.read-only", "a file system that the kernel turned read-only", "fail, reboot", cost="mountinfo"),
    Check("fs.not-mounted", "a mount that fstab names is not there", "warn", _IDLE, "fstab"),
    Check(
        "fs.mounts-unreadable", "the table of mounts cannot be read, or has another form", "unknown", cost="mountinfo"
    ),
    Check(
        "disk.full",
        "no space in /, /tmp, /var/log, /var/spool/slurmd or our own folders",
        "health check without a job, / and slurmd's spool: fail, drain; else warn",
        cost="one statvfs each",
    ),
    Check("disk.no-inodes", "no inode left there", "as disk.full", cost="the same"),
    Check("disk.nearly-full-", "90 % of space or inodes used there", "warn", cost="the same"),
    Check("disk.space-unreadable", "a file system there does not tell its space", "unknown", cost="the same"),
    Check("disk.shm-small", "it holds less than 1 GiB", "warn", cost="one statvfs"),
    Check("disk.shm-leftover", "100 MiB in /dev/shm of users who have no job here", "warn", cost="lstat of each file"),
    Check("disk.leftover", "10 GiB in /tmp of users who have no job here", "warn", _IDLE, "lstat of each file"),
    Check("process.leftover", "processes in the control group of a job that is over", "warn", cost="control groups"),
    Check("cgroup.unreadable", "the control groups of jobs cannot be listed", "unknown", cost="control groups"),
    Check("cgroup.leftover", "200 or more control groups of jobs", "warn", cost="control groups"),
    Check(
        "process.unkillable",
        "a process that has slept in the GPU driver for five minutes, of no job that runs",
        "health check: fail, reboot; epilog: warn",
        _LATER,
        _SCAN,
    ),
    Check("process.in-kernel", "the same, for a shorter time or elsewhere in the kernel", "unknown", _LATER, _SCAN),
    Check("process.zombies", "ended processes that nobody reaps", "warn", _LATER, _SCAN),
    Check(
        "service.",
        "munge, the fabric manager (NVSwitch): down; IMEX (one NVLink domain over instances), clock, DCGM, persistence: a note",
        "fail, drain; or warn",
        _IDLE,
        "one systemctl show",
    ),
)
