"""Lists of nodes and recorded answers: what is wrong is named with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_ext.aws.ec2 import parse_instance_topology
from slurm_ext.errors import UsageError
from slurm_ext.topology.sources import join, node_map, recorded

ANSWER = {
    "Instances": [
        {
            "InstanceId": "i-01",
            "InstanceType": "p5.48xlarge",
            "GroupName": "pg",
            "NetworkNodes": ["nn-a", "nn-b", "nn-c"],
            "AvailabilityZone": "us-east-2a",
            "ZoneId": "use2-az1",
        },
        {"InstanceId": "i-02", "InstanceType": "p5.48xlarge", "NetworkNodes": None, "ZoneId": "use2-az1"},
    ]
}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,id\nn1,i-1\n", "line 1"),
        ("node,instance_id\nn1,i-1\nn1,i-2\n", "line 3"),
        ("node,instance_id\n,i-1\n", "line 2"),
    ],
)
def test_a_bad_list_of_nodes_names_the_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "nodes.csv").write_text(text)
    with pytest.raises(UsageError, match=words):
        node_map(str(tmp_path / "nodes.csv"))


def test_a_missing_list_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nodes\.csv"):
        node_map(str(tmp_path / "nodes.csv"))


@pytest.mark.parametrize(
    "text", ["", "[1]", "{}", '{"Instances": [{}]}', '{"Instances": [{"InstanceId": "i", "NetworkNodes": [1]}]}']
)
def test_what_is_no_answer_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "ec2.json").write_text(text)
    with pytest.raises(UsageError, match=r"ec2\.json"):
        recorded(str(tmp_path / "ec2.json"))


def test_pages_in_a_list_are_one_answer() -> None:
    assert len(parse_instance_topology([ANSWER, ANSWER])) == 4


def test_join_keeps_every_node_and_says_what_is_odd(tmp_path: Path) -> None:
    (tmp_path / "ec2.json").write_text(json.dumps(ANSWER))
    placements, notes = join({"n1": "i-01", "n2": "i-02", "n3": "i-09", "n4": ""}, recorded(str(tmp_path / "ec2.json")))
    assert [(p.node, p.path) for p in placements] == [
        ("n1", ("nn-a", "nn-b", "nn-c")),
        ("n2", ()),
        ("n3", ()),
        ("n4", ()),
    ]
    assert notes == ["EC2's answer has no place for n3 (i-09)"]
    _, notes = join({"n1": "i-01"}, recorded(str(tmp_path / "ec2.json")))
    assert notes == ["i-02: in EC2's answer, and no node of ours"]
    many = [
        instance._replace(instance_id=f"i-{number}")
        for number in range(30)
        for instance in recorded(str(tmp_path / "ec2.json"))[:1]
    ]
    _, notes = join({"n1": "i-x"}, many)
    assert notes[1].endswith("and 25 more: in EC2's answer, and no node of ours")
