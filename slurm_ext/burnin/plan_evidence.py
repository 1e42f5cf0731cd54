"""What the rounds so far say of each node. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_ext.burnin.model import OK, SLOW, GroupResult, Suspect


class Test(NamedTuple):
    """One pair in one round."""

    number: int
    nodes: tuple[str, str]
    outcome: str
    busbw_gbs: float | None
    suspects: tuple[str, ...] = ()

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
    rows: Mapping[int, tuple[Test, ...]]  # tests by round
    cleared: frozenset[str]  # passed together with somebody
    working: frozenset[
        str
    ]  # came to a right end with somebody, if slowly: no evidence of a hang, an error, a wrong sum
    alone: Mapping[str, tuple[str, ...]]  # outcomes without a partner
    alone_gbs: Mapping[str, tuple[float, ...]]  # and the speeds of these runs
    first: str  # how the first run of all ended
    own: Mapping[str, int]  # runs after the first in which it failed without a partner, or by an error of its own
    hints: Mapping[str, Suspect]  # from the first run
    words: Mapping[str, str]  # what went wrong last, by node
    again: tuple[GroupResult, ...]  # all of them, repeated
    parts: Mapping[tuple[str, ...], tuple[GroupResult, ...]]  # runs of three nodes and more, but not of all
    beside: tuple[str, ...] = ()  # of other groups, next to these in Slurm's order: perhaps under the same switch
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
    passed, working = set(cleared), set(cleared)
    alone: dict[str, tuple[str, ...]] = {}
    alone_gbs: dict[str, tuple[float, ...]] = {}
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
                alone_gbs[name] = (*alone_gbs.get(name, ()), group.busbw_gbs or 0.0)
                own[name] += group.outcome not in (OK, SLOW)
            elif len(members) == len(nodes):
                again.append(group)
            elif len(members) == 2:
                suspects = tuple(s.node for s in group.suspects)
                test = Test(paired, (members[0], members[1]), group.outcome, group.busbw_gbs, suspects)
                tests.append(test)
                for name in members:
                    of[name].append(test)
            else:
                parts[members] = (*parts.get(members, ()), group)
            if group.outcome in (OK, SLOW) and len(members) > 1:
                working.update(members)
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
        {number: tuple(t for t in tests if t.number == number) for number in range(1, paired + 1)},
        frozenset(passed),
        frozenset(working),
        alone,
        alone_gbs,
        first.outcome,
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
    return [n for n in evidence.nodes if n not in evidence.cleared and not evidence.of[n] and n not in evidence.alone]
