"""What nodes offer -> gres.conf and the NodeName lines that go with it. Pure text; nodes that are alike share one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.gres.model import NodeFacts, Part
from slurm_ext.gres.places import known_parts, seen_parts
from slurm_ext.gres.read_conf import ranges
from slurm_ext.slurm.hostlist import fold

#: Slurm's RealMemory as ParallelCluster sets it: the operating system keeps the rest.
REAL_MEMORY_SHARE = 0.95

ORIGIN = "# Written by fmslurm from the catalogue of instance types."


class Offer(NamedTuple):
    """What one node offers: its type, the address Slurm reaches it by (empty: its name), and what nodes of it told of themselves."""

    instance_type: InstanceType
    address: str = ""
    port: int = 0
    seen: NodeFacts | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return sockets, cores of each, threads of each: as the node tells, else as the type has them; 0 where nobody knows."""
        row, seen = self.instance_type, self.seen
        if seen is not None and seen.cores_per_socket:
            return seen.sockets, seen.cores_per_socket, seen.threads_per_core
        return row.sockets, row.cores_per_socket, row.threads_per_core

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the GPUs by socket: as the node tells where it shows all that its type has, else as the catalogue has them."""
        row, seen = self.instance_type, self.seen
        if seen is None or len(seen.gpus) != row.gpus:
            same = self.shape == (row.sockets, row.cores_per_socket, row.threads_per_core)
            return known_parts(row) if same else known_parts(row._replace(gpus_by_socket=()))
        found = seen_parts(seen) if seen.sockets > 1 else ()
        return found or (Part(tuple(gpu.number for gpu in seen.gpus)),)


def no_cores(offer: Offer) -> str:
    """Return why lines have no Cores=, empty where they have them."""
    row, parts = offer.instance_type, offer.parts
    if not row.gpus or any(part.cores for part in parts):
        return ""
    if offer.shape[0] == 1:
        return f"{row.name} has one socket: Cores= would say nothing"
    return (
        f"no Cores= for {row.name}: nobody published which of its GPUs hang at which socket; "
        "`fmslurm gres show --here --json` on a node reads it, for `fmslurm gres generate --facts`"
    )


def gres_conf(offers: Mapping[str, Offer], *, device_dir: str = "/dev", autodetect: str = "") -> str:
    """Return gres.conf(5): File= lines by socket, of which slurmctld takes whole ones alone.

    Or `autodetect` (nvml, nvidia), which cloud nodes cannot use.
    """
    lines = [ORIGIN]
    for offer, nodes in by_shape(offers):
        row, names = offer.instance_type, fold(nodes)
        if not row.gpus:
            continue
        if autodetect:
            lines.append(f"NodeName={names} AutoDetect={autodetect}")
            continue
        if why := no_cores(offer):
            lines.append(f"# {why}")
        for part in offer.parts:
            cores = f" Cores={part.cores}" if part.cores else ""
            lines.append(f"NodeName={names} Name=gpu Type={row.gpu_type} File={files(part, device_dir)}{cores}")
    return "\n".join(lines) + "\n"


def node_lines(offers: Mapping[str, Offer], *, state: str = "UNKNOWN") -> str:
    """Return the NodeName lines of slurm.conf(5), one for each node.

    Sockets, cores and threads are all given: with CPUs alone Slurm takes every CPU for a socket of its own.
    """
    lines = [ORIGIN, "GresTypes=gpu"]
    for kind, nodes in by_shape(offers):
        row = kind.instance_type
        shape = f"{processors(kind)} RealMemory={real_memory(row)}"
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


def processors(offer: Offer) -> str:
    """Return a node's processors as a node line has them; CPUs alone where nobody knows its sockets."""
    sockets, cores, threads = offer.shape
    if not sockets:
        return f"CPUs={offer.instance_type.vcpus}"
    return f"CPUs={sockets * cores * threads} Sockets={sockets} CoresPerSocket={cores} ThreadsPerCore={threads}"


def files(part: Part, device_dir: str = "/dev") -> str:
    """Return the device files of a part as gres.conf has them."""
    numbers = ranges(part.numbers)
    return f"{device_dir}/nvidia{numbers}" if numbers.isdigit() else f"{device_dir}/nvidia[{numbers}]"


def real_memory(row: InstanceType) -> int:
    """Return what a node of this type may offer of its memory, in MiB."""
    return int(row.memory_mib * REAL_MEMORY_SHARE)


def pcs_settings(offer: Offer, *, device_dir: str = "/dev") -> dict[str, Any]:
    """Return the slurmConfiguration of an AWS PCS compute node group: PCS itself puts NodeName= before each record.

    AWS PCS API reference, ComputeNodeGroupSlurmConfiguration (gresCustomSettings), read 2026-11-30.
    """
    row, records = offer.instance_type, []
    for part in offer.parts:
        record = {"Name": "gpu", "Type": row.gpu_type, "File": files(part, device_dir)}
        records.append(record | ({"Cores": part.cores} if part.cores else {}))
    memory = {"parameterName": "RealMemory", "parameterValue": str(real_memory(row))}
    return {"slurmCustomSettings": [memory], "gresCustomSettings": records}


def pcs_groups(offers: Mapping[str, Offer], *, device_dir: str = "/dev") -> dict[str, Any]:
    """Return the settings of each type: a compute node group has nodes of one, so two shapes of one type are told apart."""
    found: dict[str, Any] = {}
    for offer, nodes in by_shape(offers):
        if offer.instance_type.gpus:
            name = offer.instance_type.name
            found[f"{name} ({fold(nodes)})" if name in found else name] = pcs_settings(offer, device_dir=device_dir)
    return found


def by_shape(offers: Mapping[str, Offer]) -> list[tuple[Offer, list[str]]]:
    """Return the nodes that are alike, by type and by what they told, types by name."""
    groups: dict[tuple[str, tuple[int, ...], tuple[Part, ...]], list[str]] = {}
    for node, offer in offers.items():
        groups.setdefault((offer.instance_type.name, offer.shape, offer.parts), []).append(node)
    return [(offers[nodes[0]], nodes) for _, nodes in sorted(groups.items())]
