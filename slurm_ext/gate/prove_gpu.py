"""Fixtures that prove the checks of GPUs and NVLink. Forms of lines: nvidia-smi as its captures show it, NVIDIA's catalogue."""

from __future__ import annotations

from slurm_ext.gate.probes import EPILOG, HEALTH, PROLOG
from slurm_ext.gate.prove_bench import ANSWERS, KERNEL_LOG, Bench
from slurm_ext.gate.prove_model import Fixture
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

_MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
_XID = "NVRM: Xid (PCI:0000:53:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
_APP = "4194304, GPU-00000003-0000-0000-0000-000000000000, /usr/bin/python3\n"


def _answers_nothing(bench: Bench) -> None:
    bench.set("gate", deadline_s=1.0)
    bench.deadline_s = 1.0
    bench.instead("exec sleep 60\n")


def _cut(bench: Bench) -> None:
    table = (bench.root / ANSWERS / "table").read_text()
    bench.write(f"{ANSWERS}/table", table[: len(table) * 3 // 4])


def _one_row_less(bench: Bench) -> None:
    table = (bench.root / ANSWERS / "table").read_text()
    bench.write(f"{ANSWERS}/table", "".join(table.splitlines(keepends=True)[:-1]))


def _inforom(bench: Bench) -> None:
    table = (bench.root / ANSWERS / "table").read_text()
    bench.write(f"{ANSWERS}/table", table + "WARNING: infoROM is corrupted at gpu 0000:53:00.0\n")


def _link_down(bench: Bench) -> None:
    bench.edit(f"{ANSWERS}/nvlink-s", "\t Link 17: 26.562 GB/s\nGPU 1:", "\t Link 17: <inactive>\nGPU 1:")


def _link_slow(bench: Bench) -> None:
    bench.edit(f"{ANSWERS}/nvlink-s", "\t Link 17: 26.562 GB/s\nGPU 1:", "\t Link 17: 13.281 GB/s\nGPU 1:")


def _link_errors(bench: Bench) -> None:
    text = "\t Link 17: CRC Errors: {}\nGPU 1:"
    bench.edit(f"{ANSWERS}/nvlink-e", text.format(0), text.format(4))


def _gap(bench: Bench) -> None:
    bench.write(KERNEL_LOG, "6,900,5000000,-;Linux version 6.8.0\n")


FIXTURES: tuple[Fixture, ...] = (
    Fixture("gpu.missing", "gpu.missing", lambda bench: bench.without_gpu(7), FAIL, action="reboot"),
    Fixture(
        "gpu.lost", "gpu.lost", lambda bench: bench.gpu(3, **{"memory.used": "[GPU is lost]"}), FAIL, target="gpu:3"
    ),
    Fixture(
        "gpu.requires-reset",
        "gpu.requires-reset",
        lambda bench: bench.gpu(3, **{"memory.used": "[GPU requires reset]"}),
        FAIL,
        action="reset-gpu",
    ),
    Fixture(
        "gpu.values-unreadable",
        "gpu.values-unreadable",
        lambda bench: bench.gpu(3, remapped_rows__failure="[Unknown Error]", gpu_recovery_action="ERR!"),
        UNKNOWN,
        target="gpu:3",
    ),
    Fixture("gpu.list-incomplete", "gpu.list-incomplete", _one_row_less, UNKNOWN),
    Fixture(
        "gpu.ecc-uncorrected-grew",
        "gpu.ecc-uncorrected-grew",
        lambda bench: bench.gpu(2, ecc__errors__uncorrected__volatile__total="2"),
        PASS,
        EPILOG,
        target="gpu:2",
    ),
    Fixture("gpu.probe-output-cut", "gpu.probe-output-cut", _cut, UNKNOWN),
    Fixture("gpu.inforom-corrupt", "gpu.inforom-corrupt", _inforom, WARN, target="gpu@0000:53:00", action="replace"),
    Fixture("gpu.driver-", "gpu.driver-mismatch", lambda bench: bench.instead(f"echo '{_MISMATCH}'; exit 18\n"), FAIL),
    Fixture("gpu.smi-", "gpu.smi-timeout", _answers_nothing, UNKNOWN),
    Fixture(
        "gpu.ecc-uncorrected",
        "gpu.ecc-uncorrected",
        lambda bench: bench.gpu(2, ecc__errors__uncorrected__volatile__total="2"),
        FAIL,
        target="gpu:2",
        action="reset-gpu",
    ),
    Fixture(
        "gpu.sram-threshold",
        "gpu.sram-threshold",
        lambda bench: bench.gpu(2, ecc__errors__uncorrected__aggregate__sram__thresholdExceeded="Yes"),
        FAIL,
        action="replace",
    ),
    Fixture(
        "gpu.row-remap-failure",
        "gpu.row-remap-failure",
        lambda bench: bench.gpu(1, remapped_rows__failure="Yes"),
        FAIL,
        action="replace",
    ),
    Fixture(
        "gpu.row-remap-pending",
        "gpu.row-remap-pending",
        lambda bench: bench.gpu(1, remapped_rows__pending="Yes"),
        WARN,
        action="reset-gpu",
    ),
    Fixture(
        "gpu.recovery-action",
        "gpu.recovery-action",
        lambda bench: bench.gpu(0, gpu_recovery_action="Reboot"),
        FAIL,
        action="reboot",
    ),
    Fixture(
        "gpu.recovery-action-unknown",
        "gpu.recovery-action-unknown",
        lambda bench: bench.gpu(0, gpu_recovery_action="Dance"),
        UNKNOWN,
        target="gpu:0",
    ),
    Fixture("gpu.hot", "gpu.hot", lambda bench: bench.gpu(0, temperature__gpu__tlimit="0"), WARN),
    Fixture(
        "gpu.fabric-",
        "gpu.fabric-failed",
        lambda bench: bench.gpu(0, fabric__status="Insufficient Resources"),
        FAIL,
        action="drain",
    ),
    Fixture("gpu.pcie-width", "gpu.pcie-width", lambda bench: bench.gpu(6, **{"pcie.link.width.current": "8"}), WARN),
    Fixture(
        "gpu.persistence-off", "gpu.persistence-off", lambda bench: bench.gpu(6, persistence_mode="Disabled"), WARN
    ),
    Fixture(
        "gpu.ecc-corrected-many",
        "gpu.ecc-corrected-many",
        lambda bench: bench.gpu(2, ecc__errors__corrected__volatile__total="30000000"),
        WARN,
        target="gpu:2",
        action="warn",
    ),
    Fixture(
        "gpu.clocks-set-low",
        "gpu.clocks-set-low",
        lambda bench: bench.gpu(4, clocks__applications__graphics="1200 MHz"),
        WARN,
        PROLOG,
        target="gpu:4",
        action="warn",
    ),
    Fixture(
        "gpu.power-limit-low",
        "gpu.power-limit-low",
        lambda bench: bench.gpu(4, power__limit="400.00 W"),
        WARN,
        PROLOG,
        target="gpu:4",
        action="warn",
    ),
    Fixture("gpu.mig-enabled", "gpu.mig-enabled", lambda bench: bench.gpu(6, **{"mig.mode.current": "Enabled"}), WARN),
    Fixture(
        "gpu.leftover-processes",
        "gpu.leftover-processes",
        lambda bench: bench.answer("apps", _APP),
        WARN,
        PROLOG,
        target="gpu:3",
    ),
    Fixture(
        "gpu.memory-in-use", "gpu.memory-in-use", lambda bench: bench.gpu(3, memory__used="40960 MiB"), WARN, PROLOG
    ),
    Fixture(
        "gpu.memory-leak",
        "gpu.memory-leak",
        lambda bench: bench.gpu(3, memory__used="40960 MiB"),
        FAIL,
        HEALTH,
        action="reset-gpu",
    ),
    Fixture("gpu.nvlink-down", "gpu.nvlink-down", _link_down, target="gpu:0"),
    Fixture("gpu.nvlink-speed", "gpu.nvlink-speed", _link_slow, WARN, target="gpu:0"),
    Fixture("gpu.nvlink-errors", "gpu.nvlink-errors", _link_errors, WARN, target="gpu:0"),
    Fixture(
        "gpu.nvlink-unreadable", "gpu.nvlink-unreadable", lambda bench: bench.answer("nvlink-s", "Unable\n"), UNKNOWN
    ),
    Fixture(
        "gpu.hw-",
        "gpu.hw-thermal",
        lambda bench: bench.gpu(0, clocks_event_reasons_counters__hw_thermal_slowdown="900000000"),
        phase=EPILOG,
    ),
    Fixture(
        "gpu.sw-thermal",
        "gpu.sw-thermal",
        lambda bench: bench.gpu(0, clocks_event_reasons_counters__sw_thermal_slowdown="900000000"),
        WARN,
        EPILOG,
    ),
    Fixture("gpu.xid-", "gpu.xid-79", lambda bench: bench.kernel(_XID), FAIL, action="reboot"),
    Fixture(
        "gpu.init-failed",
        "gpu.init-failed",
        lambda bench: bench.kernel("NVRM: GPU 0000:53:00.0: RmInitAdapter failed! (0x22:0x65:830)"),
        FAIL,
        action="reboot",
    ),
    Fixture(
        "gpu.off-bus",
        "gpu.off-bus",
        lambda bench: bench.kernel("NVRM: GPU 0000:53:00.0: GPU has fallen off the bus."),
        FAIL,
        action="reboot",
    ),
    Fixture(
        "nvswitch.sxid-",
        "nvswitch.sxid-12028",
        lambda bench: bench.kernel(
            "nvidia-nvswitch3: SXid (PCI:0000:c2:00.0): 12028, Fatal, Link 32 egress non-posted PRIV error (First)"
        ),
        FAIL,
    ),
    Fixture("kernel.", "kernel.log-incomplete", _gap, WARN),
)
