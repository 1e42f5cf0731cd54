"""Checksums of file content: CRC64NVME, which is S3's own, where awscrt can be imported; else CRC32 of the standard library."""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Callable
from functools import cache

CRC64NVME, CRC32 = "crc64nvme", "crc32"
_BYTES = {CRC64NVME: 8, CRC32: 4}
_BLOCK = 1 << 20


@cache
def _function(algorithm: str) -> Callable[[bytes | memoryview, int], int] | None:
    """Return the function that continues a checksum, or None where this machine lacks it."""
    if algorithm == CRC32:
        return zlib.crc32
    if algorithm == CRC64NVME:
        try:
            from awscrt.checksums import crc64nvme
        except ImportError:
            return None
        return crc64nvme  # type: ignore[no-any-return]
    return None


def best() -> str:
    """Return the name of the checksum that new copies get."""
    return CRC64NVME if _function(CRC64NVME) is not None else CRC32


class Checksum:
    """A running checksum. Raise LookupError where this machine cannot compute the algorithm."""

    def __init__(self, algorithm: str = "") -> None:
        self.algorithm = algorithm or best()
        function = _function(self.algorithm)
        if function is None:
            raise LookupError(f"cannot compute {self.algorithm} here; install awscrt")
        self._function = function
        self._value = 0

    def update(self, block: bytes | memoryview) -> None:
        """Take in the next bytes."""
        self._value = self._function(block, self._value)

    @property
    def text(self) -> str:
        """Return the checksum as manifests hold it: `algorithm:hex`."""
        return f"{self.algorithm}:{self._value:0{2 * _BYTES[self.algorithm]}x}"


def of_bytes(content: bytes | memoryview, algorithm: str = "") -> str:
    """Return the checksum of some bytes."""
    checksum = Checksum(algorithm)
    checksum.update(content)
    return checksum.text


def of_descriptor(descriptor: int, algorithm: str = "") -> tuple[str, int]:
    """Return checksum and number of bytes of an open file, read from its start."""
    checksum, offset = Checksum(algorithm), 0
    while block := os.pread(descriptor, _BLOCK, offset):
        checksum.update(block)
        offset += len(block)
    return checksum.text, offset


def algorithm_of(text: str) -> str:
    """Return the algorithm of a manifest's checksum."""
    return text.partition(":")[0]


def base64_of(text: str) -> str:
    """Return a manifest's checksum as S3's headers carry it. Raise ValueError for what is no checksum."""
    return base64.b64encode(bytes.fromhex(text.partition(":")[2])).decode()
