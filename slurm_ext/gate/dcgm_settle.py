"""What DCGM's watches say beside what nvidia-smi and the kernel's log say of the same GPUs in the same look. Pure.

Imported only where DCGM has something to say of a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.gate import proof
from slurm_ext.gate.model import Facts, Judged, judged
from slurm_ext.verdict import FAIL, WARN


def settle(items: Sequence[Judged], others: Sequence[Judged], facts: Facts, row: InstanceType | None) -> list[Judged]:
    """Return DCGM's findings as those of nvidia-smi and the kernel have their targets, so that each comes out once.

    DCGM's values are up to ten minutes old. Where nvidia-smi read the very value as good in this look, DCGM convicts nobody.
    `others`: what the node's own looks found.
    """
    agreed = {(item.finding.id, item.finding.target) for item in others}
    return [_settled(item, agreed, facts, row) for item in items]


def _settled(item: Judged, agreed: set[tuple[str, str]], facts: Facts, row: InstanceType | None) -> Judged:
    finding = item.finding
    if finding.id.startswith("gpu.xid-"):
        gpus = facts.smi.gpus if facts.smi is not None else ()
        pci = next((gpu.pci for gpu in gpus if gpu.target == finding.target), "")
        return item._replace(finding=finding._replace(target=f"gpu@{pci}")) if pci else item
    if item.verdict != FAIL or not finding.id.startswith("gpu.") or (finding.id, finding.target) in agreed:
        return item
    if proof.missing(proof.Case(finding.id, finding.target, facts, row)):
        return item
    line = f"nvidia-smi, asked at the same time, shows no {finding.id}"
    return judged(WARN, "dcgm-health.contradicted", finding.target, "warn", *finding.evidence, line)
