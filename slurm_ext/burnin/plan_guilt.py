"""When the evidence is enough to convict a node. Pure.

A run that fails by chance must never cost a node. So a failure counts against a node only where its partner passed with
somebody else and, for slowness, where the nodes beside it (same leaf switch, same round, same sort of pair) did better; and
how many it takes depends on how often bystanders fail. A node that passed with anybody is never convicted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from slurm_ext.burnin.model import OK, SLOW, WRONG
from slurm_ext.burnin.plan_evidence import Evidence, Test, doubtful

#: Partners that a node must have failed with, each of which passed with somebody else (two, where there are no more).
PARTNERS = 3

#: A node that fails without any partner is convicted after so many runs of its own: slowness comes by chance more often.
ALONE_TIMES, ALONE_SLOW_TIMES = 2, 4

#: Evidence needed, as the logarithm (base 10) of how unlikely it is by chance: in all, plus that of the number of nodes;
#: and in the tests that are left when those with the partner it failed with most are taken away (a bad pair is no node).
WEIGHT, WEIGHT_BEYOND_PAIR = 6.0, 4.6

#: With so many tests of bystanders, none of which was as slow, three failures convict a slow node at once.
CALM_TESTS = 60

#: A slow node is about as slow with everybody, dips by chance are not: only speeds within this factor count together, and
#: each then weighs so much more.
ALIKE, ALIKE_WEIGHT = 1.3, 0.2

#: What bystanders show counts as slow as a node's own failures up to this factor of their fastest.
AS_SLOW = 1.1

#: Below this share of what pairs do that pass, slowness is of another sort than dips: it comes as seldom as a hang, and its
#: speeds need not agree.
FAR = 1 / 8

#: Two nodes whose middle speeds differ by more than this are not slow by one switch.
ONE_SWITCH = 1.5

#: Where switches are not known, so many tests must be with nodes next to it in Slurm's order, on either side.
NEAR, NEAR_TESTS = 3, 2

#: A slow test counts only below this share of what others showed at the same time: in a storm all are slow.
BEHIND = 0.8

#: With fewer tests of bystanders in a round, half of them failing is no storm but chance.
STORM_TESTS = 4

#: Failures of the hard kinds by bystanders weigh on the others' until one failure weighs less than this.
HARD_WEIGHT = 1.5

#: What is believed of failures by chance before any bystander was seen: failures, tests. Slow ones, others, and
#: those that are slow by far.
_SLOW_PRIOR, _HARD_PRIOR, _FAR_PRIOR = (1.0, 20.0), (0.5, 60.0), (0.2, 40.0)


def convicted(evidence: Evidence) -> list[str]:
    """Return the nodes whose fault is proven, in the order of the job."""
    open_ = doubtful(evidence)
    return [name for name in open_ if by_itself(evidence, name) or _by_partners(evidence, name, open_)]


def by_itself(evidence: Evidence, node: str) -> bool:
    """Say whether a node showed its fault without need of a partner, and often enough."""
    outcomes = evidence.alone.get(node, ())
    hint = evidence.hints.get(node)
    # The first run must have shown the same: what is now alone was in it, too.
    alike = len(evidence.nodes) <= 2 and evidence.first not in (OK, SLOW)
    kinds = {_hard_kind(outcome) for outcome in (evidence.first, *outcomes) if outcome not in (OK, SLOW)}
    sure = len(kinds) == 1 and ((hint is not None and hint.local) or alike)
    needed = ALONE_TIMES if sure else ALONE_TIMES + 1
    slow = evidence.first == SLOW and len(outcomes) >= ALONE_SLOW_TIMES and set(outcomes) == {SLOW}
    speeds = evidence.alone_gbs.get(node, ())
    return evidence.own.get(node, 0) >= needed or (slow and max(speeds) <= ALIKE * min(speeds))


def witnesses(evidence: Evidence, node: str) -> list[str]:
    """Return the partners that a node failed with and that passed with somebody else, in the order of the tests."""
    fine = [evidence.cleared if t.outcome == SLOW else evidence.working for t in evidence.failed(node)]
    tests = zip(evidence.failed(node), fine, strict=True)
    return list(dict.fromkeys(p for t, those in tests if (p := t.other(node)) in those))


def alone_under_switch(evidence: Evidence, node: str) -> bool:
    """Say whether a node is the only one of its leaf switch here: then a slow switch looks just as a slow node."""
    leaf = evidence.leaf(node)
    return bool(leaf) and evidence.switches and all(n == node or evidence.leaf(n) != leaf for n in evidence.nodes)


def counted(evidence: Evidence, node: str, open_: Sequence[str]) -> list[Test]:
    """Return the failures that tell against a node: slow ones that agree, and others, with partners that passed elsewhere."""
    aside = set(open_)
    slow = [t for t in evidence.failed(node) if t.outcome == SLOW and _counts(evidence, node, t, aside)]
    hard = [t for t in evidence.failed(node) if t.outcome != SLOW and t.other(node) in evidence.working]
    if len(evidence.nodes) <= PARTNERS:
        # Of so few, what points at the other of the two is not held against this one.
        hard = [t for t in hard if t.other(node) not in t.suspects or node in t.suspects]
    hard = [] if node in evidence.working else hard
    return _alike(evidence, node, slow) + hard


def _by_partners(evidence: Evidence, node: str, open_: Sequence[str]) -> bool:
    tests = counted(evidence, node, open_)
    speeds = sorted(t.busbw_gbs or 0.0 for t in tests if t.outcome == SLOW)
    if speeds and not _not_the_switch(evidence, node, open_, tests, speeds[len(speeds) // 2]):
        tests = [t for t in tests if t.outcome != SLOW]
    partners = Counter(t.other(node) for t in tests)
    if not partners or len(partners) < min(PARTNERS, len(evidence.nodes) - 1):
        return False
    most, times = partners.most_common(1)[0]
    calm = _bystanders(evidence, open_)
    weight_slow, weight_hard = _weights(evidence, node, calm, max(speeds, default=0.0))
    if len(tests) - times >= 2:
        # Three failures of one kind are enough where nothing else fails like that, and the first run did.
        kinds = {_kind(t) for t in tests}
        as_slow = _as_slow(calm, max(speeds, default=0.0))
        if kinds == {SLOW} == {evidence.first} and len(open_) == 1 and len(calm) >= CALM_TESTS and not as_slow:
            return True
        only = not hard_without(evidence, open_, (node,))
        only = only and evidence.first != SLOW
        if len(kinds) == 1 and SLOW not in kinds and len(tests) >= 3 and only and weight_hard >= HARD_WEIGHT:
            return True
    # With two partners only, all that speaks against a bad pair is what happened with one other node.
    beyond_pair = WEIGHT_BEYOND_PAIR * (1.5 if len(evidence.nodes) <= PARTNERS else 1.0)
    far_gbs = _far_gbs(evidence)
    weight_far = _weight(sum(_far(t, far_gbs) for t in calm), len(calm), _FAR_PRIOR)
    slow = {t: max(weight_slow, weight_far) if _far(t, far_gbs) else weight_slow for t in tests}
    weights = [(t, slow[t] if t.outcome == SLOW else weight_hard) for t in tests]
    return (
        sum(w for _, w in weights) >= WEIGHT + math.log10(len(evidence.nodes))
        and sum(w for t, w in weights if t.other(node) != most) >= beyond_pair
    )


def hard_without(evidence: Evidence, open_: Sequence[str], guilty: Sequence[str]) -> list[str]:
    """Return the doubtful nodes that failed otherwise than by slowness, and not only beside the guilty ones."""
    return [
        n
        for n in open_
        if n not in guilty and any(t.outcome != SLOW and t.other(n) not in guilty for t in evidence.failed(n))
    ]


def _kind(test: Test) -> str:
    return SLOW if test.outcome == SLOW else _hard_kind(test.outcome)


def _hard_kind(outcome: str) -> str:
    return outcome if outcome == WRONG else "stop"


def _bystanders(evidence: Evidence, open_: Sequence[str]) -> list[Test]:
    """Return the tests without a doubtful node, but for the rounds in which half of them failed: a storm, which is held
    against nobody and says nothing of the others' rounds."""
    aside = set(open_)
    return [
        test
        for row in evidence.rows.values()
        for tests in [[t for t in row if not aside.intersection(t.nodes)]]
        if len(tests) < STORM_TESTS or 2 * sum(t.outcome == OK for t in tests) > len(tests)
        for test in tests
    ]


def _weights(evidence: Evidence, node: str, calm: Sequence[Test], speed_gbs: float) -> tuple[float, float]:
    """Return what one slow failure of a node weighs, and one of another kind: the rarer among bystanders, the more.

    Only what was about as slow counts: a fabric that hovers at the floor does not explain half of its speed. Where leaf
    switches are known, those below its own count if they are calmer: what another switch does is not its affair.
    """
    leaf = evidence.leaf(node)
    beside = [t for t in calm if leaf and leaf in map(evidence.leaf, t.nodes)]
    slow = max(_weight(_as_slow(tests, speed_gbs), len(tests), _SLOW_PRIOR) for tests in (calm, beside))
    hard = _weight(sum(t.outcome not in (OK, SLOW) for t in calm), len(calm), _HARD_PRIOR)
    return slow + ALIKE_WEIGHT, hard


def _as_slow(tests: Sequence[Test], speed_gbs: float) -> int:
    """Return how many tests failed by being about as slow as a speed, or slower."""
    return sum(t.outcome == SLOW and (t.busbw_gbs or 0.0) <= AS_SLOW * speed_gbs for t in tests)


def _alike(evidence: Evidence, node: str, tests: Sequence[Test]) -> list[Test]:
    """Return the most of these tests whose speeds, by those of the others in their rounds, lie within a factor."""
    speeds = []
    far_gbs = _far_gbs(evidence)
    far = [test for test in tests if _far(test, far_gbs)]
    for test in tests:
        others = sorted(t.busbw_gbs or 0.0 for t in evidence.rows[test.number] if node not in t.nodes)
        usual = others[len(others) // 2] if others else 0.0
        speeds.append(((test.busbw_gbs or 0.0) / (usual or 1.0), test))
    best: list[Test] = []
    for low, _ in speeds:
        best = max(best, [test for speed, test in speeds if low <= speed <= ALIKE * low], key=len)
    return far if len(far) >= len(best) else best


def _far_gbs(evidence: Evidence) -> float:
    """Return below which speed (GB/s) no dip brings a pair, by the middle of the pairs that passed; 0.0 where none did."""
    passed = sorted(t.busbw_gbs for t in evidence.tests if t.outcome == OK and t.busbw_gbs)
    return FAR * passed[len(passed) // 2] if passed else 0.0


def _far(test: Test, far_gbs: float) -> bool:
    return test.outcome == SLOW and (test.busbw_gbs or 0.0) < far_gbs


def _weight(failed: int, tests: int, prior: tuple[float, float]) -> float:
    """Return what one failure weighs where so many of the bystanders' tests failed."""
    return -math.log10((failed + prior[0]) / (tests + prior[1]))


def _counts(evidence: Evidence, node: str, test: Test, aside: set[str]) -> bool:
    """Say whether a slow test tells against a node: its partner passed elsewhere, and others did better at the same time,
    in the same place: below the same switch, in a pair of the same sort (inside it, or towards others)."""
    partner = test.other(node)
    if partner not in evidence.cleared:
        return False
    across = evidence.across(test)
    for own in (node, partner) if across else (node,):
        side = evidence.leaf(own)
        beside = _beside(evidence, test.number, side, own, across, {node, *aside})
        if beside:
            if not _behind(test, beside, best=True):
                return False
        elif across and own == node and any(evidence.leaf(n) == side for n in evidence.cleared if n != node):
            # Nobody looked at that time whether its switch was slow towards others: then before and after.
            near = [
                next((found for n in numbers if (found := _beside(evidence, n, side, own, True, {node, *aside}))), [])
                for numbers in (range(test.number - 1, 0, -1), range(test.number + 1, evidence.rounds + 1))
            ]
            return any(near) and all(any(t.outcome == OK for t in tests) for tests in near if tests)
    if across and evidence.leaf(node):
        return True
    if not evidence.leaf(node) and not clean(evidence, partner, {node, *aside}):
        return False
    now = [t for t in evidence.rows[test.number] if not {node, *aside}.intersection(t.nodes)]
    return not now or _behind(test, now, best=False)


def clean(evidence: Evidence, node: str, aside: set[str]) -> bool:
    """Say whether a partner does well with most others: one below a bad switch is slow with whom it meets."""
    outcomes = [t.outcome for t in evidence.of[node] if t.other(node) not in aside]
    return 2 * outcomes.count(SLOW) <= len(outcomes)


def _beside(evidence: Evidence, number: int, side: str, own: str, across: bool, aside: set[str]) -> list[Test]:
    """Return the tests of one round below one leaf switch, and of one sort, without some nodes."""
    return [
        t
        for t in evidence.rows.get(number, ())
        if side and own not in t.nodes and side in map(evidence.leaf, t.nodes) and not aside.intersection(t.nodes)
        if across == evidence.across(t)
    ]


def _behind(test: Test, others: Sequence[Test], *, best: bool) -> bool:
    """Say whether a test is well slower than the best, or the middle, of others of its round."""
    speeds = sorted(t.busbw_gbs or 0.0 for t in others)
    return (test.busbw_gbs or 0.0) < BEHIND * speeds[-1 if best else len(speeds) // 2]


def lacks_inside(evidence: Evidence, node: str, open_: Sequence[str]) -> bool:
    """Say whether no failure tells yet that a node is slow below its own leaf switch, too, though there one can be had."""
    leaf = evidence.leaf(node)
    if not evidence.switches or not any(t.outcome == SLOW for t in evidence.failed(node)):
        return False
    mates = any(evidence.leaf(n) == leaf for n in evidence.cleared if leaf and n != node)
    return mates and not _slow_inside(evidence, node, open_)


def _slow_inside(evidence: Evidence, node: str, open_: Sequence[str]) -> bool:
    """Say whether a node was slow with a good one below its own leaf switch, while others there were not."""
    inside = [t for t in evidence.failed(node) if t.outcome == SLOW]
    inside = [t for t in inside if evidence.leaf(t.other(node)) == evidence.leaf(node)]
    return any(_counts(evidence, node, t, set(open_)) for t in inside)


def _not_the_switch(
    evidence: Evidence, node: str, open_: Sequence[str], tests: Sequence[Test], speed_gbs: float
) -> bool:
    """Say whether slowness (these tests, in the middle to `speed_gbs`) is the node's, not that of the switch above it.

    Where leaf switches are known, it must be slow below its own. Where not, two nodes that are as slow may sit under one bad
    switch, and so may one that is slow always beside another that is slow mostly.
    """
    if evidence.leaf(node):
        return not evidence.switches or _slow_inside(evidence, node, open_)
    if evidence.company or not set(evidence.beside) <= {t.other(node) for t in tests}:
        return False
    if any(evidence.own.get(n, 0) for n in open_ if n != node) or hard_without(evidence, open_, (node,)):
        return False  # a node that is at fault otherwise cannot bear witness, and it may have been the only mate
    needed = 1 if len(tests) <= PARTNERS else NEAR_TESTS
    if any(sum(t.other(node) in side for t in tests) < needed for side in near(evidence, node)):
        return False
    # By the speeds that count against it, or by all it had: with two troubles at once either may be the switch's.
    own = [speed for speed in (speed_gbs, _speed(evidence, node, "")) if speed]
    if any(_often_as_slow(evidence, name, node, speed) for name in evidence.nodes for speed in own if name != node):
        return False
    if any(len(_as_slow_as(evidence, name, node, speed)) >= 2 for name in open_ for speed in own if name != node):
        return False
    others = [_speed(evidence, name, node) for name in slow_nodes(evidence, open_) if name != node]
    return not any(1 / ONE_SWITCH <= other / speed <= ONE_SWITCH for other in others for speed in own)


def near(evidence: Evidence, node: str) -> tuple[set[str], set[str]]:
    """Return the nodes before and behind one in Slurm's order: who sits under its switch is most likely among them, and at
    the edge of a switch only on one side."""
    nodes = evidence.nodes
    place = nodes.index(node)
    before = {nodes[(place - step) % len(nodes)] for step in range(1, NEAR + 1)} - {node}
    return before, {nodes[(place + step) % len(nodes)] for step in range(1, NEAR + 1)} - {node}


def _often_as_slow(evidence: Evidence, node: str, without: str, speed_gbs: float) -> bool:
    """Say whether a node was as slow as a speed, neither more nor less, with three partners and nearly half the time: it may
    sit below one switch with the node `without`."""
    tests = [t for t in evidence.of[node] if without not in t.nodes]
    alike = _as_slow_as(evidence, node, without, speed_gbs)
    return len({t.other(node) for t in alike}) >= 3 and len(alike) > 0.45 * len(tests)


def _as_slow_as(evidence: Evidence, node: str, without: str, speed_gbs: float) -> list[Test]:
    """Return the tests of a node with others than one in which it was as slow as a speed, neither more nor less."""
    tests = [t for t in evidence.of[node] if t.outcome == SLOW and without not in t.nodes]
    return [t for t in tests if 1 / ALIKE <= (t.busbw_gbs or 0.0) / speed_gbs <= ALIKE]


def _speed(evidence: Evidence, node: str, without: str) -> float:
    """Return the middle speed (GB/s) of the slow tests of a node with others than one, 0.0 where it has none."""
    speeds = sorted(t.busbw_gbs or 0.0 for t in evidence.of[node] if t.outcome == SLOW and without not in t.nodes)
    return speeds[len(speeds) // 2] if speeds else 0.0


def slow_nodes(evidence: Evidence, open_: Sequence[str]) -> list[str]:
    """Return the nodes that were slow with all partners, and those that passed at times and were slow mostly."""
    found = [n for n in open_ if any(t.outcome == SLOW for t in evidence.failed(n))]
    return found + [n for n in evidence.nodes if n not in open_ and _mostly_slow(evidence, n, open_)]


def _mostly_slow(evidence: Evidence, node: str, open_: Sequence[str]) -> bool:
    """Say whether a node was slow with most of its partners: again and again with one is a matter of the two."""
    tests = [t for t in evidence.of[node] if t.other(node) not in open_]
    slow = {t.other(node) for t in tests if t.outcome == SLOW}
    return len(slow) >= 3 and len(slow) > 0.6 * len({t.other(node) for t in tests})
