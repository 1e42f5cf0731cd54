"""A node's /sys, /proc and /dev with EFA as a real kernel shows them: links from the classes and the bus into /sys/devices."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_ext.aws import catalogue, efa_types
from slurm_ext.config.model import Settings
from slurm_ext.gate import probe_efa, probes

PORT = (
    *("tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops", "rdma_read_wr_err", "rdma_write_wr_err"),
    *("retrans_bytes", "retrans_pkts", "retrans_timeout_events"),
    *("unresponsive_remote_events", "impaired_remote_conn_events"),
)
DEVICE = ("submitted_cmds", "completed_cmds", "cmds_err", "no_completion_cmds", "keep_alive_rcvd")
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            1024                 524288               files
Max locked memory         {soft:<20} {hard:<20} bytes
"""
FI_INFO = """#!/bin/sh
root=${0%/opt/amazon/efa/bin/fi_info}
for device in "$root"/sys/class/infiniband/*; do
  printf 'provider: efa\\n    fabric: efa\\n    domain: %s-rdm\\n    version: 203.10\\n' "${device##*/}"
  printf '    type: FI_EP_RDM\\n    protocol: FI_PROTO_EFA\\n'
done
"""


def names_of(kind, count=None):
    row = catalogue.find(kind)
    number = count if count is not None else row.efa_devices if row else efa_types.efa_devices(kind) or 0
    known = efa_types.efa_names(kind)
    return known if len(known) == number else tuple(f"rdmap{80 + 2 * at}s0" for at in range(number))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        return
    path.symlink_to(os.path.relpath(target, path.parent))


def address_of(name):
    bus, slot = name.removeprefix("rdmap").split("s")
    return f"0000:{int(bus):02x}:{int(slot):02x}.0"


class Node:
    """One node's tree, and ways to change it."""

    def __init__(self, root: Path, kind: str, count: int | None = None, gpus: int | None = None) -> None:
        self.root, self.kind, self.names = root, kind, names_of(kind, count)
        row = catalogue.find(kind)
        write(root / "sys/class/dmi/id/product_name", kind + "\n")
        write(root / "sys/class/dmi/id/board_asset_tag", "i-0123456789abcdef0\n")
        write(root / "proc/meminfo", "MemTotal: 1 kB\nHugePages_Total:    5128\nHugePages_Free:     5128\n")
        write(root / "proc/sys/kernel/osrelease", "6.8.0-1031-aws\n")
        write(root / "proc/sys/kernel/random/boot_id", "b1\n")
        write(root / "run/slurmd.pid", "812\n")
        write(root / "proc/812/comm", "slurmd\n")
        self.limit("unlimited", "unlimited")
        (root / "dev").mkdir(exist_ok=True)
        (root / "sys/module").mkdir(parents=True, exist_ok=True)
        (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
        for at in range(gpus if gpus is not None else row.gpus if row else 0):
            self.function(
                f"0000:{0x20 + at:02x}:00.0", "0x10de", "0x2330", at * 2 // max(row.gpus if row else 1, 1), "0x030200"
            )
        self.function("0000:1f:00.0", "0x10de", "0x22a3", -1, "0x068000")  # an NVSwitch
        self.netdev("ens5", 9001)
        if self.names:
            write(root / "sys/module/efa/version", "3.3.0g\n")
            (root / "sys/bus/pci/drivers/efa").mkdir(parents=True)
            (root / "sys/bus/pci/drivers/efa/module").symlink_to("../../../../module/efa")
            write(root / "opt/amazon/efa/bin/fi_info", FI_INFO)
            (root / "opt/amazon/efa/bin/fi_info").chmod(0o755)
        for at, name in enumerate(self.names):
            self.device(name, at)

    def limit(self, soft, hard):
        write(self.root / "proc/812/limits", LIMITS.format(soft=soft, hard=hard))

    def function(self, address, vendor, device, numa, kind=""):
        home = self.root / "sys/devices/pci0000:10" / address
        write(home / "vendor", vendor + "\n")
        write(home / "device", device + "\n")
        write(home / "numa_node", f"{numa}\n")
        write(home / "class", kind + "\n")
        link(self.root / "sys/bus/pci/devices" / address, home)
        return home

    def netdev(self, name, mtu):
        home = self.function(f"0000:{0x90 + len(name):02x}:05.0", "0x1d0f", "0xec20", 0)
        write(home / "net" / name / "mtu", f"{mtu}\n")
        write(home / "net" / name / "operstate", "up\n")
        if not (home / "net" / name / "device").is_symlink():
            (home / "net" / name / "device").symlink_to("../../../" + home.name)
            link(self.root / "sys/class/net" / name, home / "net" / name)

    def device(self, name, at, address=""):
        home = self.function(address or address_of(name), "0x1d0f", "0xefa2", at * 2 // max(len(self.names), 1))
        write(home / "p2p", "NVIDIA\n")
        base = home / "infiniband" / name
        for counter in DEVICE:
            write(base / "hw_counters" / counter, "0\n")
        for counter in PORT:
            write(base / "ports/1/hw_counters" / counter, "0\n")
        write(base / "ports/1/state", "4: ACTIVE\n")
        (base / "device").symlink_to("../../../" + home.name)
        link(self.root / "sys/class/infiniband" / name, base)
        link(self.root / "sys/bus/pci/drivers/efa" / home.name, home)
        verbs = home / "infiniband_verbs" / f"uverbs{at}"
        write(verbs / "ibdev", name + "\n")
        link(self.root / "sys/class/infiniband_verbs" / verbs.name, verbs)
        write(self.root / "dev/infiniband" / verbs.name, "")

    def of(self, name):
        """Return the folder of a device."""
        return (self.root / "sys/class/infiniband" / name).resolve()

    def count(self, name, **counters):
        for counter, value in counters.items():
            folder = "hw_counters" if counter in DEVICE else "ports/1/hw_counters"
            write(self.of(name) / folder / counter, f"{value}\n")

    def drop(self, name, *, bus=True, dev=True):
        """Let a device vanish from sysfs, and from the bus and /dev."""
        at = self.names.index(name)
        (self.root / "sys/class/infiniband" / name).unlink()
        (self.root / "sys/class/infiniband_verbs" / f"uverbs{at}").unlink()
        (self.root / "sys/bus/pci/drivers/efa" / address_of(name)).unlink()
        if bus:
            (self.root / "sys/bus/pci/devices" / address_of(name)).unlink()
        if dev:
            (self.root / "dev/infiniband" / f"uverbs{at}").unlink()

    def here(self, phase, **more):
        plain = Settings()
        state = self.root / "state"
        state.mkdir(exist_ok=True)
        site = plain.site._replace(
            root=str(self.root), state_dir=str(state), run_dir=str(state), prefix=str(self.root / "opt/fmslurm")
        )
        change = {key: more.pop(key) for key in ("transport", "deadline_s") if key in more}
        gate = plain.gate._replace(deadline_s=change.get("deadline_s", 10.0))
        burnin = plain.burnin._replace(transport=change.get("transport", "efa"))
        return probes.Here(str(self.root), "n0", phase, plain._replace(site=site, gate=gate, burnin=burnin), **more)

    def look(self, phase="prolog", **more):
        return probe_efa.look(self.here(phase, **more))


def said(probed):
    """Return (id, target, verdict, action) of every finding."""
    return {(i.finding.id, i.finding.target, i.verdict, i.finding.action) for i in probed.items}
