"""How many NVIDIA GPUs an EC2 type has, where the catalogue of training types has no row, and what a GPU is. Standard library only.

Source: AWS, "Amazon EC2 instance types", accelerated computing (docs.aws.amazon.com/ec2/latest/instancetypes/ac.html), and
DescribeInstanceTypes (GpuInfo) as published in getmoto/moto moto/ec2/resources/instance_types.json. Checked on 2026-11-30.
Types with a part of a GPU (g6f, gr6f) and with GPUs of other makers (g4ad) are left out: what is not here is not known.
"""

from __future__ import annotations

from collections.abc import Mapping

#: family:size=count ...; sizes of these families that are not named have one GPU.
_COUNTS = (
    "g3:16xlarge=4,8xlarge=2 g3s: g4dn:12xlarge=4,metal=8 g5:12xlarge=4,24xlarge=4,48xlarge=8 g5g:16xlarge=2,metal=2"
    " g6:12xlarge=4,24xlarge=4,48xlarge=8 gr6: g6e:12xlarge=4,24xlarge=4,48xlarge=8"
    " g7e:12xlarge=2,24xlarge=4,48xlarge=8 p2:16xlarge=16,8xlarge=8 p3:16xlarge=8,8xlarge=4 p3dn:24xlarge=8"
)


#: Types with GPUs that are not NVIDIA's.
_OTHER_MAKERS = ("g4ad.",)

#: NVLinks of one GPU in a machine with NVSwitch, by gres type. Source: NVIDIA data sheets, `nvidia-smi nvlink -s`.
NVLINKS: Mapping[str, int] = {"a100": 12, "h100": 18, "h200": 18, "b200": 18, "b300": 18, "gb200": 18}

#: GPUs whose NVSwitches do multicast (NVLink SHARP), by gres type: from Hopper on (NCCL's user guide, NCCL_NVLS_ENABLE).
WITH_MULTICAST = ("h100", "h200", "b200", "b300", "gb200")


def of_another_maker(name: str) -> bool:
    """Say whether a type has GPUs that are not NVIDIA's."""
    return name.startswith(_OTHER_MAKERS)


def gpu_count(name: str) -> int | None:
    """Return how many GPUs an instance type has, 0 for families without any, None where that is not known."""
    family, dot, size = name.partition(".")
    if not dot or not size:
        return None
    for word in _COUNTS.split():
        known, _, sizes = word.partition(":")
        if known == family:
            counts = dict(one.split("=") for one in sizes.split(",") if one)
            return int(counts.get(size, "1"))
    # EC2 names its types with GPUs p and g; all others have none, or accelerators that NVIDIA's tools do not see.
    return None if family.startswith(("p", "g")) else 0
