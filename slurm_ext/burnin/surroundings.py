"""Where an agent runs and what its workers see: addresses, interface, environment, and leave from slurmd's own limits."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import resource
import select
import socket
import struct
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from slurm_ext import shared
from slurm_ext.burnin.gate import EFA_LIBRARIES
from slurm_ext.burnin.model import BurninJob, Outcome, outcome_from_json, unknown
from slurm_ext.command import CLEAN_PATH, call_all_bounded, call_bounded
from slurm_ext.config.model import Burnin, Settings, Site, at_node
from slurm_ext.errors import LackingError, UntrustedFileError
from slurm_ext.files import read_trusted
from slurm_ext.verdict import PASS, WARN

#: The agent's own address space, in bytes: a thousand nodes' messages fit, a runaway does not take the node along.
AGENT_MEMORY = 4 << 30

_SIOCGIFADDR = 0x8915
#: How long (seconds) the table, the resolver and Slurm may take to tell addresses.
READ_S, RESOLVE_S, ASK_S = 2.0, 5.0, 8.0

#: Leaders of many jobs that start at once do not ask Slurm in the same moment (seconds).
ASK_JITTER_S = 1.0

#: Beside the attempt on the share: addresses that a leader had to ask Slurm for, so that nobody else does.
FOUND_FILE = "addresses.json"

LEAVES_FILE = "topology/leaves"


def addresses(
    names: Sequence[str], table: str, *, share: str = "", needed: Collection[str] | None = None
) -> dict[str, str]:
    """Return name -> address by the file `table` (`name address` lines), else by the share's, else by the resolver.

    Each is looked at in a bounded child. Raise LackingError where one of `needed` (all, unless told otherwise) has none.
    """

    def listed() -> bytes:
        found: dict[str, str] = {}
        for path in (table, os.path.join(share, shared.ADDRESS_FILE) if share else ""):
            text = b""
            with contextlib.suppress(OSError, UntrustedFileError):  # gone with its share, or not root's: others know
                text = read_trusted(path) if path else b""
            for line in text.decode("utf-8", "replace").splitlines():
                words = line.split()
                if len(words) >= 2 and words[0] in names:
                    found.setdefault(words[0], words[1])
        return json.dumps(found).encode()

    found = _texts(call_bounded(listed, timeout_s=READ_S))
    if missing := [name for name in names if name not in found]:
        answers = call_all_bounded({name: partial(_resolved, name) for name in missing}, timeout_s=RESOLVE_S)
        found |= {name: answer.decode() for name, answer in answers.items() if answer}
    for name in names if needed is None else needed:
        if name not in found:
            raise LackingError(
                f"no address is known for {name}",
                remedy="Give burnin.addresses a file that lists it, or make the name resolve",
            )
    return found


def _resolved(name: str) -> bytes:
    return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0]).encode()


def _texts(answer: bytes | None) -> dict[str, str]:
    try:
        data = json.loads(answer) if answer else {}
    except ValueError:
        data = {}
    return {str(k): str(v) for k, v in data.items()} if isinstance(data, dict) else {}


def addresses_by_slurm(settings: Settings, names: Sequence[str]) -> dict[str, str]:
    """Return the addresses that Slurm has for nodes, by one call after a random pause, in a bounded child. For leaders only."""

    def ask() -> bytes:
        from slurm_ext.slurm import connect

        time.sleep(ASK_JITTER_S * os.urandom(1)[0] / 255)
        known = connect(settings, timeout_s=ASK_S / 2).nodes(names)
        found = {node.name: _resolved(node.address).decode() for node in known if node.address and node.name in names}
        return json.dumps(found).encode()

    return _texts(call_bounded(ask, timeout_s=ASK_S))


def publish(share: str, attempt: str, found: Mapping[str, str]) -> None:
    """Leave addresses beside the attempt on the share, so that its other nodes need not ask Slurm."""
    if share and found:
        shared.write_json(shared.attempt_path(share, attempt, FOUND_FILE), found)


def published(share: str, attempt: str) -> dict[str, str]:
    """Return the addresses that a leader left beside the attempt."""
    found = shared.read_json(shared.attempt_path(share, attempt, FOUND_FILE), timeout_s=1.0) or {}
    return {str(k): str(v) for k, v in found.items()}


def is_read(descriptor: int) -> bool:
    """Say whether anybody still reads the other end of a pipe."""
    poller = select.poll()
    poller.register(descriptor, 0)
    return not poller.poll(0)


def leaves(share: str, names: Collection[str]) -> dict[str, str]:
    """Return node -> leaf switch by `<share>/topology/leaves` (`node leaf` lines); what is not known is absent."""

    def look() -> bytes:
        text = read_trusted(os.path.join(share, LEAVES_FILE)).decode("utf-8", "replace")
        pairs = (line.split() for line in text.splitlines())
        wanted = frozenset(names)
        return json.dumps({pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] in wanted}).encode()

    return _texts(call_bounded(look, timeout_s=READ_S)) if share else {}


def ended(share: str, attempt: str) -> str:
    """Return why an attempt has ended, by the file that hooks and controller leave on the share; empty: it has not."""
    found = shared.read_json(shared.attempt_path(share, attempt, shared.STOPPED_FILE), timeout_s=1.0)
    return f"{found.get('node', 'the controller')}: {found.get('reason')}" if found else ""


def known_outcome(share: str, job: BurninJob, *, since: float) -> Outcome | None:
    """Return what the others' burn-in of this attempt came to, where it is over and says something about this node.

    `since` is seconds since 1970: job ids begin anew on a new cluster, so what is older is about another job.
    """
    if reason := ended(share, job.key):
        return unknown("burnin.ended-elsewhere", f"this attempt has ended: {reason}")
    line = shared.read_json(shared.attempt_path(share, job.key, shared.BURNIN_FILE), timeout_s=1.0)
    try:
        if line is None or not float(line.get("time", 0.0)) >= since:
            return None
        outcome = outcome_from_json(line)
    except (ValueError, TypeError):
        return None
    tested = job.node in outcome.measured.get("tested", ())
    # A pass of others is none of ours, and nobody is convicted by a file.
    return None if (outcome.verdict.verdict in (PASS, WARN) and not tested) or job.node in outcome.culprits else outcome


def ports(key: str, burnin: Burnin) -> list[int]:
    """Return the ports the leader may listen on, in order: the one that is set, else three that follow from the job's key."""
    if burnin.port:
        return [burnin.port]
    low, high = burnin.port_range[0], burnin.port_range[-1]
    start = zlib.crc32(key.encode())
    return [low + (start + step) % (high - low + 1) for step in range(min(3, high - low + 1))]


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an address, or an empty text."""
    if address.startswith("127.") or address == "::1":
        return "lo"
    if ":" in address:
        return _interface_of_ipv6(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                if socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24]) == address:
                    return name
    return ""


def _interface_of_ipv6(address: str) -> str:
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
