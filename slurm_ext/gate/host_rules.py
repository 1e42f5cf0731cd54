"""What lscpu, meminfo and the load say of processors and memory, against the instance type. Pure.

Fewer processors by set-up (SMT off, EC2's CPU options, offline by hand) are worth a note, since Slurm counts on more; a
whole socket or a part of the memory that is gone is no set-up. Sources: lscpu(1), proc(5), EC2 "CPU options".
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_ext.aws.catalogue import HostShape
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.process_rules import Jobs
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

#: Firmware and kernel keep up to some per cent of the memory that a type is sold with (ParallelCluster counts on 95 %).
MEMORY_SHARE = 0.90

#: The averages of one minute forget a job within this time.
LOAD_SETTLES_S = 300.0

#: Less than this of a large memory is still odd, but not a lost part.
MEMORY_NOTE_SHARE = 0.95
_LARGE_MIB = 64 * 1024

#: Without a job, most of the memory must be there for the next one.
AVAILABLE_SHARE = 0.5

_MEMINFO = pattern(r"^(?:(HugePages_\w+):\s+(\d+)|(\w[\w()]*):\s+(\d+) kB)\s*$")
_LOAD = pattern(r"load averages?:\s*([\d.]+)")
_LOADAVG = pattern(r"^([\d.]+) ([\d.]+) ([\d.]+) \d+/\d+ \d+\s*$")


class Cpus(NamedTuple):
    """What lscpu says; None: the line was not there. `total` counts offline processors too."""

    total: int | None = None
    online: int | None = None
    offline: int = 0
    threads: int | None = None
    cores: int | None = None
    sockets: int | None = None
    numa_nodes: int | None = None


class Expected(NamedTuple):
    """What a node should have, from its type or from the settings; None: no reference value."""

    cpus: int | None = None
    threads: int | None = None
    sockets: int | None = None
    numa_nodes: int | None = None
    memory_mib: float | None = None


def expected(shape: HostShape | None, told: Mapping[str, float]) -> Expected:
    """Return the reference: what was `told` for this node (cpus, sockets, ...) before what its type has."""
    base = (
        Expected()
        if shape is None
        else Expected(shape.vcpus, shape.threads_per_core, shape.sockets, None, shape.memory_mib)
    )
    return Expected(
        cpus=int(told["cpus"]) if "cpus" in told else base.cpus,
        threads=int(told["threads"]) if "threads" in told else base.threads,
        sockets=int(told["sockets"]) if "sockets" in told else base.sockets,
        numa_nodes=int(told["numa_nodes"]) if "numa_nodes" in told else None,
        memory_mib=told.get("memory_mib", base.memory_mib),
    )


def count_list(text: str) -> int | None:
    """Return how many numbers a list such as `0-95,97` names, 0 for an empty one, None where it is no list."""
    total = 0
    for part in text.replace(" ", "").split(","):
        if not part:
            continue
        first, dash, last = part.partition("-")
        if not (first.isascii() and first.isdecimal() and (not dash or (last.isascii() and last.isdecimal()))):
            return None
        total += int(last) - int(first) + 1 if dash else 1
    return total if total >= 0 else None


def parse_lscpu(text: str) -> Cpus | None:
    """Return lscpu's summary, as text or JSON, or its list of processors (-p); None where it is none of them."""
    if (alone := text.strip()).isascii() and alone.isdecimal():  # nproc
        return Cpus(int(alone), int(alone))
    if text.lstrip().startswith("{"):
        fields = _json_fields(text)
    elif "# CPU" in text or "#CPU" in text or text.lstrip().startswith("CPU "):
        return _listed(text)
    else:
        lines = text.splitlines()
        if lines and not text.endswith("\n") and "CPU(s)" in lines[-1]:
            return None  # cut in the very line that counts
        halves = (line.partition(":") for line in lines)
        fields = {name.strip().lower(): value.strip() for name, colon, value in halves if colon}
    if fields is None or "cpu(s)" not in fields:
        return None

    def number(*names: str) -> int | None:
        word = next((fields[name] for name in names if name in fields), "")
        return int(word) if word.isascii() and word.isdecimal() else None

    total = number("cpu(s)")
    online = next((value for name, value in fields.items() if name.startswith(("on-line cpu", "online cpu"))), None)
    offline = next((value for name, value in fields.items() if name.startswith(("off-line cpu", "offline cpu"))), "")
    return Cpus(
        total,
        count_list(online) if online is not None else None,
        count_list(offline) or 0,
        number("thread(s) per core"),
        number("core(s) per socket", "core(s) per cluster"),
        number("socket(s)", "cluster(s)"),
        number("numa node(s)"),
    )


def _json_fields(text: str) -> dict[str, str] | None:
    import json  # only where a text is JSON: hooks import this

    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    fields: dict[str, str] = {}
    rest = list(answer.get("lscpu") or []) if isinstance(answer, dict) and isinstance(answer.get("lscpu"), list) else []
    while rest:
        entry = rest.pop()
        if isinstance(entry, dict):
            fields[str(entry.get("field", "")).rstrip(":").strip().lower()] = str(entry.get("data", ""))
            below = entry.get("children")
            rest += below if isinstance(below, list) else []
    return fields


def _listed(text: str) -> Cpus | None:
    """Return the counts in `lscpu -p` or `-e`: one line for each processor, that off line with `no` or left out."""
    lines = [line for line in text.splitlines() if line.strip()]
    apart = "," if any(line.startswith("#") for line in lines) else None
    head = next((line for line in reversed(lines) if not line.strip()[:1].isdecimal()), "").lstrip("# ").lower()
    names = [name.strip() for name in head.split(apart)]
    cells = [line.strip().split(apart) for line in lines if line.strip()[:1].isdecimal()]
    if "core" not in names or "socket" not in names or not cells:
        return None
    rows = [dict(zip(names, row, strict=False)) for row in cells]
    here = [row for row in rows if row.get("online", "yes").lower() in ("yes", "y") and row.get("core", "-") != "-"]
    cores, sockets, nodes = ({row[name] for row in here if row.get(name)} for name in ("core", "socket", "node"))
    threads = len(here) // len(cores) if cores else None
    off = len(rows) - len(here)
    return Cpus(len(rows), len(here), off, threads, None, len(sockets) or None, len(nodes) or None)


def judge_cpus(cpus: Cpus, want: Expected) -> list[Judged]:
    """Return what the processors say against the reference."""
    if cpus.total is None:
        return [judged(UNKNOWN, "host.cpus-unreadable", "node", "none", "lscpu does not tell the number of processors")]
    running = cpus.online if cpus.online is not None else cpus.total - cpus.offline
    if want.cpus is None:
        if cpus.offline:
            line = f"{running} of {cpus.total} processors are on line"
            return [judged(WARN, "host.cpu-count", "node", "warn", line)]
        return [
            judged(
                UNKNOWN, "host.no-reference", "node", "none", f"{running} processors; what it should have is not known"
            )
        ]
    if running < want.cpus:
        how = ""
        if want.threads and cpus.threads and cpus.threads < want.threads:
            how = f", {cpus.threads} thread a core: SMT is off"
        elif cpus.offline:
            how = f", {cpus.offline} are off line"
        line = f"{running} of {want.cpus} processors are on line{how}"
        lost = want.sockets and cpus.sockets and cpus.sockets < want.sockets and not cpus.offline
        if lost and not (want.threads and cpus.threads and cpus.threads < want.threads):
            line = f"{cpus.sockets} of {want.sockets} sockets, {line}"
            return [judged(FAIL, "host.socket-missing", "node", "replace", line)]
        return [judged(WARN, "host.cpu-count", "node", "warn", line)]
    least = want.numa_nodes or want.sockets
    if least and cpus.numa_nodes is not None and cpus.numa_nodes < least:
        line = f"{cpus.numa_nodes} NUMA nodes, at least {least} are in this type: placement beside a GPU's NICs is lost"
        return [judged(WARN, "host.numa", "node", "warn", line)]
    return []


def parse_meminfo(text: str) -> dict[str, int] | None:
    """Return /proc/meminfo as kB (pages where it counts pages), None where the total is not in it."""
    rows = (found for line in text.splitlines() if (found := _MEMINFO.match(line)))
    values = {row[1] or row[3]: int(row[2] or row[4]) for row in rows}
    return values if "MemTotal" in values else None


def judge_memory(values: Mapping[str, int], want: Expected, jobs: Jobs) -> list[Judged]:
    """Return what memory says: less than the type has, poisoned pages, or held though no job is here."""
    items = []
    total_mib = values["MemTotal"] / 1024
    checked = False
    if want.memory_mib is not None:
        checked = True
        if total_mib < MEMORY_SHARE * want.memory_mib:
            line = f"{total_mib / 1024:.0f} GiB of {want.memory_mib / 1024:.0f} GiB are there"
            items.append(judged(FAIL, "host.memory-missing", "node", "replace", line))
        elif want.memory_mib >= _LARGE_MIB and total_mib < MEMORY_NOTE_SHARE * want.memory_mib:
            line = f"{total_mib / 1024:.0f} GiB of {want.memory_mib / 1024:.0f} GiB are there"
            items.append(judged(WARN, "host.memory-short", "node", "warn", line))
    if poisoned := values.get("HardwareCorrupted", 0):
        line = f"{poisoned} kB of memory are taken out of use after hardware errors"
        items.append(judged(WARN, "host.memory-poisoned", "node", "warn", line))
    if jobs.none_here and "MemAvailable" in values:
        checked = True
        huge_kb = values.get("HugePages_Total", 0) * values.get("Hugepagesize", 0)
        free = (values["MemAvailable"] + huge_kb) / values["MemTotal"] if values["MemTotal"] else 1.0
        if free < AVAILABLE_SHARE:
            line = f"{free:.0%} of the memory is available, and no job is here (Shmem {values.get('Shmem', 0) // 1024**2} GiB)"
            items.append(judged(WARN, "host.memory-held", "node", "warn", line))
    if not checked and not items and jobs.ids is None:
        line = f"{total_mib / 1024:.0f} GiB; what it should have is not known"
        items.append(judged(UNKNOWN, "host.no-reference", "node", "none", line))
    return items


def judge_load(text: str, want: Expected, jobs: Jobs) -> list[Judged] | None:
    """Return what uptime or /proc/loadavg says, None where it is neither: without a job there is nothing to wait for."""
    found = _LOAD.search(text) or _LOADAVG.match(text.strip())
    if found is None:
        return None
    load = float(found[1]) if found[1].count(".") <= 1 and found[1] != "." else 0.0
    settling = jobs.since_end_s is not None and jobs.since_end_s < LOAD_SETTLES_S
    if not jobs.none_here or settling or load <= (want.cpus or 64) / 4:
        return []
    return [judged(WARN, "host.load", "node", "warn", f"load {load:g}, and no job is here")]
