"""What runs before a job on each of its nodes: local gate, burn-in with the partners, one verdict, one act, and the job's file.

Exit 1 means "this node is convicted and must drain" and nothing else; whatever breaks in us passes the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from slurm_ext import verdict
from slurm_ext.config import modes, snapshot
from slurm_ext.config.model import Settings, at_node, machine_name
from slurm_ext.gate import local
from slurm_ext.hooks import baseline, decide, environment, jobfile, marks, passes, restore, slow, together, trail
from slurm_ext.hooks.decide import DRAIN, PASS_ON, Plan
from slurm_ext.hooks.environment import HookJob
from slurm_ext.hooks.supervise import PASS
from slurm_ext.typed import Any, NamedTuple

#: How long (seconds) all that is neither gate nor burn-in may take: settings, restore decision, acts, events.
REST_S = 25.0


class Modes(NamedTuple):
    """On which rung each room stands for this job on this node."""

    gate: str
    burnin: str
    staging: str
    resume: str


class Passed(NamedTuple):
    """What the checks came to: what to do, what was measured in words for the job's log, and data for the event.

    `proven`: with which settings of NCCL the job's nodes passed together, where they did.
    """

    plan: Plan
    lines: tuple[str, ...]
    data: Mapping[str, Any]
    proven: Mapping[str, str] = {}
    boot_id: str = ""
    look: local.Look | None = None
    began: float = 0.0  # CLOCK_BOOTTIME when this prolog began
    tested: float = 0.0  # CLOCK_BOOTTIME when its burn-in had ended: what the kernel said until then is not the job's


def run(environ: Mapping[str, str], share: str, local_dir: str, within: Callable[[float], None]) -> int:
    """Run the prolog for the job in `environ` and return the hook's exit code."""
    started, began = time.time(), passes.boottime()
    hostname = machine_name()
    job = environment.parse(environ, hostname=hostname)
    if job is None:
        return PASS
    seen = view(share, at_node(local_dir, job.node))
    settings = with_conf(seen.settings, environ)
    share = settings.site.share or share
    rungs = rungs_of(settings, job, seen.off, started)
    within(REST_S + settings.gate.deadline_s + together.wait_s(job, settings, mode=rungs.burnin))
    if rungs == Modes("off", "off", "off", "off"):
        return PASS
    if settings.gate.disabled:
        from slurm_ext.hooks import disabled

        disabled.tell(settings, job.node, share)
    passed = _check(job, settings, rungs, share, began)._replace(began=began)
    return _act(job, settings, rungs, share, passed, started, seen.why)


def view(share: str, local_dir: str) -> snapshot.View:
    """Return what this node goes by; the catalogue knows from then on the instance types that the site fetched."""
    seen = snapshot.view(share, local_dir)
    if seen.types:
        from slurm_ext.aws import site_types  # here: few sites have any

        site_types.learn(seen.types)
    return seen


def with_conf(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Return the settings with slurmd's own SLURM_CONF where the site names none: our commands must meet the same Slurm."""
    if settings.site.slurm_conf or not environ.get("SLURM_CONF", "").startswith("/"):
        return settings
    return settings._replace(site=settings.site._replace(slurm_conf=environ["SLURM_CONF"]))


def rungs_of(settings: Settings, job: HookJob, off: tuple[modes.Off, ...], now: float) -> Modes:
    """Return the effective mode of each room for this job here."""
    return Modes(
        *(
            modes.effective_mode(settings, room, node=job.node, partition=job.partition, off=off, now=now)[0]
            for room in Modes._fields
        )
    )


def _check(job: HookJob, settings: Settings, rungs: Modes, share: str, began: float) -> Passed:
    """Look at this node, and where it is well at the job's nodes together."""
    run_dir = at_node(settings.site.run_dir, job.node)
    ran = slow.is_running(run_dir)
    ended = not ran or slow.end_running(run_dir, slow.END_S)
    data: dict[str, Any] = {}
    if ran:
        data["slow_check"] = "ended for this job" if ended else "did not end for this job in time"
    if rungs.gate == "off" and rungs.burnin == "off":
        return Passed(Plan(PASS_ON, "gate and burn-in are off", "gate.off"), (), data)
    look = local.look(
        settings,
        job.node,
        phase="prolog",
        job_window=None,
        deadline_s=settings.gate.deadline_s,
        job=local.Job(job.job_id, job.uid, job.gpu_ids, unclear=job.gpus_unclear),
    )
    if not ended:
        from slurm_ext.hooks import slow_end

        look = slow_end.stays(look, settings, run_dir)
    spared: tuple[str, ...] = ()
    if look.verdict.verdict == verdict.FAIL:
        from slurm_ext.hooks import acked

        look, spared = acked.spare(look, share, job.node, time.time())
    plan = Plan(PASS_ON, "the gate is off", "gate.off")
    if rungs.gate != "off":
        plan = decide.on_gate(look.verdict, settings, mode=rungs.gate)
    here = f"gate on {job.node}: {look.words()}"
    data |= {"gate": verdict.to_json(look.verdict), "gate_s": round(look.seconds, 3)}
    if spared:
        data["acked"] = list(spared)
    if look.facts.instance_type:
        data["instance_type"] = look.facts.instance_type
    if rungs.gate != "off" and plan.act != PASS_ON:
        return Passed(plan, (here,), data, boot_id=look.facts.boot_id, look=look)
    found, tested = together.burnin(job, settings, share, look, mode=rungs.burnin, began=began), 0.0
    if found is None:
        return Passed(plan, (here,), data, boot_id=look.facts.boot_id, look=look)
    if found.ran and found.plan.act == PASS_ON:
        from slurm_ext.gate import kept_again  # here: a prolog without a burn-in pays nothing for it

        tested = passes.boottime()
        kept, lost = kept_again.take(settings, job.node, look.kept)
        look = look._replace(kept=kept)
        data |= {"not_kept": list(lost)} if lost else {}
    # What the local look would have done is not forgotten where the burn-in decides.
    if found.plan.act != PASS_ON or not plan.would:
        plan = found.plan
    lines: tuple[str, ...] = (found.line,)
    if not found.tested:
        lines = (f"{here}; {found.line}",)
    elif look.verdict.verdict != verdict.PASS:  # beside the burn-in's line only what is not well here is worth another
        lines += (here,)
    return Passed(plan, lines, data | found.data, found.proven or {}, look.facts.boot_id, look, tested=tested)


def _act(job: HookJob, settings: Settings, rungs: Modes, share: str, passed: Passed, started: float, why: str) -> int:
    """Do what was decided, leave the job's file and the event, and return the exit code."""
    plan = passed.plan
    room = "burnin" if plan.rule.startswith("burnin") else "gate"
    event = trail.about(
        job,
        "gate.prolog",
        room=room,
        rule=plan.rule,
        reason=plan.reason,
        evidence=plan.finding.evidence if plan.finding else (),
        decision=plan.act if not plan.would else f"would-{plan.would}",
        dry_run=bool(plan.would),
        data={
            "modes": rungs._asdict(),
            "nodes": len(job.nodes),
            "settings": why,
            "problems": job.problems,
            **passed.data,
        },
    )
    opted_in = job.request is not None and job.request.resume is not None
    file = jobfile.JobFile(
        job.job_id,
        job.attempt,
        job.run,
        job.uid,
        started,
        job.restarts,
        opted_in=opted_in,
        began_s=passed.tested or passed.began,
        boot_id=passed.boot_id,
    )
    trouble = _keep(job, settings, passed, started)
    told: dict[str, Any] = {}
    if plan.act != PASS_ON:
        if plan.act == DRAIN:
            passes.forget(at_node(settings.site.run_dir, job.node), boot_id=passed.boot_id, why=plan.reason)
        _leave(job, settings, file)  # the epilog of an attempt that ends here must know which one it was
        trail.emit(settings, job.node, event, share=share)  # evidence leaves the node before anything is done
        code, runs, note = (
            _drain(job, settings, share, passed, room, told)
            if plan.act == DRAIN
            else _stop(job, settings, share, plan, room)
        )
        event = event._replace(event="gate.prolog-acted", decision=note, time="", data={**event.data, **told})
        if not runs:
            trail.emit(settings, job.node, event, share=share)
            return code
    exports, more = restore.exports(job, settings, share=share, staging_mode=rungs.staging)
    warned = (str(told["runs_on_bad"]),) if "runs_on_bad" in told else ()
    # In shadow nobody is told anything; a job's own restore is its own affair.
    tells = {"warn", "enforce"} & {rungs.gate, rungs.burnin}
    lines = (*(passed.lines if tells else ()), *([plan.reason] if tells and plan.would else []), *more)
    proven = dict(passed.proven) if tells and settings.burnin.nccl_check else {}
    told |= {"baseline": trouble} if trouble else {}
    if trouble := _leave(job, settings, file._replace(exports=exports, lines=lines, proven=proven, warned=warned)):
        told["job_file"] = trouble
    if settings.gate.dcgm_job_mapping_dir:
        from slurm_ext.hooks import dcgm_mapping

        if trouble := dcgm_mapping.begin(settings, job, passed.look.facts.smi if passed.look is not None else None):
            told["dcgm_job_mapping"] = trouble
    jobfile.job_starts(at_node(settings.site.run_dir, job.node), passed.boot_id)
    told["seconds"] = round(time.time() - started, 3)
    trail.emit(settings, job.node, event._replace(data={**event.data, **told}), share=share)
    return PASS


def _leave(job: HookJob, settings: Settings, file: jobfile.JobFile) -> str:
    """Write the job's file; return why not where that failed: a job without it runs all the same."""
    run_dir = at_node(settings.site.run_dir, job.node)
    try:
        jobfile.write(run_dir, file)
    except OSError as exc:
        jobfile.remove(run_dir, job.job_id)  # an earlier attempt's would be taken for this one's
        return f"not written: {exc}"
    return ""


def _keep(job: HookJob, settings: Settings, passed: Passed, started: float) -> str:
    """Keep what the look measured for the job's epilog; return why not where that failed."""
    if passed.look is None or not passed.boot_id:
        return ""
    found = baseline.names(passed.look.verdict.findings)
    kept = baseline.Baseline(job.job_id, job.restarts, passed.boot_id, passed.began, started, found, passed.look.kept)
    return baseline.write(at_node(settings.site.run_dir, job.node), kept)


def _stop(job: HookJob, settings: Settings, share: str, plan: Plan, room: str) -> tuple[int, bool, str]:
    """Send the job back, or see that another node does; return exit code, whether it runs after all, and what was done."""
    from slurm_ext.hooks import succession

    runs, note = succession.stop(job, settings, share, plan, room)
    return PASS, runs, note


def _drain(
    job: HookJob, settings: Settings, share: str, passed: Passed, room: str, told: dict[str, Any]
) -> tuple[int, bool, str]:
    """Drain this node; return exit code, whether the job runs here after all, and what was done.

    `told` takes up what the event is to say besides.
    """
    plan = passed.plan
    if room == "burnin":  # what the local look found was spared before the burn-in
        from slurm_ext.hooks import acked

        if known := acked.of(plan.finding, share, job.node, time.time()):
            marks.let_go(share, job, known)
            marks.say_acted(share, job, job.node, known)
            return PASS, True, f"passed: {known}"
    marks.tell_partners(share, job, plan.reason, rule=plan.rule)
    # Where a partner was first, too: the breaker may have stopped it, and to fail here would be a drain past the breaker.
    marks.claim_drain(share, job, job.node)
    saved = ""
    if passed.look is not None:
        from slurm_ext.hooks import bundle

        # Partners drain a node that their burn-in convicted and that does not act for itself within 3 s.
        most_s = 2.0 if room == "burnin" else bundle.DEADLINE_S
        look, data = passed.look, passed.data
        saved = bundle.save(
            settings, job, job.node, look, finding=plan.finding, data=data, share=share, deadline_s=most_s
        )
        told["bundle"] = bundle.words(saved, share)
    from slurm_ext.gate import proof
    from slurm_ext.hooks import drain_here

    shown = passed.look.facts if passed.look is not None else None
    gpu = proof.gpu_of(shown, plan.finding.target) if shown is not None and plan.finding is not None else ""
    code, runs, note, said = drain_here.drain(job, settings, share, plan, room, passed.boot_id, saved, gpu)
    if said:
        told["runs_on_bad"] = said
    marks.say_acted(share, job, job.node, note)
    return code, runs, note
