"""What becomes of a node that fmslurm drained, by the kind of site: which acts are somebody else's.

fmslurm drains, and resumes on proof; it reboots, replaces and terminates nothing by itself. Where the site has a repair of its
own that one is left alone (repair.py says when it has a node in hand), and the event of a drain says what will follow.

Sources (read 2026-11): ParallelCluster's guide (slurm-cluster-capacity-size-and-update: instances are terminated when a node
goes to DRAIN or DOWN; processes-v3: static nodes are replaced; launch-instances-capacity-blocks: MinCount equals MaxCount, all
nodes come from the reservation, which ends). AWS PCS API_HealthMonitoring and API_DeepHealthCheckOnStart (repairAction AUTO,
REPLACE, ISOLATE or NONE, by PCS's own finding). SageMaker HyperPod's guide for Slurm (node recovery Automatic reboots or replaces
what its own agent finds; by hand it is asked for with `state=fail reason="Action:Replace"` or `"Action:Reboot"`).
"""

from __future__ import annotations

import os

from slurm_ext.config.model import Settings, at_node
from slurm_ext.typed import NamedTuple

#: File that only this kind of site has -> the kind; first hit wins. ParallelCluster writes cfnconfig on every node
#: (aws-parallelcluster-cookbook), PCS ships its scheduler below /opt/aws/pcs (PCS user guide, installers), HyperPod
#: hands its lifecycle scripts /opt/ml/config/resource_config.json (SageMaker HyperPod developer guide). Checked 2025-10.
MARKS: tuple[tuple[str, str], ...] = (
    ("etc/parallelcluster/cfnconfig", "parallelcluster"),
    ("opt/aws/pcs/scheduler", "pcs"),
    ("opt/ml/config/resource_config.json", "hyperpod"),
)

#: Advice that somebody has to carry out beyond a drain.
ACTS = ("reset-gpu", "reboot", "replace")


class Afterwards(NamedTuple):
    """Who does what after a drain: `left_to` does it without us (empty: nobody does), `terminates` says whether the instance
    is gone then and with it all that was not saved, `words` tell it to people."""

    left_to: str
    terminates: bool
    words: str


def kind(settings: Settings, node: str = "") -> str:
    """Return `site.type`; for `auto` what this machine's own files say, else plain. `node`: whose machine a lab's path means."""
    if settings.site.type != "auto":
        return settings.site.type
    root = at_node(settings.site.root, node) if node else settings.site.root
    return next((found for name, found in MARKS if os.path.exists(os.path.join(root or "/", name))), "plain")


def after_drain(site_type: str, action: str) -> Afterwards:
    """Return what follows where a node is drained for a finding with this advice. `site_type` is `kind`. Pure."""
    wanted = action if action in ACTS else "look"
    if site_type == "parallelcluster":
        return Afterwards(
            "ParallelCluster",
            True,
            "ParallelCluster terminates the instance and starts another; in a capacity block that one comes from the same"
            " reservation, and where it has no other host, or ends, none comes",
        )
    if site_type == "pcs":
        return Afterwards(
            "",
            False,
            f"AWS PCS repairs what its own checks find, and knows nothing of this drain: a person has to {wanted}"
            f" ({'terminate the instance, and PCS starts another' if wanted == 'replace' else 'the node stays as it is'})",
        )
    if site_type == "hyperpod":
        if wanted in ("reboot", "replace"):
            asked = f'scontrol update node=NODE state=fail reason="Action:{wanted.capitalize()}"'
            return Afterwards(
                "", False, f"HyperPod repairs what its own agent finds; to have it {wanted} this one: {asked}"
            )
        return Afterwards("", False, f"HyperPod knows nothing of this drain: a person has to {wanted}")
    return Afterwards("", False, f"nobody does so by itself: a person has to {wanted}")
