"""What kernel messages say about a node: Xid and SXid by NVIDIA's advice, EFA, NVMe, Lustre, memory. Pure.

A code is an event of the boot it was logged in: a reboot makes it history, and so does a recovery action that the driver
itself set back to None. Several lines of one event are one finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurm_ext.gate import efa_log, xid
from slurm_ext.gate.kernel_log import same_boot
from slurm_ext.gate.model import Judged, KernelLine, judged
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, strength

_PCI = r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?"
_XID = pattern(rf"NVRM: Xid \((?:PCI:)?{_PCI}(?: GPU-I:\d+)?\): (\d+)(?:,\s*(.*))?$", needs="Xid")
_NVLINK5 = pattern(
    r"(?:.*, )?([A-Z][A-Z0-9_/]+)\s+(Fatal|Nonfatal|Non-fatal)\s+XC\d+ i\d+ Link (-?\d+) \(0x[0-9a-f]+ (0x[0-9a-f]+)"
)
_RECOVERY = pattern(r"recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to (0x[0-9a-fA-F]+)")
_OFF_BUS = pattern(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?{_PCI}:? .*fallen off the bus", needs="fallen off the bus")
_INIT = pattern(rf"NVRM: GPU {_PCI}: (?:RmInitAdapter|rm_init_adapter) failed", needs="failed")
_SXID = pattern(r"nvidia-nvswitch(\d+): SXid \(PCI:[0-9a-fA-F:.]+\): (\d+), (Fatal|Non-fatal)", needs="SXid")
_CARRIER = pattern(r"(?:systemd-networkd\[\d+\]: )?(ib\w*): (?:lost carrier|[Ll]ink is [Dd]own|link down)", needs="ib")
_NVME_TIMEOUT = pattern(r"nvme (nvme\d+): I/O .*timeout", needs="timeout")
_NVME_DEAD = pattern(
    r"nvme (nvme\d+): (?:Removing after probe failure|Disabling device after reset failure|Device not ready)",
    needs="nvme",
)
_EVICTED = pattern(r"LustreError: .*?(\S+?)-(osc|mdc)-\S+: This client was evicted by (\S+?);", needs="evicted")
_OOM_JOB = pattern(r"oom-kill:constraint=CONSTRAINT_MEMCG\b.*\bjob_(\d+)", needs="oom-kill")
_OOM_NODE = pattern(r"oom-kill:constraint=CONSTRAINT_(?:NONE|CPUSET|MEMORY_POLICY)\b", needs="oom-kill")
_EDAC = pattern(r"EDAC MC\d+: \d+ (CE|UE) ", needs="EDAC MC")
_READ_ONLY = pattern(
    r"(?:EXT4-fs|XFS) \(?(\w+)\)?:? .*(?:Remounting filesystem read-only|Shutting down filesystem)", needs="filesystem"
)
_SEGFAULT = pattern(r"\S+\[\d+\]: segfault at ", needs="segfault at ")

#: Carrier losses from which on one interface flaps (a single loss is a link that was taken down on purpose).
FLAPS = 3

#: A log that begins later than this after boot (seconds) has lost its beginning.
LOST_START_S = 600.0


def judge(
    lines: Iterable[KernelLine],
    *,
    boot_id: str = "",
    boot_time_s: float | None = None,
    recovery: Mapping[str, str] | None = None,
) -> list[Judged]:
    """Return what the messages say, strongest per event, in order of first appearance.

    `recovery` maps a GPU's address to nvidia-smi's present recovery action, where that was read after the log.
    """
    now: list[KernelLine] = []
    before: list[KernelLine] = []
    for line in lines:
        (now if same_boot(line, boot_id, boot_time_s) else before).append(line)
    found = _merge([*_xids(now, recovery or {}), *(item for line in now for item in _other(line.text)), *_flaps(now)])
    return [*found, *_old(before)]


def address(domain: str, bus: str, device: str) -> str:
    """Return a PCI address as targets have it: four-digit domain, lower case, no function."""
    return f"{int(domain, 16):04x}:{bus}:{device}".lower()


def _xids(lines: Sequence[KernelLine], recovery: Mapping[str, str]) -> list[Judged]:
    events: list[tuple[str, int, str, str]] = []
    for line in lines:
        if found := _XID.match(line.text):
            events.append((address(found[1], found[2], found[3]), int(found[4]), found[5] or "", line.text))
    last_action = {gpu: number for gpu, code, rest, _ in events if (number := _recovery_number(code, rest)) is not None}
    items = []
    for position, (gpu, code, rest, text) in enumerate(events):
        if code == xid.RECOVERY_CHANGED:
            continue
        item = _one_xid(gpu, code, rest, text, recovery.get(gpu), {other for g, other, _, _ in events if g == gpu})
        if last_action.get(gpu) == 0 and strength(item.finding.action) >= strength("reset-gpu"):
            healed = _healed_after(events, position)
            if healed and item.finding.action == "reset-gpu":
                item = judged(PASS, item.finding.id, f"gpu@{gpu}", "none", text, healed)
        items.append(item)
    for gpu, number in last_action.items():
        text = next(text for g, code, _, text in reversed(events) if g == gpu and code == xid.RECOVERY_CHANGED)
        action = xid.RECOVERY_NUMBERS.get(number)
        if action is None:
            items.append(judged(UNKNOWN, f"gpu.xid-{xid.RECOVERY_CHANGED}", f"gpu@{gpu}", "drain", text))
        elif action != "none":
            items.append(judged(FAIL, f"gpu.xid-{xid.RECOVERY_CHANGED}", f"gpu@{gpu}", action, text))
    return items


def _recovery_number(code: int, rest: str) -> int | None:
    found = _RECOVERY.search(rest) if code == xid.RECOVERY_CHANGED else None
    return int(found[1], 16) if found else None


def _healed_after(events: Sequence[tuple[str, int, str, str]], position: int) -> str:
    """Return the later line in which the driver set this GPU's recovery action back to None, or nothing."""
    gpu = events[position][0]
    for other, code, rest, text in events[position + 1 :]:
        if other == gpu and _recovery_number(code, rest) == 0:
            return text
    return ""


def _one_xid(gpu: str, code: int, rest: str, text: str, now: str | None, companions: set[int]) -> Judged:
    id_, target = f"gpu.xid-{code}", f"gpu@{gpu}"
    if code == xid.PREEMPTIVE_REMOVAL:
        # The clean-up after another error: that one tells what to do; alone, NVIDIA says to restart the fabric manager.
        return (
            judged(PASS, id_, target, "none", text) if companions - {code} else judged(WARN, id_, target, "warn", text)
        )
    if code in xid.NVLINK5:
        return _nvlink5(id_, target, rest, text, now)
    advice = xid.XIDS.get(code)
    if advice is None:
        return judged(
            UNKNOWN, id_, target, "warn", text, f"no table of ours (checked on {xid.CHECKED_ON}) has this code"
        )
    if code == 64 and xid.NO_SPARE_ROWS in rest.lower():
        return judged(FAIL, id_, target, "replace", text, "no spare rows are left in the bank: a return criterion")
    return judged(advice.verdict, id_, target, advice.action, text, advice.meaning)


def _nvlink5(id_: str, target: str, rest: str, text: str, now: str | None) -> Judged:
    found = _NVLINK5.match(rest)
    open_bits = xid.NVLINK5_UNITS.get(found[1].split("/")[0]) if found else None
    if found is None or open_bits is None:
        return judged(UNKNOWN, id_, target, "warn", text, "the unit or the layout of this line is in no table of ours")
    if found[2] == "Fatal":
        return judged(FAIL, id_, target, "reset-gpu", text, "marked fatal: reset the GPU")
    if int(found[4], 16) & open_bits:
        if now is None:
            return judged(UNKNOWN, id_, target, "warn", text, "the driver's recovery action decides, and was not read")
        action = xid.RECOVERY_WORDS.get(now.lower(), "drain")
        if action == "none":
            return judged(WARN, id_, target, "warn", text, "the driver's recovery action is None")
        return judged(FAIL, id_, target, action, text, f"the driver's recovery action is {now}")
    if found[1] == "NETIR_BER_EVENT":
        return judged(WARN, id_, target, "warn", text, "marked non-fatal: watch whether it repeats on one link")
    return judged(PASS, id_, target, "none", text, "marked non-fatal: ignore")


def _other(text: str) -> list[Judged]:
    """Return what one message other than an Xid says."""
    if found := _INIT.match(text):
        return [judged(FAIL, "gpu.init-failed", f"gpu@{address(found[1], found[2], found[3])}", "reboot", text)]
    if found := _OFF_BUS.match(text):
        return [judged(FAIL, "gpu.off-bus", f"gpu@{address(found[1], found[2], found[3])}", "reboot", text)]
    if found := _SXID.match(text):
        fatal = found[3] == "Fatal"
        word, action = (FAIL, "reboot") if fatal else (WARN, "warn")
        return [judged(word, f"nvswitch.sxid-{found[2]}", f"nvswitch:{found[1]}", action, text)]
    if item := efa_log.judge(text):
        return [item]
    if found := _NVME_DEAD.match(text):
        return [judged(FAIL, "disk.nvme-dead", f"disk:{found[1]}", "replace", text)]
    if found := _NVME_TIMEOUT.match(text):
        return [judged(WARN, "disk.nvme-timeout", f"disk:{found[1]}", "warn", text)]
    if found := _EVICTED.match(text):
        return [judged(WARN, "lustre.evicted", f"{'ost' if found[2] == 'osc' else 'mdt'}:{found[3]}", "warn", text)]
    if found := _OOM_JOB.search(text):
        return [judged(PASS, "memory.oom-cgroup", f"job:{found[1]}", "none", text)]
    if _OOM_NODE.search(text):
        return [judged(WARN, "memory.oom-node", "node", "warn", text)]
    if found := _EDAC.match(text):
        corrected = found[1] == "CE"
        name = "memory.dimm-corrected" if corrected else "memory.dimm-uncorrected"
        return [judged(PASS if corrected else FAIL, name, "node", "none" if corrected else "replace", text)]
    if found := _READ_ONLY.match(text):
        return [judged(FAIL, "disk.read-only", f"disk:{found[1]}", "reboot", text)]
    if _SEGFAULT.match(text):
        return [judged(PASS, "process.segfault", "node", "none", text)]
    return []


def _flaps(lines: Sequence[KernelLine]) -> list[Judged]:
    losses: dict[str, list[str]] = {}
    for line in lines:
        if found := _CARRIER.match(line.text):
            losses.setdefault(found[1], []).append(line.text)
    return [
        judged(WARN, "network.ib-flap", f"nic:{name}", "warn", f"{len(seen)} losses of carrier", seen[0])
        for name, seen in losses.items()
        if len(seen) >= FLAPS
    ]


def _old(lines: Sequence[KernelLine]) -> list[Judged]:
    """Return the acting codes of earlier boots, as history: the restart that they asked for has taken place."""
    items = []
    for line in lines:
        found = _XID.match(line.text)
        if found and (advice := xid.XIDS.get(int(found[4]))) and advice.verdict == FAIL:
            target = f"gpu@{address(found[1], found[2], found[3])}"
            items.append(judged(PASS, f"gpu.xid-{found[4]}-old-boot", target, "none", line.text))
    return _merge(items)


def _merge(items: Iterable[Judged]) -> list[Judged]:
    """Return one item for each id and target: the strongest, where it first appeared, saying how often it was seen."""
    kept: dict[tuple[str, str], Judged] = {}
    seen: dict[tuple[str, str], int] = {}
    for item in items:
        key = (item.finding.id, item.finding.target)
        seen[key] = seen.get(key, 0) + 1
        if key not in kept or strength(item.finding.action) > strength(kept[key].finding.action):
            kept[key] = item
    return [
        item
        if seen[key] == 1
        else item._replace(finding=item.finding._replace(evidence=(*item.finding.evidence, f"{seen[key]} lines")))
        for key, item in kept.items()
    ]


def lost_beginning(lines: Sequence[KernelLine], boot_time_s: float | None) -> bool:
    """Say whether the first message that has a time is long after boot, so that earlier ones of this boot are gone."""
    for line in lines:
        if line.at_s is not None:
            if line.since_boot:
                return line.at_s > LOST_START_S
            return boot_time_s is not None and line.at_s - boot_time_s > LOST_START_S
    return False
