"""Does somebody else repair this node right now? Then fmslurm neither drains nor resumes it. Pure.

Sources: SageMaker HyperPod's guide for Slurm (a node is handed to its repair by `scontrol update node=... state=fail
reason="Action:Replace"` or `"Action:Reboot"`; deep health checks hold nodes in a maintenance reservation), scontrol(1) for the
flags, AWS PCS API_HealthMonitoring (replaces or isolates by itself, and writes its own reason). Standard library only.
"""

from __future__ import annotations

from slurm_ext.slurm.model import Node
from slurm_ext.verdict import is_ours, one_line

#: Reasons by which HyperPod is asked for a repair.
HYPERPOD_ACTION = "Action:"

#: Flags of a node that reboots or that Slurm switches on or off: what it shows now says nothing about what it will be.
UNDER_WAY = (
    "POWERED_DOWN",
    "POWERING_DOWN",
    "POWERING_UP",
    "POWER_DOWN",
    "REBOOT_ISSUED",
    "REBOOT_REQUESTED",
)


def by_others(node: Node, site_type: str) -> str:
    """Return in words who else has this node in hand; empty where nobody has. `site_type`: see `site_policy.kind`."""
    if node.reason.startswith(HYPERPOD_ACTION):
        return f"HyperPod was asked to repair it: {one_line(node.reason, 80)}"
    if "FAIL" in node.flags and not is_ours(node.reason):
        return f"it was set to FAIL by {node.reason_user or 'somebody'}: {one_line(node.reason, 80)}"
    if site_type == "hyperpod" and "MAINTENANCE" in node.flags:
        return "HyperPod holds it in a maintenance reservation, as its deep health checks do"
    under_way = [flag for flag in UNDER_WAY if flag in node.flags]
    if under_way and not (node.drained and is_ours(node.reason)):
        return f"it is {under_way[0]} by somebody's order" if node.reason else ""
    return ""


def not_to_resume(node: Node, site_type: str) -> str:
    """Return in words why a node that we drained is not to be resumed now; empty where nothing of the kind speaks against it."""
    if words := by_others(node, site_type):
        return words
    for flag in (*UNDER_WAY, "MAINTENANCE", "NOT_RESPONDING", "FAIL"):
        if flag in node.flags:
            return f"it is {flag}"
    # DOWN is what a reboot makes of a node (unless ReturnToService is 2); the reason that we set stays, and so does DRAIN.
    return f"it is {node.state or 'unknown'}" if node.state in ("ERROR", "FUTURE", "UNKNOWN", "") else ""
