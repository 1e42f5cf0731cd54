"""Is this node in that hostlist? Answered without expanding it, so `n[0-9999999]` costs nothing. Pure, standard library only.

Rooms that need the names themselves expand them elsewhere; configuration lies below Slurm's room and cannot ask it.
"""

from __future__ import annotations

import re

from slurm_ext.patterns import pattern

_RANGES = pattern(r"\d+(-\d+)?(,\d+(-\d+)?)*")


class HostlistError(ValueError):
    """The text is no hostlist."""


def split_hostlist(text: str) -> list[str]:
    """Return the comma-separated parts of a hostlist, commas in brackets kept. Raise HostlistError for broken text."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
        if depth not in (0, 1):
            raise HostlistError("brackets do not match")
    if depth:
        raise HostlistError("brackets do not match")
    parts = [part.strip() for part in [*parts, text[start:]] if part.strip()]
    for part in parts:
        if re.search(r"[^A-Za-z0-9._\-\[\],]", part):
            raise HostlistError(f"{part!r} has characters that no node name has")
        for inside in re.findall(r"\[([^\]]*)\]", part):
            if not _RANGES.fullmatch(inside):
                raise HostlistError(f"[{inside}] is no list of numbers")
    return parts


def contains(text: str, name: str) -> bool:
    """Say whether the hostlist holds the name. Raise HostlistError for broken text."""
    return any(_holds(part, name) for part in split_hostlist(text))


def _holds(part: str, name: str) -> bool:
    pieces = re.split(r"\[([^\]]*)\]", part)
    form = "".join(re.escape(piece) if number % 2 == 0 else r"(\d+)" for number, piece in enumerate(pieces))
    found = re.fullmatch(form, name)
    return found is not None and all(
        _in_ranges(inside, digits) for inside, digits in zip(pieces[1::2], found.groups(), strict=True)
    )


def _in_ranges(inside: str, digits: str) -> bool:
    for item in inside.split(","):
        low, _, high = item.partition("-")
        # n[08-10] means n08, n09, n10: the width of the lower bound is the least width; n[8-10] has no n08.
        least = len(low)
        padded = least <= len(digits) <= 18 and (len(digits) == least or not digits.startswith("0"))
        if padded and int(low) <= int(digits) <= int(high or low):
            return True
    return False
