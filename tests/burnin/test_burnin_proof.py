"""NCCL's log in the forms of each release, in the wrappings of launchers, cut and torn: proven, refuted or unproven."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest

from slurm_ext.aws import catalogue
from slurm_ext.burnin import nccl_log, proof
from slurm_ext.verdict import Verdict


class Form(NamedTuple):
    """How one release of NCCL, and the plugin that came with it, say things. Sources: tags of NVIDIA/nccl and aws-ofi-nccl."""

    nccl: str
    plugin: str
    network: str = "Libfabric"
    provider: str = "Selected provider is {provider}, fabric is {provider}-direct (found {nics} nics)"
    protocol: str = "Using transport protocol {protocol} (platform set)"
    complete: str = (
        "ncclCommInitRankConfig comm 0x7f rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1000 - Init COMPLETE"
    )
    rings: str = "Connected all rings, use ring PXN 0 GDR 1"
    nvls: str = "NVLS multicast support is {no}available on dev 0 (NVLS_NCHANNELS 16)"
    shm: str = "Channel 00 : {rank}[0] -> {peer}[1] via SHM/direct/direct"
    p2p: str = "Channel 00/0 : {rank}[0] -> {peer}[1] via P2P/CUMEM"
    gdr: str = "/GDRDMA"
    no_plugin: str = "NET/Plugin: Could not find: libnccl-net.so"
    unmet: str = "plugin/net.cc:340 NCCL WARN Failed to initialize any NET plugin"
    bootstrap: str = "Bootstrap: Using ens32:10.0.0.1<0>"


_OLD = Form(
    "2.18.6+cuda12.1",
    "1.7.4-aws",
    network="AWS Libfabric",
    provider="Selected Provider is {provider} (found {nics} nics)",
    protocol="Using transport protocol {protocol}",
    complete="comm 0x55 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 53000 commId 0x1 - Init COMPLETE",
    rings="Connected all rings",
    nvls="NVLS multicast support is {no}available on dev 0",
    no_plugin="NET/Plugin : No plugin found, using internal implementation",
    unmet="net.cc:285 NCCL WARN Error: network AWS Libfabric not found.",
    bootstrap="Bootstrap : Using ens32:10.0.0.1<0>",
)
_DLERROR = (
    "NET/Plugin : dlerror=libnccl-net.so: cannot open No plugin found (libnccl-net.so), using internal implementation"
)
FORMS = (
    _OLD,
    _OLD._replace(nccl="2.19.4+cuda12.2", no_plugin=_DLERROR),
    _OLD._replace(nccl="2.20.5+cuda12.4", plugin="1.9.1-aws", no_plugin=_DLERROR),
    _OLD._replace(
        nccl="2.21.5+cuda12.4", plugin="1.12.1-aws", no_plugin="NET/Plugin: No plugin found (libnccl-net.so)"
    ),
    _OLD._replace(
        nccl="2.22.3+cuda12.6",
        complete="ncclCommInitRank comm 0x55 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x1 - Init COMPLETE",
        no_plugin="NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
    ),
    Form(
        "2.23.4+cuda12.6",
        "1.13.2-aws",
        provider="Selected Provider is {provider}; fabric is {provider} (found {nics} nics)".replace("; f", ", f"),
        rings="Connected all rings",
        nvls="NVLS multicast support is {no}available on dev 0",
        no_plugin="NET/Plugin: Using internal network plugin.",
        unmet="net.cc:937 NCCL WARN Error: network AWS Libfabric not found.",
        bootstrap="Bootstrap : Using ens32:10.0.0.1<0>",
    ),
    Form("2.24.3+cuda12.6", "1.13.2-aws", unmet="net.cc:937 NCCL WARN Error: network AWS Libfabric not found."),
    Form("2.25.1+cuda12.8", "1.14.0", unmet="net.cc:937 NCCL WARN Error: network AWS Libfabric not found."),
    Form(
        "2.26.6+cuda12.9",
        "1.14.2",
        gdr="/GDRDMA(PCI)",
        unmet="plugin/net.cc:232 NCCL WARN Error: network AWS Libfabric not found.",
        no_plugin="NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.",
    ),
    Form("2.27.7+cuda12.9", "1.16.3", gdr="/GDRDMA/Shared"),
    Form("2.28.9+cuda13.0", "1.17.2"),
    Form("2.29.7+cuda13.1", "1.19.2"),
    Form(
        "2.30.7+cuda13.1",
        "1.20.0",
        nvls="NVLS multicast support is {no}available on dev 0",
        shm="Channel 00 : {rank}[0] -> {peer}[1] via SHM/direct",
        unmet="plugin/net.cc:349 (ncclNetInit) NCCL WARN Failed to initialize any NET plugin",
    ),
    Form("2.31.2+cuda13.2", "1.21.1", shm="Channel 00 : {rank}[0] -> {peer}[1] via SHM/direct"),
    Form(
        "2.32.3+cuda13.2", "1.21.1", shm="Channel 00 : {rank}[0] -> {peer}[1] via SHM/direct", gdr="/GDRDMA(PCI)/Shared"
    ),
)
by_release = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.nccl.split("+")[0])

P5 = proof.Context("p5.48xlarge", catalogue.find("p5.48xlarge"), nodes=2)


def head(node: str, rank: int, warn: bool = False) -> str:
    stamp = "\n[2026-11-30 01:02:03] " if warn else ""
    return f"{stamp}{node}:{4000 + rank}:{4000 + rank} [{rank % 8}] "


def process(
    form: Form,
    node: str,
    rank: int,
    *,
    provider: str = "efa",
    nics: int = 32,
    protocol: str = "RDMA",
    no: str = "",
    **more: str,
) -> list[str]:
    """The lines of one rank of a run over EFA; `more` takes the place of what the form says."""
    form = form._replace(**more)
    values = {"rank": rank, "peer": rank + 1, "provider": provider, "nics": nics, "protocol": protocol, "no": no}
    far = (rank + 8) % 16
    lines = [
        form.bootstrap,
        f"NCCL version {form.nccl}",
        "NCCL_NET set by environment to AWS Libfabric",
        f"NET/OFI Initializing aws-ofi-nccl {form.plugin}",
        f"NET/OFI {form.protocol}",
        f"NET/OFI {form.provider}",
        f"Using network {form.network}",
        form.nvls,
        form.complete,
        f"Channel 00/0 : {rank}[0] -> {far}[0] [send] via NET/{form.network}/0{form.gdr}",
        f"Channel 01/0 : {far}[0] -> {rank}[0] [receive] via NET/{form.network}/1({rank}){form.gdr}",
        form.p2p,
        form.rings,
    ]
    return [head(node, rank) + "NCCL INFO " + line.format(**values) for line in lines]


def socket_process(form: Form, node: str, rank: int) -> list[str]:
    """The lines of one rank whose plugin is not there."""
    lines = [
        f"NCCL version {form.nccl}",
        form.no_plugin,
        "NET/IB : No device found.",
        "NET/Socket : Using [0]ens32:10.0.0.1<0>",
        "Using network Socket",
        form.complete.format(rank=rank),
        f"Channel 00/0 : {rank}[0] -> {(rank + 8) % 16}[0] [send] via NET/Socket/0",
    ]
    return [head(node, rank) + "NCCL INFO " + line for line in lines]


def judged(text: str) -> Verdict:
    return proof.judge(nccl_log.parse_text(text), P5)


def found(*processes: list[str]) -> tuple[str, set[tuple[str, str, str]]]:
    verdict = judged("".join(line + "\n" for lines in processes for line in lines))
    return verdict.verdict, {(f.id, f.target, f.action) for f in verdict.findings}


@by_release
def test_a_healthy_run_is_proven_in_the_words_of_each_release(form: Form) -> None:
    assert found(process(form, "a", 0), process(form, "b", 8)) == ("pass", set())
    log = nccl_log.parse("\n".join(process(form, "a", 0)).splitlines())
    (one,) = log.processes
    assert (one.node, one.rank, one.provider, one.nics, one.protocol) == ("a", 0, "efa", 32, "RDMA")
    assert (one.complete, one.net_count, one.no_gdr_count, one.p2p_count, one.nvls) == (True, 2, 0, 1, True)
    assert one.plugin == tuple(map(int, form.plugin.split(".")[:2]))
    assert log.versions == (form.nccl.split("+")[0],)
    assert ("NCCL_NET", "AWS Libfabric") in one.environment


@by_release
def test_tcp_is_refuted_in_the_words_of_each_release(form: Form) -> None:
    assert found(socket_process(form, "a", 0), socket_process(form, "b", 8)) == (
        "fail",
        {("nccl-socket-fallback", "node", "drain")},
    )
    one_only = found(process(form, "a", 0), socket_process(form, "b", 8))
    assert one_only == ("fail", {("nccl-socket-fallback", "node:b", "drain")})


@by_release
def test_a_network_that_cannot_be_had_is_an_error_that_says_why(form: Form) -> None:
    lines = [head("b", 8) + "NCCL INFO " + form.no_plugin, *(head("b", 8, warn=True) + form.unmet).splitlines()]
    verdict = judged("\n".join(process(form, "a", 0)[:5] + lines) + "\n")
    assert [(f.id, f.target) for f in verdict.findings if f.action == "drain"] == [("nccl-net-unmet", "node:b")]
    assert "no plugin was found" in verdict.reason


@by_release
@pytest.mark.parametrize(
    ("changed", "verdict", "finding"),
    [
        ({"nics": 31}, "fail", ("nccl-nic-count", "node:b", "drain")),
        ({"provider": "tcp"}, "fail", ("ofi-provider-tcp", "node:b", "drain")),
        ({"gdr": ""}, "fail", ("nccl-no-gdr", "rank:10", "drain")),
        ({"gdr": "/Shared"}, "fail", ("nccl-no-gdr", "rank:10", "drain")),
        ({"protocol": "SENDRECV"}, "warn", ("ofi-protocol", "node:b", "warn")),
        ({"no": "not "}, "warn", ("nccl-no-nvls", "node:b", "warn")),
        ({"p2p": "SHM"}, "fail", ("nccl-shm-in-node", "node:b", "drain")),
    ],
    ids=["nics", "provider", "gdr", "gdr-shared", "protocol", "nvls", "shm"],
)
def test_what_is_wrong_on_one_rank_is_named(
    form: Form, changed: dict[str, str], verdict: str, finding: tuple[str, str, str]
) -> None:
    if changed.get("p2p"):
        changed = {"p2p": form.shm}
    if changed.get("protocol") and "platform" not in form.protocol:
        changed = {**changed, "protocol": "SENDRECV"}
    bad = process(form, "b", 10, **changed)  # type: ignore[arg-type]
    result = found(process(form, "a", 0), process(form, "b", 8), bad)
    assert result == (verdict, {finding})


LOST = process(FORMS[9], "gpu-1.cluster.local", 10, gdr="")
GOOD = [process(FORMS[9], "gpu-0.cluster.local", 0), process(FORMS[9], "gpu-1.cluster.local", 8)]


def _interleaved(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(line for at in range(3) for line in lines[at::3]) + "\n"


#: What launchers, terminals and log collectors make of lines.
WRAPPINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "interleaved": _interleaved,
    "srun-l": lambda text: re.sub(r"^", "12: ", text, flags=re.M),
    "mpirun-tag": lambda text: re.sub(r"^", "[1,12]<stdout>:", text, flags=re.M),
    "mpirun-stderr": lambda text: re.sub(r"^", "[1,3]<stderr>: ", text, flags=re.M),
    "torchrun": lambda text: re.sub(r"^", "[default3]:", text, flags=re.M),
    "pod": lambda text: re.sub(r"^", "worker-0: ", text, flags=re.M),
    "collector": lambda text: re.sub(r"^", "2026-11-30T01:02:03.004Z stdout F ", text, flags=re.M),
    "timestamp": lambda text: re.sub(r"^", "[2026-11-30 01:02:03] ", text, flags=re.M),
    "pdsh": lambda text: re.sub(r"^", "gpu-0: ", text, flags=re.M),
    "coloured": lambda text: re.sub(r"^(.*)$", "\x1b[32m\\1\x1b[0m", text, flags=re.M),
    "coloured-bold": lambda text: re.sub(r"^(.*)$", "\x1b[1;33m\\1\x1b[m", text, flags=re.M),
    "blank-lines": lambda text: text.replace("\n", "\n\n"),
    "noise": lambda text: text.replace("\n", "\nstep 12: loss 3.2 [0] 99:1:2 ok\n"),
    "indented": lambda text: re.sub(r"^", "    ", text, flags=re.M),
    "tab-at-end": lambda text: text.replace("\n", " \t\n"),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_wrappings_change_nothing(wrapping: str) -> None:
    wrap = WRAPPINGS[wrapping]
    assert judged(wrap("".join(line + "\n" for lines in GOOD for line in lines))).verdict == "pass"
    bad = judged(wrap("".join(line + "\n" for lines in (*GOOD, LOST) for line in lines)))
    assert [(f.id, f.target) for f in bad.findings] == [("nccl-no-gdr", "rank:10")]


def test_a_log_that_is_cut_anywhere_never_refutes() -> None:
    """Half a line says something else than the whole one: a cut log leaves things open, and blames nobody."""
    text = "".join(line + "\n" for lines in GOOD for line in lines)
    seen = {judged(text[:cut]).verdict for cut in range(len(text))}
    assert seen <= {"pass", "warn", "unknown"}
    assert "unknown" in seen


def test_a_torn_line_never_refutes() -> None:
    """Two processes write at once: the second's line begins in the middle of the first's."""
    first, second = GOOD
    for line in first:
        for at in range(0, len(line), 7):
            torn = [line[:at] + second[0], line[at:]]
            others = [other for other in first if other != line]
            verdict = judged("\n".join([*others, *torn, *second[1:], ""]))
            assert verdict.verdict != "fail", (torn, verdict)


def test_every_missing_line_leaves_the_proof_open_or_whole() -> None:
    whole = [line for lines in GOOD for line in lines]
    for words, verdict in (("provider", "unknown"), ("Channel", "unknown"), ("NCCL", "unknown"), ("rings", "pass")):
        assert judged("".join(line + "\n" for line in whole if words not in line)).verdict == verdict, words


def test_two_jobs_in_one_log_are_both_judged() -> None:
    good = [line for lines in GOOD for line in lines]
    bad = socket_process(FORMS[9], "gpu-0.cluster.local", 0)
    moved = [re.sub(r":4\d\d\d:", ":5000:", line) for line in bad]
    for order in (good + moved, moved + good):
        verdict = judged("\n".join([*order, ""]))
        assert (verdict.verdict, verdict.findings[0].id) == ("fail", "nccl-socket-fallback")


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        ("init.cc:900 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 53000", "gpu-duplicate"),
        ("init.cc:724 NCCL WARN Mismatched NCCL version detected : rank 0 version 22707", "nccl-version-mismatch"),
        ("init.cc:1 NCCL WARN Mismatched NCCL git versions detected: rank 0 fingerprint 0x1", "nccl-version-mismatch"),
        ("misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer gpu-1<4711>", "peer-lost"),
    ],
)
def test_warnings_of_others_faults_are_unknown(line: str, finding: str) -> None:
    verdict = judged("\n".join([*GOOD[0], *(head("gpu-0", 0, warn=True) + line).splitlines(), ""]))
    assert (verdict.verdict, verdict.findings[0].id) == ("unknown", finding)


def test_an_error_that_nccl_passed_over_is_none() -> None:
    ignored = head("gpu-0.cluster.local", 0) + "NCCL INFO misc/x.cc:12 Cuda failure 'peer access is already enabled'"
    assert judged("\n".join([*GOOD[0], ignored, *GOOD[1], ""])).verdict == "pass"
    cut = [line for line in GOOD[0] if "COMPLETE" not in line and "Channel" not in line]
    assert judged("\n".join([*cut, ignored, ""])).findings[0].id == "cuda-failure"


def test_multicast_that_cannot_be_bound_is_a_warning_and_no_cuda_error() -> None:
    words = (
        "NCCL INFO Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 1 'x'. Proceeding"
    )
    verdict = judged("\n".join([*GOOD[0], head("gpu-0.cluster.local", 0) + words, *GOOD[1], ""]))
    assert (verdict.verdict, [(f.id, f.target) for f in verdict.findings]) == (
        "warn",
        [("nccl-no-nvls", "node:gpu-0.cluster.local")],
    )


def test_switching_nvls_off_by_hand_is_no_finding() -> None:
    by_hand = head("a", 0) + "NCCL INFO NCCL_NVLS_ENABLE set by environment to 0."
    assert found([*process(FORMS[9], "a", 0, no="not "), by_hand], process(FORMS[9], "b", 8)) == ("pass", set())


def test_gpudirect_is_not_asked_of_a_type_that_may_lack_it() -> None:
    context = proof.Context("p5.4xlarge", catalogue.find("p5.4xlarge"), nodes=2)
    lines = [*process(FORMS[9], "a", 0, nics=1, gdr=""), *process(FORMS[9], "b", 1, nics=1, gdr="")]
    verdict = proof.judge(nccl_log.parse(lines), context)
    assert (verdict.verdict, {f.id for f in verdict.findings}) == ("pass", {"no-gdr-expected"})
