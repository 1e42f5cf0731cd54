"""The picture of burn-ins: what a node's cell says, and that text, SVG and page are whole, escaped and readable."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.burnin import picture, rules
from slurm_ext.burnin.picture import LEVELS, Picture, build
from slurm_ext.burnin.picture_svg import to_html, to_svg
from slurm_ext.burnin.picture_text import to_text
from slurm_ext.burnin.thresholds import Key
from slurm_ext.slurm.hostlist import expand

NODES = ("n0", "n1", "n2", "n3")
SVG = "{http://www.w3.org/2000/svg}"


def floor(kind: str, nodes: int, size: int) -> float:
    return rules.floor_gbs(kind, nodes, message_bytes=size)


def group(nodes: tuple[str, ...], outcome: str = "ok", busbw: float | None = 350.0) -> dict[str, Any]:
    return {"nodes": list(nodes), "outcome": outcome, "busbw_gbs": busbw, "evidence": []}


def line(
    job: str,
    rounds: list[tuple[str, list[dict[str, Any]]]],
    *,
    nodes: tuple[str, ...] = NODES,
    node: str = "",
    verdict: str = "pass",
    culprits: tuple[str, ...] = (),
    suspects: tuple[str, ...] = (),
    **more: Any,
) -> dict[str, Any]:
    return {
        "time": 1.9e9 + float(re.sub(r"\D", "", job) or 0),
        "job": job,
        "node": node or nodes[0],
        "leads": not node,
        "nodes": list(nodes),
        "instance_type": "p5.48xlarge",
        "key": {"instance_type": "p5.48xlarge", "bucket": rules.bucket(len(nodes)), "message_bytes": 1 << 30},
        "verdict": verdict,
        "reason": "words",
        "culprits": list(culprits),
        "busbw_gbs": rounds[0][1][0]["busbw_gbs"] if rounds else None,
        "measured": {"rounds": [{"kind": k, "groups": g} for k, g in rounds], "suspects": list(suspects)},
        **more,
    }


def whole(job: str, busbw: float = 350.0, **more: Any) -> dict[str, Any]:
    nodes = more.get("nodes", NODES)
    return line(job, [("all", [group(nodes, busbw=busbw)])], **more)


FAILED = line(
    "9",
    [
        ("all", [group(NODES, "slow", 90.0)]),
        ("pairs", [group(("n0", "n1"), "ok", 440.0), group(("n2", "n3"), "slow", 90.0)]),
        ("pairs", [group(("n1", "n2"), "slow", 90.0), group(("n3", "n0"), "ok", 445.0)]),
    ],
    verdict="fail",
    culprits=("n2",),
    suspects=("n2",),
)


def letters(drawn: Picture) -> dict[str, str]:
    return {name: "".join(map(picture.letter, row.cells)) for row in drawn.rows for name in row.nodes}


def test_one_good_partner_clears_a_node_and_the_culprit_stands_out() -> None:
    drawn = build([whole("7"), whole("8", nodes=("n0", "n1")), FAILED], floor=floor)
    assert letters(drawn)["n2"] == "= X"
    assert letters(drawn)["n0"][2] in "=-"
    assert letters(drawn)["n3"][2] in "=-"
    assert drawn.rows[0].nodes == ("n2",), "the worst first"
    assert [(pair.first, pair.second, pair.cell.level) for pair in drawn.pairs[:2]] == [
        ("n1", "n2", "slow"),
        ("n2", "n3", "slow"),
    ]
    assert [column.job for column in drawn.columns] == ["7", "8", "9"]


@pytest.mark.parametrize(
    ("busbw", "level"),
    [(400.0, "good"), (381.0, "good"), (379.0, "fair"), (341.0, "fair"), (339.0, "low"), (300.0, "low")],
)
def test_a_figure_is_held_against_the_fleet(busbw: float, level: str) -> None:
    median = {Key("p5.48xlarge", "3-4", 1 << 30): 400.0}
    drawn = build([whole("1", busbw)], floor=floor, medians=median)
    assert [cell.level for row in drawn.rows for cell in row.cells if cell] == [level]


def test_without_a_fleet_the_others_shown_count_then_the_floor_then_nothing() -> None:
    like = build([whole(str(i), speed) for i, speed in enumerate((400.0, 400.0, 400.0, 350.0))], floor=floor)
    assert letters(like)["n0"] == "===-"
    assert letters(build([whole("1", 320.0)], floor=floor))["n0"] == "="
    assert letters(build([whole("1", 320.0, instance_type="p9.48xlarge")], floor=floor))["n0"] == "."


@pytest.mark.parametrize(
    ("outcome", "letter"), [("wrong", "W"), ("hang", "H"), ("error", "E"), ("slow", "S"), ("new", "u")]
)
def test_each_outcome_has_a_letter(outcome: str, letter: str) -> None:
    drawn = build([line("1", [("all", [group(NODES, outcome, None)])], verdict="fail")], floor=floor)
    assert set(letters(drawn).values()) == {letter}
    assert len({level.letter for level in LEVELS.values()}) == len(LEVELS)


def test_without_the_leaders_line_the_others_make_the_picture() -> None:
    lines = [
        line("9", [("pairs", [group(pair, outcome)])], node=node, verdict="fail")
        for node, pair, outcome in (
            ("n0", ("n0", "n1"), "ok"),
            ("n2", ("n2", "n3"), "slow"),
            ("n3", ("n2", "n3"), "slow"),
        )
    ]
    drawn = build(lines, floor=floor)
    assert letters(drawn)["n0"] in "v="
    assert letters(drawn)["n2"] == letters(drawn)["n3"] == "S"
    assert len(drawn.pairs) == 2
    assert len(drawn.columns) == 1


def test_rows_are_restricted_to_the_nodes_asked_for() -> None:
    drawn = build([whole("7"), whole("8", nodes=("n0", "n1")), FAILED], floor=floor, only=("n3",))
    assert [row.nodes for row in drawn.rows] == [("n3",)]
    assert [column.job for column in drawn.columns] == ["7", "9"]


def test_nothing_is_no_picture() -> None:
    assert to_text(build([], floor=floor)) == []
    assert ET.fromstring(to_svg(build([], floor=floor))).tag == f"{SVG}svg"


# -- the terminal -----------------------------------------------------------------------------------------------------


def thousand() -> list[dict[str, Any]]:
    names = tuple(expand("ip-10-0-[0000-0999]"))
    bad = names[417]
    lines = [whole(str(i), 350.0 + i, nodes=names) for i in range(20)]
    rounds = [("all", [group(("1000 nodes",), "slow", 90.0)])] + [
        (
            "pairs",
            [
                group(p, "slow" if bad in p else "ok", 90.0 if bad in p else 440.0)
                for p in zip(ring[::2], ring[1::2], strict=False)
            ],
        )
        for ring in (names, names[1:] + names[:1])
    ]
    return [*lines, line("99", rounds, nodes=names, verdict="fail", culprits=(bad,), suspects=(bad,))]


def test_a_thousand_nodes_fit_a_screen_of_eighty_columns() -> None:
    drawn = build(thousand(), floor=floor)
    text = to_text(drawn, width=80)
    assert len(text) < 20
    assert all(len(one) <= 80 and one.isascii() for one in text)
    assert text[1].startswith("ip-10-0-0417 ")
    assert text[1].endswith("X")
    assert "ip-10-0-[0000-0416,0418-0999]" in text[2]
    assert " 999 " in text[2]
    assert drawn.nodes == 1000


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("colours", [False, True])
def test_lines_keep_their_width_whatever_the_names(width: int, colours: bool) -> None:
    names = tuple(f"{'x' * 200}{i}" for i in range(60))
    lines = [whole(str(i), 300.0 + 9 * i, nodes=names[i : i + 4]) for i in range(55)]
    for one in to_text(build(lines, floor=floor), width=width, colours=colours):
        plain = re.sub(r"\x1b\[[0-9;]*m", "", one)
        assert len(plain) <= max(width, 60), plain
        assert colours or plain == one


def test_colour_adds_nothing_but_colour() -> None:
    drawn = build([whole("7"), FAILED], floor=floor)
    coloured = to_text(drawn, colours=True)
    assert any("\x1b[" in one for one in coloured)
    assert [re.sub(r"\x1b\[[0-9;]*m", "", one).rstrip() for one in coloured] == to_text(drawn)


# -- SVG and page -----------------------------------------------------------------------------------------------------

HOSTILE = "</title><script>alert(1)</script>&\x00\x1b]0;x\x07\"'"


def test_a_drawing_tells_without_colour_and_names_what_it_shows() -> None:
    drawn = build([whole("7"), FAILED], floor=floor)
    root = ET.fromstring(to_svg(drawn))
    assert root.get("role") == "img"
    labels = (root.get("aria-labelledby") or "").split()
    assert labels == [e.get("id") for e in root if e.tag in (f"{SVG}title", f"{SVG}desc")]
    titles = [e.text or "" for e in root.iter(f"{SVG}title")]
    assert any(title.startswith("n2: 9: culprit (convicted), 90 GB/s") for title in titles)
    cells = [
        g for g in root.iter(f"{SVG}g") if (r := g.find(f"{SVG}rect")) is not None and "cell" in (r.get("class") or "")
    ]
    assert cells
    assert all((g.findtext(f"{SVG}text") or "").strip() and g.findtext(f"{SVG}title") for g in cells)
    assert "prefers-color-scheme: dark" in (root.findtext(f"{SVG}style") or "")


def test_a_page_is_whole_and_takes_nothing_from_elsewhere() -> None:
    page = to_html(build([whole("7"), FAILED], floor=floor), note="of the last day")
    root = ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert root.get("lang") == "en"
    assert [h.text for h in root.iter("h1")] == ["Burn-ins, node by node"]
    assert all(th.get("scope") for th in root.iter("th"))
    assert next(t.findtext("caption") for t in root.iter("table")) == "Burn-ins, oldest first"
    assert not {e.tag for e in root.iter()} & {"script", "link", "img", "iframe", "object", "form", "a"}
    links = [v for e in root.iter() for k, v in e.attrib.items() if re.search(r"href|src|^on|action", k)]
    assert links == []
    assert "url(" not in page
    assert "@import" not in page
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("render", [to_svg, to_html])
def test_hostile_text_stays_text(render: Any) -> None:
    evil = {**whole("7"), "job": HOSTILE, "reason": HOSTILE, "verdict": HOSTILE, "instance_type": HOSTILE}
    text = render(build([evil, {**FAILED, "nodes": [*NODES, HOSTILE]}], floor=floor))
    root = ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert not [e for e in root.iter() if "script" in str(e.tag)]
    assert "\x1b" not in text
    assert "\x00" not in text
    assert any("<script>" in (e.text or "") for e in root.iter()), "shown as it is"


names_or_rubbish = st.sampled_from(["n0", "n1", "n[0-3]", "64 nodes", "", "<b>", "n2"])
groups = st.fixed_dictionaries(
    {},
    optional={
        "nodes": st.lists(names_or_rubbish, max_size=4) | names_or_rubbish | st.integers(),
        "outcome": st.sampled_from(["ok", "slow", "wrong", "", "<x>"]) | st.none(),
        "busbw_gbs": st.floats() | st.integers() | st.text(max_size=3),
    },
)
lines = st.fixed_dictionaries(
    {},
    optional={
        "time": st.floats() | st.integers() | st.text(max_size=3),
        "job": st.text(max_size=5),
        "nodes": st.lists(names_or_rubbish, max_size=4) | names_or_rubbish,
        "leads": st.booleans() | st.integers(),
        "verdict": st.sampled_from(["pass", "fail", "unknown", "<v>"]) | st.none(),
        "reason": st.text(max_size=20),
        "culprits": st.lists(names_or_rubbish, max_size=2) | st.integers(),
        "key": st.dictionaries(
            st.sampled_from(["bucket", "message_bytes", "nccl"]), st.integers() | st.text(max_size=3)
        ),
        "measured": st.fixed_dictionaries(
            {},
            optional={
                "suspects": st.lists(names_or_rubbish, max_size=2),
                "rounds": st.lists(
                    st.fixed_dictionaries({"kind": st.text(max_size=3), "groups": st.lists(groups, max_size=3)}),
                    max_size=3,
                ),
            },
        ),
    },
)


@given(st.lists(lines, max_size=5))
def test_any_history_is_drawn(every: list[dict[str, Any]]) -> None:
    drawn = build(every, floor=floor)
    assert all(len(row.cells) == len(drawn.columns) for row in drawn.rows)
    names = [name for row in drawn.rows for name in row.nodes]
    assert len(names) == len(set(names)) == drawn.nodes
    ET.fromstring(to_svg(drawn))
    ET.fromstring(to_html(drawn).removeprefix("<!DOCTYPE html>\n"))
    to_text(drawn, colours=True)
    picture.to_data(drawn)


def test_a_page_of_a_thousand_nodes_is_small() -> None:
    assert len(to_html(build(thousand(), floor=floor))) < 256 << 10
