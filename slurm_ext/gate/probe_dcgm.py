"""What DCGM says between jobs: its diagnostic when it ran last (hooks/slow_run.py; never run here), and its own health watches,
which are asked now. Where the diagnostic never ran it found nothing, and `gate/results.py` says so."""

from __future__ import annotations

from slurm_ext.gate import slow_result
from slurm_ext.gate.probes import HEALTH, Check, Here, Probed

CHECKS: tuple[Check, ...] = (
    Check(
        "dcgm.",
        "dcgmi diag (gate.slow_check), the last result of this boot",
        "as its severity says: isolate and reset fail, else warn; dcgmi's own trouble is unknown",
        (HEALTH,),
        "r1 half a minute of idle GPUs, r2 minutes; detached, every gate.slow_every_h",
    ),
    Check(
        "dcgm-health.",
        "what DCGM's daemon watches (gate.dcgm_health); what nvidia-smi or the kernel tells, too, comes out as theirs",
        "warn; memory beyond repair and a recovery that is asked for: fail, unless nvidia-smi reads otherwise; else unknown",
        (HEALTH,),
        "one dcgmi, where there is one",
    ),
)


def look(here: Here) -> Probed:
    """Return the findings of the last slow check and which level it was, and what DCGM's watches say."""
    items, kept = slow_result.of_node(here, slow_result.DCGM)
    if here.settings.gate.dcgm_health == "off":
        return Probed(items, kept)
    from slurm_ext.gate import ask_dcgm

    watched, why = ask_dcgm.watches(here)
    return Probed((*items, *watched), {**kept, "watches": why})
