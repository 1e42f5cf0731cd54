"""NCCL through ctypes: version, unique id by value, non-blocking init, all-reduce, abort. For NCCL 2.18 and newer.

One configuration of 48 bytes in the layout of 2.18 is taken by every later release (it copies the smaller of both sizes,
and gives defaults to what came later). Numbers and layouts are those of the public nccl.h.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
from collections.abc import Sequence

from slurm_ext.burnin.trust import refused
from slurm_ext.errors import FmslurmError, LackingError

#: Releases whose interface is known: from 2.18 on, and no other major version before somebody has looked at it.
OLDEST, NEXT_MAJOR = 21800, 30000
ID_BYTES = 128

OK, CUDA, SYSTEM, REMOTE, IN_PROGRESS = 0, 1, 2, 6, 7
SUM = 0
TYPES = {"u32": 3, "bf16": 9}

#: ncclResult_t by number (nccl.h; 6 since 2.13, 7 since 2.14, 8 since 2.30): for libraries that have no words themselves.
WORDS = {
    0: "no error",
    1: "unhandled CUDA error",
    2: "unhandled system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process exited or network error",
    7: "in progress",
    8: "timeout",
}

#: NCCL's own words where the driver is older than the CUDA runtime inside it: the installation's fault, not the card's.
_DRIVER_TOO_OLD = re.compile(r"driver version is insufficient|insufficient driver|[Cc]uda failure 35\b")

_UNDEFINED = -(1 << 31)


class NcclError(FmslurmError):
    """NCCL said no; `code` is its number (see WORDS)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def whose(self) -> str:
        """Return what the error shows: `remote` (no word on this node), `environment` (software here), else `local`."""
        # A peer that went away shows as a remote error, in older releases as a system error.
        if self.code in (REMOTE, SYSTEM):
            return "remote"
        return "environment" if self.code == CUDA and _DRIVER_TOO_OLD.search(str(self)) else "local"


class UniqueId(ctypes.Structure):
    """The id of a communicator: a bearer secret, passed by value, never logged."""

    _fields_ = [("internal", ctypes.c_char * ID_BYTES)]


class Config(ctypes.Structure):
    """ncclConfig_t of 2.18: what is not set must be INT_MIN or NULL, not zero."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    ]


def non_blocking_config() -> Config:
    """Return the configuration of a communicator whose calls never wait."""
    undefined = _UNDEFINED
    return Config(ctypes.sizeof(Config), 0xCAFEBEEF, OLDEST, 0, undefined, undefined, undefined, None, undefined)


def candidates(configured: str, prefix: str) -> list[str]:
    """Return where libnccl is looked for: the configured path alone; else below our prefix (a wheel in the environment of
    the current release, a file that the release carries, what `fmslurm install --nccl` placed), then the system."""
    if configured:
        return [configured]
    below = os.path.join(prefix, "current")
    wheel = "venv/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"
    return [
        *sorted(glob.glob(os.path.join(glob.escape(below), wheel))),
        os.path.join(below, "nccl/libnccl.so.2"),
        os.path.join(prefix, "nccl/current/lib/libnccl.so.2"),
        "libnccl.so.2",
    ]


#: What is called, all of it in NCCL since 2.14; ncclGetLastError alone may be missing.
_NEEDED = (
    "ncclGetVersion",
    "ncclGetErrorString",
    "ncclGetUniqueId",
    "ncclCommInitRankConfig",
    "ncclCommGetAsyncError",
    "ncclAllReduce",
    "ncclCommFinalize",
    "ncclCommDestroy",
    "ncclCommAbort",
)


def load(paths: Sequence[str]) -> ctypes.CDLL:
    """Return the first library that loads. Raise LackingError naming all that were tried, and why each was not taken."""
    tried = []
    for path in paths:
        if why := refused(path):
            tried.append(f"{path} (refused: {why})")
            continue
        try:
            library = ctypes.CDLL(path)
        except OSError as exc:
            tried.append(f"{path} ({str(exc).removeprefix(f'{path}: ')})")
            continue
        if not (lacking := [name for name in _NEEDED if not hasattr(library, name)]):
            return library
        tried.append(f"{path} (no NCCL of 2.18 or newer: it lacks {', '.join(lacking[:3])})")
    raise LackingError(
        f"cannot load NCCL: tried {'; '.join(tried)}",
        remedy="Set burnin.nccl_library, or place the library with `fmslurm install --nccl`; root alone must own it",
    )


def version_words(version: int) -> str:
    """Return 2.27.7 for 22707, as nccl.h codes it since 2.9."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


class Nccl:
    """The library, and one communicator at a time."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Load the first that loads. Raise LackingError where none does, or where nobody knows this release."""
        self._lib = load(paths)
        self._lib.ncclGetErrorString.restype = ctypes.c_char_p
        self._lib.ncclGetUniqueId.argtypes = [ctypes.POINTER(UniqueId)]
        self._lib.ncclCommInitRankConfig.argtypes = [
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_int,
            UniqueId,
            ctypes.c_int,
            ctypes.POINTER(Config),
        ]
        self._lib.ncclAllReduce.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self.version = self._version()
        if self.version < OLDEST:
            raise LackingError(
                f"NCCL {version_words(self.version)} is older than {version_words(OLDEST)}",
                remedy="Install NCCL 2.18 or newer",
            )
        if self.version >= NEXT_MAJOR:
            raise LackingError(
                f"NCCL {version_words(self.version)} is not known to this release of fmslurm (2.18 to 2.x is)",
                remedy="Give burnin.nccl_library an NCCL 2, or upgrade fmslurm",
            )
        self._comm = ctypes.c_void_p()

    def _version(self) -> int:
        version = ctypes.c_int()
        self._check("ncclGetVersion", self._lib.ncclGetVersion(ctypes.byref(version)))
        return version.value

    def _check(self, name: str, code: int) -> int:
        if code in (OK, IN_PROGRESS):
            return code
        text = self._lib.ncclGetErrorString(ctypes.c_int(code))
        words = text.decode("utf-8", "replace") if text else WORDS.get(code, "a result that is not known")
        raise NcclError(code, f"{name}: {words} ({code}){self._last_error()}")

    def _last_error(self) -> str:
        try:
            last = self._lib.ncclGetLastError
        except AttributeError:
            return ""
        last.restype = ctypes.c_char_p
        last.argtypes = [ctypes.c_void_p]
        text = last(None)
        return f": {' '.join(text.decode('utf-8', 'replace').split())[:200]}" if text else ""

    def unique_id(self) -> bytes:
        """Return the id of a new communicator; this process listens for its ranks from now on."""
        identity = UniqueId()
        self._check("ncclGetUniqueId", self._lib.ncclGetUniqueId(ctypes.byref(identity)))
        return bytes(identity)

    def begin(self, identity: bytes, rank: int, ranks: int) -> None:
        """Start to join a communicator; `settled` tells when that is done."""
        config = non_blocking_config()
        self._comm = ctypes.c_void_p()
        code = self._lib.ncclCommInitRankConfig(
            ctypes.byref(self._comm), ranks, UniqueId.from_buffer_copy(identity), rank, ctypes.byref(config)
        )
        self._check("ncclCommInitRankConfig", code)

    def settled(self) -> bool:
        """Say whether the last call on the communicator is done; no other may be made before. Its error raises here."""
        state = ctypes.c_int()
        self._check("ncclCommGetAsyncError", self._lib.ncclCommGetAsyncError(self._comm, ctypes.byref(state)))
        return self._check("the communicator", state.value) == OK

    def all_reduce(self, send: int, receive: int, count: int, family: str, stream: ctypes.c_void_p) -> None:
        """Queue the sum of a buffer over all ranks."""
        code = self._lib.ncclAllReduce(
            ctypes.c_void_p(send), ctypes.c_void_p(receive), count, TYPES[family], SUM, self._comm, stream
        )
        self._check("ncclAllReduce", code)

    def finalize(self) -> None:
        """Start to end a healthy communicator; `settled` tells when `destroy` may be called."""
        self._check("ncclCommFinalize", self._lib.ncclCommFinalize(self._comm))

    def destroy(self) -> None:
        """Free a finalised communicator."""
        self._check("ncclCommDestroy", self._lib.ncclCommDestroy(self._comm))
        self._comm = ctypes.c_void_p()

    def abort(self) -> None:
        """Tear a communicator down. This may never come back: call it where that does not matter."""
        if self._comm.value:
            self._lib.ncclCommAbort(self._comm)
            self._comm = ctypes.c_void_p()
