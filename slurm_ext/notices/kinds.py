"""The one table of what is told: how severe it is, for how long facts of a kind are gathered, the words, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slurm_ext.notices.model import NOTICE, PAGE

#: Facts of such kinds are told together, one notice for all of a minute (seconds).
FOLD_S = 60.0


class Kind(NamedTuple):
    """One kind of fact. `what` and `would` (where nothing was done, since the mode does not enforce) may hold {count}, {s} (the
    plural's s), {is_are} and {where}; an empty `would` is never told so. `next` is what a person does now; {where} and {job} in it."""

    id: str
    severity: str
    what: str
    next: str
    would: str = ""
    fold_s: float = 0.0
    to_owner: bool = False


_TABLE = (
    Kind(
        "breaker.open",
        PAGE,
        "the drain breaker is open: {count} convicted node{s} {is_are} still in use",
        "`fmslurm status` names the nodes and their findings. Is it one finding everywhere since one moment? Suspect a change:"
        " `fmslurm off gate --for 2h --reason TEXT`. If the nodes are bad: `fmslurm node drain -w {where} --reason TEXT`",
        would="the drain breaker would be open: {count} nodes would have been drained within an hour",
    ),
    Kind(
        "breaker.more",
        NOTICE,
        "the drain breaker is still open and has held back {count} nodes",
        "`fmslurm status`; docs/operations/many-nodes-drained-at-once.md",
    ),
    Kind(
        "breaker.closed",
        NOTICE,
        "the drain breaker is closed again",
        "`fmslurm status`: nodes that it held back are looked at again at their next job or health check",
    ),
    Kind(
        "ledger.unreadable",
        PAGE,
        "no node can be drained: the ledger of drains cannot be read",
        "Is site.share mounted, not full, and root's? `fmslurm doctor`; docs/operations/share-hangs-or-lost.md",
        would="no node could be drained: the ledger of drains cannot be read",
    ),
    Kind(
        "ledger.readable",
        NOTICE,
        "the ledger of drains can be read again",
        "Nothing; `fmslurm status` shows the breaker",
    ),
    Kind(
        "node.drained",
        NOTICE,
        "{count} node{s} drained",
        "`fmslurm node show {where}`, `fmslurm node evidence {where}`; a false alarm: `fmslurm node ack`",
        would="{count} node{s} would have been drained",
        fold_s=FOLD_S,
    ),
    Kind(
        "node.back",
        NOTICE,
        "the drain of {count} node{s} is over",
        "Nothing; `fmslurm events -w {where}` tells how",
        fold_s=FOLD_S,
    ),
    Kind(
        "node.drain-expired",
        NOTICE,
        "{count} node{s} {is_are} drained for too long",
        "`fmslurm node show {where}` says what is needed; then `fmslurm node resume -w {where} --reason TEXT`, or replace it",
        fold_s=FOLD_S,
    ),
    Kind(
        "node.slow-check-overdue",
        NOTICE,
        "the slow check of {count} node{s} is overdue",
        "`fmslurm events -w {where} --event gate.slow-check`; `fmslurm explain dcgm.overdue`",
        fold_s=FOLD_S,
    ),
    Kind(
        "job.held",
        NOTICE,
        "{count} job{s} held by fmslurm",
        "`fmslurm why {job}`, then `scontrol release {job}` or `scancel {job}`",
        would="{count} job{s} would have been held",
        fold_s=FOLD_S,
    ),
    Kind(
        "job.given-up",
        NOTICE,
        "{count} job{s} not brought back any more",
        "`fmslurm why {job}`; `fmslurm job forget {job}` makes its budgets whole again",
        would="{count} job{s} would not have been brought back any more",
        fold_s=FOLD_S,
    ),
    Kind("owner.requeued", NOTICE, "Requeued by fmslurm", "`fmslurm why {job}`", to_owner=True),
    Kind("owner.held", NOTICE, "Held by fmslurm", "`fmslurm why {job}`; ask your administrator", to_owner=True),
    Kind("owner.given-up", NOTICE, "Not requeued any more", "`fmslurm why {job}`", to_owner=True),
    Kind(
        "config.stale",
        NOTICE,
        "the nodes run an older fmslurm.yaml than the controller's machine has",
        "`fmslurm config check`, then `fmslurm config push`",
    ),
    Kind(
        "topology.drift",
        NOTICE,
        "nodes do not sit where Slurm has them, and it may not be mended by itself",
        "`fmslurm topology check`, then `fmslurm topology apply --dry-run`",
    ),
    Kind(
        "topology.refused",
        NOTICE,
        "Slurm did not take a new topology; all is as it was",
        "`fmslurm events --event topology.change`; slurmctld's log; `fmslurm topology apply --dry-run`",
    ),
    Kind(
        "topology.stuck",
        PAGE,
        "a change of topology failed and could not be put back",
        "Does slurmctld run? Its log; topology.conf.fmslurm-previous lies beside topology.conf; `fmslurm topology check`",
    ),
    Kind("notices.more", NOTICE, "and {count} more notices", "`fmslurm events`, `fmslurm status`"),
    Kind("notice.test", PAGE, "a test of `fmslurm notify test`", "Nothing: the target works"),
)

KINDS: Mapping[str, Kind] = {kind.id: kind for kind in _TABLE}


def severity_of(kind: Kind, *, dry_run: bool) -> str:
    """Return how severe a notice is: nobody is woken for what was not done."""
    return NOTICE if dry_run else kind.severity


def takes(least: str, severity: str) -> bool:
    """Say whether a target whose least severity is `least` gets a notice."""
    return least != PAGE or severity == PAGE
