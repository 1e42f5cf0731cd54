"""EC2 asked what its instance types are, and the answer held against our tables: differences, gaps and new rows, as data.

Compared are the catalogue's rows whole; of the types beside them what the gate uses: processors, memory, disks, EFA and GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from slurm_ext.aws import efa_types, gpu_types
from slurm_ext.aws.catalogue import CATALOGUE, TRAINING, InstanceType, host
from slurm_ext.aws.service import Refused, Service
from slurm_ext.aws.trouble import explain

CALL, PERMISSION = "EC2 DescribeInstanceTypes", "ec2:DescribeInstanceTypes"

#: Families that our tables have rows of, and how many types a page brings.
PATTERNS, PAGE = ("p*", "g*", "hpc*", "trn*"), 100


class Told(NamedTuple):
    """What EC2 tells of one type; 0 or empty where it does not. GPUs of other makers count as none."""

    name: str
    vcpus: int = 0
    memory_mib: int = 0
    cores: int = 0
    threads_per_core: int = 0
    gpus: int = 0
    gpu_type: str = ""
    gpu_memory_mib: int = 0
    efa_devices: int = 0
    nvme_count: int = 0
    nvme_gb: int = 0
    arch: str = ""
    network_cards: int = 0


class Difference(NamedTuple):
    """One figure that is not the same; `ours` is 0 or empty where the catalogue has none yet."""

    type: str
    figure: str
    ours: str
    theirs: str


class Compared(NamedTuple):
    """What a comparison found: differing figures, figures that we lack, types that we lack, rows that EC2 did not tell of."""

    different: list[Difference]
    filled_in: list[Difference]
    new: list[Told]
    absent: list[str]


def instance_types(ec2: Service) -> list[Told]:
    """Return the types of the families we follow that the region has. Raise LackingError with AWS's own words."""
    wanted = [{"Name": "instance-type", "Values": list(PATTERNS)}]
    try:
        pages = list(ec2.pages("describe_instance_types", Filters=wanted, MaxResults=PAGE))
    except Refused as refused:
        raise explain(refused.said, CALL, PERMISSION) from refused
    return sorted(_told(row) for page in pages for row in page.get("InstanceTypes") or ())


def compare(told: Iterable[Told], rows: Mapping[str, InstanceType] = CATALOGUE) -> Compared:
    """Return how EC2's types differ from our rows. Pure. A figure that EC2 does not tell is no difference."""
    by_name = {one.name: one for one in told}
    found = Compared([], [], [], sorted(rows.keys() - by_name.keys()))
    for name, one in sorted(by_name.items()):
        row = rows.get(name)
        if row is None and one.gpus and name.startswith(TRAINING):
            found.new.append(one)
            continue
        for figure, ours in (_figures(row) if row is not None else _beside(name)).items():
            theirs = getattr(one, figure)
            if theirs and theirs != ours:
                where = found.different if ours else found.filled_in
                where.append(Difference(name, figure, str(ours), str(theirs)))
    return found


def rows_of(told: Iterable[Told], checked_on: str) -> list[InstanceType]:
    """Return rows of the types with NVIDIA GPUs that the catalogue lacks, as far as EC2 tells them: neither sockets nor NVLink. Pure."""
    return [
        InstanceType(
            one.name,
            one.vcpus,
            one.memory_mib,
            0,
            0,
            one.threads_per_core or 1,
            one.gpus,
            one.gpu_type,
            one.gpu_memory_mib,
            one.efa_devices,
            one.nvme_count,
            one.nvme_gb,
            0,
            one.arch,
            checked_on,
            CALL,
            one.network_cards,
        )
        for one in sorted(told)
        if one.gpus and one.name not in CATALOGUE
    ]


def _figures(row: InstanceType) -> dict[str, int | str]:
    return {
        "vcpus": row.vcpus,
        "memory_mib": row.memory_mib,
        "cores": row.sockets * row.cores_per_socket,
        "threads_per_core": row.threads_per_core,
        "gpus": row.gpus,
        "gpu_type": row.gpu_type,
        "gpu_memory_mib": row.gpu_memory_mib,
        "efa_devices": row.efa_devices,
        "nvme_count": row.nvme_count,
        "nvme_gb": row.nvme_gb,
        "arch": row.arch,
        "network_cards": row.network_cards,
    }


def _beside(name: str) -> dict[str, int | str]:
    """Return what our other tables say of a type that is no training type; 0 where they do not know it."""
    found: dict[str, int | str] = {
        "efa_devices": efa_types.efa_devices(name) or 0,
        "gpus": gpu_types.gpu_count(name) or 0,
    }
    shape = host(name)
    if shape is not None:
        found |= {"vcpus": shape.vcpus, "threads_per_core": shape.threads_per_core, "memory_mib": shape.memory_mib}
        found |= {"nvme_count": shape.nvme_count or 0, "nvme_gb": shape.nvme_gb}
    return found


def _told(row: Mapping[str, Any]) -> Told:
    processors, gpus = row.get("VCpuInfo") or {}, (row.get("GpuInfo") or {}).get("Gpus") or ()
    nvidia = [gpu for gpu in gpus if gpu.get("Manufacturer") == "NVIDIA"]
    disks = (row.get("InstanceStorageInfo") or {}).get("Disks") or ()
    network = row.get("NetworkInfo") or {}
    architectures = (row.get("ProcessorInfo") or {}).get("SupportedArchitectures") or ()
    wide = [str(one).replace("arm64", "aarch64") for one in architectures if str(one) != "i386"]
    return Told(
        str(row.get("InstanceType") or ""),
        int(processors.get("DefaultVCpus") or 0),
        int((row.get("MemoryInfo") or {}).get("SizeInMiB") or 0),
        int(processors.get("DefaultCores") or 0),
        int(processors.get("DefaultThreadsPerCore") or 0),
        sum(int(gpu.get("Count") or 0) for gpu in nvidia),
        # As ParallelCluster makes the gres type of it.
        str(nvidia[0].get("Name") or "").replace(" ", "").lower() if nvidia else "",
        int((nvidia[0].get("MemoryInfo") or {}).get("SizeInMiB") or 0) if nvidia else 0,
        int((network.get("EfaInfo") or {}).get("MaximumEfaInterfaces") or 0),
        sum(int(disk.get("Count") or 0) for disk in disks),
        int(disks[0].get("SizeInGB") or 0) if disks else 0,
        wide[0] if wide else "",
        int(network.get("MaximumNetworkCards") or 0),
    )
