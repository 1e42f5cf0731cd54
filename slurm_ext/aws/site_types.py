"""Rows of instance types that a site fetched from EC2 (`fmslurm gres refresh`), for types that are newer than this release.

They lie as JSON on the share, where nodes read them beside the pushed configuration, so that gate, burn-in and GRES know a new
type alike. EC2 tells neither sockets, nor which GPUs hang at which, nor what NVLink spans: these stay unknown. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from slurm_ext.aws import catalogue
from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.config.snapshot import TYPES_FILE
from slurm_ext.patterns import pattern
from slurm_ext.typed import Any

#: Below the share.
FILE = TYPES_FILE

SCHEMA, MOST, MAX_BYTES = 1, 1000, 1 << 20

#: What the file holds of a row: (field, its largest value).
_NUMBERS: Mapping[str, int] = {
    "vcpus": 65_536,
    "memory_mib": 1 << 40,
    "threads_per_core": 64,
    "gpus": 64,
    "gpu_memory_mib": 1 << 30,
    "efa_devices": 1024,
    "nvme_count": 1024,
    "nvme_gb": 1 << 30,
    "network_cards": 1024,
}

_NEEDED = ("vcpus", "memory_mib", "threads_per_core", "gpus")

_WORD = pattern(r"[a-z0-9._-]{1,40}")
_WORDS = {
    "name": pattern(r"[a-z][a-z0-9-]{0,30}\.[a-z0-9-]{1,30}"),
    "gpu_type": _WORD,
    "arch": _WORD,
    "checked_on": pattern(r"\d{4}-\d\d-\d\d"),
}


def to_json(rows: Iterable[InstanceType], *, region: str) -> str:
    """Return the content of the file."""
    told = []
    for row in sorted(rows):
        fields: dict[str, Any] = {
            "name": row.name,
            "gpu_type": row.gpu_type,
            "arch": row.arch,
            "checked_on": row.checked_on,
        }
        told.append(fields | {name: getattr(row, name) for name in _NUMBERS})
    return json.dumps({"schema": SCHEMA, "region": region, "types": told}, indent=1) + "\n"


def from_json(text: str) -> dict[str, InstanceType]:
    """Return the rows of the file by name; what is no such file has none, and a row of another form is left out. Pure."""
    try:
        data = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    listed = data.get("types") if isinstance(data, dict) and data.get("schema") == SCHEMA else None
    rows = (_row(item) for item in listed[:MOST]) if isinstance(listed, list) else ()
    return {row.name: row for row in rows if row is not None}


def learn(text: str) -> None:
    """Let the catalogue look types that it lacks up in the content of the file, which is read when the first is."""
    if text:
        catalogue.source = lambda: from_json(text)


def _row(item: object) -> InstanceType | None:
    if not isinstance(item, dict):
        return None
    words = {key: _text(item.get(key), form) for key, form in _WORDS.items()}
    figures = {key: _figure(item.get(key), most) for key, most in _NUMBERS.items()}
    if not all(words.values()) or not all(figures[key] > 0 for key in _NEEDED) or min(figures.values()) < 0:
        return None
    return InstanceType(
        words["name"],
        figures["vcpus"],
        figures["memory_mib"],
        0,
        0,
        figures["threads_per_core"],
        figures["gpus"],
        words["gpu_type"],
        figures["gpu_memory_mib"],
        figures["efa_devices"],
        figures["nvme_count"],
        figures["nvme_gb"],
        0,
        words["arch"],
        words["checked_on"],
        "EC2 DescribeInstanceTypes, fetched by this site",
        figures["network_cards"],
    )


def _text(value: object, form: Any) -> str:
    return value if isinstance(value, str) and form.fullmatch(value) else ""


def _figure(value: object, most: int) -> int:
    """Return a number, -1 for what is none."""
    return value if type(value) is int and 0 <= value <= most else -1
