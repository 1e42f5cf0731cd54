"""What EFA's counters did while a job ran: kept small at its beginning, compared at its end, attributed to it. Pure.

Growth is judged by `efa_counters`, the very rules of the captures. Standard library only: hooks import this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_ext.gate import efa_counters
from slurm_ext.gate.efa_facts import Device
from slurm_ext.gate.efa_live_quick import COUNTERS
from slurm_ext.gate.model import Judged, judged
from slurm_ext.typed import Any
from slurm_ext.verdict import WARN, Finding


def values_of(devices: Sequence[Device]) -> dict[str, tuple[int | None, ...]]:
    """Return the counters of devices that were read whole, in the order of COUNTERS."""
    return {device.name: tuple(device.counters.get(name) for name in COUNTERS) for device in devices}


def kept_devices(kept: Mapping[str, Any]) -> tuple[tuple[Device, ...], float | None]:
    """Return the devices as they were when the job began, and when that was; nothing where what was kept has another form."""
    names, rows, at_s = kept.get("counters"), kept.get("devices"), kept.get("at_s")
    if not isinstance(names, list) or not isinstance(rows, dict):
        return (), None
    found = []
    for name, row in rows.items():
        if not isinstance(name, str) or not isinstance(row, list) or len(row) != len(names):
            continue
        counters = {str(key): value for key, value in zip(names, row, strict=True) if _is_count(value)}
        found.append(Device(name, counters))
    return tuple(found), float(at_s) if isinstance(at_s, int | float) and not isinstance(at_s, bool) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def judge_once(devices: Sequence[Device]) -> list[Judged]:
    """Return what one reading says of now. Commands that were refused since the driver was loaded are history, not news."""
    return [item for item in efa_counters.judge(devices) if item.finding.id != "efa.command-error"]


def judge_job(
    kept: Mapping[str, Any], after: Sequence[Device], *, now_s: float, start_s: float | None, job_id: str
) -> list[Judged]:
    """Return what grew in a job's time, each finding with the job's id as evidence. `now_s`, `start_s`: since the epoch."""
    before, at_s = kept_devices(kept)
    if not before:
        return []
    began = at_s if at_s is not None else start_s
    items = efa_counters.judge_growth(before, after, now_s - began if began is not None else None)
    items += _refused(before, after)
    line = f"in the time of job {job_id}" if job_id else "since the job began"
    return [
        Judged(
            Finding(item.finding.id, item.finding.target, item.finding.action, (*item.finding.evidence, line)),
            item.verdict,
        )
        for item in items
    ]


def _refused(before: Sequence[Device], after: Sequence[Device]) -> list[Judged]:
    """Return the devices that refused commands in the window, the node where all did."""
    earlier = {device.name: device.counters.get("cmds_err") for device in before}
    grown: dict[str, int] = {}
    for device in after:
        first, last = earlier.get(device.name), device.counters.get("cmds_err")
        if first is not None and last is not None and last > first and not device.counters.get("no_completion_cmds"):
            grown[device.name] = last - first
    if len(grown) == len(after) > 1:
        line = f"{sum(grown.values())} admin commands were refused, some on each of {len(after)} devices"
        return [judged(WARN, "efa.command-error", "node", "warn", line)]
    return [
        judged(WARN, "efa.command-error", f"efa:{name}", "warn", f"{count} admin commands were refused")
        for name, count in grown.items()
    ]
