"""The simulated EFA devices of one node: sysfs, /dev, the PCI bus, and what the EFA installer leaves. Healthy, as on a p5."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_ext.aws.catalogue import InstanceType

#: EFA's counters per port (kernel driver efa, efa_verbs.c) that a health check reads.
_PORT_COUNTERS = (
    *("tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops", "rdma_read_wr_err", "rdma_write_wr_err"),
    *("retrans_bytes", "retrans_pkts", "retrans_timeout_events"),
    *("unresponsive_remote_events", "impaired_remote_conn_events"),
)
_EFA_FACTS = {
    "node_type": "7: unspecified",
    "fw_ver": "0.0.0.0",  # noqa: S104  the driver's constant, no address
    "device/vendor": "0x1d0f",
    "device/device": "0xefa2",
    "device/p2p": "NVIDIA",
    "ports/1/state": "4: ACTIVE",
    "ports/1/phys_state": "5: LinkUp",
    "ports/1/link_layer": "Unspecified",
    "ports/1/rate": "100 Gb/sec (4X EDR)",
    **{f"hw_counters/{name}": "108" for name in ("submitted_cmds", "completed_cmds")},
    "hw_counters/keep_alive_rcvd": "87",
    **{f"hw_counters/{name}": "0" for name in ("cmds_err", "no_completion_cmds", "alloc_pd_err", "create_qp_err")},
    **{f"hw_counters/{name}": "0" for name in ("create_cq_err", "reg_mr_err", "mmap_err")},
}

#: What the EFA installer writes down, of release 1.50 (docs.aws.amazon.com efa-changelog).
_EFA_PACKAGES = """# EFA installer version: 1.50.0
# Debug packages installed: no
# Packages installed:
efa_3.3.0-1 libfabric1-aws_2.6.0amzn1.0 libnccl-ofi_1.21.1-1
"""

#: Lists what sysfs has, in the form of libfabric's util/info.c.
_FI_INFO = """#!/bin/sh
root=${0%/opt/amazon/efa/bin/fi_info}
found=
for device in "$root"/sys/class/infiniband/*; do
    [ -d "$device" ] || continue
    found=1
    for fabric in efa-direct efa; do
        printf 'provider: efa\\n    fabric: %s\\n    domain: %s-rdm\\n' "$fabric" "${device##*/}"
        printf '    version: 203.10\\n    type: FI_EP_RDM\\n    protocol: FI_PROTO_EFA\\n'
    done
done
[ -n "$found" ] && exit 0
echo 'fi_getinfo: -61 (No data available)' >&2
exit 61
"""


def build(root: Path, row: InstanceType) -> None:
    """Make the EFA devices of a type below `root`."""
    if row.efa_devices:
        _plain(root / "sys/module/efa/version", "3.3.0g\n")
        _plain(root / "opt/amazon/efa_installed_packages", _EFA_PACKAGES)
        tool = root / "opt/amazon/efa/bin/fi_info"
        _plain(tool, _FI_INFO)
        tool.chmod(0o755)
    same: dict[str, Path] = {}
    for index in range(row.efa_devices):
        # rdmap<bus>s<slot>: four devices on each of the buses beside the GPUs, as on a p5.
        device = root / f"sys/class/infiniband/rdmap{79 + 17 * (index // 4)}s{index % 4}"
        for folder in ("device", "hw_counters", "ports/1/hw_counters"):
            (device / folder).mkdir(parents=True)
        for name, value in {**_EFA_FACTS, "device/numa_node": str(index * 2 // row.efa_devices)}.items():
            _shared(device / name, value + "\n", same)
        for name in _PORT_COUNTERS:
            _plain(device / "ports/1/hw_counters" / name, "0\n")
        address = f"0000:{79 + 17 * (index // 4):02x}:{index % 4:02x}.0"
        function = root / f"sys/bus/pci/devices/{address}"
        function.mkdir(parents=True)
        for name in ("vendor", "device", "numa_node"):
            os.link(device / "device" / name, function / name)
        (root / "sys/bus/pci/drivers/efa").mkdir(parents=True, exist_ok=True)
        _shared(root / f"sys/bus/pci/drivers/efa/{address}", "", same)
        verbs = root / f"sys/class/infiniband_verbs/uverbs{index}"
        verbs.mkdir(parents=True)
        _shared(verbs / "ibdev", device.name + "\n", same)
        (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
        _shared(root / f"dev/infiniband/uverbs{index}", "", same)


def _shared(path: Path, text: str, same: dict[str, Path]) -> None:
    """Make a file that no fault changes as one more name of an equal one: a thousand files a node cost seconds."""
    if text in same:
        os.link(same[text], path)
    else:
        path.write_text(text)
        same[text] = path


def _plain(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
