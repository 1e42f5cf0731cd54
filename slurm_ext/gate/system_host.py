"""Processors, memory and clock of this node by the rules that captures are judged by. Thin readers around pure rules.

Loaded where the quick look saw something odd, and in the epilog and the health check.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from slurm_ext.aws.catalogue import HostShape
from slurm_ext.gate import host_rules, read_small, system_idle
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.probes import HEALTH, Here
from slurm_ext.gate.process_rules import Jobs
from slurm_ext.gate.system_quick import EARLIEST_S, POOR_CLOCKS, Seen
from slurm_ext.typed import Any
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

#: Corrected errors of the job's time from which on a person should look. Our own choice, without a source: a single memory
#: cell that leaks gives thousands, a cosmic ray gives one.
MANY_CORRECTED = 1000

#: A wall clock that moved by more than this against the time since boot was set, not slewed: slewing moves both alike
#: (clock_gettime(2)). A leap second is less.
JUMP_S = 2.0

#: Swapped out memory that is worth a word: GPUs wait for pages that come back from a disk.
SWAPPED_KB = 1 << 20

#: A node that has just booted is busy with itself.
SETTLED_S = 600.0


def judge(here: Here, seen: Seen, shape: HostShape | None, jobs: Jobs, subjects: tuple[str, ...]) -> list[Judged]:
    """Return what the named subjects say."""
    want = host_rules.expected(shape, {})
    files = read_small.Files(here.root, seen.unread)
    items: list[Judged] = []
    if "cpus" in subjects:
        items += _cpus(here, seen, want)
    if "memory" in subjects:
        items += _memory(seen, want, jobs) + errors(seen.memory_errors, here.baseline.get("memory_errors"))
    if "clock" in subjects:
        items += clock(seen, here.baseline.get("boot_s"))
    if here.phase == HEALTH:
        if time.clock_gettime(time.CLOCK_BOOTTIME) >= SETTLED_S:
            items += host_rules.judge_load(files.text("proc/loadavg", 256) or "", want, jobs) or []
        items += machine_checks(files.text("proc/interrupts", 8 << 20) or "")
        items += system_idle.look(files, shape)
    return items


def _cpus(here: Here, seen: Seen, want: host_rules.Expected) -> list[Judged]:
    if seen.online is None or seen.present is None:
        return []
    online, present = host_rules.count_list(seen.online.strip()), host_rules.count_list(seen.present.strip())
    if not online or not present:
        line = f"the list of processors cannot be read: {seen.online.strip()[:60]!r}"
        return [judged(UNKNOWN, "host.cpus-unreadable", "node", "none", line)]
    numa = host_rules.count_list((seen.numa or "").strip()) or None
    cpus = host_rules.Cpus(present, online, max(present - online, 0), numa_nodes=numa)
    if want.cpus is not None and online < want.cpus:
        sockets, threads = _shape(here, present)
        cpus = cpus._replace(sockets=sockets, threads=threads)
    return _known(host_rules.judge_cpus(cpus, want))


def _shape(here: Here, present: int) -> tuple[int | None, int | None]:
    """Return the number of sockets that have a processor on line, and how many threads a core has."""
    folder = here.path("sys/devices/system/cpu")
    packages = {read_small.number(f"{folder}/cpu{n}/topology/physical_package_id") for n in range(min(present, 4096))}
    told = read_small.text(f"{folder}/cpu0/topology/thread_siblings_list", 64)
    return len(packages - {None}) or None, host_rules.count_list((told or "").strip()) or None


def _memory(seen: Seen, want: host_rules.Expected, jobs: Jobs) -> list[Judged]:
    if seen.meminfo is None:
        return []
    values = host_rules.parse_meminfo(seen.meminfo)
    if values is None:
        return [judged(UNKNOWN, "host.memory-unreadable", "node", "none", "/proc/meminfo does not tell the total")]
    items = _known(host_rules.judge_memory(values, want, jobs))
    swapped = values.get("SwapTotal", 0) - values.get("SwapFree", values.get("SwapTotal", 0))
    if swapped >= SWAPPED_KB:
        items.append(judged(WARN, "host.swapped", "node", "warn", f"{swapped / 1024**2:.1f} GiB lie in swap"))
    return items


def _known(items: list[Judged]) -> list[Judged]:
    """Return the items without that of a type whose figures are not known: nothing is compared there."""
    return [item for item in items if item.finding.id != "host.no-reference"]


def errors(now: Mapping[str, tuple[int, int]], before: Any) -> list[Judged]:
    """Return what the memory controllers counted: uncorrected errors of this boot, and many corrected ones of the job's time.

    `before` is what they had counted when the job began, where that was kept.
    """
    items = []
    earlier = before if isinstance(before, dict) else {}
    bad = {name: counts[1] for name, counts in now.items() if counts[1]}
    if bad:
        during = sum(max(count - _count(earlier.get(name), 1, count), 0) for name, count in bad.items())
        said = f"{sum(bad.values())} uncorrected memory errors since boot ({', '.join(sorted(bad))})"
        line = f"{said}, {during} of them while the job ran" if earlier else said
        items.append(judged(FAIL, "memory.dimm-uncorrected", "node", "replace", line))
    corrected = sum(max(counts[0] - _count(earlier.get(name), 0, counts[0]), 0) for name, counts in now.items())
    if corrected >= MANY_CORRECTED:
        line = f"{corrected} corrected memory errors while the job ran"
        items.append(judged(WARN, "memory.many-corrected", "node", "warn", line))
    return items


def _count(kept: Any, at: int, otherwise: int) -> int:
    """Return a count that was kept (JSON made a list of the pair), `otherwise` where there is none."""
    return kept[at] if isinstance(kept, list | tuple) and len(kept) == 2 and isinstance(kept[at], int) else otherwise


def clock(seen: Seen, boot_before_s: Any) -> list[Judged]:
    """Return what the wall clock and its source say. Whether a daemon disciplines the clock is asked elsewhere."""
    items = []
    if seen.clocksource in POOR_CLOCKS:
        line = f"the kernel counts time by {seen.clocksource}: each look at the clock is slow"
        items.append(judged(WARN, "clock.slow-source", "node", "warn", line))
    if seen.boot_s < EARLIEST_S:
        line = "the wall clock says a year before this program was written"
        items.append(judged(WARN, "clock.impossible", "node", "warn", line))
    elif isinstance(boot_before_s, int | float) and abs(jump := seen.boot_s - boot_before_s) > JUMP_S:
        line = f"the wall clock was set by {jump:+.1f} s while the job ran"
        items.append(judged(WARN, "clock.jumped", "node", "warn", line))
    return items


def machine_checks(interrupts: str) -> list[Judged]:
    """Return what the row MCE of /proc/interrupts says: machine check exceptions of all processors since boot (x86)."""
    for line in interrupts.splitlines():
        if line.lstrip().startswith("MCE:"):  # a line has a word for each processor: only this one is taken apart
            count = sum(int(word) for word in line.split()[1:] if read_small.is_number(word))
            said = f"{count} machine check exceptions since boot"
            return [judged(WARN, "host.machine-checks", "node", "warn", said)] if count else []
    return []
