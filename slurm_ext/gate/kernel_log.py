"""Kernel messages in whatever form a tool printed them, as KernelLine. Pure parsers that never raise on odd text.

Forms: raw /dev/kmsg records (Documentation/ABI/testing/dev-kmsg), dmesg in every time style of dmesg(1), `journalctl -k`
as text and as JSON lines (systemd.journal-fields(7)), syslog files (RFC 3164 and RFC 3339 time), and bare messages.
Only what the kernel itself said counts as a driver's message: a user can write `NVRM: Xid` with logger(1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from slurm_ext.gate.model import KernelLine
from slurm_ext.patterns import pattern

#: The kernel keeps no message longer than this (LOG_LINE_MAX, PRINTKRB_RECORD_MAX), so what is longer is cut here: no rule then
#: meets a line that takes it long. A raw record is longer, since it escapes bytes and has fields below; so is one of JSON.
TEXT_CHARS, RECORD_CHARS, JSON_CHARS = 1024, 8192, 64 << 10

_KMSG = pattern(r"(\d{1,5}),(\d{1,20}),(\d{1,20}),[^;]*;(.*)", re.DOTALL)
_SECONDS = pattern(r"\[\s*(\d{1,12}\.\d{1,12})\]\s?(.*)", re.DOTALL)
_CTIME = pattern(r"\[?(\w{3} \w{3} [ \d]\d) (\d\d):(\d\d):(\d\d) (\d{4})\]?\s(.*)", re.DOTALL)
_ISO = pattern(
    r"\[?(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?\]?\s+(.*)", re.DOTALL
)
_DECODED = pattern(r"([a-z]{1,12}\d?)\s*:(\w{1,12})\s*:\s(.*)", re.DOTALL)
_PRIORITY = pattern(r"<(\d{1,5})>(.*)", re.DOTALL)
_RFC3164 = pattern(
    r"\w{3} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})? (?:\S+ )?([\w./-]+)(\[[\w/.@-]{1,64}\])?: (.*)", re.DOTALL
)
#: RFC 5424: version, time, host, program, process, message id, structured data.
_RFC5424 = pattern(r"1 \S+ \S+ (\S+) (\S+) \S+ (?:-|\[(?:[^\]\\]|\\.)*\]) ?(?:\ufeff)?(.*)", re.DOTALL)
_TAGGED = pattern(r"\S+ ([\w./-]+)(\[[\w/.@-]{1,64}\])?: (.*)", re.DOTALL)
#: What stands behind the seconds: the task or processor that printed (CONFIG_PRINTK_CALLER), or journalctl's host and tag.
_CALLER = pattern(r"\[\s*[TC]\d{1,10}\]\s?(.*)", re.DOTALL)
_KERNELS = pattern(r"(?:[\w.-]{1,64} )?kernel(?:\[n/a\])?: (.*)", re.DOTALL)
#: dmesg's time styles without a time of their own (`reltime`, `delta`), and journalctl's short-full and short-unix.
_DELTA = pattern(r"(\[[^\]<\[]{0,40}?)\s?<\s*\d{1,12}\.\d{1,12}>\]", needs="<")
_RELATIVE = pattern(r"\[(?:\w{3}[ \d]?\d \d\d:\d\d|\s*\+\d{1,12}\.\d{1,12}|)\]\s?(.*)", re.DOTALL)
_FULL = pattern(r"\w{3} (\d{4}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))? (\S+) (.*)", re.DOTALL)
_UNIX = pattern(r"(\d{9,10}\.\d{6}) (.*)", re.DOTALL)
#: `dmesg --color=always` (ECMA-48, select graphic rendition and erase in line).
_COLOURS = pattern(r"\x1b\[[\d;]{0,20}[mK]")

#: Trusted fields that a record of the kernel may have, too.
_OF_KERNEL = (
    "_BOOT_ID",
    "_MACHINE_ID",
    "_HOSTNAME",
    "_SOURCE_MONOTONIC_TIMESTAMP",
    "_SOURCE_BOOTTIME_TIMESTAMP",
    "_RUNTIME_SCOPE",
)

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
    # By line feeds alone: other marks of a line's end are text, and what a user wrote behind one is no line of its own.
    for raw in text.split("\n"):
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


def is_record(raw: str) -> bool:
    """Return whether a text has the form of a raw record of /dev/kmsg, the kernel's or a program's."""
    return _KMSG.fullmatch(raw[:RECORD_CHARS]) is not None


def parse_line(raw: str) -> KernelLine | None:
    """Return one message, or None for an empty line, a continuation, or another facility's record."""
    if raw[:1] == "\0":  # a file system that lost the end of a file at a crash
        raw = raw.lstrip("\0")
    if not raw or raw.isspace():
        return None
    if raw[0] == "{":
        return _journal(raw)
    raw = raw[:RECORD_CHARS].rstrip("\r\n").removeprefix("\ufeff")
    if "\x1b" in raw:
        raw = _COLOURS.sub("", raw)
    line = _by_first(raw)
    if line is not None and len(line.text) > TEXT_CHARS:
        return line._replace(text=line.text[:TEXT_CHARS])
    return line


def _by_first(raw: str) -> KernelLine | None:
    """Return what a line says, by what it begins with: each form has its own."""
    first = raw[:1]
    if first.isspace():
        # kmsg keeps ` KEY=value` lines below a record; and what journalctl indents goes on with the line before, whoever
        # said that: it is nobody's new message.
        return None if first == " " and "=" in raw else KernelLine(raw.rstrip())
    if first.isdecimal() and (found := _KMSG.fullmatch(raw)):
        # Facility 0 is the kernel; anything else was written into /dev/kmsg by a program.
        return KernelLine(found[4], int(found[3]) / 1e6, True) if int(found[1]) >> 3 == 0 else None
    if first == "<" and (found := _PRIORITY.fullmatch(raw)):
        if int(found[1]) >> 3:
            return None
        raw = found[2]
        if found := _RFC5424.fullmatch(raw):
            return KernelLine(_message(found[1], "" if found[2] == "-" else f"[{found[2]}]", found[3]))
        first = raw[:1]
    if first.islower() and (found := _DECODED.fullmatch(raw)):
        if found[1] != "kern":
            return None
        raw = found[3]
    return _timed(raw)


def _timed(raw: str) -> KernelLine:
    first = raw[:1]
    if first == "[" and (found := _SECONDS.fullmatch(raw)):
        return KernelLine(_bare(found[2]), float(found[1]), True)
    if first == "[" and "<" in raw[:48] and (found := _DELTA.match(raw)):
        return _timed(f"{found[1]}]{raw[found.end() :]}")
    if (first == "[" or first.isdecimal()) and (found := _ISO.fullmatch(raw)):
        at = _epoch(found[1], "%Y-%m-%d", found[2], found[3], found[4])
        if at is not None:
            at += float(f"0.{found[5] or 0}") - _offset_s(found[6] or "")
        return KernelLine(_untagged(found[7]), at)
    if first == "[" or first.isupper():
        if found := _CTIME.fullmatch(raw):
            at = _epoch(f"{found[1]} {found[5]}", "%a %b %d %Y", found[2], found[3], found[4])
            return KernelLine(_untagged(found[6]), at)
        if found := _RFC3164.fullmatch(raw):  # no year in it: the time cannot be placed
            return KernelLine(_message(found[1], found[2] or "", found[3]))
    return _seldom(raw, first)


def _seldom(raw: str, first: str) -> KernelLine:
    """Return a line of the forms that are asked for by an option only, else the line as it stands."""
    if first == "[":
        if found := _RELATIVE.fullmatch(raw):
            return KernelLine(_bare(found[1]))
    elif first.isdecimal() and (found := _UNIX.fullmatch(raw)):
        return KernelLine(_untagged(found[2]), float(found[1]))
    elif first.isupper() and raw[4:5].isdecimal() and (found := _FULL.fullmatch(raw)):
        at = _epoch(found[1], "%Y-%m-%d", found[2], found[3], found[4]) if found[6] in ("UTC", "GMT") else None
        return KernelLine(_untagged(found[7]), at)
    return KernelLine(raw.rstrip())


def _bare(text: str) -> str:
    """Return a message without the caller, or the host and the kernel's tag, that stand before it."""
    if text[:1] == "[" and (found := _CALLER.match(text)):
        text = found[1]
    if "kernel" in text[:80] and (found := _KERNELS.match(text)):
        return found[1]
    return text


def _untagged(text: str) -> str:
    """Return what the kernel said in `host kernel: message`; another program's line keeps its name in front."""
    found = _TAGGED.match(text)
    if found is None or " " in text[: found.start(1) - 1] or text.startswith("NVRM: "):
        return text
    if found[1] != "kernel" and not found[2]:
        return text  # `infiniband rdmap79s0: ...` is the kernel's own, not a host and a program
    return _message(found[1], found[2] or "", found[3])


def _message(tag: str, pid: str, message: str) -> str:
    if tag != "kernel" or pid not in ("", "[n/a]"):  # the kernel is no process
        return f"{tag}{pid}: {message}"
    inner = _SECONDS.match(message)
    return inner[2] if inner else message


def _journal(raw: str) -> KernelLine | None:
    try:
        record = json.loads(raw) if len(raw) <= JSON_CHARS else {}
        message = record["MESSAGE"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(message, list):  # the journal gives text that is no UTF-8 as a list of bytes
        try:
            message = bytes(message).decode("utf-8", "replace")
        except (ValueError, TypeError):
            return None
    if not isinstance(message, str) or not _is_kernels(record):
        return None
    stamp = str(record.get("__REALTIME_TIMESTAMP", ""))
    at = int(stamp) / 1e6 if stamp.isdecimal() and len(stamp) <= 20 else None
    return KernelLine(message[:TEXT_CHARS], at, False, str(record.get("_BOOT_ID", ""))[:64])


def _is_kernels(record: Mapping[str, object]) -> bool:
    """Say whether a record of the journal is the kernel's. Where its transport was not asked for, no other trusted field (they
    begin with one underscore, systemd.journal-fields(7)) may tell of a process."""
    if "_TRANSPORT" in record:
        return record["_TRANSPORT"] == "kernel"
    trusted = (name for name in record if name.startswith("_") and not name.startswith("__"))
    return record.get("SYSLOG_IDENTIFIER", "kernel") == "kernel" and all(name in _OF_KERNEL for name in trusted)


#: Days that were read already, as seconds since the epoch: a log has few of them, and reading one takes long.
_DAYS: dict[str, float | None] = {}


def _epoch(day: str, form: str, hours: str, minutes: str, seconds: str) -> float | None:
    if day not in _DAYS:
        import time  # here, since the live path reads raw records only and strptime costs 5 ms at import
        from calendar import timegm

        if len(_DAYS) > 1000:
            _DAYS.clear()
        try:
            _DAYS[day] = float(timegm(time.strptime(day, form)))
        except ValueError:
            _DAYS[day] = None
    began = _DAYS[day]
    hour, minute, second = int(hours), int(minutes), int(seconds)
    if began is None or hour > 23 or minute > 59 or second > 61:
        return None
    return began + hour * 3600 + minute * 60 + second


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
