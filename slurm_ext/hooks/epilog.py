"""What runs after a job on each of its nodes: facts with the job's own window, a drain by policy, leftovers, evidence.

The exit code is always 0: an epilog that fails drains its node, and a node is drained for a finding of its own or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from slurm_ext import shared, verdict
from slurm_ext.config import modes
from slurm_ext.config.model import Settings, at_node, machine_name
from slurm_ext.gate import gpu_growth, local
from slurm_ext.gate.model import decisive
from slurm_ext.hooks import (
    attributed,
    baseline,
    decide,
    environment,
    job_memory,
    job_processes,
    jobfile,
    leftovers,
    passes,
    trail,
)
from slurm_ext.hooks.environment import HookJob
from slurm_ext.hooks.prolog import REST_S, Modes, rungs_of, view, with_conf
from slurm_ext.hooks.supervise import PASS
from slurm_ext.typed import Any
from slurm_ext.verdict import FAIL

#: A fault can be logged a moment before the job's own clock says that it began (seconds).
WINDOW_SLACK_S = 2.0


def run(environ: Mapping[str, str], share: str, local_dir: str, within: Callable[[float], None]) -> int:
    """Run the epilog for the job in `environ`; return 0."""
    now = time.time()
    job = environment.parse(environ, hostname=machine_name())
    if job is None:
        return PASS
    seen = view(share, at_node(local_dir, job.node))
    settings = with_conf(seen.settings, environ)
    share = settings.site.share or share
    rungs = rungs_of(settings, job, seen.off, now)
    run_dir = at_node(settings.site.run_dir, job.node)
    file = jobfile.read(run_dir, job.job_id)
    if file is not None:
        # Once a job is requeued, its epilog sees the count of the next attempt (22.05.8): the prolog knew which one this is.
        job = job._replace(restarts=file.restarts)
    hold_s = decide.hold_completing_s(
        job,
        settings,
        resume_mode=rungs.resume,
        heartbeat_fresh=modes.heartbeat_is_fresh(seen.heartbeat, now=now),
    )
    within(REST_S + settings.gate.deadline_s + hold_s)
    told: dict[str, Any] = {}
    if settings.gate.dcgm_job_mapping_dir:  # whatever is off meanwhile: the line is ours to take
        from slurm_ext.hooks import dcgm_mapping

        if trouble := dcgm_mapping.end(settings, job):
            told["dcgm_job_mapping"] = trouble
    cleaned = leftovers.end(run_dir, job)
    if rungs.gate != "off":
        _look(job, settings, rungs, share, file, cleaned, now, told)
    elif rungs != Modes("off", "off", "off", "off"):
        _without_look(job, settings, share, cleaned, told)
    jobfile.remove(run_dir, job.job_id)
    baseline.remove(run_dir, job.job_id)
    if hold_s > 0:
        _wait_for_controller(job, share, hold_s)
    if rungs != Modes("off", "off", "off", "off"):
        from slurm_ext.gres import told as gpus  # here: sites without a health check learn so of their nodes
        from slurm_ext.topology import place_fact

        place_fact.note(settings, job.node, share)
        gpus.note(settings, job.node, share, now)
    return PASS


def _without_look(
    job: HookJob, settings: Settings, share: str, cleaned: tuple[str, ...], told: Mapping[str, Any]
) -> None:
    """Write down how the job ended, for the other rooms; the gate is off, so this node is not looked at."""
    run_dir = at_node(settings.site.run_dir, job.node)
    ended = f"{job.exit_code}:{job.exit_signal}"
    if spoilt := f"job {job.job_id} ended with {ended}" if job.failed else "".join(cleaned[:1]):
        boot = baseline.boot_id(at_node(settings.site.root, job.node))
        passes.forget(run_dir, boot_id=boot, why=spoilt)
    data = {"exit_code": ended, "cleaned": list(cleaned), **told}
    reason = "the gate is off: this node was not looked at"
    trail.emit(
        settings,
        job.node,
        trail.about(job, "gate.epilog", room="gate", rule="gate.off", reason=reason, decision="off", data=data),
        share=share,
    )


def _look(
    job: HookJob,
    settings: Settings,
    rungs: Modes,
    share: str,
    file: jobfile.JobFile | None,
    cleaned: tuple[str, ...],
    now: float,
    told: dict[str, Any],
) -> None:
    """Look at the node, write down what was found, and drain it where a finding convicts it and the mode enforces."""
    run_dir = at_node(settings.site.run_dir, job.node)
    data: dict[str, Any] = {"exit_code": f"{job.exit_code}:{job.exit_signal}", **told}
    # First what the job left: a program that holds a GPU would be found by the look, and stay.
    cleaned += _end_job(job, settings, rungs, file, data)
    boot = baseline.boot_id(at_node(settings.site.root, job.node))
    before, why = baseline.read(run_dir, job, boot)
    boottime = passes.boottime() - (time.time() - now)
    window = window_of(file, job, boot, now=now, boottime=boottime)
    kept = baseline.kept_as_of_now(before, now=now, boottime=boottime) if before is not None else {}
    look = local.look(
        settings,
        job.node,
        phase="epilog",
        job_window=window,
        deadline_s=settings.gate.deadline_s,
        job=local.Job(job.job_id, job.uid, job.gpu_ids, kept, unclear=job.gpus_unclear),
    )
    spared: tuple[str, ...] = ()
    if look.verdict.verdict == FAIL:
        from slurm_ext.hooks import acked

        look, spared = acked.spare(look, share, job.node, now)
    finding = decisive(look.verdict) if look.verdict.verdict == FAIL else None
    plan = decide.on_gate(look.verdict, settings, mode=rungs.gate)
    ended_badly = f"job {job.job_id} ended with {job.exit_code}:{job.exit_signal}" if job.failed else ""
    if spoilt := ended_badly or passes.news(run_dir, look.verdict) or "".join(cleaned[:1]):
        passes.forget(run_dir, boot_id=look.facts.boot_id, why=spoilt)
    gpus = look.facts.smi.gpus if look.facts.smi is not None else ()
    data |= {
        "kernel": list(look.in_window[-40:]),
        "window": list(window) if window is not None else None,
        "gate": verdict.to_json(look.verdict),
        "cleaned": list(cleaned),
        "attributed": attributed.of_job(
            look.in_window,
            look.items,
            known=before.found if before is not None else None,
            is_slow=_is_slow,
            gpus=gpus,
            gpu_ids=job.gpu_ids,
            before=(kept.get("gpu") or {}).get("gpus"),
            after=gpu_growth.keep(look.facts.smi) if kept else None,
        ),
    }
    if why:
        data["baseline"] = why
    if job.problems:
        data["problems"] = job.problems
    if spared:
        data["acked"] = list(spared)
    if look.facts.boot_id:
        data["boot_id"] = look.facts.boot_id
    event = trail.about(
        job,
        "gate.epilog",
        room="gate",
        rule=look.verdict.rule,
        reason=look.verdict.reason,
        evidence=tuple(line for each in look.verdict.findings for line in each.evidence[:1]),
        decision="pass" if finding is None else plan.act if not plan.would else f"would-{plan.would}",
        dry_run=bool(plan.would),
        boot_id=look.facts.boot_id,
        data=data,
    )
    trail.emit(settings, job.node, event, share=share)
    if finding is not None and plan.act == decide.DRAIN:
        from slurm_ext.gate import proof
        from slurm_ext.hooks import act, bundle

        gpu = proof.gpu_of(look.facts, finding.target)
        saved = bundle.save(settings, job, job.node, look, finding=finding, data=data, before=kept, share=share)
        done = act.drain(
            settings, job, job.node, finding, boot_id=look.facts.boot_id, bundle=saved, gpu=gpu, exits=False
        )
        words = done.words()
        acted = event._replace(data={**event.data, "bundle": bundle.words(saved, share)})
        acted = acted._replace(event="gate.epilog-acted", decision=words, time="")
        trail.emit(settings, job.node, acted, share=share)


def window_of(
    file: jobfile.JobFile | None, job: HookJob, boot_id: str, *, now: float, boottime: float
) -> tuple[float, float] | None:
    """Return the job's time on this node, in seconds since the epoch as the clock stands now; None where it is not known. Pure.

    Within one boot the kernel's own clock tells how long ago it began: a clock that was set meanwhile moves nothing.
    """
    begun = file.started if file is not None else job.start_s
    if file is not None and file.boot_id and file.boot_id == boot_id and 0 < file.began_s <= boottime:
        begun = now - (boottime - file.began_s)
    if begun is None or begun > now:
        return None
    return begun - WINDOW_SLACK_S, now


def _end_job(
    job: HookJob, settings: Settings, rungs: Modes, file: jobfile.JobFile | None, data: dict[str, Any]
) -> tuple[str, ...]:
    """End what the job left running here, where the gate enforces, and return it in words; tell in `data` what stays."""
    root, run_dir = at_node(settings.site.root, job.node), at_node(settings.site.run_dir, job.node)
    left = job_processes.end(root, job, kill=rungs.gate == "enforce")
    if left is None:
        data["left"] = ["job processes: not known, no answer in time"]
    elif left:
        data["left"] = [one.words() for one in left if not one.ended][: job_processes.TOLD_MAX]
    uid = file.uid if file is not None else job.uid
    if shared_memory := job_memory.left(root, run_dir, job.job_id, uid):
        data["shared_memory"] = shared_memory._asdict()
    return tuple(one.words() for one in left or () if one.ended)[: job_processes.TOLD_MAX]


def _is_slow(id_: str) -> bool:
    """Say whether a finding is of a check that runs in no prolog, and not about a job's time alone."""
    from slurm_ext.gate import checks  # here: only where something is new

    rows = [row for row in checks.every() if id_ == row.id or (row.id.endswith((".", "-")) and id_.startswith(row.id))]
    row = max(rows, key=lambda row: len(row.id), default=None)
    return row is not None and "prolog" not in row.phases and row.phases != ("epilog",)


def _wait_for_controller(job: HookJob, share: str, hold_s: float) -> None:
    """Keep the job in COMPLETING until the controller has written its decision, `hold_s` seconds at most.

    A requeue of a job that is FAILED already breaks its dependants; while it completes they stay pending.
    """
    path = shared.attempt_path(share, job.attempt, shared.DECISION_FILE)
    give_up = time.monotonic() + hold_s
    while path and time.monotonic() < give_up:
        if shared.read_json(path, timeout_s=1.0) is not None:
            return
        time.sleep(0.2)  # a file on a share has no event that could be awaited
