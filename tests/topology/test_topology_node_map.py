"""Which instance is behind each node: tables of what Slurm, the table, the nodes and EC2 say."""

from __future__ import annotations

import pytest

from slurm_ext.aws.ec2_instances import Instance
from slurm_ext.slurm.model import Node
from slurm_ext.topology.node_map import Evidence, Told, addresses_to_ask, is_backed, map_nodes

CLOUD = ("CLOUD",)


def node(name: str = "gpu-st-p5-1", address: str = "10.0.0.1", flags: tuple[str, ...] = CLOUD, **more: object) -> Node:
    return Node(name, "IDLE", flags, address=address, **more)  # type: ignore[arg-type]


def ec2(instance_id: str, address: str = "10.0.0.1", vpc: str = "vpc-1", **tags: str) -> Instance:
    return Instance(instance_id, "p5.48xlarge", "running", (address,), f"ip-{address}.internal", vpc, "", tags)


@pytest.mark.parametrize(
    ("one", "backed"),
    [
        (node(), True),
        (node(address="gpu-st-p5-1"), False),
        (node(flags=("CLOUD", "POWERED_DOWN")), False),
        (node(flags=("CLOUD", "POWERING_DOWN")), False),
        (node(address="gpu-st-p5-1", instance_id="i-01234567"), True),
        (node("gpu-st-p5-1", "gpu-st-p5-1", ()), False),  # ParallelCluster's name, whatever the flags
        (node("n1", "n1", ()), True),
    ],
)
def test_backed(one: Node, backed: bool) -> None:
    assert is_backed(one) is backed
    found = map_nodes(Evidence([one], instances=[ec2("i-1", one.address)]))
    assert found.ids[one.name] == ("i-1" if backed else "")


def test_only_addresses_are_asked_for() -> None:
    nodes = [
        node("n1", "10.0.0.2", ()),
        node("n2", "n2.site", ()),
        node("n3", "fd00::1", ()),
        node(address="gpu-st-p5-1"),
    ]
    assert addresses_to_ask(nodes) == ["10.0.0.2", "fd00::1"]


def test_agreeing_sources_say_nothing() -> None:
    found = map_nodes(Evidence([node()], {"gpu-st-p5-1": "i-1"}, {"gpu-st-p5-1": Told("i-1", 5.0)}, [ec2("i-1")]))
    assert found.ids == {"gpu-st-p5-1": "i-1"}
    assert found.types == {"gpu-st-p5-1": "p5.48xlarge"}
    assert found.notes == []


def test_a_stale_row_is_named_and_the_address_decides() -> None:
    found = map_nodes(Evidence([node()], {"gpu-st-p5-1": "i-old"}, {}, [ec2("i-new")]))
    assert found.ids == {"gpu-st-p5-1": "i-new"}
    assert "ParallelCluster's table says i-old, which is not alive" in found.notes[0]


def test_a_row_of_an_instance_that_lives_elsewhere_is_stale() -> None:
    found = map_nodes(Evidence([node()], {"gpu-st-p5-1": "i-2"}, {}, [ec2("i-1"), ec2("i-2", "10.0.0.2")]))
    assert found.ids == {"gpu-st-p5-1": "i-1"}
    assert "whose address is 10.0.0.2, and Slurm has 10.0.0.1" in found.stale["gpu-st-p5-1"]


def test_rows_of_nodes_that_are_off_are_no_news() -> None:
    found = map_nodes(Evidence([node(address="gpu-st-p5-1")], {"gpu-st-p5-1": "i-old"}, {}, []))
    assert found.ids == {"gpu-st-p5-1": ""}
    assert found.notes == []


def test_an_address_in_two_vpcs_decides_nothing() -> None:
    both = [ec2("i-1", vpc="vpc-1"), ec2("i-2", vpc="vpc-2")]
    found = map_nodes(Evidence([node()], instances=both))
    assert found.ids == {"gpu-st-p5-1": ""}
    assert "i-1 (vpc-1), i-2 (vpc-2)" in found.unmatched["gpu-st-p5-1"]
    # The table, or what the node says, is what decides then.
    assert map_nodes(Evidence([node()], {"gpu-st-p5-1": "i-2"}, {}, both)).ids == {"gpu-st-p5-1": "i-2"}
    assert map_nodes(Evidence([node(instance_id="i-1")], {}, {}, both)).ids == {"gpu-st-p5-1": "i-1"}


def test_of_two_clusters_in_one_account_the_own_one_counts() -> None:
    both = [ec2("i-1", **{"cluster": "mine"}), ec2("i-2", vpc="vpc-2", **{"cluster": "other"})]
    assert map_nodes(Evidence([node()], instances=both, tag=("cluster", "mine"))).ids == {"gpu-st-p5-1": "i-1"}
    assert map_nodes(Evidence([node()], instances=both, tag=("cluster", "third"))).ids == {"gpu-st-p5-1": ""}


def test_without_ec2_the_best_source_wins_and_a_difference_is_said() -> None:
    found = map_nodes(Evidence([node(instance_id="i-1")], {"gpu-st-p5-1": "i-2"}))
    assert found.ids == {"gpu-st-p5-1": "i-1"}
    assert "ParallelCluster's table says i-2, Slurm says i-1, which is used" in found.notes[0]


def test_a_fact_from_before_the_boot_counts_only_where_ec2_confirms_it() -> None:
    late = node("n1", "10.0.0.1", (), boot_time=100_000)
    told = {"n1": Told("i-1", 50_000.0, "p5.48xlarge")}
    assert map_nodes(Evidence([late], {}, told)).ids == {"n1": ""}
    assert "older than its boot" in map_nodes(Evidence([late], {}, told)).stale["n1"]
    assert map_nodes(Evidence([late], {}, told, [ec2("i-1")])).ids == {"n1": "i-1"}
    early = map_nodes(Evidence([late._replace(boot_time=50_100)], {}, told))
    assert (early.ids, early.types) == ({"n1": "i-1"}, {"n1": "p5.48xlarge"})


def test_one_instance_is_never_two_nodes() -> None:
    found = map_nodes(
        Evidence([node("n1", "a", ()), node("n2", "b", ())], {}, {"n1": Told("i-1", 1), "n2": Told("i-1", 2)})
    )
    assert found.ids == {"n1": "", "n2": ""}
    assert "behind n2 as well" in found.unmatched["n1"]


def test_a_name_as_address_is_matched_by_ec2s_own_name() -> None:
    named = Instance("i-7", addresses=("10.0.0.7",), private_dns="ip-10-0-0-7.ec2.internal")
    assert map_nodes(Evidence([node("n1", "ip-10-0-0-7", ())], instances=[named])).ids == {"n1": "i-7"}


def test_an_address_has_many_writings() -> None:
    found = map_nodes(Evidence([node("n1", "fd00:0:0::6", ())], {"n1": "i-6"}, {}, [ec2("i-6", "fd00::6")]))
    assert (found.ids, found.notes) == ({"n1": "i-6"}, [])
    assert map_nodes(Evidence([node("n1", "FD00::6", ())], instances=[ec2("i-6", "fd00::6")])).ids == {"n1": "i-6"}


def test_nobody_knows() -> None:
    assert "nobody says" in map_nodes(Evidence([node("n1", "n1", ())])).unmatched["n1"]
    assert "no instance that is alive" in map_nodes(Evidence([node()], instances=[])).unmatched["gpu-st-p5-1"]
