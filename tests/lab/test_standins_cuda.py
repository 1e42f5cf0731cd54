"""The libcuda stand-in, loaded as the burn-in loads the real one: through ctypes, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_ext.lab import standins

# fmt: off
SYMBOLS = [
    "cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2", "cuDeviceGetPCIBusId", "cuDeviceTotalMem_v2", "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent",
    "cuCtxGetCurrent", "cuCtxSynchronize", "cuStreamCreate", "cuStreamQuery", "cuStreamSynchronize",
    "cuStreamDestroy_v2", "cuStreamWaitEvent", "cuEventCreate", "cuEventRecord", "cuEventQuery",
    "cuEventSynchronize", "cuEventElapsedTime", "cuEventDestroy_v2", "cuMemAlloc_v2", "cuMemFree_v2",
    "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemsetD8_v2",
    "cuMemsetD32_v2", "cuMemsetD8Async", "cuMemsetD32Async", "cuMemGetInfo_v2", "cuModuleLoadData",
    "cuModuleUnload", "cuModuleGetFunction", "cuLaunchKernel", "cuGetErrorName", "cuGetErrorString",
    "fmcuda_stream_enqueue",
]
# fmt: on

PTX = """
.version 8.0
.target sm_80 // .entry not_me()
.address_size 64
.visible .entry fm_fill_u32(.param .u64 ptr, .param .u64 count, .param .u32 pattern, .param .u32 rank, .param .u32 n) {}
.visible .entry fm_check_u32(.param .u64 ptr, .param .u64 count, .param .u32 pattern, .param .u32 n, .param .u64 r) {}
.visible .entry fm_fill_bf16(.param .u64 ptr, .param .u64 count, .param .u32 pattern, .param .u32 rank, .param .u32 n) {}
.visible .entry fm_check_bf16(.param .u64 ptr, .param .u64 count, .param .u32 pattern, .param .u32 n, .param .u64 r) {}
.visible .entry other(.param .u64 ptr) {}
"""

#: What every child process starts with; `say` prints one JSON line for the test to read.
PRELUDE = """
import ctypes, json, os, sys
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
cuda = ctypes.CDLL(sys.argv[1])
for name in ("cuMemAlloc_v2", "cuMemFree_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemsetD32_v2"):
    getattr(cuda, name).restype = c_int
def say(*values):
    print(json.dumps(values), flush=True)
def context(index=0):
    found = c_void_p()
    code = cuda.cuDevicePrimaryCtxRetain(byref(found), c_int(index))
    if code == 0:
        cuda.cuCtxSetCurrent(found)
    return code
def alloc(size):
    pointer = c_uint64()
    code = cuda.cuMemAlloc_v2(byref(pointer), c_size_t(size))
    return pointer if code == 0 else code
def load(text):
    module = c_void_p()
    code = cuda.cuModuleLoadData(byref(module), text.encode())
    return module if code == 0 else code
def launch(module, name, *arguments, grid=4, block=256, stream=None):
    function = c_void_p()
    code = cuda.cuModuleGetFunction(byref(function), module, name.encode())
    if code:
        return code
    array = (c_void_p * max(len(arguments), 1))(*[ctypes.cast(ctypes.pointer(a), c_void_p) for a in arguments])
    return cuda.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, array, None)
"""

Child = Callable[..., list[list[object]]]


@pytest.fixture
def node(tmp_path: Path) -> Callable[..., Path]:
    """Write hardware.env of one simulated node by rename and return the path of its hardware.json."""

    def write(**keys: object) -> Path:
        folder = tmp_path / "root/etc/fmslurm-lab"
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(
            f"{key.replace('__', '.')}={value}\n" for key, value in {"node": "n0", "gpus": 8, **keys}.items()
        )
        (folder / "new").write_text(text)
        (folder / "new").replace(folder / "hardware.env")
        return folder / "hardware.json"

    return write


@pytest.fixture
def child(libraries: Path) -> Child:
    """Run Python text in a process of its own with the stand-in loaded; return what it said."""

    def run(text: str, hardware: Path | None, **environment: str) -> list[list[object]]:
        env = {"PATH": os.environ["PATH"], **environment}
        if hardware is not None:
            env["FMSLURM_LAB_HARDWARE"] = str(hardware)
        argv = [sys.executable, "-c", PRELUDE + textwrap.dedent(text), str(libraries / "lib/libcuda.so.1"), PTX]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def test_build_again_compiles_nothing(libraries: Path) -> None:
    library = libraries / "lib/libcuda.so.1"
    before = library.stat().st_mtime_ns
    standins.build(str(libraries / "lib"), str(libraries / "bin"))
    assert library.stat().st_mtime_ns == before


def test_every_symbol_the_driver_calls_is_there(child: Child) -> None:
    said = child(f"say([name for name in {SYMBOLS!r} if not hasattr(cuda, name)])", None)
    assert said == [[[]]]


def test_no_hardware_file_means_no_device(child: Child, tmp_path: Path) -> None:
    assert child("say(cuda.cuInit(0))", None) == [[100]]
    assert child("say(cuda.cuInit(0))", tmp_path / "nowhere/hardware.json") == [[100]]


def test_memory_that_was_given_back_comes_again_as_zeros(child: Child, node: Callable[..., Path]) -> None:
    text = """
        cuda.cuInit(0)
        context()
        first, between, last = alloc(5000), alloc(100), alloc(1 << 20)
        say(cuda.cuMemsetD32_v2(between, 7, 25), cuda.cuMemsetD32_v2(first, 0xAAAAAAAA, 1250), cuda.cuMemFree_v2(first))
        wider, again = alloc(3 << 20), alloc(5000)
        read = ctypes.create_string_buffer(5000)
        say(again.value == first.value, wider.value > last.value)
        say(cuda.cuMemcpyDtoH_v2(read, again, c_size_t(5000)), read.raw == bytes(5000))
        say(cuda.cuMemcpyDtoH_v2(read, between, c_size_t(100)), read.raw[:100] == b"\\7\\0\\0\\0" * 25)
    """
    assert child(text, node()) == [[0, 0, 0], [True, True], [0, True], [0, True]]


def test_a_forked_process_has_memory_of_its_own(child: Child, node: Callable[..., Path]) -> None:
    text = """
        def value(pointer):
            read = c_uint()
            return cuda.cuMemcpyDtoH_v2(byref(read), pointer, c_size_t(4)), read.value
        cuda.cuInit(0)
        context()
        here = alloc(4096)
        cuda.cuMemsetD32_v2(here, 7, 1)
        pid = os.fork()
        if pid == 0:
            cuda.cuInit(0)
            context()
            there = alloc(4096)
            say(*value(there), cuda.cuMemsetD32_v2(there, 9, 1), *value(there))
            os._exit(0)
        os.waitpid(pid, 0)
        say(*value(here))
    """
    assert child(text, node()) == [[0, 0, 0, 0, 9], [0, 7]]


def test_identity_of_devices(child: Child, node: Callable[..., Path]) -> None:
    text = """
        count, text, uuid = c_int(), ctypes.create_string_buffer(64), (ctypes.c_ubyte * 16)()
        say(cuda.cuDeviceGetCount(byref(count)))
        say(cuda.cuInit(0))
        cuda.cuDeviceGetCount(byref(count))
        cuda.cuDeviceGetPCIBusId(text, 64, 1)
        cuda.cuDeviceGetUuid_v2(uuid, 0)
        total = c_size_t()
        say(count.value, text.value.decode(), bytes(uuid).hex(), cuda.cuDeviceTotalMem_v2(byref(total), 0), total.value)
        say(cuda.cuDeviceGet(byref(count), 8))
    """
    said = child(text, node(gpu__0__uuid="GPU-00112233-4455-6677-8899-aabbccddeeff"))
    assert said[0] == [3]
    assert said[1] == [0]
    assert said[2] == [8, "0000:64:00.0", "00112233445566778899aabbccddeeff", 0, 81559 << 20]
    assert said[3] == [101]


@pytest.mark.parametrize(
    ("visible", "buses"),
    [
        ("2,0", ["0000:75:00.0", "0000:53:00.0"]),
        ("1,9,0", ["0000:64:00.0"]),
        ("GPU-feed", ["0000:B9:00.0"]),
        ("0,0", None),
        ("", None),
    ],
)
def test_cuda_visible_devices(child: Child, node: Callable[..., Path], visible: str, buses: list[str] | None) -> None:
    text = """
        code, count, bus, buses = cuda.cuInit(0), c_int(), ctypes.create_string_buffer(64), []
        cuda.cuDeviceGetCount(byref(count))
        for index in range(count.value):
            cuda.cuDeviceGetPCIBusId(bus, 64, index)
            buses.append(bus.value.decode())
        say(code, buses)
    """
    hardware = node(gpu__6__uuid="GPU-feed0000-0000-0000-0000-000000000000")
    assert child(text, hardware, CUDA_VISIBLE_DEVICES=visible) == [[0, buses] if buses else [100, []]]


def test_memory_is_checked_and_copies_are_exact(child: Child, node: Callable[..., Path]) -> None:
    text = """
        cuda.cuInit(0)
        say(cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(16)))
        context()
        data, back = bytes(range(256)) * 16, ctypes.create_string_buffer(4096)
        pointer = alloc(4096)
        say(cuda.cuMemcpyHtoD_v2(pointer, data, c_size_t(4096)), cuda.cuMemcpyDtoH_v2(back, pointer, c_size_t(4096)))
        say(back.raw == data)
        say(cuda.cuMemcpyHtoD_v2(pointer, data, c_size_t(4097)), cuda.cuMemcpyDtoH_v2(back, c_uint64(64), c_size_t(8)))
        say(cuda.cuMemsetD32_v2(pointer, 0xdeadbeef, c_size_t(4)), cuda.cuMemcpyDtoH_v2(back, pointer, c_size_t(24)))
        say(back.raw[:24].hex())
        free, total = c_size_t(), c_size_t()
        cuda.cuMemGetInfo_v2(byref(free), byref(total))
        say(free.value, total.value, alloc(200 << 30), cuda.cuMemFree_v2(pointer), cuda.cuMemFree_v2(pointer))
    """
    said = child(text, node(gpu_memory_mib=1000, gpu__0__memory_used_mib=100))
    assert said[0] == [201]
    assert said[1] == [0, 0]
    assert said[2] == [True]
    assert said[3] == [1, 1]
    assert said[4] == [0, 0]
    assert said[5] == ["efbeadde" * 4 + "1011121314151617"]
    assert said[6] == [(900 << 20) - 4096, 1000 << 20, 2, 0, 1]


def mix32(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)


def value_u32(pattern: int, rank: int, i: int) -> int:
    """KERNELS.md, written a second time."""
    if pattern == 0:
        return (i + rank * 2654435761) & 0xFFFFFFFF
    if pattern == 1:
        return 0xAAAAAAAA if (i + rank) & 1 else 0x55555555
    return (mix32(i) + rank * (mix32(i ^ 0x9E3779B9) | 1)) & 0xFFFFFFFF


def value_bf16(ranks: int, rank: int, i: int) -> int:
    if ranks > 256:
        return int((i + rank) % ranks < 256)
    return (i + rank) % (8 if ranks <= 36 else 4 if ranks <= 85 else 2)


@pytest.mark.parametrize(("kind", "width", "ranks", "pattern"), [
    ("u32", 4, 1, 0), ("u32", 4, 5, 0), ("u32", 4, 5, 1), ("u32", 4, 7, 2), ("u32", 4, 8, 1),
    ("bf16", 2, 3, 0), ("bf16", 2, 37, 0), ("bf16", 2, 90, 0), ("bf16", 2, 300, 0),
])  # fmt: skip
def test_kernels_agree_with_the_page(
    child: Child, node: Callable[..., Path], kind: str, width: int, ranks: int, pattern: int
) -> None:
    """Fill as each rank, sum here in plain Python, and let the check kernel judge the sum and two broken copies."""
    count = 601
    text = """
        import struct
        kind, width, ranks, pattern, count, total = json.loads(os.environ["CASE"])
        cuda.cuInit(0)
        context()
        module, pointer, result = load(sys.argv[2]), alloc(count * width), alloc(24)
        out, clean = ctypes.create_string_buffer(count * width), (c_uint64 * 3)(0, 2**64 - 1, 0)
        filled = []
        for rank in range(ranks):
            code = launch(module, "fm_fill_" + kind, pointer, c_uint64(count), c_uint(pattern), c_uint(rank), c_uint(ranks))
            assert code == 0, code
            assert cuda.cuMemcpyDtoH_v2(out, pointer, c_size_t(count * width)) == 0
            filled.append(out.raw.hex())
        say(filled)
        for broken in ((), (600,), (7, 9)):
            wrong = bytearray(bytes.fromhex(total))
            for index in broken:
                wrong[index * width + 1] ^= 0x10
            record = (c_uint64 * 3)()
            cuda.cuMemcpyHtoD_v2(pointer, bytes(wrong), c_size_t(len(wrong)))
            cuda.cuMemcpyHtoD_v2(result, clean, c_size_t(24))
            code = launch(module, "fm_check_" + kind, pointer, c_uint64(count), c_uint(pattern), c_uint(ranks), result)
            assert code == 0, code
            assert cuda.cuMemcpyDtoH_v2(record, result, c_size_t(24)) == 0
            read = [int.from_bytes(wrong[i:i + width], "little") for i in range(0, len(wrong), width)]
            assert record[2] == sum(x * (2 * i + 1) for i, x in enumerate(read)) % 2**64
            say(record[0], record[1])
    """
    if kind == "u32":
        values = [[value_u32(pattern, rank, i) for i in range(count)] for rank in range(ranks)]
        sums = [sum(column) & 0xFFFFFFFF for column in zip(*values, strict=True)]
        encode = lambda row: b"".join(x.to_bytes(4, "little") for x in row).hex()  # noqa: E731
    else:
        import struct

        values = [[value_bf16(ranks, rank, i) for i in range(count)] for rank in range(ranks)]
        sums = [sum(column) for column in zip(*values, strict=True)]
        assert max(sums) <= 256
        encode = lambda row: b"".join(struct.pack("<f", x)[2:] for x in row).hex()  # noqa: E731
    case = json.dumps([kind, width, ranks, pattern, count, encode(sums)])
    said = child(text, node(), CASE=case)
    assert said[0] == [[encode(row) for row in values]]
    assert said[1:] == [[0, 2**64 - 1], [1, 600], [2, 7]]


def test_launches_are_refused_as_a_driver_would(child: Child, node: Callable[..., Path]) -> None:
    text = """
        cuda.cuInit(0)
        context()
        module, pointer = load(sys.argv[2]), alloc(64)
        fill = (pointer, c_uint64(16), c_uint(0), c_uint(0), c_uint(1))
        say(launch(module, "absent"), launch(module, "not_me"), launch(module, "other", pointer))
        say(launch(module, "fm_fill_u32", *fill, block=2048), launch(module, "fm_fill_u32", *fill, grid=0))
        say(launch(module, "fm_fill_u32", pointer, c_uint64(16), c_uint(3), c_uint(0), c_uint(1)))
        say(load(sys.argv[2].replace("8.0", "9.9")), load(sys.argv[2].replace("sm_80", "sm_120")), load("hello"))
        say(load(sys.argv[2].replace(".param .u32 rank, ", "")))
        say(launch(module, "fm_fill_u32", pointer, c_uint64(17), c_uint(0), c_uint(0), c_uint(1)), cuda.cuCtxSynchronize())
        say(cuda.cuMemsetD32_v2(pointer, 0, c_size_t(1)))
    """
    said = child(text, node())
    assert said == [[500, 500, 801], [1, 1], [1], [222, 209, 218], [218], [0, 700], [700]]


def test_events_follow_their_stream(child: Child, node: Callable[..., Path]) -> None:
    text = """
        import threading
        cuda.cuInit(0)
        context()
        stream, start, end = c_void_p(), c_void_p(), c_void_p()
        cuda.cuStreamCreate(byref(stream), 1)
        cuda.cuEventCreate(byref(start), 0)
        cuda.cuEventCreate(byref(end), 0)
        gate = threading.Event()
        work = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: gate.wait(120))
        say(cuda.cuEventQuery(end), cuda.cuEventRecord(start, stream), cuda.fmcuda_stream_enqueue(stream, work, None))
        say(cuda.cuEventRecord(end, stream), cuda.cuEventQuery(end), cuda.cuStreamQuery(stream))
        elapsed = c_float()
        say(cuda.cuEventElapsedTime(byref(elapsed), start, end))
        gate.set()
        say(cuda.cuEventSynchronize(end), cuda.cuEventQuery(end), cuda.cuStreamQuery(stream))
        say(cuda.cuEventElapsedTime(byref(elapsed), start, end), elapsed.value > 0)
        say(cuda.cuEventDestroy_v2(start), cuda.cuEventDestroy_v2(end), cuda.cuStreamDestroy_v2(stream))
    """
    said = child(text, node())
    assert said == [[0, 0, 0], [0, 600, 600], [600], [0, 0, 0], [0, True], [0, 0, 0]]


def test_who_saw_the_last_event_finds_the_stream_idle(child: Child, node: Callable[..., Path]) -> None:
    """As with a driver. Many times over: the wrong order of both shows in one of hundreds."""
    text = """
        cuda.cuInit(0)
        context()
        stream, end = c_void_p(), c_void_p()
        cuda.cuStreamCreate(byref(stream), 1)
        cuda.cuEventCreate(byref(end), 2)
        seen = set()
        for _ in range(3000):
            cuda.cuEventRecord(end, stream)
            while cuda.cuEventQuery(end):
                pass
            seen.add(cuda.cuStreamQuery(stream))
            cuda.cuEventRecord(end, stream)
            cuda.cuEventSynchronize(end)
            seen.add(cuda.cuStreamQuery(stream))
        say(*seen)
    """
    assert child(text, node()) == [[0]]


def test_lost_gpu_fails_running_and_new_processes(child: Child, node: Callable[..., Path]) -> None:
    hardware = node()
    text = """
        env = os.environ["FMSLURM_LAB_HARDWARE"].replace(".json", ".env")
        def replace(line):
            lines = open(env).read() + line
            open(env + ".new", "w").write(lines)
            os.rename(env + ".new", env)
        cuda.cuInit(0)
        context(3)
        pointer, count, text = alloc(64), c_int(), c_char_p()
        say(cuda.cuMemsetD32_v2(pointer, 1, c_size_t(4)))
        replace("gpu.3.lost=1\\n")
        say(cuda.cuMemsetD32_v2(pointer, 1, c_size_t(4)), cuda.cuCtxSynchronize(), cuda.cuDeviceGetCount(byref(count)))
        cuda.cuGetErrorString(999, byref(text))
        say(count.value, text.value.decode(), context(3), context(2), cuda.cuCtxSynchronize())
        replace("gpu.3.lost=0\\n")
        say(context(3))
    """
    assert child(text, hardware) == [[0], [999, 999, 0], [8, "unknown error", 999, 0, 0], [999]]
    lost = node(gpu__3__lost=1)
    assert child("say(cuda.cuInit(0))", lost) == [[999]]
    assert child("say(cuda.cuInit(0))", lost, CUDA_VISIBLE_DEVICES="0,1,2") == [[0]]


def test_new_uncorrected_error_kills_the_context_that_saw_it(child: Child, node: Callable[..., Path]) -> None:
    text = """
        env = os.environ["FMSLURM_LAB_HARDWARE"].replace(".json", ".env")
        cuda.cuInit(0)
        say(context(0), cuda.cuCtxSynchronize())
        lines = open(env).read() + "gpu.0.ecc_uncorrected=2\\n"
        open(env + ".new", "w").write(lines)
        os.rename(env + ".new", env)
        say(cuda.cuCtxSynchronize())
    """
    assert child(text, node(gpu__0__ecc_uncorrected=1)) == [[0, 0], [214]]


def test_forked_child_is_not_initialised(child: Child, node: Callable[..., Path]) -> None:
    text = """
        cuda.cuInit(0)
        pid = os.fork()
        if pid == 0:
            os._exit(cuda.cuDeviceGetCount(byref(c_int())))
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    assert child(text, node()) == [[3]]
