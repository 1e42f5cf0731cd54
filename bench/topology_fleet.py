"""Fleets of any size for the benches of topology: the same nodes for the same size, in an order that says nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

from slurm_ext.topology.model import Placement

PER_LEAF, PER_MIDDLE, PER_TOP, PER_DOMAIN, OFF_EVERY = 16, 256, 4096, 18, 20


def fleet(nodes: int) -> Iterator[Placement]:
    """Yield nodes of GB200 UltraServers below leaves of 16, three layers deep; one in twenty is off."""
    order = list(range(nodes))
    random.Random(nodes).shuffle(order)
    for i in order:
        path = (f"nn-a{i // PER_TOP:016x}", f"nn-b{i // PER_MIDDLE:016x}", f"nn-c{i // PER_LEAF:016x}")
        yield Placement(
            f"gpu-st-p6e-{i + 1}",
            f"i-{i:017x}",
            "p6e-gb200.36xlarge",
            path if i % OFF_EVERY else (),
            "use2-az1",
            f"cr-{i // 720:017x}",
            f"us-{i // PER_DOMAIN:017x}",
        )
