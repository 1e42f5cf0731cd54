"""What to run next, and when to stop: from the rounds so far to the next round or to the decision. Pure.

All nodes first. On failure: a node that evidence of its own points at runs alone while the rest run together; otherwise
pairs, again with swapped partners, then each suspect with nodes that passed. A node is convicted only where

- it failed twice without any partner, or
- it failed with three partners (two where there are no more), each of which passed with somebody else, and it never
  passed with anybody.

Two nodes alone convict neither; more than a third of the nodes convicts none (that is fabric, placement or software).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slurm_ext.burnin.model import OK, WRONG, Decision, GroupResult, Round, RoundResult, Suspect
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Finding, Verdict

#: Rounds that confirm suspects with nodes that passed: more cost time and add little.
CONFIRM_ROUNDS = 3


class Evidence(NamedTuple):
    """What the rounds so far say of each node."""

    failed_with: dict[str, set[str]]  # partners of failed pairs
    cleared: frozenset[str]  # passed together with somebody
    tested: frozenset[frozenset[str]]
    alone_failed: dict[str, int]  # times it failed without a partner
    alone_passed: frozenset[str]
    hints: dict[str, Suspect]  # from the first run of all
    words: dict[str, str]  # what went wrong, by node


def next_step(nodes: Sequence[str], history: Sequence[RoundResult]) -> Round | Decision:
    """Return the next round to run, or the decision. `nodes` are in Slurm's order: neighbours share a switch."""
    if not history:
        return Round("all", (tuple(nodes),))
    software = [s for done in history for group in done.groups for s in group.environment]
    if software:
        return _no_tool(software)
    first = history[0].groups[0]
    if first.outcome == OK:
        return _passed(first, len(nodes))
    evidence = weigh(nodes, history)
    kinds = [done.kind for done in history]
    if len(nodes) <= 2:
        return _few(nodes, history, evidence)
    hinted = [name for name in nodes if name in evidence.hints]
    if kinds == ["all"] and 0 < len(hinted) <= _third(nodes):
        rest = tuple(name for name in nodes if name not in evidence.hints)
        return Round("isolate", (rest, *((name,) for name in hinted)))
    if kinds == ["all", "isolate"] and evidence.alone_failed and not _convicted(nodes, evidence):
        return Round("alone", tuple((name,) for name in nodes if name in evidence.alone_failed))
    if "isolate" in kinds and evidence.cleared:
        if _convicted(nodes, evidence) or not (_open(nodes, evidence) or evidence.alone_failed):
            return _decide(nodes, history, evidence)
    elif kinds.count("pairs") < 2:
        return Round("pairs", _pairs(nodes, shift=kinds.count("pairs")))
    if kinds.count("confirm") < CONFIRM_ROUNDS and (groups := _confirm(nodes, evidence)):
        return Round("confirm", groups)
    if not _failures(evidence) and "again" not in kinds:
        return Round("again", (tuple(nodes),))
    return _decide(nodes, history, evidence)


def survey_step(nodes: Sequence[str], history: Sequence[RoundResult]) -> Round | None:
    """Return the next round of a survey (all nodes, then pairs twice), or None at its end: for measuring floors."""
    if not history:
        return Round("all", (tuple(nodes),))
    done = len(history) - 1
    return Round("pairs", _pairs(nodes, shift=done)) if done < (2 if len(nodes) > 2 else 0) else None


def weigh(nodes: Sequence[str], history: Sequence[RoundResult]) -> Evidence:
    """Collect what the rounds say of each node."""
    failed: dict[str, set[str]] = {name: set() for name in nodes}
    alone: dict[str, int] = {}
    cleared: set[str] = set()
    alone_passed: set[str] = set()
    tested: set[frozenset[str]] = set()
    words: dict[str, str] = {}
    for done in history[1:]:
        for group in done.groups:
            if len(group.nodes) == 1:
                if group.outcome == OK:
                    alone_passed.add(group.nodes[0])
                else:
                    alone[group.nodes[0]] = alone.get(group.nodes[0], 0) + 1
                    words.setdefault(group.nodes[0], _what(group))
                continue
            if group.outcome == OK:
                cleared.update(group.nodes)
            elif len(group.nodes) == 2:
                for name, partner in (group.nodes, group.nodes[::-1]):
                    failed[name].add(partner)
                    words[name] = _what(group)
            if len(group.nodes) == 2:
                tested.add(frozenset(group.nodes))
    hints = {s.node: s for group in history[0].groups for s in group.suspects}
    return Evidence(failed, frozenset(cleared), frozenset(tested), alone, frozenset(alone_passed), hints, words)


def _what(group: GroupResult) -> str:
    return f"{group.outcome}: {group.evidence[0]}" if group.evidence else group.outcome


def _third(nodes: Sequence[str]) -> int:
    return max(1, len(nodes) // 3)


def _pairs(nodes: Sequence[str], *, shift: int) -> tuple[tuple[str, ...], ...]:
    """Return neighbours as pairs; shifted by one the second time, so that each has another partner. Odd: one idles."""
    ring = [*nodes[shift:], *nodes[:shift]]
    return tuple((ring[i], ring[i + 1]) for i in range(0, len(ring) - 1, 2))


def _convicted(nodes: Sequence[str], evidence: Evidence) -> list[str]:
    found = []
    needed = min(3, len(nodes) - 1)
    for name in nodes:
        witnesses = evidence.failed_with[name] & evidence.cleared
        by_partners = name not in evidence.cleared and len(witnesses) >= needed
        if by_partners or evidence.alone_failed.get(name, 0) >= 2:
            found.append(name)
    return found


def _failures(evidence: Evidence) -> bool:
    return bool(evidence.alone_failed) or any(evidence.failed_with.values())


def _open(nodes: Sequence[str], evidence: Evidence) -> list[str]:
    """Nodes that never passed with anybody and are not convicted yet."""
    convicted = _convicted(nodes, evidence)
    return [name for name in nodes if name not in evidence.cleared and name not in convicted]


def _confirm(nodes: Sequence[str], evidence: Evidence) -> tuple[tuple[str, ...], ...]:
    """Pair each open node with one that passed and that it has not met; else open nodes with one another."""
    waiting = [name for name in _open(nodes, evidence) if evidence.failed_with[name] or name in evidence.hints]
    waiting += [name for name in _open(nodes, evidence) if name not in waiting]
    if not any(evidence.failed_with[name] or name in evidence.hints for name in waiting):
        return ()
    used: set[str] = set()
    groups: list[tuple[str, ...]] = []
    for candidates in ([name for name in nodes if name in evidence.cleared], waiting):
        for name in waiting:
            if name in used:
                continue
            fresh = (
                c for c in candidates if c not in used and c != name and frozenset((c, name)) not in evidence.tested
            )
            if (partner := next(fresh, None)) is not None:
                used |= {name, partner}
                groups.append((name, partner))
    return tuple(groups)


def _passed(first: GroupResult, nodes: int) -> Decision:
    speed = f"{first.busbw_gbs:.3g} GB/s" if first.busbw_gbs is not None else "no speed"
    over = f"{speed} over {first.ranks} ranks on {nodes} node{'s' if nodes > 1 else ''}"
    if not first.judged and nodes > 1:
        # Sending the job back would help nobody: the next nodes have no floor either. It runs, and people are told.
        reason = f"right results, {over}, but no floor is known for these nodes"
        finding = Finding("burnin.no-floor", "node", "warn", (reason,))
        return Decision(Verdict(WARN, (finding,), reason, "burnin.no-floor"))
    return Decision(Verdict(PASS, (), f"right results, {over}", "burnin.all-nodes"))


def _no_tool(software: Iterable[Suspect]) -> Decision:
    found = {s.node: s for s in software}
    findings = tuple(Finding("burnin.library", f"node:{s.node}", "none", (s.why,)) for s in found.values())
    some = next(iter(found.values()))
    return Decision(Verdict(UNKNOWN, findings, f"the burn-in cannot run on {some.node}: {some.why}", "burnin.library"))


def _few(nodes: Sequence[str], history: Sequence[RoundResult], evidence: Evidence) -> Decision | Round:
    """One or two nodes: only what a node shows without a partner can convict it, and only when it does so twice."""
    alone = sum(1 for done in history if done.kind == "alone")
    if len(nodes) == 1:
        if alone == 0:
            return Round("alone", (tuple(nodes),))
        twice = evidence.alone_failed.get(nodes[0], 0) > 0
        return _convict(nodes, list(nodes), history, evidence) if twice else _once(history)
    if alone == 0 or (alone == 1 and evidence.alone_failed and not _convicted(nodes, evidence)):
        return Round("alone", tuple((name,) for name in nodes if alone == 0 or name in evidence.alone_failed))
    convicted = _convicted(nodes, evidence)
    if len(convicted) == 1:
        return _convict(nodes, convicted, history, evidence)
    if len(convicted) == 2:
        return _nobody(nodes, history, "burnin.fabric", "both nodes fail, each without the other", evidence)
    return _nobody(
        nodes, history, "burnin.two-nodes", "two nodes fail together and no third can tell which is at fault", evidence
    )


def _decide(nodes: Sequence[str], history: Sequence[RoundResult], evidence: Evidence) -> Decision:
    convicted = _convicted(nodes, evidence)
    if len(convicted) > _third(nodes):
        words = f"{len(convicted)} of {len(nodes)} nodes fail: fabric, placement or software, not a node"
        return _nobody(convicted, history, "burnin.fabric", words, evidence)
    if convicted:
        return _convict(nodes, convicted, history, evidence)
    doubtful = _open(nodes, evidence)
    doubtful = [name for name in doubtful if evidence.failed_with[name] or name in evidence.alone_failed]
    if len(doubtful) > _third(nodes):
        words = f"{len(doubtful)} of {len(nodes)} nodes pass with nobody: fabric, placement or software, not a node"
        return _nobody(doubtful, history, "burnin.fabric", words, evidence)
    if doubtful:
        return _nobody(
            doubtful, history, "burnin.cannot-tell", "the evidence is not enough to convict a node", evidence
        )
    edges = sorted({tuple(sorted((a, b))) for a, partners in evidence.failed_with.items() for b in partners})
    if edges:
        both = [name for name in nodes if name in edges[0]]
        words = f"{edges[0][0]} and {edges[0][1]} fail together, and each is fine with others"
        return _nobody(both, history, "burnin.pair", words, evidence)
    again = [done for done in history if done.kind == "again"]
    if again and again[0].groups[0].outcome != OK:
        words = "all nodes together fail twice, and every pair of them is fine"
        return _nobody([], history, "burnin.whole-only", words, evidence)
    return _once(history)


def _once(history: Sequence[RoundResult]) -> Decision:
    """A failure that did not come back: a wrong sum is never let pass for that, a dip or a stall is."""
    first = history[0].groups[0]
    what = _what(first)
    if first.outcome == WRONG:
        names = tuple(s.node for s in first.suspects)
        finding = Finding(
            "burnin.wrong-once", f"node:{names[0]}" if len(names) == 1 else "node", "warn", first.evidence
        )
        return Decision(
            Verdict(FAIL, (finding,), f"wrong results once, and right when repeated ({what})", "burnin.wrong-once"),
            suspects=names,
        )
    finding = Finding("burnin.once", "node", "warn", first.evidence)
    return Decision(Verdict(WARN, (finding,), f"failed once and passed when repeated ({what})", "burnin.once"))


def _convict(
    nodes: Sequence[str], convicted: Sequence[str], history: Sequence[RoundResult], evidence: Evidence
) -> Decision:
    findings = []
    for name in convicted:
        witnesses = sorted(evidence.failed_with[name] & evidence.cleared)
        lines = []
        if name in evidence.alone_failed:
            lines.append(f"fails without any partner ({evidence.words.get(name, 'failed')})")
        if witnesses:
            lines.append(f"fails with {', '.join(witnesses)}, which pass with others ({evidence.words[name]})")
        if name in evidence.hints:
            lines.append(evidence.hints[name].why)
        findings.append(Finding(f"burnin.{_kind(name, history)}", f"node:{name}", "drain", tuple(lines)))
    named = ", ".join(convicted)
    first = findings[0].evidence[0]
    return Decision(
        Verdict(FAIL, tuple(findings), f"{named} {first}", "burnin.culprit"), tuple(convicted), tuple(convicted)
    )


def _kind(name: str, history: Sequence[RoundResult]) -> str:
    """Return the word for what a convicted node did: slow, wrong, hang or error, as its own groups showed it last."""
    kinds = [group.outcome for done in history for group in done.groups if name in group.nodes and group.outcome != OK]
    return kinds[-1] if kinds else "error"


def _nobody(
    suspects: Sequence[str], history: Sequence[RoundResult], rule: str, words: str, evidence: Evidence
) -> Decision:
    first = history[0].groups[0]
    lines = tuple(f"{name}: {evidence.words[name]}" for name in suspects if name in evidence.words) or first.evidence
    findings = tuple(Finding(rule, f"node:{name}", "warn", lines) for name in suspects) or (
        Finding(rule, "node", "warn", lines),
    )
    return Decision(Verdict(FAIL, findings, f"{words} ({_what(first)})", rule), suspects=tuple(suspects))
