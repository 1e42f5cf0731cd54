"""Which rank held a collective up: PyTorch's watchdog lines say how far every rank had come.

Formats: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, releases 2.0 to 2.9.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from slurm_ext.resume.logs import Locator, Said

_TIMEOUT = re.compile(
    r"\[Rank (\d+)\].*Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
)
_STATUS = re.compile(
    r"\[PG (?:ID )?(\d+)(?: PG GUID (\d+)\(([^)]*)\))? Rank (\d+)\]"
    r".*last enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL )?work: (-?\d+)"
)
_BEAT = re.compile(
    r"Rank (\d+)\].*(?:[Hh]eartbeat monitor timed out|no heartbeat of its watchdog|[Ww]atchdog.*(?:stuck|hang))"
)


#: A rank can launch only so much before it waits for the others. A wider gap means that two groups share a name.
RUN_AHEAD_MAX = 256


class Stall(NamedTuple):
    """What the watchdog lines say. `kind`: lagging, silent, silent-node, mismatch, equal; `ranks` are those it is about."""

    kind: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


def read(said: Sequence[Said], locator: Locator) -> Stall | None:
    """Return who held the collective up, or None where no watchdog spoke."""
    operations: dict[int, dict[int, str]] = defaultdict(dict)  # sequence -> rank -> operation, default group only
    enqueued: dict[str, dict[int, int]] = defaultdict(dict)  # group -> rank (world) -> last enqueued
    texts: dict[int, str] = {}
    timed_out: set[int] = set()
    silent: dict[int, str] = {}
    for one in said:
        world = one.rank
        if found := _TIMEOUT.search(one.text):
            rank = world if world >= 0 else int(found.group(1))
            timed_out.add(rank)
            operations[int(found.group(2))][rank] = found.group(3)
            texts.setdefault(rank, one.text)
        if found := _STATUS.search(one.text):
            rank = world if world >= 0 else int(found.group(4))
            group = f"{found.group(1)}/{found.group(2)}/{found.group(3)}"
            enqueued[group][rank] = int(found.group(5))
            timed_out.add(rank)
            texts[rank] = one.text
        elif found := _BEAT.search(one.text):
            rank = world if world >= 0 else int(found.group(1))
            silent.setdefault(rank, one.text)
    if not timed_out and not silent:
        return None
    return (
        _mismatch(operations, enqueued, texts)
        or _silent(timed_out, silent, locator)
        or _lagging(enqueued, texts, locator)
        or _silent_node(timed_out, texts, locator)
        or Stall(
            "equal", tuple(sorted(timed_out)), (), tuple(texts[rank] for rank in sorted(timed_out)[:2] if rank in texts)
        )
    )


def _mismatch(
    operations: dict[int, dict[int, str]], enqueued: dict[str, dict[int, int]], texts: dict[int, str]
) -> Stall | None:
    """Return the ranks that called another operation than the rest at the same place of one and the same group."""
    if len(enqueued) != 1:
        return None  # several groups number their work apart: nothing to compare
    for by_rank in operations.values():
        counts = Counter(by_rank.values())
        if len(counts) > 1 and len(by_rank) >= 3:
            common = counts.most_common(1)[0][0]
            odd = tuple(sorted(rank for rank, operation in by_rank.items() if operation != common))
            return Stall(
                "mismatch",
                odd,
                (),
                tuple(texts[rank] for rank in (*odd[:2], min(set(by_rank) - set(odd))) if rank in texts),
            )
    return None


def _lagging(enqueued: dict[str, dict[int, int]], texts: dict[int, str], locator: Locator) -> Stall | None:
    """Return the ranks that had launched less than the others of their group, where a clear majority agrees."""
    for by_rank in enqueued.values():
        if len(by_rank) < 3:
            continue
        usual, agreeing = Counter(by_rank.values()).most_common(1)[0]
        behind = sorted(rank for rank, count in by_rank.items() if count < usual)
        if behind and usual - min(by_rank.values()) > RUN_AHEAD_MAX:
            continue
        if behind and agreeing * 2 > len(by_rank):
            nodes = tuple(sorted({locator.node_of_rank(rank) for rank in behind} - {""}))
            ahead = next(rank for rank, count in by_rank.items() if count == usual)
            return Stall("lagging", tuple(behind), nodes, tuple(texts[rank] for rank in (*behind[:2], ahead)))
    return None


def _silent(timed_out: set[int], silent: dict[int, str], locator: Locator) -> Stall | None:
    """Return the ranks whose own watchdog had stopped while they had nothing pending: they no longer launched work."""
    stuck = sorted(set(silent) - timed_out)
    if not stuck or len(stuck) > len(timed_out):
        return None
    nodes = tuple(sorted({locator.node_of_rank(rank) for rank in stuck} - {""}))
    return Stall("silent", tuple(stuck), nodes, tuple(silent[rank] for rank in stuck[:3]))


def _silent_node(timed_out: set[int], texts: dict[int, str], locator: Locator) -> Stall | None:
    """Return the one node none of whose ranks timed out, though every rank of all other nodes did."""
    per = locator.ranks_per_node
    if per <= 0 or len(locator.nodes) < 3:
        return None
    spoke = Counter(rank // per for rank in timed_out)
    mute = [index for index in range(len(locator.nodes)) if not spoke[index]]
    if len(mute) != 1 or any(spoke[index] < per for index in range(len(locator.nodes)) if index not in mute):
        return None
    ranks = tuple(range(mute[0] * per, mute[0] * per + per))
    return Stall(
        "silent-node",
        ranks,
        (locator.nodes[mute[0]],),
        tuple(texts[rank] for rank in sorted(timed_out)[:2] if rank in texts),
    )
