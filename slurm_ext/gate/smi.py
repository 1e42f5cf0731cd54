"""nvidia-smi's answer to `--query-gpu=... --format=csv` (with or without units) as Smi, and what is asked for live.

Pure parsers that never raise: what cannot be read is None. Source of the field names: nvidia-smi --help-query-gpu as
captured in utkuozdemir/nvidia_gpu_exporter internal/captures (R590 to R610). Hooks import this: no expression is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slurm_ext.gate.model import Gpu, Smi

#: What every driver since R470 can be asked for.
QUERY = (
    "index",
    "count",
    "pci.bus_id",
    "uuid",
    "driver_version",
    "vbios_version",
    "persistence_mode",
    "mig.mode.current",
    "memory.used",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.correctable",
    "remapped_rows.uncorrectable",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "pstate",
)

_COUNTERS = "clocks_event_reasons_counters."
_SRAM_THRESHOLD = "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"

#: What newer drivers know besides, by the feature that brought it: of an old one whole groups are unknown.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "recovery": ("gpu_recovery_action",),
    "sram": (_SRAM_THRESHOLD,),
    "fabric": ("fabric.state", "fabric.status"),
    "tlimit": ("temperature.gpu.tlimit",),
    # Known since long, and deprecated with CUDA 13.0: a driver that has dropped them must answer the rest.
    "clocks": (
        *("clocks.applications.graphics", "clocks.default_applications.graphics"),
        *("clocks.applications.memory", "clocks.default_applications.memory", "clocks.max.graphics"),
    ),
    "power": ("power.limit", "power.default_limit"),
    "counters": tuple(
        _COUNTERS + name
        for name in ("hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "sw_power_cap")
    ),
}

_COUNTED = (
    *("index", "count", "pci.bus_id", "uuid", "driver_version"),
    *("ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total"),
    *("remapped_rows.correctable", "remapped_rows.uncorrectable"),
)

#: From so many corrected ECC errors since the driver loaded on a person should know. NVIDIA names no number (gpu_corrected.py);
#: the two fleets whose checks are public take 20 million (Azure/azurehpc-health-checks, README) and 50 million
#: (facebookresearch/gcm, check-nvidia-smi): the smaller one, since it only warns.
MANY_CORRECTED = 20_000_000

_UNKNOWN_FIELD = "is not a valid field to query"

_YES = ("yes", "enabled", "active", "1")
_NO = ("no", "disabled", "not active", "0")

#: NVML's words for a GPU that no longer answers (nvml.h, nvmlErrorString), which stand in place of each of its values.
_TROUBLE = ("GPU is lost", "GPU requires reset")
_ERRORS = ("[Unknown Error]", "ERR!", "[ERR!]", "Unknown Error")

_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdefABCDEF")


def fields(without: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the fields to ask for, without those of the groups that this driver does not know."""
    return QUERY + tuple(name for group, names in GROUPS.items() if group not in without for name in names)


def counted(without: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the fields that count something, with those by which a GPU and its driver are known again."""
    return _COUNTED + (() if "counters" in without else GROUPS["counters"])


def refused(said: str, without: Sequence[str]) -> tuple[str, ...] | None:
    """Return the groups not to ask for the next time, where the answer was that a field is unknown; else None.

    nvidia-smi names the first such field only. Where it names none of ours, no group is asked for again.
    """
    if _UNKNOWN_FIELD not in said:
        return None
    named = [group for group, names in GROUPS.items() if group not in without and any(f'"{n}"' in said for n in names)]
    return (*without, *named) if named else tuple(GROUPS)


def flag(text: str | None) -> bool | None:
    """Return what Yes/No, Enabled/Disabled, Active/Not Active or 1/0 means; None for N/A and every other word."""
    said = (text or "").strip().lower()
    return True if said in _YES else False if said in _NO else None


def count(text: str | None) -> int | None:
    """Return the number at the start of `3`, `16x`, `-4` or `418223901 us`; None for N/A and every other word."""
    said = (text or "").strip()
    if len(said) <= 18 and said.isdecimal() and said.isascii():
        return int(said)
    digits, sign = "", 1
    for at, letter in enumerate(said[:20]):
        if letter in _DIGITS:
            digits += letter
        elif letter == "-" and at == 0:
            sign = -1
        else:
            break
    return sign * int(digits) if digits and len(digits) <= 18 else None


def tally(text: str | None) -> int | None:
    """Return a number of events; None also for what is below zero, by which tools say that they do not know."""
    number = count(text)
    return number if number is not None and number >= 0 else None


def setting(text: str | None) -> int | None:
    """Return a clock or a power limit; None also for nothing and below, which is none of either."""
    return tally(text) or None


def word(text: str | None) -> str | None:
    """Return a word of nvidia-smi as it stands; None for N/A, for an unsupported field, and for no field."""
    said = (text or "").strip().strip("[]")
    if not said or said.upper() in ("N/A", "ERR!") or said in _TROUBLE:
        return None
    return (
        None
        if said.lower() in ("not supported", "unknown error", "requested functionality has been deprecated")
        else said
    )


def is_undecided(text: str | None, means: Callable[[str | None], object]) -> bool:
    """Return whether a value was meant to say something that nobody can read: an error, or a word of another form."""
    return text in _ERRORS or (word(text) is not None and means(text) is None)


def pci_address(text: str) -> str:
    """Return `00000000:B9:00.0` or `0000:B9:00` as targets have it, or nothing where it is no address."""
    if len(text) == 16 and text[8] == text[11] == ":" and text[13] == "." and _HEX.issuperset(text[:8] + text[9:11]):
        return f"{text[4:13]}".lower() if text.startswith("0000") else _address_in(text)
    return _address_in(text)


def _address_in(text: str) -> str:
    import re  # here: an answer of the usual form needs no expression

    found = re.search(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})", text)
    return f"{int(found[1], 16):04x}:{found[2]}:{found[3]}".lower() if found else ""


def parse_csv(text: str) -> Smi:
    """Return the GPUs of a query's CSV with its header line; an end that is cut makes the run incomplete.

    nvidia-smi ends each row with a newline. Without it the last value may be cut, too (`Succ`, `1` of `16`): it says nothing.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return Smi(complete=False)
    at = next((at for at, line in enumerate(lines[:20]) if "pci.bus_id" in line or "index" in line), 0)
    names = [name.split("[", 1)[0].strip() for name in lines[at].split(",")]
    if "index" not in names and "pci.bus_id" not in names:
        return Smi(complete=False, said=text.strip()[:2000])
    ended = text.endswith(("\n", "\r"))
    gpus, said, complete, stamp = [], lines[:at], ended, None
    attached = None
    for line in lines[at + 1 :]:
        cells = [cell.strip() for cell in line.split(",")]
        cut = line is lines[-1] and not ended
        if len(cells) != len(names):
            if len(cells) > 2 or cut:
                complete = False
            else:
                said.append(line)  # a warning between the rows
            continue
        row = dict(zip(names, cells, strict=True))
        if cut:
            del row[names[-1]]
        gpus.append(_from_row(row))
        stamp = stamp or time_s(row.get("timestamp", ""))
        attached = count(row.get("count")) if attached is None else attached
    return Smi(tuple(gpus), attached, complete, said="\n".join(said), read_at_s=stamp)


def _from_row(row: Mapping[str, str]) -> Gpu:
    get = row.get
    single = count(get("retired_pages.single_bit_ecc.count", get("retired_pages.sbe")))
    double = count(get("retired_pages.double_bit.count", get("retired_pages.dbe")))
    capped = get("clocks_event_reasons.sw_power_cap", get("clocks_throttle_reasons.sw_power_cap"))
    return Gpu(
        number=count(get("index")),
        pci=pci_address(get("pci.bus_id", "")),
        persistence=flag(get("persistence_mode")),
        mig=flag(get("mig.mode.current")),
        recovery=word(get("gpu_recovery_action"))
        or reset_word(get("reset_status.reset_required"), get("reset_status.drain_and_reset_recommended")),
        ecc_uncorrected=tally(get("ecc.errors.uncorrected.volatile.total")),
        sram_threshold=flag(get(_SRAM_THRESHOLD)),
        remap_pending=flag(get("remapped_rows.pending")),
        remap_failure=flag(get("remapped_rows.failure")),
        remap_seen="remapped_rows.failure" in row,
        retired_pages=None if single is None or double is None else single + double,
        retired_pending=flag(get("retired_pages.pending")),
        pcie_width=count(get("pcie.link.width.current")),
        pcie_width_max=count(get("pcie.link.width.max")),
        low_power=low_power(get("pstate")),
        fabric_state=word(get("fabric.state")) or "",
        fabric_status=word(get("fabric.status")) or "",
        sw_power_cap=flag(capped),
        power_brake_us=count(get(_COUNTERS + "hw_power_brake_slowdown")),
        hw_thermal_us=count(get(_COUNTERS + "hw_thermal_slowdown")),
        inforom_valid=_inforom(get("inforom.checksum_validation")),
        uuid=word(get("uuid", get("gpu_uuid"))) or "",
        driver=word(get("driver_version")) or "",
        vbios=word(get("vbios_version")) or "",
        ecc_corrected=tally(get("ecc.errors.corrected.volatile.total")),
        remapped_corrected=tally(get("remapped_rows.correctable")),
        remapped_uncorrected=tally(get("remapped_rows.uncorrectable")),
        sw_thermal_us=count(get(_COUNTERS + "sw_thermal_slowdown")),
        sw_power_us=count(get(_COUNTERS + "sw_power_cap")),
        tlimit_c=count(get("temperature.gpu.tlimit")),
        memory_used_mib=count(get("memory.used")),
        trouble=trouble_of(row.values()),
        errors=sum(row.get(name) in _ERRORS for name in _HEALTH),
        undecided=tuple(name for name, means in _DECIDE.items() if is_undecided(row.get(name), means)),
        slowed=_slowed(get),
        ecc_off=get("ecc.mode.current") == "Disabled",
        fabric_health=word(get("fabric.health.summary")) or "",
        app_clock_mhz=setting(get("clocks.applications.graphics")),
        app_clock_default_mhz=setting(get("clocks.default_applications.graphics")),
        app_memory_mhz=setting(get("clocks.applications.memory")),
        app_memory_default_mhz=setting(get("clocks.default_applications.memory")),
        max_clock_mhz=setting(get("clocks.max.graphics")),
        power_limit_w=setting(get("power.limit")),
        power_default_w=setting(get("power.default_limit")),
        held_by_set_clock=flag(get("clocks_event_reasons.applications_clocks_setting")),
    )


#: Reasons for a lower clock that are worth a word as soon as they are there.
SLOWED = (
    ("hw_thermal_slowdown", "its heat, by hardware"),
    ("hw_power_brake_slowdown", "the power brake"),
    ("sw_thermal_slowdown", "its heat, by software"),
)


def reset_word(required: str | None, drain: str | None) -> str | None:
    """Return the recovery action that R535 to R555 told as two flags; `No` twice is no word on anything else."""
    if flag(required):
        return "Reset"
    return "Drain and Reset" if flag(drain) else None


def _slowed(get: Callable[[str], str | None]) -> str:
    """Return what slows a GPU at this moment; the bit over both of hardware shows for a moment on other changes, too."""
    for name, why in SLOWED:
        if flag(get(f"clocks_event_reasons.{name}") or get(f"clocks_throttle_reasons.{name}")):
            return why
    return ""


#: Values that convict a GPU: of one that cannot be read nobody knows whether the GPU is well.
_DECIDE: Mapping[str, Callable[[str | None], object]] = {
    "ecc.errors.uncorrected.volatile.total": tally,
    "remapped_rows.failure": flag,
    "gpu_recovery_action": word,
    _SRAM_THRESHOLD: flag,
    **dict.fromkeys(GROUPS["fabric"], word),
}
_HEALTH = (
    *_DECIDE,
    "remapped_rows.pending",
    "pcie.link.width.current",
    "memory.used",
    "temperature.gpu.tlimit",
    *GROUPS["counters"],
)


def trouble_of(values: object) -> str:
    """Return NVML's word for a GPU that is gone, where a value (an iterable of texts) has it in place of a value."""
    for value in values:  # type: ignore[attr-defined]
        if value.startswith("[GPU ") or value.startswith("GPU "):
            for said in _TROUBLE:
                if said in value[:40]:
                    return said
    return ""


def low_power(pstate: str | None) -> bool | None:
    """Return whether a performance state (`P0` to `P15`) is one in which links may be narrowed to save power."""
    said = (pstate or "").strip()
    return int(said[1:]) >= 5 if said[:1] == "P" and said[1:].isdecimal() and len(said) < 5 else None


def _inforom(text: str | None) -> bool | None:
    said = (text or "").strip().lower()
    return True if said == "valid" else False if said in ("invalid", "corrupted") else None


def time_s(text: str) -> float | None:
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


def quiet(smi: Smi, *, expected_gpus: int | None) -> bool:
    """Return whether an answer is plainly that of healthy GPUs, all of them: then no rule has anything to say about it."""
    return (
        not smi.said
        and smi.exit_code == 0
        and smi.complete
        and not smi.timed_out
        and len(smi.gpus) >= (expected_gpus or 1)
        and smi.attached in (None, len(smi.gpus))
        and all(_quiet(gpu) for gpu in smi.gpus)
        and not listed_twice(smi.gpus)
        and len({(gpu.app_clock_mhz, gpu.app_memory_mhz, gpu.power_limit_w) for gpu in smi.gpus}) == 1
    )


def is_blank(gpu: Gpu) -> bool:
    """Return whether a GPU was asked for all that decides, and not even its name, address and driver came back."""
    return gpu.remap_seen and not (gpu.uuid or gpu.pci or gpu.driver) and gpu.ecc_uncorrected is None


def listed_twice(gpus: Sequence[Gpu]) -> str:
    """Return the UUID or address that two GPUs of a list have, nothing where all have their own."""
    seen: set[str] = set()
    for name in [name for gpu in gpus for name in (gpu.uuid, gpu.pci) if name]:
        if name in seen:
            return name
        seen.add(name)
    return ""


def _quiet(gpu: Gpu) -> bool:
    return (
        not is_blank(gpu)
        and gpu.ecc_uncorrected in (0, None)
        and not (gpu.remap_pending or gpu.remap_failure or gpu.sram_threshold or gpu.unrepairable)
        and not (gpu.mig or gpu.retired_pending or gpu.retired_pages or gpu.sw_power_cap)
        and gpu.persistence is not False
        and gpu.inforom_valid is not False
        and gpu.recovery in (None, "None")
        and gpu.pcie_width == gpu.pcie_width_max
        and gpu.fabric_state in ("", "Completed", "Not Supported")
        and gpu.fabric_status in ("", "Success")
        and (gpu.tlimit_c is None or gpu.tlimit_c > 0)
        and not (
            gpu.trouble
            or gpu.errors
            or gpu.undecided
            or gpu.slowed
            or gpu.ecc_off
            or gpu.fabric_health
            or gpu.held_by_set_clock
        )
        and (gpu.ecc_corrected or 0) < MANY_CORRECTED
        and (gpu.app_clock_mhz or 0) >= (gpu.app_clock_default_mhz or 0)
        and (gpu.app_memory_mhz or 0) >= (gpu.app_memory_default_mhz or 0)
        and (gpu.power_limit_w or 0) >= (gpu.power_default_w or 0)
    )
