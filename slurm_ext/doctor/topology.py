"""Doctor's part on topology: does the watch look, and does Slurm have where the nodes sit? `collect` looks, `rule` judges."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from slurm_ext.config.model import Settings
from slurm_ext.doctor.model import OK, WARN, Result
from slurm_ext.topology import memory

#: A watch that missed so many looks in a row does not look.
_MISSED = 3


class Watched(NamedTuple):
    """How long ago the watch looked (seconds; None: never here), since when Slurm differs from it (0: it does not), and whether
    a file was written that nobody saw Slurm take in."""

    looked_s: float | None = None
    differs_s: float = 0.0
    unconfirmed: bool = False


def collect(settings: Settings) -> Watched:
    """Return what the watch left on this machine."""
    now = time.time()
    at = memory.looked_at(settings)
    past = memory.read(settings).past
    differs_s = max(now - past.differs_since, 0.0) if past.differs else 0.0
    return Watched(None if at is None else max(now - at, 0.0), differs_s, bool(past.unconfirmed))


def rule(settings: Settings, found: Watched) -> Iterator[Result]:
    """Judge what was found. Pure."""
    mode = settings.mode.topology
    if mode == "off" or (found.looked_s is None and mode != "enforce"):
        return
    if found.looked_s is None or found.looked_s > _MISSED * settings.topology.watch_interval_min * 60:
        when = "has never looked here" if found.looked_s is None else f"looked {found.looked_s / 60:.0f} min ago"
        remedy = "Start fmslurm-topology where slurmctld runs; `fmslurm topology watch --once` says what is in its way"
        yield Result("topology.watch", WARN, f"the topology's watch {when}", remedy)
        return
    if found.unconfirmed:
        yield Result(
            "topology.drift",
            WARN,
            "a topology was written, and nobody saw Slurm take it in",
            "`fmslurm topology apply --dry-run`",
        )
    elif found.differs_s:
        text = f"nodes have not sat where Slurm has them for {found.differs_s / 60:.0f} min"
        yield Result("topology.drift", WARN, text, "`fmslurm topology check`, then `fmslurm topology apply --dry-run`")
    else:
        yield Result("topology.drift", OK, f"Slurm had each node where it sits {found.looked_s / 60:.0f} min ago")
