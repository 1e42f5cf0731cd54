"""Kernel messages in whatever form a tool printed them, as KernelLine. Pure parsers that never raise on odd text.

Forms: raw /dev/kmsg records (Documentation/ABI/testing/dev-kmsg), dmesg in every time style of dmesg(1), `journalctl -k`
as text and as JSON lines (systemd.journal-fields(7)), syslog files (RFC 3164 and RFC 3339 time), and bare messages.
Only what the kernel itself said counts as a driver's message: a user can write `NVRM: Xid` with logger(1).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from slurm_ext.gate.model import KernelLine
from slurm_ext.patterns import pattern

_KMSG = pattern(r"(\d+),(\d+),(\d+),[^;]*;(.*)")
_SECONDS = pattern(r"\[\s*(\d+\.\d+)\]\s?(.*)")
_CTIME = pattern(r"\[?(\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\]?\s(.*)")
_ISO = pattern(r"\[?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:?\d\d)?\]?\s+(.*)")
_DECODED = pattern(r"(kern|user|daemon|syslog|auth|local\d|[a-z]+)\s*:(\w+)\s*:\s(.*)")
_PRIORITY = pattern(r"<(\d+)>(.*)")
_RFC3164 = pattern(r"\w{3} [ \d]\d \d\d:\d\d:\d\d (?:\S+ )?([\w./-]+)(\[\d+\])?: (.*)")
_TAGGED = pattern(r"\S+ ([\w./-]+)(\[\d+\])?: (.*)")


#: What journalctl prints between two boots (-- Reboot -- before systemd 242), and the kernel's own first message.
_SEPARATOR = pattern(r"-- (?:Boot [0-9a-f]{32}|Reboot) --")
_FIRST = "Linux version "

#: Stands for the id of a boot before the one in which the log ends, where the log does not tell the id.
EARLIER = "earlier"


def parse(text: str) -> list[KernelLine]:
    """Return the kernel's messages in a text of any of the forms, in order; lines of other programs keep their tag.

    A file may hold several boots: what stands before the last beginning of one is marked as earlier.
    """
    lines: list[KernelLine] = []
    began = 0
    for raw in text.splitlines():
        if raw.startswith("-- ") and _SEPARATOR.match(raw):
            began = len(lines)
        elif (line := parse_line(raw)) is not None:
            if line.text.startswith(_FIRST):
                began = len(lines)
            lines.append(line)
    return [line._replace(boot_id=line.boot_id or EARLIER) for line in lines[:began]] + lines[began:]


def last_boot(lines: Sequence[KernelLine]) -> str:
    """Return the id of the boot in which a log ends, nothing where it tells no ids."""
    return next((line.boot_id for line in reversed(lines) if line.boot_id not in ("", EARLIER)), "")


def parse_line(raw: str) -> KernelLine | None:
    """Return one message, or None for an empty line, a continuation, or another facility's record."""
    if not raw.strip() or (raw.startswith(" ") and "=" in raw):  # kmsg keeps ` KEY=value` lines below a record
        return None
    if raw.startswith("{"):
        return _journal(raw)
    if found := _KMSG.fullmatch(raw):
        # Facility 0 is the kernel; anything else was written into /dev/kmsg by a program.
        return KernelLine(found[4], int(found[3]) / 1e6, True) if int(found[1]) >> 3 == 0 else None
    if found := _PRIORITY.match(raw):
        if int(found[1]) >> 3:
            return None
        raw = found[2]
    if found := _DECODED.match(raw):
        if found[1] != "kern":
            return None
        raw = found[3]
    return _timed(raw)


def _timed(raw: str) -> KernelLine:
    if found := _SECONDS.match(raw):
        return KernelLine(found[2], float(found[1]), True)
    if found := _CTIME.match(raw):
        return KernelLine(_untagged(found[2]), _epoch(found[1], "%a %b %d %H:%M:%S %Y"))
    if found := _ISO.match(raw):
        at = _epoch(f"{found[1]} {found[2]}", "%Y-%m-%d %H:%M:%S")
        if at is not None:
            at += float(f"0.{found[3] or 0}") - _offset_s(found[4] or "")
        return KernelLine(_untagged(found[5]), at)
    if found := _RFC3164.match(raw):  # no year in it: the time cannot be placed
        return KernelLine(_message(found[1], found[2] or "", found[3]))
    return KernelLine(raw.strip())


def _untagged(text: str) -> str:
    """Return what the kernel said in `host kernel: message`; another program's line keeps its name in front."""
    found = _TAGGED.match(text)
    if found is None or " " in text[: found.start(1) - 1] or text.startswith("NVRM: "):
        return text
    if found[1] != "kernel" and not found[2]:
        return text  # `infiniband rdmap79s0: ...` is the kernel's own, not a host and a program
    return _message(found[1], found[2] or "", found[3])


def _message(tag: str, pid: str, message: str) -> str:
    if tag != "kernel":
        return f"{tag}{pid}: {message}"
    inner = _SECONDS.match(message)
    return inner[2] if inner else message


def _journal(raw: str) -> KernelLine | None:
    try:
        record = json.loads(raw)
        message = record["MESSAGE"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(message, list):  # the journal gives text that is no UTF-8 as a list of bytes
        try:
            message = bytes(message).decode("utf-8", "replace")
        except (ValueError, TypeError):
            return None
    if record.get("_TRANSPORT", "kernel") != "kernel" or not isinstance(message, str):
        return None
    stamp = str(record.get("__REALTIME_TIMESTAMP", ""))
    return KernelLine(message, int(stamp) / 1e6 if stamp.isdigit() else None, False, str(record.get("_BOOT_ID", "")))


def _epoch(text: str, form: str) -> float | None:
    import time  # here, since the live path reads raw records only and strptime costs 5 ms at import
    from calendar import timegm

    try:
        return float(timegm(time.strptime(text, form)))
    except ValueError:
        return None


def _offset_s(zone: str) -> float:
    if zone in ("", "Z"):
        return 0.0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    return (-1.0 if zone[0] == "-" else 1.0) * (hours * 3600 + minutes * 60)


def kmsg_gap(records: Iterable[str]) -> bool:
    """Say whether raw records begin later than the boot: the first sequence number is not 0, so the ring has wrapped."""
    for raw in records:
        if found := _KMSG.fullmatch(raw):
            return int(found[2]) > 0
    return False


def same_boot(line: KernelLine, boot_id: str, boot_time_s: float | None) -> bool:
    """Say whether a message belongs to this boot, as far as can be told; what cannot be told counts as this boot's."""
    if line.boot_id == EARLIER:
        return False
    if line.boot_id and boot_id:
        return line.boot_id.replace("-", "") == boot_id.replace("-", "")
    if boot_time_s is not None and line.at_s is not None and not line.since_boot:
        return line.at_s >= boot_time_s - 1
    return True
