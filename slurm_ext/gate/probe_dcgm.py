"""What DCGM's diagnostic said when it ran last between jobs (hooks/slow_run.py): read, never run here. Where it never ran it
found nothing, and `gate/results.py` says so."""

from __future__ import annotations

import time

from slurm_ext.config.model import at_node
from slurm_ext.gate import read_small, slow_result
from slurm_ext.gate.probes import HEALTH, Check, Here, Probed

CHECKS: tuple[Check, ...] = (
    Check(
        "dcgm.",
        "dcgmi diag (gate.slow_check), the last result of this boot",
        "as its severity says: isolate and reset fail, else warn; dcgmi's own trouble is unknown",
        (HEALTH,),
        "r1 half a minute of idle GPUs, r2 minutes; detached, every gate.slow_every_h",
    ),
)


def look(here: Here) -> Probed:
    """Return the findings of the last slow check, and which level it was, where it still says something."""
    if here.settings.gate.slow_check == "off":
        return Probed()
    boot_id = (read_small.text(here.path("proc/sys/kernel/random/boot_id"), 64) or "").strip()
    last = slow_result.read(at_node(here.settings.site.run_dir, here.node))
    now = time.time()
    late = slow_result.overdue(here.settings.gate, last, now=now, boot_id=boot_id)
    notes = (late,) if late is not None else ()
    if last is None or not slow_result.counts(here.settings.gate, last, now=now, boot_id=boot_id):
        return Probed(notes)
    return Probed((*last.items, *notes), {"level": last.level, "ended_s": last.ended_s})
