"""What kernel messages say about a node: Xid and SXid by NVIDIA's advice, EFA, NVMe, Lustre, memory. Pure.

A code is an event of the boot it was logged in: a reboot makes it history, and so does a recovery action that the driver
itself set back to None. Several lines of one event are one finding.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from slurm_ext.gate import efa_log, kernel_host, xid
from slurm_ext.gate.kernel_log import same_boot
from slurm_ext.gate.model import Judged, KernelLine, judged
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, strength

_PCI = r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?"
#: Some messages leave the domain out where it is 0.
_SHORT = r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?"
#: The driver writes a comma behind the code, always: a line that was cut within its code tells another one.
_XID = pattern(rf"NVRM: Xid \((?:PCI:)?{_PCI}(?: GPU-I:\d+)?\): (\d+),\s*(.*)", re.DOTALL, needs="Xid")
_NVLINK5 = pattern(
    r"(?:.*, )?([A-Z][A-Z0-9_/]+)\s+(Fatal|Nonfatal|Non-fatal)\s+XC\d+ i\d+ Link (-?\d+)"
    r" \((0x[0-9a-fA-F]+) (0x[0-9a-fA-F]+)"
)
_RECOVERY = pattern(r"recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to (0x[0-9a-fA-F]+)")
_OFF_BUS = pattern(
    rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?{_SHORT}:? .*fallen off the bus", needs="fallen off the bus"
)
#: The same on three lines: the address, the card's kind, and that it is gone (os-interface's nv.c).
_OFF_BUS_BEGIN = pattern(rf"NVRM: The NVIDIA GPU {_SHORT}\s*$", needs="The NVIDIA GPU ")
_INIT = pattern(rf"NVRM: GPU {_SHORT}: (?:RmInitAdapter|rm_init_adapter) failed", needs="failed")
_PROBE = pattern(
    rf"(?:nvidia: probe of {_SHORT} failed with error -|nvidia {_SHORT}: probe with driver nvidia failed with error -)",
    needs="failed with error -",
)
_UVM = pattern(
    r"NVRM: .*uvm encountered global fatal error 0x[0-9a-f]+, requiring os reboot", needs="global fatal error"
)
_SXID = pattern(r"nvidia-nvswitch(\d+): SXid \(PCI:[0-9a-fA-F:.]+\): (\d+), (Fatal|Non-fatal)", needs="SXid")
#: How the messages of NVIDIA's drivers begin.
_DRIVERS = ("NVRM: ", "nvidia")

#: The driver says so when it is loaded.
_LOADED = ("NVRM: loading NVIDIA ",)

#: A log that begins later than this after boot (seconds) has lost its beginning.
LOST_START_S = 600.0


def judge(
    lines: Iterable[KernelLine],
    *,
    boot_id: str = "",
    boot_time_s: float | None = None,
    recovery: Mapping[str, str] | None = None,
    own: Collection[str] = (),
) -> list[Judged]:
    """Return what the messages say, strongest per event, in order of first appearance.

    `recovery` maps a GPU's address to nvidia-smi's present recovery action, where that was read after the log. `own` names the
    device-mapper devices that are the node's.
    """
    now: list[KernelLine] = []
    before: list[KernelLine] = []
    for line in lines:
        (now if same_boot(line, boot_id, boot_time_s) else before).append(line)
    said = [*_xids(now, recovery or {}), *(item for text in _whole(now) for item in _other(text, own))]
    found = _merge([*said, *kernel_host.judge_links(line.text for line in now)])
    return [*kernel_host.one_event(found), *_old(before)]


def address(domain: str | None, bus: str, device: str) -> str:
    """Return a PCI address as targets have it: four-digit domain (0 where it is left out), lower case, no function."""
    return f"{int(domain or '0', 16):04x}:{bus}:{device}".lower()


def _whole(lines: Sequence[KernelLine]) -> Iterable[str]:
    """Yield each message, with those that belong to one sentence of the driver joined."""
    texts = [line.text for line in lines]
    for position, text in enumerate(texts):
        if text.startswith("NVRM: The") and _OFF_BUS_BEGIN.match(text):
            rest = [more for more in texts[position + 1 : position + 4] if more.startswith("NVRM: ")]
            yield " ".join([text.rstrip(), *(more.removeprefix("NVRM: ") for more in rest)])
        else:
            yield text


class _Event(NamedTuple):
    """One Xid line: where it stands among the messages, its GPU, code, words behind the code, and the whole of it."""

    position: int
    gpu: str
    code: int
    rest: str
    text: str


def _xids(lines: Sequence[KernelLine], recovery: Mapping[str, str]) -> list[Judged]:
    events: list[_Event] = []
    loaded = -1  # where the driver was last loaded: that resets every GPU
    for position, line in enumerate(lines):
        if found := _XID.match(line.text):
            gpu = address(found[1], found[2], found[3])
            events.append(_Event(position, gpu, int(found[4]), found[5] or "", line.text))
        elif line.text.startswith(_LOADED):
            loaded = position
    last_action: dict[str, tuple[int, _Event]] = {}  # what the driver last said that this GPU needs
    asked: dict[str, int] = {}  # where it last asked for something
    codes: dict[str, set[int]] = {}
    for event in events:
        codes.setdefault(event.gpu, set()).add(event.code)
        number = _recovery_number(event.code, event.rest)
        if number is not None:
            last_action[event.gpu] = number, event
            if number:
                asked[event.gpu] = event.position
    items = []
    for event in events:
        if event.code == xid.RECOVERY_CHANGED:
            continue
        present = recovery.get(event.gpu)
        item = _one_xid(event.gpu, event.code, event.rest, event.text, present, codes[event.gpu])
        if item.finding.action == "reset-gpu":
            number, told = last_action.get(event.gpu, (-1, event))
            healed = ""
            if number == 0 and told.position > event.position:
                healed = told.text
            elif event.position < loaded:
                healed = lines[loaded].text
            elif _is_none(present) and asked.get(event.gpu, -1) > event.position:
                healed = "the driver asked for a reset then, and its recovery action is None now"
            if healed:
                item = judged(PASS, item.finding.id, f"gpu@{event.gpu}", "none", event.text, healed)
        items.append(item)
    return items + _asked_for(last_action, recovery, loaded)


def _asked_for(last_action: Mapping[str, tuple[int, _Event]], recovery: Mapping[str, str], loaded: int) -> list[Judged]:
    """Return what the driver last asked for, for each GPU where that still stands."""
    items = []
    for gpu, (number, event) in last_action.items():
        if _is_none(recovery.get(gpu)) or (event.position < loaded and number in xid.RESETS):
            continue  # the driver's present state is newer than its log, and loading it anew resets
        action = xid.RECOVERY_NUMBERS.get(number)
        id_, target = f"gpu.xid-{xid.RECOVERY_CHANGED}", f"gpu@{gpu}"
        if action is None:
            items.append(judged(UNKNOWN, id_, target, "drain", event.text))
        elif action != "none":
            items.append(judged(FAIL, id_, target, action, event.text))
    return items


def _is_none(action: str | None) -> bool:
    return action is not None and action.lower() == "none"


def _recovery_number(code: int, rest: str) -> int | None:
    found = _RECOVERY.search(rest) if code == xid.RECOVERY_CHANGED else None
    return int(found[1], 16) if found else None


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
        if found[1].startswith("NETIR_LINK_EVT") and (int(found[4], 16) >> 20) & 0x3F in xid.LINK_DOWN_IGNORED:
            return judged(WARN, id_, target, "warn", text, "a link that software or the host took down: look there")
        return judged(FAIL, id_, target, "reset-gpu", text, "marked fatal: reset the GPU")
    if int(found[5], 16) & open_bits:
        if now is None:
            return judged(UNKNOWN, id_, target, "warn", text, "the driver's recovery action decides, and was not read")
        action = xid.RECOVERY_WORDS.get(now.lower(), "drain")
        if action == "none":
            return judged(WARN, id_, target, "warn", text, "the driver's recovery action is None")
        return judged(FAIL, id_, target, action, text, f"the driver's recovery action is {now}")
    if found[1] == "NETIR_BER_EVENT":
        return judged(WARN, id_, target, "warn", text, "marked non-fatal: watch whether it repeats on one link")
    return judged(PASS, id_, target, "none", text, "marked non-fatal: ignore")


def _other(text: str, own: Collection[str]) -> list[Judged]:
    """Return what one message other than an Xid says."""
    return _driver(text) if text.startswith(_DRIVERS) else _machine(text, own)


def _driver(text: str) -> list[Judged]:
    if found := _INIT.match(text):
        return [judged(FAIL, "gpu.init-failed", f"gpu@{address(found[1], found[2], found[3])}", "reboot", text)]
    if (found := _PROBE.match(text)) is not None:
        parts = found.groups()[:3] if found[2] else found.groups()[3:]
        return [judged(FAIL, "gpu.init-failed", f"gpu@{address(*parts)}", "reboot", text)]
    if _UVM.match(text):
        return [judged(FAIL, "gpu.memory-manager-failed", "node", "reboot", text)]
    if found := _OFF_BUS.match(text):
        return [judged(FAIL, "gpu.off-bus", f"gpu@{address(found[1], found[2], found[3])}", "reboot", text)]
    if found := _SXID.match(text):
        fatal = found[3] == "Fatal"
        word, action = (FAIL, "reboot") if fatal else (WARN, "warn")
        return [judged(word, f"nvswitch.sxid-{found[2]}", f"nvswitch:{found[1]}", action, text)]
    return _machine(text)


def _machine(text: str, own: Collection[str] = ()) -> list[Judged]:
    if item := efa_log.judge(text):
        return [item]
    item = kernel_host.judge(text, own)
    return [item] if item else []


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
