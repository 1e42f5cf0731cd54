"""What the rounds so far say of each node, and when that is enough to convict one. Pure.

A run that fails by chance must never cost a node. So a failure counts against a node only where its partner passed with
somebody else and, for slowness, where the nodes beside it (same leaf switch, same round, same sort of pair) did pass; and
how many it takes depends on how often bystanders fail. A node that passed with anybody is never convicted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_ext.burnin.model import OK, SLOW, WRONG, GroupResult, Suspect

#: Partners that a node must have failed with, each of which passed with somebody else (two, where there are no more).
PARTNERS = 3

#: A node that fails without any partner is convicted after so many runs of its own: slowness comes by chance more often.
ALONE_TIMES, ALONE_SLOW_TIMES = 2, 4

#: Evidence needed, as the logarithm (base 10) of how unlikely it is by chance: in all, plus that of the number of nodes;
#: and in the tests that are left when those with the partner it failed with most are taken away (a bad pair is no node).
WEIGHT, WEIGHT_BEYOND_PAIR = 6.0, 4.6

#: With so many tests of bystanders, none of which failed, three failures convict a slow node at once.
CALM_TESTS = 60

#: A slow node is about as slow with everybody, dips by chance are not: only speeds within this factor count together, and
#: each then weighs so much more.
ALIKE, ALIKE_WEIGHT = 1.3, 0.3

#: Failures of the hard kinds by bystanders weigh on the others' until one failure weighs less than this.
HARD_WEIGHT = 1.5

#: What is believed of failures by chance before any bystander was seen: failures, tests. First slow ones, then others.
_SLOW_PRIOR, _HARD_PRIOR = (1.0, 20.0), (0.2, 40.0)


class Test(NamedTuple):
    """One pair in one round."""

    number: int
    nodes: tuple[str, str]
    outcome: str
    busbw_gbs: float | None

    def other(self, node: str) -> str:
        """Return the partner of a node."""
        return self.nodes[1] if self.nodes[0] == node else self.nodes[0]


class Evidence(NamedTuple):
    """What the rounds so far say. `rounds` counts those with pairs."""

    nodes: tuple[str, ...]
    leaves: Mapping[str, str]
    rounds: int
    tests: tuple[Test, ...]
    of: Mapping[str, tuple[Test, ...]]  # tests by node
    cleared: frozenset[str]  # passed together with somebody
    alone: Mapping[str, tuple[str, ...]]  # outcomes without a partner
    own: Mapping[str, int]  # runs after the first in which it failed without a partner, or by an error of its own
    hints: Mapping[str, Suspect]  # from the first run
    words: Mapping[str, str]  # what went wrong last, by node
    again: tuple[GroupResult, ...]  # all of them, repeated
    parts: Mapping[tuple[str, ...], tuple[GroupResult, ...]]  # runs of three nodes and more, but not of all
    company: bool = False  # nodes that are not among these are slow as well, and nobody knows whose switch is whose

    def failed(self, node: str) -> list[Test]:
        """Return the tests that a node failed in."""
        return [test for test in self.of[node] if test.outcome != OK]

    def leaf(self, node: str) -> str:
        """Return the leaf switch of a node, empty where nobody knows it."""
        return self.leaves.get(node, "")

    @property
    def switches(self) -> bool:
        """True where the nodes are known to sit under more than one leaf switch."""
        return len({self.leaf(node) for node in self.nodes} - {""}) > 1

    def across(self, test: Test) -> bool:
        """Say whether a pair is known to span two leaf switches."""
        a, b = (self.leaf(node) for node in test.nodes)
        return bool(a and b) and a != b


def what(group: GroupResult) -> str:
    """Return in words how a group did."""
    return f"{group.outcome}: {group.evidence[0]}" if group.evidence else group.outcome


def third(nodes: Sequence[str]) -> int:
    """Return how many of the nodes may be at fault before it is no longer a node's fault."""
    return max(1, len(nodes) // 3)


def weigh(
    nodes: Sequence[str],
    first: GroupResult,
    rounds: Sequence[Sequence[GroupResult]],
    *,
    leaves: Mapping[str, str],
    cleared: frozenset[str] = frozenset(),
) -> Evidence:
    """Collect what the rounds behind the first run say. `cleared` passed with somebody elsewhere."""
    tests: list[Test] = []
    of: dict[str, list[Test]] = {name: [] for name in nodes}
    passed = set(cleared)
    alone: dict[str, tuple[str, ...]] = {}
    own: Counter[str] = Counter()
    words: dict[str, str] = {}
    again: list[GroupResult] = []
    parts: dict[tuple[str, ...], tuple[GroupResult, ...]] = {}
    paired = 0
    for done in rounds:
        paired += any(len(group.nodes) == 2 for group in done)
        for group in done:
            members = group.nodes
            if len(members) == 1:
                name = members[0]
                alone[name] = (*alone.get(name, ()), group.outcome)
                own[name] += group.outcome not in (OK, SLOW)
            elif len(members) == len(nodes):
                again.append(group)
            elif len(members) == 2:
                test = Test(paired, (members[0], members[1]), group.outcome, group.busbw_gbs)
                tests.append(test)
                for name in members:
                    of[name].append(test)
            else:
                parts[members] = (*parts.get(members, ()), group)
            if group.outcome == OK:
                passed.update(members if len(members) > 1 else ())
            elif len(members) <= 2:
                words.update((name, what(group)) for name in members)
                own.update(s.node for s in group.suspects if s.local and len(members) == 2)
    return Evidence(
        tuple(nodes),
        leaves,
        paired,
        tuple(tests),
        {name: tuple(found) for name, found in of.items()},
        frozenset(passed),
        alone,
        own,
        {s.node: s for s in first.suspects},
        words,
        tuple(again),
        parts,
    )


def doubtful(evidence: Evidence) -> list[str]:
    """Return the nodes that failed, or were pointed at, and never passed with anybody."""
    return [
        name
        for name in evidence.nodes
        if name not in evidence.cleared
        and (name in evidence.hints or evidence.failed(name) or any(o != OK for o in evidence.alone.get(name, ())))
    ]


def untested(evidence: Evidence) -> list[str]:
    """Return the nodes that no run has said anything of since the first."""
    return [
        n for n in evidence.nodes if n not in evidence.cleared and not evidence.of[n] and n not in evidence.alone
    ]


def convicted(evidence: Evidence) -> list[str]:
    """Return the nodes whose fault is proven, in the order of the job."""
    open_ = doubtful(evidence)
    return [name for name in open_ if by_itself(evidence, name) or _by_partners(evidence, name, open_)]


def by_itself(evidence: Evidence, node: str) -> bool:
    """Say whether a node showed its fault without need of a partner, and often enough."""
    outcomes = evidence.alone.get(node, ())
    slow_times = sum(1 for outcome in outcomes if outcome == SLOW)
    hint = evidence.hints.get(node)
    needed = ALONE_TIMES if (hint is not None and hint.local) or len(evidence.nodes) <= 2 else ALONE_TIMES + 1
    return evidence.own.get(node, 0) >= needed or (OK not in outcomes and slow_times >= ALONE_SLOW_TIMES)


def witnesses(evidence: Evidence, node: str) -> list[str]:
    """Return the partners that a node failed with and that passed with somebody else, in the order of the tests."""
    return list(dict.fromkeys(p for t in evidence.failed(node) if (p := t.other(node)) in evidence.cleared))


def alone_under_switch(evidence: Evidence, node: str) -> bool:
    """Say whether a node is the only one of its leaf switch here: then a slow switch looks just as a slow node."""
    leaf = evidence.leaf(node)
    return bool(leaf) and evidence.switches and all(n == node or evidence.leaf(n) != leaf for n in evidence.nodes)


def _by_partners(evidence: Evidence, node: str, open_: Sequence[str]) -> bool:
    aside = set(open_)
    calm = [t for t in evidence.tests if not aside.intersection(t.nodes)]
    slow = _alike([t for t in evidence.failed(node) if t.outcome == SLOW and _counts(evidence, node, t, aside)])
    if slow and not _not_the_switch(evidence, node, slow, open_):
        slow = []
    hard = [t for t in evidence.failed(node) if t.outcome != SLOW and t.other(node) in evidence.cleared]
    partners = Counter(t.other(node) for t in slow + hard)
    if len(partners) < min(PARTNERS, len(evidence.nodes) - 1):
        return False
    most, times = partners.most_common(1)[0]
    weight_slow = _weight(sum(t.outcome == SLOW for t in calm), len(calm), _SLOW_PRIOR) + ALIKE_WEIGHT
    weight_hard = _weight(sum(t.outcome not in (OK, SLOW) for t in calm), len(calm), _HARD_PRIOR)
    if len(open_) == 1 and len(slow + hard) - times >= 2:
        # The only suspect: three failures of one kind are enough where nothing else fails like that.
        if len(slow) >= 3 and not hard and len(calm) >= CALM_TESTS and all(t.outcome == OK for t in calm):
            return True
        kinds = {WRONG if t.outcome == WRONG else "stop" for t in hard}
        if len(hard) >= 3 and not slow and len(kinds) == 1 and weight_hard >= HARD_WEIGHT:
            return True
    weights = [(t, weight_slow if t.outcome == SLOW else weight_hard) for t in slow + hard]
    return (
        sum(w for _, w in weights) >= WEIGHT + math.log10(len(evidence.nodes))
        and sum(w for t, w in weights if t.other(node) != most) >= WEIGHT_BEYOND_PAIR
    )


def _alike(tests: Sequence[Test]) -> list[Test]:
    """Return the most of these tests whose speeds lie within a factor of one another."""
    best: list[Test] = []
    for least in tests:
        low = least.busbw_gbs or 0.0
        near = [t for t in tests if low <= (t.busbw_gbs or 0.0) <= ALIKE * low]
        best = max(best, near, key=len)
    return best


def _weight(failed: int, tests: int, prior: tuple[float, float]) -> float:
    """Return what one failure weighs where so many of the bystanders' tests failed."""
    return -math.log10((failed + prior[0]) / (tests + prior[1]))


def _counts(evidence: Evidence, node: str, test: Test, aside: set[str]) -> bool:
    """Say whether a slow test tells against a node: a good partner, and at the same time in the same place others passed."""
    if test.other(node) not in evidence.cleared:
        return False
    others = [
        t for t in evidence.tests if t.number == test.number and node not in t.nodes and not aside.intersection(t.nodes)
    ]
    leaf, across = evidence.leaf(node), evidence.across(test)
    beside = [t for t in others if leaf and across == evidence.across(t) and leaf in map(evidence.leaf, t.nodes)]
    if beside:
        return any(t.outcome == OK for t in beside)
    if across and any(evidence.leaf(n) == leaf for n in evidence.cleared if n != node):
        return False  # nobody looked whether its switch was slow towards others at that time
    return not others or 2 * sum(t.outcome == OK for t in others) >= len(others)


def _not_the_switch(evidence: Evidence, node: str, slow: Sequence[Test], open_: Sequence[str]) -> bool:
    """Say whether slowness is the node's, not that of the switch above it.

    Where leaf switches are known, it must be slow inside its own and towards others. Where not, two slow nodes may be two
    nodes under one bad switch, and so may one that is slow always beside another that is slow mostly.
    """
    if evidence.leaf(node):
        if not evidence.switches:
            return True
        inside = any(evidence.leaf(test.other(node)) == evidence.leaf(node) for test in slow)
        return inside and any(evidence.across(test) for test in slow)
    return not evidence.company and not slow_nodes(evidence, open_, but=node)


def slow_nodes(evidence: Evidence, open_: Sequence[str], *, but: str = "") -> list[str]:
    """Return the nodes that were slow with all partners, and those that passed at times and were slow mostly."""
    found = [n for n in open_ if n != but and any(t.outcome == SLOW for t in evidence.failed(n))]
    return found + [n for n in evidence.nodes if n not in open_ and _mostly_slow(evidence, n, open_)]


def _mostly_slow(evidence: Evidence, node: str, open_: Sequence[str]) -> bool:
    tests = [t for t in evidence.of[node] if t.other(node) not in open_]
    slow = sum(t.outcome == SLOW for t in tests)
    return slow >= 3 and slow > 0.6 * len(tests)
