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
        f"ncclCommInitRank comm 0x1 rank {number} nranks 2 cudaDev 0 - Init COMPLETE",
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


def line(node: str, number: int, text: str) -> str:
    return f"{node}:{1000 + number}:{1000 + number} [{number % 8}] {text}"


def without(lines: list[str], *words: str) -> list[str]:
    return [one for one in lines if not any(word in one for word in words)]


@pytest.mark.parametrize(
    "words",
    [
        ("provider",),
        ("nics",),
        ("via NET",),
        ("via P2P",),
        ("NVLS",),
        ("Using network", "provider"),
        ("COMPLETE", "rank"),
        ("NET/OFI", "network", "Channel", "NVLS", "rank"),
    ],
)
def test_what_one_node_does_not_say_the_others_do_not_prove(words: tuple[str, ...]) -> None:
    assert verdict(rank("a", 0), without(rank("b", 8), *words))[0] == "unknown"


def test_a_log_of_some_ranks_proves_only_these() -> None:
    lines = [*rank("a", 0), *rank("b", 8)]
    of_four = P5._replace(ranks=4)
    assert verdict(lines, context=of_four) == ("unknown", {("log-incomplete", "node", "none")})
    assert verdict([one.replace("nranks 2", "nranks 4") for one in lines])[0] == "unknown"
    assert verdict(lines, context=of_four._replace(partial=True)) == ("pass", set())


def test_two_nodes_need_a_channel_between_them_whoever_counts_the_nodes() -> None:
    lines = [without(rank(name, number), "via NET") for name, number in (("a", 0), ("b", 8))]
    assert verdict(*lines, context=P5._replace(nodes=0)) == ("unknown", {("log-incomplete", "node", "none")})


@pytest.mark.parametrize(
    "end",
    [
        "misc/socket.cc:49 NCCL WARN socketProgressOpt: Connection closed by remote peer b<4242>",
        "enqueue.cc:49 NCCL WARN Cuda failure 2 'out of memory'",
        "x.cc:49 NCCL WARN NET/OFI Unresponsive receiver detected",
    ],
)
def test_how_a_run_ended_takes_nothing_back_of_what_it_went_over(end: str) -> None:
    socket = [one.replace("AWS Libfabric", "Socket").replace("Libfabric", "Socket") for one in rank("a", 0)]
    lines = [*socket, line("a", 0, end)]
    assert verdict(lines, rank("b", 8)) == ("fail", {("nccl-socket-fallback", "node:a", "drain")})
    whole = [*rank("a", 0), line("a", 0, end)]
    assert verdict(whole, rank("b", 8))[0] == "unknown"


def test_the_last_communicator_counts_for_the_network_and_any_for_the_provider() -> None:
    again = [line("a", 0, f"NCCL INFO Using network {name}") for name in ("Socket", "Libfabric", "Socket")]
    assert verdict([*rank("a", 0), *again], rank("b", 8))[0] == "fail"
    other = [line("a", 0, "NCCL INFO NET/OFI Selected provider is tcp, fabric is tcp (found 1 nics)")]
    assert verdict([*other, *rank("a", 0)], rank("b", 8))[0] == "fail"


@pytest.mark.parametrize("name", ["efa", "EFA", "efa-direct", "efa;ofi_rxd"])
def test_names_of_efa(name: str) -> None:
    assert verdict(rank("a", 0, provider=name), rank("b", 8, provider=name)) == ("pass", set())


def test_no_adapters_at_all_are_too_few() -> None:
    found = verdict(rank("a", 0, nics=0), rank("b", 8, nics=0))
    assert found == ("fail", {("nccl-nic-count", "node", "drain")})
    huge = [one.replace("found 32", "found " + "9" * 5000) for one in rank("a", 0)]
    assert verdict(huge, rank("b", 8))[0] == "unknown"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("NCCL_P2P_DISABLE set by environment to 1.", "warn"),
        ("NCCL_P2P_LEVEL set by environment to LOC", "warn"),
        ("NCCL_P2P_DISABLE set by environment to 0.", "fail"),
        ("NCCL_P2P_LEVEL set by environment to NVL", "fail"),
        ("", "fail"),
    ],
)
def test_shared_memory_is_excused_by_a_setting_that_asks_for_it(setting: str, expected: str) -> None:
    shm = line("b", 8, "NCCL INFO Channel 00 : 8[0] -> 9[1] via SHM/direct/direct")
    asked = [line("b", 8, f"NCCL INFO {setting}")] if setting else []
    assert verdict(rank("a", 0), [*rank("b", 8), *asked, shm])[0] == expected
    elsewhere = [line("a", 0, f"NCCL INFO {setting}")] if setting else []
    assert verdict([*rank("a", 0), *elsewhere], [*rank("b", 8), shm])[0] == "fail"


def table(*rows: tuple[int, float, str]) -> str:
    head = "#       size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
    return head + "".join(f" {size} 1 float sum -1 1.0 1.0 {bw} {bad} 1.0 1.0 {bw} 0\n" for size, bw, bad in rows)


GIB = 1 << 30
FLOOR = {"floor": {"size": GIB, "busbw": 310}, "nodes": 4}


@pytest.mark.parametrize(
    "label",
    [
        "[1,0]<stdout>:",
        "0: ",
        "worker-0: ",
        "2026-11-30T10:00:00.123456789Z ",
        "2026-11-30 10:00:00,123 0: ",
        "\x1b[32m",
    ],
)
def test_what_launchers_and_collectors_put_before_a_table_is_no_part_of_it(label: str) -> None:
    plain = table((8, 0.1, "0"), (GIB, 365.0, "2"))
    text = "".join(f"{label}[1,0]<stdout>:{line}\n{label}{line}\n" for line in plain.splitlines())
    assert perf_log.parse(text).rows == tuple(row for row in perf_log.parse(plain).rows for _ in range(2))


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


def test_a_dip_that_the_second_run_does_not_show_has_passed(tmp_path: Path) -> None:
    dip = table((GIB >> 2, 340.0, "0"), (GIB >> 1, 90.0, "0"), (GIB, 365.0, "0"))
    even = table((GIB >> 2, 340.0, "0"), (GIB >> 1, 350.0, "0"), (GIB, 365.0, "0"))
    files = {role: role for role in ("perf_log", "perf_log_second", "context")}
    (tmp_path / "case.json").write_text(json.dumps({"group": "perf", "files": files}))
    (tmp_path / "context").write_text(json.dumps(FLOOR))
    for first, second, expected in ((dip, even, "pass"), (even, dip, "warn"), (dip, dip, "warn"), (even, even, "pass")):
        (tmp_path / "perf_log").write_text(first)
        (tmp_path / "perf_log_second").write_text(second)
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


# NVLink between nodes: typed after NCCL's src/mnnvl.cc and src/init.cc, by the forms that the research page names; no capture
# of such a machine is public.


def fabric(host: str, rank: int, *, used: int = 1, state: int = 3, uuid: str = "7f3a.91c2", end: bool = True) -> str:
    head = f"{host}:{100 + rank}:{100 + rank} [{rank % 4}] NCCL INFO "
    channel = f"Channel 00/0 : {rank}[{rank % 4}] -> {(rank + 4) % 8}[{rank % 4}] via P2P/MNNVL"
    lines = [
        "NCCL version 2.28.9+cuda13.0",
        f"MNNVL busId 0x801000 fabric UUID {uuid} cliqueId 0x7ffe state {state} healthMask 0x0",
        f"MNNVL {used} cliqueId 7ffe cliqueSize 8 cliqueRank {rank}",
        *([channel] if used else []),
        *([f"ncclCommInitRankConfig comm 0x1 rank {rank} nranks 8 cudaDev 0 - Init COMPLETE"] if end else []),
    ]
    return "".join(f"{head}{line}\n" for line in lines)


def over_nvlink(tmp_path: Path, text: str, **context: object) -> tuple[str, set[tuple[str, str]]]:
    case = {"group": "nccl", "instance_type": "p6e-gb200.36xlarge", "files": {"nccl_log": "l", "context": "c"}}
    (tmp_path / "case.json").write_text(json.dumps(case))
    (tmp_path / "l").write_text(text)
    (tmp_path / "c").write_text(json.dumps({"nodes": 2, "ranks": 8, **context}))
    found = replay.judge(str(tmp_path))
    return found.verdict, {(f.id, f.target) for f in found.findings}


@pytest.mark.parametrize(
    ("second", "context", "expected"),
    [
        ({}, {}, ("pass", set())),
        ({"state": 2}, {}, ("fail", {("mnnvl-fabric-state", "node:b")})),
        ({"used": 0}, {}, ("fail", {("mnnvl-not-used", "node:b")})),
        ({"uuid": "1.2"}, {}, ("warn", {("mnnvl-domains", "node")})),
        ({"end": False}, {}, ("unknown", {("log-incomplete", "node:b")})),
        ({}, {"nodes": 3}, ("unknown", {("log-incomplete", "node")})),
        ({}, {"exit_code": 1}, ("unknown", {("run-failed", "node")})),
        ({}, {"exit_code": 137, "timed_out": True}, ("unknown", {("run-failed", "node")})),
    ],
)
def test_a_log_of_a_run_over_nvlink_between_nodes_is_judged_by_it(
    tmp_path: Path, second: dict[str, object], context: dict[str, object], expected: object
) -> None:
    text = "".join(fabric("a", rank) for rank in range(4))
    text += "".join(fabric("b", rank, **second) for rank in range(4, 8))  # type: ignore[arg-type]
    assert over_nvlink(tmp_path, text, **context) == expected


def test_an_excerpt_of_one_nodes_run_need_not_name_a_provider(tmp_path: Path) -> None:
    lines = [
        line for number in (0, 1) for line in rank("a", number) if "provider" not in line and "via NET" not in line
    ]

    def told(nodes: int, text: list[str]) -> str:
        case = {"group": "nccl", "instance_type": "p5.48xlarge", "files": {"nccl_log": "l", "context": "c"}}
        (tmp_path / "case.json").write_text(json.dumps(case))
        (tmp_path / "l").write_text("".join(f"{line}\n" for line in text))
        (tmp_path / "c").write_text(json.dumps({"nodes": nodes, "ranks": 2}))
        return replay.judge(str(tmp_path)).verdict

    assert told(1, lines) == "pass"
    assert told(2, lines) == "unknown"
    assert told(1, [line for line in lines if "COMPLETE" not in line]) == "unknown"
    assert told(1, [line for line in lines if "P2P" not in line]) == "unknown"
    assert told(1, lines[: len(lines) // 2]) == "unknown"


def test_with_nvlink_between_nodes_off_efas_proof_is_asked_for(tmp_path: Path) -> None:
    text = "".join(fabric("ab"[rank // 4], rank, used=0) for rank in range(8))
    verdict, found = over_nvlink(tmp_path, text)
    assert verdict == "unknown"
    assert not any(name.startswith("mnnvl") for name, _ in found)


def test_a_last_line_that_lacks_its_end_only_is_whole() -> None:
    text = fabric("a", 0) + fabric("b", 4)
    whole, cut = nccl_log.parse_text(text.rstrip("\n")), nccl_log.parse_text(text[:-3])
    assert whole == nccl_log.parse_text(text)
    assert [process.complete for process in cut.processes] == [True, False]
