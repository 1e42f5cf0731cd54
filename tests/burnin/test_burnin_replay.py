"""Captured logs and tables: small ones typed here, and every capture of a folder where there is one (FMSLURM_CASES)."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ext.aws import catalogue
from slurm_ext.burnin import nccl_log, perf_log, proof, replay
from slurm_ext.errors import UsageError

P5 = proof.Context("p5.48xlarge", catalogue.find("p5.48xlarge"), nodes=2)


def rank(node: str, number: int, *lines: str, nics: int = 32, provider: str = "efa", gdr: str = "/GDRDMA") -> list[str]:
    """The lines of one rank of a healthy run over EFA, with more behind them."""
    head = f"[1,{number}]<stdout>:{node}:{1000 + number}:{1000 + number} [{number % 8}] NCCL INFO "
    words = [
        "NCCL version 2.27.7+cuda12.9",
        "NET/OFI Initializing aws-ofi-nccl 1.16.3",
        f"NET/OFI Selected provider is {provider}, fabric is efa-direct (found {nics} nics)",
        "Using network Libfabric",
        f"ncclCommInitRank comm 0x1 rank {number} nranks 16 cudaDev 0 - Init COMPLETE",
        "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
        f"Channel 00/0 : {number}[0] -> 8[0] [send] via NET/Libfabric/0{gdr}",
        f"Channel 00/0 : {number}[0] -> 1[1] via P2P/CUMEM",
    ]
    return [head + word for word in (*words, *lines)]


def verdict(*ranks: list[str], context: proof.Context = P5) -> tuple[str, set[tuple[str, str, str]]]:
    found = proof.judge(nccl_log.parse([line for lines in ranks for line in lines]), context)
    return found.verdict, {(f.id, f.target, f.action) for f in found.findings}


def test_a_healthy_run_is_proven() -> None:
    assert verdict(rank("a", 0), rank("b", 8)) == ("pass", set())


def test_one_node_with_fewer_adapters_is_named() -> None:
    found = verdict(rank("a", 0), rank("b", 8, nics=31))
    assert found == ("fail", {("nccl-nic-count", "node:b", "drain")})


def test_a_rank_without_gpudirect_is_named_and_a_whole_node_as_node() -> None:
    found = verdict(rank("a", 0), rank("a", 1), rank("b", 8, gdr=""))
    assert found == ("fail", {("nccl-no-gdr", "rank:8", "drain")})
    found = verdict(rank("a", 0), rank("b", 8, gdr=""), rank("b", 9, gdr=""))
    assert found == ("fail", {("nccl-no-gdr", "node:b", "drain")})


def test_tcp_under_another_name_is_refuted() -> None:
    found = verdict(rank("a", 0, provider="tcp"), rank("b", 8, provider="tcp"))
    assert found == ("fail", {("ofi-provider-tcp", "node", "drain")})


def test_no_channels_is_unproven() -> None:
    lines = [line for line in rank("a", 0) if "Channel" not in line]
    assert verdict(lines) == ("unknown", {("log-incomplete", "node", "none")})
    assert verdict([]) == ("unknown", {("log-empty", "node", "none")})


def test_a_missing_provider_line_is_unproven() -> None:
    lines = [line for line in rank("a", 0) if "provider" not in line]
    assert verdict(lines)[0] == "unknown"


def table(*rows: tuple[int, float, str]) -> str:
    head = "#       size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
    return head + "".join(f" {size} 1 float sum -1 1.0 1.0 {bw} {bad} 1.0 1.0 {bw} 0\n" for size, bw, bad in rows)


GIB = 1 << 30
FLOOR = {"floor": {"size": GIB, "busbw": 310}, "nodes": 4}


@pytest.mark.parametrize(
    ("text", "context", "expected"),
    [
        (table((GIB, 365.0, "0")), FLOOR, "pass"),
        (table((GIB, 300.0, "0")), FLOOR, "fail"),
        (table((GIB, 365.0, "3")), FLOOR, "fail"),
        (table((GIB, 365.0, "N/A")), FLOOR, "unknown"),
        (table((GIB // 4, 365.0, "0")), FLOOR, "unknown"),
        (table((GIB, 365.0, "0")), {}, "unknown"),
        (table(), FLOOR, "unknown"),
        (table((GIB // 4, 300.0, "0")), {**FLOOR, "timed_out": True}, "fail"),
        (table((GIB, 365.0, "0")), {**FLOOR, "exit_code": 3}, "unknown"),
        (table((GIB // 4, 300.0, "0"), (GIB // 2, 99.0, "0"), (GIB, 365.0, "0")), FLOOR, "warn"),
        ("Segmentation fault", FLOOR, "unknown"),
        ("{not json", FLOOR, "unknown"),
        ('{"results": 5}', FLOOR, "unknown"),
        # A row that ends too early has no column of its own place: neither wrong values nor a rate come out of it.
        (table((GIB // 2, 365.0, "0"), (GIB, 365.0, "0")).rstrip()[:-1], FLOOR, "unknown"),
        (table((GIB, 365.0, "0")).rstrip()[:-1], FLOOR, "unknown"),
        (table((GIB, 365.0, "0"), (2 * GIB, 365.0, "0")).rstrip()[:-3], FLOOR, "pass"),
        (
            table((GIB, 365.0, "0")).rstrip()[:-1] + "\n" + table((2 * GIB, 365.0, "0"), (4 * GIB, 365.0, "0")),
            FLOOR,
            "unknown",
        ),
        # What is no number is neither fast nor right.
        (table((GIB, math.nan, "0")), FLOOR, "unknown"),
        (table((GIB, -math.nan, "0")), FLOOR, "unknown"),
        (table((GIB, math.inf, "0")), FLOOR, "unknown"),
        (table((GIB // 2, math.nan, "0"), (GIB, 365.0, "0")), FLOOR, "unknown"),
        (table((GIB, 365.0, "nan")), FLOOR, "unknown"),
        (table((GIB, 365.0, "***"), (2 * GIB, 365.0, "0")), FLOOR, "unknown"),
        (table((GIB, 365.0, "0.5")), FLOOR, "unknown"),
        (table((GIB, 365.0, "\x1b[31m7\x1b[0m")), FLOOR, "fail"),
        (table((GIB, 365.0, "0")) + "# Out of bounds values : 0 FAILED", FLOOR, "fail"),
        # A larger message that is slower than the floor of a smaller one is out of line, too.
        (table((GIB, 365.0, "0"), (2 * GIB, 100.0, "0")), FLOOR, "warn"),
        (table((GIB, 365.0, "0")).replace("365.0", "99.0", 1), FLOOR, "fail"),
        (table((GIB, 365.0, "0")), {"floor": {"busbw": True}}, "unknown"),
        (table((GIB, 365.0, "0")), {"floor": {"busbw": math.nan, "size": GIB}}, "unknown"),
        (table((GIB, 365.0, "0")), {"floor": {"busbw": 310, "size": "1G"}}, "unknown"),
        (table((8, 0.1, "0"), (GIB, 365.0, "0")), {"floor": {"busbw": 310}}, "pass"),
        (table((GIB, 365.0, "0")), {**FLOOR, "exit_code": "1"}, "unknown"),
        (table((GIB, 365.0, "0")), {**FLOOR, "timed_out": "true"}, "fail"),
    ],
)
def test_tables(text: str, context: dict[str, object], expected: str) -> None:
    assert replay.judge_table(perf_log.parse(text), context).verdict == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (365.0, 365.0, "pass"),
        (300.0, 365.0, "warn"),
        (365.0, 300.0, "warn"),
        (300.0, 300.0, "fail"),
        (300.0, None, "fail"),
        (None, 365.0, "pass"),
    ],
)
def test_of_two_runs_what_both_show_counts(
    tmp_path: Path, first: float | None, second: float | None, expected: str
) -> None:
    texts = {"context": json.dumps(FLOOR)}
    for role, rate in (("perf_log", first), ("perf_log_second", second)):
        texts[role] = table() if rate is None else table((GIB, rate, "0"))
    for role, text in texts.items():
        (tmp_path / role).write_text(text)
    (tmp_path / "case.json").write_text(json.dumps({"group": "perf", "files": {role: role for role in texts}}))
    assert replay.judge(str(tmp_path)).verdict == expected


@pytest.mark.parametrize("wrong_run", ["perf_log", "perf_log_second"])
def test_wrong_values_of_either_run_fail(tmp_path: Path, wrong_run: str) -> None:
    for role in ("perf_log", "perf_log_second"):
        (tmp_path / role).write_text(table((GIB, 365.0, "3" if role == wrong_run else "0")))
    (tmp_path / "context").write_text(json.dumps(FLOOR))
    files = {role: role for role in ("perf_log", "perf_log_second", "context")}
    (tmp_path / "case.json").write_text(json.dumps({"group": "perf", "files": files}))
    assert replay.judge(str(tmp_path)).rule == "perf.wrong"


@pytest.mark.parametrize(
    ("word", "okay", "expected"),
    [(1, "true", "pass"), ("false", "true", "unknown"), ("unchecked", "unchecked", "unknown"), (1, "false", "fail")],
)
def test_truth_values_of_json_are_words(word: object, okay: str, expected: str) -> None:
    place = {"bus_bw": 365.0, "nwrong": 0}
    data = {
        "config": {"validation": word},
        "results": [{"size": GIB, "out_of_place": place, "in_place": place}],
        "out_of_bounds": {"count": 0, "okay": okay},
    }
    assert replay.judge_table(perf_log.parse(json.dumps(data)), FLOOR).verdict == expected


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from("0123456789 .#-:[]>aNCLINFOvia/\n"), max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    perf_log.parse(text)
    proof.judge(nccl_log.parse(text.splitlines()), P5)


def test_a_folder_that_is_no_case_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"case\.json"):
        replay.judge(str(tmp_path))
    (tmp_path / "case.json").write_text('{"group": "nccl", "files": {"nccl_log": "../../etc/passwd"}}')
    with pytest.raises(UsageError, match="no file of this folder"):
        replay.judge(str(tmp_path))


CASES = sorted(Path(os.environ.get("FMSLURM_CASES", "/nonexistent")).glob("node/[45]??-*"))


@pytest.mark.skipif(not CASES, reason="FMSLURM_CASES names no folder of captures")
@pytest.mark.parametrize("folder", CASES, ids=lambda path: path.name)
def test_captures(folder: Path) -> None:
    expected = json.loads((folder / "case.json").read_text())["expected"]
    found = replay.judge(str(folder))
    assert found.verdict == expected["verdict"]
    assert {(f.target, f.action) for f in found.findings} == {(f["target"], f["action"]) for f in expected["findings"]}
