"""Memory errors that ECC corrected: no fault, and in their millions worth a word. Pure.

NVIDIA names no count from which a GPU is bad. Its catalogue answers Xid 92 (a high rate of them) with nothing to be done, its
guide to memory errors counts rows and uncorrected errors alone, and DCGM's own limit of 10 is marked as a dummy value
(common/DcgmGPUHardwareLimits.h). So this never takes a node away: what the errors lead to (rows remapped, uncorrected errors,
the SRAM threshold) is judged by itself.
"""

from __future__ import annotations

from slurm_ext.gate.model import Gpu, Judged, judged
from slurm_ext.gate.smi import MANY_CORRECTED
from slurm_ext.verdict import WARN


def judge_corrected(gpu: Gpu) -> list[Judged]:
    """Return whether so many errors were corrected on one GPU that a person should know."""
    if (gpu.ecc_corrected or 0) < MANY_CORRECTED:
        return []
    line = f"{gpu.ecc_corrected} corrected ECC errors since the driver loaded, {MANY_CORRECTED} are worth a word"
    return [judged(WARN, "gpu.ecc-corrected-many", gpu.target, "warn", line)]
