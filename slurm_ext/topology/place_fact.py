"""What a node tells of its own place: instance, type, zone and NVLink clique, once a boot, in `<share>/places/<node>.json`.

DMI names the instance without any network (Nitro), the metadata service its zone, nvidia-smi the clique of an UltraServer's GPUs. All
is read in a child that is given up in time; what was written lies in the run folder too, so that a later hook of the same boot
costs one small read. Standard library only: hooks import this.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping

from slurm_ext import node_files, shared
from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import read_trusted, write_atomic
from slurm_ext.patterns import pattern
from slurm_ext.typed import Any, NamedTuple

FOLDER, SCHEMA = "places", 1

#: Below the run folder: what was written for this boot.
LAST = "place.json"

#: Seconds for reading all of it, for nvidia-smi within that, for writing it, and for reading all nodes' records.
READ_S, SMI_S, WRITE_S, ALL_S = 5.0, 4.0, shared.TIMEOUT_S, 30.0

#: Where nothing could be written (a full share, none at all), so many seconds pass before it is tried again.
AGAIN_S = 600.0

RECORD_BYTES, NODES_MAX = 16 << 10, 65_536

_INSTANCE = pattern(r"i-[0-9a-f]{8,32}")
_TYPE = pattern(r"[a-z0-9-]{2,24}\.[a-z0-9-]{2,24}")
_UUID = pattern(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_CLIQUE = pattern(r"[0-9a-fA-F-]{36}\.[0-9]{1,10}")
_WORD = pattern(r"[A-Za-z0-9._:-]{0,64}")

_NO_UUID = "00000000-0000-0000-0000-000000000000"


class Place(NamedTuple):
    """One node's record; each text is empty where nothing tells it. `clique`: cluster UUID and clique id, joined by a point."""

    node: str
    instance_id: str = ""
    instance_type: str = ""
    zone: str = ""
    zone_id: str = ""
    boot_id: str = ""
    clique: str = ""
    at_s: float = 0.0


def note(settings: Settings, node: str, share: str, *, now: float | None = None, imds: str = "") -> bool:
    """Write this node's record, once a boot; say whether it was written now. `imds`: another address of the metadata service."""
    at_s = time.time() if now is None else now
    if not share or not shared.NODE_NAME.fullmatch(node):
        return False
    root, run_dir = at_node(settings.site.root, node), at_node(settings.site.run_dir, node)
    boot_id = _line(os.path.join(root, "proc/sys/kernel/random/boot_id"))
    last = _last(run_dir)
    if last is not None and last.get("boot_id") == boot_id:
        tried = last.get("at_s")
        if last.get("done") is True or (isinstance(tried, (int, float)) and 0 <= at_s - tried < AGAIN_S):
            return False
    told = shared.in_child(lambda: look(root, settings, imds=imds), READ_S)
    done = False
    if isinstance(told, dict):
        place = from_data({"schema": SCHEMA, "node": node, "boot_id": boot_id, "at_s": at_s, **told})
        done = place is not None and bool(place.instance_id) and write(share, place, timeout_s=WRITE_S)
    with contextlib.suppress(OSError):
        write_atomic(os.path.join(run_dir, LAST), json.dumps({"boot_id": boot_id, "at_s": at_s, "done": done}) + "\n")
    return done


def look(root: str, settings: Settings, *, imds: str = "") -> dict[str, str]:
    """Return what this machine tells; to be called in a child: a driver or the metadata service may hang."""
    from slurm_ext.aws.topology_types import is_ultraserver

    dmi = os.path.join(root, "sys/class/dmi/id")
    instance_id, kind = _line(os.path.join(dmi, "board_asset_tag")), _line(os.path.join(dmi, "product_name"))
    found = {
        "instance_id": instance_id if _INSTANCE.fullmatch(instance_id) else "",
        "instance_type": kind if _TYPE.fullmatch(kind) else "",
    }
    # A lab's nodes have a root of their own, and the machine below them is another instance, or none.
    if imds or (root == "/" and "Amazon" in _line(os.path.join(dmi, "sys_vendor"))):
        from slurm_ext.aws import imds as metadata

        if (said := metadata.identity(endpoint=imds)) is not None:
            found = {"instance_id": said.instance_id, "instance_type": said.instance_type or found["instance_type"]}
            found |= {"zone": said.zone, "zone_id": said.zone_id}
    if settings.site.instance_type != "auto":
        found["instance_type"] = settings.site.instance_type
    if is_ultraserver(found["instance_type"]):
        found["clique"] = clique(root)
    return found


def clique(root: str) -> str:
    """Return the NVLink clique of this node's GPUs by nvidia-smi, empty where they name none or not all the same."""
    from slurm_ext.command import clean_env, run, smi_path
    from slurm_ext.errors import CommandNotFoundError

    asked = "--query-gpu=fabric.clusterUuid,fabric.cliqueId"
    try:
        answer = run([smi_path(root), asked, "--format=csv,noheader"], timeout_s=SMI_S, env=clean_env())
    except CommandNotFoundError:
        return ""
    return clique_in(answer.stdout) if answer.ok else ""


def clique_in(text: str) -> str:
    """Return `uuid.clique` of lines `uuid, clique`, empty where they differ or hold no real domain. Pure."""
    found = set()
    for line in text.splitlines():
        uuid, comma, number = (part.strip() for part in line.partition(","))
        if not line.strip():
            continue
        if not comma or not _UUID.fullmatch(uuid) or uuid == _NO_UUID or not number.isdigit():
            return ""
        found.add(f"{uuid.lower()}.{int(number)}")
    return found.pop() if len(found) == 1 else ""


def to_data(place: Place) -> dict[str, Any]:
    """Return a record as plain data."""
    return {"schema": SCHEMA, **place._asdict()}


def from_data(data: object) -> Place | None:
    """Return the record in plain data, or None where it has another form. Pure."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return None
    node, at_s = data.get("node"), data.get("at_s")
    if not isinstance(node, str) or not shared.NODE_NAME.fullmatch(node) or not isinstance(at_s, (int, float)):
        return None
    words = {}
    for key in ("instance_id", "instance_type", "zone", "zone_id", "boot_id", "clique"):
        value = data.get(key, "")
        words[key] = value if isinstance(value, str) and _WORD.fullmatch(value) else ""
    if not _INSTANCE.fullmatch(words["instance_id"]):
        words["instance_id"] = ""
    if not _CLIQUE.fullmatch(words["clique"]):
        words["clique"] = ""
    return Place(node, at_s=float(at_s), **words)


def write(share: str, place: Place, *, timeout_s: float = shared.TIMEOUT_S) -> bool:
    """Write a node's record; say whether it is there."""
    return node_files.write(share, FOLDER, place.node, to_data(place), timeout_s=timeout_s)


def read_all(share: str, *, timeout_s: float = ALL_S) -> Mapping[str, Place] | None:
    """Return the record of every node that has one; None where the share does not answer, or there is none."""
    return node_files.read_all(
        share, FOLDER, from_data, to_data, most=NODES_MAX, max_bytes=RECORD_BYTES, timeout_s=timeout_s
    )


def _last(run_dir: str) -> dict[str, Any] | None:
    try:
        data = json.loads(read_trusted(os.path.join(run_dir, LAST), max_bytes=RECORD_BYTES))
    except (OSError, ValueError, RecursionError, UntrustedFileError):
        return None
    return data if isinstance(data, dict) else None


def _line(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 256).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)
