"""No text makes the linter fail, and what it costs stays bounded."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_cases import BLOCK_CASES, CONF_CASES, YAML_CASES

from slurm_ext.topology.lint import CONF, SLURM, YAML, Source, lint
from slurm_ext.topology.lint_hosts import hosts, overflow
from slurm_ext.topology.lint_model import SEVERITIES, Given, release

TARGETS = tuple(
    Given(release(text)) for text in ("22.05.8", "23.11.9", "24.11.5", "25.05.0", "25.11", "26.05.5", "99.11.1")
)

_WORDS = st.sampled_from(
    [
        *("SwitchName=", "Nodes=", "Switches=", "BlockName=", "BlockSizes=", "Include ", "NodeName=", "PartitionName="),
        *("Topology=", "Weight=", "TopologyPlugin=topology/", "TopologyParam=", "tree", "block", "ALL", "DEFAULT", "a"),
        *(
            "n[0-3]",
            "[",
            "]",
            "-",
            ",",
            "\\",
            "#",
            '"',
            "\n",
            " ",
            "- topology: ",
            "  tree:",
            "    switches:",
            "  block:",
        ),
        *("{", "}", ": ", "&x ", "*x", "null", "\t", "1", "9" * 25, "²", "\0", "\ud800"),
    ]
)
texts = st.one_of(st.text(max_size=300), st.lists(_WORDS, max_size=60).map("".join))


@given(texts, st.sampled_from([CONF, YAML, SLURM, ""]), texts, st.sampled_from(TARGETS))
@settings(max_examples=400)
def test_any_text_gets_findings_and_nothing_else(text: str, kind: str, other: str, given_: Given) -> None:
    sources = [Source("one", text, kind, {"a": other}), Source("slurm.conf", other, SLURM)]
    for finding in lint(sources, given_):
        assert finding.severity in SEVERITIES
        assert finding.reason
        assert "\n" not in finding.reason
        assert 0 <= finding.line <= text.count("\n") + other.count("\n") + 2


@given(st.sampled_from(CONF_CASES + BLOCK_CASES + YAML_CASES), st.data(), st.sampled_from(TARGETS))
def test_files_cut_and_spliced_anywhere_are_read(case, data: st.DataObject, given_: Given) -> None:
    ((name, text), *_) = case.files.items()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    lint([Source(name, text[:start] + data.draw(texts) + text[end:])], given_)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "- " * 100_000,
        "{a: " * 50_000,
        "&a [" * 1000,
        "- topology: a\n  tree: {switches: [" + "{switch: a}," * 20_000 + "]}",
        "SwitchName=a Nodes=" + "[0-9]" * 5000,
        "SwitchName=a Nodes=n[0-99999999999]",
        "SwitchName=a Nodes=" + ",".join(f"n[{i}-{i + 60_000}]" for i in range(200)),
        "SwitchName=a Nodes=n" + "9" * 100_000,
        "SwitchName=" + "a" * 1_000_000 + " Nodes=n1",
        "\\\n" * 100_000,
        "#" * 500_000,
        "a=" + "\\" * 300_000,
        "SwitchName=a Switches=" + ",".join(f"s{i}" for i in range(100_000)),
        "\n".join(f"SwitchName=s{i} Switches=s{i + 1}" for i in range(20_000)),
    ],
    ids=lambda text: text[:20],
)
def test_a_hostile_text_costs_little(text: str) -> None:
    started = time.process_time()
    for name in ("topology.conf", "topology.yaml", "slurm.conf"):
        lint([Source(name, text)], TARGETS[5])
    assert time.process_time() - started < 20  # a second or two; it would be minutes where something is squared


def test_hostlists_are_read_as_slurm_reads_them() -> None:
    assert hosts("n[1-3,07-09]-ib,x[1-2]y[1-2] z", 100).names == [
        *("n1-ib", "n2-ib", "n3-ib", "n07-ib", "n08-ib", "n09-ib"),
        *("x1y1", "x1y2", "x2y1", "x2y2", "z"),
    ]
    assert hosts("n0-7],a[1-2]b[c[0-1],n[3-]", 100).names == ["n0-7]", "a[1-2]b[c0", "a[1-2]b[c1", "n3"]
    assert hosts("n[ 1-2, 3],[,[7]", 100).names == ["n01", "n02", "n03", "[,7"]
    assert hosts("n[99999999999999999999],m[0-99999999999999999999],x[b]y[1]z[2]", 100).names == [
        "n18446744073709551615"
    ]
    assert hosts("a,n[1-", 9, closes=True) == (["a", "n]"], "open", False)
    assert hosts("n[1-3]-ib", 9).suffix
    assert not hosts("n[1-3]x[1-2]", 9).suffix
    for text, problem in (
        ("n[", "open"),
        ("n[0-3 ]", "bad"),
        ("n[0--3]", "bad"),
        ("n[]", "bad"),
        ("n[a]", "bad"),
        ("n[3-1]", "bad"),
        ("n[0-65536]", "large"),
        ("n[0-9][0-9]", "too-many"),
        ("n[0" + ",1" * 262_144 + "]", "large"),
        ("n[1-9],m[1-9]", "too-many"),
        ("n[1-9],n[1-9]", "too-many"),
    ):
        assert hosts(text, 12)[:2] == ([], problem), text


def test_digits_that_overflow() -> None:
    assert overflow("x" + "9" * 20) == 20
    assert overflow("x" + "0" * 30 + "1") == 0
    assert overflow("x18446744073709551615") == 0
    assert overflow("x18446744073709551616") == 20
    assert overflow("x" + "1" * 10_000) == 10_000
