"""topology.conf, order, spread and pictures, as text."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from slurm_ext.slurm.model import Version
from slurm_ext.topology.blocks import plan
from slurm_ext.topology.build import build, switch_name
from slurm_ext.topology.model import Placement, Tree
from slurm_ext.topology.order import hostfile, rank_order, spread, tree_order
from slurm_ext.topology.render import topology_conf
from slurm_ext.topology.render_graph import dot, picture_lines, svg
from slurm_ext.topology.render_html import html
from slurm_ext.topology.render_text import picture, rows

TREE = build([Placement(f"n{i}", f"i-{i}", "p5.48xlarge", ("A", "C1" if i < 3 else "C2"), "az1") for i in range(5)])
ROOT, LEFT, RIGHT = switch_name("l1", "A"), switch_name("l2", "C1"), switch_name("l2", "C2")
SVG = "{http://www.w3.org/2000/svg}"


def large(nodes: int) -> Tree:
    return build(
        [
            Placement(f"n{i}", path=("A", f"B{i // 256}", f"C{i // 16}"), ultraserver_id=f"us{i // 18}")
            for i in range(nodes)
        ]
    )


def test_every_switch_has_one_line_and_its_cloud_id() -> None:
    lines = topology_conf(TREE, origin="a test").splitlines()
    assert lines[0].startswith("# Written by fmslurm from a test.")
    assert lines[1:] == [
        f"# {ROOT} = A",
        f"SwitchName={ROOT} Switches={LEFT},{RIGHT}",
        f"# {LEFT} = C1",
        f"SwitchName={LEFT} Nodes=n[0-2]",
        f"# {RIGHT} = C2",
        f"SwitchName={RIGHT} Nodes=n[3-4]",
    ]


def test_from_2505_on_the_file_says_that_a_yaml_wins() -> None:
    assert "topology.yaml" in topology_conf(TREE, origin="x", version=Version(25, 5, "25.05.1"))
    assert "topology.yaml" not in topology_conf(TREE, origin="x", version=Version(24, 11, "24.11.5"))


def test_nothing_that_a_cloud_says_becomes_a_line_of_its_own() -> None:
    tree = build([Placement("n1", path=("A\nSwitchName=evil Nodes=n[1-9]\\",)), Placement("n2", path=("B\u2028x",))])
    text = topology_conf(tree, origin="x\nSwitchName=worse Nodes=n1")
    assert [line for line in text.splitlines() if "evil" in line or "worse" in line] == [
        line for line in text.splitlines() if line.startswith("#") and ("evil" in line or "worse" in line)
    ]
    assert "\\" not in text


def test_the_picture_counts_nodes() -> None:
    assert picture(TREE).splitlines() == [
        f"{ROOT} (5 nodes)",
        f"  {LEFT} (3 nodes)  n[0-2]",
        f"  {RIGHT} (2 nodes)  n[3-4]",
    ]


def test_the_picture_marks_the_nodes_of_a_job() -> None:
    assert picture(TREE, job="7", job_nodes=["n4", "n1", "n2", "x9"]).splitlines() == [
        f"{ROOT} (5 nodes)  <- job 7: 3",
        f"  {LEFT} (3 nodes)  n[0-2]  <- job 7: 2, n[1-2]",
        f"  {RIGHT} (2 nodes)  n[3-4]  <- job 7: 1, n4",
        "job 7: 3 nodes under 2 leaves; 1 could hold it",
        "job 7: not in this tree: x9",
    ]
    assert "job 7: 3 nodes under 1 leaf" in picture(TREE, job="7", job_nodes=["n0", "n1", "n2"]).splitlines()


def test_spread_says_how_few_leaves_could_do() -> None:
    found = spread(large(64), [f"n{i}" for i in range(0, 64, 2)])
    assert (len(found.leaves), found.fewest, found.placed, found.elsewhere) == (4, 2, 32, ())


def test_ranks_follow_the_tree_and_unknown_nodes_come_last() -> None:
    tree = build([Placement(f"n{i}", path=("A", f"C{i % 2}")) for i in range(4)])
    assert tree_order(tree) == ["n0", "n2", "n1", "n3"]
    assert rank_order(tree) == tree_order(tree)
    assert rank_order(tree, ["n3", "x", "n2", "n0"]) == ["n0", "n2", "n3", "x"]
    assert hostfile(["a", "b"], 2) == "a\na\nb\nb\n"


def test_the_graph_has_a_box_for_each_switch_and_an_edge_for_each_child() -> None:
    text = dot(TREE, job_nodes=["n0"])
    assert text.startswith("digraph topology {")
    assert text.count("[label=") == 3
    assert text.count(" -> ") == 2
    assert f'"{ROOT}" -> "{LEFT}";' in text
    assert "job: 1" in text


def test_the_svg_is_xml_with_title_and_description() -> None:
    root = ElementTree.fromstring(svg(TREE, job="7", job_nodes=["n0"]))
    assert root.get("role") == "img"
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert desc is not None
    assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
    assert title.text == "Topology: 5 nodes under 3 switches"
    assert "job 7: 1" in (desc.text or "")
    assert len(root.findall(f"{SVG}rect[@class='all']")) == 2
    assert len(root.findall(f"{SVG}rect[@class='job']")) == 1


def test_a_large_picture_folds_leaves() -> None:
    tree = large(10_000)
    assert len(rows(tree)) > 600
    lines = picture_lines(tree, max_rows=400)
    assert len(lines) <= 81
    assert lines[2].label == "16 leaves"
    assert lines[2].detail == "16 nodes each"
    assert sum(line.nodes for line in lines if line.depth == 2) == 10_000
    assert len(svg(tree)) < 400_000


class Page(HTMLParser):
    """Counts tags, and holds that what is opened is closed in order."""

    VOID = frozenset({"meta", "tr", "th", "td", "!doctype", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.outside += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("nodes", [5, 300, 10_000])
def test_the_page_needs_nothing_else_and_folds(nodes: int) -> None:
    tree = large(nodes)
    text = html(tree, origin="a <b>test</b>", plan=plan(tree, Version(26, 5, "26.05")), job="7", job_nodes=["n0", "n1"])
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.outside == []
    assert "script" not in page.seen
    assert page.seen["details"] == page.seen["summary"] == len(tree.switches)
    assert '<html lang="en">' in text
    assert f"<title>Topology: {nodes} nodes," in text
    assert "a &lt;b&gt;test&lt;/b&gt;" in text
    assert "job 7: 2 nodes under 1 leaf" in text
    if nodes == 10_000:  # of a large tree only the root is unfolded at first
        assert text.count("<details open>") == 1
    assert len(text) < 300_000 + 40 * nodes


def test_what_a_cloud_says_is_text_on_the_page() -> None:
    tree = build([Placement("n1", path=("top", "<script>alert(1)</script>")), Placement("n2", path=("top", "x"))])
    for text in (html(tree, origin="x"), svg(tree)):
        assert "<script>" not in text
    assert "&lt;script&gt;" in html(tree, origin="x")
