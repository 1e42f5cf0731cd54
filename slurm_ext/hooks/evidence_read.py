"""Reads what a look has not kept, for evidence: each part in a bounded child of its own, so that what hangs is missing alone.

Thin edges around the gate's own readers. Imported only where a node is convicted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from slurm_ext.command import call_all_bounded
from slurm_ext.config.model import Settings
from slurm_ext.gate.probes import PROLOG, Here
from slurm_ext.typed import Any

#: One text is cut to so many bytes; no view of a node is longer.
TEXT_BYTES = 256 << 10

#: Small files that a person or a rule of group system wants, with the role that they have there.
SYSTEM = {
    "mdstat": "proc/mdstat",
    "meminfo": "proc/meminfo",
    "load": "proc/loadavg",
    "fstab": "etc/fstab",
    "mountinfo": "proc/self/mountinfo",
}


def read_again(root: str, timeout_s: float) -> dict[str, str]:
    """Read what the look has not kept, all parts at once within `timeout_s` seconds; a part that hangs is missing."""
    works: dict[str, Callable[[], bytes]] = {
        "efa": lambda: _efa(root),
        "disks": lambda: json.dumps(_disks(root)).encode(),
        "lustre": lambda: _lustre(root),
        "instance_id": lambda: _text(root, "sys/class/dmi/id/board_asset_tag", 64),
        "driver": lambda: _text(root, "proc/driver/nvidia/version", 4096),
    }
    for role, path in SYSTEM.items():
        works[role] = lambda path=path: _text(root, path, TEXT_BYTES)  # type: ignore[misc]
    answers = call_all_bounded(works, timeout_s=timeout_s)
    found = {name: answer.decode("utf-8", "replace") for name, answer in answers.items() if answer}
    return {**found, **json.loads(found.pop("disks", "{}"))}


def _text(root: str, name: str, limit: int) -> bytes:
    try:
        descriptor = os.open(os.path.join(root, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        parts, left = [], limit
        while left > 0 and (part := stream.read(left)):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


def _efa(root: str) -> bytes:
    from slurm_ext.gate import efa_live_read

    tree = efa_live_read.read(root).tree
    plain = {path: text if isinstance(text, str) else {"error": text.error} for path, text in tree.items()}
    return json.dumps(plain, indent=0).encode()


def _disks(root: str) -> dict[str, str]:
    """Return the local disks as `lsblk -P` prints them, space as df does, and what the memory controllers counted."""
    from slurm_ext.gate import system_quick

    rows = []
    for name in sorted(os.listdir(os.path.join(root, "sys/block"))[:512]):
        if name.startswith("nvme"):
            told = {
                "NAME": name,
                "TYPE": "disk",
                "SIZE": str(int(_text(root, f"sys/block/{name}/size", 32) or b"0") * 512),
                "RO": _word(root, f"sys/block/{name}/ro"),
                "MODEL": _word(root, f"sys/class/nvme/{name.rpartition('n')[0]}/model"),
                "STATE": _word(root, f"sys/class/nvme/{name.rpartition('n')[0]}/state"),
            }
            rows.append(" ".join(f'{key}="{value}"' for key, value in told.items()))
    seen = system_quick.read(_here(root))
    df = ["Filesystem 1024-blocks Used Available Capacity Mounted on"]
    inodes = ["Filesystem Inodes IUsed IFree IUse% Mounted on"]
    for one in (*seen.spaces, *((seen.shm,) if seen.shm is not None else ())):
        sizes = f"{one.size >> 10} {one.used >> 10} {one.available >> 10} {one.used_percent:.0f}%"
        df.append(f"{one.key or '-'} {sizes} {one.path}")
        counts = f"{one.inodes} {one.inodes - one.inodes_free} {one.inodes_free} {one.inodes_percent:.0f}%"
        inodes.append(f"{one.key or '-'} {counts} {one.path}")
    return {
        **({"lsblk": "\n".join(rows) + "\n"} if rows else {}),
        **({"df": "\n".join(df) + "\n", "df_inodes": "\n".join(inodes) + "\n"} if len(df) > 1 else {}),
        **({"memory_errors": json.dumps(seen.memory_errors)} if seen.memory_errors else {}),
    }


def _word(root: str, name: str) -> str:
    return _text(root, name, 256).decode("utf-8", "replace").strip().replace('"', "")


def _lustre(root: str) -> bytes:
    """Return the state of Lustre's connections as a captured tree, nothing where none is mounted."""
    from slurm_ext.gate import lustre_live, probe_lustre

    mounts = probe_lustre.mounted(_text(root, "proc/self/mountinfo", TEXT_BYTES).decode("utf-8", "replace"))
    if not mounts:
        return b""
    here = _here(root)
    seen = probe_lustre.read(here, mounts)
    tree = lustre_live.tree(here, seen)
    plain: dict[str, Any] = {
        path: said if isinstance(said, str) else {"error": said.error} for path, said in tree.items()
    }
    return json.dumps(plain | ({"sys/kernel/debug/lnet/nis": seen.nis} if seen.nis else {}), indent=0).encode()


def _here(root: str) -> Here:
    plain = Settings()
    return Here(root, "", PROLOG, plain._replace(site=plain.site._replace(root=root)))
