"""Hostlists as Slurm's own parser takes them (hostlist.c), and what stops it. Pure, bounded whatever the text.

Wider than `slurm.hostlist`, which refuses what no node of a real cluster is called: Slurm takes any letters, cuts at its own four
separators, reads numbers as C does, and looks for brackets from the end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: MAX_RANGE: hosts that one range may name.
MAX_RANGE = 65_536
#: MAX_RANGES: ranges that one pair of brackets may hold, and MAX_PREFIX_CNT: names that a pair before the last may make.
MAX_RANGES, MAX_PREFIXES = 262_144, 65_536
#: The largest number that a name may end in: an unsigned long of 64 bits.
MAX_NUMBER = (1 << 64) - 1

_SEPARATORS = "\t, \n"
_PART = re.compile(r"(?:[^,\t \n\[]|\[[^\]]*\])+")
#: Brackets in pairs, none within another: then a part is what stands between separators outside of them.
_PLAIN = re.compile(r"[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*")
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")
_TAIL = re.compile(r"[0-9]{20,}$")

_Ranges = list[tuple[int, int, int]]


class Hosts(NamedTuple):
    """The names of a hostlist, each once; `problem` is bad, open, large or too-many, and then there are no names.

    (But for `open` where a release closes the bracket by itself.)
    """

    names: list[str]
    problem: str = ""
    #: Text stands behind a last bracket.
    suffix: bool = False


def hosts(text: str, limit: int, *, closes: bool = False) -> Hosts:
    """Return what a hostlist names, at most `limit` names. `closes`: as before 23.02, where `n[1-` is a node called `n]`."""
    names: dict[str, None] = {}
    suffix = opened = False
    left = limit  # names that come again are work, too
    for part in _PART.findall(text) if _PLAIN.fullmatch(text) else _parts(text):
        if "[" not in part:
            names[part] = None
            left -= 1
            continue
        found, problem, behind = _expanded(part, left)
        suffix |= behind
        if problem == "open" and closes:
            opened = True
            head, _, rest = part.rpartition("[")
            found, problem = [f"{head}]" if head else rest], ""
        if problem:
            return Hosts([], problem, suffix)
        left -= len(found)
        names.update(dict.fromkeys(found))
    return Hosts([], "too-many", suffix) if left < 0 else Hosts(list(names), "open" if opened else "", suffix)


def _parts(text: str) -> list[str]:
    """Return the parts of text whose brackets do not match: a separator within a pair that does is none."""
    found: list[str] = []
    end, last_close, size = 0, text.rfind("]"), len(text)
    while True:
        while end < size and text[end] in _SEPARATORS:
            end += 1
        if end == size:
            return found
        start = looked = end
        while True:
            while end < size and text[end] not in _SEPARATORS:
                end += 1
            opened = text.find("[", looked, end + 1)
            if opened < 0 or opened > last_close or text.find("]", looked, opened) >= 0:
                break
            looked = text.find("]", opened) + 1
            if looked > end:
                end = looked
        found.append(text[start:end])


def _expanded(part: str, limit: int) -> tuple[list[str], str, bool]:
    """Return the names of one part, or the problem, and whether text stands behind its last bracket."""
    head, _, rest = part.rpartition("[")
    inside, closed, suffix = rest.partition("]")
    if not closed:
        return [], "open", False
    ranges, problem = _ranges(inside)
    if problem:
        return [], problem, bool(suffix)
    groups = [(ranges, suffix)]
    total = _count(ranges)
    while (opened := head.rfind("[")) >= 0 and (closing := head.rfind("]", opened)) >= 0:
        ranges, problem = _ranges(head[opened + 1 : closing])
        if not problem and _count(ranges) > MAX_PREFIXES:
            problem = "large"
        if problem and len(groups) > 1 and head[opened:].count(",") < MAX_RANGES:
            return [], "", bool(suffix)  # what is wrong so far in front costs its names, and no more
        if problem:
            return [], problem, bool(suffix)
        groups.append((ranges, head[closing + 1 :]))
        head = head[:opened]
        total *= _count(ranges)
        if total > limit:
            break
    if total > limit:
        return [], "too-many", bool(suffix)
    names = [head]
    for ranges, tail in reversed(groups):
        middles = [str(n).zfill(width) + tail for low, high, width in ranges for n in range(low, high + 1)]
        names = [name + middle for name in names for middle in middles]
    return names, "", bool(suffix)


def _count(ranges: _Ranges) -> int:
    return sum(high - low + 1 for low, high, _ in ranges)


def _ranges(text: str) -> tuple[_Ranges, str]:
    if text.count(",") >= MAX_RANGES:
        return [], "large"
    found: _Ranges = []
    for item in text.split(","):
        one = _range(item)
        if one is None:
            return [], "bad"
        low, high, _ = one
        # All numbers there are: C's sum of them overflows to none.
        if high - low == MAX_NUMBER:
            continue
        if high - low + 1 > MAX_RANGE:
            return [], "large"
        found.append(one)
    return found, ""


def _range(item: str) -> tuple[int, int, int] | None:
    """Return low, high and width of `3`, `3-5` or `3-`, as C's strtoul reads the numbers; None where it reads none."""
    first, _, second = item.partition("-")
    low = _NUMBER.match(first)
    if low is None or "x" in item or second.startswith("-"):
        return None
    number = _unsigned(low)
    if not second:
        return (number, number, len(first)) if low.end() == len(first) else None
    high = _NUMBER.match(second)
    if high is None or high.end() < len(second) or _unsigned(high) < number:
        return None
    return number, _unsigned(high), len(first)


def _unsigned(found: re.Match[str]) -> int:
    """Return a number as strtoul does: no larger than 64 bits hold, and a negative one from the end."""
    digits = found[2].lstrip("0")
    number = MAX_NUMBER if len(digits) > 20 else min(int(digits or "0"), MAX_NUMBER)
    return (MAX_NUMBER + 1 - number) % (MAX_NUMBER + 1) if found[1] == "-" and number < MAX_NUMBER else number


def overflow(name: str) -> int:
    """Return how many digits a name ends in where they are more than Slurm's parser can hold, else 0."""
    found = _TAIL.search(name)
    if found is None:
        return 0
    digits = found[0].lstrip("0")
    return len(found[0]) if len(digits) > 20 or int(digits or "0") > MAX_NUMBER else 0
