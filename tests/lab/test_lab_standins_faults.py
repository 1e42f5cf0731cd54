"""The libnccl stand-in's layouts, result codes and log forms by release, and its faults, which come and go as it runs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from standins_support import Ranks, run_ranks, script, write_node
from test_standins_nccl import REDUCE

from slurm_ext.lab import frozen

#: Bytes of ncclConfig_t by release, and by which release a caller of that layout says it was built.
LAYOUTS = {21400: 24, 21700: 40, 21805: 48, 22602: 48, 22707: 72, 22809: 80, 22907: 88, 23005: 96, 23203: 120}

#: Write a configuration of `size` bytes: everything undefined (INT_MIN, NULL) but what `ints` says by offset.
RAW = """
    def raw(size, version, ints, magic=0xCAFEBEEF):
        data = bytearray(max(size, 24))
        struct.pack_into("<QII", data, 0, size, magic, version)
        for offset in range(16, len(data) - 3, 4):
            struct.pack_into("<i", data, offset, UNDEFINED)
        for offset in (32, 48):
            if offset + 8 <= len(data):
                struct.pack_into("<Q", data, offset, 0)
        for offset, value in ints.items():
            struct.pack_into("<i", data, offset, value)
        return (ctypes.c_char * len(data)).from_buffer(data)
    def fresh():
        other = UniqueId()
        assert nccl.ncclGetUniqueId(byref(other)) == 0
        return other
    def join_raw(*words, **more):
        comm = c_void_p()
        code = nccl.ncclCommInitRankConfig(byref(comm), 1, fresh(), 0, byref(raw(*words, **more)))
        if code == 0:
            nccl.ncclCommDestroy(comm)
        elif code == 7:
            code = [7, settle(comm)]
            nccl.ncclCommAbort(comm)
        return code
"""


@pytest.mark.parametrize("library", [21805, 22304, 22707, 22809, 22907, 23005, 23203])
def test_every_layout_is_taken_by_every_release(libraries: Path, tmp_path: Path, library: int) -> None:
    text = f"""
        for version, size in {LAYOUTS!r}.items():
            say(join_raw(size, version, {{16: 1}}), join_raw(size, version, {{16: 0}}), join_raw(size, version, {{16: 2}}))
            say(join_raw(size, version, {{16: 1}}, magic=0))
    """
    node = write_node(tmp_path, "n0", nccl__version=library)
    said = run_ranks(libraries, [(node, 0)], script(RAW, text))[0]
    assert said == [[0, [7, 0], 4], [4]] * len(LAYOUTS)


@pytest.mark.parametrize(
    ("library", "size", "caller", "offset", "value", "refused"),
    [
        (21805, 48, 21805, 40, 7, True),  # splitShare
        (21805, 120, 23100, 56, 9, False),  # collnetEnable: a release that does not have it copies less
        (22707, 120, 23100, 56, 9, True),
        (22707, 72, 22602, 56, 9, False),  # the caller says it is older than the field
        (22707, 48, 22707, 56, 9, False),
        (22707, 80, 22809, 76, 9, False),  # nvlinkCentricSched
        (22809, 80, 22809, 76, 9, True),
        (22907, 88, 22907, 80, 3, True),  # graphUsageMode
        (23005, 96, 23005, 88, 0, True),  # maxP2pPeers
        (23203, 96, 22907, 88, 0, False),
        (21805, 48, 21400, 24, 0, False),  # minCTAs, of a caller before 2.17
        (23203, 48, 21800, 44, 12345, False),  # trafficClass: padding to a caller of 2.18
    ],
)
def test_a_field_counts_where_both_sides_know_it(
    libraries: Path, tmp_path: Path, library: int, size: int, caller: int, offset: int, value: int, refused: bool
) -> None:
    node = write_node(tmp_path, "n0", nccl__version=library)
    longest = max(size, offset + 4)
    text = f"""
        data = raw({longest}, {caller}, {{16: 1, {offset}: {value}}})
        struct.pack_into("<Q", data, 0, {size})
        comm = c_void_p()
        say(nccl.ncclCommInitRankConfig(byref(comm), 1, fresh(), 0, byref(data)))
    """
    assert run_ranks(libraries, [(node, 0)], script(RAW, text))[0] == [[4 if refused else 0]]


@pytest.mark.parametrize(("version", "code", "seen"), [(22707, 8, 3), (23005, 8, 8), (22707, 2, 2), (21805, 6, 6)])
def test_result_codes_by_release(libraries: Path, tmp_path: Path, version: int, code: int, seen: int) -> None:
    text = """
        say(nccl.ncclGetErrorString(8).decode(), nccl.ncclGetErrorString(7).decode())
        code, comm = join()
        settle(comm)
        say(reduce(comm)[2])
        say(reduce(comm)[2], nccl.ncclCommAbort(comm))
    """
    node = write_node(tmp_path, "n0", nccl__version=version, nccl__error=code, nccl__error_at="allreduce:2")
    said = run_ranks(libraries, [(node, 0)], script(REDUCE, text))[0]
    timeout = "timeout" if version >= 23000 else "unknown result code"
    assert said == [[timeout, "NCCL operation in progress"], [0], [-seen, 0]]


#: What a log has by release, and what it has not: forms of the public sources of each.
FORMS = [
    (21805, ["INFO comm 0x", "Connected all rings\n", "via P2P/IPC", "Bootstrap : Using lo"], ["MNNVL", "Loaded net"]),
    (22005, ["INFO comm 0x", "MNNVL 0", "Selected Provider is efa (found 32 nics)"], ["Assigned NET", "NVLS_NCH"]),
    (22203, ["ncclCommInitRank comm 0x", "Bootstrap : Using lo"], ["ncclCommInitRankConfig", "(v"]),
    (22501, ["ncclCommInitRankConfig comm 0x", "(v9)", "use ring PXN 0 GDR 1", "via P2P/CUMEM"], ["Bootstrap"]),
    (22707, ["(v10)", "Successfully loaded external plugin", "Assigned NET plugin", "NVLS_NCHANNELS 16"], ["[Rank 0]"]),
    (22809, ["(v11)", "Successfully loaded external network plugin"], ["[Rank 0]"]),
    (22907, ["[Rank 0] ncclCommInitRankConfig comm 0x", "fabric is efa-direct (found 32 nics)"], ["(v12)"]),
    (23007, ["(v12)", "Plugin selected platform: AWS", "[Rank 3]"], ["NVLS_NCHANNELS"]),
    (23203, ["(v12)", "NCCL version 2.32.3+cuda12.8", "aws-ofi-nccl 1.21.0"], ["Selected Provider"]),
]


@pytest.mark.parametrize(("version", "has", "lacks"), FORMS, ids=[str(form[0]) for form in FORMS])
def test_log_forms_by_release(libraries: Path, tmp_path: Path, version: int, has: list[str], lacks: list[str]) -> None:
    nodes = [write_node(tmp_path, name, efa=32, nccl__version=version) for name in ("n0", "n1")]
    text = """
        code, comm = join(blocking=1)
        say(code, reduce(comm)[2])
    """
    environment = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING",
        "NCCL_DEBUG_FILE": str(tmp_path / "log.%p"),
        "NCCL_NET": "AWS Libfabric",
    }
    placement = [(node, device) for node in nodes for device in (0, 1)]
    assert run_ranks(libraries, placement, script(REDUCE, text), environment) == [[[0, 0]]] * 4
    log = "\n".join(path.read_text() for path in tmp_path.glob("log.*"))
    assert [word for word in (*has, "- Init START", "- Init COMPLETE", "Using network") if word not in log] == []
    assert [word for word in lacks if word in log] == []
    assert log.count("via NET/AWS Libfabric/") == log.count("/GDRDMA") == 16


def test_a_fall_back_that_nothing_refuses_shows_in_the_log_only(libraries: Path, tmp_path: Path) -> None:
    nodes = [
        write_node(tmp_path, "n0", efa=32),
        write_node(tmp_path, "n1", efa=32, nccl__claims="socket", nccl__nics=31),
    ]
    for name in ("n0", "n1"):
        counters = tmp_path / name / "root/sys/class/infiniband/rdmap0s0/ports/1/hw_counters"
        counters.mkdir(parents=True)
        (counters / "tx_bytes").write_text("0\n")
    text = """
        code, comm = join(blocking=1)
        say(code, reduce(comm)[2])
    """
    environment = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": str(tmp_path / "log.%p"),
        "NCCL_NET": "AWS Libfabric",
    }
    assert run_ranks(libraries, [(node, 0) for node in nodes], script(REDUCE, text), environment) == [[[0, 0]]] * 2
    log = "\n".join(path.read_text() for path in tmp_path.glob("log.*"))
    assert (log.count("Using network Socket"), log.count("Using network AWS Libfabric")) == (1, 1)
    assert (log.count("via NET/Socket/0"), log.count("/GDRDMA"), log.count("found 31 nics")) == (4, 4, 1)
    sent = [
        int((tmp_path / name / "root/sys/class/infiniband/rdmap0s0/ports/1/hw_counters/tx_bytes").read_text())
        for name in ("n0", "n1")
    ]
    assert (sent[0], sent[1]) == (4000, 0)


def test_a_bad_cable_is_sent_over_again(libraries: Path, tmp_path: Path) -> None:
    nodes = [write_node(tmp_path, name, efa=4, efa__retransmits_per_gb=50000) for name in ("n0", "n1")]
    names = ("tx_bytes", "retrans_pkts", "retrans_bytes")
    folder = tmp_path / "n0/root/sys/class/infiniband/rdmap0s0/ports/1/hw_counters"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("0\n")
    text = """
        code, comm = join(blocking=1)
        say([reduce(comm)[2] for _ in range(3)])
    """
    environment = {"NCCL_NET": "AWS Libfabric", "COUNT": "100000"}
    run_ranks(libraries, [(node, 0) for node in nodes], script(REDUCE, text), environment)
    sent, packets, again = (int((folder / name).read_text()) for name in names)
    assert (sent, packets, again) == (1_200_000, 60, 60 * 8928)


@pytest.mark.parametrize("offset", [0, 4 * 123 + 1, 4 * 999 + 3])
@pytest.mark.parametrize("side", ["send", "recv"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_one_bit_flips_where_it_is_told(libraries: Path, tmp_path: Path, offset: int, side: str, gpus: int) -> None:
    nodes = [
        write_node(tmp_path, "n0"),
        write_node(tmp_path, "n1", nccl__wrong_result=side, nccl__flip_offset=offset),
    ]
    text = """
        code, comm = join(blocking=1)
        got = fetch(reduce(comm)[3], len(total))
        say([i for i in range(count) if got[4 * i : 4 * i + 4] != total[4 * i : 4 * i + 4]])
    """
    answers = run_ranks(libraries, [(node, g) for node in nodes for g in range(gpus)], script(REDUCE, text))
    wrong = [said[0][0] for said in answers]
    at = [[offset // 4]]
    assert wrong == (at * 2 * gpus if side == "send" else [[]] * gpus + at + [[]] * (gpus - 1))


#: Fault, and what the second collective of both ranks shows: n1 has the fault from its second collective on.
SECOND = [({"nccl__hang": "allreduce:2"}, 600, 1), ({"nccl__crash": "allreduce:2"}, -6, 60)]


@pytest.mark.parametrize(("fault", "seen", "limit_s"), SECOND, ids=["hang", "crash"])
def test_a_fault_waits_for_its_collective(
    libraries: Path, tmp_path: Path, fault: dict[str, object], seen: int, limit_s: int
) -> None:
    text = """
        code, comm = join()
        settle(comm)
        say(reduce(comm)[2])
        say(reduce(comm, limit_s=float(os.environ["LIMIT_S"]))[2], nccl.ncclCommAbort(comm))
    """
    placement = [(write_node(tmp_path, "n0"), 0), (write_node(tmp_path, "n1", **fault), 0)]
    ranks = Ranks(libraries, placement, script(REDUCE, text), {"LIMIT_S": str(limit_s)})
    ranks.start()
    assert ranks.said(may_fail=(1,))[0] == [[0], [seen, 0]]


def test_faults_come_and_go_while_it_runs(libraries: Path, tmp_path: Path) -> None:
    """A hang in abort ends once the file says so, and a delay begins with the collective after it was written."""
    text = """
        env = os.environ["FMSLURM_LAB_HARDWARE"].replace(".json", ".env")
        plain = open(env).read()
        def now(more):
            open(env + ".new", "w").write(plain + more)
            os.rename(env + ".new", env)
        code, comm = join()
        settle(comm)
        def seconds():
            started = time.monotonic()
            assert reduce(comm)[2] == 0
            return time.monotonic() - started
        seconds()
        now("nccl.delay_ms=700\\n")
        say(seconds() >= 0.7)
        now("nccl.hang=abort\\n")
        aborting = threading.Thread(target=nccl.ncclCommAbort, args=(comm,), daemon=True)
        aborting.start()
        aborting.join(0.5)
        say(aborting.is_alive())
        now("")
        aborting.join(120)
        say(aborting.is_alive())
    """
    assert run_ranks(libraries, [(write_node(tmp_path, "n0"), 0)], script(REDUCE, text))[0] == [[True], [True], [False]]


def test_a_limited_rate_ends_in_the_middle_of_a_collective(libraries: Path, tmp_path: Path) -> None:
    slow = write_node(tmp_path, "n1", nccl__rate_mbit=1)
    text = """
        code, comm = join()
        settle(comm)
        if rank == 1:
            def heal():
                time.sleep(0.5)
                env = os.environ["FMSLURM_LAB_HARDWARE"].replace(".json", ".env")
                open(env + ".new", "w").write("node=n1\\ngpus=8\\n")
                os.rename(env + ".new", env)
            threading.Thread(target=heal).start()
        started = time.monotonic()
        code, settled, done, target = reduce(comm, limit_s=50)
        say(done, 0.4 < time.monotonic() - started < 45)
    """
    # 8 MB at 1 Mbit/s are 64 s.
    placement = [(write_node(tmp_path, "n0"), 0), (slow, 0)]
    answers = run_ranks(libraries, placement, script(REDUCE, text), {"COUNT": "2000000"}, timeout_s=240)
    assert answers == [[[0, True]]] * 2


def test_one_slow_card_slows_its_own_rail_and_the_whole(libraries: Path, tmp_path: Path) -> None:
    """GPU 1 of n1 sends at 4 Mbit/s: a communicator of the GPUs 0 is quick, one of the GPUs 1 or of all is not."""
    nodes = [write_node(tmp_path, "n0"), write_node(tmp_path, "n1", **{"gpu.1.nccl.rate_mbit": 4})]
    text = """
        code, comm = join()
        settle(comm)
        reduce(comm)
        took = []
        for _ in range(3):  # a busy machine may hold up one
            started = time.monotonic()
            assert reduce(comm, limit_s=60)[2] == 0
            took.append(time.monotonic() - started)
        say(min(took) > 0.9)
    """
    environment = {"COUNT": "250000"}  # 1 MB: 2 s for one GPU alone, 1 s for its half of the whole

    def outcome(gpus: tuple[int, ...]) -> list[object]:
        answers = run_ranks(libraries, [(n, g) for n in nodes for g in gpus], script(REDUCE, text), environment)
        (only,) = {str(said) for said in answers}
        return [only]

    assert [outcome(gpus) for gpus in ((0,), (1,), (0, 1))] == [["[[False]]"], ["[[True]]"], ["[[True]]"]]


def test_late_and_absent_ranks(libraries: Path, tmp_path: Path) -> None:
    text = """
        started = time.monotonic()
        code, comm = join()
        say(settle(comm, limit_s=float(os.environ["LIMIT_S"])), time.monotonic() - started > 0.7)
        os._exit(0)
    """
    first = write_node(tmp_path, "n0")
    late = write_node(tmp_path, "n1", nccl__join_delay_ms=800)
    assert run_ranks(libraries, [(first, 0), (late, 0)], text, {"LIMIT_S": "120"}) == [[[0, True]]] * 2
    absent = write_node(tmp_path, "n2", nccl__absent=1)
    assert run_ranks(libraries, [(first, 0), (absent, 0)], text, {"LIMIT_S": "1"}) == [[[7, True]], []]


def state_of(pid: int) -> set[str]:
    """The states of a process's threads."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return found


def until_state(pid: int, letter: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while letter not in state_of(pid):
        assert time.monotonic() < deadline, state_of(pid)
        time.sleep(0.01)


def test_a_stopped_rank_goes_on_when_it_is_continued(libraries: Path, tmp_path: Path) -> None:
    text = """
        code, comm = join()
        settle(comm)
        say(reduce(comm)[2])
    """
    placement = [(write_node(tmp_path, "n0"), 0), (write_node(tmp_path, "n1", nccl__stop="allreduce"), 0)]
    ranks = Ranks(libraries, placement, script(REDUCE, text))
    try:
        ranks.start()
        until_state(ranks.processes[1].pid, "T")
        # Heal first: the file is read anew when the next collective begins.
        write_node(tmp_path, "n1")
        os.kill(ranks.processes[1].pid, signal.SIGCONT)
        assert ranks.said() == [[[0]]] * 2
    finally:
        ranks.kill()


@pytest.mark.parametrize("where", ["allreduce", "init", "cuda"])
def test_a_rank_in_the_kernels_hands_dies_only_when_thawed(
    libraries: Path, tmp_path: Path, stuck: Path, where: str
) -> None:
    fault = {"cuda__dstate_file": stuck} if where == "cuda" else {"nccl__dstate_file": stuck}
    fault |= {} if where == "cuda" else {"nccl__dstate": where}
    text = """
        code, comm = join()
        settle(comm, 5.0)
        reduce(comm, 5.0)
        os._exit(0)
    """
    ranks = Ranks(libraries, [(write_node(tmp_path, "n0", **fault), 0)], script(REDUCE, text))
    process = ranks.processes[0]
    try:
        ranks.start()
        until_state(process.pid, "D")
        process.kill()
        with pytest.raises(Exception, match="timed out"):
            process.wait(0.5)
        frozen.thaw(stuck.parent)
        assert process.wait(120) == -signal.SIGKILL
    finally:
        frozen.thaw(stuck.parent)
        ranks.kill()
