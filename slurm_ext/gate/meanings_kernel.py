"""What findings in the kernel log mean: Xid by NVIDIA's catalogue (xid.py), SXid, memory, disks, programs.

Source of the families: docs.nvidia.com/deploy/xid-errors (the catalogue as of 2025-10-29) and the fabric manager's user
guide for SXid. Checked on 2026-11-30.
"""

from __future__ import annotations

from slurm_ext.gate import meanings_pages as page
from slurm_ext.gate import xid
from slurm_ext.gate.meanings_model import NO, UNKNOWN, YES, Meaning
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL
from slurm_ext.verdict import UNKNOWN as UNKNOWN_VERDICT

_XID = pattern(r"gpu\.xid-(\d{1,5})(-old-boot)?")
_SXID = pattern(r"nvswitch\.sxid-(\d{1,6})")

MEANINGS: tuple[Meaning, ...] = (
    Meaning(
        "gpu.xid-",
        "The driver reported an Xid in this boot. What it means is in NVIDIA's catalogue: `fmslurm explain gpu.xid-79`.",
        "reset-gpu",
        "by the catalogue: some are the program's own fault and never convict, some ask for a reset or a reboot",
        (page.XID,),
    ),
    Meaning(
        "nvswitch.sxid-",
        "An NVSwitch reported an error. The line says whether it is fatal; a fatal one ends all jobs on its links.",
        "reboot",
        "yes where the line says Fatal; else it is a warning",
        (page.FABRIC_MANAGER, page.XID),
        ("`journalctl -u nvidia-fabricmanager` names the link and what was done.",),
    ),
    Meaning(
        "kernel.unreadable",
        "The kernel log cannot be read, so nothing it says is known.",
        "none",
        UNKNOWN,
        steps=("Run as root; in a container /dev/kmsg must be there.",),
    ),
    Meaning(
        "kernel.log-incomplete",
        "Older messages of this boot have left the ring; what they said is not known.",
        "none",
        "no: a warning on a node, unknown in a capture",
        steps=("A larger ring (log_buf_len= on the kernel's command line) keeps more.",),
    ),
    Meaning("kernel.no-log", "The capture holds no kernel log.", "none", UNKNOWN),
    Meaning(
        "network.ib-flap",
        "An InfiniBand or RoCE link of this node lost its carrier more than once in the window.",
        "warn",
        NO,
        steps=("At bring-up this is normal; later look at cable and port.",),
    ),
    Meaning("network.flap", "A network link of this node lost its carrier more than once in the window.", "warn", NO),
    Meaning("network.nic-reset", "The driver reset a network interface (ENA): traffic stood for a moment.", "warn", NO),
    Meaning(
        "job.xid-",
        "An Xid of a program's own making, told of the job whose program it was: about no node.",
        "none",
        NO,
        (page.XID,),
    ),
    Meaning(
        "gpu.memory-manager-failed",
        "The driver's memory manager (nvidia-uvm) reports a fatal error: every program that uses CUDA fails until a reboot.",
        "reboot",
        YES,
        (page.GPU_DEBUG,),
    ),
    Meaning("host.lockup", "A processor was stuck in the kernel for many seconds.", "warn", NO, (page.KERNEL_HUNG,)),
    Meaning(
        "host.kernel-fault",
        "The kernel found a fault in itself (oops, BUG): it goes on, and what it held may stay locked.",
        "reboot",
        NO,
        (page.KERNEL_HUNG,),
    ),
    Meaning("host.cpu-throttled", "A processor was slowed for its heat.", "warn", NO),
    Meaning("host.file-limit", "The limit on open files of the whole machine was reached.", "warn", NO, (page.PROC,)),
    Meaning(
        "memory.many-corrected",
        "A memory module had very many errors that ECC corrected while the job ran.",
        "warn",
        NO,
        (page.KERNEL_RAS,),
    ),
    Meaning(
        "memory.oom-cgroup",
        "The kernel ended a process of a job that used more memory than the job may: the job's own affair.",
        "none",
        NO,
        (page.PROC,),
    ),
    Meaning(
        "memory.oom-node",
        "The whole node ran out of memory and the kernel ended processes: something here may be gone that should run.",
        "warn",
        NO,
        (page.PROC,),
        ("Check that slurmd, nvidia-persistenced and nvidia-fabricmanager still run.",),
    ),
    Meaning(
        "memory.dimm-corrected",
        "A memory module had errors that ECC corrected.",
        "none",
        NO,
        (page.KERNEL_RAS,),
    ),
    Meaning(
        "memory.dimm-uncorrected",
        "A memory module had an error that ECC could not correct: programs may have computed with wrong data.",
        "replace",
        YES,
        (page.KERNEL_RAS,),
    ),
    Meaning(
        "pcie.corrected",
        "The PCIe link of a GPU or an EFA device had an error that the link itself put right.",
        "none",
        NO,
        (page.KERNEL_RAS,),
    ),
    Meaning(
        "pcie.uncorrected",
        "The PCIe link of a GPU or an EFA device had an error that lost a transfer; the device goes on.",
        "warn",
        NO,
        (page.KERNEL_RAS,),
    ),
    Meaning(
        "pcie.fatal",
        "The PCIe link of a GPU or an EFA device had a fatal error: the device cannot be relied on until it starts anew.",
        "reboot",
        YES,
        (page.KERNEL_RAS,),
    ),
    Meaning(
        "process.segfault",
        "A program crashed by its own fault.",
        "none",
        NO,
    ),
)


def of_code(id_: str) -> Meaning | None:
    """Return the meaning of one Xid or SXid by its code, or None where the id is of another form."""
    if found := _XID.fullmatch(id_):
        if found[2]:
            words = f"Xid {found[1]} was reported in an earlier boot: what a reboot mends is mended."
            return Meaning(id_, words, "none", NO, (page.XID,))
        return _xid(id_, int(found[1]))
    if found := _SXID.fullmatch(id_):
        words = f"An NVSwitch reported SXid {found[1]}. Whether it is fatal stands in the line itself."
        family = next(one for one in MEANINGS if one.id == "nvswitch.sxid-")
        return family._replace(id=id_, means=words)
    return None


def _xid(id_: str, code: int) -> Meaning:
    if code in xid.NVLINK5:
        words = (
            f"Xid {code}: an error of an NVLink 5 link (Blackwell). Unit, severity and Xid 154 in the same second decide: "
            "fatal asks for a reset of the GPU, non-fatal is worth a look when it repeats on one link."
        )
        return Meaning(id_, words, "reset-gpu", "yes where it is fatal or the driver asks for recovery", (page.XID,))
    if code == xid.RECOVERY_CHANGED:
        words = "Xid 154: the driver's recovery action changed. Its word says what to do: none, reset, reboot or drain."
        return Meaning(id_, words, "reset-gpu", "yes where it asks for a recovery", (page.XID, page.NVML))
    if code == xid.PREEMPTIVE_REMOVAL:
        words = "Xid 45: the program's channels were removed, as happens when it is ended or after another Xid. Judged with that one."
        return Meaning(id_, words, "none", "no; the Xid before it may", (page.XID,))
    advice = xid.XIDS.get(code)
    if advice is None:
        words = f"Xid {code} is in no table of ours (checked on {xid.CHECKED_ON}): unknown is not harmless."
        return Meaning(id_, words, "warn", UNKNOWN, (page.XID,), ("Look it up in NVIDIA's catalogue.",))
    convicts = YES if advice.verdict == FAIL else UNKNOWN if advice.verdict == UNKNOWN_VERDICT else NO
    steps: tuple[str, ...] = ()
    if code == 64:
        steps = ("With the words 'all reserved rows' no spare rows are left: then replace.",)
    return Meaning(id_, f"Xid {code}: {advice.meaning}.", advice.action, convicts, (page.XID,), steps)
