"""A finding that a person acknowledged does not keep a node out: looked at only where a look failed.

Imported only by a hook whose look failed or whose burn-in convicts this node: the passing path pays nothing.
"""

from __future__ import annotations

from slurm_ext import events
from slurm_ext.gate import local
from slurm_ext.gate.model import conclude
from slurm_ext.slurm import acks
from slurm_ext.verdict import FAIL, WARN, Finding

#: A share that is slow for once must not drain a node that a person keeps in use (seconds).
SHARE_S = 5.0


def spare(look: local.Look, share: str, node: str, now: float) -> tuple[local.Look, tuple[str, ...]]:
    """Return the look with what was acknowledged turned into warnings, and a line on each; other failures stay failures.

    `now` in seconds since the epoch.
    """
    known = acks.read(share, node, timeout_s=SHARE_S) if look.verdict.verdict == FAIL else ()
    if not known:
        return look, ()
    items, lines = [], []
    for item in look.items:
        finding = item.finding
        ack = acks.holds(known, finding.id, now, target=finding.target) if item.verdict == FAIL else None
        if ack is not None:
            lines.append(acks.words(ack, events.stamp))
            item = item._replace(verdict=WARN, finding=finding._replace(evidence=(*finding.evidence, lines[-1])))
        items.append(item)
    if not lines:
        return look, ()
    verdict = conclude(items, rule=look.verdict.rule)
    if verdict.verdict == WARN:
        verdict = verdict._replace(reason=f"{verdict.reason}; {lines[0]}")
    return look._replace(verdict=verdict, items=tuple(items)), tuple(lines)


def of(finding: Finding | None, share: str, node: str, now: float) -> str:
    """Return the line on the acknowledgement that holds for one finding, or nothing. `now` in seconds since the epoch."""
    known = acks.read(share, node, timeout_s=SHARE_S) if finding is not None else ()
    ack = acks.holds(known, finding.id, now, target=finding.target) if finding is not None else None
    return acks.words(ack, events.stamp) if ack is not None else ""
