"""gres.conf and NodeName lines as text -> data. Pure; a line that cannot be read is named with file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_ext.errors import UsageError
from slurm_ext.gres.model import GresLine, NodeLine
from slurm_ext.slurm.hostlist import HostlistError, expand

#: GPUs of one line at most (gres.conf(5): Count with File is at most 1024).
MOST = 1024

_PAIR = re.compile(r'([A-Za-z_]+)=("[^"]*"|\S*)')
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def gres_lines(path: str, text: str) -> list[GresLine]:
    """Return the lines of a gres.conf. Raise UsageError for one that cannot be read."""
    found = []
    for where, pairs in _lines(path, text):
        if not pairs.keys() & {"nodename", "name", "autodetect"}:
            continue
        try:
            found.append(
                GresLine(
                    where,
                    tuple(expand(pairs.get("nodename", ""))),
                    pairs.get("name", "").lower(),
                    pairs.get("type", ""),
                    files(pairs.get("file", "")),
                    int(pairs.get("count", "0") or 0),
                    frozenset(numbers(pairs["cores"])) if pairs.get("cores") else None,
                    pairs.get("autodetect", "").lower(),
                )
            )
        except (HostlistError, ValueError) as exc:
            raise UsageError(f"{where}: {exc}", remedy="Correct the line, or leave the file out") from exc
    return found


def includes(text: str) -> list[str]:
    """Return the files that a configuration file includes, as they are written, relative to its own folder."""
    return [match[1] for match in re.finditer(r"^\s*include\s+(\S+)", text, re.IGNORECASE | re.MULTILINE)]


def node_lines(path: str, text: str) -> list[NodeLine]:
    """Return the NodeName lines of a slurm.conf or a part of it. Raise UsageError for one that cannot be read."""
    found = []
    for where, pairs in _lines(path, text):
        if "nodename" not in pairs:
            continue
        try:

            def number(key: str, pairs: dict[str, str] = pairs) -> int:
                return int(pairs.get(key) or 0)

            found.append(
                NodeLine(
                    where,
                    tuple(expand(pairs["nodename"])),
                    number("cpus"),
                    number("sockets"),
                    number("corespersocket"),
                    number("threadspercore"),
                    number("realmemory"),
                    pairs.get("state", "").upper(),
                    pairs.get("gres", ""),
                    tuple(word for word in pairs.get("feature", pairs.get("features", "")).split(",") if word),
                )
            )
        except (HostlistError, ValueError) as exc:
            raise UsageError(f"{where}: {exc}", remedy="Correct the line, or leave the file out") from exc
    return found


def numbers(text: str) -> list[int]:
    """Return the numbers of `0-47,96`. Raise ValueError for other text."""
    found: list[int] = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise ValueError(f"{text[:40]!r} is no list of numbers")
        low, high = int(match[1]), int(match[2] or match[1])
        found += range(low, high + 1)
    return found


def files(text: str) -> tuple[str, ...]:
    """Return the paths of `/dev/nvidia[0-3,5],/dev/x`. Raise ValueError for other text or more than MOST."""
    found: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        if not part:
            continue
        match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)", part)
        if match is None:
            if "[" in part or "]" in part:
                raise ValueError(f"{part[:60]!r} is no list of files")
            found.append(part)
            continue
        found += [f"{match[1]}{number}{match[3]}" for number in numbers(match[2])]
        if len(found) > MOST:
            raise ValueError(f"more than {MOST} files in one line")
    return tuple(found)


def _lines(path: str, text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (file and line, keys in lower case -> value) of each line that has any; `\\` at the end joins two lines."""
    began, whole = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.split(r"(?<!\\)#", line, maxsplit=1)[0].rstrip()
        began = began if whole else number
        if bare.endswith("\\"):
            whole += bare[:-1] + " "
            continue
        pairs = {match[1].lower(): match[2].strip('"') for match in _PAIR.finditer(whole + bare)}
        if pairs:
            yield f"{path}, line {began}", pairs
        whole = ""
