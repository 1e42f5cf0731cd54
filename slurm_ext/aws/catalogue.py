"""EC2 instance types with NVIDIA GPUs that fmslurm knows, as facts with a source for each row; what is not here is unknown.

Standard library only: the gate compares a node with its row. A figure of 0 means that no public source gives it, and
nothing is compared with it. `efa_devices` is the most the type can have: a launch template may attach fewer.
`fmslurm gres check --ec2` holds the rows against DescribeInstanceTypes. How many network nodes EC2 tells of a type, and how
many instances an UltraServer has, is in topology_types.py; EFA names are in efa_types.py.

Types that are newer than this release come from `fmslurm gres refresh` (site_types.py): whoever runs with a site's settings sets
`source`, and a type that no row here has is looked up there. A row of ours always wins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slurm_ext.typed import NamedTuple

_EC2 = "EC2 DescribeInstanceTypes (as published in getmoto/moto moto/ec2/resources/instance_types.json)"


class InstanceType(NamedTuple):
    """One row. Memory in MiB, NVMe in GB per disk; `checked_on` is the date the row was compared with `source`."""

    name: str
    vcpus: int
    memory_mib: int
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    gpus: int
    gpu_type: str  # the type in Slurm's gres, lower case
    gpu_memory_mib: int
    efa_devices: int
    nvme_count: int
    nvme_gb: int
    nvlink_domain_gpus: int  # GPUs that one NVLink domain may span, over instances in an UltraServer; 0: not known
    arch: str
    checked_on: str
    source: str
    network_cards: int = 0
    #: GPUs by socket, in the order of their device files; empty where nobody published it. Each socket is one NUMA node.
    gpus_by_socket: tuple[int, ...] = ()
    split_source: str = ""


_CAPTURE = "hwloc capture of the type in aws/aws-ofi-nccl tests/unit/fixtures/topology (fc901d9), read 2026-11-30"

#: Sockets and cores are the processors' own shape (`lscpu`), which Slurm's node line repeats.
CATALOGUE: dict[str, InstanceType] = {
    row.name: row
    for row in (
        InstanceType(
            "p4d.24xlarge",
            *(96, 1_179_648, 2, 24, 2, 8, "a100", 40960, 4, 8, 1000, 8, "x86_64", "2026-08-22"),
            _EC2,
            network_cards=4,
            gpus_by_socket=(4, 4),
            split_source="aws/aws-ofi-nccl topology/p4d-24xl-topo.xml",
        ),
        InstanceType(
            "p4de.24xlarge",
            *(96, 1_179_648, 2, 24, 2, 8, "a100", 81920, 4, 8, 1000, 8, "x86_64", "2026-08-22"),
            _EC2,
            network_cards=4,
            gpus_by_socket=(4, 4),
            split_source="aws/aws-ofi-nccl topology/p4de-24xl-topo.xml",
        ),
        InstanceType(
            "p5.4xlarge",
            *(16, 262_144, 1, 8, 2, 1, "h100", 81920, 1, 1, 3800, 1, "x86_64", "2026-08-22"),
            _EC2,
            network_cards=1,
            gpus_by_socket=(1,),
            split_source="one socket",
        ),
        InstanceType(
            "p5.48xlarge",
            *(192, 2_097_152, 2, 48, 2, 8, "h100", 81920, 32, 8, 3800, 8, "x86_64", "2026-08-22"),
            _EC2,
            network_cards=32,
            gpus_by_socket=(4, 4),
            split_source="SageMaker HyperPod developer guide, topology: two buses, each a CPU and four GPUs; their order as on p4d",
        ),
        InstanceType(
            "p5e.48xlarge",
            *(192, 2_097_152, 2, 48, 2, 8, "h200", 144_384, 32, 8, 3800, 8, "x86_64", "2026-08-22"),
            _EC2,
            network_cards=32,
        ),
        InstanceType(
            "p5en.48xlarge",
            *(192, 2_097_152, 2, 48, 2, 8, "h200", 144_384, 16, 8, 3800, 8, "x86_64", "2026-08-22"),
            _EC2,
            network_cards=16,
            gpus_by_socket=(4, 4),
            split_source=_CAPTURE,
        ),
        InstanceType(
            "p6-b200.48xlarge",
            *(192, 2_097_152, 2, 48, 2, 8, "b200", 183_359, 8, 8, 3800, 8, "x86_64", "2026-08-22"),
            _EC2,
            network_cards=8,
            gpus_by_socket=(4, 4),
            split_source=_CAPTURE,
        ),
        InstanceType(
            "p6-b300.48xlarge",
            *(192, 4_194_304, 2, 48, 2, 8, "b300", 275_040, 16, 8, 3800, 8, "x86_64", "2026-08-22"),
            _EC2,
            network_cards=17,
            gpus_by_socket=(4, 4),
            split_source=_CAPTURE,
        ),
        InstanceType(
            "p6e-gb200.36xlarge",
            *(144, 983_040, 2, 72, 1, 4, "gb200", 0, 16, 0, 0, 72, "aarch64", "2026-08-22"),
            "aws/aws-parallelcluster#6930 and NVIDIA/aicr#1256; disk count and GPU memory have no public source",
            network_cards=17,
            gpus_by_socket=(2, 2),
            split_source=_CAPTURE,
        ),
    )
}


def _nothing() -> Mapping[str, InstanceType]:
    return {}


#: Returns the rows that the site fetched from EC2; called at most once, when a type is looked up that has no row here.
source: Callable[[], Mapping[str, InstanceType]] = _nothing

_asked: tuple[Callable[[], Mapping[str, InstanceType]], Mapping[str, InstanceType]] = (_nothing, {})

#: EC2's names of types for training begin so: what the gate and the burn-in treat as a node that trains.
TRAINING = "p"


def find(name: str) -> InstanceType | None:
    """Return the row of an instance type for training, ours or the site's, or None where there is none."""
    row = CATALOGUE.get(name)
    return row if row is not None or not name.startswith(TRAINING) else _of_site(name)


def with_gpus(name: str) -> InstanceType | None:
    """Return the row of any instance type with NVIDIA GPUs, ours or the site's, or None where there is none."""
    row = CATALOGUE.get(name)
    return row if row is not None else _of_site(name)


def _of_site(name: str) -> InstanceType | None:
    global _asked
    if not name:
        return None
    if _asked[0] is not source:
        _asked = (source, source())
    return _asked[1].get(name)


class HostShape(NamedTuple):
    """What one instance of a type has beside GPUs. None: no public source. Memory in MiB, NVMe in GB per disk."""

    vcpus: int
    threads_per_core: int
    memory_mib: int
    nvme_count: int | None
    nvme_gb: int
    sockets: int | None = None


#: Types that are no burn-in targets, but run beside them: vCPUs, threads per core, MiB, local disks and GB of each.
#: Same source and date as above.
_HOSTS: dict[str, tuple[int, int, int, int, int]] = {
    "p3dn.24xlarge": (96, 2, 786_432, 2, 900),
    "g4dn.xlarge": (4, 2, 16_384, 1, 125),
    "g4dn.2xlarge": (8, 2, 32_768, 1, 225),
    "g4dn.4xlarge": (16, 2, 65_536, 1, 225),
    "g4dn.8xlarge": (32, 2, 131_072, 1, 900),
    "g4dn.12xlarge": (48, 2, 196_608, 1, 900),
    "g4dn.16xlarge": (64, 2, 262_144, 1, 900),
    "g4dn.metal": (96, 2, 393_216, 2, 900),
    "g5.xlarge": (4, 2, 16_384, 1, 250),
    "g5.2xlarge": (8, 2, 32_768, 1, 450),
    "g5.4xlarge": (16, 2, 65_536, 1, 600),
    "g5.8xlarge": (32, 2, 131_072, 1, 900),
    "g5.12xlarge": (48, 2, 196_608, 1, 3800),
    "g5.16xlarge": (64, 2, 262_144, 1, 1900),
    "g5.24xlarge": (96, 2, 393_216, 1, 3800),
    "g5.48xlarge": (192, 2, 786_432, 2, 3800),
    "g6.xlarge": (4, 2, 16_384, 1, 250),
    "g6.2xlarge": (8, 2, 32_768, 1, 450),
    "g6.4xlarge": (16, 2, 65_536, 1, 600),
    "g6.8xlarge": (32, 2, 131_072, 2, 450),
    "g6.12xlarge": (48, 2, 196_608, 4, 940),
    "g6.16xlarge": (64, 2, 262_144, 2, 940),
    "g6.24xlarge": (96, 2, 393_216, 4, 940),
    "g6.48xlarge": (192, 2, 786_432, 8, 940),
    "g6e.xlarge": (4, 2, 32_768, 1, 250),
    "g6e.2xlarge": (8, 2, 65_536, 1, 450),
    "g6e.4xlarge": (16, 2, 131_072, 1, 600),
    "g6e.8xlarge": (32, 2, 262_144, 2, 450),
    "g6e.12xlarge": (48, 2, 393_216, 2, 1900),
    "g6e.16xlarge": (64, 2, 524_288, 2, 950),
    "g6e.24xlarge": (96, 2, 786_432, 2, 1900),
    "g6e.48xlarge": (192, 2, 1_572_864, 4, 1900),
    "g7e.8xlarge": (32, 2, 262_144, 1, 1900),
    "g7e.12xlarge": (48, 2, 524_288, 1, 3800),
    "g7e.24xlarge": (96, 2, 1_048_576, 2, 3800),
    "g7e.48xlarge": (192, 2, 2_097_152, 4, 3800),
    "hpc6a.48xlarge": (96, 1, 393_216, 0, 0),
    "hpc6id.32xlarge": (64, 1, 1_048_576, 4, 3800),
    "hpc7a.96xlarge": (192, 1, 786_432, 0, 0),
    "hpc7g.16xlarge": (64, 1, 131_072, 0, 0),
    "trn1.32xlarge": (128, 2, 524_288, 4, 1900),
    "trn2.48xlarge": (192, 2, 2_097_152, 4, 1900),
}


def host(name: str) -> HostShape | None:
    """Return the processors, memory and local disks of an instance type, or None where no table has it."""
    row = find(name)
    if row is not None:
        # In a row, 0 is a figure that no source gives.
        disks, sockets = row.nvme_count or None, row.sockets or None
        return HostShape(row.vcpus, row.threads_per_core, row.memory_mib, disks, row.nvme_gb, sockets)
    return HostShape(*_HOSTS[name]) if name in _HOSTS else None


def has_nvswitch(name: str) -> bool | None:
    """Return whether NVSwitches inside one instance join its GPUs, None where the type is not known."""
    row = find(name)
    if row is not None:
        return row.gpus >= 8 and row.nvlink_domain_gpus == row.gpus if row.nvlink_domain_gpus else None
    return False if name in _HOSTS else None


def has_shared_nvlink(name: str) -> bool | None:
    """Return whether one NVLink domain spans several instances, None where the type is not known."""
    row = find(name)
    if row is not None:
        return row.nvlink_domain_gpus > row.gpus if row.nvlink_domain_gpus else None
    return False if name in _HOSTS else None
