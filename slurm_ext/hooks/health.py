"""What slurmd's HealthCheckProgram runs between jobs: the same local look, one at a time, written down when it changes.

Slurm starts a new run each interval though the old one lives, and kills each after 60 s: a lock keeps one. Nothing here
takes a drain back; that needs proof which is not built yet.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping

from slurm_ext import events, verdict
from slurm_ext.config import modes, snapshot
from slurm_ext.config.model import Settings, at_node, machine_name
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import open_regular, read_trusted, write_atomic
from slurm_ext.gate import local
from slurm_ext.gate.model import decisive
from slurm_ext.hooks import environment, passes, trail
from slurm_ext.hooks.environment import HookJob
from slurm_ext.hooks.prolog import REST_S, with_conf
from slurm_ext.hooks.supervise import PASS
from slurm_ext.verdict import FAIL

LOCK = "health.lock"
LAST = "health.json"


def run(environ: Mapping[str, str], share: str, local_dir: str, within: Callable[[float], None]) -> int:
    """Look at this node unless another look runs; return 0."""
    node = environ.get("SLURMD_NODENAME", "") or machine_name()
    if environment.parse({"SLURM_JOB_ID": "0", "SLURMD_NODENAME": node}) is None:
        return PASS
    seen = snapshot.view(share, at_node(local_dir, node))
    settings = with_conf(seen.settings, environ)
    mode, _ = modes.effective_mode(settings, "gate", node=node, off=seen.off, now=time.time())
    if mode == "off":
        return PASS
    within(REST_S + settings.gate.deadline_s)
    run_dir = at_node(settings.site.run_dir, node)
    try:
        os.makedirs(run_dir, mode=0o755, exist_ok=True)
        lock = open_regular(os.path.join(run_dir, LOCK), os.O_WRONLY | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, UntrustedFileError):
        return PASS  # another look runs, or there is no place to say that this one does
    _look(settings, node, settings.site.share or share, mode, os.path.join(run_dir, LAST))
    return PASS


def _look(settings: Settings, node: str, share: str, mode: str, last_path: str) -> None:
    look = local.look(settings, node, phase="health", job_window=None, deadline_s=settings.gate.deadline_s)
    spared: tuple[str, ...] = ()
    if look.verdict.verdict == FAIL:
        from slurm_ext.hooks import acked

        look, spared = acked.spare(look, share, node, time.time())  # here: an end of it is news, too
    now = json.dumps([look.verdict.verdict, sorted({(f.id, f.target, f.action) for f in look.verdict.findings})])
    if now == _last(last_path):
        return  # nothing new: a trail that repeats itself every five minutes is read by nobody
    run_dir = os.path.dirname(last_path)
    if new := passes.news(run_dir, look.verdict):
        passes.forget(run_dir, boot_id=look.facts.boot_id, why=new)
    job = HookJob("0", "", 0, node)
    finding = decisive(look.verdict) if look.verdict.verdict == FAIL else None
    event = events.Event(
        "gate.health",
        room="gate",
        rule=look.verdict.rule,
        reason=look.verdict.reason,
        evidence=tuple(line for each in look.verdict.findings for line in each.evidence[:1]),
        decision="pass" if finding is None else "drain" if mode == "enforce" else "would-drain",
        dry_run=finding is not None and mode != "enforce",
        boot_id=look.facts.boot_id,
        data={"gate": verdict.to_json(look.verdict), **({"acked": list(spared)} if spared else {})},
    )
    trail.emit(settings, node, event, share=share)
    if finding is not None and mode == "enforce":
        from slurm_ext.hooks import act

        done = act.drain(settings, job, node, finding)
        words = "drained" if done.done else f"not drained: {done.reason}"
        trail.emit(settings, node, event._replace(event="gate.health-acted", decision=words, time=""), share=share)
    _remember(last_path, now)


def _last(path: str) -> str:
    try:
        return read_trusted(path).decode("utf-8", "replace")
    except (OSError, UntrustedFileError):
        return ""


def _remember(path: str, text: str) -> None:
    try:
        write_atomic(path, text)
    except OSError:
        return
