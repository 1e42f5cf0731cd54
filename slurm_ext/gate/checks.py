"""All that the live gate can find, as rows for people: its own rules and every probe's. No hook imports this."""

from __future__ import annotations

from slurm_ext.gate import probes
from slurm_ext.gate.checks_elsewhere import ELSEWHERE
from slurm_ext.gate.probes import EPILOG, HEALTH, PHASES, PROLOG, Check

_SLOW = (EPILOG, HEALTH)
_JOB = (EPILOG,)
_SMI = "one nvidia-smi call, shared"
_LOG = "one read of the kernel's ring, shared"
_APPS = "one nvidia-smi call; a doubt is looked at twice"
_NVLINK = "two nvidia-smi calls"
_FILES = "a few small files"
SCRATCH = "one write of 4 KiB in each folder"
MOUNTS = "one file call in each mount"

#: What is found outside the probes. An id that ends in - or . is the beginning of several. Notes that change no verdict
#: (errors counted in a job's time, its own Xid, a power cap) are left out.
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
    Check("gpu.requires-reset", "nvidia-smi says so in place of a GPU's values", "fail, reset-gpu", cost=_SMI),
    Check(
        "gpu.values-unreadable",
        "a value that decides, or several others, of a GPU's health come back as errors",
        "unknown",
        cost=_SMI,
    ),
    Check(
        "gpu.list-incomplete", "nvidia-smi counts more GPUs than it describes, or lists one twice", "unknown", cost=_SMI
    ),
    Check("gpu.probe-output-cut", "nvidia-smi's answer ends too early", "unknown", cost=_SMI),
    Check("gpu.inforom-corrupt", "nvidia-smi warns that an infoROM is corrupted", "warn, replace", cost=_SMI),
    Check("gpu.ecc-uncorrected", "uncorrected ECC errors since the driver loaded", "fail, reset-gpu", cost=_SMI),
    Check("gpu.sram-threshold", "the SRAM error threshold is exceeded", "fail, replace", cost=_SMI),
    Check("gpu.row-remap-failure", "a row remap failed: no spare rows are left", "fail, replace", cost=_SMI),
    Check("gpu.row-remap-pending", "a row remap waits for the next reset", "warn, reset-gpu when idle", cost=_SMI),
    Check(
        "gpu.recovery-action",
        "the driver's own recovery action",
        "fail, as it says",
        cost=_SMI,
    ),
    Check("gpu.recovery-action-unknown", "a recovery action that no table has", "unknown", cost=_SMI),
    Check(
        "gpu.fabric-",
        "a GPU's registration with the NVSwitch fabric: not done long after boot, or ended in an error",
        "fail, drain; soon after boot unknown",
        cost=_SMI,
    ),
    Check("gpu.hot", "no degrees are left before a GPU slows itself down (T.Limit)", "warn", cost=_SMI),
    Check("gpu.pcie-width", "a PCIe link narrower than it can be, outside power saving", "warn", cost=_SMI),
    Check(
        "gpu.ecc-corrected-many",
        "20 million memory errors or more that ECC corrected since the driver loaded",
        "warn",
        cost=_SMI,
    ),
    Check(
        "gpu.clocks-set-low",
        "application clocks set lower than by default, or than on most GPUs here (not told from R590 on)",
        "warn",
        cost=_SMI,
    ),
    Check(
        "gpu.power-limit-low",
        "a power limit set lower than by default, or than on most GPUs here",
        "warn",
        cost=_SMI,
    ),
    Check("gpu.persistence-off", "persistence mode is off", "warn", cost=_SMI),
    Check("gpu.mig-enabled", "MIG is on", "warn", cost=_SMI),
    Check(
        "gpu.leftover-processes",
        "programs on GPUs before a job has started, or left by one that has ended",
        "warn; those of the ended job that stay: fail, drain",
        cost=_APPS,
    ),
    Check("gpu.memory-in-use", "GPU memory in use before a job, and no program is listed", "warn", (PROLOG,), _APPS),
    Check(
        "gpu.memory-leak",
        "GPU memory that stays in use though no program is listed",
        "fail, reset-gpu; warn where a screen or the system may hold it",
        _SLOW,
        _APPS,
    ),
    Check("gpu.nvlink-down", "NVLinks that are down, by the GPU's type", "fail, reset-gpu", _SLOW, _NVLINK),
    Check("gpu.nvlink-speed", "NVLinks slower than the others", "warn", _SLOW, _NVLINK),
    Check("gpu.nvlink-errors", "error counters of NVLinks since the driver loaded", "warn", _SLOW, _NVLINK),
    Check("gpu.nvlink-unreadable", "NVLink's states cannot be read, or end too early", "unknown", _SLOW, _NVLINK),
    Check(
        "gpu.hw-",
        "time a GPU was held down by hardware (heat, power brake) during the job",
        "more than half of it: fail, drain; else warn",
        _JOB,
        _SMI,
    ),
    Check("gpu.sw-thermal", "time a GPU was slowed by the driver for its heat during the job", "warn", _JOB, _SMI),
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
    Check("efa.init-failed", "kernel lines about an EFA device that did not start", "fail, replace", cost=_LOG),
    Check("efa.no-interrupt", "kernel lines about an EFA device without interrupts", "fail, reboot", cost=_LOG),
    Check("gpu.memory-manager-failed", "a fatal error of the driver's memory manager", "fail, reboot", cost=_LOG),
    Check(
        "memory.dimm-uncorrected",
        "kernel lines about memory errors that ECC did not correct",
        "fail, replace",
        cost=_LOG,
    ),
    Check(
        "memory.oom-",
        "programs that the kernel ended for want of memory",
        "the node's: warn; a job's own: a note",
        cost=_LOG,
    ),
    Check("host.lockup", "processors that were stuck in the kernel", "warn", cost=_LOG),
    Check("host.kernel-fault", "faults that the kernel found in itself", "warn, reboot when idle", cost=_LOG),
    Check("host.cpu-throttled", "processors that were slowed for their heat", "warn", cost=_LOG),
    Check("host.file-limit", "the machine's limit on open files was reached", "warn", cost=_LOG),
    Check("process.hung-task", "tasks that did not move for two minutes", "warn", cost=_LOG),
    Check(
        "pcie.",
        "errors of the PCIe link of a GPU or an EFA device",
        "none, warn, or fail: reboot or replace",
        cost=_LOG,
    ),
    Check("network.", "links that came and went, interfaces that were reset", "warn", cost=_LOG),
    Check("lustre.connection-lost", "a connection to a server was lost and did not come back", "warn", cost=_LOG),
    Check("lustre.lbug", "kernel lines about a contradiction that Lustre found in itself", "fail, reboot", cost=_LOG),
    Check("lustre.connection-restored", "a connection to a server was lost and came back", "a note", cost=_LOG),
    Check("memory.dimm-corrected", "kernel lines about memory errors that ECC corrected", "a note", cost=_LOG),
    Check("process.segfault", "programs that ended by a fault of their own", "a note", cost=_LOG),
    Check("job.xid-", "Xid of the job's own programs in its time", "a note for the job's owner", _JOB, _LOG),
    Check("gpu.remap-unreadable", "the state of row remapping, which MIG hides", "a note", cost=_SMI),
    Check("gpu.processes-unattributed", "programs on the GPUs that were seen once", "unknown", _SLOW, _APPS),
    Check("gpu.ecc-corrected-grew", "memory errors that ECC corrected during the job", "a note", _JOB, _SMI),
    Check("gpu.ecc-uncorrected-grew", "memory errors that ECC did not correct during the job", "a note", _JOB, _SMI),
    Check("gpu.rows-remapped", "memory rows that were remapped during the job", "a note", _JOB, _SMI),
    Check(
        "disk.",
        "scratch folders (gate.nvme_dirs) missing, read-only, full; NVMe lines in the kernel log",
        "fail or warn",
        cost=SCRATCH,
    ),
    Check(
        "fs.",
        "Lustre mounts (gate.lustre_mounts) not mounted, or not answering",
        "fail, drain; a hang is unknown",
        cost=MOUNTS,
    ),
    Check(
        "node.type-unknown",
        "an EC2 instance type (or one that the site names) that no table has: counts are compared with nothing",
        "warn; without nvidia-smi unknown",
        cost="a small file",
    ),
    Check(
        "clock.unsynchronised",
        "no daemon disciplines the clock",
        "warn",
        (EPILOG, HEALTH),
        "one system call",
    ),
)


def _silent(name: str) -> Check:
    """Return the row of a probe that does not answer. In the prolog the probe of the node takes Lustre's quick look."""
    phases = PHASES if name == "lustre" else tuple(probes.PROBES[name])
    return Check(
        f"{name}.no-answer", f"the look at {name} did not end, or ended in an error", "unknown", phases, "nothing"
    )


def every() -> tuple[Check, ...]:
    """Return a row for everything the live gate can find: its own, then each probe's."""
    rows = tuple(row for name in probes.PROBES for row in (*probes.module_of(name).CHECKS, _silent(name)))
    return OWN + rows


def listed() -> tuple[Check, ...]:
    """Return a row for every finding there is: the live gate's, then those of the burn-in and of captures."""
    return every() + ELSEWHERE


def by_probe() -> dict[str, tuple[Check, ...]]:
    """Return each probe's rows by its name."""
    return {name: tuple(probes.module_of(name).CHECKS) for name in probes.PROBES}


def asks_smi(row: Check) -> bool:
    """Say whether a check reads what nvidia-smi says of all GPUs."""
    return row.cost == _SMI


def reads_log(row: Check) -> bool:
    """Say whether a check reads the kernel log."""
    return row.cost == _LOG
