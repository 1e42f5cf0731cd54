"""Hostlists against ClusterShell's own reading of them, and against text that means harm."""

from __future__ import annotations

import time

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.slurm.hostlist import HostlistError, expand, fold


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("(null)", []),
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[8-10]", ["n8", "n9", "n10"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[1,3-4],m2", ["n1", "n3", "n4", "m2"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("n1,n1", ["n1"]),
        (" n1 , n2 ", ["n1", "n2"]),
        ("ip-10-0-0-[9-10]", ["ip-10-0-0-9", "ip-10-0-0-10"]),
        ("queue1-dy-p5-[1-2]", ["queue1-dy-p5-1", "queue1-dy-p5-2"]),
    ],
)
def test_expand(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "n[1-3",
        "n1-3]",
        "n[[1]]",
        "n[a-b]",
        "n[3-1]",
        "n[]",
        "n;reboot",
        "n$(id)",
        "../etc",
        "n\x00",
        "n[1-99999999]",
        "n[0-99][0-99][0-99]",
        "a" * 300,
        "[1-2]",  # would name nodes 1 and 2, which Slurm has too, but see below
    ],
)
def test_broken_or_greedy_text_is_refused(text: str) -> None:
    if text == "[1-2]":
        assert expand(text) == ["1", "2"]
        return
    with pytest.raises(HostlistError):
        expand(text)


def test_hostile_text_costs_nothing() -> None:
    started = time.process_time()
    for text in ("n[0-99999]" * 50, "n[" + "1-9," * 100_000 + "1]", "n" + "[0-1]" * 10_000, "," * 1_000_000):
        try:
            expand(text)
        except HostlistError:
            continue
    assert time.process_time() - started < 60, "what is quadratic takes hours"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n3", "n1", "n2"], "n[1-3]"),
        (["n1", "n3"], "n[1,3]"),
        (["n9", "n10"], "n[9-10]"),
        (["n09", "n10"], "n[09-10]"),
        (["head", "n1", "n2"], "head,n[1-2]"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["n1-ib", "n2-ib"], "n1-ib,n2-ib"),
    ],
)
def test_fold(names: list[str], text: str) -> None:
    assert fold(names) == text


NUMBER = st.integers(0, 1200)
NAME = st.builds(
    lambda prefix, number, width: f"{prefix}{number:0{width}d}",
    st.sampled_from(["n", "node-", "ip-10-0-1-", "r1n", "q-dy-p5.x-"]),
    NUMBER,
    st.integers(1, 4),
)


@given(st.lists(NAME | st.sampled_from(["head", "login", "a-b", "n1-ib", "7", "08"]), max_size=60))
def test_fold_and_expand_are_inverse(names: list[str]) -> None:
    assert set(expand(fold(names))) == set(names)


@given(st.lists(NAME, max_size=40))
def test_clustershell_reads_what_we_fold(names: list[str]) -> None:
    # One width at a time: ClusterShell before 1.9 normalizes mixed padding in one set, Slurm does not.
    same = [name for name in names if len(name) == len(names[0])]
    assert set(NodeSet(fold(same))) == set(same)


@given(st.lists(st.builds(lambda a, b: (min(a, b), max(a, b)), NUMBER, NUMBER), min_size=1, max_size=4), st.booleans())
def test_we_read_what_clustershell_reads(ranges: list[tuple[int, int]], two: bool) -> None:
    inside = ",".join(f"{low}-{low + min(high - low, 30)}" for low, high in ranges)
    text = f"n[{inside}]" + ("x[1-2]" if two else "")
    assert set(expand(text)) == set(NodeSet(text))


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        names = expand(text, limit=500)
    except HostlistError:
        return
    assert len(names) <= 500
