"""DescribeCapacityReservationTopology and DescribeInstances against the fake."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_ec2 import FakeEc2

from slurm_ext.aws.ec2_instances import instances_at, instances_of, instances_with_tag
from slurm_ext.aws.ec2_reservations import reservation_places
from slurm_ext.aws.service import Service
from slurm_ext.errors import LackingError

Ask = Callable[..., Service]


def test_reservations_are_asked_ten_at_a_time(fake: FakeEc2, ask: Ask) -> None:
    names = [f"cr-{number:017x}" for number in range(21)]
    for number, name in enumerate(names):
        fake.reservations[name] = {"nodes": ["nn-top", f"nn-m{number}"][: 1 + number % 2], "block": "cb-1"}
    found = reservation_places(ask(), reversed(names))
    assert [one.reservation_id for one in found.reservations] == names
    assert found.reservations[1].network_nodes == ("nn-top", "nn-m1")
    assert found.reservations[1].zone_id == "use2-az1"
    assert found.unknown == {}
    assert fake.calls["DescribeCapacityReservationTopology"] == 3


def test_all_reservations_come_page_by_page(fake: FakeEc2, ask: Ask) -> None:
    for number in range(25):
        fake.reservations[f"cr-{number:02}"] = {"nodes": ["nn-top"]}
    assert len(reservation_places(ask()).reservations) == 25
    assert fake.calls["DescribeCapacityReservationTopology"] == 3


def test_a_reservation_that_is_not_placed_or_not_there_is_said(fake: FakeEc2, ask: Ask) -> None:
    fake.reservations["cr-1"] = {"nodes": [], "state": "pending"}
    assert "not placed yet" in reservation_places(ask(), ["cr-1"]).unknown["cr-1"]
    with pytest.raises(LackingError, match="cr-2"):
        reservation_places(ask(), ["cr-2"])
    fake.reservations["cr-3"] = {"nodes": ["nn-top"]}
    found = reservation_places(ask(), ["cr-1", "cr-2", "cr-3"])
    assert [one.reservation_id for one in found.reservations] == ["cr-1", "cr-3"]
    assert "lacks it" in found.unknown["cr-2"]


def test_the_permission_of_reservations_is_named(fake: FakeEc2, ask: Ask) -> None:
    fake.faults = lambda _action, _number, _form: (403, "UnauthorizedOperation", "You may not")
    with pytest.raises(LackingError, match="ec2:DescribeCapacityReservationTopology"):
        reservation_places(ask(), ["cr-1"])


def test_a_server_whose_pages_never_end_is_left(fake: FakeEc2, ask: Ask) -> None:
    fake.reservations["cr-1"] = {"nodes": ["nn-top"]}
    fake._page = lambda rows, form: (rows, "<nextToken>page-0</nextToken>")  # type: ignore[method-assign]
    try:
        with pytest.raises(LackingError, match="for ever"):
            reservation_places(ask())
    finally:
        del fake._page


def test_instances_by_tag_by_address_and_by_id(fake: FakeEc2, ask: Ask) -> None:
    for number in range(2500):
        mine = {"parallelcluster:cluster-name": "one" if number % 2 else "two"}
        fake.launch(
            f"i-{number:04x}", address=f"10.0.{number // 250}.{number % 250}", tags=mine, vpc=f"vpc-{number % 2}"
        )
    fake.instances["i-0001"]["state"] = "terminated"
    found = instances_with_tag(ask(), "parallelcluster:cluster-name", "one")
    assert len(found) == 1249
    assert fake.calls["DescribeInstances"] == 2
    assert found[0].tags == {"parallelcluster:cluster-name": "one"}
    assert found[0].vpc_id == "vpc-1"
    fake.calls.clear()
    found = instances_at(ask(), [f"10.0.0.{number}" for number in range(250)])
    assert len(found) == 249
    assert found[0].addresses == ("10.0.0.0",)
    assert fake.calls["DescribeInstances"] == 2
    assert [one.instance_id for one in instances_of(ask(), ["i-0002", "i-9999", "i-0001"])] == ["i-0002"]
    assert instances_of(ask(), []) == []
    fake.launch("i-6666", address="10.9.9.9", ipv6="fd00::6")
    assert [one.addresses for one in instances_at(ask(), ["fd00::6"])] == [("10.9.9.9", "fd00::6")]
