"""Pure: names, addresses and ports of a lab, derived from its folder and from what is taken already."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator

from slurm_ext.errors import UsageError
from slurm_ext.lab.model import MAX_DIR_CHARS, LabNode

#: RFC 2544 sets these addresses apart for benchmarks: no site routes them. A lab takes one /22, room for 1,000 nodes.
POOL = ipaddress.ip_network("198.18.0.0/15")
SUBNET_PREFIX = 22
FIRST_NODE = 11
MAX_NODES = 1000

#: Below the range that Linux hands out to clients by default (32768 up), so a listener of ours meets no client port.
PORT_RANGE = range(20000, 30000)

SLURMD_PORT = 6818
CONTROLLER_PORT = 6817
#: S3, master, master gRPC, volume, volume gRPC, filer, filer gRPC, S3 gRPC: fixed where the lab has a namespace of its own.
S3_PORTS = (8333, 9333, 19333, 8080, 18080, 8888, 18888, 18333)

_PREFIX = re.compile(r"[a-z][a-z-]{0,15}")


def lab_id(directory: str) -> str:
    """Return the six characters that make a lab's names its own; the same folder gives the same ones."""
    return hashlib.sha256(directory.encode()).hexdigest()[:6]


def link_name(identity: str) -> str:
    """Return the name of the one link the lab has among the host's (15 characters are the limit)."""
    return f"fmlab{identity}"


def check_options(directory: str, count: int, prefix: str) -> None:
    """Raise UsageError where a folder, a number of nodes or a name prefix cannot become a lab."""
    if len(directory) > MAX_DIR_CHARS:
        raise UsageError(
            f"{directory} is {len(directory)} characters long; sockets below it allow {MAX_DIR_CHARS}",
            remedy="Choose a shorter --dir",
        )
    if re.search(r"[^A-Za-z0-9/._-]", directory):
        raise UsageError(f"{directory!r} has characters that slurm.conf cannot hold", remedy="Choose another --dir")
    if not 1 <= count <= MAX_NODES:
        raise UsageError(f"{count} nodes: a lab has 1 to {MAX_NODES}", remedy="Choose --nodes within that")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise UsageError(f"prefix {prefix!r} is no start of a host name", remedy="Use a to z and -, at most 16 of them")


def subnets(identity: str) -> Iterator[ipaddress.IPv4Network]:
    """Yield the lab's candidate subnets, its favourite first, each once."""
    every = list(POOL.subnets(new_prefix=SUBNET_PREFIX))
    first = int(identity, 16) % len(every)
    for offset in range(len(every)):
        subnet = every[(first + offset) % len(every)]
        assert isinstance(subnet, ipaddress.IPv4Network)
        yield subnet


def choose_subnet(identity: str, taken: Iterable[str]) -> ipaddress.IPv4Network:
    """Return the first candidate that overlaps none of the networks in use (CIDR text). Raise UsageError without one."""
    used = [ipaddress.ip_network(text, strict=False) for text in taken]
    for subnet in subnets(identity):
        if not any(subnet.overlaps(other) for other in used if other.prefixlen):
            return subnet
    raise UsageError(f"every subnet of {POOL} is in use on this machine", remedy="Take other labs down first")


def ports(identity: str, count: int, taken: Collection[int]) -> tuple[int, ...]:
    """Return `count` ports of PORT_RANGE that are not taken, from a place of the lab's own on."""
    first = int(identity, 16) % len(PORT_RANGE)
    turned = (PORT_RANGE[(first + offset) % len(PORT_RANGE)] for offset in range(len(PORT_RANGE)))
    free = [port for _, port in zip(range(count + len(taken)), turned, strict=False) if port not in taken][:count]
    if len(free) < count:
        raise UsageError("not enough free ports for another lab", remedy="Take other labs down first")
    return tuple(free)


def instance_id(identity: str, index: int) -> str:
    """Return an instance id of EC2's form (17 hex digits) for node `index`; -1 is the head node."""
    return "i-" + hashlib.sha256(f"{identity}/{index}".encode()).hexdigest()[:17]


def nodes_in_subnet(identity: str, prefix: str, count: int, subnet: ipaddress.IPv4Network) -> tuple[LabNode, ...]:
    """Return the nodes of a lab whose nodes have addresses of their own."""
    return tuple(
        LabNode(f"{prefix}n{i}", i, str(subnet[FIRST_NODE + i]), SLURMD_PORT, instance_id(identity, i))
        for i in range(count)
    )


def nodes_on_loopback(identity: str, prefix: str, free: tuple[int, ...]) -> tuple[LabNode, ...]:
    """Return the nodes of a lab that is all on 127.0.0.1, one for each port."""
    return tuple(
        LabNode(f"{prefix}n{i}", i, "127.0.0.1", port, instance_id(identity, i)) for i, port in enumerate(free)
    )
