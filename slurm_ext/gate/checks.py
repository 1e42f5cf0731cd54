"""All that the live gate can find, as rows for people: its own rules and every probe's. No hook imports this."""

from __future__ import annotations

from slurm_ext.gate import probes
from slurm_ext.gate.probes import EPILOG, HEALTH, PROLOG, Check

_SLOW = (EPILOG, HEALTH)
_JOB = (EPILOG,)
_SMI = "one nvidia-smi call, shared"
_LOG = "one read of the kernel's ring, shared"
_FILES = "a few small files"

#: What is found outside the probes. An id that ends in - or . is the beginning of several.
OWN: tuple[Check, ...] = (
    Check("gpu.missing", "nvidia-smi lists fewer GPUs than the instance type has", "fail, reboot", cost=_SMI),
    Check("gpu.lost", "nvidia-smi says that a GPU is lost", "fail, reboot", cost=_SMI),
    Check(
        "gpu.driver-",
        "the driver does not answer, or does not fit its library",
        "fail, reboot or drain",
        cost=_SMI,
    ),
    Check("gpu.smi-", "nvidia-smi does not answer in time, is missing, or ends in an error", "unknown", cost=_SMI),
    Check("gpu.ecc-uncorrected", "uncorrected ECC errors since the driver loaded", "fail, reset-gpu", cost=_SMI),
    Check("gpu.row-remap-failure", "a row remap failed: no spare rows are left", "fail, replace", cost=_SMI),
    Check("gpu.row-remap-pending", "a row remap waits for the next reset", "warn, reset-gpu when idle", cost=_SMI),
    Check(
        "gpu.recovery-action",
        "the driver's own recovery action",
        "fail, as it says; an unknown word is unknown",
        cost=_SMI,
    ),
    Check("gpu.pcie-width", "a PCIe link narrower than it can be, outside power saving", "warn", cost=_SMI),
    Check("gpu.persistence-off", "persistence mode is off", "warn", cost=_SMI),
    Check("gpu.mig-enabled", "MIG is on", "warn", cost=_SMI),
    Check(
        "gpu.leftover-processes",
        "programs on the GPUs before the job has started",
        "warn",
        (PROLOG,),
        "one nvidia-smi call",
    ),
    Check(
        "gpu.xid-",
        "Xid lines of this boot, by NVIDIA's catalogue",
        "none, warn, fail; an unknown code is unknown",
        cost=_LOG,
    ),
    Check("gpu.init-failed", "the driver could not start a GPU (kernel log)", "fail, reboot", cost=_LOG),
    Check("gpu.off-bus", "a GPU has fallen off the bus (kernel log)", "fail, reboot", cost=_LOG),
    Check("nvswitch.sxid-", "SXid lines of this boot", "fatal: fail, reboot; else warn", cost=_LOG),
    Check("kernel.", "the kernel log cannot be read, or its older lines are gone", "unknown, or warn", cost=_LOG),
    Check("efa.no-completion", "kernel lines about an EFA device that no longer answers", "fail, replace", cost=_LOG),
    Check("efa.command-error", "kernel lines about a command that an EFA device refused", "warn", cost=_LOG),
    Check(
        "disk.",
        "scratch folders (gate.nvme_dirs) missing, read-only, full; NVMe lines in the kernel log",
        "fail or warn",
        cost="one write of 4 KiB in each folder",
    ),
    Check(
        "fs.",
        "Lustre mounts (gate.lustre_mounts) not mounted, or not answering",
        "fail, drain; a hang is unknown",
        cost="one file call in each mount",
    ),
    Check("clock.unsynchronised", "no daemon disciplines the clock", "warn", cost="one system call"),
)


def every() -> tuple[Check, ...]:
    """Return a row for everything the live gate can find: its own, then each probe's."""
    return OWN + tuple(row for name in probes.PROBES for row in probes.module_of(name).CHECKS)
