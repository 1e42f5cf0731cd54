"""What Slurm says of this node beside what the node shows: told by a health check, and never acted on. Pure.

Of the rules by which views of Slurm are judged in captures (slurm_node_rules.py) the live gate uses none that speaks of drains:
whoever reads them has asked Slurm already. What Slurm hands out and what is there is compared nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection

from slurm_ext.gate.model import Judged, Smi, judged
from slurm_ext.patterns import pattern
from slurm_ext.verdict import WARN

_GPUS = pattern(r"(?:^|,)gpu(?::[^:,()]+)?:(\d{1,4})(?=[(,]|$)")


def gpus_in(gres: str) -> int | None:
    """Return how many whole GPUs a node's Gres has (`gpu:h100:8(S:0-1),nvme:1`); None where it has none, or of another form."""
    counts = [int(found[1]) for found in _GPUS.finditer(gres)]
    return sum(counts) if counts and len(counts) == gres.count("gpu:") else None


def judge(gpus: int | None, smi: Smi | None, found: Collection[str]) -> list[Judged]:
    """Return the warning that Slurm hands out another number of GPUs than are here.

    `gpus` is Slurm's, `found` are ids of what the look has found: a GPU that is gone is told of by its own finding. Where the
    list is not whole, or GPUs are in parts (MIG), which Slurm counts one by one, nothing can be said.
    """
    if gpus is None or smi is None or smi.timed_out or smi.exit_code != 0 or not smi.complete or smi.excerpt:
        return []
    if not smi.gpus or len(smi.gpus) == gpus or any(gpu.mig for gpu in smi.gpus) or "gpu.missing" in found:
        return []
    line = f"Slurm hands out {gpus} GPUs here (Gres), nvidia-smi lists {len(smi.gpus)}"
    return [judged(WARN, "slurm.gres-differs", "node", "warn", line)]
