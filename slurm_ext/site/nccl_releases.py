"""NCCL's own wheels that `fmslurm install --nccl` may fetch: name, size, hash, and the driver each needs.

Hashes and sizes are those of the files on PyPI, checked 2026-11. Driver floors: NVIDIA, "CUDA Compatibility", minor
version compatibility (CUDA 12.x from 525, CUDA 13.x from 580).
"""

from __future__ import annotations

from typing import NamedTuple


class NcclRelease(NamedTuple):
    """One wheel. `cuda` is the major release of CUDA it was built with, `driver_min` the oldest driver branch for it."""

    version: str
    cuda: int
    wheel: str
    sha256: str
    size_bytes: int

    @property
    def package(self) -> str:
        """Return the name of the distribution."""
        return f"nvidia-nccl-cu{self.cuda}"

    @property
    def name(self) -> str:
        """Return the name of the folder it is kept in."""
        return f"cu{self.cuda}-{self.version}"


#: The oldest driver branch for each major release of CUDA, newest first.
DRIVER_MIN: dict[int, int] = {13: 580, 12: 525}

#: The newest pair that aws-ofi-nccl's release notes name as tested (plugin 1.20 with 2.30.4).
DEFAULT_VERSION = "2.30.4"

_LINUX = "py3-none-manylinux_2_18_x86_64.whl"

RELEASES: tuple[NcclRelease, ...] = (
    NcclRelease(
        "2.29.7",
        12,
        f"nvidia_nccl_cu12-2.29.7-{_LINUX}",
        "ecd0a012051abc20c1aa87328841efa8cade3ced65803046e38c2f03c0891fea",
        293633942,
    ),
    NcclRelease(
        "2.29.7",
        13,
        f"nvidia_nccl_cu13-2.29.7-{_LINUX}",
        "edd81538446786ec3b73972543e53bb43bcaf0bfc8ef76cb679fcc390ffe136d",
        205976000,
    ),
    NcclRelease(
        "2.30.4",
        12,
        f"nvidia_nccl_cu12-2.30.4-{_LINUX}",
        "040974b261edec4b8b793e59e92ab7176fe4ab4bc61b800f9f3bfaeec2d436f3",
        300164158,
    ),
    NcclRelease(
        "2.30.4",
        13,
        f"nvidia_nccl_cu13-2.30.4-{_LINUX}",
        "534dbf3058cadb625f08ab0d17f1dffad3b961a2bfa360d66633fcf21be53f57",
        212855427,
    ),
    NcclRelease(
        "2.32.3",
        12,
        "nvidia_nccl_cu12-2.32.3-py3-none-manylinux_2_27_x86_64.whl",
        "bb94b2348e4861d5e8aa00b36c3d12d9bdf9c6369b82cbb723de0b582280a21c",
        351526311,
    ),
    NcclRelease(
        "2.32.3",
        13,
        "nvidia_nccl_cu13-2.32.3-py3-none-manylinux_2_27_x86_64.whl",
        "1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3",
        305100071,
    ),
)


def cuda_for(driver: str) -> int:
    """Return the newest major release of CUDA that a driver ("570.133.20") runs; 0 where it is too old or no version."""
    branch = driver.split(".")[0].strip()
    if not branch.isdigit():
        return 0
    return next((cuda for cuda, least in DRIVER_MIN.items() if int(branch) >= least), 0)


def find(version: str, cuda: int) -> NcclRelease | None:
    """Return the release of a version for a CUDA, None where the table has none."""
    return next((row for row in RELEASES if row.version == version and row.cuda == cuda), None)
