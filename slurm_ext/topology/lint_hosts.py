"""Hostlists as Slurm's own parser takes them (hostlist.c), and what stops it. Pure, bounded whatever the text.

Wider than `slurm.hostlist`, which refuses what no node of a real cluster is called: Slurm takes any letters.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: MAX_RANGE: hosts that one range may name.
MAX_RANGE = 65_536
#: MAX_RANGES: ranges that one pair of brackets may hold, and MAX_PREFIX_CNT: names that all brackets but the last may make.
MAX_RANGES, MAX_PREFIXES = 262_144, 65_536
#: The largest number that a name may end in: an unsigned long of 64 bits.
MAX_NUMBER = (1 << 64) - 1

_PART = re.compile(r"(?:[^,\s\[]|\[[^\]]*\])+")
_BRACKET = re.compile(r"\[([^\]]*)\]")
_ITEM = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_TAIL = re.compile(r"[0-9]{20,}$")


class Hosts(NamedTuple):
    """The names of a hostlist, each once; `problem` is bad, open, large or too-many, and then there are no names."""

    names: list[str]
    problem: str = ""
    #: Text stands behind a last bracket.
    suffix: bool = False


def hosts(text: str, limit: int) -> Hosts:
    """Return what a hostlist names, at most `limit` names."""
    if text.count("[") != text.count("]"):
        return Hosts([], "open" if text.count("[") > text.count("]") else "bad")
    names: dict[str, None] = {}
    suffix = False
    left = limit  # names that come again are work, too
    for part in _PART.findall(text):
        if "[" not in part:
            names[part] = None
            left -= 1
            continue
        pieces = _BRACKET.split(part)
        suffix |= pieces[-1] != ""
        found, problem = _expanded(pieces, left)
        if problem:
            return Hosts([], problem, suffix)
        left -= len(found)
        names.update(dict.fromkeys(found))
    return Hosts([], "too-many", suffix) if left < 0 else Hosts(list(names), "", suffix)


def _expanded(pieces: list[str], limit: int) -> tuple[list[str], str]:
    heads = [""]
    dimensions: list[list[tuple[int, int, int]]] = []
    total = 1
    for piece in pieces[1::2]:
        ranges, problem = _ranges(piece)
        if problem:
            return [], problem
        dimensions.append(ranges)
        if total > MAX_PREFIXES:
            return [], "large"
        total *= sum(high - low + 1 for low, high, _ in ranges)
        if total > limit:
            return [], "too-many"
    for number, piece in enumerate(pieces):
        if number % 2:
            tails = [str(n).zfill(w) for low, high, w in dimensions[number // 2] for n in range(low, high + 1)]
            heads = [head + tail for head in heads for tail in tails]
        elif piece:
            heads = [head + piece for head in heads]
    return heads, ""


def _ranges(text: str) -> tuple[list[tuple[int, int, int]], str]:
    found: list[tuple[int, int, int]] = []
    if text.count(",") >= MAX_RANGES:
        return [], "large"
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            return [], "bad"
        low, high = int(match[1]), int(match[2] or match[1])
        if high - low + 1 > MAX_RANGE:
            return [], "large"
        found.append((low, high, len(match[1])))
    return found, ""


def overflow(name: str) -> int:
    """Return how many digits a name ends in where they are more than Slurm's parser can hold, else 0."""
    found = _TAIL.search(name)
    if found is None:
        return 0
    digits = found[0].lstrip("0")
    return len(found[0]) if len(digits) > 20 or int(digits or "0") > MAX_NUMBER else 0
