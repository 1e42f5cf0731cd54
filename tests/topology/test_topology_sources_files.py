"""Files of places: what is right is read, what is wrong is named with file, line and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.aws.ec2_reservations import ReservationTopology
from slurm_ext.errors import UsageError
from slurm_ext.topology import place_file
from slurm_ext.topology.domains import contradictions, with_cliques
from slurm_ext.topology.model import Placement
from slurm_ext.topology.sources import FromFile, before_launch, from_slurm, join, node_list, read_file, recorded

CSV = """# racks of the west hall
node,path,zone,clique
n[1-2],spine/row1/rack1,west,
n3,spine / row1 / rack2,west,u.1

n4,,west,
"""
JSON = {
    "schema": 1,
    "nodes": [
        {"node": "n[1-2]", "path": ["spine", "row1", "rack1"], "zone": "west"},
        {"node": "n3", "path": ["spine", "row1", "rack2"], "zone": "west", "clique": "u.1"},
        {"node": "n4", "zone": "west", "path": None},
    ],
}
PLACES = (
    Placement("n1", path=("spine", "row1", "rack1"), zone="west"),
    Placement("n2", path=("spine", "row1", "rack1"), zone="west"),
    Placement("n3", path=("spine", "row1", "rack2"), zone="west", clique="u.1"),
    Placement("n4", zone="west"),
)


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("\ufeff" + CSV)
    (tmp_path / "p.json").write_text(json.dumps(JSON, indent=1))
    assert read_file(str(tmp_path / "p.csv")) == FromFile(PLACES)
    assert read_file(str(tmp_path / "p.json")) == FromFile(PLACES)
    with pytest.raises(UsageError, match="no recorded answer"):
        recorded(str(tmp_path / "p.csv"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no node"),
        ("node,rack\nn1,r\n", "line 1: column 'rack'"),
        ("node,node\nn1,n2\n", "line 1: column 'node'"),
        ("path\na\n", "line 1: there is no column node"),
        ("node,path\nn1\n", "line 2: 1 cells below 2 columns"),
        ("node,path\nn1,a/b\nn1,a/b\n", "line 3, key node: node n1 a second time"),
        ("node,path\nn[1-2],a\nn2,a\n", "line 3, key node: node n2 a second time"),
        ("node,path\nn1,a//b\n", "line 2, key path: '' is no id"),
        ("node,path\nn1,a b\n", "line 2, key path: 'a b' is no id"),
        ("node,path\nn1,a/a\n", "line 2, key path: more than 16 tiers, or one of them twice"),
        ("node,path\nn1,a/b\nn2,x/b\n", "line 3, key path: b is below x here and below a in"),
        ("node,path\nn1,a/b\nn2,b\n", "line 3, key path: b is below nothing here and below a in"),
        ("node,path\nn[1-,a\n", "line 2, key node: 'n[1-'"),
        ("node,path\n,a\n", "line 2, key node: no node name"),
        ("node,instance_id\nn[1-2],i-1\n", "line 2, key instance_id: one instance"),
        ("node,zone\nn1,west wing\n", "line 2, key zone"),
        ('node,zone\n"n1,west\n', "line 2: no CSV"),
        ("node,path\nn[1-70000],a\n", "line 2, key node"),
    ],
)
def test_a_wrong_csv_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_file(str(path))
    assert str(path) in caught.value.message
    assert words in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema": 1,\n"nodes": [\n{"node": "n1",}]}', "line 3: no JSON"),
        ('{"schema": 2, "nodes": [{"node": "n1"}]}', "key schema: 2 is not 1"),
        ('{"nodes": []}', "key schema: None is not 1"),
        ('{"schema": true, "nodes": []}', "key schema: True"),
        ('{"schema": 1, "nodes": {}}', "key nodes: not a list"),
        ('{"schema": 1, "nodes": [], "more": 1}', "unknown key 'more'"),
        ('{"schema": 1, "nodes": []}', "names no node"),
        (
            '{"schema": 1, "nodes": [\n{"node": "n1"},\n\n{"node": "n2", "rack": 1}]}',
            "line 4, nodes[1]: unknown key 'rack'",
        ),
        ('{"schema": 1, "nodes": [\n{"node": "n1"}, 7]}', "line 2, nodes[1]: not an object"),
        ('{"schema": 1, "nodes": [{"node": "n1",\n "path": "a/b"}]}', "nodes[0], key path: not a list"),
        ('{"schema": 1, "nodes": [{"node": "n1", "path": [1]}]}', "key path: '1' is no id"),
        ('{"schema": 1, "nodes": [{"node": 1}]}', "key node: 1 is no text"),
        ('{"schema": 1, "nodes": [{"node": "n1", "node": "n2"}]}', "key 'node' twice"),
        ('{"schema": 1, "nodes": [{"node": ""}]}', "line 1, nodes[0], key node: no node name"),
        ("[" * 100000, "no JSON"),
        ('"text"', "not a DescribeInstanceTopology answer"),
    ],
)
def test_a_wrong_json_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_file(str(path))
    assert str(path) in caught.value.message
    assert words in caught.value.message


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_bytes(b"node\nn1\nn\xff\n")
    with pytest.raises(UsageError, match="line 3: no UTF-8"):
        read_file(str(tmp_path / "p.csv"))


@given(st.text(max_size=200), st.sampled_from(["p.csv", "p.json"]))
def test_any_text_is_read_or_refused(text: str, name: str) -> None:
    try:
        found = [placement.node for placement in place_file.read(name, text)]
    except UsageError as exc:
        found = [exc.message]
    assert found


def test_the_list_of_nodes_has_more_columns(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("node,instance_id,reservation_id,port,rack\nn1,i-1,,7000,r\nn2,,cr-1,,r\n")
    found = node_list(str(path))
    assert (found["n1"].instance_id, found["n1"].port) == ("i-1", 7000)
    assert found["n2"].reservation_id == "cr-1"
    path.write_text("node,instance_id,port\nn1,i-1,x\n")
    with pytest.raises(UsageError, match="line 2: node n1: port 'x'"):
        node_list(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node,instance_id,node\nn1,i-1,n2\n", "line 1: column node twice"),
        ("node,instance_id\nn1,i-1\nn2,i-2,i-3\n", "line 3: more cells than columns"),
        ("node,instance_id\nn[1-2],i-1\n", r"line 2: 'n\[1-2\]' is no node name"),
        ('node,instance_id\nn1,i-1\n"n\n2",i-2\n', "is no node name"),
        ("node,instance_id\na b,i-1\n", "line 2: 'a b' is no node name"),
        ("node,instance_id,port\nn1,i-1,\u00b2\n", "is no port"),
        ("node,instance_id,port\nn1,i-1,70000\n", "is no port"),
    ],
)
def test_a_list_of_nodes_that_is_wrong_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        node_list(str(tmp_path / "nodes.csv"))


def test_a_list_of_nodes_as_a_spreadsheet_saves_it(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_bytes(b"\xef\xbb\xbfnode , instance_id,\r\nN_1.a , i-1 ,\r\n\r\nn007-ib,,\r\n")
    assert {node: one.instance_id for node, one in node_list(str(tmp_path / "nodes.csv")).items()} == {
        "N_1.a": "i-1",
        "n007-ib": "",
    }


def test_a_zone_is_one_though_a_row_lacks_its_id() -> None:
    from slurm_ext.aws.ec2 import InstanceTopology

    rows = [
        InstanceTopology("i-1", "", ("a",), "us-east-2a", "use2-az1"),
        InstanceTopology("i-2", "", ("a",), "us-east-2a", ""),
        InstanceTopology("i-3", "", ("b",), "us-east-2b", ""),
    ]
    placements, _ = join({"n1": "i-1", "n2": "i-2", "n3": "i-3"}, rows)
    assert [placement.zone for placement in placements] == ["use2-az1", "use2-az1", "us-east-2b"]


def test_an_instance_of_two_nodes_is_said() -> None:
    from slurm_ext.aws.ec2 import InstanceTopology

    placements, notes = join({"n1": "i-1", "n2": "i-1"}, [InstanceTopology("i-1", network_nodes=("a", "b"))])
    assert [placement.path for placement in placements] == [("a", "b"), ()]
    assert notes == ["n2: i-1 is another node's as well"]


def test_nodes_that_do_not_run_take_the_place_of_their_reservation() -> None:
    told = [
        ReservationTopology("cr-1", "p5.48xlarge", ("a", "b"), "us-east-2a", "use2-az1", "cb-1"),
        ReservationTopology("cr-2"),
    ]
    before = [
        Placement("n1", "i-1", "p5.48xlarge", ("a", "b", "c"), "use2-az1"),
        Placement("n2"),
        Placement("n3"),
        Placement("n4"),
    ]
    after, notes = before_launch(before, {"n1": "cr-1", "n2": "cr-1", "n3": "cr-2"}, told)
    assert after[0] == before[0]
    assert after[1] == Placement("n2", "", "p5.48xlarge", ("a", "b"), "use2-az1", "cb-1")
    assert after[2:] == before[2:]
    assert notes == ["1 nodes that do not run yet are placed by cr-1: 2 tiers are known before the launch"]


def test_a_running_slurm_tells_its_tree_or_its_blocks() -> None:
    paths = {"n1": ("root", "leaf1"), "n2": ("root", "leaf2"), "n3": ()}
    tree = from_slurm(paths, "topology/tree")
    assert tree[0] == Placement("n1", path=("root", "leaf1"), zone="root")
    assert tree[2] == Placement("n3")
    blocks = from_slurm({"n1": ("b[0-1]", "b0")}, "topology/block")
    assert blocks == [Placement("n1", ultraserver_id="b0")]


GB = "p6e-gb200.36xlarge"


def gb(node: str, block: str = "cb-1", server: str = "", clique: str = "u.1", zone: str = "z") -> Placement:
    return Placement(node, f"i-{node}", GB, ("a",), zone, block, server, clique)


@pytest.mark.parametrize(
    ("placements", "words"),
    [
        ([gb("n1"), gb("n2", clique="u.2")], []),  # one capacity block may hold several domains
        ([gb("n1"), gb("n2", "cb-2")], ["NVLink clique u.1 lies in 2 capacity blocks: cb-1 (n1), cb-2 (n2)"]),
        ([gb("n1", server="us-1"), gb("n2", server="us-2")], ["NVLink clique u.1 lies in 2 UltraServers"]),
        (
            [gb("n1", server="us-1"), gb("n2", server="us-1", clique="u.2")],
            ["UltraServer us-1 lies in 2 NVLink cliques"],
        ),
        ([gb("n1"), gb("n2", zone="y")], ["lies in several zones: n[1-2]"]),
        ([gb(f"n{i}") for i in range(19)], ["has 19 nodes, and no UltraServer has more than 18"]),
        ([gb("n1", clique=""), gb("n2", clique="")], ["nobody says which NVLink domain n[1-2] are in"]),
        ([gb("n1", clique="", server="us-1")], []),
        ([Placement("n1", "i-1", "p5.48xlarge", ("a",), "z", "cb-1")], []),
    ],
)
def test_what_cannot_be_true_together(placements: list[Placement], words: list[str]) -> None:
    found = contradictions(placements)
    assert len(found) == len(words)
    for note, word in zip(found, words, strict=True):
        assert word in note


def test_cliques_of_nodes_fill_in_what_no_source_named() -> None:
    assert with_cliques([gb("n1", clique=""), gb("n2")], {"n1": "u.9", "n2": "u.8"}) == [
        gb("n1", clique="u.9"),
        gb("n2"),
    ]
