"""EC2's DescribeInstanceTopology: the call (100 ids at a time) and what we read of its answer. boto3 is imported on use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from slurm_ext.errors import LackingError
from slurm_ext.typed import NamedTuple

#: Ids per call: the API takes at most 100, and MaxResults and InstanceIds exclude each other (EC2 API reference).
IDS_PER_CALL = 100


class InstanceTopology(NamedTuple):
    """One instance's place: `network_nodes` from the top tier to the nearest, empty where EC2 gives none."""

    instance_id: str
    instance_type: str = ""
    network_nodes: tuple[str, ...] = ()
    zone: str = ""
    zone_id: str = ""
    capacity_block_id: str = ""


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
    network = row.get("NetworkNodes") or []
    if not isinstance(network, list) or not all(isinstance(item, str) and item for item in network):
        raise ValueError(f"Instances[{position}].NetworkNodes is no list of ids")
    words = {key: str(row.get(key) or "") for key in ("InstanceType", "AvailabilityZone", "ZoneId", "CapacityBlockId")}
    return InstanceTopology(
        row["InstanceId"],
        words["InstanceType"],
        tuple(network),
        words["AvailabilityZone"],
        words["ZoneId"],
        words["CapacityBlockId"],
    )


def describe_instance_topology(
    instance_ids: Sequence[str], *, region: str = "", endpoint: str = ""
) -> list[InstanceTopology]:
    """Ask EC2 where these instances sit: ceil(N/100) calls, botocore's own retries, credentials of the instance's role.

    Raise LackingError with AWS's own words where the call is refused or nothing answers.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    settings = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "max_attempts": 8})
    found: list[InstanceTopology] = []
    try:
        client = boto3.client("ec2", region_name=region or None, endpoint_url=endpoint or None, config=settings)
        for batch in _batches(sorted(set(instance_ids))):
            token: str | None = None
            while True:
                more = {"NextToken": token} if token else {}
                answer = client.describe_instance_topology(InstanceIds=batch, **more)
                found += parse_instance_topology(answer)
                token = answer.get("NextToken")
                if not token:
                    break
    except (BotoCoreError, ClientError) as exc:
        raise LackingError(
            f"EC2 DescribeInstanceTopology: {exc}", remedy="Allow ec2:DescribeInstanceTopology to the instance's role"
        ) from exc
    return found


def _batches(ids: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for instance_id in ids:
        batch.append(instance_id)
        if len(batch) == IDS_PER_CALL:
            yield batch
            batch = []
    if batch:
        yield batch
