"""Judge a captured folder (case.json and files) by the very rules of the live gate. Groups not built answer unknown.

The right answer that a folder may carry is never read: a judge that could see it would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from slurm_ext.captured import Case, load
from slurm_ext.gate import gpu_rules, kernel_log, kernel_rules, smi
from slurm_ext.gate.model import Judged, Smi, conclude, judged
from slurm_ext.verdict import UNKNOWN, Verdict

#: Groups with a module of their own, `replay_NAME`.
_APART = ("efa", "lustre", "slurm", "system")


def judge(path: str) -> Verdict:
    """Return the verdict over one folder. Raise UsageError where it cannot be read."""
    case = load(path)
    built: dict[str, Callable[[Case], list[Judged]]] = {"gpu": _gpu, "kernel": _kernel}
    if case.group in built:
        return conclude(built[case.group](case), rule=f"replay.{case.group}")
    if case.group in _APART:
        room = import_module(f"slurm_ext.gate.replay_{case.group}")
        return conclude(_once(room.judge(case)), rule=f"replay.{case.group}")
    if case.group in ("nccl", "perf"):
        return _burnin(case)
    return Verdict(UNKNOWN, (), f"captures of group {case.group} cannot be judged yet", "replay.not-built")


def _burnin(case: Case) -> Verdict:
    """Ask the burn-in room, which knows NCCL's logs; found by name, since rooms do not import one another."""
    try:
        room = import_module("slurm_ext.burnin.replay")
    except ImportError:
        return Verdict(UNKNOWN, (), "the burn-in room cannot judge captures yet", "replay.not-built")
    verdict = room.judge_case(case)
    assert isinstance(verdict, Verdict)
    return verdict


def _run_of(case: Case, parsed: Smi) -> Smi:
    """Return the parsed output with how its run ended, and with what stood in the other stream."""
    code = case.context.get("exit_code", 0)
    return parsed._replace(
        exit_code=code if isinstance(code, int) else None,
        timed_out=bool(case.context.get("timed_out", False)),
        elapsed_s=float(case.context.get("elapsed_s") or 0.0),
        said="\n".join(part for part in (parsed.said, case.texts.get("stderr", "")) if part.strip()),
    )


def _parse_smi(text: str) -> Smi:
    """Return the answer in a text whose form is not told."""
    head = text.lstrip()[:200]
    if head.startswith("<"):
        return smi.parse_xml(text)
    if "NVSMI LOG" in text[:400] or "Attached GPUs" in text[:2000]:
        return smi.parse_text(text)
    return smi.parse_csv(text) if text.strip() else Smi(complete=False)


def _gpu(case: Case) -> list[Judged]:
    texts = case.texts
    items: list[Judged] = []
    asked = False
    now, boot = case.time_s("now"), case.time_s("boot_time")
    boot_age_s = now - boot if now is not None and boot is not None else None
    second = smi.parse_csv(texts["smi_csv_second"]) if "smi_csv_second" in texts else None
    printed = smi.parse_csv(texts["smi_csv"]) if "smi_csv" in texts else None
    for role in ("smi_q_xml", "smi_q_text", "smi_csv", "smi_csv_loaded", "stdout"):
        if role not in texts:
            continue
        asked = True
        run = smi.indexed(_run_of(case, _parse_smi(texts[role])), printed, expected_gpus=case.expected_gpus)
        items += gpu_rules.judge(
            run,
            expected_gpus=case.expected_gpus,
            boot_age_s=boot_age_s,
            second=second if role == "smi_csv" else None,
        )
    if "stderr" in texts and "stdout" not in texts and not asked:
        asked = True
        items += gpu_rules.judge(_run_of(case, Smi(complete=False)), expected_gpus=case.expected_gpus)
    if "nvlink" in texts:
        asked = True
        items += gpu_rules.judge_nvlink(texts["nvlink"], gpu_type=case.gpu_type)
    if "topo" in texts:
        asked = True
        items += gpu_rules.judge_topo(texts["topo"], gpu_type=case.gpu_type)
    if not asked:
        items.append(judged(UNKNOWN, "gpu.no-probe", "node", "none", "no file of a kind that can be judged"))
    return _once(items)


def _kernel(case: Case) -> list[Judged]:
    logs = [case.texts[role] for role in ("kmsg", "dmesg", "journal", "syslog") if role in case.texts]
    if not logs:
        return [judged(UNKNOWN, "kernel.no-log", "node", "none", "no kernel log in this capture")]
    lines = [line for text in logs for line in kernel_log.parse(text)]
    recovery = None
    if "smi_csv" in case.texts:
        read = smi.parse_csv(case.texts["smi_csv"])
        recovery = {gpu.pci: gpu.recovery or "none" for gpu in read.gpus if gpu.recovery is not None}
    boot_time_s = case.time_s("boot_time")
    items = kernel_rules.judge(
        lines, boot_id=str(case.context.get("boot_id", "")), boot_time_s=boot_time_s, recovery=recovery
    )
    whole_boot = boot_time_s is not None and ("now" in case.context or "ring_bytes" in case.context)
    if whole_boot and kernel_rules.lost_beginning(lines, boot_time_s):
        line = "the log begins long after boot: earlier messages of this boot are gone"
        items.append(judged(UNKNOWN, "kernel.log-incomplete", "node", "none", line))
    return items


def _once(items: list[Judged]) -> list[Judged]:
    """Return each id and target once: two views of one run say the same thing twice."""
    kept: dict[tuple[str, str], Judged] = {}
    for item in items:
        kept.setdefault((item.finding.id, item.finding.target), item)
    return list(kept.values())
