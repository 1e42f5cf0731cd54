"""A second offence: what earlier burn-ins tell about a node that this one cannot convict. Pure.

Two nodes that fail together convict neither. When one of them fails again, with *another* partner, and the partner of the
first time passed with somebody else since, then it was that node both times, unless one failure was slowness of quite
another speed. A slow node that is the only one of its leaf switch stays open all the same: a switch that is slow at times looks
just like it, whatever others below that switch did in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext.burnin import plan_words
from slurm_ext.burnin.model import OK, SLOW, Decision, Past
from slurm_ext.burnin.plan_evidence import Evidence
from slurm_ext.burnin.plan_guilt import ALIKE, alone_under_switch
from slurm_ext.verdict import FAIL, PASS, Finding, Verdict

#: So long (seconds) an offence counts.
WINDOW_S = 86400.0

#: Ends of a burn-in that leave nodes open, and that a second offence may close.
OPEN_RULES = ("burnin.two-nodes", "burnin.cannot-tell", "burnin.pair")


def second_offence(
    decision: Decision,
    evidence: Evidence,
    priors: Sequence[Past],
    *,
    now: float | None = None,
    window_s: float = WINDOW_S,
) -> Decision:
    """Return the decision with a conviction where exactly one of its suspects did the same before with another partner.

    `priors` must hold the earlier burn-ins of the suspects *and* of their partners then. Without `now` (seconds since 1970)
    all of them count, for a caller that chose them itself.
    """
    if decision.culprits or decision.verdict.rule not in OPEN_RULES:
        return decision
    recent = [p for p in priors if now is None or 0 <= now - p.time <= window_s]
    found = {
        name: why
        for name in decision.suspects
        if name not in evidence.cleared and (why := _again(name, evidence, recent))
    }
    if len(found) != 1:
        return decision  # none, or two that both look guilty: then the evidence is no better than before
    name, why = next(iter(found.items()))
    kind = plan_words.kind_of(evidence, name) if evidence.failed(name) else _together(evidence)
    finding = Finding(f"burnin.{kind}", f"node:{name}", "drain", (why, decision.verdict.reason))
    verdict = Verdict(FAIL, (finding,), f"{name} {why}", "burnin.second-offence")
    return Decision(verdict, (name,), decision.suspects)


def _together(evidence: Evidence) -> str:
    return next((group.outcome for group in evidence.again if group.outcome != OK), "error")


def _again(name: str, evidence: Evidence, priors: Sequence[Past]) -> str:
    """Return in words why a suspect is now proven guilty, or an empty text."""
    present = set(evidence.nodes) - {name}
    for first in sorted(priors, key=lambda p: p.time):
        if name not in first.suspects or first.culprits or first.rule not in OPEN_RULES:
            continue
        since = [p for p in priors if p.time > first.time]
        if any(p.verdict == PASS and name in p.nodes and len(p.nodes) > 1 for p in since):
            continue  # it passed with others since: whatever it was, it is not steady
        partners = [n for n in first.suspects if n != name]
        if len(partners) != 1 or partners[0] in present:
            continue
        partner = partners[0]
        if not _alike(first, evidence):
            continue
        well = [
            p for p in since if p.verdict == PASS and partner in p.nodes and name not in p.nodes and len(p.nodes) > 1
        ]
        if well and not _may_be_switch(name, partner, evidence):
            return (
                f"failed with {partner} before (job {first.job}), which has passed with others since (job {well[0].job}), "
                f"and fails with {', '.join(sorted(present)[:3])} now"
            )
    return ""


def _alike(first: Past, evidence: Evidence) -> bool:
    """Say whether a slow node was about as slow then as it is now: dips by chance are not, and a node at fault is."""
    now = [group.busbw_gbs for group in evidence.again if group.outcome == SLOW and group.busbw_gbs]
    if not now or not first.busbw_gbs:
        return True  # it hung or computed wrong, or nobody knows its speed
    return all(1 / ALIKE <= speed / first.busbw_gbs <= ALIKE for speed in now)


def _may_be_switch(name: str, partner: str, evidence: Evidence) -> bool:
    """Say whether a slow switch explains both offences: known, and neither partner was below it."""
    slow = all(t.outcome in (OK, SLOW) for t in evidence.of.get(name, ())) and _together(evidence) in (SLOW, "error")
    leaf = evidence.leaf(name)
    if not slow or not leaf:
        return False
    if len(evidence.nodes) > 2:
        return alone_under_switch(evidence, name)
    return all(evidence.leaf(other) != leaf for other in (*evidence.nodes, partner) if other != name)
