"""Words and columns that tools print, as numbers: sizes, percentages, times, tables with a header. Pure, never raise."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext.patterns import pattern

_SIZE = pattern(r"\s*(\d+(?:[.,]\d+)?)\s*([KMGTPE]?)(i?B)?\s*", 2)  # 2: re.IGNORECASE
_PERCENT = pattern(r"\s*(\d+(?:[.,]\d+)?)\s*%?\s*")
_ELAPSED = pattern(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")
_MAIL_DATE = pattern(r"(?:\w{3},? )?(\d{1,2}) (\w{3}) (\d{4}) (\d{2}):(\d{2}):(\d{2})(?: (?:GMT|UTC|\+0000))?")
_PAIR = pattern(r'([A-Za-z0-9_%:.-]+)="((?:[^"\\]|\\.)*)"')
_UNITS = "KMGTPE"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def size_bytes(text: object, unit: int = 1) -> float | None:
    """Return bytes for `1.7T`, `512 MiB`, `203056560` (in units of `unit` bytes) or a number; None for anything else."""
    if isinstance(text, bool):
        return None
    if isinstance(text, int | float):
        return float(text) * unit
    found = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    number = float(found[1].replace(",", "."))
    if found[2]:
        return number * 1024.0 ** (1 + _UNITS.index(found[2].upper()))
    return number if found[3] else number * unit


def percent(text: object) -> float | None:
    """Return the number in `92%` or `92`, None for `-` and every other word."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    found = _PERCENT.fullmatch(text) if isinstance(text, str) else None
    return float(found[1].replace(",", ".")) if found else None


def elapsed_s(text: str) -> float | None:
    """Return seconds for ps's etime (`1-02:11:09`, `00:52:10`, `52:10`) and etimes (`3130`), None for anything else."""
    if text.isascii() and text.isdecimal():
        return float(text)
    found = _ELAPSED.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def moment_s(value: object) -> float | None:
    """Return seconds since the epoch for ISO 8601, `16 Jul 2026 06:00:00 GMT` or a number, None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return None
    from calendar import timegm  # only where a time is read: hooks import this
    from datetime import datetime

    if (found := _MAIL_DATE.fullmatch(value.strip())) and found[2].lower() in _MONTHS:
        month = _MONTHS.index(found[2].lower()) + 1
        value = f"{found[3]}-{month:02d}-{int(found[1]):02d}T{found[4]}:{found[5]}:{found[6]}+00:00"
    try:
        return float(timegm(datetime.fromisoformat(value.strip().replace("Z", "+00:00")).utctimetuple()))
    except ValueError:
        return None


def pairs(line: str) -> dict[str, str]:
    """Return the fields of a `KEY="value"` line (lsblk -P, findmnt -P), keys in lower case."""
    return {found[1].lower(): found[2] for found in _PAIR.finditer(line)}


def rows(text: str, starts: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """Return the header's words and the lines below it, None where no line holds all words of `starts`."""
    lines = [line for line in text.splitlines() if line.strip()]
    for at, line in enumerate(lines):
        words = line.split()
        if all(word in words for word in starts):
            return words, lines[at + 1 :]
    return None


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return a few names for people: `a, b, c and 5 more`."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
