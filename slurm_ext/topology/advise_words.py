"""Times and counts as advice says them. Pure."""

from __future__ import annotations


def many(number: int, word: str, plural: str = "") -> str:
    """Return `1 node`, `2 nodes`; `plural` is one that is not made with an s."""
    return f"{number} {word if number == 1 else plural or word + 's'}"


def leaves(number: int) -> str:
    """Return `1 leaf`, `2 leaves`."""
    return many(number, "leaf", "leaves")


def ask_time(seconds: float) -> str:
    """Return a time as `--switches=1@TIME` takes it: minutes:seconds, hours:minutes:seconds, or days-hours:minutes:seconds."""
    whole = int(seconds)
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def lasting(seconds: float) -> str:
    """Return how long in words: `now` for nothing, else the two largest units, rounded up to minutes."""
    if seconds <= 0:
        return "now"
    minutes = -(-int(-(-seconds // 1)) // 60)
    days, hours, rest = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {rest} min" if hours else f"{rest} min"
