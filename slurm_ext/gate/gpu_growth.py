"""What grew on each GPU between two readings: time held down by hardware, ECC errors, remapped rows. Pure.

An instant bit proves little: hardware slowdown also shows for a moment when the performance state changes (NVML's nvml.h).
The counters say how long in microseconds, since the driver loaded; a power cap set by software and idling are normal.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_ext.gate.model import Gpu, Judged, Smi, judged
from slurm_ext.typed import Any
from slurm_ext.verdict import FAIL, PASS, WARN

#: A GPU that was held down for more than this part of the time between two readings slows a synchronous job.
HELD_DOWN_SHARE = 0.5

#: Below this part it is not worth a word: our own choice, three seconds of an hour.
NOTED_SHARE = 0.001

#: Software slows a GPU that is above its operating temperature: worth a word from this part on (our own choice).
WARM_SHARE = 0.1

#: In less than this (seconds) a share of a job proves nothing: one moment of it is much of it.
LEAST_INTERVAL_S = 60.0

#: What is kept of a GPU, by the name it is kept under. All count from the driver's start, rows over the GPU's life.
_KEPT = {
    "hw_thermal_us": "hw_thermal_us",
    "power_brake_us": "power_brake_us",
    "sw_thermal_us": "sw_thermal_us",
    "sw_power_us": "sw_power_us",
    "ecc_corrected": "ecc_corrected",
    "ecc_uncorrected": "ecc_uncorrected",
    "remapped_corrected": "remapped_corrected",
    "remapped_uncorrected": "remapped_uncorrected",
}

_SLOWED = (
    ("gpu.hw-power-brake", "power_brake_us", "by the power brake"),
    ("gpu.hw-thermal", "hw_thermal_us", "by hardware for its heat"),
)

_COUNTED = (
    ("gpu.ecc-uncorrected-grew", "ecc_uncorrected", "uncorrected ECC errors"),
    ("gpu.ecc-corrected-grew", "ecc_corrected", "corrected ECC errors"),
    ("gpu.rows-remapped", "remapped_uncorrected", "rows remapped for uncorrectable errors"),
)


def keep(smi: Smi | None) -> dict[str, Any]:
    """Return the counters of each GPU, by its UUID or address: plain data for `judge_growth`. Without any, nothing."""
    found = {}
    for gpu in smi.gpus if smi is not None else ():
        counters = {name: value for name, field in _KEPT.items() if (value := getattr(gpu, field)) is not None}
        if counters and name_of(gpu):
            found[name_of(gpu)] = {"target": gpu.target, "driver": gpu.driver, **counters}
    return found


def name_of(gpu: Gpu) -> str:
    """Return what a GPU is known by from one reading to the next."""
    return gpu.uuid or gpu.pci


def judge_growth(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    interval_s: float | None,
    *,
    least_s: float = LEAST_INTERVAL_S,
) -> list[Judged]:
    """Return what grew between two of `keep`, `interval_s` apart (None: not known, then only errors are counted).

    In less than `least_s` seconds no share convicts; whoever took both readings under load on purpose says 0.

    A counter that went back counts from zero anew, since the driver was loaded again or the GPU reset: no growth is known.
    So is none for a GPU that only one of them has, nor after another driver was loaded.
    """
    items: list[Judged] = []
    for name, now in after.items():
        then = before.get(name)
        if not isinstance(then, Mapping) or not isinstance(now, Mapping) or then.get("driver") != now.get("driver"):
            continue
        grown = _grown(then, now)
        if grown is None:
            continue
        target = str(now.get("target", "node"))
        if interval_s is not None and interval_s > 0:
            items += _held_down(target, grown, interval_s, least_s)
        items += [
            judged(PASS, id_, target, "none", f"{grown[key]} {words} came in this time")
            for id_, key, words in _COUNTED
            if grown.get(key)
        ]
    return items


def _grown(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the growth of each counter that both readings have; None where one went back."""
    found = {}
    for key in _KEPT:
        old, new = then.get(key), now.get(key)
        if type(old) is not int or type(new) is not int:
            continue
        if new < old:
            return None
        found[key] = new - old
    return found


def _held_down(target: str, grown: Mapping[str, int], interval_s: float, least_s: float) -> list[Judged]:
    items = []
    for id_, key, by in _SLOWED:
        share = grown.get(key, 0) / (interval_s * 1e6)
        if share <= NOTED_SHARE:
            continue
        long = share > HELD_DOWN_SHARE and interval_s >= least_s
        word, action = (FAIL, "drain") if long else (WARN, "warn")
        items.append(judged(word, id_, target, action, f"held down {by} for {min(share, 1):.1%} of {interval_s:.0f} s"))
    share = grown.get("sw_thermal_us", 0) / (interval_s * 1e6)
    if share > WARM_SHARE:
        line = f"slowed by software for its heat for {min(share, 1):.1%} of {interval_s:.0f} s"
        items.append(judged(WARN, "gpu.sw-thermal", target, "warn", line))
    return items
