"""The live gate's probe of EFA: devices, their files, counters over a job, and the settings that NCCL over EFA needs.

A prolog looks quickly (`efa_live_quick`) and reads everything only where something is not as it should be; an epilog and a
health check read everything. What is judged, and how, are the rules of the captures (`efa_rules`, `efa_counters`). What no
node can see by itself: whether the security group lets its members talk to each other. Standard library only: hooks import this.
"""

from __future__ import annotations

import os
import time

from slurm_ext.aws import catalogue, efa_types
from slurm_ext.config.model import at_node
from slurm_ext.gate import efa_live_attached, efa_live_quick
from slurm_ext.gate.efa_live_files import BOUND, CLASS, text_at
from slurm_ext.gate.probes import EPILOG, HEALTH, PROLOG, Check, Here, Probed

_FILES = "some 400 small files in a prolog, 1,500 else"
_SLOW = (EPILOG, HEALTH)

CHECKS: tuple[Check, ...] = (
    Check("efa.missing", "fewer EFA devices than were attached", "fail, replace", cost=_FILES),
    Check("efa.none-there", "no EFA device, no driver, nothing on the bus", "fail, drain", cost=_FILES),
    Check(
        "efa.driver-not-",
        "the driver is not loaded, or made no device of a function on the bus",
        "fail, drain",
        cost=_FILES,
    ),
    Check("efa.late", "devices are missing in the first minute after boot", "unknown", cost=_FILES),
    Check("efa.fewer-than-possible", "a part of the possible devices is attached", "warn", cost=_FILES),
    Check("efa.none-attached", "none is attached where one is possible", "warn", cost=_FILES),
    Check("efa.unreadable", "the list of RDMA devices, or a file of one, cannot be read", "unknown", cost=_FILES),
    Check("efa.no-device-file", "a device without its node under /dev/infiniband", "fail, drain", cost=_FILES),
    Check(
        "efa.device-file-",
        "who may open the nodes: only root (fail), or only a group (warn)",
        "fail, drain; or warn",
        cost=_FILES,
    ),
    Check("efa.port-down", "a port that is not active", "fail, replace", _SLOW, _FILES),
    Check("efa.port-state", "a port whose state says nothing that is known", "unknown", _SLOW, _FILES),
    Check("efa.no-peer-memory", "the driver is given no GPU memory (device/p2p)", "warn", cost=_FILES),
    Check("efa.no-completion", "admin commands that were never completed", "fail, replace", cost=_FILES),
    Check("efa.counters-", "counters that cannot be read, or began anew while a job ran", "unknown", cost=_FILES),
    Check("efa.command-error", "admin commands refused while a job ran", "warn", (EPILOG,), _FILES),
    Check("efa.drops", "packets dropped while a job ran: 100 a second", "warn", (EPILOG,), _FILES),
    Check(
        "efa.retransmissions", "packets sent again while a job ran: 1,000 or 1 MB a second", "warn", (EPILOG,), _FILES
    ),
    Check(
        "efa.retransmission-timeouts",
        "packets that nobody acknowledged in time while a job ran: 1 a second",
        "warn",
        (EPILOG,),
        _FILES,
    ),
    Check(
        "efa.work-request-errors",
        "RDMA reads or writes in error while a job ran: 1 a second",
        "warn",
        (EPILOG,),
        _FILES,
    ),
    Check(
        "efa.unresponsive-remote",
        "remote ends that did not answer while a job ran: 1 a second",
        "warn",
        (EPILOG,),
        _FILES,
    ),
    Check("efa.impaired-connections", "impaired connections while a job ran: 1 a second", "warn", (EPILOG,), _FILES),
    Check("efa.memlock-low", "slurmd's limit on locked memory, which its jobs inherit", "warn", cost="two small files"),
    Check("efa.huge-pages-taken", "no huge page is free before the job begins", "warn", (PROLOG,), "/proc/meminfo"),
    Check(
        "efa.mtu-low", "Amazon's network devices with less than 9001 bytes", "warn", (HEALTH,), "three files a device"
    ),
    Check(
        "efa.numa-",
        "EFA devices not on the NUMA nodes of the GPUs, or on none that the kernel knows",
        "warn",
        (HEALTH,),
        "the PCI bus",
    ),
    Check("efa.fork-setting", "variables for all users that break fork over EFA", "warn", (HEALTH,), "/etc/profile.d"),
    Check(
        "efa.environment", "variables for all users that lead NCCL away from EFA", "warn", (HEALTH,), "/etc/profile.d"
    ),
    Check(
        "efa.not-in-libfabric",
        "devices that the kernel has and fi_info does not list",
        "unknown",
        (HEALTH,),
        "fi_info, a second or two",
    ),
    Check("efa.libfabric-error", "fi_info ends in an error", "unknown", (HEALTH,), "fi_info"),
    Check("efa.tool-", "fi_info does not end, or is missing (said once in a boot)", "unknown", (HEALTH,), "fi_info"),
    Check("efa.output-", "what fi_info prints cannot be read", "unknown", (HEALTH,), "fi_info"),
    Check(
        "efa.loopback-",
        "traffic of each EFA device with itself (gate.efa_loopback), the last result of this boot",
        "fail, replace where few of the devices fail, twice; where more do: warn; not made: unknown",
        (HEALTH,),
        "some three seconds a device; detached, every gate.slow_every_h",
    ),
    Check(
        "compat.",
        "releases of NCCL, plug-in, libfabric, EFA and NVIDIA driver that do not go together",
        "warn",
        _SLOW,
        "a dozen small files",
    ),
)


def look(here: Here) -> Probed:
    """Look at this node's EFA, and between jobs at what its last loopback said."""
    probed = _look(here)
    if here.phase != HEALTH or not here.settings.gate.efa_loopback:
        return probed
    from slurm_ext.gate import slow_result

    items, kept = slow_result.of_node(here, slow_result.EFA)
    return Probed((*probed.items, *items), {**probed.kept, **({"loopback": kept} if kept else {})})


def _look(here: Here) -> Probed:
    kind = here.instance_type()
    row = catalogue.find(kind)
    maximum = row.efa_devices if row is not None else efa_types.efa_devices(kind)
    instance = _instance(here.root)
    recorded = efa_live_attached.read_record(at_node(here.settings.site.state_dir, here.node), instance)
    wanted = row is not None and here.settings.burnin.transport == "efa"
    if here.phase == PROLOG:
        belong = min(recorded or 0, maximum or recorded or 0)
        seen = efa_live_quick.quick(here.root, max(belong, (maximum or 0) if wanted else 0))
        if seen is not None and _well(here.root, seen, gpus=row is not None):
            from slurm_ext.gate import efa_live_node

            return Probed(tuple(efa_live_node.settings(here)), efa_live_quick.keep(seen.values, time.time()))
        if seen is None and not maximum and _without_efa(here.root):
            return Probed()
    from slurm_ext.gate import efa_live_whole

    known = efa_live_attached.Seen(0, None, recorded, maximum, wanted)
    return efa_live_whole.judge(here, efa_live_whole.Node(kind, instance, row is not None, known))


def _well(root: str, seen: efa_live_quick.Quick, *, gpus: bool) -> bool:
    """Say whether nothing in a quick look needs the rules: no closed admin queue, and GPU memory where there are GPUs."""
    if any(row[1] for row in seen.values.values()):
        return False
    if not gpus or seen.peer_memory != "":
        return True
    from slurm_ext.gate import efa_live_node

    return efa_live_node.dma_buf_possible(root)


def _without_efa(root: str) -> bool:
    """Say whether there is no sign of EFA: no RDMA device and no driver."""
    return not any(os.path.lexists(os.path.join(root, path)) for path in (CLASS, BOUND))


def _instance(root: str) -> str:
    """Return the instance id that DMI's asset tag is on Nitro, empty where it is none."""
    tag = (text_at(os.path.join(root, "sys/class/dmi/id/board_asset_tag"), 64) or "").strip()
    return tag if tag.startswith("i-") and tag[2:].isalnum() else ""
