"""Where an agent runs and what its workers see: addresses, interface, environment, and leave from slurmd's own limits.

A hook asks only for the environment: what else is needed here is imported where it is.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Mapping

from slurm_ext.burnin.gate import EFA_LIBRARIES
from slurm_ext.command import CLEAN_PATH, call_bounded
from slurm_ext.config.model import Burnin, Site, at_node
from slurm_ext.files import read_trusted

#: The agent's own address space, in bytes: a thousand nodes' messages fit, a runaway does not take the node along.
AGENT_MEMORY = 4 << 30

_SIOCGIFADDR = 0x8915
#: How long (seconds) a file on the share may take to read.
READ_S = 2.0

LEAVES_FILE = "topology/leaves"


def leaves(share: str, names: Collection[str]) -> dict[str, str]:
    """Return node -> leaf switch by `<share>/topology/leaves` (`node leaf` lines); what is not known is absent."""

    def look() -> bytes:
        text = read_trusted(os.path.join(share, LEAVES_FILE)).decode("utf-8", "replace")
        pairs = (line.split() for line in text.splitlines())
        wanted = frozenset(names)
        return json.dumps({pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] in wanted}).encode()

    answer = call_bounded(look, timeout_s=READ_S) if share else None
    return json.loads(answer) if answer else {}


def ports(key: str, burnin: Burnin) -> list[int]:
    """Return the ports the leader may listen on, in order: the one that is set, else three that follow from the job's key."""
    if burnin.port:
        return [burnin.port]
    import zlib

    low, high = burnin.port_range[0], burnin.port_range[-1]
    start = zlib.crc32(key.encode())
    return [low + (start + step) % (high - low + 1) for step in range(min(3, high - low + 1))]


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an address, or an empty text."""
    if address.startswith("127.") or address == "::1":
        return "lo"
    if ":" in address:
        return _interface_of_ipv6(address)
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                if socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24]) == address:
                    return name
    return ""


def _interface_of_ipv6(address: str) -> str:
    import socket

    with contextlib.suppress(OSError, ValueError), open("/proc/net/if_inet6", encoding="ascii") as stream:
        wanted = socket.inet_pton(socket.AF_INET6, address).hex()
        return next((words[5] for line in stream if (words := line.split())[0] == wanted), "")
    return ""


def worker_environment(site: Site, burnin: Burnin, *, node: str, address: str, log_folder: str) -> dict[str, str]:
    """Return the whole environment of a worker. Nothing of the outside gets in: NCCL_*, OFI_* and FI_* steer what is proven.

    With transport efa the plugin's network is asked for by name, so that a fall-back to TCP is an error of the
    initialisation. "AWS Libfabric" is the name that old and new plugins answer to.
    """
    environment = {
        "PATH": CLEAN_PATH,
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "LD_LIBRARY_PATH": EFA_LIBRARIES,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_MODULE_LOADING": "LAZY",
        "NCCL_CONF_FILE": "/dev/null",
        "NCCL_ENV_PLUGIN": "none",  # since 2.29 a library that would answer in the place of the environment
        "NCCL_RAS_ENABLE": "0",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING",
        "NCCL_DEBUG_FILE": os.path.join(log_folder, "nccl.%p"),
    }
    if address and (name := interface_of(address)):
        environment["NCCL_SOCKET_IFNAME"] = f"={name}"
    if burnin.transport == "efa":
        environment |= {"NCCL_NET": "AWS Libfabric", "FI_PROVIDER": "efa"}
    else:
        environment |= {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
    hardware = os.path.join(at_node(site.root, node), "etc/fmslurm-lab/hardware.json")
    if site.root != "/" and os.path.exists(hardware):
        environment["FMSLURM_LAB_HARDWARE"] = hardware
    return environment


def leave_slurmd(*, cgroups: bool) -> None:
    """Drop what a child of slurmd inherits: CPU affinity, OOM score, memory cgroup; cap our own memory.

    All of it where it can be done; nothing here may stop a burn-in. `cgroups` False stays where we are (a job's step).
    """
    import glob
    import resource

    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as stream:
        stream.write("1000")  # when memory runs out, we go before slurmd and before any job
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or hard > AGENT_MEMORY:
            resource.setrlimit(resource.RLIMIT_AS, (AGENT_MEMORY, hard))
    if cgroups:
        for root in ("/sys/fs/cgroup/cgroup.procs", *glob.glob("/sys/fs/cgroup/*/cgroup.procs")):
            with contextlib.suppress(OSError), open(root, "w") as stream:
                stream.write(str(os.getpid()))


def from_mapping(section: type[Site] | type[Burnin], data: Mapping[str, object]) -> Site | Burnin:
    """Return a section of the settings from plain data (lists become tuples)."""
    return section(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})  # type: ignore[arg-type]
