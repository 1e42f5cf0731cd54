"""gres.conf and NodeName lines as text -> data. Pure, bounded; a line that cannot be read is named with file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from slurm_ext.errors import UsageError
from slurm_ext.gres.model import GresLine, NodeLine
from slurm_ext.patterns import pattern
from slurm_ext.slurm.hostlist import HostlistError, expand

#: GPUs of one line at most (gres.conf(5): Count with File is at most 1024), and the largest number of a core.
MOST, MOST_CORES = 1024, 65_536

#: Node names of one file at most, with repeats: a cluster of any size, with a line for each of its GPUs.
MOST_NAMES = 1_048_576

#: A key is short: a line of letters without end is read in its own time.
_PAIR = pattern(r'(?<![A-Za-z_])([A-Za-z_]{1,40})[ \t]*=[ \t]*("[^"]*"|\S*)')
_RANGE = pattern(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_COUNT = pattern(r"([0-9]{1,12})([kmgtp]?)", re.IGNORECASE)
_SUFFIXES = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}

#: One word of a node's Gres=: name, type and number, and what Slurm puts behind (sockets, indexes).
_WORD = pattern(r"([A-Za-z]\w*)((?::[^:,()]*){0,3})(?:\([^()]*\))?")


#: What gres.conf may hold (interfaces/gres.c of Slurm 22.05 to 26.05), and the words of AutoDetect.
_KEYS = frozenset(
    ("autodetect", "count", "cores", "cpus", "file", "files", "flags", "link", "links", "multiplefiles")
) | {"name", "nodename", "type"}
_AUTODETECT = frozenset(("nvml", "nvidia", "nrt", "oneapi", "rsmi", "off", "full", ""))


def gres_lines(path: str, text: str) -> list[GresLine]:
    """Return the lines of a gres.conf. Raise UsageError for one that cannot be read."""
    found, names = [], 0
    _all_read(path, text)
    for where, pairs in _lines(path, text):
        if not pairs.keys() & {"nodename", "name", "autodetect"}:
            continue
        try:
            line = GresLine(
                where,
                tuple(expand(pairs.get("nodename", ""))),
                pairs.get("name", "").lower(),
                pairs.get("type", ""),
                files(pairs.get("file", "") or pairs.get("files", "")),
                count(pairs.get("count", "")),
                frozenset(numbers(cores)) if (cores := pairs.get("cores") or pairs.get("cpus")) else None,
                pairs.get("autodetect", "").lower(),
                "multiplefiles" in pairs,
            )
        except (HostlistError, ValueError) as exc:
            raise UsageError(f"{where}: {exc}", remedy="Correct the line, or leave the file out") from exc
        found.append(line)
        names += len(line.nodes)
        if names > MOST_NAMES:
            raise UsageError(f"{where}: the file names more than {MOST_NAMES} nodes", remedy="Is it a gres.conf?")
    return found


def _all_read(path: str, text: str) -> None:
    """Raise UsageError for a line of gres.conf at which slurmd ends: text that is no key and value, or a key that it does not know."""
    remedy = "Correct the line: slurmd does not start with it"
    for where, whole in _whole_lines(path, text):
        if whole.lstrip().lower().startswith("include "):
            continue
        if rest := _PAIR.sub(" ", whole).strip():
            raise UsageError(f"{where}: {rest[:60]!r} is nothing that Slurm reads", remedy=remedy)
        pairs = {match[1].lower(): match[2].strip('"').lower() for match in _PAIR.finditer(whole)}
        if unknown := sorted(pairs.keys() - _KEYS):
            raise UsageError(f"{where}: gres.conf has no key {unknown[0]}", remedy=remedy)
        if (found := pairs.get("autodetect", "off")) not in _AUTODETECT:
            raise UsageError(
                f"{where}: AutoDetect={found}: Slurm knows {', '.join(sorted(_AUTODETECT))}", remedy=remedy
            )


def includes(text: str) -> list[str]:
    """Return the files that a configuration file includes, as they are written, relative to its own folder."""
    return [match[1] for match in re.finditer(r"^[ \t]*include[ \t]+(\S+)", text, re.IGNORECASE | re.MULTILINE)]


def node_lines(path: str, text: str) -> list[NodeLine]:
    """Return the NodeName lines of a slurm.conf or a part of it. Raise UsageError for one that cannot be read.

    What a line of NodeName=DEFAULT says holds for those below it.
    """
    found, names = [], 0
    default: dict[str, str] = {}
    for where, given in _lines(path, text):
        if "nodename" not in given:
            continue
        if given["nodename"].upper() == "DEFAULT":
            default |= given
            continue
        pairs = default | given

        def number(*keys: str, pairs: dict[str, str] = pairs) -> int:
            return next((count(pairs[key]) for key in keys if pairs.get(key)), 0)

        try:
            boards = number("boards") or 1
            line = NodeLine(
                where,
                tuple(expand(pairs["nodename"])),
                number("cpus", "procs"),
                number("sockets") or boards * number("socketsperboard"),
                number("corespersocket"),
                number("threadspercore"),
                number("realmemory"),
                pairs.get("state", "").upper(),
                pairs.get("gres", ""),
                tuple(word for word in (pairs.get("feature") or pairs.get("features", "")).split(",") if word),
            )
        except (HostlistError, ValueError) as exc:
            raise UsageError(f"{where}: {exc}", remedy="Correct the line, or leave the file out") from exc
        found.append(line)
        names += len(line.nodes)
        if names > MOST_NAMES:
            raise UsageError(f"{where}: the file names more than {MOST_NAMES} nodes", remedy="Is it a slurm.conf?")
    return found


def gpus_in(gres: str) -> dict[str, int]:
    """Return how many GPUs of each type a node's Gres= offers: `gpu:h100:8(S:0-1)` is {h100: 8}, `gpu:2` is {"": 2}, `gpu` one.

    Other resources, and words of another form, count for nothing.
    """
    found: dict[str, int] = {}
    for word in _parts(gres, "(", ")"):
        match = _WORD.fullmatch(word)
        if match is None or match[1].lower() != "gpu":
            continue
        parts = [part for part in match[2].split(":")[1:] if part and part != "no_consume"]
        has_number = bool(parts) and _COUNT.fullmatch(parts[-1]) is not None
        kind = parts[0].lower() if len(parts) > has_number else ""
        found[kind] = found.get(kind, 0) + (count(parts[-1]) if has_number else 1)
    return found


def count(text: str) -> int:
    """Return the number of `8` or `10G` (of 1024s), 0 for an empty text. Raise ValueError for other text."""
    if not text:
        return 0
    match = _COUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no number")
    return int(match[1]) << (10 * _SUFFIXES[match[2].lower()])


def numbers(text: str) -> list[int]:
    """Return the numbers of `0-47,96`. Raise ValueError for other text, or for numbers that no core has."""
    found: set[int] = set()
    work = 0
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise ValueError(f"{text[:40]!r} is no list of numbers")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or high >= MOST_CORES:
            raise ValueError(f"{item.strip()} is no range of numbers below {MOST_CORES}")
        work += high - low + 1
        if work > MOST_CORES:
            raise ValueError(f"more than {MOST_CORES} numbers")
        found.update(range(low, high + 1))
    return sorted(found)


def ranges(values: Iterable[int]) -> str:
    """Return numbers as `0-47,96`."""
    ordered, found = sorted(set(values)), list[str]()
    start = 0
    for index in range(1, len(ordered) + 1):
        if index == len(ordered) or ordered[index] != ordered[index - 1] + 1:
            low, high = ordered[start], ordered[index - 1]
            found.append(str(low) if low == high else f"{low}-{high}")
            start = index
    return ",".join(found)


def files(text: str) -> tuple[str, ...]:
    """Return the paths of `/dev/nvidia[0-3,5],/dev/x`. Raise ValueError for other text or more than MOST."""
    found: list[str] = []
    for part in _parts(text, "[", "]"):
        match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)", part)
        if match is None and ("[" in part or "]" in part):
            raise ValueError(f"{part[:60]!r} is no list of files")
        for path in [part] if match is None else (f"{match[1]}{n}{match[3]}" for n in _suffixes(match[2])):
            found.append(path)
            if len(found) > MOST:
                raise ValueError(f"more than {MOST} files in one line")
    return tuple(found)


def _suffixes(text: str) -> Iterator[str]:
    """Yield the numbers of `0-3,08` in the order written, as wide as they are written."""
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{text[:40]!r} is no list of numbers")
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            yield str(number).zfill(len(match[1]))


def _parts(text: str, opening: str, closing: str) -> Iterator[str]:
    """Yield what stands between commas, those inside brackets kept; nothing for an empty part."""
    part, depth = list[str](), 0
    for piece in re.split(rf"([,{re.escape(opening + closing)}])", text):
        depth += (piece == opening) - (piece == closing)
        if piece != "," or depth > 0:
            part.append(piece)
        elif whole := "".join(part).strip():
            yield whole
            part = []
        else:
            part = []
    if whole := "".join(part).strip():
        yield whole


def _lines(path: str, text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (file and line, keys in lower case -> value) of each line that has any."""
    for where, whole in _whole_lines(path, text):
        if pairs := {match[1].lower(): match[2].strip('"') for match in _PAIR.finditer(whole)}:
            yield where, pairs


def _whole_lines(path: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield (file and line, text) of each line, without comments; `\\` at the end joins two lines."""
    began, parts = 0, list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        bare = re.split(r"(?<!\\)#", line, maxsplit=1)[0].rstrip()
        began = began if parts else number
        if bare.endswith("\\"):
            parts.append(bare[:-1])
            continue
        whole = " ".join([*parts, bare])
        parts = []
        if whole.strip():
            yield f"{path}, line {began}", whole
