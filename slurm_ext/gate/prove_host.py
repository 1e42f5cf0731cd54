"""Fixtures that prove the checks of the node itself: scratch, mounts, processors, memory, clock, disks, processes, services."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable

from slurm_ext.gate.probes import EPILOG
from slurm_ext.gate.prove_bench import Bench
from slurm_ext.gate.prove_model import Fixture
from slurm_ext.gate.read_folder import Entry
from slurm_ext.gate.read_small import Files
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

_SYSTEM, _DMI = "sys/devices/system", "sys/class/dmi/id"
_SPACE = "etc/fmslurm-lab/space.json"
_SERVICES = "etc/fmslurm-lab/systemctl-show.txt"
_MOUNTINFO = "proc/self/mountinfo"
_TIB = 1 << 40


def _unmounted(bench: Bench) -> None:
    text = (bench.root / "proc/self/mounts").read_text()
    kept = [line for line in text.splitlines(keepends=True) if str(bench.mount) not in line]
    bench.write("proc/self/mounts", "".join(kept))


def _no_scratch(bench: Bench) -> None:
    bench.set("gate", nvme_dirs=(f"{bench.scratch}-gone",))


def _unsynchronised(bench: Bench) -> None:
    bench.edit("etc/fmslurm-lab/chronyc-tracking.txt", "Normal", "Not synchronised")


def _memory(name: str, kb: int) -> Callable[[Bench], None]:
    """Return a fixture that changes one line of /proc/meminfo."""

    def apply(bench: Bench) -> None:
        lines = (bench.root / "proc/meminfo").read_text().splitlines()
        changed = [f"{name + ':':16}{kb:>12} kB" if line.startswith(f"{name}:") else line for line in lines]
        bench.write("proc/meminfo", "\n".join(changed) + "\n")

    return apply


def _space(path: str, *numbers: int) -> Callable[[Bench], None]:
    """Return a fixture that changes size, free bytes, inodes and free inodes of a file system."""

    def apply(bench: Bench) -> None:
        told = json.loads((bench.root / _SPACE).read_text())
        told[path] = list(numbers)
        bench.write(_SPACE, json.dumps(told))

    return apply


def _text(name: str, text: str) -> Callable[[Bench], None]:
    return lambda bench: bench.write(name, text)


def _disk_gone(bench: Bench) -> None:
    for name in ("sys/class/nvme/nvme8", "sys/block/nvme8n1"):
        bench.remove(name)
    bench.edit("proc/mdstat", "nvme8n1[7] ", "")


def _turned_read_only(bench: Bench) -> None:
    bench.edit(
        _MOUNTINFO,
        "/ / rw,relatime shared:1 - xfs /dev/nvme0n1p1 rw,",
        "/ / rw,relatime shared:1 - xfs /dev/nvme0n1p1 ro,",
    )


def _fstab(bench: Bench) -> None:
    bench.edit("etc/fstab", "UUID=5f0c8d1e", "/dev/nvme9n1 /data xfs defaults 0 0\nUUID=5f0c8d1e")


def _stuck_in_driver(bench: Bench) -> None:
    bench.process(4194001, "python3", "D", wchan="nvidia_ioctl")


def _stuck(bench: Bench) -> None:
    bench.process(4194001, "python3", "D", wchan="folio_wait_bit")


def _zombies(bench: Bench) -> None:
    for number in range(60):
        bench.process(4194001 + number, "python3", "Z")


def _left_behind(bench: Bench) -> None:
    group = "/system.slice/slurmstepd.scope/job_4242"
    bench.process(4194001, "python3", "S", group=group)
    bench.write(f"sys/fs/cgroup{group}/cgroup.procs", "4194001\n")
    bench.write(f"sys/fs/cgroup{group}/cgroup.events", "populated 1\nfrozen 0\n")


def _many_groups(bench: Bench) -> None:
    for number in range(250):
        group = f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_{number + 1}"
        bench.write(f"{group}/cgroup.events", "populated 0\nfrozen 0\n")


def _stopped(bench: Bench) -> None:
    text = (bench.root / _SERVICES).read_text()
    blocks = [
        block.replace("ActiveState=active", "ActiveState=failed").replace("SubState=running", "SubState=failed")
        if "nvidia-fabricmanager" in block
        else block
        for block in text.split("\n\n")
    ]
    bench.write(_SERVICES, "\n\n".join(blocks))


def _unreadable(name: str) -> Callable[[Bench], None]:
    """Return a fixture that puts a folder in a file's place: as with EIO, it is there and cannot be read."""

    def apply(bench: Bench) -> None:
        bench.remove(name)
        bench.write(f"{name}/in-its-place", "")

    return apply


def _shut(name: str) -> Callable[[Bench], None]:
    """Return a fixture that puts a file in a folder's place."""

    def apply(bench: Bench) -> None:
        bench.remove(name)
        bench.write(name, "no folder\n")

    return apply


def _no_space_told(bench: Bench) -> None:
    def spaces(_here: object, files: Files) -> tuple[()]:
        files.note("/", OSError(errno.EIO, "Input/output error"))
        return ()

    bench.replace("system_quick", "_spaces", spaces)


class _Clock:
    """A clock in the place of the time module."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME
    sleep, monotonic = staticmethod(time.sleep), staticmethod(time.monotonic)

    def __init__(self, now_s: float, since_boot_s: float) -> None:
        self._now_s, self._since_boot_s = now_s, since_boot_s

    def time(self) -> float:
        return self._now_s

    def clock_gettime(self, _clock: int) -> float:
        return self._since_boot_s


def _busy(bench: Bench) -> None:
    bench.replace("system_host", "time", _Clock(time.time(), 100_000.0))  # long after boot, whatever this machine is
    bench.write("proc/loadavg", "900.0 900.0 900.0 1/2104 41234\n")


def _load_unreadable(bench: Bench) -> None:
    bench.replace("system_host", "time", _Clock(time.time(), 100_000.0))
    _unreadable("proc/loadavg")(bench)


def _long_ago(bench: Bench) -> None:
    bench.replace("system_quick", "time", _Clock(1_000_000_000.0, 100.0))


def _clock_set(bench: Bench) -> None:
    bench.baseline["system"]["boot_s"] += 3600.0


def _socket_gone(bench: Bench) -> None:
    bench.write(f"{_SYSTEM}/cpu/online", "0-95\n")
    bench.write(f"{_SYSTEM}/cpu/present", "0-95\n")
    bench.write(f"{_SYSTEM}/cpu/cpu0/topology/thread_siblings_list", "0,48\n")
    for number in range(96):
        bench.write(f"{_SYSTEM}/cpu/cpu{number}/topology/physical_package_id", "0\n")


def _left_in(path: str, gib: float) -> Callable[[Bench], None]:
    """Return a fixture in which a user without a job has left files; told in place of lstat, so that no disk is filled."""

    def apply(bench: Bench) -> None:
        def entries(asked: str) -> list[Entry]:
            return [Entry("left", 61001, int(gib * (1 << 30)), True)] if asked.endswith(path) else []

        bench.replace("read_folder", "entries", entries)
        if path == "dev/shm":
            _space("/dev/shm", _TIB, _TIB - int(gib * (1 << 30)), 1000, 900)(bench)  # noqa: S108 (a name in a table)

    return apply


FIXTURES: tuple[Fixture, ...] = (
    Fixture("node.type-unknown", "node.type-unknown", _text(f"{_DMI}/product_name", "p9.96xlarge\n"), WARN),
    Fixture("disk.", "disk.scratch-missing", _no_scratch, FAIL, action="drain"),
    Fixture("fs.", "fs.not-mounted", _unmounted, FAIL, action="drain"),
    Fixture("clock.unsynchronised", "clock.unsynchronised", _unsynchronised, WARN),
    Fixture("host.cpu-count", "host.cpu-count", _text(f"{_SYSTEM}/cpu/online", "0-95\n"), WARN),
    Fixture("host.socket-missing", "host.socket-missing", _socket_gone, WARN, action="replace"),
    Fixture("host.numa", "host.numa", _text(f"{_SYSTEM}/node/online", "0\n"), WARN),
    Fixture("host.cpus-unreadable", "host.cpus-unreadable", _text(f"{_SYSTEM}/cpu/online", "all of them\n"), UNKNOWN),
    Fixture("host.memory-missing", "host.memory-missing", _memory("MemTotal", 1 << 30), FAIL, action="replace"),
    Fixture("host.memory-short", "host.memory-short", _memory("MemTotal", 1_980_000_000), WARN),
    Fixture("host.memory-poisoned", "host.memory-poisoned", _memory("HardwareCorrupted", 4), WARN),
    Fixture("host.memory-held", "host.memory-held", _memory("MemAvailable", 1 << 20), WARN),
    Fixture("host.memory-unreadable", "host.memory-unreadable", _text("proc/meminfo", "much\n"), UNKNOWN),
    Fixture("host.memory-unreadable", "host.memory-unreadable", _unreadable("proc/meminfo"), UNKNOWN),
    Fixture("host.cpus-unreadable", "host.cpus-unreadable", _unreadable(f"{_SYSTEM}/cpu/online"), UNKNOWN),
    Fixture("raid.", "raid.unreadable", _unreadable("proc/mdstat"), UNKNOWN),
    Fixture("fs.mounts-unreadable", "fs.mounts-unreadable", _unreadable(_MOUNTINFO), UNKNOWN),
    Fixture("disk.nvme-", "disk.nvme-unreadable", _unreadable("sys/class/nvme/nvme3/state"), UNKNOWN),
    Fixture("host.load-unreadable", "host.load-unreadable", _load_unreadable, UNKNOWN),
    Fixture(
        "host.machine-checks-unreadable",
        "host.machine-checks-unreadable",
        _unreadable("proc/interrupts"),
        UNKNOWN,
    ),
    Fixture(
        "host.boot-id-unreadable",
        "host.boot-id-unreadable",
        _unreadable("proc/sys/kernel/random/boot_id"),
        UNKNOWN,
    ),
    Fixture(
        "memory.counters-unreadable",
        "memory.counters-unreadable",
        _unreadable(f"{_SYSTEM}/edac/mc/mc0/ue_count"),
        UNKNOWN,
    ),
    Fixture(
        "clock.source-unreadable",
        "clock.source-unreadable",
        _unreadable(f"{_SYSTEM}/clocksource/clocksource0/current_clocksource"),
        UNKNOWN,
    ),
    Fixture("disk.space-unreadable", "disk.space-unreadable", _no_space_told, UNKNOWN),
    Fixture("cgroup.unreadable", "cgroup.unreadable", _shut("sys/fs/cgroup/system.slice/slurmstepd.scope"), UNKNOWN),
    Fixture("host.swapped", "host.swapped", _memory("SwapTotal", 1 << 24), WARN),
    Fixture("host.load", "host.load", _busy, WARN),
    Fixture(
        "host.machine-checks",
        "host.machine-checks",
        _text("proc/interrupts", "           CPU0       CPU1\nMCE:          3          0   Machine check exceptions\n"),
        WARN,
    ),
    Fixture(
        "memory.dimm-uncorrected", "memory.dimm-uncorrected", _text(f"{_SYSTEM}/edac/mc/mc0/ue_count", "1\n"), FAIL
    ),
    Fixture(
        "memory.many-corrected",
        "memory.many-corrected",
        _text(f"{_SYSTEM}/edac/mc/mc0/ce_count", "5000\n"),
        WARN,
        EPILOG,
    ),
    Fixture(
        "clock.slow-source",
        "clock.slow-source",
        _text(f"{_SYSTEM}/clocksource/clocksource0/current_clocksource", "hpet\n"),
        WARN,
    ),
    Fixture("clock.impossible", "clock.impossible", _long_ago, WARN),
    Fixture("clock.jumped", "clock.jumped", _clock_set, WARN, EPILOG),
    Fixture("disk.nvme-", "disk.nvme-unreadable", _text("sys/class/nvme", "no folder\n"), UNKNOWN),
    Fixture("disk.offline", "disk.offline", _text("sys/block/sda/device/state", "offline\n"), WARN),
    Fixture("disk.shm-leftover", "disk.shm-leftover", _left_in("dev/shm", 1.0), WARN),
    Fixture("disk.leftover", "disk.leftover", _left_in("tmp", 20.0), WARN),
    Fixture("disk.nvme-missing", "disk.nvme-missing", _disk_gone, FAIL, action="replace"),
    Fixture("disk.dead", "disk.dead", _text("sys/block/nvme3n1/size", "0\n"), FAIL, action="replace"),
    Fixture("disk.read-only", "disk.read-only", _text("sys/block/nvme3n1/ro", "1\n"), FAIL, action="replace"),
    Fixture("disk.nvme-state", "disk.nvme-state", _text("sys/class/nvme/nvme3/state", "resetting\n"), WARN),
    Fixture(
        "raid.", "raid.inactive", lambda bench: bench.edit("proc/mdstat", "md0 : active raid0", "md0 : inactive"), FAIL
    ),
    Fixture(
        "probe.output-cut",
        "probe.output-cut",
        lambda bench: bench.edit("proc/mdstat", "md0 : active raid0", "md0 : activ"),
        UNKNOWN,
    ),
    Fixture("fs.read-only", "fs.read-only", _turned_read_only, FAIL, action="reboot"),
    Fixture("fs.not-mounted", "fs.not-mounted", _fstab, WARN),
    Fixture("fs.mounts-unreadable", "fs.mounts-unreadable", _text(_MOUNTINFO, "nothing like a mount\n"), UNKNOWN),
    Fixture("disk.full", "disk.full", _space("/", _TIB, 0, 1000, 900), FAIL, action="drain"),
    Fixture("disk.no-inodes", "disk.no-inodes", _space("/", _TIB, _TIB // 2, 1000, 0), FAIL),
    Fixture("disk.nearly-full-", "disk.nearly-full-space", _space("/", _TIB, _TIB // 20, 1000, 900), WARN),
    Fixture("disk.shm-small", "disk.shm-small", _space("/dev/shm", 64 << 20, 64 << 20, 1000, 999), WARN),  # noqa: S108
    Fixture("process.leftover", "process.leftover", _left_behind, WARN),
    Fixture("cgroup.leftover", "cgroup.leftover", _many_groups, WARN),
    Fixture("process.unkillable", "process.unkillable", _stuck_in_driver, FAIL, action="reboot"),
    Fixture("process.in-kernel", "process.in-kernel", _stuck, UNKNOWN),
    Fixture("process.zombies", "process.zombies", _zombies, WARN),
    Fixture("service.", "service.fabricmanager-down", _stopped, FAIL, action="drain"),
)
