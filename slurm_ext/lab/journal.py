"""What `up` is about to make, one JSON line each, flushed to disk before it is made: the next `down` relies on nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

NAME = "journal.jsonl"


def intend(directory: str, kind: str, **what: Any) -> None:
    """Write down that something outside the folder, or a process, is about to exist: kind is lab, link, process, cgroup."""
    line = json.dumps({"make": kind, **what}) + "\n"
    descriptor = os.open(Path(directory) / NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(directory: str) -> list[dict[str, Any]]:
    """Return all lines, oldest first; a last line cut by a crash was never acted upon and is left out."""
    try:
        text = (Path(directory) / NAME).read_text()
    except FileNotFoundError:
        return []
    entries = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries
