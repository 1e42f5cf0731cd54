"""What to move next, pure: shards and what is known of them come in, actions with their reasons go out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_ext.staging.model import COMPLETE, COPIED, REFUSED, WAITING, Shard

#: The tiers that a shard moves to, in this order of urgency: the shared file system survives the node, S3 the cluster.
LUSTRE, S3 = "lustre", "s3"
#: Not a tier: one folder on NVMe that shows all shards of a checkpoint whose node holds them all.
ASSEMBLE = "assemble"

#: Waits between tries, in seconds: after a failure, and between looks whether the other shards are in.
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
FIRST_LOOK_S, LONGEST_LOOK_S = 0.5, 300.0


class Progress(NamedTuple):
    """What is known of a shard in one tier: its state, tries that failed in a row, looks in vain, when to try again."""

    state: str = WAITING
    failures: int = 0
    looks: int = 0
    not_before: float = 0.0  # seconds since the epoch
    words: str = ""


class Action(NamedTuple):
    """One thing to do for one shard, and why. `rule` names the line of this module that decided."""

    kind: str  # lustre, s3, assemble
    shard: Shard
    rule: str
    reason: str


def backoff_s(count: int, first_s: float, longest_s: float, jitter: float) -> float:
    """Return how long to wait after the `count`th try in vain (1: the first); `jitter` is 0 to 1, a quarter of the wait."""
    if count <= 0:
        return 0.0
    return float(min(longest_s, first_s * 2.0 ** min(count - 1, 16)) * (0.75 + 0.25 * jitter))


def after_failure(known: Progress, words: str, now: float, jitter: float) -> Progress:
    """Return what is known after a try that failed: the next one comes later, and never never."""
    failures = known.failures + 1
    wait_s = backoff_s(failures, FIRST_WAIT_S, LONGEST_WAIT_S, jitter)
    return known._replace(failures=failures, not_before=now + wait_s, words=words)


def after_answer(known: Progress, state: str, words: str, now: float, jitter: float) -> Progress:
    """Return what is known after a try that ended: complete and refused are final, copied is looked at again later."""
    if state in (COMPLETE, REFUSED):
        return Progress(state, words=words)
    looks = known.looks + 1
    return Progress(state, 0, looks, now + backoff_s(looks, FIRST_LOOK_S, LONGEST_LOOK_S, jitter), words)


def due(
    shards: Iterable[Shard],
    known: Mapping[tuple[str, str], Progress],
    *,
    tiers: Sequence[str],
    running: Iterable[tuple[str, str]],
    now: float,
) -> list[Action]:
    """Return what can be done now, the most urgent first: lower tiers first, of one tier the newest step first.

    `known` and `running` are keyed by (kind, Shard.key). What a refused tier says does not keep another from its turn.
    """
    busy = set(running)
    actions: list[Action] = []
    for shard in shards:
        for kind in tiers:
            state = known.get((kind, shard.key), Progress())
            if (kind, shard.key) in busy or state.state in (COMPLETE, REFUSED) or state.not_before > now:
                continue
            if state.state == COPIED:
                actions.append(Action(kind, shard, "look-again", f"{kind} waits for other shards: {state.words}"))
            elif state.failures:
                actions.append(Action(kind, shard, "retry", f"try {state.failures + 1}: {state.words}"))
            else:
                actions.append(Action(kind, shard, "new-shard", f"not yet in {kind}"))
    order = {kind: place for place, kind in enumerate(tiers)}
    return sorted(actions, key=lambda act: (order[act.kind], -act.shard.step, act.shard.shard, act.shard.key))


def to_assemble(shards: Iterable[Shard], known: Mapping[tuple[str, str], Progress]) -> list[Shard]:
    """Return shard 0 of each checkpoint of several shards that this node holds completely and has not put together."""
    groups: dict[tuple[int, str, int, str], dict[int, Shard]] = {}
    for shard in shards:
        groups.setdefault((shard.uid, shard.run, shard.step, shard.attempt), {})[shard.shard] = shard
    return [
        group[0]
        for group in groups.values()
        if 0 in group
        and group[0].world > 1
        and len(group) == group[0].world
        and known.get((ASSEMBLE, group[0].key), Progress()).state not in (COMPLETE, REFUSED)
        and known.get((ASSEMBLE, group[0].key), Progress()).failures == 0
    ]


def next_wait_s(known: Iterable[Progress], now: float, longest_s: float) -> float:
    """Return how long until something more becomes due, in seconds, at most `longest_s`; what is overdue waits for a place."""
    waits = [one.not_before - now for one in known if one.state not in (COMPLETE, REFUSED) and one.not_before > now]
    return max(0.0, min([longest_s, *waits]))


def nearest(holders: Mapping[str, bool], order: Sequence[str]) -> str:
    """Return the nearest tier that holds a checkpoint whole, an empty string where none does."""
    return next((tier for tier in order if holders.get(tier)), "")
