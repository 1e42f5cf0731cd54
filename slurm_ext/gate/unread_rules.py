"""Files of the kernel that are there and cannot be read -> what is not known for it. Pure.

A file that is not there says nothing of a node: kernels and machines differ. One that is there and gives EIO, is a folder, or
shuts root out hides what it would say: never a pass, and never proof that a fault has gone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping

from slurm_ext.gate.model import Judged, judged
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import UNKNOWN


class Source(NamedTuple):
    """Files that begin so: the finding where one cannot be read, and the checks (ids or beginnings) that then know nothing."""

    begins: str
    id: str
    checks: tuple[str, ...] = ()


_CPUS = ("host.cpu-count", "host.socket-missing", "host.numa")
_MOUNTS = ("fs.read-only", "fs.not-mounted", "lustre.", "lnet.")
_DISKS = ("disk.nvme-", "disk.dead", "disk.read-only", "disk.offline")

SOURCES: tuple[Source, ...] = (
    Source("sys/devices/system/cpu/cpu0/cpufreq", "host.cpu-governor-unreadable", ("host.cpu-governor",)),
    Source("sys/devices/system/cpu/", "host.cpus-unreadable", _CPUS),
    Source("sys/devices/system/node/", "host.cpus-unreadable", _CPUS),
    Source("proc/meminfo", "host.memory-unreadable", ("host.memory-", "host.swapped", "efa.huge-pages-taken")),
    Source(
        "sys/devices/system/edac", "memory.counters-unreadable", ("memory.dimm-uncorrected", "memory.many-corrected")
    ),
    Source("proc/mdstat", "raid.unreadable", ("raid.",)),
    Source("proc/self/mountinfo", "fs.mounts-unreadable", _MOUNTS),
    Source("etc/fstab", "fs.mounts-unreadable", _MOUNTS),
    Source("sys/class/nvme", "disk.nvme-unreadable", _DISKS),
    Source("sys/block", "disk.nvme-unreadable", _DISKS),
    Source("sys/devices/system/clocksource", "clock.source-unreadable", ("clock.slow-source",)),
    Source("sys/fs/cgroup", "cgroup.unreadable", ("process.leftover", "cgroup.leftover")),
    Source("proc/loadavg", "host.load-unreadable", ("host.load",)),
    Source("proc/interrupts", "host.machine-checks-unreadable", ("host.machine-checks",)),
    Source("proc/net/", "network.unreadable", ("network.no-default-route", "network.link-down")),
    Source("sys/class/net/", "network.unreadable", ("network.link-down",)),
    Source("proc/sys/kernel/random/boot_id", "host.boot-id-unreadable"),
    Source("/", "disk.space-unreadable", ("disk.full", "disk.no-inodes", "disk.nearly-full-", "disk.shm-")),
)

#: Other findings that say the same, and the checks that then know nothing.
_OTHERS = {"lustre.unreadable": ("lustre.", "lnet."), "efa.unreadable": ("efa.",)}

#: What is named in one finding; the rest is counted.
MOST_NAMED = 4


def judge(unread: Mapping[str, str]) -> list[Judged]:
    """Return one finding for each source of which a file cannot be read (`unread`: name below the root -> why)."""
    said: dict[str, list[str]] = {}
    for name, why in unread.items():
        source = next((one for one in SOURCES if name.startswith(one.begins)), None)
        if source is not None:
            said.setdefault(source.id, []).append(_words(name, why))
    return [judged(UNKNOWN, id_, "node", "none", *_some(lines)) for id_, lines in said.items()]


def _words(name: str, why: str) -> str:
    number = getattr(errno, why, None)
    more = f" ({os.strerror(number)})" if isinstance(number, int) else ""
    return f"/{name.lstrip('/')}: {why}{more}"


def _some(lines: list[str]) -> list[str]:
    return lines if len(lines) <= MOST_NAMED else [*lines[:MOST_NAMED], f"and {len(lines) - MOST_NAMED} more files"]


def blind(items: Iterable[Judged]) -> dict[str, str]:
    """Return the checks (ids or beginnings) of which these findings say that their files could not be read, with why."""
    found: dict[str, str] = {}
    for item in items:
        checks = [one for source in SOURCES if source.id == item.finding.id for one in source.checks]
        why = item.finding.evidence[0] if item.finding.evidence else "its file could not be read"
        found |= dict.fromkeys((*checks, *_OTHERS.get(item.finding.id, ())), why)
    return found
