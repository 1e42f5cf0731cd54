"""Jobs larger than one group: each group by itself (a leaf switch, where those are known), then one node of each. Pure.

Groups that fail are localised side by side, each as if it were a job. One node of every group then runs across all of them;
if that fails, these nodes are paired, and a node that passed among its own and fails with the others' is tried beside a second
one of its group: when that fails too, it is the switch between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_ext.burnin import plan_evidence, plan_guilt, plan_pairs, plan_words
from slurm_ext.burnin.model import OK, SLOW, Decision, GroupResult, Round, RoundResult
from slurm_ext.burnin.plan_evidence import Evidence, third, weigh
from slurm_ext.verdict import FAIL, WARN, Verdict

#: A group of fewer nodes borrows some that passed elsewhere: a culprit among two needs partners.
LEAST = 6

#: Rounds of pairs among the nodes that stand for their groups.
ACROSS_ROUNDS = 5


def divide(nodes: Sequence[str], leaves: Mapping[str, str], group_nodes: int) -> tuple[tuple[str, ...], ...]:
    """Return the groups: the nodes of each leaf switch, one of more than `group_nodes` in equal parts; those whose switch is
    not known as neighbours in Slurm's order."""
    by_leaf: dict[str, list[str]] = {}
    for name in nodes:
        by_leaf.setdefault(leaves.get(name, ""), []).append(name)
    groups: list[tuple[str, ...]] = []
    for members in by_leaf.values():
        parts = -(-len(members) // group_nodes)
        size, more = divmod(len(members), parts)
        start = 0
        for part in range(parts):
            end = start + size + (part < more)
            groups.append(tuple(members[start:end]))
            start = end
    return tuple(groups)


def step(
    nodes: Sequence[str],
    history: Sequence[RoundResult],
    *,
    leaves: Mapping[str, str],
    group_nodes: int,
    conclude: bool = False,
) -> tuple[Round | Decision, Evidence]:
    """Return the next round or the decision of a large job, and what is known of its nodes; see `plan.next_step`."""
    everything = weigh(nodes, GroupResult((), OK), (), leaves=leaves)
    if not history:
        return Round("groups", divide(nodes, leaves, group_nodes)), everything
    place = next((i for i, done in enumerate(history) if done.kind == "across"), len(history))
    results = history[0].groups
    within = [done.groups for done in history[1:place] if done.kind != "rails"]
    passed = frozenset(n for g in results if g.outcome == OK and len(g.nodes) > 1 for n in g.nodes)
    everything = weigh(nodes, GroupResult((), OK), [results, *within], leaves=leaves, cleared=passed)
    scopes = _scopes(results, within, leaves, passed)
    decisions: list[tuple[Decision, Evidence]] = []
    waiting: list[Round] = []
    later = 0
    for index, (first, evidence) in enumerate(scopes):
        found = _one_scope(evidence, first)
        if isinstance(found, Round) and found.kind == "again" and len(first.nodes) > 2:
            # All of a group together takes longest. While another one is in pairs, its own open pairs are tried first; and
            # where a culprit is found elsewhere, a group whose nodes and pairs are all well need not run again.
            others = [e for i, (_, e) in enumerate(scopes) if i != index and plan_evidence.doubtful(e)]
            if others:
                later += 1
                groups = plan_pairs.repeating(evidence)
                waiting += [Round("confirm", groups)] if groups else []
                continue
        if isinstance(found, Round):
            waiting.append(found)
        else:
            decisions.append((found, evidence))
    if not waiting and later and not any(found.culprits for found, _ in decisions):
        waiting = [step for f, e in scopes if isinstance(step := _one_scope(e, f), Round)]
    if waiting and conclude:
        proven = [(e, plan_guilt.convicted(e)) for first, e in scopes if e.tests or e.alone]
        stops = [plan_words.convict(e, guilty) for e, guilty in proven if 0 < len(guilty) <= third(e.nodes)]
        if stops:
            return _joined(nodes, stops, results), everything
    if waiting:
        kinds = [found.kind for found in waiting]
        kind = kinds[0] if len(set(kinds)) == 1 else "confirm"
        return Round(kind, tuple(group for found in waiting for group in found.groups)), everything
    stops = [found for found, _ in decisions if found.verdict.verdict == FAIL]
    if stops:
        return _joined(nodes, stops, results), everything
    return _across(nodes, results, history, place, leaves, everything, bool(decisions))


def _scopes(
    results: Sequence[GroupResult],
    within: Sequence[Sequence[GroupResult]],
    leaves: Mapping[str, str],
    passed: frozenset[str],
) -> list[tuple[GroupResult, Evidence]]:
    """Return each group that failed with the evidence about it. Where leaf switches are not known it borrows the nodes that
    are next to it in other groups, for a switch may reach there; small ones borrow more, and none is lent twice."""
    lent = [n for g in results if g.outcome == OK for n in g.nodes if n in passed]
    scopes = []
    for index, first in enumerate(results):
        if first.outcome == OK:
            continue
        beside = [] if leaves.get(first.nodes[0]) else [g.nodes[-1] for g in results[max(0, index - 1) : index]]
        beside += [] if leaves.get(first.nodes[0]) else [g.nodes[0] for g in results[index + 1 : index + 2]]
        borrowed = [n for n in beside if n in lent]
        lent = [n for n in lent if n not in borrowed]
        need = max(0, LEAST - len(first.nodes) - len(borrowed)) if len(first.nodes) > 1 else 0
        # From the first node and the last by turns: not all of one switch.
        borrowed += [lent.pop(0 if i % 2 else -1) for i in range(min(need, len(lent)))]
        members = (*first.nodes, *borrowed)
        inside = set(members)
        rounds = [[g for g in done if inside.issuperset(g.nodes)] for done in within]
        evidence = weigh(
            members, first, [done for done in rounds if done], leaves=leaves, cleared=passed & frozenset(borrowed)
        )
        scopes.append((first, evidence._replace(beside=tuple(n for n in beside if n in borrowed))))
    # A switch may lie below two groups: until it is known that another one only dipped, it may be the same trouble.
    unsettled = [not _settled(evidence, first) for first, evidence in scopes]
    return [
        (first, evidence._replace(company=sum(unsettled) - unsettled[i] > 0))
        for i, (first, evidence) in enumerate(scopes)
    ]


def _settled(evidence: Evidence, first: GroupResult) -> bool:
    """Say whether a group that failed only dipped: it passed when repeated, or every node and every pair of it did."""
    if evidence.rounds > 1 and not plan_evidence.doubtful(evidence) and not plan_pairs.open_pairs(evidence):
        return True
    found = _one_scope(evidence, first)
    return isinstance(found, Decision) and found.verdict.verdict != FAIL


def _one_scope(evidence: Evidence, first: GroupResult) -> Round | Decision:
    from slurm_ext.burnin import plan

    own = first.nodes
    if len(own) == 1:
        return _single(evidence, first)
    found = plan.localise(evidence, first)
    if not isinstance(found, Round) or found.kind != "again" or len(own) == len(evidence.nodes):
        return found
    # The nodes of the group itself, without those that were lent: three and more are no pair, so look for them by name.
    if len(own) == 2:
        return plan_words.once(first) if set(own) <= evidence.cleared else Round("again", (own,))
    if any(done.outcome == OK for done in evidence.parts.get(own, ())):
        return plan_words.once(first)
    if len(evidence.parts.get(own, ())) < plan.AGAIN_TIMES:
        return Round("again", (own,))
    return plan_words.nobody(
        [], first, "burnin.whole-only", f"{len(own)} nodes fail together, and each is fine with others"
    )


def _single(evidence: Evidence, first: GroupResult) -> Round | Decision:
    """A group of one node failed: it can only be run alone again; how it does with others comes across the groups."""
    name = first.nodes[0]
    outcomes = evidence.alone.get(name, ())
    if plan_guilt.by_itself(evidence, name):
        return plan_words.convict(evidence, [name])
    if OK in outcomes:
        return plan_words.once(first)
    if len(outcomes) < plan_guilt.ALONE_SLOW_TIMES:
        return Round("alone", (first.nodes,))
    return plan_words.nobody([name], first, "burnin.cannot-tell", "it fails now so, now so", evidence.words)


def _joined(nodes: Sequence[str], stops: Sequence[Decision], results: Sequence[GroupResult]) -> Decision:
    """Return one decision of those of several groups: convictions go first."""
    suspects = tuple(name for found in stops for name in found.suspects)
    guilty = tuple(name for found in stops for name in found.culprits)
    worst = next(g for g in results if g.outcome != OK)
    if len(guilty) > third(nodes):
        words = f"{len(guilty)} of {len(nodes)} nodes fail: fabric, placement or software, not a node"
        return plan_words.nobody(guilty, worst, "burnin.fabric", words)
    stops = sorted(stops, key=lambda found: not found.culprits)
    findings = tuple(f for found in stops for f in found.verdict.findings)
    reason = "; ".join(found.verdict.reason for found in stops[:2])
    rule = stops[0].verdict.rule
    ordered = tuple(name for name in nodes if name in suspects)
    return Decision(Verdict(FAIL, findings, reason, rule), tuple(n for n in nodes if n in guilty), ordered)


def _across(
    nodes: Sequence[str],
    results: Sequence[GroupResult],
    history: Sequence[RoundResult],
    place: int,
    leaves: Mapping[str, str],
    everything: Evidence,
    dipped: bool,
) -> tuple[Round | Decision, Evidence]:
    group_of = {name: g.nodes for g in results for name in g.nodes}
    chosen = tuple(g.nodes[0] for g in results)
    if place == len(history):
        return Round("across", (chosen,)), everything
    first = history[place].groups[0]
    if first.outcome == OK:
        decision = plan_words.passed(first, len(nodes))
        if dipped and decision.verdict.verdict != WARN:
            worst = next(g for g in results if g.outcome != OK)
            decision = plan_words.once(worst)
        return decision, everything
    rounds = [done.groups for done in history[place + 1 :] if done.kind != "rails"]
    tested = tuple(dict.fromkeys((*chosen, *(n for done in rounds for g in done for n in g.nodes))))
    evidence = weigh(tested, first, rounds, leaves=leaves, cleared=frozenset())
    again = [g for done in rounds for g in done if g.nodes == chosen]
    if any(g.outcome == OK for g in again):
        return plan_words.once(first), evidence
    if len(results) == 2:
        return _two_groups(results, first, rounds), evidence
    if evidence.rounds < 2:
        return Round("pairs", plan_pairs.neighbours(chosen, shift=evidence.rounds)), evidence
    bad = [n for n in tested if n not in evidence.cleared and evidence.failed(n)]
    groups = {group_of[name] for name in bad}
    if len(groups) > third(chosen) and evidence.rounds >= 4:
        words = f"{len(groups)} of {len(chosen)} groups fail towards the others: fabric or placement, not a node"
        return plan_words.nobody(bad, first, "burnin.fabric", words, evidence.words), evidence
    if bad and evidence.rounds < ACROSS_ROUNDS:
        return Round("confirm", _seconds(bad, evidence, group_of)), evidence
    return _who_fails_across(bad, evidence, first, again, group_of, everything), evidence


def _two_groups(
    results: Sequence[GroupResult], first: GroupResult, rounds: Sequence[Sequence[GroupResult]]
) -> Round | Decision:
    """Two groups fail towards each other: other nodes of both are tried, and no third group can tell which it is."""
    if any(g.outcome == OK for done in rounds for g in done):
        return plan_words.once(first)
    if len(rounds) < 3:
        turn = len(rounds) + 1
        pair = tuple(g.nodes[turn % len(g.nodes)] for g in results)
        return Round("pairs", (pair,))
    words = "the two groups of nodes fail towards each other, whichever of their nodes are tried"
    return plan_words.nobody([], first, "burnin.switch", words)


def _seconds(bad: Sequence[str], evidence: Evidence, group_of: Mapping[str, tuple[str, ...]]) -> plan_pairs.Groups:
    """Pair each node that fails towards other groups with one that passed across; once it failed with two of them, another of
    its own group."""
    good = [n for n in evidence.nodes if n in evidence.cleared]
    groups: list[tuple[str, ...]] = []
    used: set[str] = set()
    for name in bad:
        mates = [n for n in group_of[name] if n not in used and n not in evidence.of]
        proven = len({t.other(name) for t in evidence.failed(name)} & evidence.cleared) > 1
        other = mates[0] if mates and proven else name
        fresh = [g for g in good if g not in used and g not in group_of[name]]
        met = {t.other(name) for t in evidence.of[name]}
        partner = next((g for g in fresh if g not in met), fresh[0] if fresh else "")
        if partner and other not in used:
            used |= {other, partner}
            groups.append((other, partner))
    return tuple(groups) or (tuple(evidence.nodes[:2]),)


def _who_fails_across(
    bad: Sequence[str],
    evidence: Evidence,
    first: GroupResult,
    again: Sequence[GroupResult],
    group_of: Mapping[str, tuple[str, ...]],
    everything: Evidence,
) -> Round | Decision:
    if not bad:
        if len(again) < 2:
            return Round("again", (first.nodes,))
        words = "one node of each group fail together again and again, and every pair of them is fine"
        return plan_words.nobody([], first, "burnin.whole-only", words)
    for name in bad:
        mates = [n for n in group_of[name] if n in evidence.of and n != name]
        if mates and all(n in bad for n in mates) and all(t.outcome == SLOW for t in evidence.failed(name)):
            leaf = evidence.leaf(name)
            named = f"leaf switch {leaf}" if leaf else f"the switch of {group_of[name][0]}"
            words = f"the nodes under {named} pass with one another and fail with others"
            return plan_words.nobody(group_of[name], first, "burnin.switch", words, evidence.words)
    # Who passed inside its group is not convicted; a group of one has nothing else to say for itself.
    lonely = [n for n in plan_guilt.convicted(evidence) if n not in everything.cleared]
    if lonely and len(bad) <= third(evidence.nodes):
        return plan_words.convict(evidence, lonely)
    words = "it passes inside its group and fails towards others; the evidence is not enough to convict a node"
    return plan_words.nobody(bad, first, "burnin.cannot-tell", words, evidence.words)
