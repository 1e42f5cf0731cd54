"""Settings of the whole node that NCCL over EFA needs: locked memory, huge pages, MTU, NUMA, fork, device files. Pure.

Most of these are worth a word and stop no job: they cost speed, or bite one kind of program. Sources stand at each rule.
Standard library only: hooks import this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.tables import listed
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, WARN

#: An Ethernet frame inside a VPC may carry so many bytes; all current types take them
#: (docs.aws.amazon.com/AWSEC2/latest/UserGuide/network_mtu.html).
MTU_JUMBO = 9001

#: From this kernel on, pages that are registered are copied at fork, and libfabric's fork support has no effect
#: (libfabric prov/efa/src/efa_env.c, fork_safe).
FORK_KERNEL = (5, 13)

_YES = ("1", "on", "true", "yes", "y")
_FORK_WORDS = ("RDMAV_FORK_SAFE", "IBV_FORK_SAFE", "FI_EFA_FORK_SAFE")


class Limit(NamedTuple):
    """A limit of slurmd in bytes, None for no limit."""

    soft: int | None
    hard: int | None


class Netdev(NamedTuple):
    """One network device of Amazon's that is up."""

    name: str
    mtu: int


def parse_limits(text: str) -> Limit | None:
    """Return the limit on locked memory in a /proc/PID/limits, None where it is not in there."""
    for line in text.splitlines():
        if line.startswith("Max locked memory"):
            words = line[len("Max locked memory") :].split()
            values = [None if word == "unlimited" else _count(word) for word in words[:2]]
            return Limit(*values) if len(values) == 2 and -1 not in values else None
    return None


def _count(word: str) -> int:
    """Return a number of at most 64 bits, -1 for any other word: Python refuses to read a number of thousands of digits."""
    return int(word) if word.isascii() and word.isdecimal() and len(word) <= 20 else -1


def judge_memlock(limit: Limit, propagated: bool | None) -> list[Judged]:
    """Return what slurmd's limit on locked memory means for its jobs. `propagated`: jobs bring the submit host's soft limit.

    A step inherits slurmd's limits: its hard one is a ceiling for every job; its soft one counts where slurm.conf says that
    limits are not propagated (slurm.conf(5), PropagateResourceLimits; the default is ALL). systemd gives a unit that says
    nothing 8 MB (systemd-system.conf(5), DefaultLimitMEMLOCK=); Slurm's own slurmd.service says LimitMEMLOCK=infinity.
    """
    counted = [("hard", limit.hard)] + ([("soft", limit.soft)] if propagated is False else [])
    for word, value in counted:
        if value is None:
            continue
        from slurm_ext.gate import efa_rules  # only where there is a limit at all: a hook's prolog looks here

        line = f"slurmd's {word} limit on locked memory is {value} bytes, and its jobs get no more"
        if items := efa_rules.judge_memlock(str(value // 1024)):
            told = "set LimitMEMLOCK=infinity in slurmd.service"
            return [judged(item.verdict, item.finding.id, "node", item.finding.action, line, told) for item in items]
    return []


def propagated(conf: str) -> bool | None:
    """Say by a slurm.conf's text whether MEMLOCK comes from the submit host; None where it includes files not seen here."""
    said: dict[str, str] = {}
    for line in conf.splitlines():
        words = line.partition("#")[0].strip()
        if words.lower().startswith("include"):
            return None
        key, equal, value = words.partition("=")
        if equal:
            said[key.strip().lower()] = value.strip().strip('"').upper()
    if "propagateresourcelimitsexcept" in said:
        return "MEMLOCK" not in said["propagateresourcelimitsexcept"].replace(" ", "").split(",")
    named = said.get("propagateresourcelimits", "ALL").replace(" ", "").split(",")
    return "ALL" in named or "MEMLOCK" in named


def judge_huge_pages(meminfo: str) -> list[Judged]:
    """Return what is left of the reserve of huge pages before a job begins.

    The EFA installer reserves them (its efa-config; 110 MB for an endpoint, as bottlerocket-core-kit#141 computes it again).
    Where none is free libfabric's EFA provider takes ordinary pages (prov/util/src/util_buf.c), a little slower; somebody
    else holds the reserve, and a fork of a program that holds part of it can fail (awsome-distributed-training
    efa-cheatsheet.md, FI_EFA_USE_HUGE_PAGE). A node without a reserve has chosen so.
    """
    numbers: dict[str, int] = {}
    for line in meminfo.splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if words and _count(words[0]) >= 0:
            numbers[key] = _count(words[0])
    total, free = numbers.get("HugePages_Total"), numbers.get("HugePages_Free")
    if not total or free is None or free:
        return []
    line = f"none of {total} huge pages is free before the job begins: somebody holds them, and EFA's buffers get ordinary pages"
    return [judged(WARN, "efa.huge-pages-taken", "node", "warn", line)]


def judge_mtu(netdevs: Sequence[Netdev]) -> list[Judged]:
    """Return network devices with small frames: EFA has frames of its own, NCCL's bootstrap and file systems over TCP have not."""
    low = [device for device in netdevs if 0 < device.mtu < MTU_JUMBO]
    if not low:
        return []
    line = f"MTU {listed([f'{device.mtu} on {device.name}' for device in low])}; {MTU_JUMBO} is possible inside a VPC"
    targets = ["node"] if len(low) == len(netdevs) > 1 else [f"nic:{device.name}" for device in low]
    return [judged(WARN, "efa.mtu-low", target, "warn", line) for target in targets]


def judge_numa(nics: Sequence[int | None], gpus: Sequence[int | None]) -> list[Judged]:
    """Return whether the GPUs of a socket have EFA devices on their own. None: not told; -1: the kernel does not know.

    A type has its adapters on all sockets that have GPUs. Where they are not, traffic crosses sockets, or the kernel was
    told another layout than the machine has, and NCCL's picture of it is wrong, too.
    """
    sides = {node for node in gpus if node is not None and node >= 0}
    known = [node for node in nics if node is not None]
    if len(sides) < 2 or len(known) != len(nics) or len(nics) < len(sides):
        return []
    if unknown := sum(node < 0 for node in known):
        line = f"the kernel knows no NUMA node of {unknown} of {len(nics)} EFA devices, and knows those of the GPUs"
        return [judged(WARN, "efa.numa-unknown", "node", "warn", line)]
    if apart := sorted(sides - set(known)):
        line = f"GPUs are on NUMA nodes {listed([str(node) for node in sorted(sides)])}, and no EFA device is on {apart[0]}"
        return [judged(WARN, "efa.numa-apart", "node", "warn", line)]
    return []


def judge_nodes(modes: Mapping[str, int | None]) -> list[Judged]:
    """Return the nodes under /dev that programs cannot open. The kernel makes them 0666 (drivers/infiniband/core/uverbs_main.c)."""
    if not modes:
        return []
    plain = [name for name, mode in modes.items() if mode is None]
    shut = [name for name, mode in modes.items() if mode is not None and mode & 0o066 == 0]
    group = [name for name, mode in modes.items() if mode is not None and mode & 0o066 and mode & 0o006 != 0o006]
    items = []
    if plain:
        line = f"no device, but a file of that name: {listed(plain)}"
        items.append(judged(FAIL, "efa.no-device-file", "node", "drain", line))
    if shut:
        items.append(judged(FAIL, "efa.device-file-shut", "node", "drain", f"only root may open {listed(shut)}"))
    if group:
        line = f"not everybody may open {listed(group)}: jobs of users outside the group go over TCP"
        items.append(judged(WARN, "efa.device-file-group", "node", "warn", line))
    return items


def judge_environment(settings: Mapping[str, str], kernel: tuple[int, ...] | None) -> list[Judged]:
    """Return what variables set for all users (/etc/environment, /etc/profile.d) do to NCCL over EFA."""
    items = []
    if kernel is not None and kernel >= FORK_KERNEL:
        # awsome-distributed-training 1.architectures/efa-cheatsheet.md: do not use, can break things on newer kernels.
        wrong = [name for name in ("RDMAV_FORK_SAFE", "IBV_FORK_SAFE") if _is_set(settings, name)]
        if wrong:
            line = f"{listed(wrong)} is set for all users; this kernel needs none, and there it can break things"
            items.append(judged(WARN, "efa.fork-setting", "node", "warn", line))
    elif (
        kernel is not None
        and _is_set(settings, "FI_EFA_USE_HUGE_PAGE")
        and any(_is_set(settings, n) for n in _FORK_WORDS)
    ):
        # libfabric prov/efa/src/efa_fork_support.c: the program is aborted.
        line = "FI_EFA_USE_HUGE_PAGE and fork support are both set for all users: libfabric ends every program by abort"
        items.append(judged(WARN, "efa.fork-setting", "node", "warn", line))
    provider, net = settings.get("FI_PROVIDER", ""), settings.get("NCCL_NET", "")
    if (provider and not provider.startswith("^") and "efa" not in provider.split(",")) or provider == "^efa":
        line = f"FI_PROVIDER={provider[:60]} is set for all users: libfabric does not offer EFA"
        items.append(judged(WARN, "efa.environment", "node", "warn", line))
    if net.lower() == "socket":
        line = "NCCL_NET=Socket is set for all users: NCCL goes over TCP"
        items.append(judged(WARN, "efa.environment", "node", "warn", line))
    return items


def _is_set(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "").lower() in _YES


#: Variables that any rule looks at.
VARIABLES: Collection[str] = frozenset((*_FORK_WORDS, "FI_EFA_USE_HUGE_PAGE", "FI_PROVIDER", "NCCL_NET"))


def parse_environment(text: str) -> dict[str, str]:
    """Return the variables of interest that a shell file or /etc/environment sets; nothing is expanded or run."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        words = line.strip()
        if words.startswith("export "):
            words = words[7:].lstrip()
        name, equal, value = words.partition("=")
        if equal and name in VARIABLES:
            found[name] = value.partition("#")[0].strip().rstrip(";").strip().strip("\"'")
    return found


def dma_buf_possible(kernel: tuple[int, ...] | None, nvidia: str | None) -> bool:
    """Say whether EFA can be given GPU memory by DMA-BUF, without a provider of the driver's own (device/p2p).

    That takes Linux 5.12 and a driver that offers it, which is NVIDIA's open module (aws-ofi-nccl v1.21.1
    src/nccl_ofi_dmabuf.cpp; amzn/amzn-drivers#282). `nvidia` is the text of /proc/driver/nvidia/version.
    """
    return kernel is not None and kernel >= (5, 12) and nvidia is not None and "Open Kernel Module" in nvidia


def kernel_version(release: str) -> tuple[int, ...] | None:
    """Return (5, 15) for `5.15.0-1051-aws`, None for another text."""
    parts = release.split(".", 2)[:2]
    return (
        tuple(int(part) for part in parts)
        if len(parts) == 2 and all(p.isascii() and p.isdigit() for p in parts)
        else None
    )
