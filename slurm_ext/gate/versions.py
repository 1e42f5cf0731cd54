"""Which releases each node has, kept on the share: `<share>/versions/<node>.json`, written when they change.

Images roll through a fleet and two cohorts are normal, so this is told and never judged. Reading them costs a look at some
folders and one library: once an hour, or after a boot or another driver. Like all of the share it may hang: every call works
in a child that is given up in time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping

from slurm_ext import node_files, shared
from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import read_trusted, write_atomic
from slurm_ext.gate.model import Facts
from slurm_ext.typed import Any, NamedTuple

FOLDER, SCHEMA = "versions", 1

#: Below the run folder: what was read last, and when.
LAST = "versions.json"

#: How long (seconds) what was read counts as it is.
FRESH_S = 3600.0

#: A node's record is below a kilobyte; a fleet has at most so many.
RECORD_BYTES, NODES_MAX = 16 << 10, 10_000

#: What a record may say, in the order it is shown in.
PARTS = (
    *("type", "nvidia", "nvidia-module", "vbios", "cuda", "kernel", "installer", "driver", "libfabric", "plugin"),
    *("nccl", "kefalnd"),
)


class Versions(NamedTuple):
    """One node's record. `parts`: name -> release, names as in PARTS (`driver` is EFA's kernel module, `nvidia` NVIDIA's)."""

    node: str
    instance_id: str = ""
    boot_id: str = ""
    at_s: float = 0.0
    parts: Mapping[str, str] = {}


class Cohort(NamedTuple):
    """Nodes of one instance type whose releases are all the same."""

    type: str
    parts: Mapping[str, str]
    nodes: tuple[str, ...]


def note(settings: Settings, node: str, share: str, facts: Facts, *, now: float | None = None) -> bool:
    """Write this node's versions where they changed, unless they were read lately; say whether something was written."""
    at_s = time.time() if now is None else now
    run_dir = at_node(settings.site.run_dir, node)
    if not share or not shared.NODE_NAME.fullmatch(node):
        return False
    smi = facts.smi.gpus if facts.smi is not None else ()
    vbios = " ".join(sorted({gpu.vbios for gpu in smi if gpu.vbios}))
    nvidia = next((gpu.driver for gpu in smi if gpu.driver), "")
    before = _last(run_dir)
    same = before is not None and before.boot_id == facts.boot_id and before.parts.get("nvidia", nvidia) == nvidia
    if before is not None and same and 0 <= at_s - before.at_s < FRESH_S:
        return False
    root = at_node(settings.site.root, node)
    prefix = at_node(settings.site.prefix, node)

    def read() -> dict[str, Any]:
        from slurm_ext.gate import compatibility_read, read_small

        tag = read_small.text(os.path.join(root, "sys/class/dmi/id/board_asset_tag"), 64) or ""
        return {"instance_id": tag.strip(), "parts": dict(compatibility_read.versions(root, prefix, settings))}

    told = shared.in_child(read, shared.TIMEOUT_S)
    if not isinstance(told, dict):
        return False
    parts = {"type": facts.instance_type, "vbios": vbios, "nvidia": nvidia} | told["parts"]
    found = Versions(node, str(told["instance_id"]), facts.boot_id, at_s, {k: v for k, v in parts.items() if v})
    if before is None or _what(before) != _what(found):
        if not write(share, found):
            return False  # the next look tries again
        _remember(run_dir, found)
        return True
    _remember(run_dir, found)
    return False


def _what(versions: Versions) -> tuple[str, Mapping[str, str]]:
    return versions.instance_id, versions.parts


def _last(run_dir: str) -> Versions | None:
    try:
        return from_data(json.loads(read_trusted(os.path.join(run_dir, LAST), max_bytes=RECORD_BYTES)))
    except (OSError, ValueError, RecursionError, UntrustedFileError):
        return None


def _remember(run_dir: str, versions: Versions) -> None:
    try:
        write_atomic(os.path.join(run_dir, LAST), json.dumps(to_data(versions)) + "\n")
    except OSError:
        return


def to_data(versions: Versions) -> dict[str, Any]:
    """Return a record as plain data."""
    return {"schema": SCHEMA, **versions._asdict(), "parts": dict(versions.parts)}


def from_data(data: object) -> Versions | None:
    """Return the record in plain data, or None where it has another form. Pure; unknown parts are let be."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("parts"), dict):
        return None
    node, at_s = data.get("node"), data.get("at_s")
    if not isinstance(node, str) or not shared.NODE_NAME.fullmatch(node) or not isinstance(at_s, (int, float)):
        return None
    parts = {
        name: told[:200] for name, told in data["parts"].items() if name in PARTS and isinstance(told, str) and told
    }
    return Versions(node, str(data.get("instance_id", "")), str(data.get("boot_id", "")), float(at_s), parts)


def write(share: str, versions: Versions, *, timeout_s: float = shared.TIMEOUT_S) -> bool:
    """Write a node's record; say whether it is there."""
    return node_files.write(share, FOLDER, versions.node, to_data(versions), timeout_s=timeout_s)


def read_all(share: str, *, timeout_s: float = 5 * shared.TIMEOUT_S) -> dict[str, Versions] | None:
    """Return the record of every node that has one; None where the share does not answer."""
    return node_files.read_all(
        share, FOLDER, from_data, to_data, most=NODES_MAX, max_bytes=RECORD_BYTES, timeout_s=timeout_s
    )


def cohorts(records: Mapping[str, Versions]) -> list[Cohort]:
    """Return the nodes grouped by type and releases, types by name and the largest cohort of each first. Pure."""
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for node, record in records.items():
        rest = tuple(sorted((name, told) for name, told in record.parts.items() if name != "type"))
        groups.setdefault((record.parts.get("type", ""), rest), []).append(node)
    found = [Cohort(kind, dict(parts), tuple(sorted(nodes))) for (kind, parts), nodes in groups.items()]
    return sorted(found, key=lambda one: (one.type, -len(one.nodes), one.nodes))


def differing(found: list[Cohort], kind: str) -> tuple[str, ...]:
    """Return the parts in which the cohorts of one instance type differ, in the order of PARTS. Pure."""
    mine = [one for one in found if one.type == kind]
    return tuple(name for name in PARTS if name != "type" and len({one.parts.get(name, "") for one in mine}) > 1)
