"""The smallest change that makes Slurm have the topology it should, pure: nothing, the file, node updates, reconfigure, restart.

What Slurm does was tried on 22.05.8, 24.11.5 and 26.05.5; what of it belongs to a release stands beside the constant.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable

from slurm_ext.slurm.conf_file import EDITED, FOREIGN, MISSING, OURS, Held, bare, whose
from slurm_ext.slurm.model import Version
from slurm_ext.slurm.versions import has
from slurm_ext.topology.budget_cost import predict
from slurm_ext.topology.change_model import (
    FILE,
    LEVELS,
    NEVER,
    NODE_UPDATE,
    NOTHING,
    RECONFIGURE,
    RESTART,
    Limits,
    Past,
    Plan,
    Refusal,
    Seen,
    rank,
)
from slurm_ext.topology.drift import LEFT, Move, is_place, moves
from slurm_ext.topology.lint_model import release
from slurm_ext.topology.render_yaml import grouped
from slurm_ext.topology.written import Written, essence

__all__ = [
    "FILE",
    "LEVELS",
    "MAX_STALE",
    "MAX_UPDATES",
    "NEVER",
    "NODE_UPDATE",
    "NOTHING",
    "RECONFIGURE",
    "RESTART",
    "Limits",
    "Past",
    "Plan",
    "Refusal",
    "Seen",
    "plan",
    "refused_key",
]

#: One `scontrol update` for each place; from here on a reconfigure is the smaller disturbance.
MAX_UPDATES = 64

#: slurmctld compares all switches with all for each one that is added to a running tree, and answers nobody meanwhile (0.85 s
#: each with 1,000, 26.05.5): so many seconds at the most, of the ten that commands wait.
MAX_BUSY_S = 2.0

#: Node updates leave switches behind that no node is below any more; slurmctld goes on comparing them. So many at the most.
MAX_STALE = 32

#: From here on a reconfigure takes in another plugin, and a first topology.yaml; before, only a restart does (tried).
RECONFIGURE_SWAPS_PLUGIN = (23, 11)

#: A topology that Slurm refused is tried again after this at the latest (seconds).
_REFUSED_S = 7 * 86_400.0

#: Names of the topologies in a topology.yaml of ours.
_TOPOLOGIES = re.compile(r"^- topology: (\S+)$", re.MULTILINE)

#: 25.11.0 to .2 lose what they were told of nodes (T24405).
_NO_UPDATES = {(25, 11, 0), (25, 11, 1), (25, 11, 2)}


def plan(
    wanted: Written, digest: str, seen: Seen, past: Past, limits: Limits, *, now: float, away: Collection[str] = ()
) -> Plan:
    """Return the smallest change, or why it must not be done, or not yet. `digest` stands for the wanted file."""
    needed = _needed(wanted, digest, seen, past, away)
    if not needed.differs:
        return needed
    for why in (
        _other_plugin(wanted, seen),
        None if limits.accept_loss else _lost(wanted, seen, away),
        None if limits.force else _foreign(seen, needed),
        _too_much(limits, needed),
    ):
        if why:
            return needed._replace(blocked=why[0], remedy=why[1])
    if limits.at_once:
        return needed
    refusal = past.refused.get(refused_key(digest, seen.version))
    if refusal is not None and not limits.force:
        # What made Slurm refuse may have been of the moment: it is tried again, ever more seldom.
        until = refusal.at + min(limits.interval_s * 2 ** min(refusal.times, 20), _REFUSED_S)
        if refusal.at <= now < until:
            words = f"Slurm did not take this very topology ({refusal.words}), and is asked again"
            return needed._replace(wait_until=until, waits_for=words)
    # A fleet that starts is never the same twice: what differs for as long as an interval is old enough all the same.
    young = not past.differs or 0 <= now - past.differs_since < limits.interval_s
    if limits.settle and past.differs != digest and young:
        return needed._replace(wait_until=now, waits_for="the same answer a second time")
    passed = now - past.acted_at
    if rank(needed.level) >= rank(RECONFIGURE) and 0 <= passed < limits.interval_s:
        return needed._replace(
            wait_until=past.acted_at + limits.interval_s, waits_for="topology.min_interval_min since the last change"
        )
    return needed


def _needed(wanted: Written, digest: str, seen: Seen, past: Past, away: Collection[str]) -> Plan:
    """Return the smallest change that would do, whether it may be done or not."""
    same_file = seen.held.state != MISSING and essence(bare(seen.held.text)) == essence(wanted.text)
    found = _moves(wanted, seen, away)
    plain = Plan(NOTHING, "", found, writes=not same_file)
    if not _is_read(wanted, seen):
        if same_file:
            return plain._replace(why="the file is there, and Slurm does not read it", later=_reader(wanted, seen))
        why = "the file is not there" if seen.held.state == MISSING else "the file says otherwise"
        return plain._replace(level=FILE, why=f"{why}, and Slurm does not read it", later=_reader(wanted, seen))
    real = [move for moved in found.values() for move in moved if move.kind != LEFT]
    gone = sum(len(moved) for moved in found.values()) - len(real)
    if not real:
        return _no_node_moved(plain, wanted, digest, seen, past, same_file, gone)
    nodes = len({move.node for move in real})
    why = (
        f"{nodes} {'node does' if nodes == 1 else 'nodes do'} not sit where Slurm has {'it' if nodes == 1 else 'them'}"
    )
    if all(not paths for paths in seen.paths.values()):
        why = "Slurm has no topology"
        if seen.version[:2] < RECONFIGURE_SWAPS_PLUGIN:
            return plain._replace(
                level=RESTART, why=f"{why}, and {seen.version.text} takes a first one in at a restart only"
            )
        return plain._replace(level=RECONFIGURE, why=why)
    if reason := _no_update(wanted, seen, real):
        return plain._replace(level=RECONFIGURE, why=f"{why}; node updates will not do: {reason}")
    strings = {move.node: wanted.strings[move.node] for move in real}
    return plain._replace(level=NODE_UPDATE, why=why, updates=tuple(grouped(strings)))


def _no_node_moved(
    plain: Plan, wanted: Written, digest: str, seen: Seen, past: Past, same_file: bool, gone: int
) -> Plan:
    # Of a tree all is in the nodes' paths, which were just read.
    if same_file and past.unconfirmed == digest and wanted.format != "tree":
        return plain._replace(level=RECONFIGURE, why="the file was written, and nobody saw Slurm take it in")
    if gone:
        words = f"{gone} {'node has' if gone == 1 else 'nodes have'} no place now, which alone changes nothing"
    else:
        words = "all nodes sit where Slurm has them"
    if same_file:
        return plain._replace(why=words)
    if gone or _same_frame(wanted, seen.held):
        # Written anew, so that a restart finds what runs. With nodes away the file is let be until something else changes.
        return plain._replace(
            level=NOTHING if gone else FILE, why=words if gone else f"{words}; the file says otherwise"
        )
    return plain._replace(level=RECONFIGURE, why="sizes, order or partitions of blocks are to change")


def _moves(wanted: Written, seen: Seen, away: Collection[str]) -> dict[str, tuple[Move, ...]]:
    found: dict[str, tuple[Move, ...]] = {}
    for name, paths in wanted.paths.items():
        # What Slurm does not know as a node cannot be in its topology, whoever lists it.
        known = {node: path for node, path in paths.items() if node in seen.known}
        found[name] = tuple(moves(known, seen.paths.get(name, {}), away=away))
    return found


def _is_read(wanted: Written, seen: Seen) -> bool:
    """Say whether Slurm reads such a file as it is set."""
    return not seen.wins and (wanted.format == "yaml" or seen.plugin == f"topology/{wanted.format}")


def _reader(wanted: Written, seen: Seen) -> str:
    if seen.wins:
        return f"Slurm reads {seen.wins} in its place: move it away, or set topology.format: yaml"
    act = "scontrol reconfigure" if seen.version[:2] >= RECONFIGURE_SWAPS_PLUGIN else "restart slurmctld"
    return (
        f"Slurm has TopologyPlugin={seen.plugin or 'none'}: set TopologyPlugin=topology/{wanted.format} in slurm.conf, then {act}"
        " (ParallelCluster: by CustomSlurmSettings and a cluster update)"
    )


def _no_update(wanted: Written, seen: Seen, real: Collection[Move]) -> str:
    """Return why node updates cannot do it, empty where they can."""
    target = release(seen.version.text)
    if not has(seen.version, "node-topology-update"):
        return f"{seen.version.text} has none"
    if target is not None and tuple(target) in _NO_UPDATES:
        return f"{seen.version.text} forgets them"
    if any(move.node not in wanted.strings for move in real):
        return "a node leaves the topology"
    if seen.held.state == MISSING or not _same_frame(wanted, seen.held):
        return "blocks or their sizes change"
    if len(grouped({move.node: wanted.strings[move.node] for move in real})) > MAX_UPDATES:
        return f"more than {MAX_UPDATES} places change"
    new: set[str] = set()
    switches = seen.stale
    for name, paths in wanted.paths.items():
        above = {child: parent for path in seen.paths.get(name, {}).values() for parent, child in _edges(path)}
        known = above.keys() | {path[0] for path in seen.paths.get(name, {}).values() if path}
        switches += len(known)
        leaves = {path[-1] for path in seen.paths.get(name, {}).values() if path}
        for move in real:
            path = paths.get(move.node, ())
            if not path:
                continue
            if path[0] not in known or path[0] in above:
                return "another root"
            if any(above.get(child, parent) != parent for parent, child in _edges(path)):
                return "a switch hangs elsewhere"
            if any(parent in leaves for parent, _ in _edges(path)):
                return "a leaf gets switches below it"
            if path[-1] in {above[child] for child in above}:
                return "a switch with others below it becomes a leaf"
            new |= set(path) - known
    if (busy_s := len(new) * predict(switches + len(new))) > MAX_BUSY_S:
        return f"{len(new)} new switches would keep slurmctld busy for {busy_s:.0f} s"
    if len(new) + seen.stale > MAX_STALE:
        return f"{seen.stale} switches that no node is below any more are to go"
    return ""


def _edges(path: tuple[str, ...]) -> Iterable[tuple[str, str]]:
    return itertools.pairwise(path)


def _same_frame(wanted: Written, held: Held) -> bool:
    """Say whether the file has the same blocks, sizes and topologies; a tree is all in the nodes' paths."""
    if wanted.format == "tree":
        return True
    return held.state == OURS and _frame(bare(held.text)) == _frame(wanted.text)


def _frame(text: str) -> list[str]:
    """Return the lines of a file without what is said of nodes, and without switches."""
    found = []
    for line in essence(text).splitlines():
        if "switch:" in line or line.startswith("SwitchName="):
            continue
        found.append(line.split("Nodes=")[0].split(", nodes:")[0])
    return found


def refused_key(digest: str, version: Version) -> str:
    """Return how a refusal is remembered."""
    return f"{digest} {version.text}"


def _other_plugin(wanted: Written, seen: Seen) -> tuple[str, str] | None:
    """A topology.conf of another plugin than the one that is set stops slurmctld at its next start."""
    reads = seen.plugin.partition("/")[2]
    if wanted.format == "yaml" or reads not in ("tree", "block") or reads == wanted.format:
        return None
    return (
        f"Slurm has TopologyPlugin={seen.plugin}, and would not start any more with a {wanted.format} in {seen.held.path}",
        f"Write it elsewhere (`fmslurm topology generate --format {wanted.format} -o FILE`), set TopologyPlugin=topology/"
        f"{wanted.format}, and move it there with the restart; or set topology.format to what Slurm reads",
    )


def _lost(wanted: Written, seen: Seen, away: Collection[str]) -> tuple[str, str] | None:
    remedy = "See `fmslurm topology show`; --accept-loss takes it all the same"
    for name, running in seen.paths.items():
        had = [node for node, path in running.items() if is_place(path) and node not in away and node in seen.known]
        now = wanted.paths.get(name, {})
        lost = [node for node in had if not is_place(now.get(node, ()))]
        if len(lost) > max(1, len(had) // 2):
            words = f"the place of {len(lost)} of {len(had)} running nodes is no longer known: more likely an answer that is not whole"
            return words, remedy
    gone = [name for name in _TOPOLOGIES.findall(seen.held.text) if name not in wanted.paths]
    if wanted.format == "yaml" and seen.held.state == OURS and gone:
        words = f"nobody tells of any node of topology {gone[0]} any more: it would be gone, and partitions may name it"
        return words, remedy
    return None


def _foreign(seen: Seen, needed: Plan) -> tuple[str, str] | None:
    if needed.writes and seen.beside:
        words = (
            f"{seen.beside}, which Slurm reads now, was not written by fmslurm, and {seen.held.path} would win over it"
        )
        return words, "`fmslurm topology apply --force` writes it all the same; the other file stays as it is"
    if not needed.writes or seen.held.state not in (EDITED, FOREIGN):
        return None
    return (
        f"{seen.held.path} {whose(seen.held.state)}",
        "`fmslurm topology apply --force` replaces it; a copy of it stays beside it",
    )


def _too_much(limits: Limits, needed: Plan) -> tuple[str, str] | None:
    if limits.ceiling != NEVER and rank(needed.level) <= rank(limits.ceiling):
        return None
    allowed = "topology.apply is never" if limits.ceiling == NEVER else f"no more than {limits.ceiling} is allowed"
    act = "the file written" if needed.level == FILE else f"a {needed.level}"
    by = NODE_UPDATE if needed.level == FILE else needed.level
    return f"this takes {act}, and {allowed}", (
        f"`fmslurm topology apply --by {by}` does it once; with topology.apply: {by} the watch does it"
    )
