"""nvidia-smi's output, in each of its forms, as Smi. Pure parsers that never raise: what cannot be read is None.

Forms: `--query-gpu=... --format=csv` (with or without units), `-q -x` (XML, DTD v11 to v13) and `-q` (indented text).
XML is read as a stream of tags, so that a cut one still tells what it holds. Source of the field names: nvidia-smi
--help-query-gpu and nvsmi_device_v11..v13.dtd.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_ext.gate.model import Gpu, Smi

#: Fields of the live query; an old driver that does not know the last ones is asked again without them.
QUERY = (
    "index",
    "pci.bus_id",
    "persistence_mode",
    "mig.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "pstate",
)
QUERY_NEW = ("gpu_recovery_action",)

_YES = ("yes", "enabled", "active", "1")
_NO = ("no", "disabled", "not active", "0")


def flag(text: str | None) -> bool | None:
    """Return what Yes/No, Enabled/Disabled, Active/Not Active or 1/0 means; None for N/A and every other word."""
    word = (text or "").strip().lower()
    return True if word in _YES else False if word in _NO else None


def count(text: str | None) -> int | None:
    """Return the number at the start of `3`, `16x` or `418223901 us`; None for N/A and every other word."""
    found = re.match(r"\s*(\d+)", text or "")
    return int(found[1]) if found else None


def pci_address(text: str) -> str:
    """Return `00000000:B9:00.0` or `0000:B9:00` as targets have it, or nothing where it is no address."""
    found = re.search(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})", text)
    return f"{int(found[1], 16):04x}:{found[2]}:{found[3]}".lower() if found else ""


def parse_csv(text: str) -> Smi:
    """Return the GPUs of a query's CSV with its header line; a last row that is cut makes the run incomplete."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return Smi(complete=False)
    names = [re.sub(r"\s*\[.*\]$", "", name.strip()) for name in lines[0].split(",")]
    if "index" not in names and "pci.bus_id" not in names:
        return Smi(complete=False, said=text.strip()[:2000])
    gpus, said, complete, stamp = [], [], True, None
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(names):
            if len(cells) > 2 or (line is lines[-1] and not text.endswith("\n")):
                complete = False
            else:
                said.append(line)  # a warning between the rows
            continue
        row = dict(zip(names, cells, strict=True))
        gpus.append(_from_row(row))
        stamp = stamp or _time(row.get("timestamp", ""))
    attached = None
    for line in lines[1:2]:
        if "count" in names and len(line.split(",")) == len(names):
            attached = count(line.split(",")[names.index("count")])
    return Smi(tuple(gpus), attached, complete, said="\n".join(said), read_at_s=stamp)


def _from_row(row: Mapping[str, str]) -> Gpu:
    def first(*names: str) -> str | None:
        return next((row[name] for name in names if name in row), None)

    total = count(first("ecc.errors.uncorrected.volatile.total"))
    single = count(first("retired_pages.single_bit_ecc.count", "retired_pages.sbe"))
    double = count(first("retired_pages.double_bit.count", "retired_pages.dbe"))
    return Gpu(
        number=count(row.get("index")),
        pci=pci_address(row.get("pci.bus_id", "")),
        persistence=flag(row.get("persistence_mode")),
        mig=flag(row.get("mig.mode.current")),
        recovery=_word(row.get("gpu_recovery_action")),
        ecc_uncorrected=total,
        sram_threshold=flag(row.get("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded")),
        remap_pending=flag(row.get("remapped_rows.pending")),
        remap_failure=flag(row.get("remapped_rows.failure")),
        remap_seen="remapped_rows.failure" in row,
        retired_pages=None if single is None or double is None else single + double,
        retired_pending=flag(row.get("retired_pages.pending")),
        pcie_width=count(row.get("pcie.link.width.current")),
        pcie_width_max=count(row.get("pcie.link.width.max")),
        low_power=_low_power(row.get("pstate")),
        sw_power_cap=flag(first("clocks_event_reasons.sw_power_cap", "clocks_throttle_reasons.sw_power_cap")),
        power_brake_us=count(row.get("clocks_event_reasons_counters.hw_power_brake_slowdown")),
        hw_thermal_us=count(row.get("clocks_event_reasons_counters.hw_thermal_slowdown")),
        inforom_valid=_inforom(row.get("inforom.checksum_validation")),
    )


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
        if not empty:
            path.append(name)
            if value.strip():
                key = "/".join(path)
                (header if fields is None else fields).setdefault(key, value.strip())
    attached = count(header.get("nvidia_smi_log/attached_gpus"))
    return _numbered(Smi(tuple(gpus), attached, closed, read_at_s=_time(header.get("nvidia_smi_log/timestamp", ""))))


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
            stamp = _time(value) if key == "timestamp" else stamp
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
        count(value)
        for name, value in fields.items()
        if re.match(r"ecc_errors/volatile/.*uncorrectable", name) and "mig_device" not in name
    ]
    known = [value for value in uncorrected if value is not None]
    single = count(first("retired_pages/multiple_single_bit_retirement/retired_count", "retired_pages/single_bit_ecc"))
    double = count(first("retired_pages/double_bit_retirement/retired_count", "retired_pages/double_bit_ecc"))
    counters = "clocks_event_reasons_counters/"
    return Gpu(
        number=position if fields.get("minor_number", "").isdigit() else None,
        pci=fields.get("id", ""),
        persistence=flag(fields.get("persistence_mode")),
        mig=flag(first("mig_mode/current_mig", "mig_mode/current")),
        recovery=_word(fields.get("gpu_recovery_action")),
        ecc_uncorrected=sum(known) if known else None,
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
        low_power=_low_power(fields.get("performance_state")),
        fabric_state=_word(fields.get("fabric/state")) or "",
        fabric_status=_word(fields.get("fabric/status")) or "",
        power_brake_us=count(
            first(f"{counters}clocks_event_reasons_counters_hw_power_brake", f"{counters}hw_power_braking")
        ),
        hw_thermal_us=count(
            first(f"{counters}clocks_event_reasons_counters_hw_therm_slowdown", f"{counters}hw_thermal_slowdown")
        ),
    )


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


def _word(text: str | None) -> str | None:
    """Return a word of nvidia-smi as it stands; None for N/A, for an unsupported field, and for no field."""
    word = (text or "").strip().strip("[]")
    return None if not word or word.upper() == "N/A" or word.lower() in ("not supported", "unknown error") else word


def _low_power(pstate: str | None) -> bool | None:
    found = re.fullmatch(r"P(\d+)", (pstate or "").strip())
    return int(found[1]) >= 5 if found else None


def _inforom(text: str | None) -> bool | None:
    word = (text or "").strip().lower()
    return True if word == "valid" else False if word in ("invalid", "corrupted") else None


def _time(text: str) -> float | None:
    """Return nvidia-smi's time as seconds without a zone: good for differences between two readings only."""
    if not text.strip():
        return None
    import time  # here: the live path asks for no time stamp, and strptime is slow to import
    from calendar import timegm

    for form, cut in (("%Y/%m/%d %H:%M:%S", 19), ("%a %b %d %H:%M:%S %Y", 40)):
        try:
            return float(timegm(time.strptime(text.strip()[:cut], form)))
        except ValueError:
            continue
    return None
