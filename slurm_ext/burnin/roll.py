"""Who of a job's nodes is there, has passed, may have gone, or is lost; and what an outcome tells of that. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from slurm_ext.burnin.model import Decision, Outcome, RoundResult
from slurm_ext.slurm.hostlist import fold
from slurm_ext.verdict import UNKNOWN, WARN, Finding, Verdict


class Roll:
    """The nodes as a leader sees them. `there` maps a node to the time until which its hook waits."""

    def __init__(self, nodes: Sequence[str], gone: Mapping[str, str]) -> None:
        """`gone` are nodes that were lost before, and how."""
        self.nodes = tuple(nodes)
        self.there: dict[str, float] = {}
        self.heard: dict[str, float] = {}
        self.reusable: set[str] = set()
        self.refused: dict[str, str] = {}  # why somebody, proven by nobody, did not get in
        self.strange: set[str] = set()  # speak another version of the channel
        self.lost: dict[str, str] = dict(gone)
        self.tested: set[str] = set()
        self.left: set[str] = set()  # passed, and may have gone

    def come(self, node: str, until: float, now: float) -> None:
        """Take that a node is there."""
        self.lost.pop(node, None)
        self.there[node], self.heard[node] = until, now

    def go(self, node: str) -> None:
        """Take that a node is not there any more, for whatever reason."""
        self.there.pop(node, None)
        self.heard.pop(node, None)
        self.reusable.discard(node)

    def lose(self, node: str, why: str) -> None:
        """Take that a node is lost."""
        self.go(node)
        self.tested.discard(node)
        self.lost[node] = why

    def all_known(self) -> bool:
        """Say whether no node can be awaited, without a look at each: cheap, and never wrong in saying no."""
        return len(self.there) + len(self.left) + len(self.strange) + len(self.lost) >= len(self.nodes)

    def awaited(self) -> list[str]:
        """Return the nodes that have not come yet."""
        there = self.left.union(self.there, self.strange, self.lost)
        return [name for name in self.nodes if name not in there]

    def missing(self) -> list[str]:
        """Return the nodes that never came or were lost."""
        return [*self.awaited(), *self.lost]

    def untested(self) -> list[str]:
        """Return the nodes that are there and have not been tested, in Slurm's order."""
        return [name for name in self.nodes if name in self.there and name not in self.tested]

    def silent(self, now: float, silence_s: float) -> list[str]:
        """Return the nodes that have not been heard of for `silence_s` (seconds)."""
        return [name for name in self.there if now - self.heard[name] > silence_s]

    def excuse(self, now: float) -> None:
        """Take all as heard of now."""
        self.heard = dict.fromkeys(self.heard, now)

    def acts(self, me: str, culprits: Collection[str]) -> str:
        """Return whose hook acts for the job: the leader's, unless it is a culprit; then one that waits, in Slurm's order."""
        order = (me, *self.nodes)
        return next((name for name in order if name in self.there and name not in culprits), me)


def absent(roll: Roll, missing: Sequence[str]) -> Outcome:
    """Return the outcome for a job some of whose nodes never came or were lost: nobody's fault."""
    findings = tuple(
        Finding("burnin.peer-absent", f"node:{n}", "none", (roll.lost.get(n, "its prolog did not come"),))
        for n in missing
    )
    some = ", ".join(missing[:5]) + (" and more" if len(missing) > 5 else "")
    how = "did not come, or went away" if roll.lost else "did not come in time"
    words = f"{len(missing)} of {len(roll.nodes)} nodes {how}: {some}"
    if roll.refused:
        words += f"; refused: {'; '.join(roll.refused.values())}"
    return Outcome(Verdict(UNKNOWN, findings, words, "burnin.peer-absent"))


def together(first: Decision | None, later: Decision) -> Decision:
    """Return what two passes come to: a warning where one of them is; else the first one's words."""
    warns = first is None or (later.verdict.verdict == WARN and first.verdict.verdict != WARN)
    return later if warns or first is None else first


def rounds_to_json(rounds: Sequence[RoundResult]) -> list[dict[str, Any]]:
    """Return rounds as plain data; the names of a large group are one hostlist."""
    return [
        {
            "kind": done.kind,
            "groups": [
                {
                    "nodes": list(g.nodes) if len(g.nodes) <= 8 else [fold(g.nodes)],
                    "outcome": g.outcome,
                    "busbw_gbs": g.busbw_gbs,
                    "evidence": list(g.evidence),
                    **({"rails": [list(rail) for rail in g.rails]} if g.rails else {}),
                }
                for g in done.groups
            ],
        }
        for done in rounds
    ]
