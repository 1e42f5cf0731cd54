"""The forms of nvidia-smi's answer that only captures have: `-q -x` (XML, DTD v11 to v13) and `-q` (indented text).

Pure parsers that never raise. XML is read as a stream of tags, so that a cut one still tells what it holds. Source of the
field names: nvsmi_device_v11..v13.dtd. The live gate asks for CSV and does not import this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from slurm_ext.gate.model import Gpu, Smi
from slurm_ext.gate.smi import (
    SLOWED,
    count,
    flag,
    is_undecided,
    low_power,
    pci_address,
    reset_word,
    setting,
    tally,
    time_s,
    trouble_of,
    word,
)

#: nvidia-smi nests five deep; what goes deeper is none of its answers.
_DEPTH_MAX = 16


def parse_xml(text: str) -> Smi:
    """Return the GPUs of `nvidia-smi -q -x`. No entity is expanded and no file is read: tags and text only."""
    gpus: list[Gpu] = []
    header: dict[str, str] = {}
    fields: dict[str, str] | None = None
    path: list[str] = []
    closed = False
    for found in re.finditer(r"<(/?)([A-Za-z_][\w.-]*)([^<>]*?)(/?)>([^<]*)", text):
        slash, name, attributes, empty, value = found.groups()
        if slash:
            if name == "gpu" and fields is not None:
                gpus.append(_from_fields(fields, len(gpus)))
                fields = None
            closed = closed or name == "nvidia_smi_log"
            if path and path[-1] == name:
                path.pop()
            continue
        if name == "gpu" and "id=" in attributes:
            fields = {"id": pci_address(attributes)}
            path = []
            continue
        if not empty and len(path) < _DEPTH_MAX:
            path.append(name)
            if value.strip():
                key = "/".join(path)
                (header if fields is None else fields).setdefault(key, value.strip())
    attached = count(header.get("nvidia_smi_log/attached_gpus"))
    return _numbered(Smi(tuple(gpus), attached, closed, read_at_s=time_s(header.get("nvidia_smi_log/timestamp", ""))))


def parse_text(text: str) -> Smi:
    """Return the GPUs of `nvidia-smi -q`, whose nesting is its indentation."""
    gpus: list[Gpu] = []
    fields: dict[str, str] | None = None
    path: list[tuple[int, str]] = []
    attached = None
    stamp = None
    for line in text.splitlines():
        if found := re.match(r"GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)", line):
            if fields is not None:
                gpus.append(_from_fields(fields, len(gpus)))
            fields, path = {"id": pci_address(found[1])}, []
            continue
        if not line.strip() or line.strip() == "[...]":
            continue
        depth = len(line) - len(line.lstrip())
        name, colon, value = line.strip().partition(" : ") if " : " in line else (line.strip(), "", "")
        key = re.sub(r"[^a-z0-9]+", "_", name.strip().lower()).strip("_")
        if fields is None:
            attached = count(value) if key == "attached_gpus" else attached
            stamp = time_s(value) if key == "timestamp" else stamp
            continue
        while path and path[-1][0] >= depth:
            path.pop()
        if colon:
            fields.setdefault("/".join([part for _, part in path] + [key]), value.strip())
        path.append((depth, key))
    if fields is not None:
        gpus.append(_from_fields(fields, len(gpus)))
    return _numbered(Smi(tuple(gpus), attached, bool(gpus), excerpt="[...]" in text, read_at_s=stamp))


def _from_fields(fields: Mapping[str, str], position: int) -> Gpu:
    """Return a GPU from the fields of XML or text; names differ, so the first that is there counts."""

    def first(*names: str) -> str | None:
        return next((fields[name] for name in names if name in fields), None)

    uncorrected = [
        tally(value)
        for name, value in fields.items()
        if re.match(r"ecc_errors/volatile/.*uncorrectable", name) and "mig_device" not in name
    ]
    known = [value for value in uncorrected if value is not None]
    corrected = [
        tally(value)
        for name, value in fields.items()
        if re.match(r"ecc_errors/volatile/.*(?<!un)correctable|ecc_errors/volatile/single_bit/total", name)
        and "mig_device" not in name
    ]
    single = count(first("retired_pages/multiple_single_bit_retirement/retired_count", "retired_pages/single_bit_ecc"))
    double = count(first("retired_pages/double_bit_retirement/retired_count", "retired_pages/double_bit_ecc"))
    counters = "clocks_event_reasons_counters/"
    return Gpu(
        number=position if fields.get("minor_number", "").isdecimal() else None,
        pci=fields.get("id", ""),
        persistence=flag(fields.get("persistence_mode")),
        mig=flag(first("mig_mode/current_mig", "mig_mode/current")),
        recovery=word(fields.get("gpu_recovery_action"))
        or reset_word(
            fields.get("gpu_reset_status/reset_required"), fields.get("gpu_reset_status/drain_and_reset_recommended")
        ),
        ecc_uncorrected=sum(known) if known else None,
        ecc_corrected=sum(value for value in corrected if value is not None)
        if any(value is not None for value in corrected)
        else None,
        sram_threshold=flag(first("ecc_errors/aggregate/sram_threshold_exceeded")),
        unrepairable=flag(fields.get("ecc_errors/unrepairable_memory")),
        remap_pending=flag(first("remapped_rows/remapped_row_pending", "remapped_rows/pending")),
        remap_failure=flag(first("remapped_rows/remapped_row_failure", "remapped_rows/remapping_failure_occurred")),
        remap_seen=any(name.startswith("remapped_rows") for name in fields),
        retired_pages=None if single is None or double is None else single + double,
        retired_pending=flag(first("retired_pages/pending_retirement", "retired_pages/pending_page_blacklist")),
        pcie_width=count(
            first("pci/pci_gpu_link_info/link_widths/current_link_width", "pci/gpu_link_info/link_width/current")
        ),
        pcie_width_max=count(
            first("pci/pci_gpu_link_info/link_widths/max_link_width", "pci/gpu_link_info/link_width/max")
        ),
        low_power=low_power(fields.get("performance_state")),
        fabric_state=word(fields.get("fabric/state")) or "",
        fabric_status=word(fields.get("fabric/status")) or "",
        uuid=word(first("uuid", "gpu_uuid")) or "",
        vbios=word(fields.get("vbios_version")) or "",
        tlimit_c=count(first("temperature/gpu_temp_tlimit", "temperature/gpu_t_limit_temp")),
        memory_used_mib=count(fields.get("fb_memory_usage/used")),
        trouble=trouble_of(fields.values()),
        errors=sum(fields.get(name) in _ERRORS for name in _HEALTH),
        undecided=tuple(name for name, means in _DECIDE.items() if is_undecided(fields.get(name), means)),
        sw_power_cap=_reason(fields, "sw_power_cap"),
        slowed=next((why for name, why in SLOWED if _reason(fields, name)), ""),
        repair_pending=flag(fields.get("ecc_errors/channel_repair_pending"))
        or flag(fields.get("ecc_errors/tpc_repair_pending")),
        ecc_off=first("ecc_mode/current_ecc", "ecc_mode/current") == "Disabled",
        fabric_health=_fabric_health(fields),
        app_clock_mhz=setting(first("applications_clocks/graphics_clock", "applications_clocks/graphics")),
        app_clock_default_mhz=setting(
            first("default_applications_clocks/graphics_clock", "default_applications_clocks/graphics")
        ),
        app_memory_mhz=setting(first("applications_clocks/mem_clock", "applications_clocks/memory")),
        app_memory_default_mhz=setting(
            first("default_applications_clocks/mem_clock", "default_applications_clocks/memory")
        ),
        max_clock_mhz=setting(first("max_clocks/graphics_clock", "max_clocks/graphics")),
        power_limit_w=setting(
            first(
                "gpu_power_readings/current_power_limit",
                "power_readings/power_limit",
                "power_readings/current_power_limit",
            )
        ),
        power_default_w=setting(first("gpu_power_readings/default_power_limit", "power_readings/default_power_limit")),
        held_by_set_clock=_reason(fields, "applications_clocks_setting"),
        power_brake_us=count(
            first(f"{counters}clocks_event_reasons_counters_hw_power_brake", f"{counters}hw_power_braking")
        ),
        hw_thermal_us=count(
            first(f"{counters}clocks_event_reasons_counters_hw_therm_slowdown", f"{counters}hw_thermal_slowdown")
        ),
        sw_thermal_us=count(
            first(f"{counters}clocks_event_reasons_counters_sw_therm_slowdown", f"{counters}sw_thermal_slowdown")
        ),
    )


_ERRORS = ("Unknown Error", "[Unknown Error]", "ERR!", "GPU access blocked by the operating system")
#: Values that convict a GPU, by every name that a release gave them.
_DECIDE: Mapping[str, Callable[[str | None], object]] = {
    "ecc_errors/volatile/sram_uncorrectable": tally,
    "ecc_errors/volatile/dram_uncorrectable": tally,
    "ecc_errors/volatile/sram_uncorrectable_parity": tally,
    "ecc_errors/volatile/sram_uncorrectable_sec_ded": tally,
    "ecc_errors/aggregate/sram_threshold_exceeded": flag,
    "ecc_errors/unrepairable_memory": flag,
    "remapped_rows/remapped_row_failure": flag,
    "remapped_rows/remapping_failure_occurred": flag,
    **dict.fromkeys(("gpu_recovery_action", "fabric/state", "fabric/status"), word),
}
_HEALTH = (
    *_DECIDE,
    *("fb_memory_usage/used", "remapped_rows/pending", "remapped_rows/remapped_row_pending"),
    *("temperature/gpu_temp", "temperature/gpu_current_temp", "performance_state", "persistence_mode"),
    *("gpu_power_readings/average_power_draw", "gpu_power_readings/power_draw", "power_readings/power_draw"),
)


def _reason(fields: Mapping[str, str], name: str) -> bool | None:
    """Return whether a reason for a lower clock is active; releases before R535 call them throttle reasons."""
    for key, value in fields.items():
        if key.startswith(("clocks_event_reasons/", "clocks_throttle_reasons/")) and key.endswith(name):
            return flag(value)
    return None


def _fabric_health(fields: Mapping[str, str]) -> str:
    """Return the summary of the fabric's health or, where that is not told, the first part that is not well."""
    if said := word(fields.get("fabric/health/summary")):
        return said
    for name in ("bandwidth", "route_unhealthy", "access_timeout_recovery", "incorrect_configuration"):
        said = word(fields.get(f"fabric/health/{name}"))
        if said and said.lower() not in ("full", "false", "no", "none"):
            return f"{name.replace('_', ' ')}: {said}" if name != "bandwidth" else f"{said} bandwidth"
    return ""


def _numbered(smi: Smi) -> Smi:
    """Keep positions as indexes only where the list is a machine's: neither form prints an index.

    From a part of the attached GPUs no index can be known. One GPU alone may be the only one of its machine or the one
    that a container or a virtual machine was given, in which case its index there is not the node's.
    """
    if smi.attached == len(smi.gpus) > 1:
        return smi
    return smi._replace(gpus=tuple(gpu._replace(number=None) for gpu in smi.gpus))


def indexed(smi: Smi, printed: Smi | None, *, expected_gpus: int | None) -> Smi:
    """Return the answer with the indexes that another view of the same run printed, or that the type leaves no doubt of."""
    numbers = {gpu.pci: gpu.number for gpu in printed.gpus if gpu.pci} if printed is not None else {}
    if len(smi.gpus) == smi.attached == expected_gpus == 1:
        numbers.setdefault(smi.gpus[0].pci, 0)
    return smi._replace(
        gpus=tuple(gpu if gpu.number is not None else gpu._replace(number=numbers.get(gpu.pci)) for gpu in smi.gpus)
    )
