"""Catalogue -> gres.conf and the NodeName lines that go with it. Pure text; nodes of one type share one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.slurm.hostlist import fold

#: Slurm's RealMemory as ParallelCluster sets it: the operating system keeps the rest.
REAL_MEMORY_SHARE = 0.95


class Offer(NamedTuple):
    """What one node offers: its type, and the address Slurm reaches it by (empty: its name)."""

    instance_type: InstanceType
    address: str = ""
    port: int = 0


def gres_conf(offers: Mapping[str, Offer], *, device_dir: str = "/dev") -> str:
    """Return gres.conf(5): one line for each GPU model, with File=, since AutoDetect cannot be used for cloud nodes."""
    lines = ["# Written by fmslurm from the catalogue of instance types."]
    for row, nodes in _by_type(offers):
        if row.gpus:
            last = f"[0-{row.gpus - 1}]" if row.gpus > 1 else "0"
            lines.append(f"NodeName={fold(nodes)} Name=gpu Type={row.gpu_type} File={device_dir}/nvidia{last}")
    return "\n".join(lines) + "\n"


def node_lines(offers: Mapping[str, Offer]) -> str:
    """Return the NodeName lines of slurm.conf(5): one default line for each type, then one line for each node.

    Sockets, cores and threads are all given: with CPUs alone Slurm takes every CPU for a socket of its own.
    """
    lines = ["# Written by fmslurm from the catalogue of instance types.", "GresTypes=gpu"]
    for row, nodes in _by_type(offers):
        shape = (
            f"CPUs={row.vcpus} Sockets={row.sockets} CoresPerSocket={row.cores_per_socket} "
            f"ThreadsPerCore={row.threads_per_core} RealMemory={int(row.memory_mib * REAL_MEMORY_SHARE)}"
        )
        gres = f" Gres=gpu:{row.gpu_type}:{row.gpus}" if row.gpus else ""
        for node in nodes:
            offer = offers[node]
            address = f" NodeAddr={offer.address}" if offer.address else ""
            port = f" Port={offer.port}" if offer.port else ""
            lines.append(f"NodeName={node}{address}{port} {shape}{gres} State=UNKNOWN")
    return "\n".join(lines) + "\n"


def _by_type(offers: Mapping[str, Offer]) -> list[tuple[InstanceType, list[str]]]:
    groups: dict[str, list[str]] = {}
    for node, offer in offers.items():
        groups.setdefault(offer.instance_type.name, []).append(node)
    return [(offers[nodes[0]].instance_type, nodes) for _, nodes in sorted(groups.items())]
