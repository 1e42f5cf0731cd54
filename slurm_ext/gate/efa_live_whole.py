"""Reads all that a node shows of EFA, and judges it by the rules of the captures: what the probe does where it looks closely.

Standard library only: hooks import this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence

from slurm_ext.config.model import at_node
from slurm_ext.gate import (
    efa_facts,
    efa_live_attached,
    efa_live_files,
    efa_live_node,
    efa_live_quick,
    efa_live_read,
    efa_live_settings,
    efa_live_window,
    efa_rules,
    rdma_text,
)
from slurm_ext.gate.efa_live_attached import Number, Seen
from slurm_ext.gate.efa_live_read import Function
from slurm_ext.gate.efa_rules import LATE_S, Wanted
from slurm_ext.gate.file_tree import Unread
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.probes import EPILOG, HEALTH, PROLOG, Here, Probed
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN

#: What a capture leaves open and a node in use need not be told: other RDMA devices, a type without EFA.
_NOT_SAID = ("efa.none", "efa.no-reference", "efa.none-expected")

#: Failures that devices which come late can look like.
_LIKE_LATE = ("efa.none-there", "efa.driver-not-loaded", "efa.driver-not-bound", "efa.missing", "efa.no-device-file")


class Node(NamedTuple):
    """What the probe knows of the node before it looks."""

    kind: str  # the instance type
    instance: str
    gpus: bool  # the type's GPUs can be reached by EFA directly
    seen: Seen


def judge(here: Here, node: Node) -> Probed:
    """Look at everything."""
    read = efa_live_read.read(here.root)
    efa = efa_facts.read(read.tree)
    names = [device.name for device in efa.devices]
    seen = node.seen._replace(present=len(names), on_bus=None if efa.on_bus is None else len(efa.on_bus))
    number = efa_live_attached.judge(seen)
    # Where nobody says that there should be any, a machine without a list of RDMA devices is one without RDMA.
    if number.number is None and not names and efa.unlisted in ("", "ENOENT"):
        return Probed(number.items)
    now_s = time.time()
    wanted = Wanted(number.number, node.kind, number.attached, efa_live_node.boot_age_s(), node.gpus)
    items = [*number.items, *_devices(_without_used(efa, read.in_use), wanted, number)]
    if efa_live_node.dma_buf_possible(here.root):
        items = [item for item in items if item.finding.id != "efa.no-peer-memory"]
    items += _without_port(efa.devices)
    items += _unread(read.tree) + efa_live_window.judge_once(efa.devices)
    items += efa_live_settings.judge_nodes(efa_live_files.node_modes(here.root) or {})
    if here.phase == EPILOG and here.baseline:
        start_s = here.window[0] if here.window is not None else None
        items += efa_live_window.judge_job(here.baseline, efa.devices, now_s=now_s, start_s=start_s, job_id=here.job_id)
    if names:
        items += efa_live_node.settings(here)
        items += _slow(here, names, read.functions) if here.phase == HEALTH else []
        items += _compatible(here, node, efa, read.functions) if here.phase != PROLOG else []
    if here.phase == EPILOG and len(names) > (node.seen.recorded or 0):
        state_dir = at_node(here.settings.site.state_dir, here.node)
        efa_live_attached.write_record(state_dir, node.instance, len(names))
    kept = efa_live_quick.keep(efa_live_window.values_of(efa.devices), now_s) if here.phase == PROLOG and names else {}
    if here.phase == HEALTH:
        kept = {"read": readings(efa, read.in_use, number.number, efa_live_files.node_modes(here.root))}
    return Probed(tuple(_one_event(items)), kept)


def _without_port(devices: Sequence[efa_facts.Device]) -> list[Judged]:
    """Return the devices that show no port where others do: each has one (efa_verbs.c), so something could not be read."""
    if not any(one.port_states for one in devices):
        return []
    line = "no port of it can be read, while others have theirs"
    return [
        judged(UNKNOWN, "efa.port-state", f"efa:{one.name}", "warn", line) for one in devices if not one.port_states
    ]


#: Files of a device that are no counters (those are told apart): what cannot be read of them hides what it would say.
_FACTS = ("/state", "/device/p2p", "/device/vendor", "/device/device")


def _unread(tree: Mapping[str, str | Unread]) -> list[Judged]:
    """Return that files of devices are there and cannot be read: in one finding, the first four by name."""
    told = [
        f"/{name}: {text.error}" for name, text in tree.items() if isinstance(text, Unread) and name.endswith(_FACTS)
    ]
    more = [f"and {len(told) - 4} more files"] if len(told) > 4 else []
    return [judged(UNKNOWN, "efa.unreadable", "node", "none", *told[:4], *more)] if told else []


def readings(
    efa: efa_facts.Efa, in_use: Collection[str], wanted: int | None, modes: Mapping[str, int | None] | None
) -> dict[str, list[str]]:
    """Return, by what is read, the targets of which it was read and is good: the proof that a fault has gone (proof.py). Pure.

    `wanted`: how many devices belong here, None where that is not known; `modes`: of the nodes in a real /dev.
    """
    whole = wanted is not None and 0 < wanted <= len(efa.devices)
    filed = bool(efa.devices) and all(one.has_file is True for one in efa.devices)
    is_open = modes is None or (bool(modes) and all(mode is not None and mode & 0o6 == 0o6 for mode in modes.values()))
    well = [
        one.name
        for one in efa.devices
        if one.counters and not one.unread and one.port_states and all("ACTIVE" in word for word in one.port_states)
    ]
    names = {one.name for one in efa.devices}
    used = [address for address in efa.on_bus or () if address in in_use or efa_facts.name_at(address) in names]
    functions = [f"efa:{name}" for name in (*used, *well)] if efa.on_bus is not None else []
    return {
        "count": ["node"] if whole else [],
        "devices": [f"efa:{name}" for name in well],
        "functions": [*functions, *(["node"] if whole and functions else [])],
        "files": ["node"] if filed and is_open else [],
    }


def _without_used(efa: efa_facts.Efa, in_use: Collection[str]) -> efa_facts.Efa:
    """Return facts without the functions that are known to have a device, whatever user space calls it (efa_0, rdmap0s6)."""
    return efa if efa.on_bus is None else efa._replace(on_bus=tuple(a for a in efa.on_bus if a not in in_use))


def _devices(efa: efa_facts.Efa, wanted: Wanted, number: Number) -> list[Judged]:
    """Return what sysfs and /dev say, where a young node's missing devices are late, and a mere maximum is called so."""
    items = []
    for item in efa_rules.judge_tree(efa, wanted):
        finding = item.finding
        if finding.id in _NOT_SAID:
            continue
        if item.verdict == FAIL and finding.id in _LIKE_LATE and 0 <= (wanted.boot_age_s or LATE_S) < LATE_S:
            line = f"{finding.evidence[0]}, {wanted.boot_age_s:.0f} s after boot: it may still come"
            items.append(judged(UNKNOWN, "efa.late", "node", "warn", line))
        elif finding.id == "efa.missing" and not efa.devices and efa.on_bus == ():
            line = "no EFA function is on the PCI bus: none was attached, or none is left"
            items.append(judged(FAIL, "efa.none-there", "node", "drain", *finding.evidence, line))
        elif finding.id in ("efa.missing", "efa.none-there") and not number.attached:
            line = f"how many were attached is not known; a {wanted.instance_type} can have {wanted.number}"
            items.append(Judged(finding._replace(evidence=(*finding.evidence, line)), item.verdict))
        else:
            items.append(item)
    return items


def _slow(here: Here, names: Sequence[str], functions: Sequence[Function]) -> list[Judged]:
    """Return what a health check looks at besides: settings that no job changes, and what libfabric lists."""
    release = (efa_live_files.text_at(os.path.join(here.root, "proc/sys/kernel/osrelease"), 128) or "").strip()
    nics = [function.numa for function in functions if efa_live_read.is_efa(function)]
    gpus = [function.numa for function in functions if function.vendor == "0x10de"]
    items = efa_live_settings.judge_mtu(efa_live_node.netdevs(here.root))
    items += efa_live_settings.judge_numa(nics, gpus)
    kernel = efa_live_settings.kernel_version(release)
    items += efa_live_settings.judge_environment(efa_live_node.environment(here.root), kernel)
    return items + _libfabric(here, names)


def _libfabric(here: Here, names: Sequence[str]) -> list[Judged]:
    asked = efa_live_node.ask_libfabric(here.root, max(here.settings.gate.deadline_s / 2, 0.5))
    if asked.missing:
        run_dir = at_node(here.settings.site.run_dir, here.node)
        boot_id = efa_live_files.text_at(os.path.join(here.root, "proc/sys/kernel/random/boot_id"), 64) or ""
        if not efa_live_node.first_time(run_dir, "no-fi-info", boot_id.strip()):
            return []
        return [judged(UNKNOWN, "efa.tool-missing", "node", "none", "there is no fi_info that root may run")]
    return judge_libfabric(asked, names)


def judge_libfabric(asked: efa_live_node.Asked, names: Sequence[str]) -> list[Judged]:
    """Return what one run of fi_info says of the devices that the kernel has. Pure; its exit code alone proves nothing."""
    if asked.timed_out:
        return [judged(UNKNOWN, "efa.tool-timeout", "node", "warn", "fi_info did not end within its time")]
    text = asked.text if asked.text.strip() else asked.stderr
    parsed = rdma_text.parse_fi_info(text)
    said = text.strip()[:200]
    if parsed.error is None and not parsed.is_fi_info:
        return [judged(UNKNOWN, "efa.output-unknown", "node", "none", "fi_info lists nothing that can be read", said)]
    if parsed.error not in (None, 61):  # 61, ENODATA: libfabric has no EFA device
        return [
            judged(UNKNOWN, "efa.libfabric-error", "node", "warn", f"fi_getinfo ends in error {parsed.error}", said)
        ]
    mine = list(dict.fromkeys(entry.device for entry in parsed.entries if entry.provider == "efa"))
    down = efa_rules.judge_links([entry.device for entry in parsed.entries if entry.up is False])
    if asked.truncated or not parsed.complete:
        return [*down, judged(UNKNOWN, "efa.output-cut", "node", "none", "the output of fi_info is cut")]
    others = [entry.provider for entry in parsed.entries if entry.provider != "efa"]
    return [*efa_rules.judge_libfabric(mine, Wanted(len(names)), kernel=list(names), others=others), *down]


def _compatible(here: Here, node: Node, efa: efa_facts.Efa, functions: Sequence[Function]) -> list[Judged]:
    from slurm_ext.gate import compatibility, compatibility_read

    told = compatibility_read.versions(here.root, at_node(here.settings.site.prefix, here.node), here.settings)
    peer_memory = efa.devices[0].peer_memory
    if node.gpus and peer_memory is not None:
        told["peer-memory"] = peer_memory or "none"
    generations = [function.device[5:] for function in functions if efa_live_read.is_efa(function)]
    if generations and generations[0].isdigit():  # 0xefa0 is the first
        told["generation"] = str(int(generations[0]) + 1)
    return compatibility.judge({**told, "type": node.kind})


def _one_event(items: Sequence[Judged]) -> list[Judged]:
    """Return the findings without those that tell one event again: a gone device is gone in every view."""
    kept: dict[tuple[str, str], Judged] = {}
    named = any(item.finding.id == "efa.missing" and item.finding.target != "node" for item in items)
    unbound = {item.finding.target for item in items if item.finding.id == "efa.driver-not-bound"}
    for item in items:
        id_, target = item.finding.id, item.finding.target
        if id_ == "efa.missing" and (target in unbound or (named and target == "node")):
            continue
        if item.verdict != PASS or id_.startswith("compat."):
            kept.setdefault((id_, target), item)
    return list(kept.values())
