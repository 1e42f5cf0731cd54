"""Who leads: the first three nodes of a job, one after the other; and why two of them never convict different nodes. Pure.

Only who leads listens. Everybody else, the other candidates too, knocks at all candidates and joins the first that answers.
A candidate leads when those before it had their time and nobody answered. One that comes up late asks the others first
and joins. A leader that is lost is out of the race, and the same begins anew with the rest.

Two may lead at once all the same: they started in the same moment, or the network lets some nodes reach only one of them.
They find each other where they can (the earlier one keeps knocking at the later ones), and the one with fewer nodes
gives up. Where they cannot, this holds:

1. A node has one **voice** in an attempt (`Voice`): it gives it to one set of culprits, ever, whoever asks. It may repeat it.
   A node that leaves with a pass while others are still waited for gives its voice to that leader, for whatever that
   one convicts later; it is gone then, and can give it to nobody else.
2. A leader convicts only with the voices of **more than half of all nodes of the job** (`Poll`), those that are absent
   counted. It hands a conviction to its own hook, too, only then, and it puts one set to the vote, once.

Any two such majorities share a node. It has one voice, so both convict the same set. Without a majority nobody is
convicted: the job is stopped and nobody drained. Nothing here needs clocks, and no message may be lost or late to harm it:
a voice that is lost is only missing. What it costs is a round trip before a conviction; a pass needs no voices, since it
takes nothing from anybody.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

#: So many nodes may lead; hooks act for one another by the same three.
LEADERS = 3


def candidates(nodes: Sequence[str]) -> tuple[str, ...]:
    """Return who may lead, in order."""
    return tuple(nodes[:LEADERS])


def shares(rendezvous_s: float) -> tuple[float, float]:
    """Return how long each candidate gets before the next one leads, and how long a silent one is asked (seconds)."""
    return rendezvous_s / 4, min(1.0, rendezvous_s / 8)


class Succession:
    """One node's view of who may lead and when it is itself to. `gone` led once and was lost."""

    def __init__(self, nodes: Sequence[str], me: str, now: float, *, step_s: float, ask_s: float) -> None:
        """Each candidate gets `step_s`; one that neither answers nor refuses is asked for `ask_s` (seconds)."""
        self._candidates, self._me = candidates(nodes), me
        self._step_s, self._ask_s = step_s, ask_s
        self._since = now
        self._refused: set[str] = set()
        self.gone: set[str] = set()

    def order(self) -> tuple[str, ...]:
        """Return who may still lead, in order."""
        return tuple(name for name in self._candidates if name not in self.gone)

    def targets(self) -> tuple[str, ...]:
        """Return whom to knock at: everybody else who may lead."""
        return tuple(name for name in self.order() if name != self._me)

    def refused(self, name: str) -> None:
        """Take that nobody leads at `name` now."""
        self._refused.add(name)

    def lost(self, name: str, now: float) -> None:
        """Take that a leader is lost: the others begin anew, and faster, since most of them are there."""
        self.gone.add(name)
        self._since = now
        self._refused.clear()
        self._step_s = min(self._step_s, 2.0)

    def leads(self, now: float) -> bool:
        """Say whether this node is to lead, given that it found nobody who does."""
        order = self.order()
        if self._me not in order:
            return False
        turn = self._since + self._step_s * order.index(self._me)
        return now >= (turn if self._refused.issuperset(self.targets()) else turn + self._ask_s)


def prevails(mine: int, my_name: str, other: int, other_name: str, order: Sequence[str]) -> bool:
    """Say whether the leader with `mine` nodes stays and the other one gives up; of equals the earlier candidate stays."""
    if mine != other:
        return mine > other
    return order.index(my_name) < order.index(other_name)


class Voice:
    """The one voice of a node in an attempt."""

    def __init__(self) -> None:
        self.given: frozenset[str] | None = None
        self._left_to = ""

    def ask(self, culprits: Collection[str]) -> bool:
        """Say whether this node agrees to convict just these; only the first set that asks ever gets a yes."""
        if self._left_to:
            return False
        if self.given is None:
            self.given = frozenset(culprits)
        return self.given == frozenset(culprits)

    def leave(self, leader: str) -> bool:
        """Leave the voice to a leader, for whatever it convicts later; False where it is given already."""
        if self.given is not None or self._left_to not in ("", leader):
            return False
        self._left_to = leader
        return True

    def to_json(self) -> dict[str, object]:
        """Return it as plain data: an agent that is started anew has the same voice, and no second one."""
        return {"given": None if self.given is None else sorted(self.given), "left_to": self._left_to}

    @classmethod
    def from_json(cls, data: object) -> Voice:
        """Return the voice that `to_json` wrote. Raise ValueError for anything else."""
        if not isinstance(data, dict):
            raise ValueError("not a voice")
        given, voice = data.get("given"), cls()
        voice.given = frozenset(map(str, given)) if isinstance(given, list) else None
        voice._left_to = str(data.get("left_to", ""))
        return voice


class Poll:
    """A leader's count for its one conviction. `everybody` are all nodes of the job."""

    def __init__(self, everybody: Collection[str]) -> None:
        self._everybody = frozenset(everybody)
        self._left: set[str] = set()
        self._yes: set[str] = set()
        self._no: set[str] = set()
        self.culprits: frozenset[str] | None = None

    def left(self, node: str) -> None:
        """Take that a node has left its voice to us."""
        self._left.add(node)

    def put(self, culprits: Collection[str]) -> None:
        """Put the one conviction to the vote. Raise ValueError for a second one."""
        if self.culprits is not None:
            raise ValueError("a leader convicts once")
        self.culprits = frozenset(culprits)

    def answer(self, node: str, culprits: Collection[str], *, yes: bool) -> None:
        """Take a node's answer; one about another set is none."""
        if self.culprits is not None and frozenset(culprits) == self.culprits:
            (self._yes if yes else self._no).add(node)

    @property
    def carried(self) -> bool:
        """True where more than half of all nodes of the job agree."""
        agreeing = (self._yes | self._left) & self._everybody
        return self.culprits is not None and 2 * len(agreeing) > len(self._everybody)

    def waits_for(self, present: Collection[str]) -> bool:
        """Say whether any of those that are there has not answered yet."""
        return not set(present) <= self._yes | self._no | self._left
