"""The one line on a burn-in that a job finds in its own log. Pure; texts of others are cut to one printable line."""

from __future__ import annotations

from slurm_ext.burnin.model import Outcome
from slurm_ext.config.model import Settings
from slurm_ext.hooks.decide import PASS_ON, STOP_JOB, Plan, names_of
from slurm_ext.hooks.environment import HookJob
from slurm_ext.typed import Any
from slurm_ext.verdict import PASS, UNKNOWN, WARN, one_line

#: The rule of an outcome that only says that an earlier pass still holds.
REUSED = "burnin.reused"

#: So many nodes are named in a line; of more there is the number.
NAMED = 8


def burnin_line(job: HookJob, settings: Settings, outcome: Outcome, plan: Plan, *, earlier: str = "") -> str:
    """Return what the gate measured over the job's nodes, in one line. `earlier`: the words of a pass that still holds."""
    count = f"{len(job.nodes)} node" + ("" if len(job.nodes) == 1 else "s")
    if outcome.verdict.rule == REUSED:
        return one_line(f"{count}, {job.gpus * len(job.nodes)} GPUs: not measured again: {earlier}", 400)
    led = outcome.measured.get("leader")
    tail = f", {outcome.seconds:.{0 if outcome.seconds >= 10 else 1}f} s" + (
        f"; leader {led}" if isinstance(led, str) and led in job.nodes else ""
    )
    word = outcome.verdict.verdict
    if word in (PASS, WARN):
        parts = ["all-reduce right"]
        if outcome.busbw_gbs is not None:
            parts.append(f"{outcome.busbw_gbs:.3g} GB/s{over(outcome, settings, len(job.nodes))}{_floor(outcome)}")
        text = f"{count}, {outcome.ranks} GPUs: {', '.join(parts)}{tail}"
        if word == WARN:
            text += f"; but: {outcome.verdict.reason}"
        return one_line(text + untested(job, outcome), 600)
    said = "no result" if word == UNKNOWN else "all-reduce failed"
    text = f"{count}: {said}{tail}: {outcome.verdict.reason}"
    if plan.act == PASS_ON and plan.policy == PASS_ON:
        text += f"; the job starts all the same, since {plan.reason.partition(': ')[0].removeprefix('passed, since ')}"
    elif plan.act == STOP_JOB:
        text += "; the job could not be sent back and starts all the same"
    return one_line(text + untested(job, outcome), 600)


def over(outcome: Outcome, settings: Settings, nodes: int) -> str:
    """Return over what the data went, as far as it was proven."""
    if nodes == 1:
        return " inside the node"
    if settings.burnin.transport != "efa":
        return " over TCP sockets"
    told = outcome.measured.get("transport")
    # Whatever the proof could not show makes a warning, and then no more is said than that EFA was asked for by name.
    return f" over {one_line(told, 80)}" if outcome.verdict.verdict == PASS and isinstance(told, str) else " over EFA"


def _floor(outcome: Outcome) -> str:
    floor: Any = outcome.measured.get("floor_gbs")
    return f" (floor {floor:.3g})" if isinstance(floor, (int, float)) and floor > 0 else ""


def untested(job: HookJob, outcome: Outcome) -> str:
    """Return which nodes start the job without having been tested, in words; empty where all were."""
    absent = names_of(outcome.measured, "absent", job.nodes)
    if not absent:
        return ""
    some = ", ".join(absent[:NAMED]) + (f" and {len(absent) - NAMED} more" if len(absent) > NAMED else "")
    return f"; NOT TESTED: {len(absent)} of {len(job.nodes)} nodes: {some}"
