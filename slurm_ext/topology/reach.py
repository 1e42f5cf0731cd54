"""What a question about places may choose, and how Slurm, AWS and the share are reached for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from slurm_ext.aws.service import Service
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.topology.place_fact import Place

EC2, FILE, CLUSTER, AUTO = "ec2", "file", "cluster", "auto"

#: `--reservation auto`: those that the list of nodes, or ParallelCluster's fleet file, names.
RESERVED = "auto"


class Choice(NamedTuple):
    """What is asked for. `reservations`: `auto`, reservation ids, or `NODES=ID`."""

    source: str = EC2
    source_file: str = ""
    nodes_file: str = ""
    reservations: tuple[str, ...] = ()


class Reach(NamedTuple):
    """How to reach what may have to be asked; nothing is reached before. `root`: where ParallelCluster's files lie below."""

    slurm: Callable[[], Slurm]
    ec2: Callable[[], Service]
    dynamodb: Callable[[], Service]
    places: Callable[[], Mapping[str, Place] | None]
    root: str = "/"
