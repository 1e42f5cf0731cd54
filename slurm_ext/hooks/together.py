"""The burn-in as the prolog sees it: whether this job gets one, whether an earlier pass still holds, and what follows."""

from __future__ import annotations

from typing import Any, NamedTuple

from slurm_ext.config.model import Settings, at_node
from slurm_ext.gate import local
from slurm_ext.hooks import decide, passes
from slurm_ext.hooks.decide import PASS_ON, Plan
from slurm_ext.hooks.environment import HookJob
from slurm_ext.verdict import FAIL, PASS


class Together(NamedTuple):
    """What came of it: the plan, the line for the job's log, data for the event; `proven`: the environment that passed."""

    plan: Plan
    line: str
    data: dict[str, Any]
    proven: dict[str, str] | None = None
    tested: bool = True


def wait_s(job: HookJob, settings: Settings, *, mode: str) -> float:
    """Return how long (seconds) this job's burn-in may hold the hook at most; 0.0 where it gets none."""
    # As if the job had all GPUs here, which only the local look can say.
    if not decide.burnin_wanted(job, settings, mode=mode, gpus_on_node=job.gpus)[0]:
        return 0.0
    from slurm_ext.burnin.gate import longest_s

    strict = decide.strict_wanted(job, settings)
    return longest_s(settings, nodes=len(job.nodes), strict=strict) + 2 * decide.TAKE_OVER_S


def burnin(
    job: HookJob, settings: Settings, share: str, look: local.Look, *, mode: str, began: float
) -> Together | None:
    """Run the burn-in where this job gets one; None where it does not and nobody asked for one.

    `began` is when the prolog began, by CLOCK_BOOTTIME.
    """
    gpus = len(look.facts.smi.gpus) if look.facts.smi is not None else None
    wanted, why = decide.burnin_wanted(job, settings, mode=mode, gpus_on_node=gpus)
    strict = decide.strict_wanted(job, settings)
    run_dir = at_node(settings.site.run_dir, job.node)
    old: passes.Pass | None = None
    now = passes.Now("", "", (), began)
    if wanted and settings.burnin.reuse_pass_h > 0:
        now = passes.Now(
            look.facts.boot_id, passes.stack(settings, job.node), passes.of_findings(look.verdict), passes.boottime()
        )
        reuse_s = settings.burnin.reuse_pass_h * 3600
        old, earlier = passes.standing(*passes.read(run_dir), now, job.nodes, strict=strict, reuse_s=reuse_s)
        wanted, why = decide.burnin_wanted(job, settings, mode=mode, gpus_on_node=gpus, reusable=old is not None)
        why = why if wanted else earlier
    if wanted and (short := _short(job, settings, share)):
        wanted, why = False, short
    if not wanted:
        return None if mode == "off" else _skipped(look, why)
    from slurm_ext.burnin.model import outcome_to_json
    from slurm_ext.hooks import partners, words

    asked = partners.Asked(look.facts.instance_type, strict=strict, reusable=old is not None)
    outcome, said = partners.burnin(job, settings, share=share, asked=asked)
    if said is not None and not said.ends:
        return _skipped(look, f"{said.by}: {said.reason}")
    if said is not None:
        verdict = outcome.verdict
        return Together(Plan(PASS_ON, verdict.reason, verdict.rule), f"burn-in: {said.by}: {said.reason}", {})
    plan = decide.on_burnin(outcome.verdict, outcome.culprits, settings, job, mode=mode, measured=outcome.measured)
    data = {"burnin": {**outcome_to_json(outcome), "strict": strict}}
    absent = decide.names_of(outcome.measured, "absent", job.nodes)
    if outcome.verdict.verdict == PASS and outcome.verdict.rule != words.REUSED and now.stack and not absent:
        one = passes.Pass(passes.of_nodes(job.nodes), began, now.boot_id, now.stack, strict, job.attempt, now.findings)
        if trouble := passes.remember(run_dir, one):
            data["burnin"]["not_remembered"] = trouble
    elif outcome.verdict.verdict == FAIL and (not outcome.culprits or job.node in outcome.culprits):
        passes.forget(run_dir, boot_id=look.facts.boot_id, why=f"{job.attempt} failed its burn-in")
    if mode == "enforce":
        if done := _act_for_others(job, settings, share, outcome.verdict, outcome.culprits, outcome.measured):
            data["burnin"]["stood_in"] = done
        if plan.act == PASS_ON and plan.policy == PASS_ON:
            from slurm_ext.hooks import marks

            marks.let_go(share, job, plan.reason)
    line = words.burnin_line(job, settings, outcome, plan, earlier=earlier_words(old, now))
    proven = partners.environment(job, settings) if outcome.verdict.verdict == PASS else None
    return Together(plan, line, data, proven)


def _skipped(look: local.Look, why: str) -> Together:
    plan = Plan(PASS_ON, look.verdict.reason, look.verdict.rule)
    return Together(plan, f"no burn-in: {why}", {"burnin": {"skipped": why}}, tested=False)


def _short(job: HookJob, settings: Settings, share: str) -> str:
    """Return why a job's time limit is too short where its environment does not tell it (22.05.8); empty where it is not.

    One node asks Slurm, for all: the others leave the burn-in when it says so. What cannot be asked, or said, is not short.
    """
    least = settings.burnin.min_time_limit_min
    if job.end_s is not None or least <= 0 or job.node != job.nodes[0]:
        return ""
    from slurm_ext.hooks import act, marks

    limit = act.time_limit_min(settings, job)
    if limit is None or limit < 0 or limit >= least:
        return ""
    why = f"a time limit of {limit} min is below burnin.min_time_limit_min"
    return why if len(job.nodes) == 1 or marks.let_go(share, job, why) else ""


def earlier_words(old: passes.Pass | None, now: passes.Now) -> str:
    """Return in words how long ago and for which attempt the pass was that counts again."""
    if old is None:
        return "they passed together before"
    return f"they passed together {passes.age(now.at - old.began)} ago, for {old.attempt}"


def _act_for_others(
    job: HookJob, settings: Settings, share: str, found: Any, culprits: tuple[str, ...], measured: Any
) -> str:
    """Act for convicted partners that do not, where this node is one that may."""
    if found.verdict != FAIL or not culprits or job.node in culprits:
        return ""
    gone = (*culprits, *decide.names_of(measured, "absent", job.nodes))
    able = decide.actors(job.nodes, out=gone, leader=str(measured.get("acts") or measured.get("leader") or ""))
    if job.node not in able:
        return ""
    from slurm_ext.hooks import succession

    return succession.stand_in(job, settings, share, found, culprits, able.index(job.node))
