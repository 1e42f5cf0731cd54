"""A full scratch folder where another job runs: that may be the job's own data, and takes the node out for nobody.

Where no other job is here it is what is left over: the next job would fail on it, and the node is drained. Loaded only where
a scratch folder is full.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from slurm_ext.config.model import at_node
from slurm_ext.gate import read_small
from slurm_ext.gate.model import Judged
from slurm_ext.gate.probes import HEALTH, Here
from slurm_ext.verdict import FAIL, WARN

ID = "disk.scratch-full"

#: How long (seconds) the child may take that looks at processes: a command line can hang that is read.
LOOK_S = 2.0


def convicts(item: Judged) -> bool:
    """Say whether a finding is of a full scratch folder, and fails."""
    return item.finding.id == ID and item.verdict == FAIL


def narrow(items: Iterable[Judged], here: Here) -> list[Judged]:
    """Return the items with a full scratch folder as a warning where another job is on the node, or may be."""
    found = list(items)
    if not any(map(convicts, found)):
        return found
    why = others(here)
    return [noted(item, why) if why and convicts(item) else item for item in found]


def noted(item: Judged, why: str) -> Judged:
    """Return a finding as a warning, with why. Pure."""
    finding = item.finding
    line = f"{why}: the space may be in use, so the node is not taken out for it"
    return Judged(finding._replace(action="warn", evidence=(*finding.evidence, line)), WARN)


def others(here: Here) -> str:
    """Return in words which other job is here, empty where none is: one with a step, or with the file that its prolog left."""
    from slurm_ext.command import call_bounded

    answer = call_bounded(lambda: " ".join(_others(here)).encode(), timeout_s=LOOK_S)
    if answer is None:
        return "whether another job is here was not to be found out in time"
    said = answer.decode("ascii", "replace").split()
    return f"job {said[0]} is here" if said else ""


def _others(here: Here) -> list[str]:
    from slurm_ext.gate import system_jobs, system_quick

    found: set[str] = set()
    alive = system_jobs.live(here, system_jobs.scan(here))
    if alive is not None:
        found |= alive
    else:  # control groups tell less: what a job left running is in them, too
        groups = system_quick.job_folders(read_small.Files(here.root), here.node) or {}
        found |= {job for job, path in groups.items() if system_quick.has_processes(path)}
    try:
        names = os.listdir(os.path.join(at_node(here.settings.site.run_dir, here.node), "jobs"))
    except FileNotFoundError:
        names = []
    found |= {name[:-5] for name in names if name.endswith(".json") and read_small.is_number(name[:-5])}
    if here.phase != HEALTH:
        found.discard(here.job_id)  # it has not begun, or it is over
    return sorted(found)
