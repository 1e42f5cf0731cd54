"""The simulated node beside its GPUs and EFA devices: processors, memory, disks, mounts, services and Lustre, all well.

`healthy` is the whole tree as texts. Many of them are equal, and a file that is equal to one before it becomes one more name of
it: a fault must replace a file, never write into it. Values are typical of the type, not measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from slurm_ext.aws import catalogue
from slurm_ext.aws.catalogue import InstanceType

#: Name of the file system, and its targets: one for metadata, four for data.
FILE_SYSTEM = "fsxlab"
TARGETS = (("mdc", "MDT0000"), *(("osc", f"OST{number:04x}") for number in range(4)))
SERVER = "198.18.255.254@tcp"

#: What all clients of one mount have in common in their names: the kernel's address of its super block.
CLIENT = "ffff8f3a41d2c000"

STORE_MODEL = "Amazon EC2 NVMe Instance Storage"
EBS_MODEL = "Amazon Elastic Block Store"
_GIB = 1 << 30

_STATE = """current_state: {state}
state_history:
 - [ {since}, CONNECTING ]
 - [ {since}, FULL ]
"""
_IMPORT = """import:
    name: {name}
    target: {target}
    state: {state}
    connect_flags: [ version, acl, inode_bit_locks, adaptive_timeouts, lru_resize, full20, layout_lock ]
    import_flags: [ replayable, pingable, connect_tried ]
    connection:
       failover_nids: [ {server} ]
       current_connection: {server}
       connection_attempts: 1
       generation: 1
       in-progress_invalidations: 0
    rpcs:
       inflight: 0
       unregistering: 0
       timeouts: 0
       avg_waittime: 408 usec
"""
_NIS = """nid                      status alive refs peer  rtr   max    tx   min
0@lo                         up     0    2    0    0     0     0     0
198.18.0.9@tcp               up    -1    1    8    0   256   256   248
"""

#: Any moment will do: connections of a healthy node are older than its jobs.
SINCE_S = 1_760_000_000


def build(root: Path, row: InstanceType, mounts: Mapping[str, str]) -> None:
    """Write the tree below `root`. `mounts` maps a mount point to the file system type it plays."""
    same: dict[str, Path] = {}
    made: set[Path] = set()
    for name, text in healthy(row, mounts).items():
        path = root / name
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        if text in same:
            os.link(same[text], path)
        else:
            path.write_text(text)
            same[text] = path


def healthy(row: InstanceType, mounts: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a healthy node of a type, by path without a leading slash."""
    return {
        **_host(row),
        **_disks(row),
        **_mounts(mounts),
        **_lab(row),
        **(_lustre() if "lustre" in mounts.values() else {}),
    }


def _host(row: InstanceType) -> dict[str, str]:
    system = "sys/devices/system"
    total_kb = int(row.memory_mib * 1024 * 0.985)
    memory = {
        "MemTotal": total_kb,
        "MemFree": int(total_kb * 0.96),
        "MemAvailable": int(total_kb * 0.97),
        "Cached": int(total_kb * 0.01),
        "SwapTotal": 0,
        "SwapFree": 0,
        "Shmem": 10_240,
        "HardwareCorrupted": 0,
    }
    lines = [f"{name + ':':16}{value:>12} kB" for name, value in memory.items()]
    lines += ["HugePages_Total:       0", "HugePages_Free:        0", "Hugepagesize:       2048 kB"]
    return {
        "proc/meminfo": "\n".join(lines) + "\n",
        "proc/loadavg": "0.08 0.03 0.01 1/2104 41234\n",
        "proc/interrupts": "           CPU0       CPU1\nMCE:          0          0   Machine check exceptions\n",
        f"{system}/cpu/online": f"0-{row.vcpus - 1}\n",
        f"{system}/cpu/present": f"0-{row.vcpus - 1}\n",
        f"{system}/cpu/offline": "\n",
        f"{system}/node/online": "0\n" if row.sockets == 1 else f"0-{row.sockets - 1}\n",
        f"{system}/edac/mc/mc0/ce_count": "0\n",
        f"{system}/edac/mc/mc0/ue_count": "0\n",
        f"{system}/clocksource/clocksource0/current_clocksource": "tsc\n"
        if row.arch == "x86_64"
        else "arch_sys_counter\n",
    }


def _disks(row: InstanceType) -> dict[str, str]:
    files: dict[str, str] = {}
    for number in range(row.nvme_count + 1):  # the first one is the root volume
        model, size = (STORE_MODEL, row.nvme_gb * 10**9) if number else (EBS_MODEL, 200 * _GIB)
        files |= {
            f"sys/class/nvme/nvme{number}/model": f"{model:40}\n",
            f"sys/class/nvme/nvme{number}/state": "live\n",
            f"sys/block/nvme{number}n1/size": f"{size // 512}\n",
            f"sys/block/nvme{number}n1/ro": "0\n",
        }
    arrays = "Personalities : [raid0]\n"
    if row.nvme_count > 1:
        members = " ".join(f"nvme{number}n1[{number - 1}]" for number in range(row.nvme_count, 0, -1))
        blocks = row.nvme_count * row.nvme_gb * 10**9 // 1024
        arrays += f"md0 : active raid0 {members}\n      {blocks} blocks super 1.2 512k chunks\n\n"
    return {**files, "proc/mdstat": arrays + "unused devices: <none>\n"}


def _mounts(mounts: Mapping[str, str]) -> dict[str, str]:
    lines = [
        "22 27 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:5 - proc proc rw",
        "25 24 0:23 / /dev/shm rw,nosuid,nodev shared:3 - tmpfs tmpfs rw,size=98566144k",
        "27 1 259:1 / / rw,relatime shared:1 - xfs /dev/nvme0n1p1 rw,attr2,inode64,logbufs=8",
        "40 27 7:0 / /snap/core/1 ro,nodev,relatime shared:20 - squashfs /dev/loop0 ro,errors=continue",
    ]
    wanted = ["UUID=5f0c8d1e / xfs defaults,noatime 1 1"]
    for number, (point, kind) in enumerate(mounts.items(), 50):
        device = {"lustre": f"{SERVER}:/{FILE_SYSTEM}", "xfs": "/dev/md0"}.get(kind, kind)
        name = point.replace(" ", "\\040")
        lines.append(f"{number} 27 0:{number} / {name} rw,relatime shared:{number} - {kind} {device} rw,seclabel")
        wanted.append(f"{device} {name} {kind} defaults,nofail 0 0")
    return {"proc/self/mountinfo": "\n".join(lines) + "\n", "etc/fstab": "\n".join(wanted) + "\n"}


def _lab(row: InstanceType) -> dict[str, str]:
    """Return what a simulated node cannot be asked for, since it shares the host's: space and services."""
    plenty = [200 * _GIB, 150 * _GIB, 100_000_000, 99_000_000]
    shm = row.memory_mib * (1 << 19)
    space = {"/": plenty, "/dev/shm": [shm, shm, 1_000_000, 999_990]}  # noqa: S108 (a name in a table)
    units = {
        "munge": "active",
        "chronyd": "active",
        "nvidia-persistenced": "active" if row.gpus else "",
        "nvidia-dcgm": "",
    }
    units["nvidia-fabricmanager"] = "active" if catalogue.has_nvswitch(row.name) else ""
    units["nvidia-imex"] = "active" if catalogue.has_shared_nvlink(row.name) else ""
    blocks = []
    for name, state in units.items():
        words = ("loaded", state, "running", "enabled") if state else ("not-found", "inactive", "dead", "")
        told = zip(("LoadState", "ActiveState", "SubState", "UnitFileState"), words, strict=True)
        blocks.append("\n".join([f"Id={name}.service", "Result=success", *(f"{key}={word}" for key, word in told)]))
    return {
        "etc/fmslurm-lab/space.json": json.dumps(space) + "\n",
        "etc/fmslurm-lab/systemctl-show.txt": "\n\n".join(blocks) + "\n",
    }


def _lustre() -> dict[str, str]:
    files = {"sys/fs/lustre/health_check": "healthy\n", "sys/kernel/debug/lnet/nis": _NIS}
    for kind, target in TARGETS:
        files |= connection(kind, f"{FILE_SYSTEM}-{target}-{kind}-{CLIENT}", f"{FILE_SYSTEM}-{target}_UUID")
    return files | connection("mgc", f"MGC{SERVER}", "MGS")


def connection(kind: str, name: str, target: str, state: str = "FULL", since_s: int = SINCE_S) -> dict[str, str]:
    """Return the files of one of Lustre's connections in some state."""
    folder = f"proc/fs/lustre/{kind}/{name}"
    told = {"name": name, "target": target, "state": state, "server": SERVER, "since": since_s}
    return {
        f"{folder}/state": _STATE.format(**told),
        f"{folder}/import": _IMPORT.format(**told),
        **({f"{folder}/active": "1\n"} if kind != "mgc" else {}),
    }
