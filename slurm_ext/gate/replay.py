"""Judge a captured folder (case.json and files) by the very rules of the live gate. Groups not built answer unknown.

The right answer that a folder may carry is never read: a judge that could see it would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from slurm_ext.captured import Case, load
from slurm_ext.gate import gpu_nvlink, gpu_rules, smi, smi_forms
from slurm_ext.gate.model import Judged, Smi, conclude, judged
from slurm_ext.verdict import UNKNOWN, Verdict

#: Groups with a module of their own, `replay_NAME`.
_APART = ("efa", "kernel", "lustre", "slurm", "system")


def judge(path: str) -> Verdict:
    """Return the verdict over one folder. Raise UsageError where it cannot be read."""
    return judge_case(load(path))


def judge_case(case: Case) -> Verdict:
    """Return the verdict over one case."""
    built: dict[str, Callable[[Case], list[Judged]]] = {"gpu": _gpu}
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
        return smi_forms.parse_xml(text)
    if "NVSMI LOG" in text[:400] or "Attached GPUs" in text[:2000]:
        return smi_forms.parse_text(text)
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
        run = smi_forms.indexed(_run_of(case, _parse_smi(texts[role])), printed, expected_gpus=case.expected_gpus)
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
        items += gpu_nvlink.judge_nvlink(texts["nvlink"], gpu_type=case.gpu_type)
    if "topo" in texts:
        asked = True
        items += gpu_nvlink.judge_topo(texts["topo"], gpu_type=case.gpu_type)
    if not asked:
        items.append(judged(UNKNOWN, "gpu.no-probe", "node", "none", "no file of a kind that can be judged"))
    return _once(items)


def _once(items: list[Judged]) -> list[Judged]:
    """Return each id and target once: two views of one run say the same thing twice."""
    kept: dict[tuple[str, str], Judged] = {}
    for item in items:
        kept.setdefault((item.finding.id, item.finding.target), item)
    return list(kept.values())
