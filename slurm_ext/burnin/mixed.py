"""Whether the nodes of one job have the same drivers, VBIOS and kernel: told, and never held against a node.

Images roll through a fleet, so that two cohorts are normal there; inside of one job two NVIDIA drivers are worth a warning, since
NVIDIA tests a release with itself. Two VBIOS of one board are common and only noted, and so are two kernels or EFA drivers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from slurm_ext.burnin.proof import Judged
from slurm_ext.verdict import PASS, WARN, Finding

#: How these findings begin; a note of them is kept beside a verdict that it does not change.
NOTED = "burnin.mixed-"

_GPUS_MAX = 64
_FILE_BYTES = 4096


def installed(root: str) -> dict[str, str]:
    """Return what the kernel's and the drivers' own files say: their releases, and the VBIOS of the GPUs."""
    found = {}
    words = _text(os.path.join(root, "proc/driver/nvidia/version")).split("\n", 1)[0].split()
    if driver := next((word for word in words if word.replace(".", "").isdecimal() and "." in word), ""):
        found["driver"] = driver
    folder = os.path.join(root, "proc/driver/nvidia/gpus")
    try:
        names = os.listdir(folder)[:_GPUS_MAX]
    except OSError:
        names = []
    vbios = set()
    for name in names:
        for line in _text(os.path.join(folder, name, "information")).splitlines():
            label, _, value = line.partition(":")
            if label.strip() == "Video BIOS" and value.strip() and "?" not in value:
                vbios.add(value.strip()[:40])
    if vbios:
        found["vbios"] = " ".join(sorted(vbios))
    for key, name in (("kernel", "proc/sys/kernel/osrelease"), ("efa_driver", "sys/module/efa/version")):
        if said := _text(os.path.join(root, name)).strip()[:80]:
            found[key] = said
    return found


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(_FILE_BYTES)
    except OSError:
        return ""


def findings(facts: Mapping[str, Mapping[str, Any]]) -> list[Judged]:
    """Return what differs between nodes, by what each said of itself. One that said nothing differs from nobody. Pure."""
    items = []
    for id_, key, what, word in (
        ("burnin.mixed-driver", "driver", "drivers", WARN),
        ("burnin.mixed-vbios", "vbios", "VBIOS", PASS),
        ("burnin.mixed-kernel", "kernel", "kernels", PASS),
        ("burnin.mixed-efa-driver", "efa_driver", "EFA drivers", PASS),
    ):
        cohorts: dict[str, list[str]] = {}
        for node, fact in facts.items():
            value = fact.get(key)
            if isinstance(value, str) and value:
                cohorts.setdefault(value, []).append(node)
        if len(cohorts) < 2:
            continue
        ordered = sorted(cohorts.items(), key=lambda item: (-len(item[1]), item[0]))
        said = "; ".join(f"{value} on {_some(nodes)}" for value, nodes in ordered[:3])
        action = "warn" if word == WARN else "none"
        line = f"the job's nodes have different {what}: {said}"
        items.append(Judged(Finding(id_, "node", action, (line,)), word))
    return items


def _some(nodes: list[str]) -> str:
    return f"{len(nodes)} nodes" if len(nodes) > 2 else " and ".join(sorted(nodes))
