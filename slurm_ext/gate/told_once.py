"""One event that two looks saw is one finding: the kernel's log tells of the same things as counters and tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext.gate.model import Judged
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, strength

_RANK = {FAIL: 3, UNKNOWN: 2, WARN: 1, PASS: 0}


def told_once(items: Sequence[Judged]) -> list[Judged]:
    """Return the items, each id and target once: the stronger verdict and action, with what both saw as evidence.

    Of an eviction Lustre's own history knows when it was; what the log says of the same target is left out beside it.
    """
    dated = {item.finding.target for item in items if item.finding.id == "lustre.evicted-old"}
    kept: dict[tuple[str, str], Judged] = {}
    for item in items:
        id_, target = item.finding.id, item.finding.target
        if id_ == "lustre.evicted" and target in dated:
            continue
        before = kept.get((id_, target))
        kept[id_, target] = item if before is None else _joined(before, item)
    return list(kept.values())


def _joined(first: Judged, second: Judged) -> Judged:
    """Return two items of one event as one; the first one's words come first."""
    strong, weak = first, second
    by = (_RANK.get(second.verdict, 2), strength(second.finding.action))
    if by > (_RANK.get(first.verdict, 2), strength(first.finding.action)):
        strong, weak = second, first
    more = [line for line in weak.finding.evidence if line not in strong.finding.evidence]
    return strong._replace(finding=strong.finding._replace(evidence=(*strong.finding.evidence, *more)))
