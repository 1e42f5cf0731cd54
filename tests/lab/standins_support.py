"""Shared by the tests of the stand-ins: simulated nodes, and groups of processes that play ranks of a communicator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

#: What every rank starts with. `id_bytes` is the unique id that rank 0 made; `say` prints one JSON line for the test.
RANK_PRELUDE = """
import ctypes, json, os, signal, struct, sys, threading, time
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
rank, ranks, device = (int(word) for word in sys.argv[2:5])
cuda = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1")
nccl = ctypes.CDLL(sys.argv[1] + "/libnccl.so.2")
cuda.cuMemAlloc_v2.argtypes = [c_void_p, c_size_t]
cuda.cuMemcpyHtoD_v2.argtypes = [c_uint64, c_char_p, c_size_t]
cuda.cuMemcpyDtoH_v2.argtypes = [c_void_p, c_uint64, c_size_t]
class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]
class Config(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int), ("cga", c_int),
                ("min_ctas", c_int), ("max_ctas", c_int), ("net", c_char_p), ("split_share", c_int), ("traffic", c_int)]
UNDEFINED = -(2**31)
U32, F32, F16, BF16, U64, I32 = 3, 7, 6, 9, 5, 2
nccl.ncclCommInitRankConfig.argtypes = [c_void_p, c_int, UniqueId, c_int, c_void_p]
nccl.ncclCommInitRank.argtypes = [c_void_p, c_int, UniqueId, c_int]
nccl.ncclAllReduce.argtypes = [c_uint64, c_uint64, c_size_t, c_int, c_int, c_void_p, c_void_p]
nccl.ncclAllGather.argtypes = [c_uint64, c_uint64, c_size_t, c_int, c_void_p, c_void_p]
nccl.ncclReduceScatter.argtypes = [c_uint64, c_uint64, c_size_t, c_int, c_int, c_void_p, c_void_p]
nccl.ncclBroadcast.argtypes = [c_uint64, c_uint64, c_size_t, c_int, c_int, c_void_p, c_void_p]
nccl.ncclCommSplit.argtypes = [c_void_p, c_int, c_int, c_void_p, c_void_p]
nccl.ncclGetLastError.restype = nccl.ncclGetErrorString.restype = c_char_p
for name in ("Abort", "Destroy", "Finalize"):
    getattr(nccl, "ncclComm" + name).argtypes = [c_void_p]
nccl.ncclCommGetAsyncError.argtypes = [c_void_p, c_void_p]
def config(blocking=0, version=21800, magic=0xCAFEBEEF, size=48, split_share=UNDEFINED, minimum=UNDEFINED, net=None):
    return Config(size, magic, version, blocking, UNDEFINED, minimum, UNDEFINED, net, split_share, UNDEFINED)
def say(*values):
    print(json.dumps(values), flush=True)
def alloc(data):
    pointer = c_uint64()
    assert cuda.cuMemAlloc_v2(byref(pointer), len(data)) == 0
    assert cuda.cuMemcpyHtoD_v2(pointer, bytes(data), len(data)) == 0
    return pointer
def fetch(pointer, size):
    out = ctypes.create_string_buffer(size)
    code = cuda.cuMemcpyDtoH_v2(out, pointer, size)
    assert code == 0, code
    return out.raw
def state(comm):
    found = c_int(-1)
    code = nccl.ncclCommGetAsyncError(comm, byref(found))
    return code or found.value
def settle(comm, limit_s=120):
    deadline = time.monotonic() + limit_s
    while (found := state(comm)) == 7 and time.monotonic() < deadline:
        time.sleep(0.001)
    return found
def until(event, comm, limit_s=120):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        code = cuda.cuEventQuery(event)
        if code != 600:
            return code
        if state(comm) not in (0, 7):
            return -state(comm)
        time.sleep(0.001)
    return 600
def mark(stream):
    event = c_void_p()
    cuda.cuEventCreate(byref(event), 0)
    assert cuda.cuEventRecord(event, stream) == 0
    return event
def join(blocking=0, **more):
    comm = c_void_p()
    wanted = config(blocking, **more)
    code = nccl.ncclCommInitRankConfig(byref(comm), ranks, UniqueId.from_buffer_copy(id_bytes), rank, byref(wanted))
    return code, comm
identity = UniqueId()
if rank == 0:
    assert nccl.ncclGetUniqueId(byref(identity)) == 0
    print(ctypes.string_at(byref(identity), 128).hex(), flush=True)
id_bytes = bytes.fromhex(sys.stdin.readline())
context, stream = c_void_p(), c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(byref(context), device) == 0
cuda.cuCtxSetCurrent(context)
assert cuda.cuStreamCreate(byref(stream), 1) == 0
"""

Said = list[list[list[object]]]


def write_node(root: Path, name: str, **keys: object) -> Path:
    """Write hardware.env of one simulated node (`__` in a key is a dot) and return the path of its hardware.json."""
    folder = root / name / "root/etc/fmslurm-lab"
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{key.replace('__', '.')}={value}\n" for key, value in {"node": name, "gpus": 8, **keys}.items())
    (folder / "new").write_text(text)
    (folder / "new").replace(folder / "hardware.env")
    return folder / "hardware.json"


def script(*parts: str) -> str:
    """Join pieces of Python text that are indented differently."""
    return "\n".join(textwrap.dedent(part) for part in parts)


class Ranks:
    """Processes of one communicator: `placement` has the hardware file and the device of each rank."""

    def __init__(
        self,
        libraries: Path,
        placement: list[tuple[Path, int]],
        text: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.processes = []
        for rank, (hardware, device) in enumerate(placement):
            env = {
                "PATH": os.environ["PATH"],
                "FMSLURM_LAB_HARDWARE": str(hardware),
                "NCCL_SOCKET_IFNAME": "lo",
                **(environment or {}),
            }
            argv = [sys.executable, "-c", RANK_PRELUDE + textwrap.dedent(text), str(libraries / "lib")]
            self.processes.append(
                subprocess.Popen(
                    [*argv, str(rank), str(len(placement)), str(device)],
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def start(self) -> None:
        """Carry the unique id from rank 0 to all."""
        first = self.processes[0]
        assert first.stdout is not None
        identity = first.stdout.readline()
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(identity)
            process.stdin.close()
            process.stdin = None

    def said(self, *, timeout_s: float = 240.0, may_fail: tuple[int, ...] = ()) -> Said:
        """Wait for all ranks and return what each said; one that ends badly fails the test, unless it is in `may_fail`."""
        deadline = time.monotonic() + timeout_s
        answers: Said = []
        try:
            for rank, process in enumerate(self.processes):
                out, err = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
                assert process.returncode == 0 or rank in may_fail, f"rank {rank}: {err}"
                answers.append([json.loads(line) for line in out.splitlines() if line.startswith("[")])
        finally:
            self.kill()
        return answers

    def kill(self) -> None:
        """End what still runs, and close its pipes."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def run_ranks(
    libraries: Path,
    placement: list[tuple[Path, int]],
    text: str,
    environment: Mapping[str, str] | None = None,
    *,
    timeout_s: float = 240.0,
    may_fail: tuple[int, ...] = (),
) -> Said:
    """Run `text` on every rank and return what each said."""
    ranks = Ranks(libraries, placement, text, environment)
    try:
        ranks.start()
    except BaseException:
        ranks.kill()
        raise
    return ranks.said(timeout_s=timeout_s, may_fail=may_fail)
