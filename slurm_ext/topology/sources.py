"""Where placements come from: EC2's answer (live or recorded), joined with the list of nodes by instance id."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slurm_ext.aws.ec2 import InstanceTopology, parse_instance_topology
from slurm_ext.errors import UsageError
from slurm_ext.topology.model import Placement


def node_map(path: str) -> dict[str, str]:
    """Return node name -> instance id from a CSV file with the columns `node` and `instance_id` (empty: not running).

    Raise UsageError, naming file and line, for a missing column, an empty or repeated node.
    """
    found: dict[str, str] = {}
    try:
        with open(path, newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            if not {"node", "instance_id"} <= set(reader.fieldnames or ()):
                raise UsageError(f"{path}, line 1: needs the columns node and instance_id", remedy="Add a header line")
            for row in reader:
                node = (row["node"] or "").strip()
                if not node or node in found:
                    problem = f"node {node} a second time" if node else "no node name"
                    raise UsageError(f"{path}, line {reader.line_num}: {problem}", remedy="One line for each node")
                found[node] = (row["instance_id"] or "").strip()
    except OSError as exc:
        raise UsageError(f"{path}: {exc.strerror}", remedy="Name a readable file of nodes") from exc
    except (UnicodeDecodeError, csv.Error) as exc:
        raise UsageError(f"{path} is no CSV text: {exc}", remedy="Save it as UTF-8 CSV") from exc
    return found


def recorded(path: str) -> list[InstanceTopology]:
    """Return the instances of a recorded DescribeInstanceTopology answer (JSON, as boto3 or the AWS CLI print it)."""
    try:
        answer = json.loads(Path(path).read_text(encoding="utf-8"))
        return parse_instance_topology(answer)
    except OSError as exc:
        raise UsageError(f"{path}: {exc.strerror}", remedy="Name a readable recording") from exc
    except ValueError as exc:
        raise UsageError(
            f"{path}: {exc}", remedy="Record one with `aws ec2 describe-instance-topology --output json`"
        ) from exc


def join(nodes: Mapping[str, str], instances: Iterable[InstanceTopology]) -> tuple[list[Placement], Sequence[str]]:
    """Return a placement for every node, and what was odd: instances nobody asked for, nodes EC2 does not know."""
    by_id = {instance.instance_id: instance for instance in instances}
    placements, notes = [], []
    for node, instance_id in nodes.items():
        instance = by_id.pop(instance_id, None) if instance_id else None
        if instance is None:
            if instance_id:
                notes.append(f"{node}: EC2's answer has no place for {instance_id}")
            placements.append(Placement(node, instance_id))
            continue
        placements.append(
            Placement(
                node, instance_id, instance.instance_type, instance.network_nodes, instance.zone_id or instance.zone
            )
        )
    notes += [f"{instance_id} is in EC2's answer but no node of ours" for instance_id in sorted(by_id)]
    return placements, notes
