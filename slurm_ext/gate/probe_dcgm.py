"""What DCGM's diagnostic said when it ran last between jobs (hooks/slow_run.py): read, never run here. Where it never ran it
found nothing, and `gate/results.py` says so."""

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
)


def look(here: Here) -> Probed:
    """Return the findings of the last slow check, and which level it was, where it still says something."""
    return Probed(*slow_result.of_node(here, slow_result.DCGM))
