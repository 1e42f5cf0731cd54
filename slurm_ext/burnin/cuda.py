"""The CUDA driver API through ctypes: one device, one context, one stream, four kernels; no toolkit, no torch.

Every call that fails raises CudaError with the driver's own words. Nothing here waits: events are polled by the caller.
Numbers are those of the public cuda.h.
"""

from __future__ import annotations

import ctypes
import struct

from slurm_ext.burnin import kernels
from slurm_ext.errors import FmslurmError, LackingError

_NOT_READY = 600
_NON_BLOCKING = 1

#: Enough blocks to fill any GPU of today; the kernels take any grid.
_BLOCKS, _THREADS = 1024, 256

#: Results that mean the installation, not the card: a stub or too old a driver, kernels it cannot compile, no right to use it.
ENVIRONMENT_CODES = frozenset({34, 35, 222, 800})


class CudaError(FmslurmError):
    """The driver said no; `code` is its number."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Cuda:
    """One GPU: made in steps, so that the caller can say before each what it is about to do."""

    def __init__(self, library: str) -> None:
        """Load the driver. Raise LackingError where it cannot be loaded."""
        try:
            self._lib = ctypes.CDLL(library)
        except OSError as exc:
            raise LackingError(f"cannot load {library}: {exc}", remedy="Install the NVIDIA driver") from exc
        self._functions: dict[str, ctypes.c_void_p] = {}
        self.stream = ctypes.c_void_p()

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code != 0:
            raise CudaError(code, f"{name}: {self._words(code)}")

    def _words(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._lib.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) == 0 and text.value:
            return f"{text.value.decode('ascii', 'replace')} ({code})"
        return f"CUDA error {code}"

    def open(self, index: int) -> str:
        """Initialise, take the primary context of device `index`, load the kernels; return the PCI address."""
        self._call("cuInit", ctypes.c_uint(0))
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        pci = ctypes.create_string_buffer(32)
        self._call("cuDeviceGetPCIBusId", pci, ctypes.c_int(len(pci)), device)
        self._call("cuStreamCreate", ctypes.byref(self.stream), ctypes.c_uint(_NON_BLOCKING))
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(kernels.PTX.encode("ascii")))
        for name in ("fm_fill_u32", "fm_check_u32", "fm_fill_bf16", "fm_check_bf16"):
            function = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
            self._functions[name] = function
        return pci.value.decode("ascii", "replace").lower()

    def driver_version(self) -> int:
        """Return the CUDA version of the driver, e.g. 12080."""
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new device memory."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        return address.value

    def free(self, address: int) -> None:
        """Give device memory back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def _launch(self, name: str, *values: ctypes.c_uint64 | ctypes.c_uint32) -> None:
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values))
        grid = [ctypes.c_uint(n) for n in (_BLOCKS, 1, 1, _THREADS, 1, 1, 0)]
        self._call("cuLaunchKernel", self._functions[name], *grid, self.stream, pointers, None)

    def fill(self, family: str, address: int, count: int, pattern: int, rank: int, ranks: int) -> None:
        """Queue the pattern of one rank into a buffer of `count` elements."""
        u32, u64 = ctypes.c_uint32, ctypes.c_uint64
        self._launch(f"fm_fill_{family}", u64(address), u64(count), u32(pattern), u32(rank), u32(ranks))

    def check(self, family: str, address: int, count: int, pattern: int, ranks: int, record: int) -> None:
        """Queue the comparison of a result with the sum over all ranks; `record` is device memory of 24 bytes."""
        self._call(
            "cuMemcpyHtoD_v2", ctypes.c_uint64(record), struct.pack("=3Q", *kernels.EMPTY_RECORD), ctypes.c_size_t(24)
        )
        u32, u64 = ctypes.c_uint32, ctypes.c_uint64
        self._launch(f"fm_check_{family}", u64(address), u64(count), u32(pattern), u32(ranks), u64(record))

    def read_record(self, record: int) -> tuple[int, int, int]:
        """Return mismatches, first bad index and checksum; only after the stream was seen to be done."""
        buffer = ctypes.create_string_buffer(24)
        self._call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(record), ctypes.c_size_t(24))
        mismatches, first, checksum = struct.unpack("=3Q", buffer.raw)
        return mismatches, first, checksum

    def event(self) -> ctypes.c_void_p:
        """Return a new event that takes times."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        return event

    def record(self, event: ctypes.c_void_p) -> None:
        """Queue an event behind all that is queued so far."""
        self._call("cuEventRecord", event, self.stream)

    def done(self, event: ctypes.c_void_p) -> bool:
        """Say whether the stream has passed an event. A fatal error of the device raises here."""
        code = self._lib.cuEventQuery(event)
        if code not in (0, _NOT_READY):
            raise CudaError(code, f"cuEventQuery: {self._words(code)}")
        return bool(code == 0)

    def elapsed_ms(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Return the milliseconds between two events that are done."""
        elapsed = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
        return elapsed.value
