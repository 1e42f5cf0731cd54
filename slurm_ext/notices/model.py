"""What there is to tell (Fact), what is told once for several of them (Notice), and what a target gets (Message)."""

from __future__ import annotations

from typing import NamedTuple

#: Severities: somebody should be woken; somebody should know by morning.
PAGE, NOTICE = "page", "notice"

#: States of a delivery: to be sent; taken by the target; given up; told in a notice on several; its target is configured no more.
WAITING, SENT, LOST, FOLDED, DROPPED = "waiting", "sent", "lost", "folded", "dropped"


class Fact(NamedTuple):
    """One thing to tell, once for its key. `where` names a node or a job, `since_s` is seconds since the epoch.

    `dry_run`: it was not done, since the mode is shadow or warn. `owner`: the user id of a job's owner, where the fact is for
    that person alone. `lines` go below the text as they are, each of one thing in detail. `size`: how many things it is about.
    """

    kind: str
    key: str
    where: str = ""
    since_s: float = 0.0
    why: str = ""
    dry_run: bool = False
    owner: int = -1
    lines: tuple[str, ...] = ()
    size: int = 1
    job: str = ""
    job_name: str = ""


class Notice(NamedTuple):
    """Facts of one kind that are told together. `due_s`: until then more of the kind may join it."""

    id: int
    kind: str
    made_s: float
    due_s: float
    facts: tuple[Fact, ...]

    @property
    def dry_run(self) -> bool:
        """Say whether it tells of what would have been done."""
        return bool(self.facts) and self.facts[0].dry_run

    @property
    def owner(self) -> int:
        """Return the user id whom alone it is for, -1 where it is for the site's targets."""
        return self.facts[0].owner if self.facts else -1


class Message(NamedTuple):
    """A notice in words. `id` is the same each time it is sent: a receiver may tell by it that it came twice."""

    id: str
    kind: str
    severity: str
    cluster: str
    subject: str
    text: str
    what: str
    where: str = ""
    since: str = ""
    why: str = ""
    next: str = ""
    time: str = ""
    dry_run: bool = False
    owner: int = -1


class Sent(NamedTuple):
    """What became of one try: whether the target took it, what it said, and after how long (seconds) it wants to be asked again."""

    ok: bool
    said: str = ""
    retry_after_s: float = 0.0


class Delivery(NamedTuple):
    """One notice on its way to one target. Times are seconds since the epoch."""

    id: int
    notice: int
    target: str
    severity: str
    state: str
    tries: int
    due_s: float
    said: str = ""


def owner_target(uid: int) -> str:
    """Return how the deliveries to a job's owner are called; no configured target has such a name."""
    return f"@{uid}"


def owner_of(target: str) -> int:
    """Return the user id of an owner's deliveries, -1 for a target of the site."""
    return int(target[1:]) if target.startswith("@") and target[1:].isdigit() else -1
