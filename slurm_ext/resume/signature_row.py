"""The shape of one row of the signature tables, and the sources most rows name."""

from __future__ import annotations

import re
from typing import NamedTuple


class Signature(NamedTuple):
    """One row: what to look for, what it means when it comes first, what then, and where the wording comes from."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    role: str
    advice: str
    spread: str = ""
    source: str = ""


def row(name: str, pattern: str, cause: str, role: str, advice: str, spread: str = "", source: str = "") -> Signature:
    """Return a row; the pattern is compiled once, at import."""
    return Signature(name, re.compile(pattern), cause, role, advice, spread, source)


TORCH = "pytorch torch/distributed, torch/cuda"
CUDA = "CUDA runtime API, cudaError values and their texts"
ERRNO = "errno(3) texts as libc and Python print them"
SLURM = "Slurm src/srun, src/slurmd/slurmstepd"
