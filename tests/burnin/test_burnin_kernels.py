"""The PTX text: executed line by line by a small interpreter against the formulas of KERNELS.md, and assembled by ptxas."""

from __future__ import annotations

import os
import platform
import re
import shutil
import struct
from pathlib import Path

import pytest

from slurm_ext.burnin import kernels
from slurm_ext.command import run

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def parse_entries(text: str) -> dict[str, tuple[list[tuple[str, str]], list[str], dict[str, int]]]:
    entries = {}
    for match in re.finditer(r"\.entry (\w+)\((.*?)\)\s*\{(.*?)\n\}", text, re.S):
        params = [tuple(reversed(re.findall(r"\.(u\d+) (\w+)", part)[0])) for part in match.group(2).split(",")]
        code: list[str] = []
        labels: dict[str, int] = {}
        for line in match.group(3).splitlines():
            line = line.strip().rstrip(";")
            if line.endswith(":"):
                labels[line[:-1]] = len(code)
            elif line and not line.startswith((".reg", "//")):
                code.append(line)
        entries[match.group(1)] = (params, code, labels)  # type: ignore[assignment]
    return entries


class Machine:
    """One thread at a time over a flat memory: enough for kernels whose threads meet only in atomic additions."""

    def __init__(self, memory: bytearray) -> None:
        self.memory = memory

    def launch(self, name: str, grid: int, block: int, *arguments: int) -> None:
        params, code, labels = parse_entries(kernels.PTX)[name]
        values = dict(zip((p[0] for p in params), arguments, strict=True))
        for cta in range(grid):
            for thread in range(block):
                special = {"%ctaid.x": cta, "%ntid.x": block, "%tid.x": thread, "%nctaid.x": grid}
                self.thread(code, labels, values, special)

    def thread(self, code: list[str], labels: dict[str, int], params: dict[str, int], special: dict[str, int]) -> None:
        regs: dict[str, object] = dict(special)
        at = 0
        while True:
            line = code[at]
            at += 1
            if line.startswith("@"):
                guard, line = line.split(" ", 1)
                if not regs[guard[1:]]:
                    continue
            operation, _, rest = line.partition(" ")
            args = [a.strip() for a in rest.split(",")]
            if operation == "ret":
                return
            if operation == "bra":
                at = labels[args[0]]
                continue
            self.step(operation.split("."), args, regs, params)

    def step(self, op: list[str], args: list[str], regs: dict, params: dict[str, int]) -> None:
        def value(text: str):
            return regs[text] if text.startswith("%") else int(text, 0)

        bits = int(op[-1][1:]) if op[-1][1:].isdigit() else 32
        mask = (1 << bits) - 1
        if op[0] in ("ld", "st", "red"):
            where = args[1] if op[0] == "ld" else args[0]
            base, _, offset = where.strip("[]").partition("+")
            if op[1] == "param":
                regs[args[0]] = params[base] & mask
                return
            address, size = regs[base] + int(offset or 0), bits // 8
            assert address % size == 0
            old = int.from_bytes(self.memory[address : address + size], "little")
            if op[0] == "ld":
                regs[args[0]] = old
                return
            new = value(args[1]) & mask
            if op[0] == "red":
                new = (old + new) & mask if op[2] == "add" else min(old, new)
            self.memory[address : address + size] = new.to_bytes(size, "little")
            return
        a = [value(x) for x in args[1:]]
        if op[0] == "setp":
            compare = {"ge": a[0] >= a[1], "eq": a[0] == a[1], "ne": a[0] != a[1], "le": a[0] <= a[1]}
            compare |= {"gt": a[0] > a[1], "lt": a[0] < a[1]}
            regs[args[0]] = compare[op[1]]
            return
        if op[0] == "selp":
            regs[args[0]] = (a[0] if a[2] else a[1]) & mask
            return
        if op[:2] == ["mul", "wide"]:
            regs[args[0]] = (a[0] & M32) * (a[1] & M32)
            return
        if op[:3] == ["cvt", "rn", "f32"]:
            regs[args[0]] = float(a[0])
            return
        if op[0] == "cvt":
            regs[args[0]] = a[0] & ((1 << min(int(op[1][1:]), int(op[2][1:]))) - 1)
            return
        if op[0] == "mov" and isinstance(a[0], float):
            regs[args[0]] = struct.unpack("<I", struct.pack("<f", a[0]))[0]
            return
        result = {
            "mov": lambda: a[0],
            "cvta": lambda: a[0],
            "add": lambda: a[0] + a[1],
            "sub": lambda: a[0] - a[1],
            "mul": lambda: a[0] * a[1],
            "and": lambda: a[0] & a[1],
            "or": lambda: a[0] | a[1],
            "xor": lambda: a[0] ^ a[1],
            "shl": lambda: a[0] << a[1],
            "shr": lambda: a[0] >> a[1],
            "rem": lambda: a[0] % a[1],
            "min": lambda: min(a[0], a[1]),
        }[op[0]]()
        regs[args[0]] = result & mask


def mix32(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D & M32
    x ^= x >> 15
    x = x * 0x846CA68B & M32
    return x ^ x >> 16


def value_u32(pattern: int, rank: int, i: int) -> int:
    if pattern == 0:
        return (i + rank * 2654435761) & M32
    if pattern == 1:
        return 0xAAAAAAAA if (i + rank) & 1 else 0x55555555
    return (mix32(i) + rank * (mix32(i ^ 0x9E3779B9) | 1)) & M32


def value_bf16(ranks: int, rank: int, i: int) -> int:
    if ranks > 256:
        return int((i + rank) % ranks < 256)
    return (i + rank) % (8 if ranks <= 36 else 4 if ranks <= 85 else 2)


def bf16(number: int) -> int:
    return struct.unpack("<I", struct.pack("<f", float(number)))[0] >> 16


@pytest.mark.parametrize("pattern", kernels.PATTERNS["u32"])
@pytest.mark.parametrize(("ranks", "grid", "block"), [(1, 1, 1), (2, 2, 3), (5, 1, 4), (32, 3, 2), (4096, 2, 2)])
def test_the_integer_kernels_fill_and_check_by_the_formula(pattern: int, ranks: int, grid: int, block: int) -> None:
    count = 11
    machine = Machine(bytearray(64 + 24))
    rank = ranks - 1
    machine.launch("fm_fill_u32", grid, block, 0, count, pattern, rank, ranks)
    assert list(struct.unpack_from("<11I", machine.memory)) == [value_u32(pattern, rank, i) for i in range(count)]
    sums = [sum(value_u32(pattern, r, i) for r in range(ranks)) & M32 for i in range(count)]
    struct.pack_into("<11I", machine.memory, 0, *sums)
    struct.pack_into("<3Q", machine.memory, 64, *kernels.EMPTY_RECORD)
    machine.launch("fm_check_u32", grid, block, 0, count, pattern, ranks, 64)
    checksum = sum(x * (2 * i + 1) for i, x in enumerate(sums)) & M64
    assert struct.unpack_from("<3Q", machine.memory, 64) == (0, M64, checksum)


@pytest.mark.parametrize("pattern", kernels.PATTERNS["u32"])
def test_one_flipped_bit_is_counted_located_and_changes_the_checksum(pattern: int) -> None:
    machine = Machine(bytearray(64 + 24))
    machine.launch("fm_fill_u32", 1, 2, 0, 8, pattern, 0, 1)
    machine.memory[5 * 4 + 1] ^= 0x40
    struct.pack_into("<3Q", machine.memory, 64, *kernels.EMPTY_RECORD)
    machine.launch("fm_check_u32", 2, 2, 0, 8, pattern, 1, 64)
    bad, first, checksum = struct.unpack_from("<3Q", machine.memory, 64)
    assert (bad, first) == (1, 5)
    assert checksum != sum(value_u32(pattern, 0, i) * (2 * i + 1) for i in range(8)) & M64


@pytest.mark.parametrize("ranks", [1, 2, 7, 8, 36, 37, 85, 86, 256, 257, 300])
def test_the_bf16_kernels_are_exact_for_any_number_of_ranks(ranks: int) -> None:
    count = 9
    machine = Machine(bytearray(64 + 24))
    machine.launch("fm_fill_bf16", 1, 4, 0, count, 0, ranks - 1, ranks)
    assert list(struct.unpack_from("<9H", machine.memory)) == [bf16(value_bf16(ranks, ranks - 1, i)) for i in range(9)]
    sums = [sum(value_bf16(ranks, r, i) for r in range(ranks)) for i in range(count)]
    assert max(sums) <= 256
    struct.pack_into("<9H", machine.memory, 0, *(bf16(s) for s in sums))
    struct.pack_into("<3Q", machine.memory, 64, *kernels.EMPTY_RECORD)
    machine.launch("fm_check_bf16", 2, 3, 0, count, 0, ranks, 64)
    bad, first, checksum = struct.unpack_from("<3Q", machine.memory, 64)
    assert (bad, first) == (0, M64)
    assert checksum == sum(bf16(s) * (2 * i + 1) for i, s in enumerate(sums)) & M64
    machine.memory[6] ^= 1
    struct.pack_into("<3Q", machine.memory, 64, *kernels.EMPTY_RECORD)
    machine.launch("fm_check_bf16", 1, 1, 0, count, 0, ranks, 64)
    assert struct.unpack_from("<2Q", machine.memory, 64) == (1, 3)


def find_ptxas() -> str | None:
    """FMSLURM_PTXAS, the package nvidia-cuda-nvcc-cu12 of this environment (a part of the `dev` extra), or the PATH."""
    if named := os.environ.get("FMSLURM_PTXAS"):
        return named
    try:
        import nvidia.cuda_nvcc as package
    except ImportError:
        return shutil.which("ptxas")
    return str(Path(next(iter(package.__path__))) / "bin" / "ptxas")


@pytest.fixture(scope="module")
def ptxas() -> str:
    found = find_ptxas()
    if found is None and platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("nobody makes a ptxas for this machine")
    assert found is not None, "no ptxas here: pip install -e '.[dev]', or name it in FMSLURM_PTXAS"
    return found


#: A100, A10G and L40S, H100 and H200, B200 and GB200, B300.
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ptxas_assembles_the_text(ptxas: str, architecture: str, tmp_path: Path) -> None:
    source, target = tmp_path / "kernels.ptx", tmp_path / "kernels.cubin"
    source.write_text(kernels.PTX)
    result = run(
        [ptxas, f"-arch={architecture}", "--warning-as-error", "-v", "-o", str(target), str(source)], timeout_s=60
    )
    if "is not defined for option 'gpu-name'" in result.stderr and "FMSLURM_PTXAS" in os.environ:
        pytest.skip(f"the ptxas that was named is older than {architecture}")
    assert result.ok, result.stderr + result.stdout
    assert target.stat().st_size > 0
    said = result.stderr + result.stdout
    assert said.count("Compiling entry function") == 4
    assert "spill" not in said or set(re.findall(r"(\d+) bytes spill", said)) == {"0"}


def test_ptxas_refuses_what_is_no_ptx(ptxas: str, tmp_path: Path) -> None:
    (tmp_path / "bad.ptx").write_text(kernels.PTX.replace("ld.global.u32 %r12", "ld.global.u32 %q12"))
    result = run([ptxas, "-arch=sm_90", "-o", str(tmp_path / "bad.cubin"), str(tmp_path / "bad.ptx")], timeout_s=60)
    assert not result.ok
