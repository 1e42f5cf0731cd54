"""Catalogue -> gres.conf and the NodeName lines that go with it. Pure text; nodes of one type share one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.slurm.hostlist import fold

#: Slurm's RealMemory as ParallelCluster sets it: the operating system keeps the rest.
REAL_MEMORY_SHARE = 0.95

ORIGIN = "# Written by fmslurm from the catalogue of instance types."


class Offer(NamedTuple):
    """What one node offers: its type, and the address Slurm reaches it by (empty: its name)."""

    instance_type: InstanceType
    address: str = ""
    port: int = 0


class Part(NamedTuple):
    """GPUs of one node that share a socket: first and last device number, and the socket's cores (empty: not known)."""

    first: int
    last: int
    cores: str = ""

    @property
    def files(self) -> str:
        """Return the numbers as they stand behind /dev/nvidia."""
        return str(self.first) if self.first == self.last else f"[{self.first}-{self.last}]"


def parts(row: InstanceType) -> list[Part]:
    """Return the GPUs of a type by socket, all in one part where there is one socket or nobody knows which hang where.

    Cores are logical core numbers and cover whole sockets: slurmctld takes no others (gres.conf(5)).
    """
    if not row.gpus:
        return []
    if len(row.gpus_by_socket) < 2 or len(row.gpus_by_socket) != row.sockets or sum(row.gpus_by_socket) != row.gpus:
        return [Part(0, row.gpus - 1)]
    found, first = [], 0
    for socket, count in enumerate(row.gpus_by_socket):
        low, high = socket * row.cores_per_socket, (socket + 1) * row.cores_per_socket - 1
        if count:
            found.append(Part(first, first + count - 1, f"{low}-{high}"))
        first += count
    return found


def no_cores(row: InstanceType) -> str:
    """Return why a type's lines have no Cores=, empty where they have them."""
    if not row.gpus or any(part.cores for part in parts(row)):
        return ""
    if row.sockets == 1:
        return f"{row.name} has one socket: Cores= would say nothing"
    return (
        f"no Cores= for {row.name}: nobody published which of its GPUs hang at which socket; "
        "`fmslurm gres check` on a node reads it"
    )


def gres_conf(offers: Mapping[str, Offer], *, device_dir: str = "/dev", autodetect: str = "") -> str:
    """Return gres.conf(5): File= lines by socket, or `autodetect` (nvml, nvidia), which cloud nodes cannot use."""
    lines = [ORIGIN]
    for row, nodes in by_type(offers):
        if not row.gpus:
            continue
        names = fold(nodes)
        if autodetect:
            lines.append(f"NodeName={names} AutoDetect={autodetect}")
            continue
        if why := no_cores(row):
            lines.append(f"# {why}")
        for part in parts(row):
            cores = f" Cores={part.cores}" if part.cores else ""
            files = f"{device_dir}/nvidia{part.files}"
            lines.append(f"NodeName={names} Name=gpu Type={row.gpu_type} File={files}{cores}")
    return "\n".join(lines) + "\n"


def node_lines(offers: Mapping[str, Offer], *, state: str = "UNKNOWN") -> str:
    """Return the NodeName lines of slurm.conf(5), one for each node.

    Sockets, cores and threads are all given: with CPUs alone Slurm takes every CPU for a socket of its own.
    """
    lines = [ORIGIN, "GresTypes=gpu"]
    for row, nodes in by_type(offers):
        shape = f"CPUs={row.vcpus} {topology(row)} RealMemory={real_memory(row)}"
        gres = f" Gres=gpu:{row.gpu_type}:{row.gpus}" if row.gpus else ""
        for node in nodes:
            offer = offers[node]
            address = f" NodeAddr={offer.address}" if offer.address else ""
            port = f" Port={offer.port}" if offer.port else ""
            lines.append(f"NodeName={node}{address}{port} {shape}{gres} State={state}")
    return "\n".join(lines) + "\n"


def topology(row: InstanceType) -> str:
    """Return the shape of a type's processors as a node line has it."""
    return f"Sockets={row.sockets} CoresPerSocket={row.cores_per_socket} ThreadsPerCore={row.threads_per_core}"


def real_memory(row: InstanceType) -> int:
    """Return what a node of this type may offer of its memory, in MiB."""
    return int(row.memory_mib * REAL_MEMORY_SHARE)


def pcs_settings(row: InstanceType, *, device_dir: str = "/dev") -> dict[str, Any]:
    """Return the slurmConfiguration of an AWS PCS compute node group: PCS itself puts NodeName= before each record.

    AWS PCS API reference, ComputeNodeGroupSlurmConfiguration (gresCustomSettings), read 2026-11-30.
    """
    records = []
    for part in parts(row):
        record = {"Name": "gpu", "Type": row.gpu_type, "File": f"{device_dir}/nvidia{part.files}"}
        records.append(record | ({"Cores": part.cores} if part.cores else {}))
    memory = {"parameterName": "RealMemory", "parameterValue": str(real_memory(row))}
    return {"slurmCustomSettings": [memory], "gresCustomSettings": records}


def by_type(offers: Mapping[str, Offer]) -> list[tuple[InstanceType, list[str]]]:
    """Return the nodes of each type, types by name."""
    groups: dict[str, list[str]] = {}
    for node, offer in offers.items():
        groups.setdefault(offer.instance_type.name, []).append(node)
    return [(offers[nodes[0]].instance_type, nodes) for _, nodes in sorted(groups.items())]
