"""The burn-in as the prolog sees it: whether this job gets one, whether an earlier pass still holds, and what follows."""

from __future__ import annotations

from slurm_ext.aws import catalogue
from slurm_ext.config.model import Settings, at_node
from slurm_ext.gate import local
from slurm_ext.gate.model import Facts
from slurm_ext.hooks import decide, passes
from slurm_ext.hooks.decide import PASS_ON, Plan
from slurm_ext.hooks.environment import HookJob
from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import FAIL, PASS


class Together(NamedTuple):
    """What came of it: the plan, the line for the job's log, data for the event; `proven`: the environment that passed.

    `ran`: whether there was traffic, or may have been; an earlier pass that counts again makes none.
    """

    plan: Plan
    line: str
    data: dict[str, Any]
    proven: dict[str, str] | None = None
    tested: bool = True
    ran: bool = True


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
    gpus = gpus_here(look.facts)
    wanted, why = decide.burnin_wanted(job, settings, mode=mode, gpus_on_node=gpus)
    if not wanted and _shares(job, settings, mode=mode, gpus=gpus):
        from slurm_ext.hooks import marks

        # Where its other nodes are whole they would wait for this one in vain.
        marks.let_go(share, job, why)
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
        # Somebody let it go while it may have run here already.
        return _skipped(look, f"{said.by}: {said.reason}")._replace(ran=True)
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
    return Together(plan, line, data, proven, ran=outcome.verdict.rule != words.REUSED)


def gpus_here(facts: Facts) -> int | None:
    """Return how many GPUs this node has, or should have by its type; None where nobody knows.

    What nvidia-smi lists may fall short: that is for the burn-in to find, and no reason to stay away from it.
    """
    listed = facts.smi.gpus if facts.smi is not None else ()
    if any(gpu.mig for gpu in listed):
        return None  # Slurm may count instances, the table counts cards
    attached = facts.smi.attached if facts.smi is not None else None  # more than are listed where the output is cut
    row = catalogue.find(facts.instance_type)
    return max(len(listed), attached or 0, row.gpus if row is not None else 0) or None


def _shares(job: HookJob, settings: Settings, *, mode: str, gpus: int | None) -> bool:
    """Say whether nothing but a share of this node's GPUs keeps the job from its burn-in with other nodes."""
    whole = decide.burnin_wanted(job, settings, mode=mode, gpus_on_node=job.gpus)[0]
    return whole and len(job.nodes) > 1 and gpus is not None and gpus > job.gpus


def _skipped(look: local.Look, why: str) -> Together:
    plan = Plan(PASS_ON, look.verdict.reason, look.verdict.rule)
    return Together(plan, f"no burn-in: {why}", {"burnin": {"skipped": why}}, tested=False, ran=False)


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
