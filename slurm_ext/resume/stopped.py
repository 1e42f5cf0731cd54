"""Jobs that a hook of ours stopped before they started: released again, whether or not they asked to be brought back.

A hook holds a job only because a controller is alive to release it. So a job that nobody watches is looked at here: its
last attempt's mark on the share says that we stopped it, and nothing else does.
"""

from __future__ import annotations

from typing import NamedTuple

from slurm_ext import shared
from slurm_ext.config.model import Settings
from slurm_ext.resume.gates import BY
from slurm_ext.slurm.act import Context, exclude_nodes, release_job
from slurm_ext.slurm.model import Job
from slurm_ext.slurm.protocol import Slurm

#: Reasons of a hold that a person (or an administrator) set: never ours to release.
PERSONS = ("JobHeldUser", "JobHeldAdmin")


class Stop(NamedTuple):
    """Why a hook stopped the attempt before, which nodes it suspects, and how many attempts in a row ended so."""

    reason: str
    suspects: tuple[str, ...] = ()
    times: int = 1


def find(settings: Settings, cluster: str, job: Job) -> Stop | None:
    """Return how a hook of ours stopped a job that is now held, or None where it did not, or a person holds it."""
    if job.state != "PENDING" or job.flags or job.priority != 0 or job.restarts < 1 or job.reason in PERSONS:
        return None
    share = settings.site.share
    times = 0
    reason = ""
    for restarts in range(job.restarts - 1, -1, -1):
        found = _read(share, cluster, job.job_id, restarts, shared.STOPPED_FILE)
        if not found or found.get("by") == BY:  # the controller only told the hooks what Slurm did not
            break
        times += 1
        reason = reason or str(found.get("reason", ""))
    if not times:
        return None
    burnin = _read(share, cluster, job.job_id, job.restarts - 1, shared.BURNIN_FILE) or {}
    measured = burnin.get("measured")
    named = measured.get("suspects", []) if isinstance(measured, dict) and burnin.get("verdict") == "fail" else []
    suspects = tuple(str(name) for name in named) if isinstance(named, list) else ()
    return Stop(reason, suspects, times)


def free(slurm: Slurm, settings: Settings, job: Job, stop: Stop, *, now: float, events_path: str, mode: str) -> bool:
    """Set aside the suspects and let the job start again, at most `resume.infra` times in a row; say whether it was let.

    Beyond that it stays held, and `fmslurm why` says so: sending it round again would help nobody.
    """
    if stop.times > max(settings.resume.infra, 1):
        return False
    context = Context("resume", now, events_path, job=job.job_id, partition=job.partition, mode=mode)
    reason = f"stopped by the gate, not by its owner: {stop.reason}"
    if stop.suspects:
        exclude_nodes(slurm, settings, job.job_id, stop.suspects, rule="gate.stopped", reason=reason, context=context)
    outcome = release_job(
        slurm, settings, job.job_id, rule="gate.stopped", reason=reason, context=context, start_now=True
    )
    return outcome.done


def _read(share: str, cluster: str, job_id: str, restarts: int, name: str) -> dict[str, object] | None:
    if not share:
        return None
    try:
        path = shared.attempt_path(share, shared.attempt_key(cluster, job_id, restarts), name)
    except ValueError:
        return None
    return shared.read_json(path)
