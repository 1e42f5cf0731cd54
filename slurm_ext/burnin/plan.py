"""What to run next, and when to stop: from the rounds so far to the next round or to the decision. Pure.

All nodes first. On failure: a node whose own error showed runs alone while the rest run together; otherwise pairs, again
with other partners, then the doubtful with nodes that passed. These rounds of pairs are the repeated measurement: whoever
passes in them is cleared for good, and when all are, all run together once more. A node is convicted only where

- it failed twice without any partner (four times where it was only slow), or
- it failed with three partners (two where there are no more), each of which passed with somebody else, never passed with
  anybody, and failed more often than chance makes likely on what was seen of the others (`plan_evidence`).

Two nodes alone convict neither, unless one did the same with another partner before (`priors`); more than a third of the
nodes convicts none (that is fabric, placement or software), nor does a slow leaf switch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_ext.burnin import plan_evidence, plan_guilt, plan_pairs, plan_words
from slurm_ext.burnin.model import OK, SLOW, Decision, GroupResult, Past, Round, RoundResult
from slurm_ext.burnin.plan_evidence import Evidence, third, weigh

#: Rounds of pairs in one burn-in: who is not convicted by then is left open.
MAX_ROUNDS = 14

#: Times that all nodes run together again, after every single node passed with somebody.
AGAIN_TIMES = 3

#: Times that two nodes alone are tried together once more, before nobody can tell which of them it is.
PAIR_AGAIN_TIMES = 2


def next_step(
    nodes: Sequence[str],
    history: Sequence[RoundResult],
    *,
    leaves: Mapping[str, str] | None = None,
    group_nodes: int = 64,
    rails: bool = True,
    priors: Sequence[Past] = (),
    now: float | None = None,
    conclude: bool = False,
) -> Round | Decision:
    """Return the next round to run, or the decision. `nodes` are in Slurm's order: neighbours share a switch.

    `leaves` names the leaf switch of nodes, as far as known. `rails` False asks for the decision without naming the rail
    of a culprit. `conclude` says that time is up: a decision with all that are convicted so far, or, where nobody is, what
    would be run next. `priors` are earlier burn-ins of these nodes and of their partners then; with
    `now` (seconds since 1970) only those of the last day count.
    """
    known = leaves or {}
    software = [s for done in history for group in done.groups for s in group.environment]
    if software:
        return plan_words.no_tool(software)
    if len(nodes) > group_nodes:
        from slurm_ext.burnin import plan_groups

        step, evidence = plan_groups.step(nodes, history, leaves=known, group_nodes=group_nodes, conclude=conclude)
    else:
        if not history:
            return Round("all", (tuple(nodes),))
        first = history[0].groups[0]
        if first.outcome == OK:
            return plan_words.passed(first, len(nodes))
        rounds = [done.groups for done in history[1:] if done.kind != "rails"]
        evidence = weigh(nodes, first, rounds, leaves=known)
        step = localise(evidence, first)
        if isinstance(step, Round) and conclude:
            step = _so_far(evidence) or step
    if isinstance(step, Round):
        return step
    if priors and not step.culprits and step.suspects:
        from slurm_ext.burnin import priors as past

        step = past.second_offence(step, evidence, priors, now=now)
    return _rails(step, history, evidence) if rails and not conclude and step.culprits else _with_rails(step, history)


def survey_step(nodes: Sequence[str], history: Sequence[RoundResult]) -> Round | None:
    """Return the next round of a survey (all nodes, then pairs twice), or None at its end: for measuring floors."""
    if not history:
        return Round("all", (tuple(nodes),))
    done = len(history) - 1
    return Round("pairs", plan_pairs.neighbours(nodes, shift=done)) if done < (2 if len(nodes) > 2 else 0) else None


def suspects(nodes: Sequence[str], history: Sequence[RoundResult], *, group_nodes: int = 64) -> tuple[str, ...]:
    """Return whom a burn-in that ends for lack of time leaves open, for the next attempt to go without them: who was tried
    with others and passed with nobody. None where that is more than a third, or the nodes ran in groups."""
    if len(nodes) > group_nodes or len(history) < 2:
        return ()
    rounds = [done.groups for done in history[1:] if done.kind != "rails"]
    open_ = plan_evidence.doubtful(weigh(nodes, history[0].groups[0], rounds, leaves={}))
    return tuple(open_) if len(open_) <= third(nodes) else ()


def localise(evidence: Evidence, first: GroupResult) -> Round | Decision:
    """Return what to run next among nodes whose first run together failed, or what came out."""
    nodes = evidence.nodes
    if len(nodes) <= 2:
        return _few(evidence, first)
    pointing = [name for name in nodes if name in evidence.hints and evidence.hints[name].local]
    if not evidence.alone and not evidence.tests and 0 < len(pointing) <= third(nodes):
        rest = tuple(name for name in nodes if name not in pointing)
        return Round("isolate", (rest, *((name,) for name in pointing)))
    guilty = plan_guilt.convicted(evidence)
    retry = tuple((name,) for name in nodes if _alone_again(evidence, name) and name not in guilty)
    if retry:
        return Round("alone", retry)
    if evidence.rounds < 2 and not (evidence.alone and evidence.cleared):
        return Round("pairs", plan_pairs.opening(evidence, without=guilty))
    open_ = [name for name in plan_evidence.doubtful(evidence) if name not in guilty]
    untested = plan_evidence.untested(evidence)
    # Slowness all around may be a storm that passes, and costs less time than hangs do.
    slow = all(t.outcome in (OK, SLOW) for t in evidence.tests)
    patience = 3 if not slow else 7 if evidence.cleared else 5
    hopeless = evidence.rounds >= patience and len(open_) + len(guilty) > max(third(nodes), len(nodes) // 2)
    # A slow node that has its leaf switch to itself will look the same in ten rounds as in four.
    lone = bool(open_) and not untested and all(_as_its_switch(evidence, name) for name in open_)
    if evidence.rounds >= MAX_ROUNDS or hopeless or lone:
        return _decide(evidence, first, guilty, open_)
    if (open_ or untested) and (groups := plan_pairs.confirming(evidence, [*open_, *untested], guilty)):
        return Round("confirm", groups)
    if guilty or open_:
        return _decide(evidence, first, guilty, open_)
    return _all_cleared(evidence, first)


def _as_its_switch(evidence: Evidence, node: str) -> bool:
    failed = evidence.failed(node)
    slow = len(failed) >= 4 and all(t.outcome == SLOW for t in failed)
    return slow and plan_guilt.alone_under_switch(evidence, node)


def _so_far(evidence: Evidence) -> Decision | None:
    """Return the conviction of those whose fault is proven already, if any."""
    guilty = plan_guilt.convicted(evidence)
    return plan_words.convict(evidence, guilty) if 0 < len(guilty) <= third(evidence.nodes) else None


def _alone_again(evidence: Evidence, node: str) -> bool:
    """Say whether a node failed its last run without a partner in a way that one more run may settle."""
    outcomes = evidence.alone.get(node, ())
    hard = bool(outcomes) and outcomes[-1] not in (OK, SLOW)
    return hard and node not in evidence.cleared and len(outcomes) < plan_guilt.ALONE_TIMES


def _all_cleared(evidence: Evidence, first: GroupResult) -> Round | Decision:
    """Every node passed with somebody: was it a dip, is it a pair or a switch, or only all of them together?"""
    again = evidence.again
    if any(done.outcome == OK for done in again):
        return plan_words.once(first)
    if again:
        if leaf := slow_switch(evidence):
            names = [name for name in evidence.nodes if evidence.leaf(name) == leaf]
            words = f"the nodes under leaf switch {leaf} pass with one another and fail with others"
            return plan_words.nobody(names, first, "burnin.switch", words, evidence.words)
        if pairs := plan_pairs.bad_pairs(evidence):
            both = [name for name in evidence.nodes if name in pairs[0]]
            words = f"{both[0]} and {both[1]} fail together, and each is fine with others"
            return plan_words.nobody(both, first, "burnin.pair", words, evidence.words)
        if evidence.switches and _crossings(evidence) and evidence.rounds < 4:
            return Round("confirm", plan_pairs.crossing(evidence))
        if groups := plan_pairs.repeating(evidence):
            return Round("confirm", groups)
    if len(again) < AGAIN_TIMES:
        return Round("again", (evidence.nodes,))
    words = "all nodes together fail again and again, and every one of them is fine with some other"
    return plan_words.nobody([], first, "burnin.whole-only", words)


def slow_switch(evidence: Evidence) -> str:
    """Return the leaf switch whose nodes pass with one another and fail with others, or an empty text."""
    counts = _crossings(evidence)
    for leaf, (failed, tests, rounds) in counts.items():
        inside = [t for t in evidence.tests if {evidence.leaf(n) for n in t.nodes} == {leaf}]
        well = any(t.outcome == OK for t in inside) or sum(evidence.leaf(n) == leaf for n in evidence.nodes) == 1
        elsewhere = [c for other, c in counts.items() if other != leaf]
        worst = all(failed * c[1] > c[0] * tests for c in elsewhere)
        if well and worst and failed >= 3 and rounds > 1 and failed >= 0.7 * tests:
            return leaf
    return ""


def _crossings(evidence: Evidence) -> dict[str, tuple[int, int, int]]:
    """Return for each leaf switch how many of its pairs with others failed, how many there were, in how many rounds."""
    found: dict[str, tuple[int, int, int]] = {}
    for leaf in dict.fromkeys(evidence.leaf(name) for name in evidence.nodes):
        tests = [t for t in evidence.tests if evidence.across(t) and leaf in map(evidence.leaf, t.nodes)]
        failed = [t for t in tests if t.outcome == SLOW]  # what hangs or computes wrong is no switch
        if failed:
            found[leaf] = (len(failed), len(tests), len({t.number for t in failed}))
    return found


def _few(evidence: Evidence, first: GroupResult) -> Round | Decision:
    """One or two nodes: only what a node shows without a partner can convict it, and only when it does so repeatedly."""
    nodes = evidence.nodes
    runs = max((len(outcomes) for outcomes in evidence.alone.values()), default=0)
    if not runs:
        return Round("alone", tuple((name,) for name in nodes))
    guilty = [name for name in nodes if plan_guilt.by_itself(evidence, name) and name not in evidence.cleared]
    trouble = [name for name in nodes if evidence.alone[name] and OK not in evidence.alone[name]]
    if trouble and not guilty and runs < plan_guilt.ALONE_SLOW_TIMES:
        return Round("alone", tuple((name,) for name in trouble))
    if len(guilty) == 1:
        return plan_words.convict(evidence, guilty)
    if len(guilty) == 2:
        words = "both nodes fail, each without the other"
        return plan_words.nobody(nodes, first, "burnin.fabric", words, evidence.words)
    if len(nodes) == 1:
        if trouble:
            return plan_words.nobody(nodes, first, "burnin.cannot-tell", "it fails now so, now so", evidence.words)
        return plan_words.once(first)
    # Two nodes together are a pair and the whole at once.
    together = [test.outcome for test in evidence.tests] + [done.outcome for done in evidence.again]
    if OK in together:
        return plan_words.once(first)
    if len(together) < PAIR_AGAIN_TIMES:
        return Round("again", (nodes,))
    words = "two nodes fail together and no third can tell which is at fault"
    return plan_words.nobody(nodes, first, "burnin.two-nodes", words, evidence.words)


def _decide(evidence: Evidence, first: GroupResult, guilty: Sequence[str], open_: Sequence[str]) -> Decision:
    nodes, known = evidence.nodes, evidence.words
    count = len(guilty) + len(open_)
    if guilty and not any(plan_words.kind_of(evidence, name) == SLOW for name in guilty):
        # Slowness all around, as of a busy fabric, is no reason to spare a node that hangs or computes wrong.
        count = len(guilty) + len(plan_guilt.hard_without(evidence, open_, guilty))
    if len(guilty) > third(nodes) or (count > third(nodes) and count > len(nodes) // 2):
        words = f"{count} of {len(nodes)} nodes pass with nobody: fabric, placement or software, not a node"
        return plan_words.nobody([n for n in nodes if n in guilty or n in open_], first, "burnin.fabric", words, known)
    if guilty:
        return plan_words.convict(evidence, guilty, open_)
    for name in open_:
        mates = [n for n in nodes if evidence.leaf(n) == evidence.leaf(name)]
        if evidence.leaf(name) and evidence.switches and set(mates) <= set(open_):
            words = f"all nodes under leaf switch {evidence.leaf(name)} are slow: the switch, or what is below it"
            if all(t.outcome in (OK, SLOW) for mate in mates for t in evidence.of[mate]):
                return plan_words.nobody(mates, first, "burnin.switch", words, known)
    if count > third(nodes):
        words = f"{count} of {len(nodes)} nodes pass with nobody: fabric, placement or software, not a node"
        return plan_words.nobody(open_, first, "burnin.fabric", words, known)
    words = "the evidence is not enough to convict a node"
    return plan_words.nobody(open_, first, "burnin.cannot-tell", words, known)


def _rails(decision: Decision, history: Sequence[RoundResult], evidence: Evidence) -> Round | Decision:
    """Pair each culprit that failed with partners with one that passed, to name its rail; once."""
    if any(done.kind == "rails" for done in history):
        return _with_rails(decision, history)
    used: set[str] = set(decision.culprits)
    groups: list[tuple[str, ...]] = []
    for name in decision.culprits:
        own_leaf = evidence.leaf(name)
        good = [n for n in evidence.nodes if n in evidence.cleared and n not in used]
        good.sort(key=lambda n: evidence.leaf(n) != own_leaf)
        if good and evidence.of.get(name):
            used.add(good[0])
            groups.append((name, good[0]))
    return Round("rails", tuple(groups)) if groups else decision


def _with_rails(decision: Decision, history: Sequence[RoundResult]) -> Decision:
    """Return the decision with what the round of rails said; it stands without that."""
    more = {g.nodes[0]: g.evidence[0] for done in history if done.kind == "rails" for g in done.groups if g.evidence}
    return plan_words.with_evidence(decision, more)
