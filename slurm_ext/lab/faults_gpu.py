"""Faults of one GPU that shows while or after a job runs: NVLinks, memory that stays, time held down by its heat."""

from __future__ import annotations

import re

from slurm_ext.lab import hardware
from slurm_ext.lab.fault_site import Site

_KEYS = re.compile(r"gpu\.\d+\.(nvlinks|memory_used_mib|hw_thermal_us|tlimit)")


def nvlink_down(site: Site) -> str:
    """One of its eighteen links is down."""
    gpu = site.gpu()
    site.set(**{f"gpu__{gpu}__nvlinks": "17"})
    return f"GPU {gpu}: 17 of 18 NVLinks are up"


def memory_left(site: Site) -> str:
    """Its memory is in use, and no program is listed."""
    gpu = site.gpu()
    site.set(**{f"gpu__{gpu}__memory_used_mib": "40960"})
    return f"GPU {gpu}: 40960 MiB in use, and no program holds them"


def hot(site: Site) -> str:
    """It has been held down by its heat for a thousand hours more, whatever the job's length, and has no degrees left."""
    gpu = site.gpu()
    site.set(**{f"gpu__{gpu}__hw_thermal_us": "3600000000000", f"gpu__{gpu}__tlimit": "-1"})
    return f"GPU {gpu}: held down by hardware for its heat"


def heal(site: Site) -> str:
    """As after a reset."""
    state = hardware.read_state(site.root)
    hardware.write_state(site.root, {key: value for key, value in state.items() if not _KEYS.fullmatch(key)})
    return "all GPUs are cool, empty and linked"
