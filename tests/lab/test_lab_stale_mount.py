"""What the failing file system answers the kernel, byte by byte."""

from __future__ import annotations

import errno
import struct

import pytest

from slurm_ext.lab import mounts, stale_mount


def request(opcode: int, body: bytes = b"") -> bytes:
    return stale_mount._IN.pack(40 + len(body), opcode, 77, 1, 0, 0, 0, 0) + body


def test_init_is_answered_with_the_kernels_major_and_64_bytes() -> None:
    reply = stale_mount.answer(request(26, struct.pack("<IIII", 7, 45, 65536, 0)), "stale")
    assert reply is not None
    length, error, unique = struct.unpack_from("<IiQ", reply)
    assert (length, error, unique) == (len(reply), 0, 77) == (80, 0, 77)
    assert struct.unpack_from("<II", reply, 16) == (7, 31)


@pytest.mark.parametrize(("how", "code"), [("stale", errno.ESTALE), ("eio", errno.EIO)])
@pytest.mark.parametrize("opcode", [1, 3, 14, 15, 17, 27, 35])  # LOOKUP GETATTR OPEN READ STATFS OPENDIR CREATE
def test_every_access_gets_the_error(how: str, code: int, opcode: int) -> None:
    assert stale_mount.answer(request(opcode), how) == struct.pack("<IiQ", 16, -code, 77)


@pytest.mark.parametrize("opcode", [2, 42, 36])  # FORGET BATCH_FORGET INTERRUPT
def test_what_the_kernel_wants_no_answer_to_gets_none(opcode: int) -> None:
    assert stale_mount.answer(request(opcode), "stale") is None


def test_a_hanging_file_system_answers_init_only() -> None:
    assert stale_mount.answer(request(3), "hang") is None
    assert stale_mount.answer(request(26, struct.pack("<IIII", 7, 45, 0, 0)), "hang") is not None


def test_mount_points_are_read_from_the_kernels_list() -> None:
    assert "/proc" in mounts.points(kind="proc")
    assert mounts.points(2**22 + 1) == []
