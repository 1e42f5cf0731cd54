"""The lab's network: a switch in the head's namespace, one link into it from each node and one from the host.

The bridge lives in the head's namespace and not among the host's links: there no firewall rule of the host (Docker sets
FORWARD to DROP) stands between two nodes, and the whole network goes away with the processes that hold the namespaces.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import time
from collections.abc import Iterator, Sequence

from slurm_ext import command
from slurm_ext.errors import FmslurmError, LackingError
from slurm_ext.lab.model import LabNode

BRIDGE = "br0"
NIC = "eth0"
_IP_S = 10.0

#: Held while a lab looks for a free subnet and ports: an abstract socket leaves no file and ends with its process.
_LOCK = "\0fmslurm-lab-choosing"


@contextlib.contextmanager
def choosing(timeout_s: float = 60.0) -> Iterator[None]:
    """Keep other labs of this machine from choosing at the same time. Raise LackingError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        while True:
            try:
                lock.bind(_LOCK)
                break
            except OSError as exc:
                if time.monotonic() > deadline:
                    raise LackingError("another lab has been starting for a minute", remedy="Try again") from exc
                time.sleep(0.05)
        yield


def networks_in_use() -> list[str]:
    """Return the networks that the host has an address in or a route to, as CIDR text; default routes are no network."""
    result = command.run(["ip", "-json", "-4", "route", "show", "table", "all"], timeout_s=_IP_S)
    if not result.ok:
        raise FmslurmError(f"routes of this machine: {result.words()}")
    found = []
    for route in json.loads(result.stdout or "[]"):
        target = str(route.get("dst", "default"))
        if target != "default":
            found.append(str(ipaddress.ip_network(target, strict=False)))
    return found


def only_loopback() -> bool:
    """Say whether this machine's only addresses are those of loopback."""
    result = command.run(["ip", "-json", "address", "show", "up"], timeout_s=_IP_S)
    links = json.loads(result.stdout or "[]") if result.ok else []
    return not any(link.get("addr_info") for link in links if "LOOPBACK" not in link.get("flags", ()))


def ports_in_use() -> set[int]:
    """Return the TCP ports somebody listens on or has a connection from, in this network namespace."""
    found = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(path) as stream:
            next(stream, None)
            found |= {int(line.split()[1].rpartition(":")[2], 16) for line in stream}
    return found


def build_head(head: LabNode, subnet: str, link: str, host_address: str) -> None:
    """Make the switch in the head's namespace, give the head its address, and link the host to it."""
    assert head.holder is not None
    bits = ipaddress.ip_network(subnet).prefixlen
    inside = [
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"addr add {head.address}/{bits} dev {BRIDGE}",
        f"link set {BRIDGE} up",
    ]
    _batch(inside, head)
    # veth pairs start without a queue discipline of their own; faults add one later.
    _batch([f"link add {link} type veth peer name host netns {head.holder.pid}"], None)
    _batch([f"link set host master {BRIDGE} up"], head)
    _batch([f"addr add {host_address}/{bits} dev {link}", f"link set {link} up"], None)


def plug_nodes(head: LabNode, nodes: Sequence[LabNode], subnet: str) -> None:
    """Link nodes to the switch and give each its address."""
    bits = ipaddress.ip_network(subnet).prefixlen
    lines = []
    for node in nodes:
        assert node.holder is not None
        # The same hardware address after a reboot of the node, as a real one has: neighbours remember it for a while.
        mac = f"02:00:{ipaddress.ip_address(node.address).packed.hex(':')}"
        lines.append(f"link add p{node.index} type veth peer name {NIC} address {mac} netns {node.holder.pid}")
        lines.append(f"link set p{node.index} master {BRIDGE} up")
    _batch(lines, head)
    for node in nodes:
        up = ["link set lo up", f"addr add {node.address}/{bits} dev {NIC}", f"link set {NIC} up"]
        _batch(up, node)


def links_of_host(name: str) -> list[str]:
    """Return the host's links of that very name: empty or one."""
    with contextlib.suppress(OSError):
        return [name] if socket.if_nametoindex(name) else []
    return []


def remove_link(name: str) -> None:
    """Remove one link of the host; one that is gone is fine."""
    if links_of_host(name):
        command.run(["ip", "link", "delete", name], timeout_s=_IP_S)


def _batch(lines: Sequence[str], node: LabNode | None) -> None:
    """Run `ip -batch` in a node's network namespace, or in the host's for None. Raise FmslurmError with ip's own words."""
    argv = ["ip", "-batch", "-"]
    if node is not None:
        assert node.holder is not None
        # The network namespace only: process numbers in the lines are the host's.
        argv = ["nsenter", f"--target={node.holder.pid}", "--net", "--", *argv]
    result = command.run(argv, timeout_s=_IP_S + len(lines) * 0.1, input_text="\n".join(lines) + "\n")
    if not result.ok:
        where = node.name if node else "this machine"
        raise FmslurmError(f"network of the lab on {where}: {result.words()}", remedy="Try `--mode loopback`")


def probe() -> str:
    """Return why nodes cannot have namespaces of their own here, or an empty text where they can."""
    argv = ["unshare", "--fork", "--pid", "--mount-proc", "--uts", "--net", "--propagation", "private", "--"]
    script = "hostname probe && ip link set lo up && ip link add left type veth peer name right && ip link add br0 type bridge"
    try:
        result = command.run([*argv, "sh", "-c", script], timeout_s=_IP_S)
    except LackingError as exc:
        return str(exc)
    return "" if result.ok else result.words()
