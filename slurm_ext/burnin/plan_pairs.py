"""Who is tested with whom in the next round of pairs. Pure.

First neighbours, then other partners (under another leaf switch, where those are known). Then, while somebody is doubtful:
the doubtful with nodes that passed, by turns inside their leaf switch and out of it, and everybody else in pairs of the same
sort, for what fails beside a doubtful node tells how much its own failures mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from slurm_ext.burnin.model import OK, SLOW
from slurm_ext.burnin.plan_evidence import Evidence
from slurm_ext.burnin.plan_guilt import NEAR_TESTS, clean, counted, lacks_inside, near

Groups = tuple[tuple[str, ...], ...]

#: So often must a pair fail, and never pass, before it is called a bad one.
PAIR_TIMES = 3


def neighbours(nodes: Sequence[str], *, shift: int) -> Groups:
    """Return neighbours as pairs; shifted by one the second time, so that each has another partner. Odd: one idles."""
    ring = [*nodes[shift:], *nodes[:shift]]
    return tuple((ring[i], ring[i + 1]) for i in range(0, len(ring) - 1, 2))


def opening(evidence: Evidence, *, without: Sequence[str] = ()) -> Groups:
    """Return the pairs of the first two rounds: everybody but the convicted, with another partner each time."""
    nodes = [name for name in evidence.nodes if name not in without]
    if not evidence.switches:
        return neighbours(nodes, shift=evidence.rounds)
    size = Counter(map(evidence.leaf, nodes))
    place = {name: index for index, name in enumerate(evidence.nodes)}
    order = sorted(nodes, key=lambda n: (-size[evidence.leaf(n)], evidence.leaf(n), place[n]))
    if evidence.rounds == 0:
        return _Round(evidence, order, across=False).rest().groups
    # Half a turn apart in this order two nodes sit under different switches, unless one switch has more than half of all.
    half = len(order) // 2
    if len(order) % 2:
        idle = next((name for name in order if not evidence.of[name]), order[0])
        order = [idle, *(name for name in order if name != idle)]
    return tuple(zip(order[:half], order[half : 2 * half], strict=True))


def confirming(evidence: Evidence, doubtful: Sequence[str], convicted: Sequence[str]) -> Groups:
    """Return the pairs that test the doubtful further, with everybody else as control; the convicted rest."""
    across = evidence.switches and not _inside(evidence, doubtful)
    pool = [name for name in evidence.nodes if name not in convicted]
    if len(pool) % 2:
        pool.sort(key=lambda name: len(evidence.of[name]))
    return _Round(evidence, pool, across=across).suspects(doubtful).rest().groups


def crossing(evidence: Evidence) -> Groups:
    """Return pairs that span leaf switches, each with another partner than before: which of two switches is it?"""
    return _Round(evidence, evidence.nodes, across=True).rest().groups


def _inside(evidence: Evidence, doubtful: Sequence[str]) -> bool:
    """Say whether the next round is one of pairs below one switch: every second one, while a doubtful node has there a
    partner that passed and that it has not met."""
    if evidence.rounds % 2:
        return False
    for name in doubtful:
        if lacks_inside(evidence, name, doubtful):
            return True
        met = {test.other(name) for test in evidence.of[name]}
        if any(
            n in evidence.cleared and n not in met and evidence.leaf(n) == evidence.leaf(name) for n in evidence.nodes
        ):
            return True
    return False


def open_pairs(evidence: Evidence) -> list[tuple[str, str]]:
    """Return the pairs that failed and never passed, though each of the two passed with somebody else."""
    met: dict[frozenset[str], list[str]] = {}
    for test in evidence.tests:
        met.setdefault(frozenset(test.nodes), []).append(test.outcome)
    pairs = [t.nodes for t in evidence.tests if evidence.cleared.issuperset(t.nodes)]
    return [p for p in dict.fromkeys(pairs) if OK not in met[frozenset(p)] and set(p) <= evidence.cleared]


def bad_pairs(evidence: Evidence) -> list[tuple[str, str]]:
    """Return the open pairs that failed often enough to be called bad."""
    times = Counter(frozenset(test.nodes) for test in evidence.tests)
    return [pair for pair in open_pairs(evidence) if times[frozenset(pair)] >= PAIR_TIMES]


def repeating(evidence: Evidence) -> Groups:
    """Return the open pairs once more, as many as can run side by side."""
    settled = set(bad_pairs(evidence))
    chosen = _Round(evidence, (), across=False)
    for pair in open_pairs(evidence):
        if pair not in settled:
            chosen.add(*pair)
    return chosen.groups


class _Round:
    """Pairs that are being chosen: each node once."""

    def __init__(self, evidence: Evidence, pool: Sequence[str], *, across: bool) -> None:
        self._evidence, self._pool, self._across = evidence, pool, across
        self._used: set[str] = set()
        self._met = Counter(frozenset(test.nodes) for test in evidence.tests)
        self.groups: Groups = ()

    def add(self, a: str, b: str) -> None:
        """Take a pair, unless one of the two is taken."""
        if a != b and not self._used.intersection((a, b)):
            self._used.update((a, b))
            self.groups += ((a, b),)

    def suspects(self, doubtful: Sequence[str]) -> _Round:
        """Pair each doubtful node with one that passed; at times with another doubtful one, who may sit under its switch."""
        evidence = self._evidence
        if len(doubtful) > 1 and evidence.rounds > 2 and evidence.rounds % 2:
            often = [n for n in doubtful if sum(t.outcome == SLOW for t in evidence.failed(n)) >= 2]
            for index, name in enumerate(often):
                for other in often[index + 1 :]:
                    if not self._met[frozenset((name, other))]:
                        self.add(name, other)
        good = [name for name in self._pool if name in evidence.cleared]
        turn = 1 if evidence.rounds % 2 == 0 else -1
        failures = {n: turn * len(evidence.failed(n)) for n in self._pool}
        for name in sorted(doubtful, key=lambda n: -len(evidence.failed(n))):
            inside = not self._across and lacks_inside(evidence, name, doubtful)
            told = Counter(test.other(name) for test in counted(evidence, name, doubtful))
            if not evidence.leaf(name):
                # Who is slow with others, too, is no witness, until it did well again: with somebody else.
                fine = [other for other in good if clean(evidence, other, {name, *doubtful})]
                # It may share a switch, and then do well, with those next to it in Slurm's order, before it or behind.
                sides = [(sum(told[n] for n in side), side) for side in near(evidence, name)]
                times, side = min(sides, key=lambda pair: pair[0])
                if turn > 0 or times < NEAR_TESTS:
                    self._choose(name, [other for other in fine if other in side], failures, told)
                self._choose(name, [n for n in fine if n in evidence.beside and not told[n]], failures)
                self._choose(name, fine, failures, told)
            self._choose(name, good, failures, told, sort_first=inside)
        for name in doubtful:
            self._choose(name, [other for other in doubtful if not self._met[frozenset((name, other))]])
        return self

    def rest(self) -> _Round:
        """Pair all who are left, each with the one it met least."""
        for name in self._pool:
            self._choose(name, self._pool)
        return self

    def _choose(
        self,
        name: str,
        candidates: Sequence[str],
        failures: Mapping[str, int] | None = None,
        told: Mapping[str, int] | None = None,
        *,
        sort_first: bool = True,
    ) -> None:
        if name in self._used:
            return
        best, best_key = "", (0, 0, 0)
        leaf = self._evidence.leaf(name)
        for other in candidates:
            if other == name or other in self._used:
                continue
            wrong_sort = self._evidence.switches and (self._evidence.leaf(other) != leaf) != self._across
            rank = -failures[other] if failures else 0
            met = self._met[frozenset((name, other))]
            # A doubtful node needs another partner first; the others are there as its control: the same sort of pair.
            # A partner whose test did not count comes again before one whose test did.
            met = 1000 * told.get(other, 0) + met if told else met
            key = (int(wrong_sort), met, rank) if sort_first else (met, int(wrong_sort), rank)
            if not best or key < best_key:
                best, best_key = other, key
            if failures is None and key == (0, 0, 0):
                break
        if best:
            self.add(name, best)
