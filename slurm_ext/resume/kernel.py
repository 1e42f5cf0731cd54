"""What a node's kernel log says about a dead job: Xid and SXid numbers by meaning, out-of-memory kills, other hardware lines.

Xid meanings as NVIDIA's "Xid Errors" catalogue describes them; checked 2025-11. A number that is not in any set is unknown
to us and convicts nobody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from slurm_ext.resume.logs import time_of

#: The GPU, its memory or its firmware is broken: reset, reboot or replace.
XID_NODE = frozenset({46, 48, 54, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 156, 158})
#: NVLink and its switches. From 144 on a line says itself whether it is fatal.
XID_FABRIC = frozenset({74, *range(144, 151), 155})
#: Contained: only the process that touched the page dies.
XID_CONTAINED = frozenset({94})
#: Either the program or the GPU.
XID_OPEN = frozenset({13, 31, 32, 68, 69})
#: Teardown and notices.
XID_AFTERMATH = frozenset({43, 44, 45, 63, 66, 67, 92, 93, 121, 137, 141, 154, 157, 160, 161})
#: Physically certain: two nodes may both have one, and each is bad.
XID_CERTAIN = frozenset({48, 64, 79, 95, 140})

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:,\s*(.*))?")
_SXID = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), *(Fatal|Non-fatal)?", re.IGNORECASE)
_RECOVERY = re.compile(r"recovery action changed from .* to \S+ \((?!None)([^)]+)\)")
_OOM = re.compile(
    r"(?:Out of memory|out of memory): Killed process (\d+) \(([^)]*)\)|"
    r"oom-kill:constraint=(\w+).*?task_memcg=(\S+?),task=([^,]*),pid=(\d+)"
)
_OTHER = re.compile(
    r"Machine check|Hardware Error.*(?:Uncorrected|fatal)|EDAC .*\bUE\b|Kernel panic|"
    r"nvme\S*: (?:I/O .*(?:timeout|error)|controller is down|Removing after)|"
    r"Remounting filesystem read-only|blk_update_request: (?:critical|I/O) .*error|"
    r"AER: .*[Uu]ncorrect.*[Ff]atal|efa \S+: .*(?:link down|reset failed|is dead)|"
    r"soft lockup|Buffer I/O error on dev nvme"
)
_STORAGE = re.compile(r"LustreError|Lustre: .*Connection .* lost|nfs: server .* not responding|was evicted by")


class Sign(NamedTuple):
    """One telling kernel line. `kind`: xid, sxid, oom, hardware, storage; `severity`: node, fabric,
    fabric-soft, contained, open, aftermath; for oom the constraint."""

    node: str
    kind: str
    number: int
    severity: str
    target: str
    time: float | None
    text: str


def read(node: str, kernel: Sequence[str]) -> list[Sign]:
    """Return the telling lines of one node's kernel log, in order."""
    signs: list[Sign] = []
    for line in kernel:
        when = time_of(line)
        if found := _XID.search(line):
            number, rest = int(found.group(2)), found.group(3) or ""
            severity = _severity(number, rest)
            signs.append(Sign(node, "xid", number, severity, found.group(1), when, line.strip()))
        elif found := _SXID.search(line):
            fatal = (found.group(3) or "").lower() == "fatal"
            signs.append(
                Sign(
                    node,
                    "sxid",
                    int(found.group(2)),
                    "fabric" if fatal else "aftermath",
                    found.group(1),
                    when,
                    line.strip(),
                )
            )
        elif found := _OOM.search(line):
            name = found.group(2) or found.group(5) or ""
            scope = found.group(3) or ""
            signs.append(Sign(node, "oom", int(found.group(1) or found.group(6)), scope, name, when, line.strip()))
        elif _OTHER.search(line):
            signs.append(Sign(node, "hardware", 0, "node", "", when, line.strip()))
        elif _STORAGE.search(line):
            signs.append(Sign(node, "storage", 0, "open", "", when, line.strip()))
    return signs


def _severity(number: int, rest: str) -> str:
    if number == 154:
        return "node" if _RECOVERY.search(rest) and "Reset" not in rest else "aftermath"
    if number in XID_NODE:
        return "node"
    if number in XID_FABRIC:
        return "fabric-soft" if re.search(r"non-?fatal", rest, re.IGNORECASE) else "fabric"
    if number in XID_CONTAINED:
        return "contained"
    return "open" if number in XID_OPEN else "aftermath"
