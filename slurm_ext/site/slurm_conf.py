"""Reads slurm.conf as people wrote it, without our own fragment: what does the site set itself? Pure but for `collect`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

#: The keys install has to know about, in slurm.conf(5)'s spelling.
KEYS = (
    "Prolog",
    "Epilog",
    "TaskProlog",
    "PrologFlags",
    "SchedulerParameters",
    "HealthCheckProgram",
    "ClusterName",
    "SlurmctldHost",
)

_MAX_DEPTH = 8
_PAIR = re.compile(r"(\w+)\s*=\s*(\"[^\"]*\"|\S*)")


def read(text: str, open_include: Callable[[str], str | None], *, skip: str = "", depth: int = 0) -> dict[str, str]:
    """Return the KEYS that a slurm.conf sets, the last value of each, following Include lines but the file `skip`.

    `open_include` returns an included file's text, or None where there is none. An included `skip` shows as key `Include`.
    """
    found: dict[str, str] = {}
    spelling = {key.lower(): key for key in KEYS}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        line = re.split(r"(?<!\\)#", line, maxsplit=1)[0].strip()
        if include := re.fullmatch(r"(?i)include\s+(\S+)", line):
            if os.path.normpath(include.group(1)) == os.path.normpath(skip):
                found["Include"] = skip
            elif depth < _MAX_DEPTH and (inner := open_include(include.group(1))) is not None:
                found.update(read(inner, open_include, skip=skip, depth=depth + 1))
            continue
        pairs = _PAIR.findall(line)
        # A node or partition line is full of words that mean other things there.
        if pairs and pairs[0][0].lower() in ("nodename", "partitionname", "nodeset", "downnodes", "switchname"):
            continue
        for word, value in pairs:
            if word.lower() in spelling:
                found[spelling[word.lower()]] = value.strip('"')
    return found


def collect(path: str, *, skip: str) -> Mapping[str, str]:
    """Return what the slurm.conf at `path` sets. Raise OSError where it cannot be read."""

    def open_include(name: str) -> str | None:
        full = name if os.path.isabs(name) else os.path.join(os.path.dirname(path), name)
        try:
            with open(full, encoding="utf-8", errors="replace") as stream:
                return stream.read()
        except OSError:
            return None

    with open(path, encoding="utf-8", errors="replace") as stream:
        return read(stream.read(), open_include, skip=skip)


def merged(value: str, wanted: tuple[str, ...]) -> str:
    """Return a comma list with the wanted words added that it lacks (compared without case), or the list itself."""
    words = [word for word in value.split(",") if word and word.lower() not in ("none", "(null)")]
    have = {word.lower() for word in words}
    return ",".join([*words, *(word for word in wanted if word.lower() not in have)])
