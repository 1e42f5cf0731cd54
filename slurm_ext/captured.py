"""One captured folder (case.json and files) as data: what the judges of all groups begin from. Never its right answer."""

from __future__ import annotations

import errno
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
    """Read a folder. Raise UsageError where it is no case, naming the file, the key and what to do."""
    described = _object(path, "case.json")
    group, files = described.get("group"), described.get("files")
    instance_type = described.get("instance_type")
    if not isinstance(group, str):
        raise _unusable(path, "case.json", "key group: needs a text", "Name the group of the capture, such as gpu")
    if instance_type is not None and not isinstance(instance_type, str):
        raise _unusable(path, "case.json", "key instance_type: is no text", "Give EC2's name of the type, or null")
    if not isinstance(files, dict):
        raise _unusable(path, "case.json", "key files: needs an object of role and file name", "List every file")
    for role, name in files.items():
        if not isinstance(name, str):
            raise _unusable(path, "case.json", f"key files.{role}: is no file name", "Name a file of this folder")
    context = _object(path, files.pop("context"), "context") if "context" in files else {}
    texts = {role: _text(path, name, role) for role, name in files.items()}
    return Case(path, group, instance_type or "", texts, context)


def _unusable(folder: str, name: str, problem: str, remedy: str) -> UsageError:
    return UsageError(f"{os.path.join(folder, name)}: {problem}", remedy=remedy)


def _object(folder: str, name: str, role: str = "") -> dict[str, Any]:
    """Return the JSON object that a file of a folder holds."""
    try:
        found = json.loads(_text(folder, name, role))
    except RecursionError:
        raise _unusable(folder, name, "is nested too deeply", "Write a flat object") from None
    except ValueError as exc:
        at = f"line {exc.lineno}, column {exc.colno}" if isinstance(exc, json.JSONDecodeError) else "a value"
        said = exc.msg if isinstance(exc, json.JSONDecodeError) else str(exc)
        raise _unusable(folder, name, f"is no JSON: {at}: {said}", "Write one JSON object") from exc
    if not isinstance(found, dict):
        raise _unusable(folder, name, "is no JSON object", "Write one object, in braces")
    return found


def _text(folder: str, name: str, role: str = "") -> str:
    if os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
        raise _unusable(folder, "case.json", f"key files.{role}: {name!r} is no file of this folder", "Name one")
    return file_text(os.path.join(folder, name), f" (key files.{role} of case.json)" if role else "")


def file_text(path: str, where: str = "") -> str:
    """Return what a file of a captured folder holds; `where` says in an error who named it. Raise UsageError.

    No link is followed: whoever made the folder need not be who reads it, and root reads what its maker may not.
    """
    try:
        # A FIFO would be waited for without end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, encoding="utf-8", errors="replace", newline="") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"{path}{where}: is no regular file", remedy="Copy the file itself into the folder")
            text = stream.read(FILE_MAX_BYTES + 1)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            problem = "is a symbolic link, which is not followed"
            raise UsageError(f"{path}{where}: {problem}", remedy="Copy the file itself into the folder") from exc
        raise UsageError(f"{path}{where}: {exc.strerror}", remedy="Name a readable folder of a capture") from exc
    if len(text) > FILE_MAX_BYTES:
        raise UsageError(
            f"{path}{where}: is larger than {FILE_MAX_BYTES >> 20} MiB", remedy="Keep the part that matters"
        )
    return text
