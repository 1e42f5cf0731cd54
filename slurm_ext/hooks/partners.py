"""The burn-in with the other nodes of a job, as a hook waits for it: given up at once when the attempt has ended elsewhere."""

from __future__ import annotations

import json
import os
import select
import signal
import time

from slurm_ext.burnin.model import BurninJob, Outcome, outcome_from_json, outcome_to_json, unknown
from slurm_ext.config.model import Settings
from slurm_ext.hooks import marks
from slurm_ext.hooks.environment import HookJob
from slurm_ext.verdict import UNKNOWN

#: How often (seconds) a waiting hook looks whether the attempt has ended elsewhere.
LOOK_EVERY_S = 0.5


def burnin(job: HookJob, settings: Settings, *, share: str, instance_type: str) -> tuple[Outcome, str]:
    """Run the burn-in with the job's other nodes; return what it showed, and who ended the attempt meanwhile, if anybody.

    The room's own call runs in a child, so that this process can go when a partner's gate has convicted it: an innocent
    node must never wait for one that will not come.
    """
    reader, writer = os.pipe()
    started = time.monotonic()
    deadline_s = settings.burnin.deadline_s
    # fork: the child is this very hook, it only waits in another place.
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _ask(job, settings, instance_type, writer)
    os.close(writer)
    answer = bytearray()
    try:
        while (left := started + deadline_s + 2.0 - time.monotonic()) > 0:
            if select.select([reader], [], [], min(left, LOOK_EVERY_S))[0]:
                chunk = os.read(reader, 65536)
                if not chunk:
                    break
                answer += chunk
                continue
            if ended := marks.stopped(share, job):
                return unknown("burnin.ended-elsewhere", f"this attempt has ended: {ended}"), ended
        outcome = _parse(bytes(answer), time.monotonic() - started)
        # A partner that saw the mark first has gone, and that looks like a loss: nothing is made of a job that is over.
        if outcome.verdict.verdict == UNKNOWN and (ended := marks.stopped(share, job)):
            return unknown("burnin.ended-elsewhere", f"this attempt has ended: {ended}"), ended
        return outcome, ""
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # killed and not in the kernel's hands: it only waited for messages


def _ask(job: HookJob, settings: Settings, instance_type: str, writer: int) -> None:
    code = 1
    try:
        from slurm_ext.burnin.gate import run_burnin

        asked = BurninJob(
            job.cluster, job.job_id, job.restarts, job.nodes, job.node, job.gpus, instance_type, max(job.uid, 0)
        )
        outcome = run_burnin(asked, settings, deadline_s=settings.burnin.deadline_s)
        with os.fdopen(writer, "wb") as stream:
            stream.write(json.dumps(outcome_to_json(outcome)).encode())
        code = 0
    finally:
        os._exit(code)


def _parse(answer: bytes, seconds: float) -> Outcome:
    try:
        return outcome_from_json(json.loads(answer))
    except ValueError:
        return unknown("burnin.no-answer", f"our own burn-in gave no answer in {seconds:.1f} s")
