"""What kernel messages say of the machine around the GPUs: disks, file systems, memory, processors, network, Lustre. Pure.

Only what cannot be a program's own fault convicts, and only by the kernel's own words. Disks have a module of their own.
Sources: the kernel's drivers/edac/edac_mc.c, arch/x86/kernel/cpu/mce (bits of MCi_STATUS, Intel SDM
volume 3 chapter 17), mm/memory-failure.c, drivers/firmware/efi/cper.c, kernel/hung_task.c, kernel/watchdog.c,
drivers/net/ethernet/amazon/ena; lustre/ptlrpc/import.c.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from slurm_ext.gate import kernel_disk
from slurm_ext.gate.model import Judged, judged
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL, PASS, WARN, strength

#: One of these is in every line that `judge` knows; a line without any is passed over at once.
_MARKS = (
    *(
        "nvme",
        "rror",
        "ilesystem",
        "oom",
        "locked",
        "lockup",
        "stall",
        "hrottled",
        "segfault",
        "traps: ",
        "BUG: ",
        "kernel BUG",
        "general protection",
        "Oops",
    ),
    *("evicted", "memory", "ailure", "atchdog", "severity: ", "file-max", "killed as", "Aborting", "forced readonly"),
)

_MARKED = pattern("|".join(_MARKS))

_EVICTED = pattern(r"LustreError: .*?(\S+?)-(osc|mdc)-\S+: This client was evicted by (\S+?);", needs="evicted")
_CONNECTION = pattern(
    r"Lustre(?:Error)?: (?:\S+:\S+:)?.*?(\S+)-(osc|mdc)-\S+: Connection (?:to (\S+)(?: \(at \S+\))? was (lost)|restored to (\S+))",
    needs="Connection ",
)

#: Lustre's own assertion failed (libcfs/libcfs/linux/linux-debug.c): the thread stands still, with what it has locked.
_LBUG = pattern(r"LustreError: .*\) LBUG\s*$", needs="LBUG")

_OOM_JOB = pattern(r"oom-kill:constraint=CONSTRAINT_MEMCG\b.*\bjob_(\d+)", needs="oom-kill")
_OOM_OLD = pattern(r"(?:Task in|memory: .*) (\S*/job_(\d+)\S*) killed as a result of limit", needs="killed as a result")
_OOM_CGROUP = pattern(r"oom-kill:constraint=CONSTRAINT_MEMCG\b", needs="oom-kill")
_OOM_NODE = pattern(r"oom-kill:constraint=CONSTRAINT_(?:NONE|CPUSET|MEMORY_POLICY)\b", needs="oom-kill")
_OOM_NODE_OLD = pattern(r"Out of memory: Kill(?:ed)? process \d+", needs="Out of memory: Kill")
_EDAC = pattern(r"EDAC (?:\w+ )?MC\d+: \d+ (CE|UE) ", needs="EDAC ")
_MCE_BANK = pattern(
    r"(?:mce: )?\[Hardware Error\]: CPU:? ?\d+.*?(?:Machine Check(?: Exception)?: \w+ Bank \d+: |MC\d+_STATUS\S*: (?:0x)?)([0-9a-f]{16})",
    needs="Hardware Error",
)
_MCE_WORD = pattern(
    r"(?:mce: )?\[Hardware Error\]: (Corrected error|Deferred error|Uncorrected|Fatal error|Machine check events logged)",
    needs="Hardware Error",
)
_CPER = pattern(r"\{\d+\}\[Hardware Error\]: event severity: (\w+)", needs="event severity: ")
_POISONED = pattern(r"Memory failure: 0x[0-9a-f]+: (.*)", needs="Memory failure: ")

_HUNG = pattern(r"INFO: task .{1,64}:\d+ blocked for more than \d+ seconds", needs="blocked for more")
_LOCKUP = pattern(
    r"(?:.*?)(?:soft lockup - CPU#\d+ stuck|Watchdog detected hard LOCKUP|rcu\w* ?(?:self-)?detected (?:expedited )?stall|"
    r"rcu: INFO: \w+ (?:self-)?detected (?:expedited )?stall)"
)
_OOPS = pattern(
    r"BUG: (?:unable to handle|kernel NULL pointer|stack guard page)|Oops: |general protection fault, |kernel BUG at ",
)
_THROTTLED = pattern(r"(?:mce: )?CPU\d+: (?:Core|Package) temperature (?:is )?above threshold", needs="above threshold")
_FILES = pattern(r"VFS: file-max limit \d+ reached", needs="file-max")
_SEGFAULT = pattern(r"(?:\S+\[\d+\]: segfault at |traps: \S+\[\d+\])")
_PCIE = pattern(
    r"(nvidia|efa) ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})\.([0-7]): (?:AER: )?PCIe Bus Error: "
    r"severity=(Correct\w+|Uncorrect\w+)(?: \(([\w-]+)\))?",
    needs="PCIe Bus Error",
)
_ENA = pattern(r"ena [0-9a-f:.]+ (\w+): (?:Keep alive watchdog timeout|.*Trigger reset)", needs="ena ")
_CARRIER = pattern(
    r"(?:systemd-networkd\[\d+\]: )?(?:(?:ena|mlx5_core|igb|ixgbe|i40e|ice|bnxt_en) [0-9a-f:.]+ )?(ib\w*|en[osp]\w+|eth\d+): "
    r"(?:lost carrier|[Ll]ink is [Dd]own|link down|NIC Link is Down)",
    needs=": ",
)

#: Bits of MCi_STATUS: the entry is valid, and the error was not corrected (Intel SDM, AMD APM; the same for both).
_VALID, _UNCORRECTED = 1 << 63, 1 << 61
#: Carrier losses from which on one interface flaps (a single loss is a link that was taken down on purpose).
FLAPS = 3


def judge(text: str, own: Collection[str] = ()) -> Judged | None:
    """Return what one kernel message says of the machine, None where it says nothing. `own`: see kernel_disk."""
    if not _MARKED.search(text):
        return None
    return kernel_disk.judge(text, own) or _memory(text) or _processor(text) or _rest(text)


def _memory(text: str) -> Judged | None:
    if found := _OOM_JOB.search(text):
        return judged(PASS, "memory.oom-cgroup", f"job:{found[1]}", "none", text)
    if found := _OOM_OLD.search(text):
        return judged(PASS, "memory.oom-cgroup", f"job:{found[2]}", "none", text)
    if _OOM_CGROUP.search(text):  # another cgroup's limit: a container's or a service's
        return judged(PASS, "memory.oom-cgroup", "node", "none", text)
    if _OOM_NODE.search(text) or _OOM_NODE_OLD.match(text):
        return judged(WARN, "memory.oom-node", "node", "warn", text)
    if found := _EDAC.match(text):
        return _dimm(text, corrected=found[1] == "CE")
    if found := _MCE_BANK.match(text):
        status = int(found[1], 16)
        return _dimm(text, corrected=not status & _UNCORRECTED) if status & _VALID else None
    if found := _MCE_WORD.match(text):
        if found[1] == "Deferred error":
            return judged(WARN, "host.memory-poisoned", "node", "warn", text)
        return _dimm(text, corrected=found[1] in ("Corrected error", "Machine check events logged"))
    if found := _CPER.match(text):
        if found[1] in ("corrected", "info"):
            return judged(PASS, "memory.dimm-corrected", "node", "none", text)
        fatal = found[1] == "fatal"
        return _dimm(text, corrected=False) if fatal else judged(WARN, "host.memory-poisoned", "node", "warn", text)
    if found := _POISONED.match(text):
        if "due to hardware memory corruption" in found[1]:  # it killed a program
            return _dimm(text, corrected=False)
        return judged(WARN, "host.memory-poisoned", "node", "warn", text)
    return None


def _dimm(text: str, *, corrected: bool) -> Judged:
    if corrected:
        return judged(PASS, "memory.dimm-corrected", "node", "none", text)
    return judged(FAIL, "memory.dimm-uncorrected", "node", "replace", text)


def _processor(text: str) -> Judged | None:
    """Return what watchdogs say: a warning, since what was late may have gone on."""
    if _HUNG.match(text):
        return judged(WARN, "process.hung-task", "node", "warn", text)
    if ("lockup" in text or "LOCKUP" in text or "stall" in text) and _LOCKUP.match(text):
        return judged(WARN, "host.lockup", "node", "warn", text)
    if _OOPS.match(text):
        return judged(WARN, "host.kernel-fault", "node", "reboot", text)
    if _THROTTLED.match(text):
        return judged(WARN, "host.cpu-throttled", "node", "warn", text)
    return None


def _bus(text: str) -> Judged | None:
    """Return what advanced error reporting says of a GPU's or an EFA device's own PCIe function (drivers/pci/pcie/aer.c)."""
    found = _PCIE.match(text)
    if found is None:
        return None
    target = f"gpu@{found[2]}" if found[1] == "nvidia" else f"efa:{found[2]}.{found[3]}"
    if found[4].startswith("Correct"):
        return judged(PASS, "pcie.corrected", target, "none", text)
    if found[5] != "Fatal":
        return judged(WARN, "pcie.uncorrected", target, "warn", text)
    return judged(FAIL, "pcie.fatal", target, "reboot" if found[1] == "nvidia" else "replace", text)


def _rest(text: str) -> Judged | None:
    if item := _bus(text):
        return item
    if found := _EVICTED.match(text):
        return judged(WARN, "lustre.evicted", f"{'ost' if found[2] == 'osc' else 'mdt'}:{found[3]}", "warn", text)
    if _LBUG.match(text):
        return judged(FAIL, "lustre.lbug", "node", "reboot", text)
    if found := _ENA.match(text):
        return judged(WARN, "network.nic-reset", f"nic:{found[1]}", "warn", text)
    if _FILES.match(text):
        return judged(WARN, "host.file-limit", "node", "warn", text)
    if _SEGFAULT.match(text):
        return judged(PASS, "process.segfault", "node", "none", text)
    return None


def judge_links(texts: Iterable[str]) -> list[Judged]:
    """Return what several messages say together: carriers that came and went, connections of Lustre that did not come back."""
    losses: dict[str, list[str]] = {}
    away: dict[str, str] = {}
    back: dict[str, str] = {}
    for text in texts:
        if "arrier" in text or "ink " in text:
            if found := _CARRIER.match(text):
                losses.setdefault(found[1], []).append(text)
        elif "Connection " in text and (found := _CONNECTION.match(text)):
            where = f"{'ost' if found[2] == 'osc' else 'mdt'}:{found[3] or found[5]}"
            if found[4]:
                away[where] = text
                back.pop(where, None)
            elif away.pop(where, None):
                back[where] = text
    items = [
        judged(
            WARN,
            "network.ib-flap" if name.startswith("ib") else "network.flap",
            f"nic:{name}",
            "warn",
            f"{len(seen)} losses of carrier",
            seen[0],
        )
        for name, seen in losses.items()
        if len(seen) >= FLAPS
    ]
    items += [judged(WARN, "lustre.connection-lost", where, "warn", text) for where, text in away.items()]
    return items + [judged(PASS, "lustre.connection-restored", where, "none", text) for where, text in back.items()]


#: What memory tells beside an error that was not corrected: of the same event, and less.
_WITH_GRAVE = ("memory.dimm-corrected", "host.memory-poisoned")


def one_event(items: Sequence[Judged]) -> list[Judged]:
    """Return one finding for each disk, EFA device, Lustre target and memory: what dies takes its parts along."""
    best: dict[str, Judged] = {}
    for item in items:
        key = _part(item.finding.target)
        if key and (key not in best or strength(item.finding.action) > strength(best[key].finding.action)):
            best[key] = item
    grave = any(item.finding.id == "memory.dimm-uncorrected" for item in items)
    kept = [item for item in items if (key := _part(item.finding.target)) == "" or best[key] is item]
    return [item for item in kept if not (grave and item.finding.id in _WITH_GRAVE)]


def _part(target: str) -> str:
    """Return the part that a target belongs to: `disk:nvme2` for its block device `disk:nvme2n1p1`; nothing for others."""
    if target.startswith("disk:nvme"):
        return "disk:nvme" + target[len("disk:nvme") :].partition("n")[0]
    return target if target.startswith(("disk:", "efa:", "ost:", "mdt:")) else ""
