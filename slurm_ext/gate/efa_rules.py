"""What EFA devices, their files and what tools list of them say about starting a job. Pure: facts in, Judged out.

How many there should be comes from whoever attached them (a launch template, a pod's request); the type's maximum stands
in for that. Sources: docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html, amzn/amzn-drivers kernel/linux/efa.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slurm_ext.gate.efa_facts import NOT_UP, Efa, name_at
from slurm_ext.gate.efa_missing import missing
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.rdma_text import Function, Port
from slurm_ext.gate.tables import listed
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

#: Devices may appear late: AWS's own check asks three times, five seconds apart. The
#: minute is our own choice.
LATE_S = 60.0

#: Types for which a half or a quarter of the possible EFA interfaces is taken for somebody's choice, not for a fault. Our own
#: judgement, without a source: the GPU types that are bought for EFA (p4, p5, p6) are left out.
_OFTEN_FEWER = ("p6e-gb200.", "g6e.", "g7", "hpc", "c", "m", "r", "x", "i", "u")


class Wanted(NamedTuple):
    """How many EFA devices there should be: None where nothing tells. `attached` says that it is no mere maximum.

    `gpus` says that the type's GPUs can be reached by EFA without a copy in the host's memory (GPUDirect).
    """

    number: int | None = None
    instance_type: str = ""
    attached: bool = False
    boot_age_s: float | None = None
    gpus: bool = False


def judge_count(present: Collection[str], wanted: Wanted, seen_by: str, *, probed: bool = False) -> list[Judged]:
    """Return what the names of the EFA devices that one view shows say against the number there should be.

    `probed` says that the driver is loaded and has looked: then devices that are not there are not the host's fault.
    """
    count = wanted.number
    if count is None:
        line = f"{seen_by}: {len(present)} EFA devices, and nothing tells how many there should be"
        return [judged(UNKNOWN, "efa.no-reference" if present else "efa.none", "node", "none", line)]
    if not count:
        line = f"{wanted.instance_type or 'this node'} has no EFA"
        return [] if present else [judged(PASS, "efa.none-expected", "node", "none", line)]
    if len(present) >= count:
        return []
    line = f"{seen_by}: {len(present)} of {count} EFA devices are there"
    names = missing(present, count, wanted.instance_type)
    targets = [f"efa:{name}" for name in names] or ["node"]
    if wanted.boot_age_s is not None and 0 <= wanted.boot_age_s < LATE_S:
        late = f"{line}, {wanted.boot_age_s:.0f} s after boot: the others may still come"
        return [judged(UNKNOWN, "efa.late", "node", "warn", late)]
    if not present and not probed:  # no driver, nothing attached, or nothing that works: alike from here
        return [judged(FAIL, "efa.none-there", "node", "drain", line)]
    if present and _may_be_so(len(present), wanted):
        return [judged(UNKNOWN, "efa.fewer-than-possible", "node", "warn", f"{line}; so many may have been attached")]
    return [judged(FAIL, "efa.missing", target, "replace", line) for target in targets]


def _may_be_so(present: int, wanted: Wanted) -> bool:
    """Say whether an instance of this type may have been started with so few."""
    count = wanted.number or 0
    if wanted.attached or not wanted.instance_type.startswith(_OFTEN_FEWER):
        return False
    return present * 2 == count or present * 4 == count or (present == 1 and count <= 2)


def judge_tree(efa: Efa, wanted: Wanted) -> list[Judged]:
    """Return what sysfs and /dev say, without the counters."""
    if efa.unlisted:
        line = f"the list of RDMA devices cannot be read ({efa.unlisted})"
        return [judged(UNKNOWN, "efa.unreadable", "node", "warn", line)]
    if not efa.looked:
        return []
    names = [device.name for device in efa.devices]
    items: list[Judged] = []
    if not names and wanted.number:
        items += _none_at_all(efa, wanted)
    elif not names and wanted.number is None and efa.others:
        line = f"RDMA devices, and none is EFA: {listed(efa.others)}"
        items.append(judged(UNKNOWN, "efa.none", "node", "none", line))
    else:
        items += _unbound(efa, names) or judge_count(names, wanted, "sysfs")
    down = [device for device in efa.devices if any(state in NOT_UP for state in device.port_states)]
    for device in down:
        line = f"the port is {listed(device.port_states)}, which this driver never says of a device that works"
        items.append(judged(FAIL, "efa.port-down", f"efa:{device.name}", "replace", line))
    for device in efa.devices:
        odd = [state for state in device.port_states if state != "ACTIVE" and state not in NOT_UP]
        if odd and device not in down:
            line = f"the state of the port reads {listed([state[:40] or 'nothing' for state in odd])}"
            items.append(judged(UNKNOWN, "efa.port-state", f"efa:{device.name}", "warn", line))
    return items + _files(efa) + (_peer_memory(efa) if wanted.gpus else [])


def _none_at_all(efa: Efa, wanted: Wanted) -> list[Judged]:
    if efa.module is False or (efa.on_bus and efa.module is not True):
        line = "the EFA driver is not loaded"
        return [judged(FAIL, "efa.driver-not-loaded", "node", "drain", line)]
    if efa.on_bus:
        line = f"{len(efa.on_bus)} EFA functions are on the bus, and the driver made a device of none"
        return [judged(FAIL, "efa.driver-not-bound", "node", "drain", line)]
    return judge_count((), wanted, "sysfs", probed=efa.module is True)


def _unbound(efa: Efa, names: Collection[str]) -> list[Judged]:
    """Return the functions on the bus of which the driver made no device."""
    lost = [name for address in efa.on_bus or () if (name := name_at(address)) and name not in names]
    line = "on the PCI bus, but the driver made no RDMA device of it"
    return [judged(FAIL, "efa.driver-not-bound", f"efa:{name}", "drain", line) for name in lost] if names else []


def _peer_memory(efa: Efa) -> list[Judged]:
    """Return the devices whose driver is given no GPU memory (amzn-drivers efa_p2p.c prints nothing then)."""
    told = [device for device in efa.devices if device.peer_memory is not None]
    lacking = [device.name for device in told if not device.peer_memory]
    targets = ["node"] if len(lacking) > 1 and len(lacking) == len(told) else [f"efa:{name}" for name in lacking]
    line = "no provider of GPU memory (device/p2p is empty): data may be copied through the host's memory"
    return [judged(WARN, "efa.no-peer-memory", target, "warn", line) for target in targets]


def _files(efa: Efa) -> list[Judged]:
    """Return the devices that programs cannot open since their node under /dev is missing."""
    told = [device for device in efa.devices if device.has_file is not None]
    lacking = [device.name for device in told if not device.has_file]
    line = "the kernel has the device, and /dev/infiniband has no node of it: programs cannot open it"
    if lacking and len(lacking) == len(told) and len(told) > 1:
        return [judged(FAIL, "efa.no-device-file", "node", "drain", line)]
    return [judged(FAIL, "efa.no-device-file", f"efa:{name}", "drain", line) for name in lacking]


def judge_nodes(listing: str, wanted: Wanted) -> list[Judged]:
    """Return what `ls -l /dev/infiniband` says where nothing tells which node belongs to which device."""
    rows = [line.split() for line in listing.splitlines() if line.split()]
    nodes = [row for row in rows if row[-1].rpartition("/")[2].startswith("uverbs")]
    if not wanted.number:
        return judge_count([row[-1] for row in nodes], wanted, "/dev/infiniband")
    if len(nodes) < wanted.number:
        line = f"/dev/infiniband has {len(nodes)} of {wanted.number} uverbs nodes"
        return [judged(FAIL, "efa.no-device-file", "node", "drain", line)]
    shut = [row[-1] for row in nodes if row[0].startswith("c") and row[0][7:9] != "rw"]
    line = f"only root may open {listed(shut)}"
    return [judged(FAIL, "efa.device-file-shut", "node", "drain", line)] if shut else []


def judge_ports(ports: Sequence[Port], wanted: Wanted) -> list[Judged]:
    """Return what `rdma link` or ibv_devinfo says of EFA ports; `ports` holds those of EFA only."""
    items = judge_count(list(dict.fromkeys(port.device for port in ports)), wanted, "the list of RDMA links")
    for port in ports:
        line = f"state {port.state or 'not told'}, physical state {port.physical or 'not told'}"
        if port.state in NOT_UP:
            items.append(judged(FAIL, "efa.port-down", f"efa:{port.device}", "replace", line))
        elif port.state != "ACTIVE" or port.physical not in ("", "LINK_UP", "LINKUP"):
            items.append(judged(UNKNOWN, "efa.port-state", f"efa:{port.device}", "warn", line))
    return items


def judge_bus(functions: Sequence[Function], wanted: Wanted) -> list[Judged]:
    """Return what lspci says of EFA functions."""
    items: list[Judged] = []
    names = [name_at(function.address) for function in functions]
    for item in judge_count(names, wanted, "the PCI bus"):
        target = item.finding.target
        address = _address_of(target.removeprefix("efa:"), functions) if target.startswith("efa:") else ""
        items.append(item._replace(finding=item.finding._replace(target=f"efa:{address}")) if address else item)
    for function in functions:
        if function.gone:
            line = "the PCI function answers with ones only: it has left the bus"
            items.append(judged(FAIL, "efa.off-bus", f"efa:{function.address}", "replace", line))
    idle = [f for f in functions if f.driver is not None and f.driver != "efa" and not f.gone]
    line = "no EFA driver is bound to the PCI function"
    if idle and len(idle) == len(functions) and len(idle) > 1:
        return [*items, judged(FAIL, "efa.driver-not-loaded", "node", "drain", line)]
    for function in idle:
        items.append(judged(FAIL, "efa.driver-not-bound", f"efa:{function.address}", "drain", line))
    return items


def _address_of(name: str, functions: Sequence[Function]) -> str:
    """Return the PCI address that belongs to a kernel name, empty where it is of another form."""
    if not name.startswith("rdmap") or not functions:
        return ""
    bus, _, slot = name.removeprefix("rdmap").partition("s")
    return f"0000:{int(bus):02x}:{int(slot):02x}.0" if bus.isdecimal() and slot.isdecimal() else ""


def judge_libfabric(
    devices: Collection[str], wanted: Wanted, *, kernel: Collection[str] | None, others: Collection[str] = ()
) -> list[Judged]:
    """Return what a whole output of fi_info says. `kernel` are the devices that the kernel has, None where not known.

    The kernel has the last word on what is there; libfabric decides what programs can use. A device that the kernel has
    and this libfabric does not list may be the fault of either.
    """
    if kernel:
        hidden = [name for name in kernel if name not in devices]
        if not hidden:
            return []
        line = f"the kernel has {len(kernel)} EFA devices, this libfabric lists {len(devices)}"
        targets = [f"efa:{name}" for name in hidden] if devices and len(hidden) <= 8 else ["node"]
        return [judged(UNKNOWN, "efa.not-in-libfabric", target, "warn", line) for target in targets]
    if kernel is not None:
        return []
    if devices or not wanted.number:
        return judge_count(devices, wanted, "fi_info")
    line = f"libfabric lists no EFA, {wanted.number} devices should be there"
    said = f"what it lists: {listed(sorted(set(others)))}" if others else ""
    return [judged(FAIL, "efa.not-in-libfabric", "node", "drain", line, said)]


def judge_links(down: Sequence[str]) -> list[Judged]:
    """Return the devices whose link libfabric calls down."""
    line = "libfabric says FI_LINK_DOWN"
    return [judged(FAIL, "efa.port-down", f"efa:{name}", "replace", line) for name in dict.fromkeys(down)]


def judge_memlock(text: str) -> list[Judged]:
    """Return what `ulimit -l` says (kB or `unlimited`): EFA registers memory, which counts as locked."""
    said = text.strip().lower()
    if said == "unlimited" or (said.isdecimal() and int(said) >= 16 * 1024 * 1024):
        return []
    if not said.isdecimal():
        return [judged(UNKNOWN, "efa.memlock-unreadable", "node", "none", f"ulimit -l says {said[:80]!r}")]
    return [
        judged(WARN, "efa.memlock-low", "node", "warn", f"programs may lock {said} kB of memory; EFA wants no limit")
    ]
