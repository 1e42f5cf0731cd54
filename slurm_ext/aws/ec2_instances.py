"""EC2 asked which instances there are: DescribeInstances, by tag, by private address or by id, page by page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from slurm_ext.aws.service import Refused, Service, batches
from slurm_ext.aws.trouble import explain

CALL, PERMISSION = "EC2 DescribeInstances", "ec2:DescribeInstances"

#: Values one filter takes (EC2 API reference), and instances a page brings at most.
VALUES_PER_FILTER, PAGE = 200, 1000

#: An instance in another state is no node's any more.
ALIVE = ("pending", "running", "stopping", "stopped")


class Instance(NamedTuple):
    """One instance, as far as the map of nodes needs it. `addresses`: all private ones, of every interface."""

    instance_id: str
    instance_type: str = ""
    state: str = ""
    addresses: tuple[str, ...] = ()
    private_dns: str = ""
    vpc_id: str = ""
    zone: str = ""
    tags: Mapping[str, str] = {}
    reservation_id: str = ""
    launched: str = ""


def instances_with_tag(ec2: Service, key: str, value: str) -> list[Instance]:
    """Return the instances that are alive and carry a tag. Raise LackingError with AWS's own words."""
    return _all(ec2, [[{"Name": f"tag:{key}", "Values": [value]}]])


def instances_at(ec2: Service, addresses: Iterable[str]) -> list[Instance]:
    """Return the instances that are alive and have one of these private addresses, in any VPC of the region."""
    wanted = sorted({address for address in addresses if address})
    filters = []
    for name, chosen in (
        ("network-interface.addresses.private-ip-address", [one for one in wanted if ":" not in one]),
        ("network-interface.ipv6-addresses.ipv6-address", [one for one in wanted if ":" in one]),
    ):
        filters += [[{"Name": name, "Values": part}] for part in batches(chosen, VALUES_PER_FILTER)]
    return _all(ec2, filters)


def instances_of(ec2: Service, instance_ids: Iterable[str]) -> list[Instance]:
    """Return those of these instances that are alive. A filter, not InstanceIds: one that is gone spoils no answer."""
    wanted = sorted({one for one in instance_ids if one})
    return _all(ec2, [[{"Name": "instance-id", "Values": part}] for part in batches(wanted, VALUES_PER_FILTER)])


def _all(ec2: Service, filters: Sequence[list[dict[str, Any]]]) -> list[Instance]:
    found: dict[str, Instance] = {}
    alive = {"Name": "instance-state-name", "Values": list(ALIVE)}
    questions = {number: partial(_pages, ec2, [*one, alive]) for number, one in enumerate(filters)}
    try:
        for _, answer in ec2.ask_all(questions, stop=lambda _said: True):
            found.update((one.instance_id, one) for one in answer)
    except Refused as refused:
        raise explain(refused.said, CALL, PERMISSION) from refused
    return [found[key] for key in sorted(found)]


def _pages(ec2: Service, filters: list[dict[str, Any]]) -> list[Instance]:
    pages = ec2.pages("describe_instances", Filters=filters, MaxResults=PAGE)
    return [
        _instance(row)
        for page in pages
        for reservation in page.get("Reservations") or ()
        for row in reservation.get("Instances") or ()
    ]


def _instance(row: Mapping[str, Any]) -> Instance:
    addresses = [str(row.get("PrivateIpAddress") or "")]
    for interface in row.get("NetworkInterfaces") or ():
        addresses += [str(each.get("PrivateIpAddress") or "") for each in interface.get("PrivateIpAddresses") or ()]
        addresses.append(str(interface.get("PrivateIpAddress") or ""))
        addresses += [str(each.get("Ipv6Address") or "") for each in interface.get("Ipv6Addresses") or ()]
    return Instance(
        str(row.get("InstanceId") or ""),
        str(row.get("InstanceType") or ""),
        str((row.get("State") or {}).get("Name") or ""),
        tuple(dict.fromkeys(address for address in addresses if address)),
        str(row.get("PrivateDnsName") or ""),
        str(row.get("VpcId") or ""),
        str((row.get("Placement") or {}).get("AvailabilityZone") or ""),
        {str(tag.get("Key") or ""): str(tag.get("Value") or "") for tag in row.get("Tags") or ()},
        str(row.get("CapacityReservationId") or ""),
        str(row.get("LaunchTime") or ""),
    )
