"""The ends of a burn-in, in words: who is convicted and why, or why nobody is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurm_ext.burnin.model import OK, WRONG, Decision, GroupResult, Suspect
from slurm_ext.burnin.plan_evidence import Evidence, what
from slurm_ext.burnin.plan_guilt import witnesses
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Finding, Verdict


def passed(first: GroupResult, nodes: int) -> Decision:
    """All nodes did what they should."""
    speed = f"{first.busbw_gbs:.3g} GB/s" if first.busbw_gbs is not None else "no speed"
    over = f"{speed} over {first.ranks} ranks on {nodes} node{'s' if nodes > 1 else ''}"
    if not first.judged and nodes > 1:
        # Sending the job back would help nobody: the next nodes have no floor either. It runs, and people are told.
        reason = f"right results, {over}, but no floor is known for these nodes"
        finding = Finding("burnin.no-floor", "node", "warn", (reason,))
        return Decision(Verdict(WARN, (finding,), reason, "burnin.no-floor"))
    return Decision(Verdict(PASS, (), f"right results, {over}", "burnin.all-nodes"))


def no_tool(software: Iterable[Suspect]) -> Decision:
    """Software is missing somewhere: nothing was learned."""
    found = {s.node: s for s in software}
    findings = tuple(Finding("burnin.library", f"node:{s.node}", "none", (s.why,)) for s in found.values())
    some = next(iter(found.values()))
    return Decision(Verdict(UNKNOWN, findings, f"the burn-in cannot run on {some.node}: {some.why}", "burnin.library"))


def once(first: GroupResult) -> Decision:
    """A failure that did not come back: a wrong sum is never let pass for that, a dip or a stall is."""
    words = what(first)
    if first.outcome == WRONG:
        names = tuple(s.node for s in first.suspects)
        target = f"node:{names[0]}" if len(names) == 1 else "node"
        finding = Finding("burnin.wrong-once", target, "warn", first.evidence)
        reason = f"wrong results once, and right when repeated ({words})"
        return Decision(Verdict(FAIL, (finding,), reason, "burnin.wrong-once"), suspects=names)
    finding = Finding("burnin.once", "node", "warn", first.evidence)
    return Decision(Verdict(WARN, (finding,), f"failed once and passed when repeated ({words})", "burnin.once"))


def convict(evidence: Evidence, guilty: Sequence[str], open_: Sequence[str] = ()) -> Decision:
    """These nodes are at fault; of the open ones, which passed with nobody either, nobody can tell."""
    findings = []
    for name in guilty:
        lines = []
        if any(outcome != OK for outcome in evidence.alone.get(name, ())):
            lines.append(f"fails without any partner ({evidence.words.get(name, 'failed')})")
        if names := witnesses(evidence, name):
            times = len(evidence.failed(name))
            often = f", {times} times in all" if times > len(names) else ""
            lines.append(f"fails with {', '.join(names)}{often}, which pass with others ({evidence.words[name]})")
        if name in evidence.hints:
            lines.append(evidence.hints[name].why)
        findings.append(Finding(f"burnin.{kind_of(evidence, name)}", f"node:{name}", "drain", tuple(lines)))
    reason = f"{', '.join(guilty)} {findings[0].evidence[0]}"
    for name in open_:
        line = f"passes with nobody ({evidence.words.get(name, 'failed')}); the evidence is not enough to convict it"
        findings.append(Finding("burnin.cannot-tell", f"node:{name}", "warn", (line,)))
    return Decision(Verdict(FAIL, tuple(findings), reason, "burnin.culprit"), tuple(guilty), (*guilty, *open_))


def kind_of(evidence: Evidence, node: str) -> str:
    """Return what a convicted node did most: slow, wrong, hang or error."""
    kinds = [test.outcome for test in evidence.failed(node)]
    kinds += [outcome for outcome in evidence.alone.get(node, ()) if outcome != OK]
    return max(reversed(kinds), key=kinds.count) if kinds else "error"


def nobody(
    suspects: Sequence[str], first: GroupResult, rule: str, words: str, known: Mapping[str, str] | None = None
) -> Decision:
    """The job must not start like this, and no node is convicted. `known` says what went wrong, by node."""
    lines = tuple(f"{name}: {known[name]}" for name in suspects if known and name in known) or first.evidence
    findings = tuple(Finding(rule, f"node:{name}", "warn", lines) for name in suspects) or (
        Finding(rule, "node", "warn", lines),
    )
    return Decision(Verdict(FAIL, findings, f"{words} ({what(first)})", rule), suspects=tuple(suspects))


def with_evidence(decision: Decision, more: Mapping[str, str]) -> Decision:
    """Return the decision with one more line in the findings of these nodes."""
    findings = tuple(
        f._replace(evidence=(*f.evidence, more[name])) if (name := f.target.removeprefix("node:")) in more else f
        for f in decision.verdict.findings
    )
    return decision._replace(verdict=decision.verdict._replace(findings=findings))
