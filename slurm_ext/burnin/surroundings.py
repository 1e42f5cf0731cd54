"""Where an agent runs and what its workers see: addresses, interface, environment, and leave from slurmd's own limits."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import resource
import socket
import struct
import zlib
from collections.abc import Mapping

from slurm_ext.command import CLEAN_PATH, call_bounded
from slurm_ext.config.model import Burnin, Site, at_node
from slurm_ext.errors import LackingError, UntrustedFileError
from slurm_ext.files import read_trusted

#: Where the EFA installer puts the plugin and libfabric; on the search path for images that forgot ldconfig.
EFA_LIBRARIES = (
    "/opt/amazon/ofi-nccl/lib:/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu:/opt/amazon/efa/lib:/opt/amazon/efa/lib64"
)

#: The agent's own address space, in bytes: a thousand nodes' messages fit, a runaway does not take the node along.
AGENT_MEMORY = 4 << 30

_SIOCGIFADDR = 0x8915
RESOLVE_S = 5.0


def addresses(names: tuple[str, ...], table: str) -> dict[str, str]:
    """Return name -> address by the file `table` (`name address` lines), else by the resolver, in a bounded child.

    Raise LackingError where a name has none.
    """

    def look() -> bytes:
        found: dict[str, str] = {}
        text = b""
        with contextlib.suppress(OSError, UntrustedFileError):  # gone with its share, or not root's: the resolver knows
            text = read_trusted(table) if table else b""
        for line in text.decode("utf-8", "replace").splitlines():
            words = line.split()
            if len(words) >= 2 and words[0] in names:
                found[words[0]] = words[1]
        for name in names:
            if name not in found:
                with contextlib.suppress(OSError):
                    found[name] = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
        return json.dumps(found).encode()

    answer = call_bounded(look, timeout_s=RESOLVE_S)
    found = json.loads(answer) if answer else {}
    for name in names:
        if name not in found:
            raise LackingError(
                f"no address is known for {name}",
                remedy="Give burnin.addresses a file that lists it, or make the name resolve",
            )
    return {str(name): str(address) for name, address in found.items()}


def ports(key: str, burnin: Burnin) -> list[int]:
    """Return the ports the leader may listen on, in order: the one that is set, else three that follow from the job's key."""
    if burnin.port:
        return [burnin.port]
    low, high = burnin.port_range[0], burnin.port_range[-1]
    start = zlib.crc32(key.encode())
    return [low + (start + step) % (high - low + 1) for step in range(min(3, high - low + 1))]


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an IPv4 address, or an empty text."""
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                if socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24]) == address:
                    return name
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
