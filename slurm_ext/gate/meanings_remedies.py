"""What to do, step by step, for each advice that a finding gives. Tables.

Sources: NVIDIA's nvidia-smi manual (which resets need the fabric manager and an idle GPU), its persistence-mode page, and
NVIDIA/NVSentinel issue 1692 (a reset is refused while persistence mode is on); ParallelCluster's clustermgtd, which
terminates drained nodes (aws/aws-parallelcluster-node, slurm_plugin); EC2's user guide on stopping and starting.
Checked on 2026-11-30.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Advice (verdict.ACTIONS) -> its steps. NODE, N and I stand for the node, the GPU's index and the instance id.
RECIPES: Mapping[str, tuple[str, ...]] = {
    "none": ("Nothing: it is recorded only.",),
    "warn": ("No job is kept away. Look at it when the node is next idle; if it comes back, treat it as a fault.",),
    "drain": (
        "Keep jobs away until somebody has looked: `fmslurm node drain NODE --reason ...` where fmslurm has not.",
        "Mend the cause (above), then prove it: `fmslurm gate check` on the node.",
        "`fmslurm node resume NODE --reason ...`; with drain.undrain: on_proof fmslurm takes back its own drain by itself.",
    ),
    "reset-gpu": (
        "Let the node's jobs end: `fmslurm node drain NODE --reason 'reset of GPU N'` where fmslurm has not.",
        "Stop what holds the GPU: `systemctl stop nvidia-dcgm dcgm-exporter nvidia-persistenced` (those that are there); "
        "`nvidia-smi --query-compute-apps=pid --format=csv` and `fuser -v /dev/nvidia*` must name nobody.",
        "Persistence mode off, or the reset is refused: `nvidia-smi -i N -pm 0`.",
        "On A100 with NVSwitch (P4d, P4de) leave nvidia-fabricmanager running, the reset needs it; before A100 all GPUs that "
        "NVLink connects are reset together, without -i.",
        "`nvidia-smi --gpu-reset -i N`. Refused, or the fault is back at once: reboot.",
        "Start the services again, `nvidia-smi -i N -pm 1`; where `nvidia-smi -q` shows the fabric as not Completed: "
        "`systemctl restart nvidia-fabricmanager`.",
        "Prove it: `fmslurm gate check` on the node, then `fmslurm node resume NODE --reason ...`.",
    ),
    "reboot": (
        "Let the node's jobs end: `fmslurm node drain NODE --reason ...` where fmslurm has not.",
        "Plain Slurm with RebootProgram: `scontrol reboot ASAP nextstate=RESUME reason='fmslurm: ...' NODE`.",
        "ParallelCluster, PCS: `aws ec2 reboot-instances --instance-ids I`; the instance and its id stay. On ParallelCluster a "
        "drained node may be replaced before that, which serves as well.",
        "After boot: `fmslurm gate check` on the node; the same finding again on the new boot means replace.",
    ),
    "replace": (
        "Save the evidence before the instance goes: `fmslurm node evidence NODE --out DIR`.",
        "ParallelCluster: keep it drained; once its jobs have ended clustermgtd terminates the instance and starts another.",
        "PCS: `aws ec2 terminate-instances --instance-ids I`; the compute node group starts another. Where PCS's own health "
        "checks are on, leave it to them.",
        "Plain: stop and start the instance (not a reboot: that stays on the same host; instance store is lost), or "
        "terminate it and start another.",
        "Capacity block or reservation: a terminated instance may not come back at once; open a support case with the "
        "instance id and the evidence first.",
        "Another instance id voids the drain: it is taken back once the gate passes.",
    ),
}

#: Findings whose verdict is unknown: a look that failed never drains, so its remedy is to make it possible again.
UNKNOWN = "Nothing acts on it. Make the look possible again, then run `fmslurm gate check`."
