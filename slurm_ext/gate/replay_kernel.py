"""Captures of group `kernel`: kernel logs in any form, of one boot or of several. Pure."""

from __future__ import annotations

import json
import re

from slurm_ext.captured import Case
from slurm_ext.gate import kernel_log, kernel_rules, smi
from slurm_ext.gate.model import Judged, KernelLine, judged
from slurm_ext.patterns import pattern
from slurm_ext.verdict import UNKNOWN

_ROLES = ("kmsg", "dmesg", "journal", "syslog")

#: What journald and readers of /dev/kmsg write where they were too slow for the ring.
_MISSED = pattern(r"Missed \d+ kernel messages|/dev/kmsg buffer overrun, some messages lost")

_BLANK = re.compile(r"\s*")

#: What a tool prints in place of the log that it may not read, or cannot find.
_NO_ANSWER = pattern(
    r"\s*(?:(?:sudo|dmesg|journalctl|cat|tail)\b.*(?:Operation not permitted|Permission denied|command not found|"
    r"No such file or directory|read kernel buffer failed|a password is required).*|No journal files were found\.|"
    r"-- No entries --|Hint: You are currently not seeing messages from .*)"
)


def judge(case: Case) -> list[Judged]:
    """Return what the kernel logs of a folder say."""
    texts = {role: case.texts[role] for role in _ROLES if role in case.texts}
    command = str(case.context.get("command", ""))
    if "stdout" in case.texts and not texts and case.texts["stdout"].strip():
        texts["stdout"] = case.texts["stdout"]
    failed = _failed(case, texts, command)
    if failed and not texts:
        return [judged(UNKNOWN, "kernel.unreadable", "node", "none", failed)]
    if not texts:
        return [judged(UNKNOWN, "kernel.no-log", "node", "none", "no kernel log in this capture")]
    lines = [line for text in texts.values() for line in kernel_log.parse(_lines(text))]
    recovery = None
    if "smi_csv" in case.texts:
        read = smi.parse_csv(case.texts["smi_csv"])
        recovery = {gpu.pci: gpu.recovery or "none" for gpu in read.gpus if gpu.recovery is not None}
    boot_id = str(case.context.get("boot_id", "")) or kernel_log.last_boot(lines)
    boot_time_s = case.time_s("boot_time")
    told = case.context.get("own_devices")
    own = [name for name in told if isinstance(name, str)] if isinstance(told, list) else []
    items = kernel_rules.judge(lines, boot_id=boot_id, boot_time_s=boot_time_s, recovery=recovery, own=own)
    lost = _lost(case, texts, lines, boot_time_s)
    if lost:
        items.append(judged(UNKNOWN, "kernel.log-incomplete", "node", "none", lost))
    if failed:
        items.append(judged(UNKNOWN, "kernel.unreadable", "node", "none", failed))
    return items


def _lines(text: str) -> str:
    """Return a log that is one JSON document (`dmesg -J`, `journalctl -o json-pretty`) as lines that kernel_log reads."""
    head = text.lstrip()[:2]
    if head not in ("{\n", "[\n", "{\r", "[\r", "[{") and not (head[:1] == "{" and '"dmesg"' in text[:80]):
        return text
    found: list[object] = []
    decoder, at = json.JSONDecoder(), 0
    try:
        while at < len(text) and (at := _BLANK.match(text, at).end()) < len(text):  # type: ignore[union-attr]
            value, at = decoder.raw_decode(text, at)
            found += value if isinstance(value, list) else [value]
    except (ValueError, RecursionError):
        if not found:
            return text  # cut, or no JSON at all
    records = [record for record in found if isinstance(record, dict)]
    if len(records) == 1 and isinstance(records[0].get("dmesg"), list):
        rows = [row for row in records[0]["dmesg"] if isinstance(row, dict)]
        return "".join(_dmesg(row) for row in rows)
    return "".join(f"{json.dumps(record)}\n" for record in records)


def _dmesg(row: dict[str, object]) -> str:
    """Return one entry of `dmesg -J` as dmesg prints it, empty where another than the kernel wrote it."""
    level, time = row.get("pri"), row.get("time")
    facility = level >> 3 if isinstance(level, int) else 0
    if row.get("fac", "kern") != "kern" or facility:
        return ""
    stamp = f"[{time:12.6f}] " if isinstance(time, int | float) and 0 <= time < 1e12 else ""
    return f"{stamp}{str(row.get('msg', '')).replace(chr(10), ' ')}\n"


def _failed(case: Case, texts: dict[str, str], command: str) -> str:
    """Return why the probe gave no log, or not the whole of it; texts that are no log are taken out."""
    said = case.texts.get("stderr", "").strip()
    for role, text in list(texts.items()):
        rows = [line for line in text.splitlines() if line.strip()]
        if "--since" in command and any("-- No entries --" in line for line in rows):
            continue  # nothing was said in that time
        if all(_NO_ANSWER.fullmatch(line) for line in rows):
            said = said or (rows[0] if rows else "the log is empty")
            del texts[role]
    if case.context.get("timed_out"):
        return f"{command or 'the probe'} gave no whole answer within its time"
    code = case.context.get("exit_code", 0)
    if code not in (0, None) or not texts:
        return said[:200] or (f"{command or 'the probe'} ended with {code}" if code else "")
    return ""


def _lost(case: Case, texts: dict[str, str], lines: list[KernelLine], boot_time_s: float | None) -> str:
    """Return why messages of this boot may be missing, or nothing."""
    whole_boot = boot_time_s is not None and ("now" in case.context or "ring_bytes" in case.context)
    if whole_boot and kernel_rules.lost_beginning(lines, boot_time_s):
        return "the log begins long after boot: earlier messages of this boot are gone"
    missed = next((found[0] for text in texts.values() if (found := _MISSED.search(text))), "")
    return f"messages were lost: {missed}" if missed else ""
