"""Faults that change what the simulated hardware of a node answers: GPUs, NCCL, clock."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_ext.lab import hardware
from slurm_ext.lab.fault_site import Site

#: What the driver writes after `NVRM: Xid (PCI:...): `, for the codes a rehearsal needs; forms as in NVIDIA's Xid catalogue.
XID_TEXTS: Mapping[int, str] = {
    13: "pid={pid}, name=python3, Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out Of Range Address",
    31: "pid={pid}, name=python3, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted",
    43: "pid={pid}, name=python3, Ch 00000010",
    45: "pid={pid}, name=python3, Ch 00000010",
    48: "pid='<unknown>', name=<unknown>, DBE (double bit error): volatile",
    63: "pid='<unknown>', name=<unknown>, Row Remapper: New row (0x00000002eebc4100) marked for remapping",
    64: "pid='<unknown>', name=<unknown>, Row Remapper Error: (0x00000002eebc4100) - All reserved rows for bank are remapped",
    74: "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 4(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    79: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    94: "pid={pid}, name=python3, Ch 00000008",
    95: "pid='<unknown>', name=<unknown>, Uncontained: FBHUB. RST: Yes, D-RST: No",
    109: "pid={pid}, name=python3, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005",
    119: "pid='<unknown>', name=<unknown>, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
}


def gpu_xid(site: Site) -> str:
    gpu, xid = site.gpu(), int(site.options.get("xid") or 79)
    address = hardware.pci_address(gpu)[:-2]
    text = XID_TEXTS.get(xid, "pid='<unknown>', name=<unknown>").format(pid=4242)
    hardware.kernel_says(site.root, f"NVRM: Xid (PCI:{address}): {xid}, {text}")
    if xid == 79:
        hardware.kernel_says(site.root, f"NVRM: GPU {address}.0: GPU has fallen off the bus.")
        site.set(**{f"gpu__{gpu}__lost": "1"})
    return f"GPU {gpu} ({address}): Xid {xid} in the kernel log" + (", and the GPU is lost" if xid == 79 else "")


def ecc(site: Site) -> str:
    gpu, count = site.gpu(), int(site.options.get("count") or 2)
    site.set(**{f"gpu__{gpu}__ecc_uncorrected": str(count)})
    return f"GPU {gpu}: {count} uncorrected ECC errors"


def gpu_lost(site: Site) -> str:
    gpu = site.gpu()
    site.set(**{f"gpu__{gpu}__lost": "1"})
    return f"GPU {gpu} answers no more; the kernel log is silent about it"


def heal_gpu(site: Site) -> str:
    """A lost GPU comes back with a reboot only: the node gets a new boot id, an empty kernel log and whole GPUs."""
    state = hardware.read_state(site.root)
    broken = re.compile(r"gpu\.\d+\.(lost|ecc_uncorrected)")
    hardware.write_state(site.root, {key: value for key, value in state.items() if not broken.fullmatch(key)})
    hardware.reboot(site.root)
    return "all GPUs are whole, as after a reboot (new boot id, fresh kernel log); slurmd ran on"


def clock_unsync(site: Site) -> str:
    """The clock has lost its time service, by several seconds."""
    hardware.write_clock(site.root, synchronised=False)
    return "chronyc says: not synchronised, 4.2 s slow"


def heal_clock(site: Site) -> str:
    """The clock follows its time service."""
    hardware.write_clock(site.root, synchronised=True)
    return "the clock is synchronised"
