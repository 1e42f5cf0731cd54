"""What happened on a node in one job's time, as data: Xids by process and GPU, and what the checks found that was not there
when the job began. The requeue daemon reads it from the event of the epilog. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm_ext.gate.model import Gpu, Judged
from slurm_ext.patterns import pattern
from slurm_ext.typed import Any
from slurm_ext.verdict import UNKNOWN, Finding

#: An event is a line: so many entries at most, and what else there was is counted.
ENTRIES_MAX = 40

#: So much of a counter's growth is told for one finding.
GROWTH_MAX = 12

_XID = pattern(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.\d)?[^)]*\): (\d{1,5})"
    r"(?:, pid='?(\d+|<unknown>)'?)?",
    needs="NVRM: Xid",
)
_GREW = pattern(r"([a-z][a-z_]{1,60}) grew by ([0-9]{1,18})", needs=" grew by ")


def of_job(
    said: Iterable[str],
    items: Iterable[Judged],
    *,
    known: Iterable[str] | None,
    is_slow: Callable[[str], bool] = lambda id_: False,
    gpus: Sequence[Gpu] = (),
    gpu_ids: Sequence[str] = (),
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return what is to be told of the job: `said` is what the kernel said in its time, `items` what the look found.

    `known` is what was found when the job began (`id target`), None where that is not known: then only what the kernel
    said in the job's time is told. `is_slow` says of an id that no prolog looks for it: its being new proves nothing.
    `before` and `after` are the counters of the GPUs (gpu_growth.keep).
    """
    told = _xids(said, gpus, gpu_ids)
    seen = {(entry["id"], entry["target"]) for entry in told}
    codes = {entry["id"] for entry in told}  # the checks tell a program's own Xid again, as `job.xid-N`
    old = None if known is None else frozenset(known)
    for item in items:
        finding = item.finding
        target = _by_index(finding.target, gpus)
        if old is None or item.verdict == UNKNOWN or (finding.id, target) in seen:
            continue
        if f"{finding.id} {finding.target}" in old or f"gpu.{finding.id.partition('.')[2]}" in codes:
            continue
        if is_slow(finding.id):
            continue
        entry: dict[str, Any] = {"id": finding.id, "target": target, "action": finding.action, "verdict": item.verdict}
        if finding.evidence:
            entry["evidence"] = finding.evidence[0][:300]
        if (ours := _is_ours(target, gpus, gpu_ids)) is not None:
            entry["of_job"] = ours
        if grown := _grown(finding, target, before or {}, after or {}):
            entry["delta"] = grown
        told.append(entry)
    left_off = len(told) - ENTRIES_MAX
    return told if left_off <= 0 else [*told[:ENTRIES_MAX], {"id": "more", "target": "node", "count": left_off}]


def _xids(said: Iterable[str], gpus: Sequence[Gpu], gpu_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return one entry for each code, GPU and process that the kernel named."""
    counted: dict[tuple[str, str, str], dict[str, Any]] = {}
    for text in said:
        found = _XID.match(text)
        if found is None:
            continue
        target = _by_index(f"gpu@{int(found[1], 16):04x}:{found[2]}:{found[3]}".lower(), gpus)
        entry = counted.setdefault(
            (target, found[4], found[5] or ""), {"id": f"gpu.xid-{found[4]}", "target": target, "count": 0}
        )
        entry["count"] += 1
        entry.setdefault("evidence", text[:300])
        if (found[5] or "").isdigit():
            entry["pid"] = int(found[5])
        if (ours := _is_ours(target, gpus, gpu_ids)) is not None:
            entry["of_job"] = ours
    return list(counted.values())


def _by_index(target: str, gpus: Sequence[Gpu]) -> str:
    """Return a GPU's target by index where nvidia-smi told which GPU has this address."""
    if not target.startswith("gpu@"):
        return target
    return next((gpu.target for gpu in gpus if gpu.pci == target[4:] and gpu.number is not None), target)


def _is_ours(target: str, gpus: Sequence[Gpu], gpu_ids: Sequence[str]) -> bool | None:
    """Say whether a target is one of the job's GPUs, None where it is no GPU, or where that cannot be told."""
    if not target.startswith("gpu:") or not gpu_ids:
        return None
    number = target[4:]
    uuid = next((gpu.uuid.lower() for gpu in gpus if str(gpu.number) == number), "")
    ids = [id_.lower() for id_ in gpu_ids]
    if number in ids or (uuid and any(uuid in id_ for id_ in ids)):
        return True
    # A UUID that nobody resolves may be this very GPU's.
    known = {gpu.uuid.lower() for gpu in gpus if gpu.uuid}
    return False if all(id_.isdigit() or id_ in known for id_ in ids) else None


def _grown(finding: Finding, target: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Return which counters of a finding's target grew, by name and by how much: as its evidence says, or as was kept."""
    grown: dict[str, float] = {
        found[1]: int(found[2]) for line in finding.evidence for found in _GREW.finditer(line[:400])
    }
    for name, now in after.items():
        then = before.get(name)
        if isinstance(then, Mapping) and isinstance(now, Mapping) and now.get("target") == target:
            for counter, value in now.items():
                if type(value) is int and type(then.get(counter)) is int and value > then[counter]:
                    grown[counter] = value - then[counter]
    return dict(sorted(grown.items())[:GROWTH_MAX])
