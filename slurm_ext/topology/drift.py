"""Drift, pure: which nodes no longer sit where Slurm has them, and what that costs the jobs that Slurm placed by it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from slurm_ext.slurm.hostlist import shortened
from slurm_ext.topology.build import HOLDING

#: What became of a node. arrived: its place is known now. moved: it sits elsewhere. left: it does not run, and sits nowhere. lost:
#: it may run, and nobody tells its place any more. added: Slurm's topology does not have it. gone: only Slurm's topology has it.
ARRIVED, MOVED, LEFT, LOST, ADDED, GONE = "arrived", "moved", "left", "lost", "added", "gone"

Paths = Mapping[str, tuple[str, ...]]


class Move(NamedTuple):
    """One node: what became of it, its path in the running Slurm and the one it should have (empty: none)."""

    node: str
    kind: str
    was: tuple[str, ...]
    now: tuple[str, ...]


class JobCost(NamedTuple):
    """A job's nodes by the map that Slurm placed it by, and as they sit: leaves spanned, and the fewest that could hold it."""

    job: str
    nodes: int
    by_slurm: int
    really: int
    fewest: int


class Cost(NamedTuple):
    """What a wrong map costs. `leaves_per_leaf`: how many leaves the nodes of one of Slurm's leaves really lie in, on average
    over its nodes (1 where the map is right); `jobs`: those that span more than Slurm knows, the worst first."""

    leaves_per_leaf: float
    jobs: tuple[JobCost, ...]


def moves(wanted: Paths, running: Paths, *, away: Collection[str] = ()) -> list[Move]:
    """Return the nodes whose path is not the same, in the order of `wanted`, then those that only Slurm has.

    `away`: nodes with no instance behind them. One of those that Slurm has somewhere has left, and no more.
    """
    nodes = [*wanted, *sorted(running.keys() - wanted.keys())]
    found = []
    for node in nodes:
        was, now = running.get(node, ()), wanted.get(node, ())
        if was != now:
            found.append(Move(node, _kind(was, now, node in away), was, now))
    return found


def _kind(was: tuple[str, ...], now: tuple[str, ...], away: bool) -> str:
    known, knew = is_place(now), is_place(was)
    if knew and not known and away:
        return LEFT
    if knew and not known and now:
        return LOST
    if not was:
        return ADDED
    if not now:
        return GONE
    return ARRIVED if known and not knew else MOVED


def is_place(path: tuple[str, ...]) -> bool:
    """Say whether a path ends where somebody knows a node to sit, and not in a holding leaf."""
    return bool(path) and not path[-1].startswith(f"{HOLDING}-")


def cost(wanted: Paths, running: Paths, jobs: Mapping[str, Iterable[str]]) -> Cost:
    """Return what jobs (id -> nodes) pay for a map that differs from where nodes sit; nodes of unknown place do not count."""
    true_leaf = {node: path[-1] for node, path in wanted.items() if is_place(path)}
    held = {node: path[-1] for node, path in running.items() if is_place(path) and node in true_leaf}
    of_leaf: dict[str, list[str]] = {}
    for node, leaf in held.items():
        of_leaf.setdefault(leaf, []).append(node)
    sizes: dict[str, int] = {}
    for leaf in true_leaf.values():
        sizes[leaf] = sizes.get(leaf, 0) + 1
    descending = sorted(sizes.values(), reverse=True)
    weighed = sum(len(nodes) * len({true_leaf[node] for node in nodes}) for nodes in of_leaf.values())
    found = []
    for job, nodes in jobs.items():
        inside = [node for node in nodes if node in held]
        one = JobCost(
            job,
            len(inside),
            len({held[node] for node in inside}),
            len({true_leaf[node] for node in inside}),
            _fewest(len(inside), descending),
        )
        if one.really > one.by_slurm:
            found.append(one)
    found.sort(key=lambda one: (one.by_slurm - one.really, one.job))
    return Cost(weighed / len(held) if held else 1.0, tuple(found))


def _fewest(nodes: int, descending: Iterable[int]) -> int:
    count = 0
    for size in descending:
        if nodes <= 0:
            break
        nodes -= size
        count += 1
    return count


def words(found: Iterable[Move], *, most: int = 20) -> list[str]:
    """Return one line for all nodes that went the same way, the largest groups first; at most `most`, then how many more."""
    groups: dict[tuple[str, str], list[str]] = {}
    for move in found:
        groups.setdefault((move.kind, _way(move)), []).append(move.node)
    ordered = sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    lines = [f"{shortened(nodes, 160)} {way}" for (_, way), nodes in ordered[:most]]
    if len(ordered) > most:
        rest = sum(len(nodes) for _, nodes in ordered[most:])
        lines.append(f"and {rest} more nodes in {len(ordered) - most} groups")
    return lines


def cost_words(found: Cost) -> list[str]:
    """Return in words what drift costs."""
    lines = []
    if found.leaves_per_leaf > 1.0:
        lines.append(
            f"nodes that Slurm takes for neighbours really lie under {found.leaves_per_leaf:.2f} leaves (1.00 would be right)"
        )
    lines += [
        f"job {job.job} ({job.nodes} nodes): under {job.by_slurm} leaves to Slurm, really {job.really}; {job.fewest} could hold it"
        for job in found.jobs[:10]
    ]
    if len(found.jobs) > 10:
        lines.append(f"and {len(found.jobs) - 10} more jobs span more leaves than Slurm knows")
    return lines


def _way(move: Move) -> str:
    was, now = "/".join(move.was), "/".join(move.now)
    if move.kind == ADDED:
        return f"is new to Slurm's topology: {now}"
    if move.kind == GONE:
        return f"is only in Slurm's topology: {was}"
    if move.kind == LEFT:
        return f"has no place now (it does not run): was {was}"
    if move.kind == LOST:
        return f"has a place no more, though it may run: was {was}"
    if move.kind == ARRIVED:
        return f"has a place now: {now}"
    return f"moved: {was} -> {now}"
