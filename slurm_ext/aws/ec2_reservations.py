"""EC2 asked where capacity reservations sit, before anything is launched: DescribeCapacityReservationTopology, paged by hand.

One to three network nodes are told, from the top; the nearest tiers are known only once an instance runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from slurm_ext.aws.ec2 import network_nodes
from slurm_ext.aws.service import Refused, Service, batches
from slurm_ext.aws.trouble import Said, explain

CALL, PERMISSION = "EC2 DescribeCapacityReservationTopology", "ec2:DescribeCapacityReservationTopology"

#: The API takes at most 10 ids and answers at most 10 a page (EC2 API reference; boto3 has no paginator for it).
IDS_PER_CALL = 10

_ID = re.compile(r"\bcr-[0-9a-zA-Z]{1,40}\b")


class ReservationTopology(NamedTuple):
    """Where one reservation sits: one to three `network_nodes` from the top tier, as far as EC2 tells before a launch."""

    reservation_id: str
    instance_type: str = ""
    network_nodes: tuple[str, ...] = ()
    zone: str = ""
    zone_id: str = ""
    capacity_block_id: str = ""
    state: str = ""
    group_name: str = ""


class ReservationPlaces(NamedTuple):
    """What EC2 told. `unknown`: reservation -> why its place is not known."""

    reservations: tuple[ReservationTopology, ...]
    unknown: Mapping[str, str]


def reservation_places(ec2: Service, reservation_ids: Iterable[str] = ()) -> ReservationPlaces:
    """Return the places of these reservations (of none: all in the region). Raise LackingError where EC2 tells of none asked for."""
    wanted = sorted({one for one in reservation_ids if one})
    asked: list[list[str]] = list(batches(wanted, IDS_PER_CALL)) or [[]]
    found: dict[str, ReservationTopology] = {}
    unknown: dict[str, str] = {}
    failed: list[Refused] = []
    try:
        for number, answer in ec2.ask_all({n: partial(_batch, ec2, ids) for n, ids in enumerate(asked)}):
            if isinstance(answer, Refused):
                failed.append(answer)
                why = f"EC2 gave no answer: {answer.said.code or answer.said.words}"
                unknown.update(dict.fromkeys(asked[number], why))
            else:
                found.update((one.reservation_id, one) for one in answer)
        if failed and not found:
            raise failed[0]
    except Refused as refused:
        raise explain(refused.said, CALL, PERMISSION) from refused
    for one in wanted:
        if one not in found:
            unknown.setdefault(one, "EC2's answer lacks it: is it pending or active, and in this region?")
        elif not found[one].network_nodes:
            unknown[one] = "EC2 gives no network nodes for it: its type has no topology, or it is not placed yet"
    return ReservationPlaces(tuple(found[one] for one in sorted(found)), unknown)


def _batch(ec2: Service, ids: list[str]) -> list[ReservationTopology]:
    """Return the places of up to ten reservations; those that EC2 does not know are left out, and it is asked for the rest."""
    left = list(ids)
    while True:
        try:
            return _asked(ec2, left)
        except Refused as refused:
            named = set(_ID.findall(refused.said.words)) & set(left)
            if refused.said.code != "InvalidCapacityReservationId.NotFound" or not named or named == set(left):
                raise
            left = [one for one in left if one not in named]


def _asked(ec2: Service, ids: list[str]) -> list[ReservationTopology]:
    # MaxResults and ids exclude each other, as with instances.
    arguments: dict[str, Any] = {"CapacityReservationIds": ids} if ids else {"MaxResults": IDS_PER_CALL}
    pages = ec2.pages("describe_capacity_reservation_topology", **arguments)
    try:
        return [one for page in pages for one in parse_reservation_topology(page)]
    except ValueError as exc:
        said = Said("", f"an answer of another shape: {exc}", False)
        raise Refused("describe_capacity_reservation_topology", said) from exc


def parse_reservation_topology(answer: Mapping[str, object]) -> list[ReservationTopology]:
    """Return the reservations of one answer. Raise ValueError for any other shape."""
    rows = answer.get("CapacityReservations") or []
    if not isinstance(rows, list):
        raise ValueError("CapacityReservations is no list")
    found = []
    for position, row in enumerate(rows):
        where = f"CapacityReservations[{position}]"
        if not isinstance(row, dict) or not isinstance(row.get("CapacityReservationId"), str):
            raise ValueError(f"{where} has no CapacityReservationId")
        words = {key: str(row.get(key) or "") for key in ("InstanceType", "AvailabilityZone", "AvailabilityZoneId")}
        words |= {key: str(row.get(key) or "") for key in ("CapacityBlockId", "State", "GroupName")}
        found.append(
            ReservationTopology(
                row["CapacityReservationId"],
                words["InstanceType"],
                network_nodes(row, where),
                words["AvailabilityZone"],
                words["AvailabilityZoneId"],
                words["CapacityBlockId"],
                words["State"],
                words["GroupName"],
            )
        )
    return found
