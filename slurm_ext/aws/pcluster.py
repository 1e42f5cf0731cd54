"""What ParallelCluster's own files and names say: its node names, and where its head node keeps the map of nodes.

Names: aws-parallelcluster-node, src/slurm_plugin/slurm_resources.py; files: aws-parallelcluster-cookbook,
templates/default/slurm/parallelcluster_clustermgtd.conf.erb. Compared on 2026-11-30. Standard library only.
"""

from __future__ import annotations

import configparser
import json
import os
import re
from typing import NamedTuple

CLUSTERMGTD = "etc/parallelcluster/slurm_plugin/parallelcluster_clustermgtd.conf"
FLEET = "etc/parallelcluster/slurm_plugin/fleet-config.json"

#: The tag that every instance of a cluster carries.
CLUSTER_TAG = "parallelcluster:cluster-name"

MAX_BYTES = 4 << 20

# Queues and compute resources may hold `-st-` and `-dy-` themselves: the last one divides, as in ParallelCluster.
_NAME = re.compile(r"([a-z0-9-]+)-(st|dy)-([a-z0-9-]+)-([0-9]+)")


class NodeName(NamedTuple):
    """The parts of a node's name; `static` nodes are always up, the others come when a job wants them."""

    queue: str
    static: bool
    compute_resource: str
    number: int


class Cluster(NamedTuple):
    """What the head node's file says; each is empty where it does not."""

    name: str = ""
    region: str = ""
    table: str = ""


def node_name(text: str) -> NodeName | None:
    """Return the parts of a name of ParallelCluster's form, None for any other."""
    found = _NAME.fullmatch(text)
    return NodeName(found[1], found[2] == "st", found[3], int(found[4])) if found else None


def cluster(root: str = "/") -> Cluster:
    """Return what this head node's file says of its cluster; empty where there is none that can be read."""
    text = _text(os.path.join(root, CLUSTERMGTD))
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return Cluster()

    def word(key: str) -> str:
        value = parser.get("clustermgtd", key, fallback="").strip()
        return "" if value.lower() in ("none", "null") else value

    return Cluster(word("cluster_name"), word("region"), word("dynamodb_table"))


def reservations(root: str = "/") -> dict[tuple[str, str], str]:
    """Return (queue, compute resource) -> capacity reservation id, as the head node's fleet file has it."""
    try:
        fleet = json.loads(_text(os.path.join(root, FLEET)) or "{}")
    except ValueError:
        return {}
    found: dict[tuple[str, str], str] = {}
    if not isinstance(fleet, dict):
        return found
    for queue, resources in fleet.items():
        for name, told in resources.items() if isinstance(resources, dict) else ():
            reservation = told.get("CapacityReservationId") if isinstance(told, dict) else None
            if isinstance(reservation, str) and re.fullmatch(r"cr-[0-9a-f]{8,32}", reservation):
                found[queue, name] = reservation
    return found


def _text(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return stream.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
