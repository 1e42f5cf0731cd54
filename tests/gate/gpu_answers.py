"""Answers of nvidia-smi to the live gate's own question, for tests: healthy ones, and ones with some cells changed."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_ext.gate import smi

HEALTHY: Mapping[str, str] = {
    "driver_version": "590.48.01",
    "vbios_version": "96.00.A5.00.03",
    "persistence_mode": "Enabled",
    "mig.mode.current": "Disabled",
    "memory.used": "614 MiB",
    "ecc.errors.corrected.volatile.total": "0",
    "ecc.errors.uncorrected.volatile.total": "0",
    "remapped_rows.correctable": "0",
    "remapped_rows.uncorrectable": "0",
    "remapped_rows.pending": "No",
    "remapped_rows.failure": "No",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "pstate": "P0",
    "gpu_recovery_action": "None",
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "No",
    "fabric.state": "Completed",
    "fabric.status": "Success",
    "temperature.gpu.tlimit": "59",
    # As R590 and later say it; an older driver tells them.
    **{name: "[Requested functionality has been deprecated]" for name in smi.GROUPS["clocks"]},
    "clocks.max.graphics": "1980 MHz",
    "power.limit": "700.00 W",
    "power.default_limit": "700.00 W",
    **{name: "0 us" for name in smi.GROUPS["counters"]},
}


def uuid(number: int) -> str:
    """Return the UUID of a GPU of these answers."""
    return f"GPU-0000000{number}-1111-2222-3333-444444444444"


def answer(count: int = 8, change: Mapping[int, Mapping[str, str]] | None = None, without: tuple[str, ...] = ()) -> str:
    """Return the CSV of a node's GPUs; `change` maps a GPU's index to the cells that differ."""
    names = smi.fields(without)
    lines = [", ".join(name + (" [us]" if "counters." in name else "") for name in names)]
    for number in range(count):
        row = {
            "index": str(number),
            "count": str(count),
            "pci.bus_id": f"00000000:{0x53 + 0x11 * number:02X}:00.0",
            "uuid": uuid(number),
        }
        row |= dict(HEALTHY) | dict((change or {}).get(number, {}))
        lines.append(", ".join(row[name] for name in names))
    return "\n".join(lines) + "\n"
