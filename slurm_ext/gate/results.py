"""One look -> what became of every check: passed, found something, could not look, is off, or does not belong here. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from slurm_ext.config.model import Settings
from slurm_ext.gate import checks, unread_rules
from slurm_ext.gate.local import Look
from slurm_ext.gate.model import Facts, Gpu, Judged, covers
from slurm_ext.gate.probes import Check
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

#: What became of a check beside the four verdicts: switched off, or nothing here to look at.
OFF, NOTHING = "off", "-"

#: Checks of a value that not every driver tells: of silence nothing is known to be well.
_NOT_TOLD: Mapping[str, tuple[Callable[[Gpu], object], str]] = {
    "gpu.clocks-set-low": (lambda gpu: gpu.app_clock_mhz, "this driver tells no application clocks (R590 and later)"),
    "gpu.power-limit-low": (lambda gpu: gpu.power_limit_w, "this driver tells no power limits"),
    "gpu.ecc-corrected-many": (lambda gpu: gpu.ecc_corrected, "this driver tells no corrected ECC errors"),
}

_WORST = (FAIL, UNKNOWN, WARN, PASS)


class Result(NamedTuple):
    """What became of one check in one look: `result` is a verdict, OFF or NOTHING; `why` says more where it is not pass."""

    check: str
    result: str
    why: str = ""


def of_look(look: Look, settings: Settings, phase: str) -> list[Result]:
    """Return one row for each check of this phase, and one for each finding that no check announces."""
    disabled = tuple(word for word in settings.gate.disabled if word)
    every = checks.every()
    blind = _blind(every, look)
    rows: list[Result] = []
    told: set[str] = set()
    for check in every:
        if phase not in check.phases:
            continue
        mine = [item for item in look.items if item.finding.id.startswith(check.id)]
        told |= {item.finding.id for item in mine}
        if disabled and covers(disabled, check.id):
            rows.append(Result(check.id, OFF, "named in gate.disabled"))
        elif mine:
            rows.append(Result(check.id, *_worst(mine)))
        else:
            rows.append(_silent(check, look.facts, settings, blind))
    others = {item.finding.id: item for item in look.items if item.finding.id not in told}
    return _once([*rows, *(Result(id_, *_worst([item])) for id_, item in others.items())])


def _once(rows: Iterable[Result]) -> list[Result]:
    """Return one row for each check: some are made in two ways, and then the worse answer is told."""
    order = (FAIL, UNKNOWN, WARN, OFF, PASS, NOTHING)
    found: dict[str, Result] = {}
    for row in rows:
        other = found.get(row.check)
        if other is None or order.index(row.result) < order.index(other.result):
            found[row.check] = row
    return list(found.values())


def _worst(items: Iterable[Judged]) -> tuple[str, str]:
    item = min(items, key=lambda one: _WORST.index(one.verdict))
    said = item.finding.evidence[0] if item.finding.evidence else ""
    return item.verdict, f"{item.finding.target}: {said}" if said else item.finding.target


def _blind(every: Iterable[Check], look: Look) -> Mapping[str, str]:
    """Return the ids of checks whose look did not end, with why: a silent check is no passed one then."""
    found: dict[str, str] = {}
    lost = {item.finding.id.removesuffix(".no-answer") for item in look.items if item.finding.id.endswith(".no-answer")}
    for name, rows in checks.by_probe().items():
        if name in lost:
            found |= {row.id: f"the look at {name} did not end" for row in rows}
    facts = look.facts
    unread = unread_rules.blind(look.items)
    for row in every:
        if why := next((said for begins, said in unread.items() if row.id.startswith(begins)), ""):
            found.setdefault(row.id, why)
        if row.id.startswith("gpu.") and checks.asks_smi(row) and facts.smi is not None and not _has_gpus(facts):
            found.setdefault(row.id, "nvidia-smi gave no whole answer")
        if checks.reads_log(row) and facts.kernel is None:
            found.setdefault(row.id, "the kernel log could not be read")
    return found


def _has_gpus(facts: Facts) -> bool:
    return facts.smi is not None and facts.smi.complete and not facts.smi.timed_out and bool(facts.smi.gpus)


def _silent(check: Check, facts: Facts, settings: Settings, blind: Mapping[str, str]) -> Result:
    """Return the row of a check that found nothing: it passed, it could not look, or there was nothing to look at."""
    if check.id in blind:
        return Result(check.id, UNKNOWN, blind[check.id])
    if check.id.startswith(("gpu.", "dcgm.")) and facts.smi is None and not checks.reads_log(check):
        return Result(check.id, NOTHING, "there is no nvidia-smi")
    if (told := _NOT_TOLD.get(check.id)) is not None and facts.smi is not None and _has_gpus(facts):
        value, why = told
        if all(value(gpu) is None for gpu in facts.smi.gpus):
            return Result(check.id, NOTHING, why)
    if check.id == "node.type-unknown" and not facts.instance_type:
        return Result(check.id, NOTHING, "DMI names no instance type")
    containers = facts.probed.get("container")
    if check.id.startswith("container.") and not (containers and containers.kept.get("asked")):
        return Result(check.id, NOTHING, "no container runtime runs here or is named in gate.container_runtimes")
    if check.id == "dcgm-health.":
        why = facts.probed["dcgm"].kept.get("watches", "gate.dcgm_health is off") if facts.probed.get("dcgm") else ""
        return Result(check.id, NOTHING if why else PASS, why)
    if check.id == "dcgm." and not (facts.probed.get("dcgm") and facts.probed["dcgm"].kept.get("level")):
        off = settings.gate.slow_check == "off"
        return Result(check.id, NOTHING, "gate.slow_check is off" if off else "DCGM has not run on this boot yet")
    if check.id == "efa.loopback-" and not (facts.probed.get("efa") and facts.probed["efa"].kept.get("loopback")):
        off = not settings.gate.efa_loopback
        return Result(check.id, NOTHING, "gate.efa_loopback is off" if off else "it has not run on this boot yet")
    if check.id.startswith(("efa.", "compat.")) and facts.efa_devices == 0:
        return Result(check.id, NOTHING, "there is no EFA device")
    if check.id.startswith(("lustre.", "lnet.")) and facts.mounts is None:
        return Result(check.id, UNKNOWN, "the table of mounts could not be read")
    if check.id.startswith(("lustre.", "lnet.")) and not any(" lustre " in line for line in facts.mounts or ()):
        return Result(check.id, NOTHING, "no Lustre is mounted")
    if check.cost == checks.SCRATCH and not settings.gate.nvme_dirs and facts.kernel is None:
        return Result(check.id, NOTHING, "gate.nvme_dirs is empty")
    if check.cost == checks.MOUNTS and not settings.gate.lustre_mounts:
        return Result(check.id, NOTHING, "gate.lustre_mounts is empty")
    return Result(check.id, PASS)


def counted(rows: Iterable[Result]) -> dict[str, int]:
    """Return how many checks came to each result."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.result] = counts.get(row.result, 0) + 1
    return counts


def words(rows: Iterable[Result]) -> str:
    """Return one line: how many passed, warn, failed, could not look, are off."""
    counts = counted(rows)
    named = (
        (PASS, "passed"),
        (WARN, "warn"),
        (FAIL, "failed"),
        (UNKNOWN, "could not tell"),
        (OFF, "off"),
        (NOTHING, "with nothing to look at"),
    )
    return ", ".join(f"{counts[key]} {word}" for key, word in named if counts.get(key)) or "no check ran"
