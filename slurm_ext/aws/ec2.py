"""EC2's DescribeInstanceTopology: what we read of an answer, recorded or live. Pure, standard library only."""

from __future__ import annotations

from slurm_ext.typed import NamedTuple


class InstanceTopology(NamedTuple):
    """One instance's place: `network_nodes` from the top tier to the nearest, empty where EC2 gives none."""

    instance_id: str
    instance_type: str = ""
    network_nodes: tuple[str, ...] = ()
    zone: str = ""
    zone_id: str = ""
    capacity_block_id: str = ""
    group_name: str = ""


def parse_instance_topology(answer: object) -> list[InstanceTopology]:
    """Return the instances of one answer (or of several pages in a list). Raise ValueError for any other shape."""
    if isinstance(answer, list):
        return [instance for page in answer for instance in parse_instance_topology(page)]
    if not isinstance(answer, dict) or not isinstance(answer.get("Instances"), list):
        raise ValueError("not a DescribeInstanceTopology answer: there is no list Instances in it")
    return [_instance(position, row) for position, row in enumerate(answer["Instances"])]


def _instance(position: int, row: object) -> InstanceTopology:
    if not isinstance(row, dict) or not isinstance(row.get("InstanceId"), str):
        raise ValueError(f"Instances[{position}] has no InstanceId")
    words = {
        key: str(row.get(key) or "")
        for key in ("InstanceType", "AvailabilityZone", "ZoneId", "CapacityBlockId", "GroupName")
    }
    return InstanceTopology(
        row["InstanceId"],
        words["InstanceType"],
        network_nodes(row, f"Instances[{position}]"),
        words["AvailabilityZone"],
        words["ZoneId"],
        words["CapacityBlockId"],
        words["GroupName"],
    )


def network_nodes(row: dict[str, object], where: str) -> tuple[str, ...]:
    """Return the ids of a row's NetworkNodes, top tier first. Raise ValueError where they are no list of ids."""
    network = row.get("NetworkNodes") or []
    if not isinstance(network, list) or not all(isinstance(item, str) and item for item in network):
        raise ValueError(f"{where}.NetworkNodes is no list of ids")
    return tuple(network)
