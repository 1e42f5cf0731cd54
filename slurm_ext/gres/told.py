"""What nodes tell of their own GPUs: each writes it once a boot, in `<share>/gpus/<node>.json`, or a person brings it in a file.

So that `gres generate` on the head node knows Cores= of types of which nobody published them, and CPU options as they are. Read in
a child that is given up in time: a driver's /proc may hang. Standard library only: hooks import this.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping

from slurm_ext import node_files, shared
from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import read_trusted, write_atomic
from slurm_ext.gres import collect
from slurm_ext.gres.model import Gpu, NodeFacts
from slurm_ext.gres.read_conf import numbers, ranges
from slurm_ext.patterns import pattern
from slurm_ext.typed import Any, NamedTuple

FOLDER, SCHEMA = "gpus", 1

#: Below the run folder: for which boot it was written, and when it was last tried.
LAST = "gpus-told.json"

#: Seconds for reading it, for writing it, and for reading all nodes' records.
READ_S, WRITE_S, ALL_S = 5.0, shared.TIMEOUT_S, 30.0

#: Where nothing could be told (the driver is not loaded yet, a full share), so many seconds pass before it is tried again.
AGAIN_S = 600.0

RECORD_BYTES, NODES_MAX = 64 << 10, 65_536

_TYPE = pattern(r"[a-z0-9-]{2,24}\.[a-z0-9-]{2,24}")
_MODEL = pattern(r"[\x20-\x7e]{0,100}")
_BUS = pattern(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_NUMA = pattern(r"\d{1,5}")


class Told(NamedTuple):
    """One node's facts."""

    node: str
    facts: NodeFacts


def note(settings: Settings, node: str, share: str, now_s: float) -> bool:
    """Write this node's record, once a boot; say whether it was written now. A node that shows no GPU tells nothing."""
    if not share or not shared.NODE_NAME.fullmatch(node):
        return False
    root, run_dir = at_node(settings.site.root, node), at_node(settings.site.run_dir, node)
    boot_id = _boot_id(root)
    last = _last(run_dir)
    if last.get("boot_id") == boot_id:
        tried = last.get("at_s")
        if last.get("done") is True or (isinstance(tried, (int, float)) and 0 <= now_s - tried < AGAIN_S):
            return False
    data = shared.in_child(lambda: to_data(Told(node, collect.facts(root))), READ_S)
    told = from_data(data)
    done = False
    if told is not None and told.facts.gpus and not told.facts.unread:
        kind = settings.site.instance_type
        facts = told.facts if kind == "auto" else told.facts._replace(instance_type=kind)
        done = node_files.write(share, FOLDER, node, to_data(Told(node, facts)), timeout_s=WRITE_S)
    with contextlib.suppress(OSError):
        write_atomic(os.path.join(run_dir, LAST), json.dumps({"boot_id": boot_id, "at_s": now_s, "done": done}) + "\n")
    return done


def here(root: str) -> NodeFacts | None:
    """Return the facts of the node below `root`, None where it does not answer in time."""
    told = from_data(shared.in_child(lambda: to_data(Told("here", collect.facts(root))), READ_S))
    return told.facts if told is not None else None


def read_all(share: str, *, timeout_s: float = ALL_S) -> dict[str, Told] | None:
    """Return the record of every node that has one; None where the share does not answer, or there is none."""
    return node_files.read_all(
        share, FOLDER, from_data, to_data, most=NODES_MAX, max_bytes=RECORD_BYTES, timeout_s=timeout_s
    )


def to_data(told: Told) -> dict[str, Any]:
    """Return a record as plain data."""
    facts = told.facts
    return {
        "schema": SCHEMA,
        "node": told.node,
        "instance_type": facts.instance_type,
        "sockets": facts.sockets,
        "cores_per_socket": facts.cores_per_socket,
        "threads_per_core": facts.threads_per_core,
        "cpus": facts.cpus,
        "gpus": [gpu._asdict() for gpu in facts.gpus],
        "numa_cores": {str(numa): ranges(cores) for numa, cores in facts.numa_cores.items()},
        "unread": list(facts.unread),
    }


def from_data(data: object) -> Told | None:
    """Return the record in plain data, or None where it has another form. Pure."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return None
    node, kind = data.get("node"), data.get("instance_type", "")
    if not isinstance(node, str) or not shared.NODE_NAME.fullmatch(node) or not isinstance(kind, str):
        return None
    shape = [_small(data.get(key), 65_536) for key in ("sockets", "cores_per_socket", "threads_per_core", "cpus")]
    listed, places, unread = data.get("gpus"), data.get("numa_cores"), data.get("unread", [])
    if None in shape or not isinstance(listed, list) or not isinstance(places, dict) or not isinstance(unread, list):
        return None
    gpus = tuple(gpu for item in listed[: collect.MOST_GPUS] if (gpu := _gpu(item)) is not None)
    try:
        numa = {
            int(key): frozenset(numbers(text) if text else ()) for key, text in places.items() if _NUMA.fullmatch(key)
        }
    except (ValueError, TypeError, AttributeError):
        return None
    if len(gpus) != len(listed) or len({gpu.number for gpu in gpus}) != len(gpus) or len(numa) != len(places):
        return None
    sockets, cores, threads, cpus = (value or 0 for value in shape)
    known = kind if _TYPE.fullmatch(kind) else ""
    lacks = tuple(str(path)[:200] for path in unread[:64])
    return Told(node, NodeFacts(known, gpus, sockets, cores, threads, cpus, numa, lacks))


def by_type(told: Iterable[Told]) -> dict[str, NodeFacts]:
    """Return for each instance type what its nodes tell, where all that show the most GPUs tell the same. Pure.

    A node with a GPU less is a broken one, and says nothing about its type.
    """
    groups: dict[str, list[NodeFacts]] = {}
    for one in told:
        if one.facts.instance_type and not one.facts.unread:
            groups.setdefault(one.facts.instance_type, []).append(one.facts)
    found = {}
    for kind, group in groups.items():
        most = max(len(facts.gpus) for facts in group)
        whole = [facts for facts in group if len(facts.gpus) == most]
        if all(_place(facts) == _place(whole[0]) for facts in whole):
            found[kind] = whole[0]
    return found


def _place(facts: NodeFacts) -> tuple[object, ...]:
    """Return what decides the lines of a node: not the words of its driver."""
    gpus = tuple((gpu.number, gpu.numa_node) for gpu in facts.gpus)
    return facts.sockets, facts.cores_per_socket, facts.threads_per_core, gpus, sorted(facts.numa_cores.items())


def _gpu(item: object) -> Gpu | None:
    if not isinstance(item, dict):
        return None
    number, numa = _small(item.get("number"), 4096), item.get("numa_node", -1)
    model, bus = item.get("model", ""), item.get("bus", "")
    if number is None or type(numa) is not int or not -1 <= numa < 65_536:
        return None
    if not isinstance(model, str) or not _MODEL.fullmatch(model) or not isinstance(bus, str):
        return None
    return Gpu(number, model, bus if _BUS.fullmatch(bus) else "", numa, item.get("has_file", True) is True)


def _small(value: object, most: int) -> int | None:
    return value if type(value) is int and 0 <= value <= most else None


def _last(run_dir: str) -> Mapping[str, Any]:
    try:
        data = json.loads(read_trusted(os.path.join(run_dir, LAST), max_bytes=RECORD_BYTES))
    except (OSError, ValueError, RecursionError, UntrustedFileError):
        return {}
    return data if isinstance(data, dict) else {}


def _boot_id(root: str) -> str:
    try:
        with open(os.path.join(root, "proc/sys/kernel/random/boot_id"), encoding="ascii", errors="replace") as stream:
            return stream.read(64).strip()
    except OSError:
        return ""
