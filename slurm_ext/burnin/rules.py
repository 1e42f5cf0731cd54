"""Floors and limits: what bus bandwidth a healthy group shows, and how long each part of a burn-in may take. All pure.

busbw = bytes / seconds * 2 * (ranks - 1) / ranks, in GB/s of 1e9: nccl-tests' `doc/PERFORMANCE.md`, so figures compare.
"""

from __future__ import annotations

from typing import NamedTuple


class Floor(NamedTuple):
    """The least busbw (GB/s, all-reduce of 1 GiB, 8 GPUs a node) of `instance_type` on `nodes_min` nodes or more."""

    instance_type: str
    nodes_min: int
    busbw_gbs: float
    source: str


_AWSOME = "awslabs/awsome-distributed-training micro-benchmarks/nccl-tests/README.md"
_ML_ENGINEERING = "stas00/ml-engineering network/README.md"
_FEW = f"0.85 of {_ML_ENGINEERING}, 4 nodes"
_MANY = f"0.75 of {_ML_ENGINEERING}, 4 nodes; nobody publishes more nodes"

#: Start values, checked 2026-11; a site's own `floor_busbw_gbs` overrides them. One node: 8 GPUs over NVLink.
FLOORS: tuple[Floor, ...] = (
    Floor("p4d.24xlarge", 2, 60.0, f"0.78 of {_AWSOME}, p4de, 2 nodes"),
    Floor("p4de.24xlarge", 2, 60.0, f"0.78 of {_AWSOME}, 2 nodes"),
    Floor("p5.48xlarge", 1, 400.0, f"0.83 of {_ML_ENGINEERING}, H200, 16 GiB"),
    Floor("p5.48xlarge", 2, 380.0, f"0.87 of {_AWSOME}, 2 nodes"),
    Floor("p5.48xlarge", 3, 310.0, _FEW),
    Floor("p5.48xlarge", 65, 275.0, _MANY),
    Floor("p5e.48xlarge", 1, 400.0, f"0.83 of {_ML_ENGINEERING}, H200, 16 GiB"),
    Floor("p5e.48xlarge", 2, 380.0, f"0.87 of {_AWSOME}, p5, 2 nodes"),
    Floor("p5e.48xlarge", 3, 310.0, _FEW),
    Floor("p5e.48xlarge", 65, 275.0, _MANY),
    Floor("p5en.48xlarge", 1, 400.0, f"0.83 of {_ML_ENGINEERING}, 16 GiB"),
    Floor("p5en.48xlarge", 2, 380.0, f"0.78 of {_ML_ENGINEERING}, 2 nodes, 16 GiB"),
    Floor("p5en.48xlarge", 3, 310.0, _FEW),
    Floor("p5en.48xlarge", 65, 275.0, _MANY),
    Floor("p6-b200.48xlarge", 1, 660.0, f"0.91 of {_ML_ENGINEERING}, 1 node, 1 GiB"),
    Floor("p6-b200.48xlarge", 3, 310.0, f"0.86 of {_ML_ENGINEERING}, 4 nodes, 1 GiB"),
    Floor("p6-b200.48xlarge", 65, 270.0, f"0.75 of {_ML_ENGINEERING}, 4 nodes, 1 GiB"),
)

#: The size that the figures above hold for; with another `message_bytes` only the site's own floors are used.
FLOOR_BYTES = 1 << 30


class Limits(NamedTuple):
    """How long (seconds) the parts may take; see `limits`."""

    whole_s: float  # one run of all nodes
    group_s: float  # one run of pairs or of single nodes
    abort_s: float  # from the order to stop until a worker is killed
    silence_s: float  # without a sign of life a node's agent is taken for gone


def limits(deadline_s: float) -> Limits:
    """Share a deadline (seconds) out: one run of all, then three rounds of pairs and a last one, with their ends."""
    return Limits(
        whole_s=0.30 * deadline_s,
        group_s=0.12 * deadline_s,
        abort_s=max(0.5, min(3.0, 0.03 * deadline_s)),
        silence_s=max(2.0, min(8.0, 0.12 * deadline_s)),
    )


def busbw_gbs(message_bytes: int, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth of an all-reduce (GB/s). One rank moves nothing over a bus: then it is bytes / seconds."""
    share = 2 * (ranks - 1) / ranks if ranks > 1 else 1.0
    return message_bytes / seconds * share / 1e9


def seconds_at(busbw: float, message_bytes: int, ranks: int) -> float:
    """Return how long an all-reduce takes at a bus bandwidth (GB/s)."""
    share = 2 * (ranks - 1) / ranks if ranks > 1 else 1.0
    return message_bytes * share / (busbw * 1e9)


def floor_gbs(
    instance_type: str, nodes: int, *, message_bytes: int, site_floor: float = 0.0, site_pair_floor: float = 0.0
) -> float:
    """Return the floor for a group of `nodes` (GB/s), 0.0 where nobody knows one.

    The site's own figures go first: `site_floor` for three nodes and more, `site_pair_floor` for two. A site that gave
    any is judged by its own alone, since its fabric need not be the table's (one node has no key of its own).
    """
    if site_floor or site_pair_floor:
        return 0.0 if nodes == 1 else site_pair_floor if nodes == 2 else site_floor
    if message_bytes < FLOOR_BYTES:
        return 0.0
    best = 0.0
    for row in FLOORS:
        if row.instance_type == instance_type and row.nodes_min <= nodes:
            best = row.busbw_gbs
    # Two nodes are an artefact of their own (above NVLink's figure at times): never judged by a row for one node.
    if nodes == 2 and not any(row.instance_type == instance_type and row.nodes_min == 2 for row in FLOORS):
        return 0.0
    return best
