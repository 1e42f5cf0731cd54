"""What burn-ins measured on this node, one JSON line each: appended by the agent, read by `fmslurm burnin history`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_ext.errors import UntrustedFileError

NAME = "burnin-history.jsonl"

#: When the file is larger, its older half is dropped: a node that is gated every hour stays below this for years.
MAX_BYTES = 8 << 20


def append(state_dir: str, line: Mapping[str, Any]) -> None:
    """Append one line in one write. Raise UntrustedFileError for a file that others may write."""
    os.makedirs(state_dir, mode=0o755, exist_ok=True)
    path = os.path.join(state_dir, NAME)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o644)
    try:
        state = os.fstat(descriptor)
        if state.st_uid not in (0, os.geteuid()) or state.st_mode & 0o022:
            raise UntrustedFileError(f"{path} may be written by others", remedy=f"chown root {path}; chmod 0644 {path}")
        os.write(descriptor, (json.dumps(dict(line), separators=(",", ":")) + "\n").encode())
    finally:
        os.close(descriptor)
    if state.st_size > MAX_BYTES:
        _shorten(path)


def _shorten(path: str) -> None:
    from slurm_ext.files import write_atomic

    with open(path, "rb") as stream:
        lines = stream.readlines()
    write_atomic(path, b"".join(lines[len(lines) // 2 :]))


def read(path: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of one file, oldest first; a torn line is skipped, a missing file is empty."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for text in stream:
                try:
                    line = json.loads(text)
                except ValueError:
                    continue
                if isinstance(line, dict):
                    yield line
    except FileNotFoundError:
        return
