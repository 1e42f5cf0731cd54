"""What the EFA driver's kernel messages say of one device. Pure.

Source: amzn/amzn-drivers kernel/linux/efa (efa_com.c, efa_main.c): after a command without completion the admin queue is
closed until the driver is loaded anew; a device that does not come up in probe has no RDMA device at all, only an address.
"""

from __future__ import annotations

from slurm_ext.gate.model import Judged, judged
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL, WARN

#: A command that could not be submitted follows a closed queue, or a host without memory: it tells nothing of its own.
_DEVICE = r"(?:infiniband |efa )*(rdma[pP]\w+|efa_?\d+|[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]):? "
_SILENT = pattern(
    _DEVICE + r"(?:The device didn't send any completion for admin cmd|Admin queue is closed|"
    r"Wait for completion \(polling\) timeout|Reading register timed out)"
)
_NO_INTERRUPT = pattern(_DEVICE + r"The device sent a completion but the driver didn't receive any MSI-X interrupt")
_REFUSED = pattern(_DEVICE + r"Failed to process command")
_PROBE = pattern(
    r"efa:? (?:probe of )?([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]):? .*?"
    r"(?:failed with error -?\d+|EFA device init failed|BARs unavailable|Failed to (?:remap|init|enable|request)|failed!)"
)

#: One of these is in every line that this module knows.
MARKS = ("dmin queue is closed", "completion", "register timed out", "Failed to", "failed", "BARs unavailable")


def judge(text: str) -> Judged | None:
    """Return what one kernel message says, None where it is not of the EFA driver or tells nothing."""
    if "efa" not in text and "infiniband" not in text and "rdmap" not in text:
        return None
    if not any(mark in text for mark in MARKS):
        return None
    if found := _PROBE.match(text):
        return judged(FAIL, "efa.init-failed", f"efa:{found[1].lower()}", "replace", text)
    if found := _NO_INTERRUPT.match(text):
        return judged(FAIL, "efa.no-interrupt", f"efa:{found[1]}", "reboot", text)
    if found := _SILENT.match(text):
        return judged(FAIL, "efa.no-completion", f"efa:{found[1]}", "replace", text)
    if found := _REFUSED.match(text):
        return judged(WARN, "efa.command-error", f"efa:{found[1]}", "warn", text)
    return None


def judge_lines(texts: list[str]) -> list[Judged]:
    """Return what several messages say, each device once: what follows a closed queue is of the same event."""
    kept: dict[str, Judged] = {}
    for text in texts:
        item = judge(text)
        if item is None:
            continue
        first = kept.get(item.finding.target)
        if first is None or (first.verdict == WARN and item.verdict == FAIL):
            kept[item.finding.target] = item
    return list(kept.values())
