"""Whether any table of ours has this node's instance type. Pure.

Where none has, the numbers of GPUs, EFA devices, disks, processors and memory are compared with nothing: a note, since a new
type is no fault. Without nvidia-smi it is more, since such a type may well have GPUs.
"""

from __future__ import annotations

from slurm_ext.aws import catalogue, gpu_types
from slurm_ext.gate.model import Judged, judged
from slurm_ext.patterns import pattern
from slurm_ext.verdict import UNKNOWN, WARN, one_line

#: What DMI says of the maker on EC2 (Nitro); older machines (Xen) and other clouds say something else there.
EC2_VENDOR = "Amazon EC2"

#: EC2's form: family, size (docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html).
_FORM = pattern(r"[a-z][a-z0-9-]{0,30}\.[a-z0-9-]{1,30}")


def is_known(name: str) -> bool:
    """Return whether it is known what GPUs a type has; families other than p and g have none."""
    if not _FORM.fullmatch(name):
        return False
    return catalogue.host(name) is not None or gpu_types.gpu_count(name) is not None or gpu_types.of_another_maker(name)


def judge(name: str, *, has_smi: bool) -> list[Judged]:
    """Return what an EC2 instance of this type, or of none that could be read, is to be told of."""
    if is_known(name):
        return []
    said = one_line(name, 60)
    line = f"no table of ours has the instance type {said}" if said else "the instance type cannot be read"
    items = [judged(WARN, "node.type-unknown", "node", "none", f"{line}: what it should have is compared with nothing")]
    if not has_smi:
        line = "there is no nvidia-smi here, and a type that no table has may have GPUs"
        items.append(judged(UNKNOWN, "gpu.smi-absent", "node", "none", line))
    return items
