"""Where placements come from: EC2's answer (live or recorded), a file of the site's own, what Slurm has, and the list of nodes."""

from __future__ import annotations

import csv
import io
import os
import select
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_ext.aws.ec2 import InstanceTopology, parse_instance_topology
from slurm_ext.aws.ec2_reservations import ReservationTopology
from slurm_ext.errors import UsageError
from slurm_ext.slurm.hostlist import is_node_name
from slurm_ext.topology import place_file
from slurm_ext.topology.model import Placement


class Listed(NamedTuple):
    """One line of the list of nodes. `reservation_id`: what a node that does not run yet will be launched into."""

    instance_id: str = ""
    instance_type: str = ""
    reservation_id: str = ""
    address: str = ""
    port: int = 0


#: Columns of the list of nodes; others are the site's own and are passed over.
COLUMNS = ("node", "instance_id", "instance_type", "reservation_id", "address", "port")


MAX_PORT = 65_535


def node_list(path: str) -> dict[str, Listed]:
    """Return the nodes of a CSV file with the columns `node` and `instance_id` (empty: not running) and any of COLUMNS.

    Raise UsageError, naming file and line, for a column that is missing or twice, a line with more cells than columns, a node
    that is none, or twice, and a port that is no number.
    """
    found: dict[str, Listed] = {}
    reader = csv.DictReader(io.StringIO(_text(path, "Name a readable file of nodes"), newline=""))
    try:
        reader.fieldnames = header = [name.strip() for name in reader.fieldnames or ()]
        if not {"node", "instance_id"} <= set(header):
            raise UsageError(f"{path}, line 1: needs the columns node and instance_id", remedy="Add a header line")
        if twice := [name for name in COLUMNS if header.count(name) > 1]:
            raise UsageError(f"{path}, line 1: column {twice[0]} twice", remedy="Leave one of them")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            words = {column: (row.get(column) or "").strip() for column in COLUMNS}
            node, port = words.pop("node"), words.pop("port")
            if not node or node in found:
                problem = f"node {node} a second time" if node else "no node name"
                raise UsageError(f"{where}: {problem}", remedy="One line for each node")
            if not is_node_name(node):
                raise UsageError(
                    f"{where}: {node[:80]!r} is no node name", remedy="One line for each node, no hostlists"
                )
            if any(cell.strip() for cell in row.get(None) or ()):
                raise UsageError(f"{where}: more cells than columns", remedy="Quote a cell that has a comma in it")
            if port and not (port.isascii() and port.isdigit() and int(port[:6]) <= MAX_PORT):
                raise UsageError(
                    f"{where}: node {node}: port {port[:20]!r} is no port", remedy="Leave it out or correct it"
                )
            found[node] = Listed(port=int(port or 0), **words)
    except csv.Error as exc:
        raise UsageError(f"{path}, line {reader.line_num}: no CSV text: {exc}", remedy="Save it as UTF-8 CSV") from exc
    return found


def node_map(path: str) -> dict[str, str]:
    """Return node name -> instance id of a list of nodes."""
    return {node: listed.instance_id for node, listed in node_list(path).items()}


def recorded(path: str) -> list[InstanceTopology]:
    """Return the instances of a recorded DescribeInstanceTopology answer (JSON, as boto3 or the AWS CLI print it)."""
    found = read_file(path)
    if isinstance(found, FromFile):
        raise UsageError(f"{path}: places of nodes, and no recorded answer of EC2", remedy="Give a recording here")
    return found


#: What writes into a pipe may take so long (seconds).
_PIPE_S = 30.0


class FromFile(NamedTuple):
    """Placements that a file names by node, without any instance."""

    placements: tuple[Placement, ...]


def read_file(path: str) -> FromFile | list[InstanceTopology]:
    """Return what a source file holds: places by node (topology/place_file.py), or a recorded answer of EC2."""
    text = _text(path, "Name a readable file of places, or a recording")
    if path.lower().endswith(".csv"):
        return FromFile(tuple(place_file.read(path, text)))
    data = place_file.parse_json(path, text)
    if place_file.holds_places(data):
        return FromFile(tuple(place_file.read(path, text)))
    try:
        return parse_instance_topology(data)
    except ValueError as exc:
        remedy = "Record one with `aws ec2 describe-instance-topology --output json`, or write places as in docs/guide/topology-sources.md"
        raise UsageError(f"{path}: {exc}", remedy=remedy) from exc


def _text(path: str, remedy: str) -> str:
    try:
        content = _bytes(path, remedy)
    except OSError as exc:
        raise UsageError(f"{path}: {exc.strerror}", remedy=remedy) from exc
    if len(content) > place_file.MAX_BYTES:
        raise UsageError(f"{path}: larger than {place_file.MAX_BYTES >> 20} MiB", remedy=remedy)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        raise UsageError(f"{path}, line {line}: no UTF-8 text", remedy="Save it as UTF-8") from exc


def _bytes(path: str, remedy: str) -> bytes:
    """Return what a file, or a pipe such as the shell's `<(...)`, holds, up to one byte more than is allowed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISREG(kind):
            return stream.read(place_file.MAX_BYTES + 1) or b""
        if not stat.S_ISFIFO(kind):
            raise UsageError(f"{path} is no regular file", remedy=remedy)
        content = bytearray()
        until = time.monotonic() + _PIPE_S
        while len(content) <= place_file.MAX_BYTES:
            ready, _, _ = select.select([descriptor], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise UsageError(f"{path}: nothing more came within {_PIPE_S:g} s", remedy=remedy)
            chunk = stream.read(1 << 16)
            if not chunk:
                # A pipe that nobody has opened to write yet is at its end, too.
                if content or time.monotonic() > until:
                    return bytes(content)
                time.sleep(0.05)
                continue
            content += chunk
        return bytes(content)


def join(nodes: Mapping[str, str], instances: Iterable[InstanceTopology]) -> tuple[list[Placement], Sequence[str]]:
    """Return a placement for every node, and what was odd: instances nobody asked for, nodes EC2 does not know."""
    by_id = {instance.instance_id: instance for instance in instances}
    # A row may lack the id of a zone that another one has: it is the same zone all the same.
    zone_ids = {one.zone: one.zone_id for one in by_id.values() if one.zone and one.zone_id}
    used: set[str] = set()
    placements = []
    twice: dict[str, str] = {}
    unknown: list[str] = []
    for node, instance_id in nodes.items():
        instance = by_id.get(instance_id) if instance_id and instance_id not in used else None
        if instance is None:
            if instance_id in used:
                twice[node] = instance_id
            elif instance_id:
                unknown.append(node)
            placements.append(Placement(node, instance_id))
            continue
        used.add(instance_id)
        placements.append(
            Placement(
                node,
                instance_id,
                instance.instance_type,
                instance.network_nodes,
                instance.zone_id or zone_ids.get(instance.zone, instance.zone),
                instance.capacity_block_id,
            )
        )
    notes = [f"{node}: {instance_id} is another node's as well" for node, instance_id in twice.items()]
    if unknown:
        notes.append(f"EC2's answer has no place for {_some([f'{node} ({nodes[node]})' for node in unknown])}")
    if others := sorted(by_id.keys() - used):
        notes.append(f"{_some(others)}: in EC2's answer, and no node of ours")
    return placements, notes


def _some(words: Sequence[str], most: int = 5) -> str:
    """Return the first words and how many more there are."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return f"{', '.join(words[:most])}{more}"


def before_launch(
    placements: Iterable[Placement], wanted: Mapping[str, str], reservations: Iterable[ReservationTopology]
) -> tuple[list[Placement], list[str]]:
    """Return the placements with those of nodes that do not run taken from their reservations (node -> reservation).

    One to three tiers are known before a launch, so such a node hangs below the nearest of them, and the note says so.
    """
    by_id = {reservation.reservation_id: reservation for reservation in reservations}
    found, notes, counts = [], [], dict[str, int]()
    for placement in placements:
        reservation = by_id.get(wanted.get(placement.node, ""))
        if reservation is None or placement.path or not reservation.network_nodes:
            found.append(placement)
            continue
        counts[reservation.reservation_id] = counts.get(reservation.reservation_id, 0) + 1
        found.append(
            placement._replace(
                instance_type=placement.instance_type or reservation.instance_type,
                path=reservation.network_nodes,
                zone=reservation.zone_id or reservation.zone,
                capacity_block_id=reservation.capacity_block_id,
            )
        )
    for reservation_id, count in sorted(counts.items()):
        tiers = len(by_id[reservation_id].network_nodes)
        notes.append(
            f"{count} nodes that do not run yet are placed by {reservation_id}: {tiers} tiers are known before the launch"
        )
    return found, notes


def from_slurm(paths: Mapping[str, Sequence[str]], plugin: str) -> list[Placement]:
    """Return the places that a running Slurm has: its switches, top first, or the block of each node.

    Each root is a fabric of its own: Slurm never lets a job span two.
    """
    if "block" in plugin:
        return [Placement(node, ultraserver_id=path[-1] if path else "") for node, path in paths.items()]
    return [Placement(node, path=tuple(path), zone=path[0] if path else "") for node, path in paths.items()]
