"""Which GPUs hang at which socket: by a node's own facts, and by the catalogue. Pure.

Slurm gives a GPU the cores of whole sockets (gres.conf(5), Cores). So what counts is the socket of the GPU's NUMA node, also
where a socket has several of them, unless SlurmdParameters=numa_node_as_socket makes each NUMA node a socket.
"""

from __future__ import annotations

from collections import Counter

from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.gres.model import Gpu, NodeFacts, Part
from slurm_ext.gres.read_conf import ranges


def numa_as_sockets(facts: NodeFacts) -> NodeFacts:
    """Return the facts as slurmd has them with numa_node_as_socket: each NUMA node with processors is a socket."""
    sizes = {len(cores) for cores in facts.numa_cores.values() if cores}
    if len(sizes) != 1:
        return facts
    size = sizes.pop()
    return facts._replace(sockets=sum(bool(cores) for cores in facts.numa_cores.values()), cores_per_socket=size)


def socket_cores(facts: NodeFacts, gpu: Gpu) -> frozenset[int]:
    """Return the cores of the socket that a GPU hangs at, empty where nothing tells it."""
    size, near = facts.cores_per_socket, facts.numa_cores.get(gpu.numa_node, frozenset())
    if not near or size <= 0 or facts.sockets < 1:
        return frozenset()
    found = frozenset(
        core for socket in {core // size for core in near} for core in range(socket * size, (socket + 1) * size)
    )
    return found if len(found) < facts.sockets * size or facts.sockets == 1 else frozenset()


def seen_parts(facts: NodeFacts) -> tuple[Part, ...]:
    """Return a node's GPUs by socket, in the order of their device numbers; empty where the place of one is not known.

    GPUs of one socket with another's between them are parts apart: Slurm counts the devices of gres.conf as they stand there, and
    CUDA_VISIBLE_DEVICES is that count (seen on 22.05.8: with 0,1,3,5 before 2,4,6,7 a job that got the latter saw 4,5,6,7).
    """
    parts: list[tuple[frozenset[int], list[int]]] = []
    for gpu in sorted(facts.gpus):
        cores = socket_cores(facts, gpu)
        if not cores:
            return ()
        if not parts or parts[-1][0] != cores:
            parts.append((cores, []))
        parts[-1][1].append(gpu.number)
    return tuple(Part(tuple(gpus), ranges(cores)) for cores, gpus in parts)


def known_parts(row: InstanceType) -> tuple[Part, ...]:
    """Return the GPUs of a type by socket as the catalogue has them; all in one part where nobody knows which hang where."""
    if not row.gpus:
        return ()
    if row.sockets < 2 or len(row.gpus_by_socket) != row.sockets or sum(row.gpus_by_socket) != row.gpus:
        return (Part(tuple(range(row.gpus))),)
    found, first = [], 0
    for socket, count in enumerate(row.gpus_by_socket):
        low, high = socket * row.cores_per_socket, (socket + 1) * row.cores_per_socket - 1
        if count:
            found.append(Part(tuple(range(first, first + count)), f"{low}-{high}"))
        first += count
    return tuple(found)


def seen_split(facts: NodeFacts) -> tuple[int, ...]:
    """Return how many GPUs each socket has, where the device numbers follow the sockets; empty where they do not."""
    size = facts.cores_per_socket
    sockets = [min(cores) // size for gpu in facts.gpus if (cores := socket_cores(facts, gpu))]
    if not sockets or len(sockets) != len(facts.gpus) or sockets != sorted(sockets):
        return ()
    counted = Counter(sockets)
    return tuple(counted[socket] for socket in range(facts.sockets))
