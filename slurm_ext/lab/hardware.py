"""The simulated hardware of one node: its file trees under a root, and the state that the stand-in libraries read.

`hardware.env` (`key=value` lines) is what the C stand-ins and nvidia-smi read on every call, `hardware.json` the same for
Python. Both are replaced whole, so a reader never sees half a fault. Values are typical of the type, not measured.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.lab import hardware_efa, hardware_host

STATE = "etc/fmslurm-lab/hardware.env"
KERNEL_LOG = "var/log/kmsg.log"
CHRONY = "etc/fmslurm-lab/chronyc-tracking.txt"
BOOT_ID = "proc/sys/kernel/random/boot_id"
DRIVER = "570.133.20"

#: PCI buses of the eight GPUs of a p5.48xlarge, as its kernel logs show them; four of them where a type has four.
_GPU_BUSES = (0x53, 0x64, 0x75, 0x86, 0x97, 0xA8, 0xB9, 0xCA)

_CLOCK = """Reference ID    : A9FEA97B (169.254.169.123)
Stratum         : {stratum}
Ref time (UTC)  : {time}
System time     : {offset} seconds slow of NTP time
Last offset     : -0.000000922 seconds
RMS offset      : 0.000002110 seconds
Frequency       : 3.211 ppm slow
Residual freq   : -0.001 ppm
Skew            : 0.012 ppm
Root delay      : 0.000412110 seconds
Root dispersion : 0.000101220 seconds
Update interval : 16.1 seconds
Leap status     : {leap}
"""


def pci_address(gpu: int) -> str:
    """Return the PCI address of GPU `gpu`, as nvidia-smi prints it in the kernel's short form."""
    return f"0000:{_GPU_BUSES[gpu]:02x}:00.0"


def initial_state(row: InstanceType, node: str, instance_id: str) -> dict[str, str]:
    """Return hardware.env of a healthy node."""
    state = {
        "type": row.name,
        "node": node,
        "instance_id": instance_id,
        "gpus": str(row.gpus),
        "gpu_type": row.gpu_type,
        "gpu_memory_mib": str(row.gpu_memory_mib),
        "efa": str(row.efa_devices),
        "driver": DRIVER,
    }
    for gpu in range(row.gpus):
        state[f"gpu.{gpu}.pci"] = pci_address(gpu)
    return state


def read_state(root: Path) -> dict[str, str]:
    """Return a node's hardware.env."""
    lines = (root / STATE).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def write_state(root: Path, state: Mapping[str, str]) -> None:
    """Replace hardware.env and hardware.json, each whole."""
    path = root / STATE
    _replace(path, "".join(f"{key}={value}\n" for key, value in state.items()))
    _replace(path.with_suffix(".json"), json.dumps(state, indent=1) + "\n")


def kernel_says(root: Path, text: str, *, priority: int = 4) -> None:
    """Append one record to the node's kernel log in /dev/kmsg's form: priority,sequence,microseconds since boot,flag;text."""
    path = root / KERNEL_LOG
    sequence = path.read_bytes().count(b"\n")
    stamp = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        os.write(descriptor, f"{priority},{sequence},{stamp},-;{text}\n".encode())
    finally:
        os.close(descriptor)


def write_clock(root: Path, *, synchronised: bool) -> None:
    """Write what `chronyc tracking` would print: disciplined by Amazon's time service, or by nobody."""
    text = _CLOCK.format(
        stratum=4 if synchronised else 0,
        time=time.strftime("%a %b %d %H:%M:%S %Y", time.gmtime()) if synchronised else "Thu Jan 01 00:00:00 1970",
        offset="0.000001183" if synchronised else "4.217334902",
        leap="Normal" if synchronised else "Not synchronised",
    )
    _replace(root / CHRONY, text)


def reboot(root: Path) -> None:
    """Give the node a new boot id and a kernel log that starts anew."""
    _replace(root / BOOT_ID, Path("/proc/sys/kernel/random/uuid").read_text())
    _replace(root / KERNEL_LOG, "")
    row = read_state(root)
    texts = ["Linux version 6.8.0-1031-aws (simulated by fmslurm lab)"]
    texts.append(f"DMI: Amazon EC2 {row['type']}/, BIOS 1.0 10/16/2017")
    if row["gpus"] != "0":
        texts.append(f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {row['driver']}  Release Build")
    for text in texts:
        kernel_says(root, text, priority=6)


def build_root(root: Path, row: InstanceType, node: str, instance_id: str, mounts: Mapping[str, str]) -> None:
    """Make a healthy node's tree below `root`. `mounts` maps a mount point to the file system type it plays."""
    write_state(root, initial_state(row, node, instance_id))
    write_clock(root, synchronised=True)
    dmi = root / "sys/class/dmi/id"
    for name, value in (
        ("product_name", row.name),
        ("sys_vendor", "Amazon EC2"),
        ("board_asset_tag", instance_id),
    ):
        _plain(dmi / name, value + "\n")
    devices = {"lustre": "198.18.255.254@tcp:/fsxlab", "xfs": "/dev/md0"}
    lines = ["/dev/nvme0n1p1 / xfs rw,relatime 0 0"]
    lines += [f"{devices.get(kind, kind)} {point} {kind} rw,relatime 0 0" for point, kind in mounts.items()]
    _plain(root / "proc/self/mounts", "\n".join(lines) + "\n")
    hardware_host.build(root, row, mounts)
    hardware_efa.build(root, row)
    reboot(root)


def _plain(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _replace(path: Path, text: str) -> None:
    # Whole or not at all; no fsync, since a lab does not outlive a power cut.
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)
