"""The burn-in with the other nodes of a job, as a hook waits for it: given up at once when the attempt has ended elsewhere."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping

from slurm_ext import shared
from slurm_ext.burnin.model import BurninJob, Outcome, unknown
from slurm_ext.config.model import Settings, at_node
from slurm_ext.files import read_trusted
from slurm_ext.hooks import marks
from slurm_ext.hooks.environment import HookJob
from slurm_ext.hooks.marks import Word
from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import UNKNOWN

#: A burn-in that is over sooner (seconds) is over before anybody could ask what it does.
QUIET_S = 1.0

#: A node alone in its job hears of the attempt's end from the controller alone: it looks less often (seconds).
ALONE_LOOK_S = 2.0

#: The rule of a burn-in that was left, since the attempt was decided elsewhere.
ENDED = "burnin.ended-elsewhere"


class Asked(NamedTuple):
    """What the hook asks for beside the job itself. `reusable`: an earlier pass still holds on this node."""

    instance_type: str
    strict: bool = False
    reusable: bool = False


def burnin(job: HookJob, settings: Settings, *, share: str, asked: Asked) -> tuple[Outcome, Word | None]:
    """Run the burn-in with the job's other nodes; return what it showed, and what was said of the attempt meanwhile, if anything.

    It is left as soon as a partner's gate has convicted it: an innocent node must never wait for one that will not come.
    """
    from slurm_ext.burnin.gate import longest_s, run_burnin

    started = time.monotonic()
    teller = _Teller(job, settings, share)
    said: Word | None = None
    every_s = ALONE_LOOK_S if len(job.nodes) == 1 else 0.0
    look_at = started + every_s

    def meanwhile() -> bool:
        nonlocal said, look_at
        now = time.monotonic()
        if now >= look_at:
            said, look_at = marks.word(share, job), now + every_s
        if said is None and now - started > QUIET_S:
            teller.tell()
        return said is None

    deadline_s = longest_s(settings, nodes=len(job.nodes), strict=asked.strict)
    outcome = run_burnin(_wanted(job, asked), settings, deadline_s=deadline_s, meanwhile=meanwhile)
    # A partner that saw the mark first has gone, and that looks like a loss: nothing is made of a job that is over.
    if said is None and outcome.verdict.verdict == UNKNOWN:
        said = marks.word(share, job)
    if said is not None:
        return _left(said)
    if outcome.verdict.rule == ENDED:
        return outcome, Word(True, "a partner", outcome.verdict.reason)
    return outcome, None


def _left(said: Word) -> tuple[Outcome, Word]:
    """Return what a hook makes of a burn-in that it leaves for what was said of the attempt."""
    what = "has ended" if said.ends else "goes on without it"
    return unknown(ENDED, f"this attempt {what}: {said.by}: {said.reason}"), said


def _wanted(job: HookJob, asked: Asked) -> BurninJob:
    return BurninJob(
        job.cluster,
        job.job_id,
        job.restarts,
        job.nodes,
        job.node,
        job.gpus,
        asked.instance_type,
        max(job.uid, 0),
        job.partition,
        asked.strict,
        asked.reusable,
    )


class _Teller:
    """Passes what this node's agent says it does, where it leads, on to the share: for who asks why the job does not start."""

    def __init__(self, job: HookJob, settings: Settings, share: str) -> None:
        folder = os.path.join(at_node(settings.site.run_dir, job.node), "burnin")
        self._source = os.path.join(folder, f"{job.job_id}-{job.restarts}.d", "progress.json")
        self._target = shared.attempt_path(share, job.attempt, shared.gate_file(job.node))
        self._node, self._began, self._told = job.node, time.time(), b""

    def tell(self) -> None:
        """Write the newest word to the share, if there is a new one; a share that does not answer is not asked again."""
        try:
            found = read_trusted(self._source, max_bytes=65536) if self._target else b""
            data: Any = json.loads(found) if found and found != self._told else None
        except Exception:  # noqa: BLE001 - this node does not lead, or leads no more: nothing to tell
            return
        if not isinstance(data, Mapping):
            return
        self._told = found
        if not shared.write_json(self._target, {**data, "node": self._node, "began": self._began}):
            self._target = ""


def environment(job: HookJob, settings: Settings) -> dict[str, str]:
    """Return the NCCL_*, OFI_* and FI_* variables that the burn-in's workers ran with, without those that only report."""
    from slurm_ext.burnin.surroundings import worker_environment
    from slurm_ext.hooks.nccl_check import compared

    whole = worker_environment(settings.site, settings.burnin, node=job.node, address="", log_folder="/")
    return {name: value for name, value in whole.items() if compared(name)}
