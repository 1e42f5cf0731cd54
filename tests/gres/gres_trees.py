"""Nodes' own trees for tests: device files, the driver's /proc and sysfs of a machine with so many GPUs at each socket."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def tree(
    root: Path,
    *,
    kind: str = "p5.48xlarge",
    model: str = "NVIDIA H100 80GB HBM3",
    sockets: int = 2,
    cores: int = 48,
    threads: int = 2,
    numa_of: tuple[int, ...] = (0, 0, 0, 0, 1, 1, 1, 1),
    memory_nodes: int = 0,
    packages: tuple[int, ...] = (),
    numa_per_socket: int = 1,
) -> Path:
    """Make the tree of one node. `numa_of`: the NUMA node of each GPU, by device number; `packages`: the sockets' ids."""

    def write(path: str, text: str) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")

    write("sys/class/dmi/id/product_name", kind)
    (root / "dev").mkdir(parents=True)
    for number, numa in enumerate(numa_of):
        bus = f"0000:{0x53 + 0x11 * number:02x}:00.0"
        write(
            f"proc/driver/nvidia/gpus/{bus}/information",
            f"Model: \t\t {model}\nIRQ:   \t\t 200\nGPU UUID: \t GPU-1\nDevice Minor: \t {number}\nGPU Excluded:\t No",
        )
        write(f"sys/bus/pci/devices/{bus}/numa_node", str(numa))
        os.mknod(root / f"dev/nvidia{number}", 0o666 | stat.S_IFCHR, os.makedev(195, number))
    for socket in range(sockets):
        members = []
        for core in range(cores):
            for thread in range(threads):
                cpu = thread * sockets * cores + socket * cores + core
                members.append(cpu)
                write(
                    f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id",
                    str((packages or range(sockets))[socket]),
                )
                write(f"sys/devices/system/cpu/cpu{cpu}/topology/core_id", str(core))
        for part in range(numa_per_socket):
            of_part = [cpu for cpu in members if cpu % cores * numa_per_socket // cores == part]
            node = socket * numa_per_socket + part
            write(f"sys/devices/system/node/node{node}/cpulist", ",".join(map(str, sorted(of_part))))
    nodes = sockets * numa_per_socket
    for number in range(nodes, nodes + memory_nodes):
        write(f"sys/devices/system/node/node{number}/cpulist", "")
    return root
