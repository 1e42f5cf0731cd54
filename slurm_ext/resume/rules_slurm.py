"""Rules on what Slurm recorded about the job and about lost nodes; of the log they read Slurm's own lines only."""

from __future__ import annotations

import re

from slurm_ext.resume.facts import (
    CAPACITY,
    LOST,
    SPOT,
    Facts,
    planned,
)
from slurm_ext.resume.model import HOLD, NONE, REQUEUE, REQUEUE_EXCLUDE, WAIT_REQUEUE, Cause

_NODE_FAILURE = re.compile(r"error: \*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ DUE TO NODE FAILURE")
_SRUN_LOST = re.compile(r"(?:srun|salloc): error: Node failure on (\S+)")
_PREEMPTED = re.compile(r"DUE TO PREEMPTION")


def everybody(facts: Facts, but: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return all nodes of the job, those of earlier runs included, without `but`."""
    return tuple(node for node in dict.fromkeys((*facts.slurm.nodes, *facts.slurm.previous_nodes)) if node not in but)


def held(facts: Facts) -> Cause | None:
    """Slurm itself holds the job and says why."""
    reason = facts.slurm.reason
    if facts.slurm.state == "CANCELLED":
        return None  # why it was pending until somebody cancelled it: a hold of ours would bring it back
    said = (f"Slurm: reason {reason}",)
    lower = reason.lower().replace("_", " ")
    if "user env retrieval" in lower:
        return Cause(
            "scheduler",
            HOLD,
            "slurm.held-user-env",
            0.95,
            (),
            everybody(facts),
            said,
            "Slurm could not read the user's environment and holds the job",
            "held-user-env",
        )
    if "launch failure limit" in lower or "jobholdmaxrequeue" in lower.replace(" ", ""):
        return Cause(
            "scheduler",
            HOLD,
            "slurm.held-max-requeue",
            0.95,
            (),
            (),
            said,
            "Slurm gave up after too many failed launches",
            "held-max-requeue",
        )
    if any(
        word in lower
        for word in (
            "invalid account",
            "invalidaccount",
            "invalidqos",
            "invalid qos",
            "badconstraints",
            "bad constraints",
            "associationjoblimit",
            "partitionnodelimit",
            "partitiontimelimit",
        )
    ):
        return Cause(
            "user-config",
            HOLD,
            "slurm.held-limits",
            0.9,
            (),
            everybody(facts),
            said,
            "the job asks for what its account, QOS or partition does not give",
            "held-limits",
        )
    if "dependencyneversatisfied" in lower.replace(" ", ""):
        return Cause(
            "user-config",
            HOLD,
            "slurm.held-dependency",
            0.9,
            (),
            everybody(facts),
            said,
            "a job this one waits for did not end well",
            "held-dependency",
        )
    return None


def cancelled(facts: Facts) -> Cause | None:
    """Somebody cancelled the job, which is no failure."""
    if facts.slurm.state != "CANCELLED":
        return None
    uid = facts.slurm.cancelled_by_uid
    if uid < 0 and (_lost_nodes(facts) or any(_PREEMPTED.search(one.text) for one in facts.last)):
        return None
    own = uid >= 0 and uid == facts.slurm.job_uid
    who = "its owner" if own else f"uid {uid}" if uid >= 0 else "somebody"
    return Cause(
        "user-cancel",
        NONE,
        "slurm.cancelled",
        0.95 if uid >= 0 else 0.7,
        (),
        everybody(facts),
        (f"Slurm: CANCELLED by {who}",),
        f"the job was cancelled by {who}",
        "cancelled",
    )


def preempted(facts: Facts) -> Cause | None:
    """Slurm gave the nodes to another job."""
    line = next((one.text for one in facts.last if _PREEMPTED.search(one.text)), "")
    if facts.slurm.state != "PREEMPTED" and not (
        line and facts.slurm.state in ("", "CANCELLED", "FAILED", "REQUEUED", "PENDING")
    ):
        return None
    return Cause(
        "preemption",
        REQUEUE,
        "slurm.preempted",
        0.95,
        (),
        everybody(facts),
        (line or "Slurm: PREEMPTED",),
        "Slurm preempted the job",
        "preempted",
    )


def no_machine(facts: Facts) -> Cause | None:
    """A cloud machine could not be started."""
    said = [(node, event) for node, event in facts.events if CAPACITY.search(event.text)]
    if facts.slurm.state != "BOOT_FAIL" and not (
        said and facts.slurm.state in ("NODE_FAIL", "PENDING", "FAILED", "CONFIGURING") and not facts.progressed
    ):
        return None
    lines = tuple(f"{node}: {event.source}: {event.text}" for node, event in said[:3]) or ("Slurm: BOOT_FAIL",)
    return Cause(
        "capacity",
        WAIT_REQUEUE,
        "node.no-capacity",
        0.9 if said else 0.7,
        (),
        everybody(facts),
        lines,
        "the cloud could not start the machines",
        "capacity",
    )


def _lost_nodes(facts: Facts) -> dict[str, str]:
    """Return the nodes that were lost, each with the line that says so. slurmstepd's host is only the reporter."""
    lost: dict[str, str] = {}
    if facts.slurm.failed_node:
        lost[facts.slurm.failed_node] = f"Slurm: failed node {facts.slurm.failed_node}"
    for one in facts.last:
        if found := _SRUN_LOST.search(one.text):
            for node in facts.slurm.nodes:
                if node == found.group(1) or node in found.group(1).split(","):
                    lost.setdefault(node, one.text)
    return lost


def _said_so(text: str) -> bool:
    """Say whether a line is slurmstepd's word that a node failed: all that is left where Slurm has requeued the job already."""
    return _NODE_FAILURE.search(text) is not None


def node_lost(facts: Facts) -> Cause | None:
    """A node went away under the job: reclaimed, under maintenance, or broken."""
    lost = _lost_nodes(facts)
    failed = facts.slurm.state == "NODE_FAIL" or (
        not facts.slurm.state and any(_said_so(one.text) for one in facts.last)
    )
    if failed and not lost:
        for node, event in facts.events:
            if LOST.search(event.text) or SPOT.search(event.text):
                lost[node] = f"{node}: {event.source}: {event.text}"
    if not lost:
        if not failed:
            return None
        return Cause(
            "infra-node",
            REQUEUE,
            "slurm.node-fail",
            0.6,
            (),
            (),
            ("Slurm: NODE_FAIL", *(one.text.strip() for one in facts.last if _said_so(one.text)))[:3],
            "a node was lost, and nothing tells which",
            "node-fail",
        )
    for node in lost:
        spot = [event for event in facts.at(node) if SPOT.search(event.text)]
        if spot:
            lines = (f"{node}: {spot[0].source}: {spot[0].text}", lost[node])
            return Cause(
                "preemption",
                REQUEUE,
                "node.spot",
                0.95,
                (),
                everybody(facts),
                lines,
                f"the spot machine of {node} was reclaimed",
                "spot",
            )
    for node in lost:
        due = [event for event in facts.at(node) if planned(event, facts.end)]
        if due:
            lines = (f"{node}: {due[0].source}: {due[0].text}", lost[node])
            return Cause(
                "maintenance",
                REQUEUE_EXCLUDE,
                "node.maintenance",
                0.9,
                (node,),
                everybody(facts, (node,)),
                lines,
                f"{node} went into planned maintenance",
                f"maintenance {node}",
            )
    culprits = tuple(lost)
    said = [f"{node}: {event.source}: {event.text}" for node in lost for event in facts.at(node)[-2:]]
    return Cause(
        "infra-node",
        REQUEUE_EXCLUDE,
        "node.lost",
        0.9,
        culprits,
        everybody(facts, culprits),
        (*lost.values(), *said)[:6],
        f"{', '.join(culprits)} was lost under the job",
        f"node-lost {','.join(sorted(culprits))}",
    )
