"""What `fmslurm status` and `fmslurm node list` say of the fleet breaker: drains of the hour, and nodes that it held back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slurm_ext import events
from slurm_ext.config.model import Settings
from slurm_ext.slurm import ledger, suppressed
from slurm_ext.slurm.breaker import Entry, drain_limit, drained_lately, fleet_size, hourly
from slurm_ext.slurm.breaker_events import MORE, NO_LEDGER, OPEN
from slurm_ext.slurm.model import Node
from slurm_ext.slurm.suppressed import Suppressed

#: A person waits longer (seconds) than a hook: there may be hundreds of records.
TIMEOUT_S = 10.0


_STEPS = (
    "`fmslurm status` names the nodes and their findings: are the nodes bad, or are we?",
    "One finding everywhere since one moment: suspect a change. `fmslurm off gate --for 2h --reason TEXT`, or gate.disabled",
    "If they are bad: `fmslurm node drain -w NODES --reason TEXT` drains by hand, which no breaker bounds",
)

#: Events and rules of the breaker that somebody may be woken for: what they mean, and what to do.
MEANINGS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    OPEN: (
        "As many nodes were drained within the hour as drain.max_per_hour and drain.max_percent_per_hour allow. Another one is"
        " convicted and stays in use; its job goes back without it (drain.when_open). Written once for each time it opens.",
        _STEPS,
    ),
    MORE: ("The breaker is open and has held back ten nodes by now, a hundred, a thousand.", _STEPS),
    NO_LEDGER: (
        "A convicted node was not drained, since the ledger of drains on the share cannot be read or written.",
        (
            "Is site.share mounted, not full, and root's with mode 0755?",
            "Is its folder `ledger` there? `fmslurm install` makes it.",
        ),
    ),
}


def meaning(id_: str) -> dict[str, Any] | None:
    """Return what an event or a rule of the breaker means as plain data, None for another id."""
    if id_ not in MEANINGS:
        return None
    means, steps = MEANINGS[id_]
    page = "docs/operations/many-nodes-drained-at-once.md"
    return {"id": id_, "kind": "alert", "means": means, "steps": list(steps), "pages": [page]}


class Breaker(NamedTuple):
    """How the breaker stands. `entries` None: the ledger cannot be read, so nothing is drained."""

    open: bool
    entries: tuple[Entry, ...] | None
    limit: int
    held_back: tuple[Suppressed, ...] | None  # None: the share does not say
    used: int = 0  # nodes whose drains count, those that Slurm alone knows of among them


def look(settings: Settings, nodes: Sequence[Node], *, now: float) -> Breaker:
    """Return how the breaker stands, by the rules of the hooks, and for a limit as it is now.

    Who was drained since, whoever did it and whether or not somebody resumed it, is not held back any more.
    """
    share = settings.site.share
    entries = ledger.entries(share)
    also, limit = drained_lately(nodes, now=now), drain_limit(settings.drain, fleet_size(nodes))
    found = suppressed.read_all(share, now=now, timeout_s=TIMEOUT_S)
    in_use = {node.name for node in nodes if not node.drained}
    held_back = None
    if found is not None:
        held_back = tuple(
            one
            for name, one in sorted(found.items())
            if name in in_use and not suppressed.drained_since(one, entries or (), now=now)
        )
    is_open = suppressed.is_open(entries, list((found or {}).values()), now=now, limit=limit, also=also)
    return Breaker(is_open, entries, limit, held_back, 0 if entries is None else len(hourly(entries, also)[0]))


def as_data(breaker: Breaker) -> dict[str, Any]:
    """Return it as plain data for --json; times in UTC."""
    return {
        "open": breaker.open,
        "ledger": breaker.entries is not None,
        "limit_per_hour": breaker.limit,
        "used": breaker.used,
        "drains": [
            {"node": entry.node, "age_s": round(entry.age_s), "budget": entry.budget} for entry in breaker.entries or ()
        ],
        "suppressed": [
            {
                "node": one.node,
                "finding": one.finding,
                "target": one.target,
                "action": one.action,
                "evidence": one.evidence,
                "why": one.why,
                "time": events.stamp(one.at_s),
                "job": one.job,
            }
            for one in breaker.held_back or ()
        ],
    }


def words(breaker: Breaker, share: str) -> list[str]:
    """Return lines that people should see: none where nothing was held back and the ledger can be read."""
    if breaker.entries is None:
        if not share:
            return []
        return [f"breaker: the ledger of drains ({ledger.folder_of(share)}) cannot be read, so nothing is drained"]
    if breaker.held_back is None:
        return ["breaker: which nodes it held back is not known, since the share does not answer"]
    if not breaker.held_back:
        return []
    state = "OPEN" if breaker.open else "closed again"
    count = len(breaker.held_back)
    lines = [
        f"breaker: {state}, {breaker.used} of {breaker.limit} drains of the last hour are used; {count} convicted"
        f" {'node is' if count == 1 else 'nodes are'} still in use:"
    ]
    for one in breaker.held_back[:20]:
        lines.append(f"  {one.node}: {one.finding} {one.target}: {one.evidence or 'no further evidence'}")
    if count > 20:
        lines.append(f"  and {count - 20} more (--json lists all)")
    return lines
