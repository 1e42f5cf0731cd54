"""Which releases of NCCL, aws-ofi-nccl, libfabric, EFA and NVIDIA driver do not go together: one table, each row with its source.

A row is bad where every one of its conditions is known to hold; what is not known says nothing. A row convicts no node: it is
a word to who builds the image (warn), or worth knowing (pass), and whether NCCL runs is for the burn-in to show. What a job
brings itself, in a container or a wheel, is not seen here. Pure, standard library only: hooks import this.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_ext.gate.model import Judged, judged
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import PASS, WARN

#: When every source below was read last.
CHECKED = "2026-11-30"

#: What can be compared, and how people call it.
PARTS: Mapping[str, str] = {
    "nccl": "NCCL",
    "plugin": "aws-ofi-nccl",
    "libfabric": "libfabric",
    "libfabric-build": "libfabric's build",
    "installer": "EFA installer",
    "driver": "EFA driver",
    "nvidia": "NVIDIA driver",
    "nvidia-module": "NVIDIA kernel module",
    "cuda": "CUDA toolkit",
    "kernel": "Linux",
    "kefalnd": "Lustre's EFA driver",
    "peer-memory": "the EFA driver's provider of GPU memory",
    "generation": "EFA generation",
    "type": "instance type",
}

Condition = tuple[str, str, str]  # part, one of < >= = in, and a version or words

_NOTES = "https://github.com/aws/aws-ofi-nccl/blob/v1.21.1/RELEASENOTES.md"
_DRIVER_NOTES = "https://github.com/amzn/amzn-drivers/blob/64788ef/kernel/linux/efa/RELEASENOTES.md"
_ISSUES = "https://github.com/aws/aws-ofi-nccl/issues/"
_CHEATSHEET = "https://github.com/aws-samples/awsome-distributed-training/blob/main/1.architectures/efa-cheatsheet.md"


class Row(NamedTuple):
    """One combination that does not work, or not well. `id` follows `compat.` in the finding; `advice`: no warning."""

    id: str
    when: tuple[Condition, ...]
    consequence: str
    remedy: str
    source: str
    advice: bool = False


TABLE: tuple[Row, ...] = (
    Row(
        "nccl-2.19-installer",
        (("nccl", ">=", "2.19.0"), ("installer", "<", "1.29.0")),
        "GPU memory cannot be registered with EFA (RC -22)",
        "EFA installer 1.29 or later, or FI_EFA_SET_CUDA_SYNC_MEMOPS=0",
        _ISSUES + "584",
    ),
    Row(
        "plugin-libfabric-1.18",
        (("plugin", ">=", "1.8.0"), ("libfabric", "<", "1.18.0")),
        "the plug-in needs a newer libfabric; NCCL does not load it and goes over TCP",
        "libfabric 1.18 or later",
        _NOTES + " (v1.8.0, v1.9.0)",
    ),
    Row(
        "plugin-libfabric-1.22",
        (("plugin", ">=", "1.13.0"), ("libfabric", ">=", "1.18.0"), ("libfabric", "<", "1.22.0")),
        "the plug-in's part for AWS needs libfabric 1.22; NCCL may go over TCP",
        "libfabric 1.22.0amzn4.0 or later",
        _NOTES + " (v1.13.0, breaking changes)",
    ),
    Row(
        "plugin-libfabric-upstream",
        (("plugin", ">=", "1.13.0"), ("plugin", "<", "1.19.0"), ("libfabric", ">=", "1.22.0"), ("libfabric", "<", "2.0.0"),
         ("libfabric-build", "=", "upstream")),
        "these plug-ins ask for Amazon's build of libfabric 1.22 (amzn4.0); with another RDMA does not start",
        "the libfabric of the EFA installer",
        _NOTES + " (v1.13.0 to v1.18.0); reported in " + _ISSUES + "1055",
    ),
    Row(
        "plugin-1.11-installer-1.35",
        (("plugin", ">=", "1.11.0"), ("plugin", "<", "1.11.1"), ("installer", ">=", "1.35.0")),
        "slow or crashing: the plug-in sorts devices in a way that newer EFA drivers break",
        "aws-ofi-nccl 1.11.1 or later",
        "https://github.com/aws/aws-ofi-nccl/releases/tag/v1.11.1-aws",
    ),
    Row(
        "plugin-1.12-installer-1.35",
        (("plugin", ">=", "1.12.0"), ("plugin", "<", "1.12.1"), ("installer", ">=", "1.35.0")),
        "slow or crashing: the plug-in sorts devices in a way that newer EFA drivers break",
        "aws-ofi-nccl 1.12.1 or later",
        _NOTES + " (v1.12.1)",
    ),
    Row(
        "nccl-2.28-plugin",
        (("nccl", ">=", "2.28.0"), ("plugin", "<", "1.17.2")),
        "a crash where libfabric does not start, in place of an error",
        "aws-ofi-nccl 1.17.2 or later",
        _NOTES + " (v1.17.2)",
    ),
    Row(
        "nccl-2.28.9-plugin",
        (("nccl", ">=", "2.28.9"), ("nccl", "<", "2.29.0"), ("plugin", "<", "1.20.0")),
        "this pair was not tested by AWS before 1.20.0; a deadlock on p5 was reported",
        "aws-ofi-nccl 1.20.0 or later",
        _NOTES + " (v1.20.0); " + _ISSUES + "1055",
        advice=True,
    ),
    Row(
        "nccl-old-plugin",
        (("plugin", ">=", "1.13.0"), ("nccl", "<", "2.17.1")),
        "the plug-in supports NCCL 2.17.1 and later",
        "a newer NCCL",
        _NOTES + " (v1.13.0 and later)",
    ),
    Row(
        "nccl-nvls",
        (("nccl", "<", "2.18.5"), ("plugin", ">=", "1.7.0"), ("type", "in", "p5.48xlarge p5e.48xlarge p5en.48xlarge")),
        "NCCL up to 2.18.3 is at fault with EFA and NVLink switches; the plug-in turns NVLS off, which is slower",
        "NCCL 2.18.5 or later",
        "https://github.com/aws/aws-ofi-nccl/blob/v1.21.1/src/platform-aws.cpp (configure_nvls_option)",
    ),
    Row(
        "cuda-13-plugin",
        (("cuda", ">=", "13.0"), ("plugin", "<", "1.17.0")),
        "the plug-in does not know CUDA 13's calls",
        "aws-ofi-nccl 1.17.1 or later, which serves CUDA 12 and 13",
        _NOTES + " (v1.17.0, v1.17.1)",
    ),
    Row(
        "cuda-13-nvidia",
        (("cuda", ">=", "13.0"), ("nvidia", "<", "580")),
        "programs built with CUDA 13 need NVIDIA driver 580",
        "NVIDIA driver 580 or later, or CUDA 12",
        "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
    ),
    Row(
        "cuda-12-nvidia",
        (("cuda", ">=", "12.0"), ("nvidia", "<", "525")),
        "programs built with CUDA 12 need NVIDIA driver 525",
        "NVIDIA driver 525 or later",
        "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
    ),
    Row(
        "plugin-p5",
        (("type", "in", "p5.48xlarge"), ("plugin", "<", "1.7.2")),
        "support of P5's RDMA writes began with 1.7.0; AWS's sheet asks for 1.7.2 at least",
        "aws-ofi-nccl 1.7.3 or later",
        _CHEATSHEET + " (section 2)",
    ),
    Row(
        "plugin-p5e",
        (("type", "in", "p5e.48xlarge"), ("plugin", "<", "1.11.0")),
        "the plug-in does not know this type",
        "aws-ofi-nccl 1.11.0 or later",
        _NOTES + " (v1.11.0)",
    ),
    Row(
        "plugin-p5en",
        (("type", "in", "p5en.48xlarge"), ("plugin", "<", "1.13.0")),
        "the plug-in does not know this type",
        "aws-ofi-nccl 1.13.0 or later",
        _NOTES + " (v1.13.0)",
    ),
    Row(
        "plugin-p6-b200",
        (("type", "in", "p6-b200.48xlarge"), ("plugin", "<", "1.15.0")),
        "the plug-in does not know this type",
        "aws-ofi-nccl 1.15.0 or later",
        _NOTES + " (v1.15.0)",
    ),
    Row(
        "plugin-p6-b300",
        (("type", "in", "p6-b300.48xlarge"), ("plugin", "<", "1.18.0")),
        "the plug-in does not know this type",
        "aws-ofi-nccl 1.18.0 or later",
        _NOTES + " (v1.18.0)",
    ),
    Row(
        "plugin-p5.4xlarge",
        (("type", "in", "p5.4xlarge"), ("plugin", ">=", "1.7.0"), ("plugin", "<", "1.16.2")),
        "the plug-in has no settings for this type",
        "aws-ofi-nccl 1.16.2 or later",
        _NOTES + " (v1.16.2)",
    ),
    Row(
        "driver-nvidia-580",
        (("nvidia", ">=", "580"), ("driver", "<", "2.17.3")),
        "peer-to-peer with NVIDIA 580 drivers came with EFA driver 2.17.3; data may be copied through the host's memory",
        "EFA driver 2.17.3 or later",
        _DRIVER_NOTES + " (r2.17.3)",
    ),
    Row(
        "driver-rdma-write",
        (("driver", "<", "2.4.0"), ("type", "in", "p5.48xlarge p5e.48xlarge p5en.48xlarge p6-b200.48xlarge p6-b300.48xlarge")),
        "the plug-in's transport on this type is RDMA writes, which EFA drivers have from 2.4.0 on",
        "EFA driver 2.4.0 or later",
        _DRIVER_NOTES + " (r2.4.0)",
    ),
    Row(
        "driver-no-retransmissions",
        (("driver", "<", "2.17.0"),),
        "this EFA driver does not count retransmissions and remote ends that do not answer: a job's window is half blind",
        "EFA driver 2.17.0 or later",
        _DRIVER_NOTES + " (r2.17.0)",
        advice=True,
    ),
    Row(
        "driver-lustre-efa",
        (("kefalnd", ">=", "0"), ("driver", "<", "2.12.1")),
        "FSx for Lustre over EFA asks for EFA driver 2.12.1",
        "EFA driver 2.12.1 or later",
        "https://docs.aws.amazon.com/eks/latest/userguide/fsx-csi-tuning-efa.html",
    ),
    Row(
        "nvidia-proprietary",
        (("nvidia-module", "=", "proprietary"), ("peer-memory", "=", "none")),
        "the proprietary NVIDIA module gives EFA no GPU memory on recently patched kernels",
        "NVIDIA's open kernel modules, EFA installer 1.29 or later",
        "https://github.com/aws/aws-parallelcluster/issues/6015; " + _ISSUES + "803",
    ),
    Row(
        "plugin-dma-buf",
        (("peer-memory", "=", "none"), ("generation", "<", "4"), ("plugin", "<", "1.19.2")),
        "without that provider GPU memory takes DMA-BUF, which the plug-in has on EFA 1 to 3 from 1.19.2 on",
        "aws-ofi-nccl 1.19.2 or later, or the efa_nv_peermem module",
        _NOTES + " (v1.14.2, v1.19.2), src/nccl_ofi_dmabuf.cpp at v1.19.1",
    ),
    Row(
        "plugin-dma-buf-efa4",
        (("peer-memory", "=", "none"), ("generation", ">=", "4"), ("plugin", "<", "1.14.2")),
        "without that provider GPU memory takes DMA-BUF, which the plug-in uses from 1.14.2 on by itself",
        "aws-ofi-nccl 1.14.2 or later, or the efa_nv_peermem module",
        _NOTES + " (v1.13.2, v1.14.2)",
    ),
    Row(
        "nvidia-595-p6e",
        (("nvidia", ">=", "595"), ("nvidia", "<", "595.92"), ("type", "in", "p6e-gb200.36xlarge")),
        "GPUDirect over EFA is refused by this driver on P6e (NVRM: dma-buf attach failed), and NCCL aborts",
        "NVIDIA driver 580",
        "https://github.com/NVIDIA/aicr/issues/2383, https://github.com/NVIDIA/aicr/pull/2439 (measured there, R595 to 595.91.07)",
    ),
    Row(
        "fork-old-kernel",
        (("plugin", "<", "1.7.2"), ("kernel", "<", "5.13")),
        "a fork can corrupt data that the plug-in registered",
        "aws-ofi-nccl 1.7.2 or later, or Linux 5.13 or later",
        _NOTES + " (v1.7.2)",
    ),
    Row(
        "plugin-lost-errors",
        (("plugin", "<", "1.20.0"),),
        "an error of a cancelled operation can be lost, and the job hangs in place of ending",
        "aws-ofi-nccl 1.20.0 or later",
        _NOTES + " (v1.20.0)",
        advice=True,
    ),
    Row(
        "plugin-abort",
        (("plugin", "<", "1.16.0"),),
        "a communicator does not abort gracefully: a burn-in or a job that gives up leaves ranks behind",
        "aws-ofi-nccl 1.16.0 or later",
        _NOTES + " (v1.16.0)",
        advice=True,
    ),
)  # fmt: skip


def judge(told: Mapping[str, str]) -> list[Judged]:
    """Return what the table says of the releases that are known (part -> version or word)."""
    items = []
    for row in TABLE:
        if all(_holds(condition, told) for condition in row.when):
            parts = [part for part, _, _ in row.when if part in told]
            named = ", ".join(f"{PARTS[part]} {told[part]}" for part in dict.fromkeys(parts))
            line = f"{named}: {row.consequence}"
            verdict, action = (PASS, "none") if row.advice else (WARN, "warn")
            items.append(judged(verdict, f"compat.{row.id}", "node", action, line, f"use {row.remedy}", row.source))
    return items


def version(text: str) -> tuple[int, ...] | None:
    """Return (2, 17, 3) for `2.17.3g` or `v2.17.3-1`, None where the text does not begin with a release.

    Amazon's own count behind a release (2.1.0amzn5.0) is left out: no row is about it.
    """
    numbers = []
    for part in text.strip().removeprefix("v").split(".")[:4]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits or len(digits) > 9:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers) or None


def _holds(condition: Condition, told: Mapping[str, str]) -> bool:
    part, sign, words = condition
    known = told.get(part)
    if not known:
        return False
    if sign == "=":
        return known == words
    if sign == "in":
        return known in words.split()
    mine, other = version(known), version(words)
    if mine is None or other is None:
        return False
    length = max(len(mine), len(other))
    mine, other = (numbers + (0,) * (length - len(numbers)) for numbers in (mine, other))
    return mine < other if sign == "<" else mine >= other
