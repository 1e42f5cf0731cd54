"""Jobs that a hook of ours stopped before they started: what it said of the attempt, and what kind of cause that is.

A hook holds a job only because a controller is alive to release it. So jobs that nobody watches are looked at, too: their
last attempt's mark on the share says that we stopped it, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_ext import shared
from slurm_ext.config.model import Settings
from slurm_ext.resume.gates import BY
from slurm_ext.resume.model import HOLD, REQUEUE_EXCLUDE, Cause
from slurm_ext.slurm.model import Job
from slurm_ext.verdict import FAIL, one_line

#: Reasons of a hold that a person (or an administrator) set: never ours to release.
PERSONS = ("JobHeldUser", "JobHeldAdmin")

#: The rule of the cause that `cause` returns.
RULE = "gate.stopped"

#: More names than this in a mark are no node list of a job (bytes are bounded by whoever reads the file).
_MOST_SUSPECTS = 4096


class Stop(NamedTuple):
    """What a hook said when it stopped an attempt: why, by which rule, whom it suspects, what the site wants (`policy`:
    requeue or hold), whether the burn-in failed or only learned nothing; and how many attempts in a row ended so."""

    reason: str
    suspects: tuple[str, ...] = ()
    times: int = 1
    rule: str = ""
    policy: str = ""
    failed: bool = False
    node: str = ""


def find(settings: Settings, cluster: str, job: Job, parts: Sequence[str] = ()) -> Stop | None:
    """Return how a hook of ours stopped the attempt before, where the job now waits for us; None where a person holds it.

    `parts` are the ids of the other components of a heterogeneous job: hooks leave their mark under their own.

    It waits for us where it is held, and where it was requeued plainly (no controller was alive) and Slurm lets it wait.
    """
    if job.state != "PENDING" or job.flags or job.restarts < 1 or job.reason in PERSONS:
        return None
    if job.priority != 0 and job.reason != "BeginTime":
        return None
    said = (mark(settings, cluster, job_id, job.restarts - 1) for job_id in (job.job_id, *parts))
    return next((stop for stop in said if stop is not None), None)


def mark(settings: Settings, cluster: str, job_id: str, restarts: int) -> Stop | None:
    """Return what a hook said when it stopped this attempt, or None where none did."""
    share = settings.site.share
    last = _read(share, cluster, job_id, restarts, shared.STOPPED_FILE)
    if not last or last.get("by") == BY:  # the controller only told the hooks what Slurm did not
        return None
    times = 1
    for earlier in range(restarts - 1, -1, -1):
        found = _read(share, cluster, job_id, earlier, shared.STOPPED_FILE)
        if not found or found.get("by") == BY:
            break
        times += 1
    burnin = _read(share, cluster, job_id, restarts, shared.BURNIN_FILE) or {}
    measured = burnin.get("measured")
    failed = burnin.get("verdict") == FAIL
    suspects = _names(last.get("suspects"))
    if not suspects and failed and isinstance(measured, dict):
        suspects = _names(measured.get("suspects"))
    policy = str(last.get("policy", ""))
    # Convicted nodes that the breaker left in use, each in a file of its own.
    if kept := _kept_in_use(share, shared.attempt_key(cluster, job_id, restarts)):
        suspects = tuple(dict.fromkeys([*suspects, *kept]))[:_MOST_SUSPECTS]
        said = _read(share, cluster, job_id, restarts, f"{shared.SUSPECT_PREFIX}{kept[0]}.json") or {}
        policy = policy or str(said.get("policy", ""))
    return Stop(
        one_line(str(last.get("reason", "")), 300),
        suspects,
        times,
        one_line(str(last.get("rule", "") or burnin.get("rule", "")), 60),
        one_line(policy, 20),
        failed,
        one_line(str(last.get("node", "")), 80),
    )


def _kept_in_use(share: str, attempt: str) -> tuple[str, ...]:
    try:
        return shared.suspects_in(shared.attempt_names(share, attempt) or ())
    except ValueError:
        return ()


def cause(stop: Stop) -> Cause:
    """Return the stop as a cause: nobody is convicted, suspects are to be left out, and a site may want the job held."""
    # Where the burn-in failed the nodes or their links are at fault, though not which; where it learned nothing, nobody is.
    word = "infra-fabric" if stop.failed else "scheduler"
    said = tuple(text for text in (f"{stop.node}: {stop.rule}: {stop.reason}",) if stop.reason)
    advice = HOLD if stop.policy == "hold" else REQUEUE_EXCLUDE
    root = f"{RULE} {stop.rule} {','.join(sorted(stop.suspects))}".strip()
    reason = f"stopped by the gate, not by its owner: {stop.reason}"
    return Cause(word, advice, RULE, 0.6, (), (), said, reason, root, suspects=stop.suspects)


def _names(listed: object) -> tuple[str, ...]:
    return tuple(str(name) for name in listed[:_MOST_SUSPECTS]) if isinstance(listed, list) else ()


def _read(share: str, cluster: str, job_id: str, restarts: int, name: str) -> dict[str, object] | None:
    if not share:
        return None
    try:
        path = shared.attempt_path(share, shared.attempt_key(cluster, job_id, restarts), name)
    except ValueError:
        return None
    return shared.read_json(path)
