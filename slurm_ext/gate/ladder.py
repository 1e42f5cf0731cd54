"""The severity ladder with memory: reset-gpu, then reboot, then replace, and what a node needs to come back. Pure.

A finding's own action is where the ladder begins. The same finding on the same target of the same instance again, although
the step that was asked for was done, means the next step. What a step is due to: NVIDIA's Xid catalogue and A100 memory error
management guide (a failed row remap and the SRAM threshold are for the vendor, whatever is reset), the rest is
`drain.reboot_first`: a reboot is cheaper than an instance that may not be had again. Standard library only: hooks import this.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_ext.slurm import drain_record
from slurm_ext.slurm.drain_record import DAY_S, STEPS, DrainRecord, PastDrain
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import Finding

DRAIN, RESET, REBOOT, REPLACE = "drain", "reset-gpu", "reboot", "replace"

#: How long (days) a finding that came back is held against the instance.
MEMORY_D = 30.0

#: Findings that no reset and no reboot mends, by NVIDIA's own word: docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt (RMA
#: criteria: row remap failure, SRAM threshold) and the Xid catalogue (64: contact support). Ids or beginnings of ids.
REPLACE_AT_ONCE = (
    "gpu.row-remap-failure",
    "gpu.sram-threshold",
    "gpu.unrepairable-memory",
    "gpu.retired-pages-full",
    "gpu.xid-64",
    "ec2.",  # EC2 has said itself that this instance ends
)

#: Findings that only a test with other nodes proves gone.
BURNIN = "burnin."


class Step(NamedTuple):
    """What is to be done now: `step` is one of STEPS, `needs` what brings the node back, `why` why it is not the advised one.

    `tries`: how often this finding drained this instance within MEMORY_D, this time included.
    """

    step: str
    needs: str
    tries: int = 1
    why: str = ""


def climb(
    finding: Finding,
    history: Iterable[PastDrain],
    *,
    now: float,
    boot_id: str,
    instance_id: str,
    reboot_first: bool,
) -> Step:
    """Return the step for a finding, given the node's earlier drains (oldest first) and which boot and instance this is.

    `now` is in seconds since the epoch. An earlier step counts as done where it can be told: a reboot by another boot id, a
    replacement by another instance (whose drains are another's). A GPU that came back was reset, or fault and reset are moot.
    """
    before = [past.record for past in history if _counts(past.record, finding, now, instance_id)]
    tries = len(before) + 1
    step = finding.action if finding.action in STEPS else DRAIN
    if step == DRAIN:
        return Step(DRAIN, needs(finding.id, finding.target, DRAIN), tries)
    if finding.id.startswith(REPLACE_AT_ONCE) and step == REPLACE:
        return Step(REPLACE, needs(finding.id, finding.target, REPLACE), tries, "a reboot does not mend it")
    why = ""
    rebooted = [record for record in before if record.step in (REBOOT, REPLACE) and _another_boot(record, boot_id)]
    if step == REPLACE and reboot_first and not rebooted:
        step, why = REBOOT, "drain.reboot_first: a reboot is tried once before the instance is replaced"
    elif step == RESET and before:
        step, why = REBOOT, f"it came back after {_asked(before)}"
    if step == REBOOT and rebooted:
        step, why = REPLACE, "it came back after a reboot"
    if step == REBOOT and any(record.step == REPLACE for record in before):
        step, why = REPLACE, "a replacement was asked for already, and this is still the same instance"
    return Step(step, needs(finding.id, finding.target, step), tries, why)


def _counts(record: DrainRecord, finding: Finding, now: float, instance_id: str) -> bool:
    """Say whether an earlier drain is one of the same thing on the same instance, not too long ago."""
    if (record.finding, record.target) != (finding.id, finding.target) or now - record.since_s > MEMORY_D * DAY_S:
        return False
    return not record.instance_id or not instance_id or record.instance_id == instance_id


def _another_boot(record: DrainRecord, boot_id: str) -> bool:
    return bool(record.boot_id) and bool(boot_id) and record.boot_id != boot_id


def _asked(before: list[DrainRecord]) -> str:
    return f"step {before[-1].step} of {len(before)} earlier drain" + ("" if len(before) == 1 else "s")


def needs(finding: str, target: str, step: str) -> str:
    """Return what must happen for a node to come back, in words."""
    if finding == "node.manual":
        return "a person drained it, and a person resumes it: fmslurm node resume"
    if finding.startswith(BURNIN) and step != REPLACE:
        first = "a reboot, then " if step == REBOOT else ""
        return f"{first}a burn-in that passes with this node (fmslurm burnin run), then fmslurm node resume; or another instance"
    if step == RESET:
        which = f" -i {target.removeprefix('gpu:')}" if target.startswith("gpu:") else ""
        return f"a reset of the GPU (nvidia-smi --gpu-reset{which}, with nothing on it) or a reboot; then the same check must pass"
    if step == REBOOT:
        return "a reboot; then the same check must pass on that new boot"
    if step == REPLACE:
        return "another instance under this name; then the gate must pass there"
    return "the same check must pass on this node"


def expired(record: DrainRecord, *, now: float) -> str:
    """Return, in words, that a drain of ours stands longer than drain.expires_d, and what it needs; empty where it does not."""
    return drain_record.overdue(
        record._replace(needs=record.needs or needs(record.finding, record.target, record.step)), now=now
    )
