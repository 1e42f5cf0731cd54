"""EC2 instance types with NVIDIA GPUs that fmslurm knows, as facts with a source for each row; what is not here is unknown.

Standard library only: the gate compares a node with its row. A figure of 0 means that no public source gives it, and
nothing is compared with it. `efa_devices` is the most the type can have: a launch template may attach fewer.
"""

from __future__ import annotations

from typing import NamedTuple

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
    nvlink_domain_gpus: int  # GPUs that one NVLink domain may span, over instances in an UltraServer
    arch: str
    checked_on: str
    source: str


#: Sockets and cores are the processors' own shape (`lscpu`), which Slurm's node line repeats.
CATALOGUE: dict[str, InstanceType] = {
    row.name: row
    for row in (
        InstanceType(
            "p4d.24xlarge", 96, 1_179_648, 2, 24, 2, 8, "a100", 40_960, 4, 8, 1000, 8, "x86_64", "2026-08-22", _EC2
        ),
        InstanceType(
            "p4de.24xlarge", 96, 1_179_648, 2, 24, 2, 8, "a100", 81_920, 4, 8, 1000, 8, "x86_64", "2026-08-22", _EC2
        ),
        InstanceType(
            "p5.4xlarge", 16, 262_144, 1, 8, 2, 1, "h100", 81_920, 1, 1, 3800, 1, "x86_64", "2026-08-22", _EC2
        ),
        InstanceType(
            "p5.48xlarge", 192, 2_097_152, 2, 48, 2, 8, "h100", 81_920, 32, 8, 3800, 8, "x86_64", "2026-08-22", _EC2
        ),
        InstanceType(
            "p5e.48xlarge", 192, 2_097_152, 2, 48, 2, 8, "h200", 144_384, 32, 8, 3800, 8, "x86_64", "2026-08-22", _EC2
        ),
        InstanceType(
            "p5en.48xlarge", 192, 2_097_152, 2, 48, 2, 8, "h200", 144_384, 16, 8, 3800, 8, "x86_64", "2026-08-22", _EC2
        ),
        InstanceType(
            "p6-b200.48xlarge",
            192,
            2_097_152,
            2,
            48,
            2,
            8,
            "b200",
            183_359,
            8,
            8,
            3800,
            8,
            "x86_64",
            "2026-08-22",
            _EC2,
        ),
        InstanceType(
            "p6-b300.48xlarge",
            192,
            4_194_304,
            2,
            48,
            2,
            8,
            "b300",
            275_040,
            16,
            8,
            3800,
            8,
            "x86_64",
            "2026-08-22",
            _EC2,
        ),
        InstanceType(
            "p6e-gb200.36xlarge",
            *(144, 983_040, 2, 72, 1, 4, "gb200", 0, 16, 0, 0, 72, "aarch64", "2026-08-22"),
            "aws/aws-parallelcluster#6930 and NVIDIA/aicr#1256; disk count and GPU memory have no public source",
        ),
    )
}


def find(name: str) -> InstanceType | None:
    """Return the row of an instance type, or None where the catalogue has none."""
    return CATALOGUE.get(name)
