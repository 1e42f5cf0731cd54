"""Fixtures that prove the checks of the kernel log. Forms of lines: the drivers' and the kernel's own sources, see kernel_host.py."""

from __future__ import annotations

from collections.abc import Callable

from slurm_ext.gate.probes import EPILOG
from slurm_ext.gate.prove_bench import Bench
from slurm_ext.gate.prove_model import Fixture
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN


def _says(*texts: str) -> Callable[[Bench], None]:
    return lambda bench: bench.kernel(*texts)


_OWN_XID = "NVRM: Xid (PCI:0000:53:00): 13, pid=4242, name=python3, Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0)"
_APP = "4194304, GPU-00000003-0000-0000-0000-000000000000, /usr/bin/python3\n"
_OOM = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task=python3,pid=4242,uid=0"
_LOST = (
    "Lustre: fsxlab-OST0000-osc-ffff8f3a41d2c000: Connection to fsxlab-OST0000 (at 198.18.255.254@tcp) was lost; "
    "in progress operations using this service will wait for recovery to complete"
)
_BACK = "Lustre: fsxlab-OST0000-osc-ffff8f3a41d2c000: Connection restored to fsxlab-OST0000 (at 198.18.255.254@tcp)"
_SEGFAULT = (
    "python3[4242]: segfault at 0 ip 00007f0000000000 sp 00007ffc00000000 error 4 in libc.so.6[7f0000000000+1000]"
)


def _once(bench: Bench) -> None:
    """Let a program be on a GPU when there is no time to look twice."""
    bench.answer("apps", _APP)
    bench.deadline_s = 1.0


def _without_remap(bench: Bench) -> None:
    bench.gpu(6, **{"mig.mode.current": "Enabled", "remapped_rows.failure": "[N/A]", "remapped_rows.pending": "[N/A]"})


FIXTURES: tuple[Fixture, ...] = (
    Fixture(
        "efa.init-failed", "efa.init-failed", _says("efa 0000:4f:00.0: EFA device init failed"), FAIL, action="replace"
    ),
    Fixture(
        "efa.no-interrupt",
        "efa.no-interrupt",
        _says("infiniband rdmap79s0: The device sent a completion but the driver didn't receive any MSI-X interrupt"),
        action="reboot",
    ),
    Fixture(
        "gpu.memory-manager-failed",
        "gpu.memory-manager-failed",
        _says("NVRM: nvidia-uvm encountered global fatal error 0x60, requiring os reboot to recover."),
        FAIL,
        action="reboot",
    ),
    Fixture(
        "memory.dimm-uncorrected",
        "memory.dimm-uncorrected",
        _says("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1)"),
        FAIL,
    ),
    Fixture(
        "memory.dimm-corrected",
        "memory.dimm-corrected",
        _says("EDAC MC4: 1 CE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1)"),
        PASS,
    ),
    Fixture("lustre.connection-restored", "lustre.connection-restored", _says(_LOST, _BACK), PASS),
    Fixture("process.segfault", "process.segfault", _says(_SEGFAULT), PASS),
    Fixture("memory.oom-", "memory.oom-node", _says(_OOM), WARN),
    Fixture(
        "host.lockup", "host.lockup", _says("watchdog: BUG: soft lockup - CPU#17 stuck for 26s! [python3:4242]"), WARN
    ),
    Fixture("host.kernel-fault", "host.kernel-fault", _says("Oops: 0000 [#1] SMP NOPTI"), WARN),
    Fixture(
        "host.cpu-throttled",
        "host.cpu-throttled",
        _says("mce: CPU12: Core temperature above threshold, cpu clock throttled (total events = 1)"),
        WARN,
    ),
    Fixture("host.file-limit", "host.file-limit", _says("VFS: file-max limit 9223372 reached"), WARN),
    Fixture(
        "process.hung-task",
        "process.hung-task",
        _says("INFO: task python3:4242 blocked for more than 120 seconds."),
        WARN,
    ),
    Fixture(
        "pcie.",
        "pcie.fatal",
        _says(
            "nvidia 0000:53:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)"
        ),
        FAIL,
        action="reboot",
    ),
    Fixture(
        "pcie.",
        "pcie.uncorrected",
        _says("efa 0000:4f:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer"),
        WARN,
    ),
    Fixture("network.", "network.nic-reset", _says("ena 0000:00:05.0 ens5: Keep alive watchdog timeout."), WARN),
    Fixture("network.", "network.flap", _says(*["ena 0000:00:05.0 ens5: Link is down"] * 4), WARN),
    Fixture("host.kernel-fault", "host.kernel-fault", _says("kernel BUG at mm/slub.c:305!"), WARN),
    Fixture("lustre.lbug", "lustre.lbug", _says("LustreError: 7:0:(a.c:3:f()) LBUG"), FAIL),
    Fixture("lustre.connection-lost", "lustre.connection-lost", _says(_LOST), WARN),
    Fixture("job.xid-", "job.xid-13", _says(_OWN_XID), PASS, EPILOG),
    Fixture("gpu.remap-unreadable", "gpu.remap-unreadable", _without_remap, PASS),
    Fixture("gpu.processes-unattributed", "gpu.processes-unattributed", _once, UNKNOWN),
    Fixture(
        "gpu.ecc-corrected-grew",
        "gpu.ecc-corrected-grew",
        lambda bench: bench.gpu(1, ecc__errors__corrected__volatile__total="9"),
        PASS,
        EPILOG,
    ),
    Fixture(
        "gpu.rows-remapped",
        "gpu.rows-remapped",
        lambda bench: bench.gpu(1, remapped_rows__correctable="1", remapped_rows__uncorrectable="1"),
        PASS,
        EPILOG,
    ),
)
