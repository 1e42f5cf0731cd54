"""The CUDA driver API through ctypes: one device, one context, one stream, four kernels; no toolkit, no torch.

Every call that fails raises CudaError with the driver's own words. Nothing here waits: events are polled by the caller.
Numbers are those of the public cuda.h.
"""

from __future__ import annotations

import ctypes
import struct

from slurm_ext.burnin import kernels
from slurm_ext.burnin.trust import refused
from slurm_ext.errors import FmslurmError, LackingError

_NOT_READY = 600
_NON_BLOCKING = 1
_INVALID_DEVICE = 101

#: Enough blocks to fill any GPU of today; the kernels take any grid.
_BLOCKS, _THREADS = 1024, 256

#: Results that mean the installation, not the card: a stub or too old a driver (34, 35, 804), kernels that it cannot load or
#: compile (209, 218, 221, 222), no right to use it (800).
ENVIRONMENT_CODES = frozenset({34, 35, 209, 218, 221, 222, 800, 804})


class CudaError(FmslurmError):
    """The driver said no; `code` is its number."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Cuda:
    """One GPU: made in steps, so that the caller can say before each what it is about to do."""

    def __init__(self, library: str) -> None:
        """Load the driver. Raise LackingError where it cannot be loaded, or others than root could have put it there."""
        if why := refused(library):
            raise LackingError(f"{library} is not loaded: {why}", remedy="Let root alone own the file and its folders")
        try:
            self._lib = ctypes.CDLL(library)
        except OSError as exc:
            raise LackingError(f"cannot load {library}: {exc}", remedy="Install the NVIDIA driver") from exc
        self._functions: dict[str, ctypes.c_void_p] = {}
        self.stream = ctypes.c_void_p()

    def _call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self._lib, name)
        except AttributeError:
            raise LackingError(
                f"{self._lib._name} lacks {name}", remedy="Install the NVIDIA driver's own library"
            ) from None
        code = function(*arguments)
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
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if index >= count.value:
            there = ", ".join(self._pci(number) for number in range(count.value)) or "none"
            words = f"gpu {index} was promised, and the driver shows {count.value}: {there}"
            raise CudaError(_INVALID_DEVICE, words)
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuStreamCreate", ctypes.byref(self.stream), ctypes.c_uint(_NON_BLOCKING))
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(kernels.PTX.encode("ascii")))
        for name in ("fm_fill_u32", "fm_check_u32", "fm_fill_bf16", "fm_check_bf16"):
            function = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
            self._functions[name] = function
        return self._pci(index)

    def _pci(self, index: int) -> str:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        pci = ctypes.create_string_buffer(32)
        self._call("cuDeviceGetPCIBusId", pci, ctypes.c_int(len(pci)), device)
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
        # Set on the stream: a copy from pageable memory may arrive after a kernel of a stream that does not wait for it.
        for at, value in enumerate(kernels.EMPTY_RECORD):
            self.set_words(record + 8 * at, value & 0xFFFFFFFF, 2)
        u32, u64 = ctypes.c_uint32, ctypes.c_uint64
        self._launch(f"fm_check_{family}", u64(address), u64(count), u32(pattern), u32(ranks), u64(record))

    def set_words(self, address: int, value: int, count: int) -> None:
        """Queue the same 32-bit value into `count` words of device memory."""
        where, word, number = ctypes.c_uint64(address), ctypes.c_uint32(value), ctypes.c_size_t(count)
        self._call("cuMemsetD32Async", where, word, number, self.stream)

    def clear(self, address: int, size_bytes: int) -> None:
        """Queue zeros into device memory."""
        where, zero, number = ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(size_bytes)
        self._call("cuMemsetD8Async", where, zero, number, self.stream)

    def read(self, address: int, size_bytes: int) -> bytes:
        """Return the content of device memory; only after what wrote it was seen to be done."""
        buffer = ctypes.create_string_buffer(size_bytes)
        self._call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(size_bytes))
        return buffer.raw

    def read_record(self, record: int) -> tuple[int, int, int]:
        """Return mismatches, first bad index and checksum; only after the stream was seen to be done."""
        mismatches, first, checksum = struct.unpack("=3Q", self.read(record, 24))
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
