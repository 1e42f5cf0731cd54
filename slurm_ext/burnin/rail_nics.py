"""Which network devices of a node belong to a GPU: those that sit nearest to it on PCI Express, as sysfs shows it.

NCCL numbers a plugin's devices and never names them. Where a virtual machine shows no tree (all of them equally near), nobody
is named: a wrong name would send people to the wrong card.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from slurm_ext.patterns import pattern

_ADDRESS = pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def near(root: str, pci: str) -> tuple[str, ...]:
    """Return the names of the devices nearest to the GPU at a PCI address, below `root`; none where sysfs does not tell."""
    if not _ADDRESS.fullmatch(pci):
        return ()
    gpu = os.path.join(root, "sys/bus/pci/devices", pci)
    folder = os.path.join(root, "sys/class/infiniband")
    try:
        places = {name: os.path.join(folder, name, "device") for name in os.listdir(folder)}
    except OSError:
        return ()
    if not os.path.exists(gpu):
        return ()
    return nearest(os.path.realpath(gpu), {name: os.path.realpath(place) for name, place in places.items()})


def nearest(gpu: str, devices: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices whose places in the tree share most with the GPU's; none where all share the same. Pure."""
    shared = {name: _shared(gpu, place) for name, place in devices.items()}
    most = max(shared.values(), default=0)
    found = tuple(sorted(name for name, length in shared.items() if length == most))
    return found if len(found) < len(devices) else ()


def _shared(one: str, other: str) -> int:
    """Return how many folders two paths share from the root on."""
    pairs = zip(one.split("/"), other.split("/"), strict=False)
    return next((count for count, (a, b) in enumerate(pairs) if a != b), min(one.count("/"), other.count("/")) + 1)
