"""What slurmd's HealthCheckProgram runs between jobs: the same local look, in which the last slow check has its say, and what follows.

Slurm starts a new run each interval though the old one lives, and kills each after 60 s: a lock keeps one, and all is done
well within that. Slurm is asked only where this slurmd has registered (registered.py), and only by a node that is to be drained
or that has a record of a drain of ours.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping

from slurm_ext import events, verdict
from slurm_ext.config import modes
from slurm_ext.config.model import Settings, at_node, machine_name
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import open_regular, read_trusted, write_atomic
from slurm_ext.gate import local, slow_result, versions
from slurm_ext.gate.model import conclude, decisive
from slurm_ext.hooks import environment, passes, registered, slow_due, slow_state, trail, way_back
from slurm_ext.hooks.environment import HookJob
from slurm_ext.hooks.prolog import view, with_conf
from slurm_ext.hooks.supervise import PASS
from slurm_ext.slurm import drain_record
from slurm_ext.slurm.drain_record import DrainRecord
from slurm_ext.typed import Any
from slurm_ext.verdict import FAIL, Finding

LOCK = "health.lock"
LAST = "health.json"

#: slurmd kills the program after 60 s; a run that is stuck is ended supervise.MARGIN_S later than it may take, at 50 s. The look
#: takes its part of that, whatever gate.deadline_s says.
WHOLE_S, LOOK_S = 45.0, 15.0

#: A drain that was not done (the breaker, no answer) is tried again after so long (seconds), while the finding stays.
AGAIN_S = 900.0


def run(environ: Mapping[str, str], share: str, local_dir: str, within: Callable[[float], None]) -> int:
    """Look at this node unless another look runs; return 0."""
    node = environ.get("SLURMD_NODENAME", "") or machine_name()
    if environment.parse({"SLURM_JOB_ID": "0", "SLURMD_NODENAME": node}) is None:
        return PASS
    seen = view(share, at_node(local_dir, node))
    settings = with_conf(seen.settings, environ)
    mode, _ = modes.effective_mode(settings, "gate", node=node, off=seen.off, now=time.time())
    if mode == "off":
        return PASS
    within(WHOLE_S)
    run_dir = at_node(settings.site.run_dir, node)
    try:
        os.makedirs(run_dir, mode=0o755, exist_ok=True)
        lock = _open_lock(run_dir)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, UntrustedFileError):
        return PASS  # another look runs, or there is no place to say that this one does
    if settings.gate.disabled:
        from slurm_ext.hooks import disabled

        disabled.tell(settings, node, settings.site.share or share)
    slurmd = registered.above()
    asks = registered.may_ask(run_dir, slurmd)
    _look(settings, node, settings.site.share or share, mode, run_dir, seen.off, slurmd, asks=asks)
    registered.note(run_dir, slurmd)
    return PASS


def _open_lock(run_dir: str) -> int:
    try:
        return open_regular(os.path.join(run_dir, LOCK), os.O_WRONLY | os.O_CREAT)
    except (OSError, UntrustedFileError):  # full, or something else has the name: the folder itself serves, too
        return os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _look(
    settings: Settings,
    node: str,
    share: str,
    mode: str,
    run_dir: str,
    off: tuple[modes.Off, ...],
    slurmd: registered.Slurmd | None,
    *,
    asks: bool,
) -> None:
    look = local.look(settings, node, phase="health", job_window=None, deadline_s=min(settings.gate.deadline_s, LOOK_S))
    facts, at_s = look.facts, time.time()
    booted_s = None if facts.boot_age_s is None else at_s - facts.boot_age_s
    due = slow_due.Now(at_s, facts.boot_id, booted_s)
    last = slow_result.read(run_dir)
    spared: tuple[str, ...] = ()
    if look.verdict.verdict == FAIL:
        from slurm_ext.hooks import acked

        look, spared = acked.spare(look, share, node, at_s)  # here: an end of it is news, too
    record = drain_record.read(share, node)
    if asks and slurmd is not None:
        from slurm_ext.hooks import slurm_view

        look = slurm_view.compared(look, settings, node, run_dir, slurmd, at_s)
    _act(settings, node, share, mode, run_dir, look, spared, record, at_s, asks=asks)
    versions.note(settings, node, share, facts)
    _note_place(settings, node, share)
    if not asks:
        return
    root = at_node(settings.site.root, node)
    dcgmi = slow_due.dcgmi_path(root) if settings.gate.slow_check != slow_due.OFF else ""
    last_efa = slow_result.read(run_dir, slow_result.EFA) if settings.gate.efa_loopback else None
    if record is not None:
        from slurm_ext.hooks import undrain

        case = undrain.Case(
            settings, node, share, record, look, at_s, last, off, has_dcgm=bool(dcgmi), last_efa=last_efa
        )
        due = due._replace(out_since=undrain.tend(case))
    level = slow_due.level(settings, last, slow_state.begun_s(run_dir), due) if dcgmi else ""
    argv = slow_due.argv(dcgmi, level) if level else ()
    if not level and slow_due.efa(settings, last_efa, slow_state.begun_s(run_dir, slow_result.EFA), due):
        level, argv = slow_result.EFA, slow_due.efa_tools(root)
    if argv:
        _slow_check(settings, node, share, run_dir, argv, level, due)


def _note_place(settings: Settings, node: str, share: str) -> None:
    from slurm_ext.gres import told  # here: both are written once a boot
    from slurm_ext.topology import place_fact

    place_fact.note(settings, node, share)
    told.note(settings, node, share, time.time())


def _act(
    settings: Settings,
    node: str,
    share: str,
    mode: str,
    run_dir: str,
    look: local.Look,
    spared: tuple[str, ...],
    record: DrainRecord | None,
    at_s: float,
    *,
    asks: bool,
) -> None:
    """Write down what changed, and drain for what convicts this node where the mode enforces and that was not done yet."""
    path = os.path.join(run_dir, LAST)
    now = [
        look.verdict.verdict,
        [list(one) for one in sorted({(f.id, f.target, f.action) for f in look.verdict.findings})],
    ]
    before = _last(path)
    is_news = before.get("found") != now
    finding = decisive(look.verdict) if look.verdict.verdict == FAIL else None
    drains = finding is not None and mode == "enforce" and record is None and _is_due(before, at_s, is_news=is_news)
    if not is_news and not drains:
        return  # nothing new: a trail that repeats itself every five minutes is read by nobody
    if is_news and (new := passes.news(run_dir, look.verdict)):
        passes.forget(run_dir, boot_id=look.facts.boot_id, why=new)
    event = events.Event(
        "gate.health",
        room="gate",
        rule=look.verdict.rule,
        reason=look.verdict.reason,
        evidence=tuple(line for each in look.verdict.findings for line in each.evidence[:1]),
        decision=_decision(finding, mode, record, asks=asks),
        dry_run=finding is not None and mode != "enforce",
        boot_id=look.facts.boot_id,
        instance_id=way_back.instance_id(at_node(settings.site.root, node)),
        data={"gate": verdict.to_json(look.verdict), **({"acked": list(spared)} if spared else {})},
    )
    if is_news:
        trail.emit(settings, node, event, share=share)
    tried: dict[str, Any] = {} if is_news else {key: before[key] for key in ("tried_s", "done") if key in before}
    if drains and asks:
        assert finding is not None
        tried = _drain(settings, node, share, look, finding, event)
    _remember(path, {"found": now, **tried})


def _decision(finding: Finding | None, mode: str, record: DrainRecord | None, *, asks: bool) -> str:
    if finding is None:
        return "pass"
    if mode != "enforce":
        return "would-drain"
    if record is not None:
        return "stays drained"
    return "drain" if asks else "drain, once this slurmd has registered"


def _is_due(before: Mapping[str, Any], at_s: float, *, is_news: bool) -> bool:
    """Say whether a drain is to be tried now: a new finding, one that waits for it, or one that was not drained for long ago."""
    if is_news or "tried_s" not in before:
        return True
    tried_s = before["tried_s"]
    return not before.get("done") and isinstance(tried_s, (int, float)) and not 0 <= at_s - tried_s < AGAIN_S


def _drain(
    settings: Settings, node: str, share: str, look: local.Look, finding: Finding, event: events.Event
) -> dict[str, Any]:
    from slurm_ext.gate import proof
    from slurm_ext.hooks import act, bundle, jobfile

    job = HookJob("0", "", 0, node)
    saved = bundle.save(settings, None, node, look, share=share)
    first = jobfile.is_first(at_node(settings.site.run_dir, node), look.facts.boot_id)
    gpu = proof.gpu_of(look.facts, finding.target)
    done = act.drain(
        settings,
        job,
        node,
        finding,
        boot_id=look.facts.boot_id,
        bundle=saved,
        gpu=gpu,
        first_boot=first,
        exits=False,
    )
    words = done.words()
    data = {**event.data, "bundle": bundle.words(saved, share)}
    acted = event._replace(event="gate.health-acted", decision=words, time="", data=data)
    trail.emit(settings, node, acted, share=share)
    return {"tried_s": time.time(), "done": done.done}


def _slow_check(
    settings: Settings, node: str, share: str, run_dir: str, argv: tuple[str, ...], level: str, now: slow_due.Now
) -> None:
    """Start a slow check that is due."""
    from slurm_ext.hooks import slow_jobs, slow_run

    root = at_node(settings.site.root, node)
    what = "EFA's loopback" if level == slow_result.EFA else f"DCGM {level}"

    def tell(last: slow_result.Last) -> None:
        event = events.Event(
            "gate.slow-check",
            room="gate",
            rule=next((item.finding.id for item in last.items), ""),
            reason=f"{what}: {last.outcome} after {last.ended_s - last.began_s:.0f} s; {last.said}",
            evidence=tuple(line for item in last.items for line in item.finding.evidence[:1]),
            decision=conclude(last.items).verdict,
            boot_id=last.boot_id,
            data={"level": last.level, "outcome": last.outcome},
        )
        trail.emit(settings, node, event, share=share)

    slow_run.start(
        slow_run.Order(node, run_dir, argv, level, now.boot_id, slow_run.LIMITS_S[level]),
        idle=lambda: slow_due.not_idle(run_dir, root, node, over=lambda ids: slow_jobs.over(settings, node, ids)),
        tell=tell,
    )


def _last(path: str) -> dict[str, Any]:
    try:
        data = json.loads(read_trusted(path))
    except (OSError, ValueError, RecursionError, UntrustedFileError):
        return {}
    return data if isinstance(data, dict) else {}


def _remember(path: str, data: Mapping[str, Any]) -> None:
    try:
        write_atomic(path, json.dumps(data))
    except OSError:
        return
