"""A file system that only fails: mounted with FUSE in a node's namespaces, it answers every access with one error, or never.

Run as a program: `python -I stale_mount.py MOUNTPOINT stale|eio|hang`. It speaks the kernel's FUSE protocol itself
(linux/fuse.h): one INIT is answered, everything after it gets -ESTALE, -EIO or no answer. It ends when it is unmounted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from pathlib import Path

#: fuse_in_header: len, opcode, unique, nodeid, uid, gid, pid, padding. fuse_out_header: len, error, unique.
_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")

#: fuse_init_out of protocol 7.23 and later, 64 bytes: major, minor, max_readahead, flags, max_background,
#: congestion_threshold, max_write, time_gran, and unused fields.
_INIT_OUT = struct.Struct("<IIIIHHII36x")
_INIT, _FORGET, _INTERRUPT, _DESTROY, _BATCH_FORGET = 26, 2, 36, 38, 42

_ERRORS = {"stale": errno.ESTALE, "eio": errno.EIO}
_REQUEST_BYTES = 1 << 20


def is_server(pid: int) -> bool:
    """Say whether a process is such a server."""
    try:
        return os.fsencode(__file__) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def answer(request: bytes, how: str) -> bytes | None:
    """Return the bytes that answer one FUSE request, or None where none is due."""
    _, opcode, unique, *_ = _IN.unpack_from(request)
    if opcode == _INIT:
        major, minor = struct.unpack_from("<II", request, _IN.size)
        body = _INIT_OUT.pack(major, min(minor, 31), 0, 0, 12, 9, 4096, 1)
        return _OUT.pack(_OUT.size + len(body), 0, unique) + body
    if opcode in (_FORGET, _BATCH_FORGET, _INTERRUPT) or how == "hang":
        return None
    return _OUT.pack(_OUT.size, 0 if opcode == _DESTROY else -_ERRORS[how], unique)


def serve(point: str, how: str) -> None:
    """Mount and answer until somebody unmounts. Raise OSError where FUSE is not to be had."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode={stat.S_IFDIR | 0o755:o},user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"lustre", os.fsencode(point), b"fuse", 0, options.encode()):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), point)
    while True:
        try:
            reply = answer(os.read(device, _REQUEST_BYTES), how)
            if reply is not None:
                os.write(device, reply)
        except OSError as exc:
            if exc.errno == errno.ENODEV:  # unmounted
                return
            if exc.errno not in (errno.ENOENT, errno.EINTR, errno.EAGAIN):  # the caller gave up before our answer
                raise


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
