"""The node itself: processors, memory, clock, disks, space, processes, services.

The prolog reads some forty small files and is done where all is plainly well; only a subject that is not is judged by the long
rules. The epilog and the health check judge all subjects, the health check asks for processes and services besides.

In the prolog the quick look at Lustre is taken here, too, and both in the child that reads the other plain files: a child of
their own would cost three times what they read.
"""

from __future__ import annotations

from slurm_ext.aws import catalogue
from slurm_ext.gate import system_quick
from slurm_ext.gate.model import Judged
from slurm_ext.gate.probes import HEALTH, PROLOG, Here, Probed
from slurm_ext.verdict import FAIL, WARN

SUBJECTS = ("cpus", "memory", "disks", "arrays", "mounts", "space", "shm", "clock", "jobs", "files")

#: What takes a job away from a node in its prolog and epilog; everything else that fails is a warning there.
CONVICTS = ("fs.read-only", "memory.dimm-uncorrected")

#: The same, where the site has scratch folders (gate.nvme_dirs): without them no job is promised a local disk.
CONVICTS_WITH_SCRATCH = ("disk.nvme-missing", "disk.dead", "disk.read-only")

#: What convicts between jobs.
CONVICTS_IDLE = (
    *(*CONVICTS, *CONVICTS_WITH_SCRATCH, "host.memory-missing", "raid.", "disk.full", "disk.no-inodes"),
    *("process.unkillable", "service."),
)


def __getattr__(name: str) -> object:
    if name != "CHECKS":
        raise AttributeError(name)
    from slurm_ext.gate.system_checks import CHECKS  # for people: no hook needs them

    return CHECKS


def look(here: Here) -> Probed:
    """Look at the node, in the child."""
    shape = catalogue.host(here.instance_type())
    seen = system_quick.read(here)
    if here.phase != PROLOG:
        return _judge(here, seen, shape, SUBJECTS)
    subjects = system_quick.odd(seen, shape)
    items = _judge(here, seen, shape, subjects).items if subjects else ()
    kept = {"boot_s": seen.boot_s, "memory_errors": {name: list(each) for name, each in seen.memory_errors.items()}}
    return Probed((*items, *_lustre(here)), kept)


def _lustre(here: Here) -> tuple[Judged, ...]:
    """Return what the quick look at Lustre says; an error of ours in it costs its own answer alone."""
    from slurm_ext.gate import probe_lustre

    try:
        return probe_lustre.look(here).items
    except Exception:  # noqa: BLE001 - whatever it is, the node's own answer is worth more
        from slurm_ext.gate import probes

        return probes.answer("lustre", None).items


def _judge(here: Here, seen: system_quick.Seen, shape: catalogue.HostShape | None, subjects: tuple[str, ...]) -> Probed:
    """Judge the named subjects by the long rules, which are loaded here; between jobs say what was read well, too."""
    from slurm_ext.gate import system_host, system_jobs, system_storage

    found = system_jobs.Scan() if here.phase == PROLOG else system_jobs.scan(here)
    alive = system_jobs.live(here, found)
    jobs = system_jobs.jobs_of(here, seen, alive)
    items = system_host.judge(here, seen, shape, jobs, subjects)
    items += system_storage.judge(here, seen, shape, jobs, subjects)
    if "jobs" in subjects:
        items += system_jobs.leftovers(here, seen)
    items += system_jobs.stuck(here, found, jobs, alive)
    if seen.unread:  # the long rules read further files, and note what they cannot read
        from slurm_ext.gate import unread_rules

        items += unread_rules.judge(seen.unread)
    if here.phase == HEALTH:
        from slurm_ext.gate import system_readings, system_services

        asked = system_services.ask(here)
        told = system_services.look(here, found.names, asked)
        # A program that runs without systemd is known by its name: in a list that is not whole it may be left out.
        items += told if found.whole else [system_storage.noted(item) for item in told]
        read = system_readings.of(here, seen, shape, found, asked.text or "")
    items = narrowed(items, here.phase, scratch=bool(here.settings.gate.nvme_dirs))
    return Probed(tuple(items), {"read": read} if here.phase == HEALTH else {})


def narrowed(items: list[Judged], phase: str, *, scratch: bool) -> list[Judged]:
    """Return the items with those that fail, but do not convict in this phase, as warnings. Their advice stays."""
    certain = CONVICTS_IDLE if phase == HEALTH else CONVICTS
    local = CONVICTS_WITH_SCRATCH if scratch else ()
    free = () if scratch else CONVICTS_WITH_SCRATCH

    def convicts(item: Judged) -> bool:
        id_ = item.finding.id
        return id_.startswith((*certain, *local)) and not id_.startswith(free or ("\0",))

    return [item._replace(verdict=WARN) if item.verdict == FAIL and not convicts(item) else item for item in items]
