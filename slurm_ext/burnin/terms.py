"""What an agent goes by: its times, and the terms under which it would lead, with what the share knows of the nodes."""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple

from slurm_ext.burnin import gate, history, rules, surroundings
from slurm_ext.burnin.cohort import Terms
from slurm_ext.burnin.model import BurninJob
from slurm_ext.burnin.thresholds import Relative
from slurm_ext.config.model import Settings, at_node

#: How long (seconds) a leader reads what the share knows of its nodes, while they are on their way.
HISTORY_S = 2.0


class Times(NamedTuple):
    """How long (seconds) an agent may take: in all; for nodes that are all there; beyond that, for those that come late."""

    total_s: float
    work_s: float
    late_s: float
    sustain_s: float
    limits: rules.Limits


def times(job: BurninJob, settings: Settings, total_s: float) -> Times:
    """Return the times of an agent whose hook waits for `total_s` (seconds)."""
    burnin = settings.burnin
    work_s = min(total_s, gate.work_s(burnin, nodes=len(job.nodes), strict=job.strict))
    sustain_s = burnin.strict_sustain_s if job.strict else burnin.sustain_s
    limits = rules.limits(work_s, nodes=len(job.nodes), group_nodes=burnin.group_nodes, sustain_s=sustain_s)
    return Times(total_s, work_s, min(burnin.late_s, total_s - work_s), sustain_s, limits)


def terms(
    job: BurninJob,
    settings: Settings,
    times: Times,
    *,
    rendezvous_s: float,
    deadline_s: float,
    prove: bool,
    survey: bool,
) -> Terms:
    """Return the terms under which this node leads. What the share does not tell in time is not known."""
    burnin, share = settings.burnin, settings.site.share
    now = time.time()
    known = history.Look()
    if not survey and burnin.history_d > 0:
        state_dir = at_node(settings.site.state_dir, job.node)
        known = history.look(
            share, job.nodes, now=now, history_d=burnin.history_d, state_dir=state_dir, timeout_s=HISTORY_S
        )
    return Terms(
        nodes=job.nodes,
        gpus=job.gpus,
        instance_type=job.instance_type,
        message_bytes=burnin.message_bytes,
        iterations=burnin.iterations,
        floor_busbw_gbs=burnin.floor_busbw_gbs,
        pair_floor_busbw_gbs=burnin.pair_floor_busbw_gbs,
        rendezvous_s=rendezvous_s,
        deadline_s=deadline_s,
        prove_efa=prove,
        survey=survey,
        late_s=times.late_s,
        sustain_s=0.0 if survey else times.sustain_s,
        strict=job.strict,
        leaves=surroundings.leaves(share, job.nodes) if len(job.nodes) > 2 else {},
        group_nodes=burnin.group_nodes,
        priors=known.pasts,
        relative=Relative(
            percent=burnin.relative_percent,
            act=burnin.relative_act,
            history_d=burnin.history_d,
            runs=known.runs,
            now=now,
            driver=driver_version(at_node(settings.site.root, job.node)),
            sustained=times.sustain_s > 0 and not survey,
        ),
        me=job.node,
        silence_s=times.limits.silence_s,
    )


def driver_version(root: str) -> str:
    """Return the version of the NVIDIA driver by the kernel module's own file, empty where there is none."""
    try:
        with open(os.path.join(root, "proc/driver/nvidia/version"), encoding="ascii", errors="replace") as stream:
            found = re.search(r"\b\d{3,4}\.\d+(?:\.\d+)?\b", stream.readline(400))
    except OSError:
        return ""
    return found.group() if found else ""
