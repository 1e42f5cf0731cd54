"""Judge a captured folder (case.json and files) by the very rules of the live gate. Groups not built answer unknown.

The right answer that a folder may carry is never read: a judge that could see it would prove nothing.
"""

from __future__ import annotations

from importlib import import_module

from slurm_ext.captured import Case, load
from slurm_ext.gate.model import Judged, conclude
from slurm_ext.verdict import UNKNOWN, Verdict

#: Groups with a module of their own, `replay_NAME`.
_APART = ("efa", "gpu", "kernel", "lustre", "slurm", "system")


def judge(path: str) -> Verdict:
    """Return the verdict over one folder. Raise UsageError where it cannot be read."""
    return judge_case(load(path))


def judge_case(case: Case) -> Verdict:
    """Return the verdict over one case."""
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


def _once(items: list[Judged]) -> list[Judged]:
    """Return each id and target once: two views of one run say the same thing twice."""
    kept: dict[tuple[str, str], Judged] = {}
    for item in items:
        kept.setdefault((item.finding.id, item.finding.target), item)
    return list(kept.values())
