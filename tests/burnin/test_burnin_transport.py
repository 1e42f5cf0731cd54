"""What all nodes' facts make of a run that passed: EFA's proof, counters, clocks, retransmits, NVLink between nodes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Cluster

from slurm_ext.burnin import clocks, mnnvl, nccl_log, transport
from slurm_ext.burnin.efa_look import EfaLook
from slurm_ext.burnin.gate import run_burnin
from slurm_ext.burnin.model import Decision, Outcome
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Verdict

PASSED = Decision(Verdict(PASS, (), "400 GB/s", "burnin.all-nodes"))
NODES = ("n0", "n1", "n2", "n3")
GB = 10**9


def log(node: str, rank: int, *, version: str = "2.27.7", without: str = "", nics: int = 32) -> str:
    head = f"ip-{node}:{100 + rank}:{100 + rank} [{rank % 2}] NCCL INFO "
    lines = [
        f"NCCL version {version}+cuda12.9",
        "NET/OFI Initializing aws-ofi-nccl 1.16.3",
        "NET/OFI Using transport protocol RDMA (platform set)",
        f"NET/OFI Selected provider is efa, fabric is efa (found {nics} nics)",
        "Using network AWS Libfabric",
        f"ncclCommInitRankConfig comm 0x1 rank {rank} nranks 8 cudaDev 0 - Init COMPLETE",
        f"Channel 00/0 : {rank}[0] -> {(rank + 2) % 8}[0] [send] via NET/AWS Libfabric/0/GDRDMA",
    ]
    return "".join(head + line + "\n" for line in lines if not without or without not in line)


def facts(node: str, place: int, **more: Any) -> dict[str, Any]:
    """One node's facts, over the wire and back."""
    more = dict(more)
    words = {name: more.pop(name) for name in ("version", "without", "nics") if name in more}
    gpus = more.pop("ranks", (0, 1))
    parsed = nccl_log.parse_text("".join(log(node, 2 * place + gpu, **words) for gpu in gpus))
    plain = transport.facts_to_json(parsed, more.pop("efa_bytes", 100 * GB))
    return json.loads(json.dumps({**plain, "sent_bytes": 100 * GB, "retransmits": 0, "mnnvl": "", **more}))


def conclude(changed: dict[str, dict[str, Any]] | None = None, **more: Any) -> Decision:
    told = {name: facts(name, place, **(changed or {}).get(name, {})) for place, name in enumerate(NODES)}
    options = {"nodes": NODES, "gpus": 2, "instance_type": "p5.48xlarge", "moved": 1.0, **more}
    return transport.conclude(PASSED, told, **options)


def words_of(decision: Decision) -> set[tuple[str, str]]:
    return {(f.id, f.target) for f in decision.verdict.findings}


def test_all_proven_changes_nothing() -> None:
    assert conclude() == PASSED


def test_facts_are_small_and_come_back_whole() -> None:
    parsed = nccl_log.parse_text(log("n0", 3))
    plain = json.loads(json.dumps(transport.facts_to_json(parsed, 5)))
    assert "warnings" not in plain["processes"][0]
    assert transport.process_from_json(plain["processes"][0], "n0") == parsed.processes[0]._replace(node="n0")
    assert len(json.dumps(plain)) < 700


def test_a_refuted_proof_convicts_the_odd_node_and_nobody_where_all_share_it() -> None:
    odd = conclude({"n2": {"nics": 31}})
    assert (odd.verdict.verdict, odd.culprits, words_of(odd)) == (FAIL, ("n2",), {("nccl-nic-count", "node:n2")})
    half = conclude({name: {"nics": 31} for name in ("n1", "n2")})
    assert (half.verdict.verdict, half.culprits, half.suspects) == (FAIL, (), ("n1", "n2"))


@pytest.mark.parametrize("told", [{"without": "provider"}, {"without": "Channel"}, {"processes": []}])
def test_a_line_that_a_known_release_must_have_is_unknown_when_it_is_missing(told: dict[str, Any]) -> None:
    decision = conclude(dict.fromkeys(NODES, told))
    assert (decision.verdict.verdict, decision.verdict.rule) == (UNKNOWN, "burnin.transport-unproven")
    assert decision.culprits == ()


def test_of_a_release_that_nobody_read_yet_it_is_a_warning() -> None:
    decision = conclude({name: {"without": "provider", "version": "2.40.1"} for name in NODES})
    assert (decision.verdict.verdict, decision.verdict.rule) == (WARN, "burnin.transport")


def test_a_node_without_a_log_is_not_proven_by_the_others() -> None:
    decision = conclude({"n3": {"processes": []}})
    assert (decision.verdict.verdict, words_of(decision)) == (UNKNOWN, {("log-empty", "node:n3")})
    refuted = conclude({"n3": {"processes": []}, "n1": {"nics": 31}})
    assert (refuted.verdict.verdict, refuted.culprits) == (FAIL, ("n1",))


def test_a_node_whose_log_lost_a_part_is_not_proven_by_the_others() -> None:
    """A full disk takes the log of one worker, or the middle of it."""
    for told in ({"ranks": [1]}, {"without": "provider"}, {"without": "Channel"}, {"without": "COMPLETE"}):
        decision = conclude({"n3": told})
        assert (decision.verdict.verdict, decision.culprits) == (UNKNOWN, ()), told
        assert decision.verdict.rule == "burnin.transport-unproven", told


def test_counters_are_held_against_what_each_node_sent() -> None:
    assert conclude({"n1": {"efa_bytes": 60 * GB}}) == PASSED
    assert conclude({name: {"efa_bytes": 11 * GB} for name in NODES}) == PASSED  # rings differ, and all do here
    for few in (2, 9, 11, 40):
        little = conclude({"n1": {"efa_bytes": few * GB}})
        assert (little.verdict.verdict, words_of(little)) == (WARN, {("efa-counters-low", "node:n1")})
    still = conclude({"n1": {"efa_bytes": GB // 2}})
    assert (still.verdict.verdict, words_of(still)) == (FAIL, {("efa-counters-still", "node:n1")})
    assert still.culprits == ("n1",)
    one_unread = conclude({"n1": {"efa_bytes": None}})
    assert (one_unread.verdict.verdict, words_of(one_unread)) == (WARN, {("efa-counters-unread", "node:n1")})
    none = conclude({name: {"efa_bytes": 0} for name in NODES})
    assert (none.verdict.verdict, none.culprits) == (FAIL, ())
    assert "1e+11 were sent" in none.verdict.reason
    unread = conclude({name: {"efa_bytes": None} for name in NODES})
    assert (unread.verdict.verdict, words_of(unread)) == (WARN, {("efa-counters-unread", "node")})


def test_what_was_sent_is_taken_from_the_caller_where_nodes_do_not_say() -> None:
    changed = {name: {"sent_bytes": 0, "efa_bytes": 5} for name in NODES}
    assert conclude(changed, moved=10.0) == PASSED
    assert conclude(changed, moved=1000.0).verdict.verdict == FAIL


def test_retransmits_above_one_in_a_thousand_name_the_device() -> None:
    busy = {"retransmits": 12_000, "retransmits_by_device": {"rdmap9s0": 11_000, "rdmap3s0": 1_000}}
    decision = conclude({"n1": busy, "n2": {"retransmits": 11_000}, "n3": {"retransmits": None}})
    assert (decision.verdict.verdict, words_of(decision)) == (WARN, {("efa-retransmits", "node:n1")})
    assert "most by rdmap9s0 11000, rdmap3s0 1000" in decision.verdict.reason
    few = conclude({"n1": {"retransmits": 900, "efa_bytes": GB, "sent_bytes": GB}})
    assert few == PASSED


def gpu(number: int, mhz: int | None = 1980, reasons: int | None = 0x4, heat: int | None = 60) -> dict[str, Any]:
    return {"gpu": number, "sm_mhz": mhz, "reasons": reasons, "temperature": heat}


@pytest.mark.parametrize(
    ("one", "finding", "words"),
    [
        (gpu(1, 1200, 0x44, 91), "gpu.throttled", "gpu 1: hardware thermal slowdown under load, 1200 MHz, 91 C"),
        (gpu(1, 1300, 0xA0, 88), "gpu.throttled", "thermal slowdown by the driver and power brake"),
        (gpu(1, 1700), "gpu.clock-low", "gpu 1: 1700 MHz under load, where the median of all GPUs is 1980"),
    ],
)
def test_a_gpu_that_is_held_back_is_named(one: dict[str, Any], finding: str, words: str) -> None:
    healthy = [gpu(0), gpu(1)]
    strict = {name: {"clocks": [gpu(0), one] if name == "n2" else healthy} for name in NODES}
    decision = conclude(strict)
    assert (decision.verdict.verdict, words_of(decision)) == (WARN, {(finding, "node:n2")})
    assert words in decision.verdict.reason
    assert decision.culprits == ()


def test_clocks_that_are_not_told_are_a_word_and_power_caps_none() -> None:
    healthy = {name: {"clocks": [gpu(0), gpu(1, reasons=0xD)]} for name in NODES}
    assert conclude(healthy) == PASSED
    assert conclude({name: {"clocks": [gpu(0, None, None, None)]} for name in NODES}) == PASSED
    unread = conclude({**healthy, "n0": {"clocks": None}})
    assert words_of(unread) == {("gpu.clocks-unread", "node:n0")}


def test_drift_counts_in_strict_runs_only() -> None:
    assert conclude({"n1": {"drift": 1.4}}) == PASSED
    strict = {name: {"clocks": [gpu(0)], "drift": 1.1} for name in NODES}
    assert conclude(strict) == PASSED
    strict["n1"]["drift"] = 1.4
    decision = conclude(strict)
    assert words_of(decision) == {("burnin.drift", "node")}
    assert "1.40 times as long" in decision.verdict.reason


def test_findings_are_added_to_a_warning_that_was_there() -> None:
    before = Decision(Verdict(WARN, (), "slower than usual", "burnin.relative"))
    told = {name: facts(name, place, retransmits=20_000) for place, name in enumerate(NODES)}
    after = transport.conclude(before, told, nodes=NODES, gpus=2, instance_type="p5.48xlarge", moved=1.0)
    assert (after.verdict.rule, len(after.verdict.findings)) == ("burnin.relative", 4)


# NVLink between nodes

UUID = "7f3a.91c2"


def fabric_log(rank: int, *, uuid: str = UUID, state: int = 3, used: int = 1, extra: str = "") -> str:
    head = f"ip-x:{100 + rank}:{100 + rank} [0] NCCL INFO "
    lines = [
        "NCCL version 2.28.9+cuda13.0",
        f"MNNVL busId 0x801000 fabric UUID {uuid} cliqueId 0x7ffe state {state} healthMask 0x0",
        f"MNNVL {used} cliqueId 7ffe cliqueSize 8 cliqueRank {rank}",
        f"ncclCommInitRankConfig comm 0x1 rank {rank} nranks 8 cudaDev 0 - Init COMPLETE",
        *([f"Channel 00/0 : {rank}[0] -> {(rank + 2) % 8}[0] via P2P/MNNVL"] if used else []),
        *([extra] if extra else []),
    ]
    return "".join(head + line + "\n" for line in lines)


UP = {"domain": "UP", "nodes": {"READY": 4}}


def with_mnnvl(changed: dict[str, dict[str, Any]] | None = None, imex: object = UP) -> Decision:
    told = {}
    for place, name in enumerate(NODES):
        words = (changed or {}).get(name, {})
        parsed = nccl_log.parse_text("".join(fabric_log(4 * place + gpu, **words) for gpu in range(4)))
        told[name] = json.loads(
            json.dumps({**transport.facts_to_json(parsed, 0), "sent_bytes": GB, "mnnvl": "on", "imex": imex})
        )
    return transport.conclude(PASSED, told, nodes=NODES, gpus=4, instance_type="p6e-gb200.36xlarge", moved=1.0)


def test_which_runs_a_type_needs() -> None:
    assert transport.runs_for("p6e-gb200.36xlarge") == ("off", "on")
    for name in ("p5.48xlarge", "p5.4xlarge", "p6-b200.48xlarge", "p99.huge", ""):
        assert transport.runs_for(name) == ("",)


def test_with_mnnvl_on_efa_stands_still_and_nvlink_is_proven() -> None:
    assert with_mnnvl() == PASSED


def test_with_mnnvl_off_efas_proof_holds() -> None:
    off = {name: {"mnnvl": "off", "nics": 16} for name in NODES}
    assert conclude(off, instance_type="p6e-gb200.36xlarge") == PASSED
    off["n1"]["nics"] = 15
    assert conclude(off, instance_type="p6e-gb200.36xlarge").culprits == ("n1",)


def test_a_run_that_says_neither_proves_nothing() -> None:
    decision = conclude(instance_type="p6e-gb200.36xlarge")
    assert (decision.verdict.verdict, words_of(decision)) == (WARN, {("transport-unproven", "node")})
    mixed = conclude({"n0": {"mnnvl": "on"}}, instance_type="p6e-gb200.36xlarge")
    assert words_of(mixed) == {("transport-unproven", "node")}


@pytest.mark.parametrize(
    ("changed", "verdict", "finding", "culprits"),
    [
        ({"n1": {"state": 2}}, FAIL, ("mnnvl-fabric-state", "node:n1"), ("n1",)),
        ({name: {"used": 0} for name in NODES}, FAIL, ("mnnvl-not-used", "node"), ()),
        ({"n2": {"used": 0}}, FAIL, ("mnnvl-not-used", "node:n2"), ("n2",)),
        ({"n1": {"uuid": "1.2"}}, WARN, ("mnnvl-domains", "node"), ()),
        (
            {"n3": {"extra": "Channel 00/0 : 12[0] -> 0[0] [send] via NET/AWS Libfabric/0/GDRDMA"}},
            WARN,
            ("mnnvl-network-too", "node"),
            (),
        ),
        (
            {"n0": {"extra": "MNNVL busId 0x1 NVLink fabric health reports DEGRADED_BANDWIDTH (healthMask 0x2)"}},
            WARN,
            ("mnnvl-degraded", "node:n0"),
            (),
        ),
    ],
    ids=["state", "unused", "one-unused", "domains", "network", "degraded"],
)
def test_what_is_wrong_with_mnnvl(
    changed: dict[str, dict[str, Any]], verdict: str, finding: tuple[str, str], culprits: tuple[str, ...]
) -> None:
    decision = with_mnnvl(changed)
    assert (decision.verdict.verdict, words_of(decision), decision.culprits) == (verdict, {finding}, culprits)


def test_imex_is_told_or_unread() -> None:
    assert words_of(with_mnnvl(imex=None)) == {("imex-unread", "node")}
    down = with_mnnvl(imex={"domain": "DEGRADED", "nodes": {"READY": 3, "UNAVAILABLE": 1}})
    assert (down.verdict.verdict, len(down.verdict.findings)) == (WARN, 4)


IMEX = """Connectivity Table Legend:
I - Invalid - Node wasn't reachable, no connection status available
C - Connected

5/12/2026 06:08:10.580
Nodes:
Node #0   * 10.1.0.8 *    - READY               - Version: 580.95
Node #1   - 10.1.0.9      - UNAVAILABLE         - Version: 580.95

 Nodes From\\To  0   1
       0        C   I
Domain State: DEGRADED
"""


def test_imex_words() -> None:
    assert mnnvl.parse_imex(IMEX) == {"domain": "DEGRADED", "nodes": {"READY": 1, "UNAVAILABLE": 1}}
    assert mnnvl.parse_imex("Failed to connect to the IMEX service") is None


# Clocks

HEADER = (
    "index, temperature.gpu, clocks_event_reasons.active, clocks.current.sm [MHz], "
    "clocks_event_reasons_counters.hw_thermal_slowdown [us], clocks_event_reasons_counters.hw_power_brake_slowdown [us]\n"
)


def test_nvidia_smis_answer_in_its_forms() -> None:
    rows = (
        "0, 61, 0x0000000000000004, 1980 MHz, 120 us, 0 us\n1, [N/A], [Not Supported], [N/A], [N/A], [N/A]\n2, 60, 0x"
    )
    assert clocks.parse(HEADER + rows, 5.0) == [
        clocks.Sample(5.0, 0, 1980, 4, 61, 120, 0),
        clocks.Sample(5.0, 1),
    ]
    old = "index, temperature.gpu, clocks_throttle_reasons.active, clocks.sm [MHz]\n3, 70, 0x40, 900 MHz\n"
    assert clocks.parse(old, 1.0) == [clocks.Sample(1.0, 3, 900, 0x40, 70)]
    assert clocks.parse("", 1.0) == clocks.parse("NVIDIA-SMI has failed\n", 1.0) == []


def test_a_reason_counts_where_it_lasted() -> None:
    def taken(masks: list[int], brake: tuple[int, int] = (0, 0)) -> list[dict[str, Any]]:
        last = len(masks) - 1
        samples = [
            clocks.Sample(float(at), 0, 1000 + at, mask, 50 + at, 0, brake[at == last]) for at, mask in enumerate(masks)
        ]
        return clocks.summary(samples, since=0.0)

    assert taken([0x40] + [4] * 19)[0]["reasons"] == 0  # one of twenty: a moment
    assert taken([0x44] * 5 + [4] * 15)[0]["reasons"] == 0x40
    assert taken([4] * 10, brake=(0, 400_000))[0]["reasons"] == 0  # 0.4 of 9 s
    assert taken([4] * 10, brake=(0, 500_000))[0]["reasons"] == 0x80
    assert taken([4] * 5)[0] == {"gpu": 0, "sm_mhz": 1002, "reasons": 0, "temperature": 54}
    assert clocks.summary([clocks.Sample(1.0, 0, 900)], since=2.0) == []


@pytest.fixture(scope="module")
def smi_folder(libraries: Path) -> Path:
    return libraries / "bin"


def node_with_smi(tmp_path: Path, smi_folder: Path, **keys: object) -> Path:
    """A node's root with a real program that speaks for simulated GPUs."""
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    if not (root / "usr/bin/nvidia-smi").exists():
        (root / "usr/bin/nvidia-smi").symlink_to(smi_folder / "nvidia-smi")
    state = root / "etc/fmslurm-lab"
    state.mkdir(parents=True, exist_ok=True)
    lines = {"node": "n0", "gpus": 2, **{k.replace("__", "."): v for k, v in keys.items()}}
    fresh = state / "hardware.new"
    fresh.write_text("".join(f"{k}={v}\n" for k, v in lines.items()))
    fresh.rename(state / "hardware.env")
    (state / "hardware.json").write_text("{}")
    return root


def until(look: Callable[[], Any], timeout_s: float = 120.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found
    return found


def test_the_sampler_sees_a_hot_gpu_and_ends_when_told(tmp_path: Path, smi_folder: Path) -> None:
    root = node_with_smi(tmp_path, smi_folder, gpu__1__event_reasons="0x44", gpu__1__temperature=92)
    look = EfaLook(str(tmp_path), str(root), clocks_s=60.0)
    try:
        told = until(lambda: look.facts()["clocks"])
    finally:
        look.close()
    assert [(g["gpu"], g["reasons"], g["temperature"]) for g in told] == [(0, 0, 31), (1, 0x40, 92)]
    assert look._sampler is not None
    with pytest.raises(ProcessLookupError):
        os.kill(look._sampler.pid, 0)


def test_an_nvidia_smi_that_hangs_holds_nobody_and_is_not_left_behind(tmp_path: Path, smi_folder: Path) -> None:
    root = node_with_smi(tmp_path, smi_folder, smi__hang=1)
    started = time.monotonic()
    look = EfaLook(str(tmp_path), str(root), clocks_s=60.0)

    def asked() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if str(root).encode() in words:
                    found.append(int(entry.name))
        return found

    until(asked)
    assert look.facts()["clocks"] is None
    look.close()
    assert time.monotonic() - started < 60
    until(lambda: not asked())


def test_a_node_without_nvidia_smi_has_no_samples(tmp_path: Path) -> None:
    sampler = clocks.Sampler(str(tmp_path), "/nonexistent/nvidia-smi")
    until(lambda: os.waitpid(sampler.pid, os.WNOHANG)[0])
    assert sampler.summary(60.0) is None


def test_the_sampler_ends_with_whoever_started_it(tmp_path: Path, smi_folder: Path) -> None:
    root = node_with_smi(tmp_path, smi_folder)
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        sampler = clocks.Sampler(str(tmp_path), str(root / "usr/bin/nvidia-smi"))
        os.write(writer, str(sampler.pid).encode())
        signal.pause()
    child = int(os.read(reader, 16))
    until(lambda: (tmp_path / clocks.NAME).exists())
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    os.close(reader)
    os.close(writer)

    def gone() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    until(gone)


# Counters


def counters(root: Path, device: str, **values: int) -> None:
    folder = root / f"sys/class/infiniband/{device}/ports/1/hw_counters"
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")


def test_counters_tell_their_growth_by_device(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(6):
        counters(tmp_path, f"rdmap{number}s0", tx_bytes=1000, retrans_pkts=7)
    look = EfaLook(str(logs), str(tmp_path))
    for number in range(6):
        counters(tmp_path, f"rdmap{number}s0", tx_bytes=1000 + GB, retrans_pkts=7 + number)
    told = look.facts()
    assert (told["efa_bytes"], told["retransmits"]) == (6 * GB, 15)
    assert told["retransmits_by_device"] == {f"rdmap{n}s0": n for n in (5, 4, 3, 2)}
    # A driver that was loaded anew counts from 0; one of before 2.17 has no such counter.
    counters(tmp_path, "rdmap0s0", tx_bytes=500, retrans_pkts=0)
    assert look.facts()["efa_bytes"] == 5 * GB + 500
    look.begin(others=False)
    assert (look.facts()["efa_bytes"], look.facts()["retransmits"]) == (0, 0)


def test_old_drivers_have_no_retransmits_and_other_machines_no_counters(tmp_path: Path) -> None:
    counters(tmp_path, "rdmap0s0", tx_bytes=1)
    look = EfaLook(str(tmp_path), str(tmp_path))
    assert (look.facts()["efa_bytes"], look.facts()["retransmits"]) == (0, None)
    none = EfaLook(str(tmp_path), str(tmp_path / "elsewhere"))
    assert (none.facts()["efa_bytes"], none.facts()["retransmits"]) == (None, None)


def test_logs_of_before_are_left_out_once_counting_began_anew(tmp_path: Path) -> None:
    (tmp_path / "nccl.1").write_text(log("n0", 0))
    look = EfaLook(str(tmp_path), str(tmp_path / "root"))
    assert len(look.facts()["processes"]) == 1
    look.begin(others=False)  # the same workers go on, and so do their logs
    assert len(look.facts()["processes"]) == 1
    look.begin(others=True)
    (tmp_path / "nccl.2").write_text(log("n0", 1))
    assert [p["rank"] for p in look.facts()["processes"]] == [1]


# All of it, with agents


def test_a_strict_burn_in_names_the_gpu_that_is_held_back(
    make_cluster: Callable[..., Cluster], smi_folder: Path
) -> None:
    cluster = make_cluster(2, transport="efa", strict_sustain_s=4.0, deadline_s=120.0)
    for name in cluster.nodes:
        cluster.efa_counters(name, 4)
        hot = {"gpu__1__event_reasons": "0x40", "gpu__1__temperature": 93} if name == "n1" else {}
        cluster.hardware(name, efa=32, **hot)
        program = cluster.folder / name / "root/usr/bin/nvidia-smi"
        program.parent.mkdir(parents=True)
        program.symlink_to(smi_folder / "nvidia-smi")

    def run(name: str) -> Outcome:
        job = cluster.job(name)._replace(strict=True)
        return run_burnin(job, cluster.settings, deadline_s=120.0, cgroups=False)

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(run, cluster.nodes))
    for outcome in outcomes:
        assert outcome.verdict.verdict == WARN, (outcome, cluster.log())
        assert ("gpu.throttled", "node:n1") in {(f.id, f.target) for f in outcome.verdict.findings}
        assert "gpu 1: hardware thermal slowdown" in outcome.verdict.reason
        assert outcome.culprits == ()
