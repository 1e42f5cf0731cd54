"""Floors and limits: what bus bandwidth a healthy group shows, and how long each part of a burn-in may take. All pure.

busbw = bytes / seconds * 2 * (ranks - 1) / ranks, in GB/s of 1e9: nccl-tests' `doc/PERFORMANCE.md`, so figures compare.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext.burnin.model import OK, RoundResult
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import Finding

#: Rounds of many nodes at once, whose traffic is sustained; in others, which look for a culprit, only where it showed there.
SUSTAINED = ("all", "groups", "across")

#: The same and all together again, which is what the job may start on: no weaker than the first time.
LASTING = (*SUSTAINED, "again")


class Floor(NamedTuple):
    """The least busbw (GB/s, all-reduce of 1 GiB, all GPUs of each node) of `instance_type`.

    `nodes_min` 1 and 2 hold for exactly so many nodes (one is NVLink alone; two may exceed it, an artefact of the
    algorithm), from 3 on for so many or more. `published_gbs` is a figure as `source` prints it; the floor below it is
    deduced by us, with a gap for other sizes, stacks and node counts. None is measured by us: that is what a site's
    survey and history are for. `mnnvl`: over NVLink between nodes.
    """

    instance_type: str
    nodes_min: int
    busbw_gbs: float
    published_gbs: float
    source: str
    mnnvl: bool = False


#: When the sources below were last read.
FLOORS_CHECKED_ON = "2026-11"

_AWSOME = "awslabs/awsome-distributed-training micro-benchmarks/nccl-tests/README.md"
_ML = "stas00/ml-engineering network/README.md"
_P4D = f"{_AWSOME}: p4de, 2 nodes, 1 GiB"
_P4D_MORE = "aws/aws-parallelcluster tests/integration-tests/tests/efa/test_efa.py: p4d, the least of 2 nodes at 1 GiB"
_H200 = f"{_ML}: p5en, 1 node, 16 GiB"
_P5 = f"{_AWSOME}: p5, 2 nodes, 1 GiB"
_P5EN = f"{_ML}: p5en, 4 nodes, 4 GiB"
_P6 = f"{_ML}: p6-b200, 4 nodes, 1 GiB"
_NVL72 = "coreweave/nccl-tests README.md: GB200 NVL72, one rack, the least"

#: Start values; a site's own `floor_busbw_gbs` goes first. Nobody publishes a figure for two p6-b200, for p6-b300 and
#: P6e-GB200 over EFA (no row: such a run is right or wrong, and its speed not judged), or for more than four nodes
#: (0.75 of four from 65 on). A ring over the 400 Gb/s of p4d ends at 50, below what two nodes show.
FLOORS: tuple[Floor, ...] = (
    Floor("p4d.24xlarge", 2, 60.0, 76.8, _P4D),
    Floor("p4d.24xlarge", 3, 26.0, 26.0, _P4D_MORE),
    Floor("p4de.24xlarge", 2, 60.0, 76.8, _P4D),
    Floor("p4de.24xlarge", 3, 26.0, 26.0, _P4D_MORE),
    Floor("p5.48xlarge", 1, 400.0, 482.0, _H200),
    Floor("p5.48xlarge", 2, 380.0, 437.0, _P5),
    Floor("p5.48xlarge", 3, 310.0, 364.9, _P5EN),
    Floor("p5.48xlarge", 65, 275.0, 364.9, _P5EN),
    Floor("p5e.48xlarge", 1, 400.0, 482.0, _H200),
    Floor("p5e.48xlarge", 2, 380.0, 437.0, _P5),
    Floor("p5e.48xlarge", 3, 310.0, 364.9, _P5EN),
    Floor("p5e.48xlarge", 65, 275.0, 364.9, _P5EN),
    Floor("p5en.48xlarge", 1, 400.0, 482.0, _H200),
    Floor("p5en.48xlarge", 2, 380.0, 486.8, f"{_ML}: p5en, 2 nodes, 16 GiB"),
    Floor("p5en.48xlarge", 3, 310.0, 364.9, _P5EN),
    Floor("p5en.48xlarge", 65, 275.0, 364.9, _P5EN),
    Floor("p6-b200.48xlarge", 1, 660.0, 723.0, f"{_ML}: p6-b200, 1 node, 1 GiB"),
    Floor("p6-b200.48xlarge", 3, 310.0, 362.0, _P6),
    Floor("p6-b200.48xlarge", 65, 270.0, 362.0, _P6),
    Floor("p6-b300.48xlarge", 1, 660.0, 845.0, "NVIDIA/nccl#2140: 8 B300 in one node, with NVLS"),
    Floor("p6e-gb200.36xlarge", 2, 440.0, 586.0, _NVL72, mnnvl=True),
    Floor("p6e-gb200.36xlarge", 3, 440.0, 586.0, _NVL72, mnnvl=True),
)

#: The size that the figures above hold for; with another `message_bytes` only the site's own floors are used.
FLOOR_BYTES = 1 << 30


#: Node counts whose figures may be compared: (name, most nodes), in order; None has no end.
BUCKETS: tuple[tuple[str, int | None], ...] = (
    ("1", 1),
    ("2", 2),
    ("3-4", 4),
    ("5-16", 16),
    ("17-64", 64),
    ("65+", None),
)

#: The 8-GPU types with 3.2 Tb/s and more, on which no healthy run over EFA comes near TCP_ALARM_GBS.
TCP_ALARM_TYPES = ("p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "p6-b300.48xlarge")

#: A run over nodes at this or below is at the level of TCP. Published low for 64 MiB on 2 nodes, with a stack of 2023: 126
#: (awslabs/awsome-distributed-training micro-benchmarks/nccl-tests/README.md); smaller messages measure latency.
TCP_ALARM_GBS = 30.0
TCP_ALARM_BYTES = 64 << 20


class Limits(NamedTuple):
    """How long (seconds) the parts may take; see `limits`."""

    whole_s: float  # one run of all nodes (of groups, of one node of each group), its sustained traffic included
    group_s: float  # one run of pairs or of single nodes
    abort_s: float  # from the order to stop until a worker is killed
    silence_s: float  # without a sign of life a node's agent is taken for gone
    sustain_s: float = 0.0  # sustained traffic that fits in: what was asked, or less where the deadline is short


#: So much of a deadline all sustained traffic together may take.
_SUSTAIN_SHARE = 0.5


def limits(deadline_s: float, *, nodes: int = 0, group_nodes: int = 64, sustain_s: float = 0.0) -> Limits:
    """Share a deadline (seconds) out: one run of all, then three rounds of pairs and a last one, with their ends.

    Above `group_nodes` the run of all is two: groups, then one node of each. `sustain_s` of traffic is in each of them.
    """
    wholes = 2 if nodes > group_nodes else 1
    sustain_s = min(sustain_s, _SUSTAIN_SHARE * deadline_s / wholes)
    rest_s = deadline_s - wholes * sustain_s
    return Limits(
        whole_s=(0.30 if wholes == 1 else 0.20) * rest_s + sustain_s,
        group_s=(0.12 if wholes == 1 else 0.08) * rest_s,
        abort_s=max(0.5, min(3.0, 0.03 * deadline_s)),
        silence_s=max(2.0, min(8.0, 0.12 * deadline_s)),
        sustain_s=sustain_s,
    )


def way_s(deadline_s: float) -> float:
    """Return how long (seconds) of a deadline is kept for the verdict's way to the other nodes and back to the hook."""
    return min(2.0, 0.05 * deadline_s)


def reproducing_s(onset_s: float) -> float:
    """Return for how long (seconds) traffic shall last to show again what showed after `onset_s`; 0 where it showed before.

    So that the last quarter, by which it is judged, lies behind it, though next to nothing ran before.
    """
    return 0.3 + 1.35 * onset_s if onset_s > 0 else 0.0


def again_s(history: Sequence[RoundResult]) -> float:
    """Return how long (seconds) rounds that look for a culprit sustain traffic: 0, unless it showed only in such."""
    wholes = (done for done in history if done.kind in LASTING)
    failed = (group for done in wholes for group in done.groups if group.outcome != OK)
    return reproducing_s(max((group.onset_s for group in failed), default=0.0))


def deadline_for(base_s: float, nodes: int, *, group_nodes: int = 64, extra_sustain_s: float = 0.0) -> float:
    """Return how long a burn-in of so many nodes may take (seconds), where `base_s` is enough for `group_nodes`.

    Larger jobs run twice (groups, then one node of each), and every node more costs the leader's rendezvous and NCCL's
    bootstrap some milliseconds (linear in the ranks: NVIDIA/nccl#1791). `extra_sustain_s` is what a strict burn-in
    sustains beyond a normal one, in each of these runs.
    """
    larger = nodes > group_nodes
    grown_s = base_s * 0.45 + 0.02 * (nodes - group_nodes) if larger else 0.0
    return base_s + grown_s + extra_sustain_s * (2 if larger else 1)


def bucket(nodes: int) -> str:
    """Return the name of the bucket that a node count is in."""
    return next(name for name, most in BUCKETS if most is None or nodes <= most)


def tcp_alarm(
    instance_type: str, nodes: int, *, message_bytes: int, busbw: float | None, site_floor: float = 0.0
) -> Finding | None:
    """Return the finding that a run between nodes went at the level of TCP (busbw in GB/s), or None.

    Only for runs that were to go over EFA. A site that set a floor this low has a network of its own, and no alarm.
    """
    if instance_type not in TCP_ALARM_TYPES or nodes < 2 or message_bytes < TCP_ALARM_BYTES:
        return None
    if busbw is None or busbw > TCP_ALARM_GBS or 0 < site_floor <= TCP_ALARM_GBS:
        return None
    words = (
        f"{busbw:.3g} GB/s over {nodes} nodes of {instance_type}: only TCP explains it",
        f"at {message_bytes >> 20} MiB EFA gives several times {TCP_ALARM_GBS:g} GB/s; look for a fall-back to sockets",
    )
    return Finding("burnin.tcp-alarm", "node", "warn", words)


def busbw_gbs(message_bytes: int, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth of an all-reduce (GB/s). One rank moves nothing over a bus: then it is bytes / seconds."""
    share = 2 * (ranks - 1) / ranks if ranks > 1 else 1.0
    return message_bytes / seconds * share / 1e9


def seconds_at(busbw: float, message_bytes: int, ranks: int) -> float:
    """Return how long an all-reduce takes at a bus bandwidth (GB/s)."""
    share = 2 * (ranks - 1) / ranks if ranks > 1 else 1.0
    return message_bytes * share / (busbw * 1e9)


def floor_row(instance_type: str, nodes: int, *, mnnvl: bool = False) -> Floor | None:
    """Return the row of the table for a group of `nodes`, or None where nobody knows a floor."""
    found = None
    for row in FLOORS:
        fits = row.nodes_min == nodes if row.nodes_min <= 2 else row.nodes_min <= nodes
        if row.instance_type == instance_type and row.mnnvl == mnnvl and fits:
            found = row
    return found


def floor_gbs(
    instance_type: str,
    nodes: int,
    *,
    message_bytes: int,
    site_floor: float = 0.0,
    site_pair_floor: float = 0.0,
    mnnvl: bool = False,
) -> float:
    """Return the floor for a group of `nodes` (GB/s), 0.0 where nobody knows one.

    The site's own figures go first: `site_floor` for three nodes and more, `site_pair_floor` for two. A site that gave
    any is judged by its own alone, since its fabric need not be the table's (one node has no key of its own).
    """
    if site_floor or site_pair_floor:
        return 0.0 if nodes == 1 else site_pair_floor if nodes == 2 else site_floor
    if message_bytes < FLOOR_BYTES:
        return 0.0
    row = floor_row(instance_type, nodes, mnnvl=mnnvl)
    return row.busbw_gbs if row is not None else 0.0
