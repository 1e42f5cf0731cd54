"""Hostlists as Slurm writes them: `n[1-3,07-09]-ib,x[1-2]y[1-2]` to names and back, bounded whatever the text says.

Pure, standard library only: hooks import this. Configuration has its own reader that never expands (config/hostlist.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from slurm_ext.patterns import pattern

#: No cluster has more nodes than this; a text that names more is a mistake or an attack.
MAX_NAMES = 65_536
MAX_TEXT = 1 << 20

_NAME = pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_ALLOWED = pattern(r"[A-Za-z0-9._\-\[\],\s]*")
_RANGE = pattern(r"(\d{1,18})(?:-(\d{1,18}))?")
_LAST_NUMBER = pattern(r"(.*?)(\d{1,18})")


class HostlistError(ValueError):
    """The text is no hostlist, or it names too many nodes."""


def is_node_name(text: str) -> bool:
    """Say whether text may name one node: letters, digits, dot, dash, underscore, at most 253, none of them first but alphanumeric."""
    return _NAME.fullmatch(text) is not None


def expand(text: str, *, limit: int = MAX_NAMES) -> list[str]:
    """Return the names of a hostlist in the order written, each once; an empty text and Slurm's `(null)` have none.

    Raise HostlistError where it is none or has more than `limit` names; the work done is bounded by `limit` too.
    """
    if text.strip() in ("", "(null)"):
        return []
    if len(text) > MAX_TEXT or not _ALLOWED.fullmatch(text):
        raise HostlistError("not a hostlist: it is too long or has characters that no node name has")
    names: dict[str, None] = {}
    for part in _split(text):
        for name in _expand_part(part, limit):
            names[name] = None
            if len(names) > limit:
                raise HostlistError(f"more than {limit} names")
    return list(names)


def _split(text: str) -> Iterator[str]:
    """Yield the comma-separated parts, commas inside brackets kept."""
    depth, start = 0, 0
    for position, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        if depth not in (0, 1):
            raise HostlistError("brackets do not match")
        if depth == 0 and letter == ",":
            if part := text[start:position].strip():
                yield part
            start = position + 1
    if depth:
        raise HostlistError("brackets do not match")
    if part := text[start:].strip():
        yield part


def _expand_part(part: str, limit: int) -> Iterator[str]:
    pieces = re.split(r"\[([^\]]*)\]", part) if "[" in part else [part]
    # Odd pieces stood in brackets. The count is known before anything is built, so `[0-99][0-99][0-99]...` costs nothing.
    dimensions = [_ranges(piece) if number % 2 else None for number, piece in enumerate(pieces)]
    total = 1
    for ranges in dimensions:
        if ranges is not None:
            total *= sum(high - low + 1 for low, high, _ in ranges)
            if total > limit:
                raise HostlistError(f"more than {limit} names in {part[:80]}")
    heads = [""]
    for piece, ranges in zip(pieces, dimensions, strict=True):
        tails = (
            [piece] if ranges is None else [str(n).zfill(w) for low, high, w in ranges for n in range(low, high + 1)]
        )
        heads = [head + tail for head in heads for tail in tails]
    for name in heads:
        if not is_node_name(name):
            raise HostlistError(f"{name[:80]!r} is no node name")
        yield name


def _ranges(text: str) -> list[tuple[int, int, int]]:
    """Return (low, high, width of the lower bound) for each item between brackets."""
    found = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise HostlistError(f"[{text[:80]}] is no list of numbers")
        low, high = match.group(1), match.group(2) or match.group(1)
        if int(high) < int(low):
            raise HostlistError(f"[{text[:80]}] runs backwards")
        found.append((int(low), int(high), len(low)))
    return found


def shortened(names: Iterable[str], most: int = 200) -> str:
    """Return names as one hostlist for people, cut where it is longer than so many letters; as `fold`."""
    folded = fold(names)
    return folded if len(folded) <= most else folded[: most - 3] + "..."


def fold(names: Iterable[str]) -> str:
    """Return names as one hostlist that every Slurm version reads: sorted, each once, the last number folded into ranges.

    Only a number at the end of a name is folded: Slurm's own parser refuses text behind a bracket. Raise HostlistError for
    text that is no node name.
    """
    groups: dict[str, list[str]] = {}
    whole: list[str] = []
    for name in sorted(set(names)):
        if not is_node_name(name):
            raise HostlistError(f"{name[:80]!r} is no node name")
        match = _LAST_NUMBER.fullmatch(name)
        if match and match.group(1):
            groups.setdefault(match.group(1), []).append(match.group(2))
        else:
            whole.append(name)
    parts = [(name, name) for name in whole]
    for prefix, numbers in groups.items():
        runs = _runs(sorted(numbers, key=lambda digits: (int(digits), len(digits))))
        texts = [low if low == high else f"{low}-{high}" for low, high in runs]
        alone = len(texts) == 1 and "-" not in texts[0]
        parts.append((prefix, prefix + texts[0] if alone else f"{prefix}[{','.join(texts)}]"))
    return ",".join(text for _, text in sorted(parts))


def _runs(numbers: list[str]) -> list[tuple[str, str]]:
    """Return sorted digit strings as (first, last) runs that expand to exactly them, zero padding included."""
    runs: list[tuple[str, str]] = []
    for digits in numbers:
        if runs:
            low, high = runs[-1]
            if digits == str(int(high) + 1).zfill(len(low)) and high == str(int(high)).zfill(len(low)):
                runs[-1] = (low, digits)
                continue
        runs.append((digits, digits))
    return runs
