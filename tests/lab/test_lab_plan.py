"""Names, addresses and ports of a lab are its own."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.errors import UsageError
from slurm_ext.lab import plan

IDENTITIES = st.text("0123456789abcdef", min_size=6, max_size=6)


def test_the_same_folder_gives_the_same_names_and_another_folder_others() -> None:
    assert plan.lab_id("/var/tmp/a") == plan.lab_id("/var/tmp/a") != plan.lab_id("/var/tmp/b")
    assert len(plan.link_name(plan.lab_id("/var/tmp/a"))) <= 15


@given(IDENTITIES, st.lists(IDENTITIES, max_size=20))
def test_a_subnet_overlaps_none_in_use(identity: str, others: list[str]) -> None:
    taken = [str(next(plan.subnets(other))) for other in others]
    chosen = plan.choose_subnet(identity, taken)
    assert not any(chosen.overlaps(ipaddress.ip_network(network)) for network in taken)
    assert chosen.subnet_of(plan.POOL)


def test_a_subnet_avoids_single_addresses_and_networks_around_it() -> None:
    favourite = next(plan.subnets("000000"))
    assert plan.choose_subnet("000000", [f"{favourite[7]}/32"]) != favourite
    with pytest.raises(UsageError, match="in use"):
        plan.choose_subnet("000000", ["198.18.0.0/15"])


def test_a_default_route_is_no_network_in_use() -> None:
    assert plan.choose_subnet("000000", ["0.0.0.0/0"]) == next(plan.subnets("000000"))


@given(IDENTITIES, st.integers(1, 40), st.sets(st.sampled_from(plan.PORT_RANGE), max_size=200))
def test_ports_are_free_and_different(identity: str, count: int, taken: set[int]) -> None:
    found = plan.ports(identity, count, taken)
    assert len(set(found)) == count
    assert not taken & set(found)
    assert set(found) <= set(plan.PORT_RANGE)


def test_no_free_port_is_said() -> None:
    with pytest.raises(UsageError, match="not enough free ports"):
        plan.ports("000000", 1, set(plan.PORT_RANGE))


@pytest.mark.parametrize(
    ("directory", "count", "prefix", "words"),
    [
        ("/" + "a" * 80, 8, "", "allow 72"),
        ("/var/tmp/a b", 8, "", "slurm.conf cannot hold"),
        ("/var/tmp/a%n", 8, "", "slurm.conf cannot hold"),
        ("/var/tmp/a", 0, "", "1 to 1000"),
        ("/var/tmp/a", 1001, "", "1 to 1000"),
        ("/var/tmp/a", 8, "9x", "no start of a host name"),
        ("/var/tmp/a", 8, "a;b", "no start of a host name"),
    ],
)
def test_options_that_cannot_be_are_refused(directory: str, count: int, prefix: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan.check_options(directory, count, prefix)


def test_nodes_have_addresses_of_their_own_and_ids_of_ec2s_form() -> None:
    subnet = ipaddress.IPv4Network("198.18.4.0/22")
    nodes = plan.nodes_in_subnet("abcdef", "x-", plan.MAX_NODES, subnet)
    assert nodes[0].name == "x-n0"
    assert len({node.address for node in nodes}) == plan.MAX_NODES
    assert all(ipaddress.ip_address(node.address) in subnet for node in nodes)
    assert nodes[-1].address != str(subnet.broadcast_address)
    assert len({node.instance_id for node in nodes}) == plan.MAX_NODES
    assert all(len(node.instance_id) == 19 and node.instance_id.startswith("i-") for node in nodes)
