"""What nvidia-smi's answer says about starting a job. Pure. Thresholds carry their source.

Sources: NVIDIA's GPU memory error management guide (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt), nvidia-smi(1) for
return codes and texts, NVML's nvml.h for recovery and fabric states.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_ext.gate import gpu_corrected, gpu_growth, gpu_set_limits, xid
from slurm_ext.gate.model import Gpu, Judged, Smi, judged
from slurm_ext.gate.smi import is_blank, listed_twice, pci_address
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, one_line

#: NVIDIA's return criterion for pages retired by both kinds of error; the table holds 64.
RETIRED_PAGES_LIMIT = 60

#: NVSwitch fabrics register within minutes after boot; before that "In Progress" is no fault.
FABRIC_GRACE_S = 300.0

#: nvidia-smi ends so after a whole list with a warning of an infoROM, and so where it found no GPU. nvidia-smi(1), RETURN
#: VALUE: 14 "infoROM is corrupted", 6 "A query to find an object was unsuccessful". Older ones say the latter with 0.
_INFOROM_EXIT = 14
_NONE_FOUND_EXITS = (0, 6, None)

_PCI = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?)"
_LOST = pattern(
    rf"(?<![^\n])[^\n]*device handle for GPU\s*\d*:?\s*{_PCI}: (GPU is lost|Unknown Error|No response|Not Found)",
    needs="device handle",
)
_INFOROM = pattern(rf"infoROM is corrupted at gpu {_PCI}", re.I)

#: What a whole answer says when there is none: text, id, verdict, action. Exit codes: nvidia-smi(1), RETURN VALUE.
_NO_ANSWER: tuple[tuple[str, str, str, str], ...] = (
    ("driver/library version mismatch", "gpu.driver-mismatch", FAIL, "reboot"),
    ("couldn't communicate with the nvidia driver", "gpu.driver-not-loaded", FAIL, "drain"),
    ("no devices were found", "gpu.missing", FAIL, "reboot"),
    ("insufficient permissions", "gpu.smi-no-permission", UNKNOWN, "none"),
)


def judge(
    smi: Smi, *, expected_gpus: int | None = None, boot_age_s: float | None = None, second: Smi | None = None
) -> list[Judged]:
    """Return what one answer of nvidia-smi (and a `second`, later one) says.

    `expected_gpus` comes from the instance type, None where that is unknown; `boot_age_s` is seconds since boot.
    """
    said = _said(smi, expected_gpus)
    if not smi.gpus:
        return said or [
            judged(UNKNOWN, "gpu.smi-no-answer", "node", "none", one_line(smi.said, 300) or "nvidia-smi said nothing")
        ]
    items = list(said)
    items += _counted(smi, expected_gpus, told=bool(said))
    widest = max((gpu.pcie_width or 0 for gpu in smi.gpus), default=0)
    for gpu in smi.gpus:
        items += _memory(gpu)
        items += gpu_corrected.judge_corrected(gpu)
        items += _state(gpu, type_known=expected_gpus is not None, widest=widest)
        if gpu.slowed and second is None:  # a second reading tells for how long
            line = f"slowed at this moment by {gpu.slowed}"
            items.append(judged(WARN, "gpu.slowed-now", gpu.target, "warn", line))
    items += _fabric(smi.gpus, boot_age_s)
    items += gpu_set_limits.judge_settings(smi.gpus)
    capped = [gpu.target for gpu in smi.gpus if gpu.sw_power_cap]
    if capped:
        items.append(judged(PASS, "gpu.sw-power-cap", "node", "none", f"at their power limit: {', '.join(capped)}"))
    if second is not None and smi.read_at_s is not None and second.read_at_s is not None:
        items += gpu_growth.judge_growth(
            gpu_growth.keep(smi), gpu_growth.keep(second), second.read_at_s - smi.read_at_s, least_s=0.0
        )
    return items


def _said(smi: Smi, expected: int | None) -> list[Judged]:
    """Return what the words around (or in place of) the table say."""
    if smi.timed_out:
        if smi.gpus or (not smi.complete and smi.said):
            return [
                judged(
                    UNKNOWN, "gpu.probe-output-cut", "node", "none", f"ended after {smi.elapsed_s:g} s in mid-output"
                )
            ]
        return [
            judged(UNKNOWN, "gpu.smi-timeout", "node", "drain", f"nvidia-smi gave no answer within {smi.elapsed_s:g} s")
        ]
    items = [
        judged(FAIL, "gpu.lost", f"gpu@{pci_address(found[1])}", "reboot", found[0].strip())
        for found in _LOST.finditer(smi.said)
    ]
    items += [
        judged(WARN, "gpu.inforom-corrupt", f"gpu@{pci_address(found[1])}", "replace", found[0])
        for found in (_INFOROM.finditer(smi.said) if smi.said else ())
    ]
    lowered = smi.said.lower()
    for text, id_, verdict, action in _NO_ANSWER:
        if text in lowered and (id_ != "gpu.missing" or (not smi.gpus and smi.exit_code in _NONE_FOUND_EXITS)):
            # A node whose type has no GPU, or is not known, need not have a driver: that is no fault to drain for.
            word = verdict if expected or verdict == UNKNOWN else UNKNOWN
            items.append(judged(word, id_, "node", action, *map(one_line, smi.said.strip().splitlines()[:2])))
    if not items and smi.exit_code not in (0, None):
        line = one_line((smi.said.strip().splitlines() or ["no words"])[0])
        items.append(
            judged(UNKNOWN, "gpu.smi-failed", "node", "none", f"nvidia-smi ended with {smi.exit_code}: {line}")
        )
    return items


def _counted(smi: Smi, expected: int | None, *, told: bool) -> list[Judged]:
    """Return whether GPUs are missing. Only a list that nvidia-smi ended by itself says what is not there.

    `told`: its end has had its word already, so that a list that is short for it needs none of its own.
    """
    if not smi.complete:
        return [] if smi.timed_out else [judged(UNKNOWN, "gpu.probe-output-cut", "node", "none", "the output is cut")]
    listed = len(smi.gpus)
    if twice := listed_twice(smi.gpus):
        # One of the two rows is another GPU's, and nobody knows which.
        return [judged(UNKNOWN, "gpu.list-incomplete", "node", "none", f"{twice} is listed twice")]
    if smi.attached is not None and listed != smi.attached and not smi.excerpt:
        line = f"{smi.attached} GPUs are attached, {listed} are described"
        return [judged(UNKNOWN, "gpu.list-incomplete", "node", "none", line)]
    if expected is None or listed >= expected or smi.excerpt:
        return []
    if smi.exit_code not in (0, None) and not (smi.exit_code == _INFOROM_EXIT and smi.attached == listed):
        line = f"nvidia-smi ended with {smi.exit_code} after {listed} of {expected} GPUs"
        return [] if told else [judged(UNKNOWN, "gpu.list-incomplete", "node", "none", line)]
    line = f"{listed} of {expected} GPUs of the instance type are there"
    more = "" if smi.bound is None else f"the driver holds {smi.bound} by its own list in /proc/driver/nvidia/gpus"
    return [judged(FAIL, "gpu.missing", "node", "reboot", line, more)]


def _memory(gpu: Gpu) -> list[Judged]:
    """Return what ECC, remap and retirement say about one GPU."""
    items = []
    if gpu.errors > 1 or gpu.undecided or (is_blank(gpu) and not gpu.trouble):
        line = (
            f"came back as an error: {', '.join(gpu.undecided[:4])}"
            if gpu.undecided
            else "none of its values came back"
        )
        if gpu.errors > 1:
            line = f"{gpu.errors} values of its health came back as errors"
        items.append(judged(UNKNOWN, "gpu.values-unreadable", gpu.target, "drain", line))
    if gpu.ecc_uncorrected:
        line = f"{gpu.ecc_uncorrected} uncorrected ECC errors since the driver loaded"
        items.append(judged(FAIL, "gpu.ecc-uncorrected", gpu.target, "reset-gpu", line))
    if gpu.sram_threshold:
        line = "the SRAM error threshold is exceeded, a return criterion"
        items.append(judged(FAIL, "gpu.sram-threshold", gpu.target, "replace", line))
    if gpu.unrepairable:
        line = "memory that can no longer be repaired"
        items.append(judged(FAIL, "gpu.unrepairable-memory", gpu.target, "replace", line))
    if gpu.remap_failure:
        line = "a row remap failed: no spare rows are left, a return criterion"
        items.append(judged(FAIL, "gpu.row-remap-failure", gpu.target, "replace", line))
    elif gpu.remap_pending:
        line = "a row remap waits for the next reset; work may go on without loss of accuracy"
        items.append(judged(WARN, "gpu.row-remap-pending", gpu.target, "reset-gpu", line))
    elif gpu.remap_seen and gpu.remap_failure is None and gpu.mig:
        items.append(judged(UNKNOWN, "gpu.remap-unreadable", gpu.target, "none", "the remap state is N/A under MIG"))
    if gpu.repair_pending:
        line = "a repair of its memory or a part of it waits for the next reset"
        items.append(judged(WARN, "gpu.repair-pending", gpu.target, "reset-gpu", line))
    if gpu.retired_pages is not None and gpu.retired_pages >= RETIRED_PAGES_LIMIT:
        line = f"{gpu.retired_pages} retired pages, the limit is {RETIRED_PAGES_LIMIT}"
        items.append(judged(FAIL, "gpu.retired-pages-full", gpu.target, "replace", line))
    elif gpu.retired_pending:
        line = "page retirement waits for the next reset"
        items.append(judged(WARN, "gpu.retired-pages-pending", gpu.target, "reset-gpu", line))
    return items


def _state(gpu: Gpu, *, type_known: bool, widest: int) -> list[Judged]:
    """Return what the driver's own wish, modes and the PCIe link say about one GPU; `widest` is the widest of all links.

    Where all links are equally narrow, the host has no more lanes to give (g4dn and g5 have eight for each GPU).
    """
    items = []
    if gpu.trouble == "GPU is lost":
        items.append(judged(FAIL, "gpu.lost", gpu.target, "reboot", f"nvidia-smi says for its values: {gpu.trouble}"))
    elif gpu.trouble:
        items.append(judged(FAIL, "gpu.requires-reset", gpu.target, "reset-gpu", f"nvidia-smi says: {gpu.trouble}"))
    if gpu.tlimit_c is not None and gpu.tlimit_c <= 0:
        line = f"T.Limit {gpu.tlimit_c}: no degrees are left before it slows itself down"
        items.append(judged(WARN, "gpu.hot", gpu.target, "warn", line))
    if gpu.recovery is not None and gpu.recovery.lower() != "none":
        action = xid.RECOVERY_WORDS.get(gpu.recovery.lower())
        line = f"the driver's recovery action is {gpu.recovery}"
        if action is None:
            items.append(judged(UNKNOWN, "gpu.recovery-action-unknown", gpu.target, "drain", line))
        else:
            items.append(judged(FAIL, "gpu.recovery-action", gpu.target, action, line))
    if gpu.inforom_valid is False:
        items.append(judged(WARN, "gpu.inforom-corrupt", gpu.target, "replace", "the infoROM's checksum is wrong"))
    if gpu.mig:
        word, action = (WARN, "warn") if type_known else (PASS, "none")
        items.append(judged(word, "gpu.mig-enabled", gpu.target, action, "MIG is on: a job gets no whole GPU"))
    if gpu.persistence is False:
        line = "persistence mode is off: the driver unloads between jobs"
        items.append(judged(WARN, "gpu.persistence-off", gpu.target, "warn", line))
    if gpu.ecc_off and type_known:
        line = "ECC is off: errors of its memory stay unseen"
        items.append(judged(WARN, "gpu.ecc-off", gpu.target, "warn", line))
    narrow = gpu.pcie_width is not None and gpu.pcie_width_max is not None and 0 < gpu.pcie_width < gpu.pcie_width_max
    if narrow and (gpu.pcie_width or 0) < widest and not gpu.low_power:
        line = f"PCIe link {gpu.pcie_width}x of {gpu.pcie_width_max}x"
        items.append(judged(WARN, "gpu.pcie-width", gpu.target, "warn", line))
    return items


def _fabric(gpus: Sequence[Gpu], boot_age_s: float | None) -> list[Judged]:
    """Return what NVSwitch registration says; without it CUDA does not initialise, though every GPU looks well."""
    waiting = [gpu for gpu in gpus if gpu.fabric_state.lower() in ("in progress", "not started")]
    failed = [
        gpu
        for gpu in gpus
        if gpu.fabric_state.lower() == "completed" and gpu.fabric_status.lower() not in ("", "success")
    ]
    items = []
    if waiting:
        targets = ["node"] if len(waiting) == len(gpus) else [gpu.target for gpu in waiting]
        age = f"{boot_age_s:.0f} s after boot" if boot_age_s is not None else "at a time since boot that is not known"
        line = f"fabric state {waiting[0].fabric_state} on {len(waiting)} GPUs {age}"
        late = boot_age_s is not None and boot_age_s > FABRIC_GRACE_S
        word = FAIL if late else UNKNOWN
        items += [judged(word, "gpu.fabric-not-ready", target, "drain", line) for target in targets]
    for gpu in gpus:
        health = gpu.fabric_health.lower()
        if health and health not in ("healthy", "full", "false", "no"):
            limited = health.startswith("limited") or "degraded" in health
            bad = health.startswith("unhealthy") or health.endswith((": true", ": yes"))
            word, action = (WARN, "warn") if limited else (FAIL if bad else UNKNOWN, "drain")
            items.append(judged(word, "gpu.fabric-health", gpu.target, action, f"fabric health: {gpu.fabric_health}"))
    if failed:
        targets = ["node"] if len(failed) == len(gpus) else [gpu.target for gpu in failed]
        line = f"fabric registration ended with {failed[0].fabric_status}"
        items += [judged(FAIL, "gpu.fabric-failed", target, "drain", line) for target in targets]
    return items
