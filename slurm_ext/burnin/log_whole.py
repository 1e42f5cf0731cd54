"""Is the log of a run whole? Half a log proves half of it. Pure."""

from __future__ import annotations

from collections.abc import Callable

from slurm_ext.burnin.nccl_log import Log, Process

#: So many nodes are named; a report of a thousand helps nobody.
NAMED_MOST = 4

#: What a node's log says where it is whole: the same kinds of lines on all nodes, since all run the same.
_KINDS: tuple[tuple[str, Callable[[Process], bool]], ...] = (
    ("the plugin's provider", lambda p: p.provider != ""),
    ("the number of adapters", lambda p: p.nics is not None),
    ("the plugin's protocol", lambda p: p.protocol != ""),
    ("the network in use", lambda p: bool(p.networks)),
    ("channels between nodes", lambda p: p.net_count > 0),
    ("channels inside the node", lambda p: p.p2p_count + p.shm_count > 0),
    ("NVLink SHARP", lambda p: p.nvls is not None),
    ("the end of the set-up", lambda p: p.complete),
)


def missing(log: Log, *, nodes: int, ranks: int, partial: bool) -> list[tuple[str, str]]:
    """Return what is missing in a log in which nothing is wrong: targets (`node` or `node:NAME`), and words for each.

    `nodes` and `ranks` are how many took part, 0 where only the log tells; `partial`: the log is of some ranks on purpose.
    """
    by_node: dict[str, list[Process]] = {}
    for process in log.processes:
        by_node.setdefault(process.node, []).append(process)
    if max(nodes, len(by_node)) > 1 and not any(p.net_count for p in log.processes):
        return [("node", "no channel between nodes was set up: nothing was sent, and GPUDirect is not proven")]
    if partial or not log.processes:
        return []
    sizes = {size for p in log.processes for size, _ in p.seen}
    # Workers live on, so their logs have earlier and perhaps larger communicators, too.
    size = ranks if ranks in sizes else max(sizes, default=0)
    seen = {rank for p in log.processes for its_size, rank in p.seen if its_size == size}
    if size and len(seen) < max(size, ranks):
        return [("node", f"of {max(size, ranks)} ranks only {len(seen)} have a word in the log")]
    return [*_unlike(by_node), *_halves(log)]


def _unlike(by_node: dict[str, list[Process]]) -> list[tuple[str, str]]:
    """Return which nodes lack a kind of line that others with as many ranks have."""
    counts = {node: len({rank for p in ps for size, rank in p.seen if size == p.ranks}) for node, ps in by_node.items()}
    whole = {node: ps for node, ps in by_node.items() if counts[node] == max(counts.values())}
    lacking: dict[str, list[str]] = {}
    for what, has in _KINDS:
        without = [node for node, processes in whole.items() if not any(map(has, processes))]
        if len(without) < len(whole):
            for node in without:
                lacking.setdefault(node, []).append(what)
    return [
        (f"node:{node}", f"its log does not name {', '.join(words)}, as others do")
        for node, words in list(lacking.items())[:NAMED_MOST]
    ]


def _halves(log: Log) -> list[tuple[str, str]]:
    """Return the nodes where the log of some processes breaks off, while that of others comes to the end of the set-up."""
    if not any(p.complete for p in log.processes):
        return []
    silent = [p for p in log.processes if not (p.complete and (p.provider or p.networks or p.net_lines))]
    nodes = list(dict.fromkeys(p.node for p in silent))[:NAMED_MOST]
    return [(f"node:{node}", "the log of some of its processes breaks off") for node in nodes]
