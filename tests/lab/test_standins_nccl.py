"""The libnccl stand-in between real processes: results exact, failures as the real library reports them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from standins_support import Ranks, run_ranks, script, write_node

SYMBOLS = [
    "ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRank", "ncclCommInitRankConfig", "ncclCommGetAsyncError",
    "ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast", "ncclBcast", "ncclCommFinalize",
    "ncclCommDestroy", "ncclCommAbort", "ncclCommSplit", "ncclCommCount", "ncclCommCuDevice", "ncclCommUserRank",
    "ncclGetErrorString", "ncclGetLastError", "ncclGroupStart", "ncclGroupEnd",
]  # fmt: skip

#: Sum a small u32 buffer; `total` is what it must be, `reduce` waits for the result and returns it.
REDUCE = """
    count = int(os.environ.get("COUNT", "1000"))
    mine = struct.pack(f"<{count}I", *[(i + rank * 7919) & 0xffffffff for i in range(count)])
    total = struct.pack(f"<{count}I", *[(i * ranks + 7919 * ranks * (ranks - 1) // 2) & 0xffffffff for i in range(count)])
    def reduce(comm, limit_s=120):
        source, target = alloc(mine), alloc(bytes(len(mine)))
        code = nccl.ncclAllReduce(source, target, count, U32, 0, comm, stream)
        event = mark(stream)
        settled = settle(comm)
        return code, settled, until(event, comm, limit_s), target
"""


@pytest.fixture
def grid(tmp_path: Path) -> list[tuple[Path, int]]:
    """Two nodes of two ranks each, ranks dealt out alternately, so that ring order differs from rank order."""
    nodes = [write_node(tmp_path, name) for name in ("n0", "n1")]
    return [(nodes[0], 0), (nodes[1], 0), (nodes[0], 1), (nodes[1], 1)]


def test_symbols_and_version_without_any_device(libraries: Path, tmp_path: Path) -> None:
    text = f"""
import ctypes, sys
nccl = ctypes.CDLL({str(libraries / "lib/libnccl.so.2")!r})
version = ctypes.c_int()
identity = ctypes.create_string_buffer(129)
nccl.ncclGetErrorString.restype = ctypes.c_char_p
print([name for name in {SYMBOLS!r} if not hasattr(nccl, name)], nccl.ncclGetVersion(ctypes.byref(version)), version.value)
print(nccl.ncclGetErrorString(6).decode(), nccl.ncclGetUniqueId(identity), any(identity.raw[8:]))
"""
    for env, version in (
        ({}, 22707),
        ({"FMSLURM_LAB_HARDWARE": str(write_node(tmp_path, "n", nccl__version=21805))}, 21805),
    ):
        done = subprocess.run(
            [sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=120, check=True
        )
        assert done.stdout.splitlines() == [
            f"[] 0 {version}",
            "remote process exited or there was a network error 0 True",
        ]


def test_sums_are_exact_and_the_ring_connects_lazily(libraries: Path, grid: list[tuple[Path, int]]) -> None:
    text = """
        code, comm = join()
        say(code, settle(comm))
        code, settled, done, target = reduce(comm)
        say(code, settled, done, fetch(target, len(total)) == total)
        code, settled, done, target = reduce(comm)
        say(code, settled, done, fetch(target, len(total)) == total)
        place = c_int()
        say(nccl.ncclCommUserRank(comm, byref(place)) or place.value, nccl.ncclCommCount(comm, byref(place)) or place.value)
        say(nccl.ncclCommFinalize(comm), settle(comm), nccl.ncclCommDestroy(comm), nccl.ncclCommDestroy(comm))
    """
    for rank, said in enumerate(run_ranks(libraries, grid, script(REDUCE, text))):
        assert said == [[7, 0], [7, 0, 0, True], [0, 0, 0, True], [rank, 4], [7, 0, 0, 4]]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 65537])
def test_every_length(libraries: Path, grid: list[tuple[Path, int]], count: int) -> None:
    text = """
        code, comm = join(blocking=1)
        pointer = alloc(mine or b"0000")
        say(code, nccl.ncclAllReduce(pointer, pointer, count, U32, 0, comm, stream), cuda.cuStreamSynchronize(stream))
        say(fetch(pointer, len(total)) == total)
    """
    for said in run_ranks(libraries, grid, script(REDUCE, text), {"COUNT": str(count)}):
        assert said == [[0, 0, 0], [True]]


def test_buffers_in_one_place_and_from_call_to_call_in_others(libraries: Path, grid: list[tuple[Path, int]]) -> None:
    text = """
        code, comm = join()
        settle(comm)
        one, other, third = alloc(mine), alloc(bytes(len(mine))), alloc(bytes(len(mine)))
        for source, target in ((one, other), (one, third), (one, one)):
            code = nccl.ncclAllReduce(source, target, count, U32, 0, comm, stream)
            say(code in (0, 7), settle(comm), until(mark(stream), comm))
        say(*(fetch(place, len(mine)) == total for place in (one, other, third)))
    """
    for said in run_ranks(libraries, grid, script(REDUCE, text), {"COUNT": "70001"}):
        assert said == [[True, 0, 0]] * 3 + [[True, True, True]]


def test_types_and_operations(libraries: Path, grid: list[tuple[Path, int]]) -> None:
    """Small whole numbers, so that every type holds sum, maximum and minimum exactly. The results are worked out here."""
    text = """
        def bf16(values):
            return b"".join(struct.pack("<f", value)[2:] for value in values)
        packers = {U32: lambda v: struct.pack(f"<{len(v)}I", *v), I32: lambda v: struct.pack(f"<{len(v)}i", *v),
                   U64: lambda v: struct.pack(f"<{len(v)}Q", *v), F32: lambda v: struct.pack(f"<{len(v)}f", *v),
                   F16: lambda v: struct.pack(f"<{len(v)}e", *v), BF16: bf16, 8: lambda v: struct.pack(f"<{len(v)}d", *v)}
        code, comm = join(blocking=1)
        for kind, pack in packers.items():
            low = -3 if kind in (I32, F32, F16, BF16, 8) else 0
            columns = [[low + (i + other) % 7 for other in range(ranks)] for i in range(131)]
            for operation, fold in ((0, sum), (2, max), (3, min)):
                pointer = alloc(pack([column[rank] for column in columns]))
                wanted = pack([fold(column) for column in columns])
                code = nccl.ncclAllReduce(pointer, pointer, 131, kind, operation, comm, stream)
                if code or cuda.cuStreamSynchronize(stream) or fetch(pointer, len(wanted)) != wanted:
                    say(kind, operation, code)
        say(nccl.ncclAllReduce(pointer, pointer, 1, 11, 0, comm, stream), nccl.ncclAllReduce(pointer, pointer, 1, F32, 4, comm, stream))
        say(nccl.ncclAllReduce(0, pointer, 1, F32, 0, comm, stream), nccl.ncclAllReduce(pointer, pointer, 1, F32, 0, None, stream))
    """
    for said in run_ranks(libraries, grid, text):
        assert said == [[4, 4], [4, 4]]


def test_gather_scatter_broadcast(libraries: Path, grid: list[tuple[Path, int]]) -> None:
    text = """
        code, comm = join(blocking=1)
        count = 70000
        mine, out = alloc(struct.pack("<I", rank + 1) * count), alloc(bytes(4 * count * ranks))
        say(nccl.ncclAllGather(mine, out, count, U32, comm, stream), cuda.cuStreamSynchronize(stream))
        say(fetch(out, 4 * count * ranks) == b"".join(struct.pack("<I", r + 1) * count for r in range(ranks)))
        many = alloc(b"".join(struct.pack("<I", 10 * block + rank) * count for block in range(ranks)))
        say(nccl.ncclReduceScatter(many, mine, count, U32, 0, comm, stream), cuda.cuStreamSynchronize(stream))
        say(fetch(mine, 4 * count) == struct.pack("<I", 10 * rank * ranks + ranks * (ranks - 1) // 2) * count)
        say(nccl.ncclBroadcast(many if rank == 2 else 0, mine, count, U32, 2, comm, stream), cuda.cuStreamSynchronize(stream))
        say(fetch(mine, 4 * count) == struct.pack("<I", 2) * count)
    """
    for said in run_ranks(libraries, grid, text):
        assert said == [[0, 0], [True]] * 3


def test_configuration_is_checked_as_the_header_says(libraries: Path, tmp_path: Path) -> None:
    text = """
        for wrong in ({"magic": 1}, {"blocking": 2}, {"minimum": 0}, {"split_share": 7}, {"size": 8}):
            say(join(**{"blocking": 0, **wrong})[0])
        say(nccl.ncclGetLastError(None).decode())
        comm = c_void_p()
        say(nccl.ncclCommInitRank(byref(comm), 1, UniqueId.from_buffer_copy(id_bytes), 1))
        for fine in ({"blocking": 1}, {"blocking": 1, "version": 21400, "minimum": 0}):
            other = UniqueId()
            nccl.ncclGetUniqueId(byref(other))
            id_bytes = ctypes.string_at(byref(other), 128)
            code, comm = join(**fine)
            say(code, nccl.ncclCommDestroy(comm))
        say(ctypes.sizeof(Config))
    """
    said = run_ranks(libraries, [(write_node(tmp_path, "n0"), 0)], text)[0]
    assert said[:5] == [[4]] * 5
    assert said[5] == ["ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER"]
    assert said[6:] == [[4], [0, 0], [0, 0], [48]]


def test_init_in_progress_allows_abort_only(libraries: Path, tmp_path: Path) -> None:
    """Rank 1 never joins: rank 0 stays in progress, other calls are refused, and the abort returns at once."""
    text = """
        if rank == 1:
            sys.exit(0)
        code, comm = join()
        time.sleep(0.3)
        pointer, count = alloc(b"0000"), c_int()
        say(code, state(comm), nccl.ncclAllReduce(pointer, pointer, 1, U32, 0, comm, stream))
        say(nccl.ncclCommCount(comm, byref(count)), nccl.ncclCommFinalize(comm))
        started = time.monotonic()
        say(nccl.ncclCommAbort(comm), time.monotonic() - started < 60, state(comm))
    """
    node = write_node(tmp_path, "n0")
    assert run_ranks(libraries, [(node, 0), (node, 1)], text)[0] == [[7, 7, 4], [4, 4], [0, True, 4]]


def test_a_stranger_with_a_wrong_secret_gets_nothing(libraries: Path, tmp_path: Path) -> None:
    text = """
        id_bytes = bytes(8) + id_bytes[8:]
        code, comm = join()
        say(code, settle(comm))
    """
    assert run_ranks(libraries, [(write_node(tmp_path, "n0"), 0)], text) == [[[7, 6]]]


def test_same_gpu_twice_and_mixed_versions_are_refused(libraries: Path, tmp_path: Path) -> None:
    text = """
        code, comm = join(blocking=1)
        say(code, nccl.ncclGetLastError(None).decode().split(" :")[0])
    """
    one = write_node(tmp_path, "n0")
    assert run_ranks(libraries, [(one, 0), (one, 0)], text) == [[[5, "Duplicate GPU detected"]]] * 2
    old = write_node(tmp_path, "n1", nccl__version=22602)
    assert run_ranks(libraries, [(one, 0), (old, 0)], text) == [[[5, "Mismatched NCCL version detected"]]] * 2


def test_hung_all_reduce_is_aborted(libraries: Path, tmp_path: Path) -> None:
    text = """
        code, comm = join()
        settle(comm)
        code, settled, done, _ = reduce(comm, limit_s=0.5)
        event = mark(stream)
        say(settled, done, state(comm), cuda.cuStreamQuery(stream))
        open(f"{os.environ['SEEN']}/{rank}", "w").close()  # who aborts first is a lost peer to the other
        while len(os.listdir(os.environ["SEEN"])) < ranks:
            time.sleep(0.001)
        started = time.monotonic()
        say(nccl.ncclCommAbort(comm), time.monotonic() - started < 60)
        say(cuda.cuEventSynchronize(event), cuda.cuCtxSynchronize())
    """
    hung = write_node(tmp_path, "n1", nccl__hang="allreduce")
    placement = [(write_node(tmp_path, "n0"), 0), (hung, 0)]
    seen = tmp_path / "seen"
    seen.mkdir()
    for said in run_ranks(libraries, placement, script(REDUCE, text), {"SEEN": str(seen)}):
        assert said == [[0, 600, 0, 600], [0, True], [0, 0]]


def test_hung_init_and_hung_abort(libraries: Path, tmp_path: Path) -> None:
    text = """
        code, comm = join()
        time.sleep(0.3)
        aborting = threading.Thread(target=nccl.ncclCommAbort, args=(comm,), daemon=True)
        aborting.start()
        aborting.join(1.0)
        say(code, aborting.is_alive())
        sys.stdout.flush()
        os._exit(0)
    """
    placement = [(write_node(tmp_path, "n0"), 0), (write_node(tmp_path, "n1", nccl__hang="init,abort"), 0)]
    assert run_ranks(libraries, placement, text) == [[[7, False]], [[7, True]]]


def test_dead_peer_is_a_remote_error_and_the_stream_waits_for_the_abort(libraries: Path, tmp_path: Path) -> None:
    text = """
        code, comm = join()
        settle(comm)
        reduce(comm)
        if rank == 1:
            os._exit(0)
        code, settled, done, _ = reduce(comm)
        say(done, state(comm), nccl.ncclGetLastError(None).decode().split(":")[0])
        event = mark(stream)
        say(cuda.cuEventQuery(event), nccl.ncclCommAbort(comm), cuda.cuEventSynchronize(event))
    """
    placement = [(write_node(tmp_path, "n0"), 0), (write_node(tmp_path, "n1"), 0)]
    assert run_ranks(libraries, placement, script(REDUCE, text))[0] == [[-6, 6, "socketProgress"], [600, 0, 0]]


def test_crash_fault_ends_the_process(libraries: Path, tmp_path: Path) -> None:
    text = """
        code, comm = join()
        settle(comm)
        say(reduce(comm)[2])
    """
    placement = [(write_node(tmp_path, "n0"), 0), (write_node(tmp_path, "n1", nccl__crash="allreduce"), 0)]
    ranks = Ranks(libraries, placement, script(REDUCE, text))
    ranks.start()
    assert ranks.said(may_fail=(1,))[0] == [[-6]]
    assert ranks.processes[1].returncode == -6


def test_lost_gpu_fails_its_own_rank(libraries: Path, tmp_path: Path) -> None:
    """The rank whose card is gone gets a CUDA error at once; its peer only sees that nothing comes."""
    text = """
        code, comm = join()
        settle(comm)
        reduce(comm)
        if rank == 0:
            env = os.environ["FMSLURM_LAB_HARDWARE"].replace(".json", ".env")
            changed = open(env).read() + "gpu.0.lost=1\\n"
            open(env + ".new", "w").write(changed)
            os.rename(env + ".new", env)
            pointer = c_uint64()
            say(nccl.ncclAllReduce(pointer, pointer, 0, U32, 0, comm, stream), cuda.cuStreamQuery(stream))
            os._exit(0)
        say(reduce(comm)[2])
    """
    placement = [(write_node(tmp_path, "n0"), 0), (write_node(tmp_path, "n1"), 0)]
    assert run_ranks(libraries, placement, script(REDUCE, text)) == [[[1, 999]], [[-6]]]


def test_wrong_results(libraries: Path, tmp_path: Path) -> None:
    """A wrong sender spoils everybody's result equally; a wrong receiver only its own."""
    text = """
        code, comm = join(blocking=1)
        target = reduce(comm)[3]
        got = fetch(target, len(total))
        say([i for i in range(count) if got[4 * i : 4 * i + 4] != total[4 * i : 4 * i + 4]])
    """
    for word, sees in (("1", (True, True, True)), ("recv", (False, True, False))):
        bad = write_node(tmp_path, "n1", nccl__wrong_result=word)
        good = write_node(tmp_path, "n0")
        answers = run_ranks(libraries, [(good, 0), (bad, 0), (bad, 1)], script(REDUCE, text))
        wrong = [said[0][0] for said in answers]
        assert [bool(indices) for indices in wrong] == list(sees)
        assert all(len(indices) == 1 for indices in wrong if isinstance(indices, list) and indices)


def test_split_by_colour_and_key(libraries: Path, grid: list[tuple[Path, int]]) -> None:
    text = """
        code, comm = join()
        settle(comm)
        half, place, size = c_void_p(), c_int(), c_int()
        color = -1 if rank == 3 else rank % 2
        code = nccl.ncclCommSplit(comm, color, -rank, byref(half), None)
        say(code, settle(comm), settle(half) if half.value else None)
        if half.value:
            nccl.ncclCommUserRank(half, byref(place)), nccl.ncclCommCount(half, byref(size))
            pointer = alloc(struct.pack("<I", 1 << rank))
            nccl.ncclAllReduce(pointer, pointer, 1, U32, 0, half, stream)
            say(place.value, size.value, until(mark(stream), half), struct.unpack("<I", fetch(pointer, 4))[0])
            settle(half)
            nccl.ncclCommDestroy(half)
        say(reduce(comm)[2])
    """
    zero, one, two, three = run_ranks(libraries, grid, script(REDUCE, text))
    assert zero == [[7, 0, 0], [1, 2, 0, 5], [0]]
    assert two == [[7, 0, 0], [0, 2, 0, 5], [0]]
    assert one == [[7, 0, 0], [0, 1, 0, 2], [0]]
    assert three == [[7, 0, None], [0]]


def test_one_process_drives_two_gpus_in_a_group(libraries: Path, tmp_path: Path) -> None:
    text = """
        comms, streams, buffers = [], [], []
        nccl.ncclGroupStart()
        for index in (0, 1):
            context, comm = c_void_p(), c_void_p()
            cuda.cuDevicePrimaryCtxRetain(byref(context), index)
            cuda.cuCtxSetCurrent(context)
            say(nccl.ncclCommInitRank(byref(comm), 2, UniqueId.from_buffer_copy(id_bytes), index))
            stream = c_void_p()
            cuda.cuStreamCreate(byref(stream), 1)
            comms.append((context, comm, stream, alloc(struct.pack("<I", 5 + index))))
        say(nccl.ncclGroupEnd())
        nccl.ncclGroupStart()
        for context, comm, stream, pointer in comms:
            say(nccl.ncclAllReduce(pointer, pointer, 1, U32, 0, comm, stream))
        say(nccl.ncclGroupEnd(), nccl.ncclGroupEnd())
        for context, comm, stream, pointer in comms:
            cuda.cuCtxSetCurrent(context)
            say(cuda.cuStreamSynchronize(stream), struct.unpack("<I", fetch(pointer, 4))[0])
    """
    said = run_ranks(libraries, [(write_node(tmp_path, "n0"), 0)], text)[0]
    assert said == [[0], [0], [0], [0], [0], [0, 5], [0, 11], [0, 11]]


LOGGED = """
    code, comm = join(blocking=1)
    say(code)
    if code == 0:
        say(reduce(comm)[2])
"""


def logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("log.*")))


def test_log_proves_efa_and_counters_rise(libraries: Path, tmp_path: Path) -> None:
    placement = [(write_node(tmp_path, name, efa=32), device) for name in ("n0", "n1") for device in (0, 1)]
    for name in ("n0", "n1"):
        for device in range(4):
            counters = tmp_path / name / f"root/sys/class/infiniband/rdmap{device}s0/ports/1/hw_counters"
            counters.mkdir(parents=True)
            for counter in ("tx_bytes", "rx_bytes", "tx_pkts", "rdma_write_bytes"):
                (counters / counter).write_text("100\n")
    environment = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING",
        "NCCL_DEBUG_FILE": str(tmp_path / "log.%h.%p"),
        "NCCL_NET": "AWS Libfabric",
        "COUNT": "100000",
    }
    assert run_ranks(libraries, placement, script(REDUCE, LOGGED), environment) == [[[0], [0]]] * 4
    text = logs(tmp_path)
    assert text.count("NCCL version 2.27.7+cuda12.8") == 4
    assert text.count("NET/OFI Selected provider is efa, fabric is efa (found 32 nics)") == 4
    assert text.count("Using network AWS Libfabric") == 4
    assert text.count("Init COMPLETE") == 4
    assert "simulated" in text
    network = [line for line in text.splitlines() if "via NET/" in line]
    assert len(network) == 16  # four ranks, each with two channels to its twin on the other node and two from it
    assert all(line.endswith("/GDRDMA") for line in network)
    assert "1[1] -> 3[1] [send] via NET/AWS Libfabric/1/GDRDMA" in text
    assert "0[0] -> 1[1] via P2P/CUMEM" in text

    # What a node's ranks reduced among themselves goes around the nodes: 2*(nodes-1)/nodes of the buffer leaves each.
    sent = {}
    for name in ("n0", "n1"):
        folder = tmp_path / name / "root/sys/class/infiniband"
        sent[name] = {
            counter: sum(int(path.read_text()) - 100 for path in folder.glob(f"*/ports/1/hw_counters/{counter}"))
            for counter in ("tx_bytes", "rx_bytes", "rdma_write_bytes")
        }
    assert sent["n0"] == sent["n1"] == dict.fromkeys(sent["n0"], 400000)


@pytest.mark.parametrize("version", [21805, 22105, 22707])
def test_node_without_the_plugin_fails_or_falls_silent(libraries: Path, tmp_path: Path, version: int) -> None:
    placement = [(write_node(tmp_path, name, nccl__net="socket", nccl__version=version), 0) for name in ("n0", "n1")]
    environment = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(tmp_path / "log.a.%p")}
    wanted = {**environment, "NCCL_NET": "AWS Libfabric"}
    assert run_ranks(libraries, placement, script(REDUCE, LOGGED), wanted) == [[[5]]] * 2
    unmet = "Failed to initialize any NET plugin" if version >= 22700 else "Error: network AWS Libfabric not found."
    assert logs(tmp_path).count(unmet) == 2

    for path in tmp_path.glob("log.*"):
        path.unlink()
    assert run_ranks(libraries, placement, script(REDUCE, LOGGED), environment) == [[[0], [0]]] * 2
    text = logs(tmp_path)
    assert text.count("Using network Socket") == 2
    assert "via NET/Socket/0" in text
    assert "GDRDMA" not in text


def test_no_debug_means_no_output_but_the_last_error_is_kept(libraries: Path, tmp_path: Path) -> None:
    text = "say(join(net=b'Nowhere', blocking=1)[0], nccl.ncclGetLastError(None).decode())"
    said = run_ranks(libraries, [(write_node(tmp_path, "n0"), 0)], text)
    assert said == [[[5, "Failed to initialize any NET plugin"]]]


def test_rate_limit_slows_what_leaves_the_node(libraries: Path, tmp_path: Path) -> None:
    text = """
        code, comm = join(blocking=1)
        reduce(comm)
        started = time.monotonic()
        target = reduce(comm)[3]
        say(fetch(target, len(total)) == total, time.monotonic() - started)
    """
    slow = write_node(tmp_path, "n1", nccl__rate_mbit=16)
    answers = run_ranks(
        libraries, [(write_node(tmp_path, "n0"), 0), (slow, 0)], script(REDUCE, text), {"COUNT": "250000"}
    )
    for said in answers:
        assert said[0][0] is True
        assert 0.4 < float(str(said[0][1])) < 40.0  # 1 MB leaves at 2 MB/s


def test_four_nodes_of_eight_are_quick(libraries: Path, tmp_path: Path) -> None:
    """4 MiB over 32 ranks: about 0.05 s on two idle cores. Ranks that wait by spinning take hundreds of times that."""
    text = """
        count = 1 << 20
        pointer, target = alloc(struct.pack("<I", rank + 1) * count), alloc(bytes(4 * count))
        code, comm = join()
        joined, best, right = settle(comm), 99.0, True
        for _ in range(5):
            started = time.monotonic()
            nccl.ncclAllReduce(pointer, target, count, U32, 0, comm, stream)
            event = mark(stream)
            settle(comm)
            done = until(event, comm)
            best = min(best, time.monotonic() - started)
            right = right and done == 0 and fetch(target, 4 * count) == struct.pack("<I", 528) * count
        say(joined, right, best)
    """
    nodes = [write_node(tmp_path, f"n{index}") for index in range(4)]
    placement = [(node, device) for node in nodes for device in range(8)]
    for said in run_ranks(libraries, placement, text, timeout_s=300.0):
        assert said[0][:2] == [0, True]
        assert float(str(said[0][2])) < 20.0
