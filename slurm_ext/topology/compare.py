"""Two views of the same nodes: the tree we would write, and what Slurm says it has. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Difference(NamedTuple):
    """One node whose path is not the same in both views; an empty path means that the view does not have the node."""

    node: str
    wanted: tuple[str, ...]
    found: tuple[str, ...]


def differences(wanted: Mapping[str, tuple[str, ...]], found: Mapping[str, tuple[str, ...]]) -> list[Difference]:
    """Return the nodes on which the views disagree, in the order of `wanted`, then nodes only Slurm has."""
    nodes = list(wanted) + sorted(found.keys() - wanted.keys())
    pairs = (Difference(node, wanted.get(node, ()), found.get(node, ())) for node in nodes)
    return [pair for pair in pairs if pair.wanted != pair.found]
