"""What Slurm's word on a job says about nodes: does the record point at one? Pure.

Sources: the state and reason tables of Slurm's documentation (job_state_codes, job_reason_codes), job_mgr.c for the
texts of held jobs, node_scheduler.c for those of jobs that wait for nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.slurm_views import JobView
from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.slurm.states import JOB_WORDS
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

#: After this a completing job is not on its ordinary way out: KillWait (30 s) and UnkillableStepTimeout (60 s, sites go
#: to some minutes) and an epilog have passed (slurm.conf(5)).
COMPLETING_LONG_S = 600.0
#: The longest usual ResumeTimeout, ParallelCluster's; a node that boots longer has failed to.
CONFIGURING_LONG_S = 1800.0
#: A prolog that runs longer than this hangs.
PROLOG_LONG_S = 600.0
#: Slurm itself holds a job after so many failed launches (MaxBatchRequeue's default, slurm.conf(5)).
RESTARTS_MANY = 5
#: Nodes named for one job at most.
_NODES_MAX = 256

#: Ends that are the job's own affair or a person's.
_ENDED = ("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "CANCELLED", "PREEMPTED", "REVOKED")
_REQUEUED = ("REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "EXPEDITING")
#: Somebody must release such a job; a node, not named any more, did not launch it.
_LAUNCH_HELD = ("launch failed requeued held", "launch failure limit exceeded requeued held", "jobholdmaxrequeue")
#: The site's affair, not a node's.
_OTHER_HELD = ("user env retrieval failed requeued held",)


def judge(jobs: Iterable[JobView], *, now_s: float | None = None) -> list[Judged]:
    """Return what the records of jobs say. `now_s` is the time of the view in seconds, None where it is not known."""
    return [item for job in jobs for item in _judge(job, now_s)]


def _judge(job: JobView, now_s: float | None) -> list[Judged]:
    target = f"job:{job.job_id}"
    line = " ".join(filter(None, ("+".join(sorted(job.states)), job.reason, job.nodes)))
    unknown = sorted(job.states - JOB_WORDS)
    if unknown or not job.states:
        told = ", ".join(unknown) or "no state"
        return [judged(UNKNOWN, "slurm.job-state-unknown", target, "none", f"no known release says {told}", line)]
    by_node = _by_node(job, target, line)
    if by_node:
        return by_node
    waits = _waits_long(job, now_s, target, line)
    if waits:
        return waits
    if "COMPLETING" in job.states:
        return []
    reason = job.reason.lower()
    if reason in _LAUNCH_HELD or reason in _OTHER_HELD:
        return [judged(WARN, "slurm.job-held", target, "warn", line)]
    if "unavailablenodes:" in reason.replace(" ", ""):
        return [judged(WARN, "slurm.job-nodes-unavailable", target, "warn", line)]
    if job.restarts >= RESTARTS_MANY:
        return [judged(WARN, "slurm.job-restarts-many", target, "warn", f"{line}, restarted {job.restarts} times")]
    ended = next((word for word in (*_ENDED, *_REQUEUED) if word in job.states), "")
    if ended:
        return [judged(PASS, f"slurm.job-{ended.lower().replace('_', '-')}", target, "none", line)]
    if job.restarts > 0:
        return [judged(PASS, "slurm.job-restarted", target, "none", f"{line}, restarted {job.restarts} times")]
    return []


def _by_node(job: JobView, target: str, line: str) -> list[Judged]:
    """Return what is told of a job that a node ended or did not start."""
    failed = _names(job.failed)
    if failed:
        return [judged(FAIL, "slurm.node-fail", f"node:{name}", "drain", line) for name in failed]
    ended = "NODE_FAIL" in job.states or "BOOT_FAIL" in job.states
    if ended or (job.reason in ("NodeDown", "BootFail") and {"FAILED", "COMPLETING"} & job.states):
        id_ = "slurm.boot-fail" if "BOOT_FAIL" in job.states else "slurm.node-fail"
        names = _names(job.nodes)
        # While it completes the list shrinks to the nodes that are left: the one that failed is not among them.
        if len(names) == 1 and "COMPLETING" not in job.states:
            return [judged(FAIL, id_, f"node:{names[0]}", "drain", line)]
        return [judged(UNKNOWN, f"{id_}-unnamed", target, "none", f"{line}: which node, the record does not say")]
    if job.reason in ("JobLaunchFailure", "SystemFailure") or {"LAUNCH_FAILED", "RECONFIG_FAIL"} & job.states:
        if job.reason.lower() in _LAUNCH_HELD:
            return []
        text = f"{line}: a node, a file system or the script, the record does not say"
        return [judged(UNKNOWN, "slurm.job-launch-failed", target, "none", text)]
    return []


def _waits_long(job: JobView, now_s: float | None, target: str, line: str) -> list[Judged]:
    """Return what is told of a job that is longer in a state of passage than that takes."""
    if "COMPLETING" in job.states:
        id_, since_s, limit_s = "completing", job.end_s, COMPLETING_LONG_S
    elif {"CONFIGURING", "POWER_UP_NODE"} & job.states:
        id_, since_s, limit_s = "configuring", job.start_s, CONFIGURING_LONG_S
    elif "RUNNING" in job.states and job.reason == "Prolog":
        id_, since_s, limit_s = "prolog", job.start_s, PROLOG_LONG_S
    else:
        return []
    age_s = now_s - since_s if now_s is not None and since_s is not None else None
    if age_s is None and id_ != "completing":  # its run time ended with it
        age_s = job.ran_s
    if age_s is None or age_s <= limit_s:
        return []
    text = f"{line}: for {age_s:.0f} s"
    # While it completes a job's node list shrinks to the nodes that hold it; else only a sole node is the one.
    names = _names(job.nodes)
    names = names if id_ == "completing" or len(names) == 1 else []
    items = [judged(WARN, f"slurm.job-{id_}-long", target, "warn", text)]
    return items + [judged(WARN, f"slurm.{id_}-node", f"node:{name}", "warn", text) for name in names]


def _names(text: str) -> list[str]:
    try:
        return expand(text, limit=_NODES_MAX)
    except HostlistError:
        return []
