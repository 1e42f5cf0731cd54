"""From the list of nodes to places, with boto3 against the fakes of EC2 and DynamoDB: every source, and what is said on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from fake_dynamodb import FakeDynamoDb
from fake_dynamodb import running as running_dynamodb
from fake_ec2 import FakeEc2

from slurm_ext.aws.service import Service
from slurm_ext.config.model import Settings
from slurm_ext.errors import LackingError, SlurmError, UsageError
from slurm_ext.slurm.model import Node, Partition
from slurm_ext.topology.discover import Discovered, discover
from slurm_ext.topology.model import Placement
from slurm_ext.topology.place_fact import Place
from slurm_ext.topology.reach import Choice, Reach

GB = "p6e-gb200.36xlarge"
BY_EC2, NOTHING = Choice(), MappingProxyType[str, Any]({})


class Told:
    """What a Slurm would tell: only these three are asked for."""

    def __init__(
        self,
        nodes: list[Node],
        paths: Mapping[str, tuple[str, ...]] = NOTHING,
        plugin: str = "topology/tree",
        hidden: str = "",
    ) -> None:
        self._nodes, self._paths, self._plugin, self._hidden = nodes, paths, plugin, hidden

    def nodes(self) -> list[Node]:
        if not self._nodes:
            raise SlurmError("scontrol: no answer in 10 s")
        return self._nodes

    def partitions(self) -> list[Partition]:
        return [Partition("all", nodes=self._hidden)]

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        return self._paths

    def config(self) -> Mapping[str, str]:
        return {"TopologyPlugin": self._plugin}


@pytest.fixture(scope="module")
def table_server() -> Iterator[tuple[FakeDynamoDb, str]]:
    with running_dynamodb() as found:
        yield found


@pytest.fixture
def table(table_server: tuple[FakeDynamoDb, str]) -> FakeDynamoDb:
    FakeDynamoDb.__init__(table_server[0])
    return table_server[0]


@pytest.fixture
def look(
    fake: FakeEc2, ask: Callable[..., Service], table_server: tuple[FakeDynamoDb, str], tmp_path: Path
) -> Callable[..., Discovered]:
    def run(
        nodes: list[Node],
        choice: Choice = BY_EC2,
        *,
        paths: Any = NOTHING,
        plugin: str = "",
        places: Any = NOTHING,
        hidden: str = "",
        **keys: str,
    ) -> Discovered:
        dynamodb = Service("dynamodb", region="us-east-2", endpoint=table_server[1])
        reach = Reach(
            lambda: Told(nodes, paths, plugin, hidden),  # type: ignore[arg-type, return-value]
            ask,
            lambda: dynamodb,
            lambda: places,
            str(tmp_path),
        )
        plain = Settings()
        settings = plain._replace(topology=plain.topology._replace(**keys), site=plain.site._replace(share="/share"))
        return discover(settings, choice, reach)

    return run


def cloud(number: int, address: str = "", name: str = "gpu-st-p5") -> Node:
    node = f"{name}-{number}"
    return Node(node, "IDLE", ("CLOUD",), address=address or node)


def test_a_parallelcluster_by_its_table_its_addresses_and_ec2(
    fake: FakeEc2, table: FakeDynamoDb, look: Callable[..., Discovered]
) -> None:
    tags = {"parallelcluster:cluster-name": "mine"}
    for number in range(1, 4):
        fake.launch(f"i-{number:08x}", "top", f"m{number}", f"l{number}", address=f"10.0.0.{number}", tags=tags)
    fake.launch(
        "i-000000ff", "top", "m9", "l9", address="10.0.0.1", vpc="vpc-2", tags={"parallelcluster:cluster-name": "other"}
    )
    table.tables["t"] = [
        {"Id": "gpu-st-p5-1", "InstanceId": "i-00000001"},
        {"Id": "gpu-st-p5-2", "InstanceId": "i-0000dead"},
        {"Id": "gpu-st-p5-4", "InstanceId": "i-0000beef"},
    ]
    nodes = [cloud(1, "10.0.0.1"), cloud(2, "10.0.0.2"), cloud(3, "10.0.0.3"), cloud(4)]
    found = look(nodes, node_table="t", instance_tag="parallelcluster:cluster-name=mine")
    assert [(one.node, one.instance_id, one.path) for one in found.placements] == [
        ("gpu-st-p5-1", "i-00000001", ("top", "m1", "l1")),
        ("gpu-st-p5-2", "i-00000002", ("top", "m2", "l2")),
        ("gpu-st-p5-3", "i-00000003", ("top", "m3", "l3")),
        ("gpu-st-p5-4", "", ()),
    ]
    assert found.placements[0].zone == "use2-az1"
    assert len(found.notes) == 1
    assert "gpu-st-p5-2: ParallelCluster's table says i-0000dead, which is not alive" in found.notes[0]
    assert fake.calls == {"DescribeInstances": 1, "DescribeInstanceTopology": 1}


def test_without_a_tag_addresses_and_ids_are_asked_for(
    fake: FakeEc2, table: FakeDynamoDb, look: Callable[..., Discovered]
) -> None:
    fake.launch("i-00000001", "a", "b", "c", address="10.0.0.1")
    fake.launch("i-00000002", "a", "b", "d", address="10.9.9.9")
    fake.launch("i-00000003", "a", "b", "d", address="10.0.0.1", vpc="vpc-2")
    nodes = [Node("n1", address="10.0.0.1"), Node("n2", address="n2")]
    found = look(nodes, places={"n2": Place("n2", "i-00000002", "p5.48xlarge", at_s=1.0)})
    assert [one.path for one in found.placements] == [(), ("a", "b", "d")]
    assert "n1: its address 10.0.0.1 belongs to i-00000001 (vpc-1), i-00000003 (vpc-2)" in found.notes[0]


def test_ec2_that_lists_no_instances_leaves_the_rest_of_the_evidence(
    fake: FakeEc2, table: FakeDynamoDb, look: Callable[..., Discovered]
) -> None:
    fake.launch("i-00000001", "a", "b", "c", address="10.0.0.1")
    fake.faults = lambda action, _number, _form: (
        (403, "UnauthorizedOperation", "You may not") if action == "DescribeInstances" else None
    )
    table.tables["t"] = [{"Id": "gpu-st-p5-1", "InstanceId": "i-00000001"}]
    found = look([cloud(1, "10.0.0.1")], node_table="t")
    assert found.placements[0].path == ("a", "b", "c")
    assert "ec2:DescribeInstances" in found.notes[0]
    table.denied = {"Scan", "GetItem"}
    with pytest.raises(LackingError, match="the instance of none of 1 nodes is known") as caught:
        look([cloud(1, "10.0.0.1")], node_table="t")
    assert "--nodes" in caught.value.remedy


def test_the_same_reason_is_told_once(
    fake: FakeEc2, table: FakeDynamoDb, look: Callable[..., Discovered], tmp_path: Path
) -> None:
    lines = ["node,instance_id"]
    for number in range(300):
        if number % 3:
            fake.launch(
                f"i-{number:08x}", "a", "b", f"c{number % 7}", state="running" if number % 3 == 1 else "stopped"
            )
        lines.append(f"n{number},i-{number:08x}")
    (tmp_path / "nodes.csv").write_text("\n".join(lines))
    found = look([], Choice(nodes_file=str(tmp_path / "nodes.csv")))
    assert sum(1 for one in found.placements if one.path) == 100
    assert len(found.notes) == 2
    assert all(len(note) < 400 for note in found.notes)
    for one in fake.instances.values():
        one["state"] = "stopped"
    with pytest.raises(LackingError, match="EC2 tells the place of none of 300 instances"):
        look([], Choice(nodes_file=str(tmp_path / "nodes.csv")))


def test_slurm_that_does_not_answer_is_said_with_the_way_round(look: Callable[..., Discovered]) -> None:
    with pytest.raises(LackingError, match="no list of nodes") as caught:
        look([])
    assert "--nodes" in caught.value.remedy


def test_nodes_that_slurm_hides_are_members_of_partitions(
    fake: FakeEc2, table: FakeDynamoDb, look: Callable[..., Discovered]
) -> None:
    fake.launch("i-00000001", "a", "b", "c", address="10.0.0.1")
    found = look([cloud(1, "10.0.0.1")], hidden="gpu-st-p5-[1-3]")
    assert [(one.node, bool(one.path)) for one in found.placements] == [
        ("gpu-st-p5-1", True),
        ("gpu-st-p5-2", False),
        ("gpu-st-p5-3", False),
    ]
    assert found.notes == []
    found = look([cloud(1, "10.0.0.1")], Choice("cluster"), paths={"gpu-st-p5-1": ("leaf",)}, hidden="gpu-st-p5-[1-2]")
    assert [one.node for one in found.placements] == ["gpu-st-p5-1", "gpu-st-p5-2"]
    assert len(look([cloud(1, "10.0.0.1")], hidden="n[1-").placements) == 1


def test_a_running_cluster_tells_its_own(look: Callable[..., Discovered], fake: FakeEc2) -> None:
    nodes = [Node("n1"), Node("n2")]
    found = look(nodes, Choice("cluster"), paths={"n1": ("root", "leaf")})
    assert found.placements == [Placement("n1", path=("root", "leaf"), zone="root"), Placement("n2")]
    assert found.notes == ["Slurm's own topology does not have n2"]
    assert not fake.calls
    with pytest.raises(LackingError, match="no topology"):
        look(nodes, Choice("cluster"))


def test_auto_takes_the_first_that_is_there(look: Callable[..., Discovered], fake: FakeEc2, tmp_path: Path) -> None:
    (tmp_path / "places.csv").write_text("node,path\nn1,a/b\n")
    found = look([], Choice("auto", str(tmp_path / "places.csv")))
    assert found.placements == [Placement("n1", path=("a", "b"))]
    fake.launch("i-00000001", "a", "b", "c", address="10.0.0.1")
    nodes = [Node("n1", address="10.0.0.1")]
    assert look(nodes, Choice("auto"), paths={"n1": ("x",)}).placements[0].path == ("a", "b", "c")
    fake.faults = lambda _action, _number, _form: "expired"
    found = look(nodes, Choice("auto"), paths={"n1": ("x",)})
    assert found.placements[0].path == ("x",)
    assert "EC2 cannot tell the places" in found.notes[0]
    assert "what the running Slurm has is taken" in found.notes[0]


def test_a_file_of_places_and_a_list_of_nodes_are_compared(look: Callable[..., Discovered], tmp_path: Path) -> None:
    (tmp_path / "places.csv").write_text("node,path\nn[1-2],a/b\n")
    (tmp_path / "nodes.csv").write_text("node,instance_id\nn2,i-2\nn3,i-3\n")
    found = look([], Choice("file", str(tmp_path / "places.csv"), str(tmp_path / "nodes.csv")))
    assert [one.node for one in found.placements] == ["n1", "n2", "n3"]
    assert "does not place n3" in found.notes[0]
    assert "does not list n1" in found.notes[1]
    with pytest.raises(UsageError, match="no file of places"):
        look([], Choice("file"))


def test_reservations_place_what_does_not_run_yet(
    fake: FakeEc2, look: Callable[..., Discovered], tmp_path: Path
) -> None:
    fake.reservations = {
        "cr-0000aaaa": {"nodes": ["top", "m1"], "type": GB, "block": "cb-1"},
        "cr-0000bbbb": {"nodes": ["top"]},
    }
    fake.launch("i-00000001", "top", "m1", "l1")
    (tmp_path / "nodes.csv").write_text(
        "node,instance_id,reservation_id\nn1,i-00000001,cr-0000aaaa\nn2,,cr-0000aaaa\nn3,,\n"
    )
    named = str(tmp_path / "nodes.csv")
    found = look([], Choice(nodes_file=named, reservations=("auto",)))
    assert [(one.node, one.path) for one in found.placements] == [
        ("n1", ("top", "m1", "l1")),
        ("n2", ("top", "m1")),
        ("n3", ()),
    ]
    assert found.placements[1].capacity_block_id == "cb-1"
    assert "1 nodes that do not run yet are placed by cr-0000aaaa: 2 tiers" in found.notes[0]
    found = look([], Choice(nodes_file=named, reservations=("n[3-4]=cr-0000bbbb", "cr-0000bbbb")))
    assert {one.node: one.path for one in found.placements if one.path == ("top",)} == dict.fromkeys(
        ("n3", "n4", "cr-0000bbbb"), ("top",)
    )
    with pytest.raises(UsageError, match="--reservation n"):
        look([], Choice(nodes_file=named, reservations=("n[3-=cr-0000bbbb",)))
    (tmp_path / "nodes.csv").write_text("node,instance_id\nn1,i-00000001\n")
    with pytest.raises(UsageError, match="no node is to be launched"):
        look([], Choice(nodes_file=named, reservations=("auto",)))


def test_parallelclusters_fleet_file_names_reservations(
    fake: FakeEc2, table: FakeDynamoDb, look: Callable[..., Discovered], tmp_path: Path
) -> None:
    folder = tmp_path / "etc/parallelcluster/slurm_plugin"
    folder.mkdir(parents=True)
    (folder / "fleet-config.json").write_text('{"gpu": {"p5": {"CapacityReservationId": "cr-0000aaaa"}}}')
    fake.reservations = {"cr-0000aaaa": {"nodes": ["top", "m1"]}}
    found = look([cloud(1), cloud(2)], Choice(reservations=("auto",)))
    assert [one.path for one in found.placements] == [("top", "m1")] * 2


def test_cliques_come_from_the_nodes_of_these_instances_alone(
    fake: FakeEc2, look: Callable[..., Discovered], tmp_path: Path
) -> None:
    for number in (1, 2):
        fake.launch(f"i-0000000{number}", "a", "b", "c", type=GB, block="cb-1")
    (tmp_path / "nodes.csv").write_text("node,instance_id\nn1,i-00000001\nn2,i-00000002\n")
    uuid = "12345678-1234-1234-1234-123456789abc"
    places = {
        "n1": Place("n1", "i-00000001", GB, clique=f"{uuid}.1"),
        "n2": Place("n2", "i-0000dead", GB, clique=f"{uuid}.2"),
    }
    choice = Choice(nodes_file=str(tmp_path / "nodes.csv"))
    found = look([], choice, places=places)
    assert [one.clique for one in found.placements] == [f"{uuid}.1", ""]
    assert [one.capacity_block_id for one in found.placements] == ["cb-1", "cb-1"]
    assert "nobody says which NVLink domain n2" in found.notes[-1]
    assert "the share does not answer" in look([], choice, places=None).notes[0]


def test_a_tag_that_is_none_is_refused(look: Callable[..., Discovered]) -> None:
    with pytest.raises(UsageError, match="KEY=VALUE"):
        look([cloud(1, "10.0.0.1")], instance_tag="cluster")


def listed(tmp_path: Path, **ids: str) -> Choice:
    rows = "".join(f"{node},{instance_id}\n" for node, instance_id in ids.items())
    (tmp_path / "nodes.csv").write_text(f"node,instance_id\n{rows}")
    return Choice(nodes_file=str(tmp_path / "nodes.csv"))


def test_nodes_that_could_not_be_asked_are_told_from_those_that_do_not_run(
    fake: FakeEc2, look: Callable[..., Discovered], tmp_path: Path
) -> None:
    ids = {f"n{number}": f"i-{number:08x}" for number in range(1, 251)}
    for instance_id in ids.values():
        fake.launch(instance_id, "a", "b", "c")
    fake.instances[ids["n1"]]["state"] = "stopped"
    fake.instances[ids["n2"]] |= {"type": "c5.large", "nodes": ()}
    fake.end(ids["n3"])
    fake.faults = lambda _action, _number, form: "broken-inside" if ids["n150"] in form.values() else None
    found = look([], listed(tmp_path, **ids, n251=""))
    assert {one.node for one in found.placements if not one.path} - found.unasked == {"n1", "n2", "n3", "n251"}
    assert found.unasked == {f"n{number}" for number in range(101, 201)}
    fake.faults = lambda _action, _number, _form: None
    assert look([], listed(tmp_path, **ids)).unasked == frozenset()


def test_a_node_that_ec2s_answer_lacks_was_not_answered_for(
    fake: FakeEc2, look: Callable[..., Discovered], tmp_path: Path
) -> None:
    fake.launch("i-00000001", "a", "b", "c")
    fake.launch("i-00000002", "a", "b", "c")
    fake.silent_on = {"i-00000002"}
    found = look([], listed(tmp_path, n1="i-00000001", n2="i-00000002"))
    assert found.unasked == {"n2"}
    assert "EC2's answer lacks it" in found.notes[0]


def test_an_instance_that_runs_by_one_call_and_has_no_place_by_the_other_may_get_one(
    fake: FakeEc2, table: FakeDynamoDb, look: Callable[..., Discovered]
) -> None:
    for number, kind in ((1, "p5.48xlarge"), (2, "p5.48xlarge"), (3, "c5.large")):
        fake.launch(f"i-0000000{number}", *("abc" if number == 1 else ()), type=kind, address=f"10.0.0.{number}")
    found = look([cloud(number, f"10.0.0.{number}") for number in (1, 2, 3)])
    assert found.unasked == {"gpu-st-p5-2"}
    assert "gpu-st-p5-2: EC2 lists it as running, and gives no network nodes for it yet" in found.notes


def test_nodes_whose_instance_nobody_knows_may_run_where_they_ran(
    fake: FakeEc2, table: FakeDynamoDb, look: Callable[..., Discovered]
) -> None:
    fake.launch("i-00000001", "a", "b", "c", address="10.0.0.1")
    fake.launch("i-00000002", "a", "b", "c", address="10.0.0.2")
    fake.launch("i-00000003", "a", "b", "c", address="10.0.0.2", vpc="vpc-2")
    table.tables["t"] = [
        {"Id": "gpu-st-p5-1", "InstanceId": "i-00000001"},
        {"Id": "gpu-st-p5-5", "InstanceId": "i-00000005"},
        {"Id": "gpu-st-p5-6", "InstanceId": "i-00000005"},
    ]
    nodes = [cloud(number, f"10.0.0.{number}") for number in (1, 2, 3)]
    # Two instances have the address of 2, none has that of 3, and 4 is powered down.
    found = look([*nodes, cloud(4)], node_table="t")
    assert found.unasked == {"gpu-st-p5-2"}
    fake.faults = lambda action, _number, _form: "throttle" if action == "DescribeInstances" else None
    fake.launch("i-00000005", "a", "b", "c", address="10.0.0.5")
    found = look([*nodes, cloud(4), cloud(5, "10.0.0.5"), cloud(6, "10.0.0.6")], node_table="t")
    assert found.unasked == {f"gpu-st-p5-{number}" for number in (2, 3, 5, 6)}
    assert [one.node for one in found.placements if one.path] == ["gpu-st-p5-1"]


def test_a_recording_and_a_running_slurm_say_whom_they_do_not_have(
    look: Callable[..., Discovered], tmp_path: Path
) -> None:
    (tmp_path / "answer.json").write_text(
        '{"Instances": [{"InstanceId": "i-1", "NetworkNodes": ["a"]}, {"InstanceId": "i-2"}]}'
    )
    named = listed(tmp_path, n1="i-1", n2="i-2", n3="i-3", n4="")
    assert look([], named._replace(source="file", source_file=str(tmp_path / "answer.json"))).unasked == {"n3"}
    (tmp_path / "places.csv").write_text("node,path\nn1,a\n")
    assert look([], named._replace(source="file", source_file=str(tmp_path / "places.csv"))).unasked == frozenset()
    found = look([Node("n1"), Node("n2"), cloud(3), cloud(4, "10.0.0.4")], Choice("cluster"), paths={"n1": ("leaf",)})
    assert found.unasked == {"n2", "gpu-st-p5-4"}


def test_a_recording_that_places_nobody_is_no_topology(look: Callable[..., Discovered], tmp_path: Path) -> None:
    for text in (
        '{"Instances": []}',
        '{"Instances": [{"InstanceId": "i-9", "NetworkNodes": ["a"]}, {"InstanceId": "i-1"}]}',
    ):
        (tmp_path / "answer.json").write_text(text)
        choice = listed(tmp_path, n1="i-1", n2="")._replace(source="file", source_file=str(tmp_path / "answer.json"))
        with pytest.raises(LackingError, match="tells the place of none of 1 instances"):
            look([], choice)
    # Where nothing runs, nothing was to be told; a person hears of it.
    off = look([], listed(tmp_path, n1="")._replace(source="file", source_file=choice.source_file))
    assert "nobody knows the place of any of 1 nodes" in off.notes[-1]
    assert [
        one.path
        for one in look([], listed(tmp_path, n1="")._replace(source="file", source_file=choice.source_file)).placements
    ] == [()]


def test_domains_that_could_not_be_heard_of_are_told_from_nodes_that_have_none(
    fake: FakeEc2, look: Callable[..., Discovered], tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        fake.launch(f"i-0000000{number}", "a", "b", "c", type=GB, block="cb-1" if number < 3 else "")
    fake.launch("i-00000004", "a", "b", "d")
    choice = listed(tmp_path, n1="i-00000001", n2="i-00000002", n3="i-00000003", n4="i-00000004", n5="")
    places = {"n1": Place("n1", "i-00000001", GB, clique="12345678-1234-1234-1234-123456789abc.1")}
    assert look([], choice, places=places).unheard == {"n3"}
    assert look([], choice, places=None).unheard == {"n1", "n2", "n3"}
    assert look([], choice, places=None).unasked == frozenset()
