"""One captured folder (case.json and files) as data: what the judges of all groups begin from. Never its right answer."""

from __future__ import annotations

import json
import os
import stat
from calendar import timegm
from collections.abc import Mapping
from datetime import datetime

from slurm_ext.aws import catalogue
from slurm_ext.errors import UsageError
from slurm_ext.typed import Any, NamedTuple

#: No capture of a node is larger; what is, is refused rather than read into memory.
FILE_MAX_BYTES = 64 << 20


class Case(NamedTuple):
    """One folder: group, EC2 type or nothing, texts by role, and the context (see the README of the captures)."""

    path: str
    group: str
    instance_type: str
    texts: Mapping[str, str]
    context: Mapping[str, Any]

    @property
    def expected_gpus(self) -> int | None:
        """Return how many GPUs the instance type has, None where the type is not known."""
        row = catalogue.find(self.instance_type)
        return row.gpus if row else None

    @property
    def gpu_type(self) -> str:
        """Return the gres type of the instance's GPUs, or nothing."""
        row = catalogue.find(self.instance_type)
        return row.gpu_type if row else ""

    def time_s(self, key: str) -> float | None:
        """Return a time of the context as seconds since the epoch, None where it is absent or no time."""
        return parse_time(str(self.context.get(key, "")))


def parse_time(text: str) -> float | None:
    """Return an ISO 8601 time as seconds since the epoch, None where it is none."""
    try:
        return float(timegm(datetime.fromisoformat(text.replace("Z", "+00:00")).utctimetuple()))
    except ValueError:
        return None


def load(path: str) -> Case:
    """Read a folder. Raise UsageError where it is no case, naming the file."""
    try:
        described = json.loads(_text(path, "case.json"))
        files = described["files"]
        texts = {str(role): _text(path, str(name)) for role, name in files.items()}
        context = json.loads(texts.pop("context", "{}"))
        if not isinstance(context, dict):
            raise ValueError("the context is no object")
        return Case(path, str(described["group"]), str(described.get("instance_type") or ""), texts, context)
    except OSError as exc:
        raise UsageError(f"{exc.filename or path}: {exc.strerror}") from exc
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise UsageError(f"{path}: case.json or context cannot be used: {exc!r}") from exc


def _text(folder: str, name: str) -> str:
    if os.path.basename(name) != name or not name:
        raise ValueError(f"{name!r} is no file of this folder")
    # A FIFO would be waited for without end.
    descriptor = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, encoding="utf-8", errors="replace", newline="") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{name} is no regular file")
        text = stream.read(FILE_MAX_BYTES + 1)
    if len(text) > FILE_MAX_BYTES:
        raise ValueError(f"{name} is larger than {FILE_MAX_BYTES >> 20} MiB")
    return text
