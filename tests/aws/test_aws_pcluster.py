"""ParallelCluster's names, files and table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_clock import Clock
from fake_dynamodb import FakeDynamoDb, running

from slurm_ext.aws import pcluster
from slurm_ext.aws.dynamodb import node_table
from slurm_ext.aws.pcluster import NodeName
from slurm_ext.aws.service import Service
from slurm_ext.errors import LackingError


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gpu-st-p5-1", NodeName("gpu", True, "p5", 1)),
        ("gpu-dy-p5-48xlarge-1000", NodeName("gpu", False, "p5-48xlarge", 1000)),
        ("a-b-c-st-d-e-7", NodeName("a-b-c", True, "d-e", 7)),
        # The queue takes all it can, as in ParallelCluster.
        ("q-st-x-dy-y-3", NodeName("q-st-x", False, "y", 3)),
        ("gpu-st-p5", None),
        ("Gpu-st-p5-1", None),
        ("n1", None),
        ("", None),
    ],
)
def test_names(text: str, parts: NodeName | None) -> None:
    assert pcluster.node_name(text) == parts


def test_the_head_nodes_files(tmp_path: Path) -> None:
    assert pcluster.cluster(str(tmp_path)) == pcluster.Cluster()
    assert pcluster.reservations(str(tmp_path)) == {}
    folder = tmp_path / "etc/parallelcluster/slurm_plugin"
    folder.mkdir(parents=True)
    (folder / "parallelcluster_clustermgtd.conf").write_text(
        "[clustermgtd]\ncluster_name = mine\nregion = us-east-2\nproxy = NONE\ndynamodb_table = parallelcluster-slurm-mine\n"
        "heartbeat_file_path = /opt/%x\ncluster_name = mine\n"
    )
    (folder / "fleet-config.json").write_text(
        '{"gb": {"p6e": {"Api": "run-instances", "CapacityReservationId": "cr-0123456789abcdef0"}, "x": {"Api": 1}}, "y": []}'
    )
    assert pcluster.cluster(str(tmp_path)) == pcluster.Cluster("mine", "us-east-2", "parallelcluster-slurm-mine")
    assert pcluster.reservations(str(tmp_path)) == {("gb", "p6e"): "cr-0123456789abcdef0"}
    (folder / "fleet-config.json").write_text("[]")
    (folder / "parallelcluster_clustermgtd.conf").write_text("no section\n")
    assert pcluster.reservations(str(tmp_path)) == {}
    assert pcluster.cluster(str(tmp_path)) == pcluster.Cluster()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[FakeDynamoDb, str]]:
    with running() as found:
        yield found


@pytest.fixture
def table(server: tuple[FakeDynamoDb, str], monkeypatch: pytest.MonkeyPatch) -> tuple[FakeDynamoDb, Service]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFAKE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    fake, url = server
    FakeDynamoDb.__init__(fake)
    fake.tables["t"] = [{"Id": f"gpu-st-p5-{n}", "InstanceId": f"i-{n:017x}"} for n in range(1, 251)]
    fake.tables["t"] += [{"Id": "COMPUTE_FLEET", "Status": "RUNNING"}, {"Id": "gpu-st-p5-999", "InstanceId": "none"}]
    clock = Clock()
    return fake, Service("dynamodb", region="us-east-2", endpoint=url, clock=clock, sleep=clock.sleep)


NODES = [f"gpu-st-p5-{n}" for n in (1, 2, 250, 999, 1000)]
ROWS = {f"gpu-st-p5-{n}": f"i-{n:017x}" for n in (1, 2, 250)}


def test_the_table_is_read_page_by_page(table: tuple[FakeDynamoDb, Service]) -> None:
    fake, dynamodb = table
    fake.throttled = 2
    assert node_table(dynamodb, "t", NODES) == ROWS
    assert fake.calls["Scan"] == 5


def test_single_rows_are_read_where_the_table_may_not_be(table: tuple[FakeDynamoDb, Service]) -> None:
    fake, dynamodb = table
    fake.denied = {"Scan"}
    assert node_table(dynamodb, "t", NODES) == ROWS
    assert fake.calls == {"Scan": 1, "GetItem": 5}
    fake.denied = {"Scan", "GetItem"}
    with pytest.raises(LackingError, match="dynamodb:GetItem"):
        node_table(dynamodb, "t", NODES)


def test_a_table_that_is_not_there_is_named(table: tuple[FakeDynamoDb, Service]) -> None:
    with pytest.raises(LackingError, match="other is not in this account"):
        node_table(table[1], "other", NODES)
