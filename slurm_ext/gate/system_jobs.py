"""Processes of this node: what a job that is over left behind, what cannot be killed, zombies. Readers around pure rules.

A process is a job's where its control group says so, and never by its user or its name. A job is over where no slurmstepd of it
lives: slurmstepd names the step in its command line, `slurmstepd: [JOB.STEP]`, and lives as long as the step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from slurm_ext.gate import process_owner, process_rules, read_small
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.probes import EPILOG, HEALTH, Here
from slurm_ext.gate.process_rules import Jobs, Process
from slurm_ext.gate.system_quick import MANY_GROUPS, Seen
from slurm_ext.gate.tables import listed
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import WARN

#: A process list longer than this is not read to its end; then nothing is said of what is not in it.
MOST_PROCESSES = 20_000

#: Control groups and processes below one job that are looked at.
MOST_GROUPS = 256
MOST_PIDS = 1024

#: What sleeps in the kernel now and has not run so much later, has not moved (seconds).
APART_S = 0.25

_STEP = pattern(r"slurmstepd: \[(\d+)\.")
_GROUP = pattern(r"/job_(\d+)(?:/|$)")
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, linux/sched.h
_STEPD = "slurmstepd"


class Row(NamedTuple):
    """One process as /proc/PID/stat tells it (proc(5)); `start_s` is seconds since boot."""

    pid: int
    comm: str
    state: str
    flags: int
    threads: int
    start_s: float

    @property
    def is_kernel(self) -> bool:
        """Return whether it is a thread of the kernel."""
        return bool(self.flags & _KERNEL_THREAD)


class Scan(NamedTuple):
    """The processes that are not plainly well, the steps that live, and whether all of /proc was read."""

    stuck: tuple[Row, ...] = ()  # state D
    zombies: tuple[Row, ...] = ()
    stepds: tuple[int, ...] = ()
    names: frozenset[str] = frozenset()  # of all programs, the first 15 characters
    whole: bool = False


def parse_stat(text: str) -> Row | None:
    """Return one line of /proc/PID/stat; the name may hold blanks and brackets."""
    front, _, back = text.rpartition(")")
    number, _, name = front.partition(" (")
    fields = back.split()
    try:
        return Row(int(number), name, fields[0], int(fields[6]), int(fields[17]), int(fields[19]) / _TICKS)
    except (ValueError, IndexError):
        return None


_TICKS = os.sysconf("SC_CLK_TCK") or 100


def scan(here: Here) -> Scan:
    """Read one line of each process, MOST_PROCESSES at most. Command lines are not read: that waits for a stuck process."""
    folder = here.path("proc")
    stuck, zombies, stepds, names = [], [], [], set()
    try:
        pids = [name for name in os.listdir(folder) if read_small.is_number(name)]
    except OSError:
        return Scan()
    for pid in pids[:MOST_PROCESSES]:
        row = parse_stat(read_small.text(f"{folder}/{pid}/stat", 1024) or "")
        if row is None or row.is_kernel:
            continue
        names.add(row.comm)
        if row.state == "D":
            stuck.append(row)
        elif row.state == "Z":
            zombies.append(row)
        elif row.comm == _STEPD:
            stepds.append(row.pid)
    return Scan(tuple(stuck), tuple(zombies), tuple(stepds), frozenset(names), 0 < len(pids) <= MOST_PROCESSES)


def live(here: Here, found: Scan) -> frozenset[str] | None:
    """Return the jobs of which a step lives; None where the list of processes is not whole."""
    if not found.whole:
        return None
    # Anybody may give a program this name and these words.
    proc = here.path("proc")
    real = (pid for pid in found.stepds if process_owner.is_roots_own(proc, pid))
    lines = (read_small.text(f"{proc}/{pid}/cmdline", 256) or "" for pid in real)
    return frozenset(step[1] for line in lines if (step := _STEP.match(line)))


def jobs_of(here: Here, seen: Seen, alive: frozenset[str] | None) -> Jobs:
    """Return whose node this is now. The job of this very prolog has not begun, that of this epilog is over."""
    if alive is None and seen.jobs is None:
        return Jobs()
    ids = (alive or frozenset()) | frozenset(seen.lively)
    ids -= {here.job_id} if here.phase != HEALTH else set()
    users = {str(uid) for job in ids for uid in _users(here, (seen.jobs or {}).get(job, ""))}
    return Jobs(tuple(sorted(ids)), frozenset(users))


def _users(here: Here, group: str) -> set[int]:
    """Return the users of a job: version 1 has them in the folder's name, version 2 by its processes."""
    named = os.path.basename(os.path.dirname(group)).removeprefix("uid_")
    if read_small.is_number(named):
        return {int(named)}
    found = set()
    for pid in _below(group) if group else ():
        try:
            found.add(os.stat(here.path(f"proc/{pid}")).st_uid)
        except OSError:
            continue
    return found - {0}


def _below(group: str) -> list[int]:
    """Return the processes of a control group and of those below it."""
    pids: list[int] = []
    rest, seen = [group], 0
    while rest and seen < MOST_GROUPS and len(pids) < MOST_PIDS:
        folder, seen = rest.pop(), seen + 1
        said = read_small.text(f"{folder}/cgroup.procs", 1 << 14) or ""
        pids += [int(word) for word in said.split() if read_small.is_number(word)]
        try:
            with os.scandir(folder) as inside:
                rest += [entry.path for entry in inside if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
    return pids[:MOST_PIDS]


def leftovers(here: Here, seen: Seen) -> list[Judged]:
    """Return what is left of jobs that are over, by their control groups."""
    items = []
    own = (here.job_id,) if here.phase == EPILOG and here.job_id in (seen.jobs or {}) else ()
    found: Scan | None = None
    for job in (*own, *seen.lively):
        rows = _rows(here, _below((seen.jobs or {})[job]))
        # One that sleeps in the kernel is told of by what it means, and root's own helpers go by themselves.
        rows = [row for row in rows if row.state not in ("D", "Z")]
        if not rows or any(row.comm == _STEPD for row in rows):
            continue
        found = found or scan(here)
        if (alive := live(here, found)) is None or job in alive:
            continue
        shown = listed([f"pid {row.pid} {row.comm}" for row in rows], 3)
        line = f"{len(rows)} processes of job {job}, which is over, are still here: {shown}"
        items.append(judged(WARN, "process.leftover", "node", "warn", line))
    if len(seen.jobs or ()) >= MANY_GROUPS:
        line = f"{len(seen.jobs or ())} control groups of jobs: those of jobs that are over were not removed"
        items.append(judged(WARN, "cgroup.leftover", "node", "warn", line))
    return items


def _rows(here: Here, pids: Iterable[int]) -> list[Row]:
    rows = (parse_stat(read_small.text(here.path(f"proc/{pid}/stat"), 1024) or "") for pid in pids)
    return [row for row in rows if row is not None]


def stuck(here: Here, found: Scan, jobs: Jobs, alive: frozenset[str] | None) -> list[Judged]:
    """Return what sleeps in the kernel and cannot be killed, and what nobody reaps."""
    if not found.stuck and not found.zombies:
        return []
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    still = _unmoved(here, found.stuck)
    theirs: list[Process] = []  # of jobs that are over
    others: list[Process] = []
    for row in (*still, *found.zombies):
        job = _GROUP.search(read_small.text(here.path(f"proc/{row.pid}/cgroup"), 4096) or "")
        if job is not None and alive is not None and job[1] in alive and job[1] != _over(here):
            continue  # a job that runs may wait for its disk, and reaps its children itself
        process = process_of(here, row, now_s)
        (theirs if job is not None and alive is not None else others).append(process)
    items = process_rules.judge(theirs, Jobs(())) if theirs else []
    if others:
        items += process_rules.judge(others, jobs if jobs.none_here else Jobs())
    # Programs are told of by control group alone.
    kept = {item.finding.id: item for item in reversed(items) if item.finding.id != "process.leftover"}
    return list(kept.values())


def _over(here: Here) -> str:
    return here.job_id if here.phase == EPILOG else ""


def process_of(here: Here, row: Row, now_s: float) -> Process:
    """Return a row in the form of the rules. Users are numbers: asking for a name may wait for a directory service."""
    status = fields(read_small.text(here.path(f"proc/{row.pid}/status"), 4096) or "")
    waits = (read_small.text(here.path(f"proc/{row.pid}/wchan"), 128) or "").strip()
    # "0" is how the kernel says that it does not tell; an empty word would be read as a driver that is not named.
    waits = waits if waits not in ("", "0") else "not-told"
    many = "l" if row.threads > 1 else ""
    user = (status.get("Uid", "").split() or [""])[0]
    command = f"{row.comm} <defunct>" if row.state == "Z" else row.comm
    return Process(row.pid, user, row.state + many, waits, max(now_s - row.start_s, 0.0), command)


def fields(text: str) -> Mapping[str, str]:
    """Return the lines of /proc/PID/status by name."""
    return {name: value.strip() for line in text.splitlines() for name, colon, value in (line.partition(":"),) if colon}


def _unmoved(here: Here, rows: tuple[Row, ...]) -> list[Row]:
    """Return those that sleep in the kernel and have not run between two looks: the others only wait for a disk."""
    if not rows:
        return []
    before = {row.pid: _switches(here, row.pid) for row in rows}
    time.sleep(APART_S)
    after = {row.pid: row for row in _rows(here, before)}
    return [
        row
        for row in rows
        if (now := after.get(row.pid)) is not None
        and (now.state, now.start_s) == (row.state, row.start_s)
        and before[row.pid] == _switches(here, row.pid)
    ]


def _switches(here: Here, pid: int) -> tuple[str, ...]:
    status = fields(read_small.text(here.path(f"proc/{pid}/status"), 4096) or "")
    return tuple(status.get(name, "") for name in ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"))
