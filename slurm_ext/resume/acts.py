"""The steps that bring a job back, each journaled, each safe to repeat: requeue, exclude, drain, release, hold.

A step looks at Slurm first: what is there already is not done again, whoever did it. That makes a crash between the intent
and the deed, or between the deed and its record, the same as no crash.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from slurm_ext.config.model import Settings
from slurm_ext.errors import FmslurmError, SlurmError
from slurm_ext.events import Event
from slurm_ext.resume.journal import Attempt, Journal
from slurm_ext.slurm import journal as trail
from slurm_ext.slurm.act import drain_node
from slurm_ext.slurm.hostlist import expand, fold
from slurm_ext.slurm.model import Job
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.slurm.versions import restart_pause_s
from slurm_ext.verdict import Finding, one_line

#: After so many refusals a step is given up and a person is told.
MAX_TRIES = 5

#: The step by which a job gets the time back that its gate took.
TIME_STEP = "time"

DONE, WAITING, GIVEN_UP = "done", "waiting", "given-up"


class Acts(NamedTuple):
    """What the steps work with. `crash` is called at named points; tests end the process there."""

    slurm: Slurm
    settings: Settings
    journal: Journal
    events_path: str
    crash: Callable[[str], None] = lambda _point: None

    def step(
        self,
        attempt: Attempt,
        name: str,
        act: Callable[[Job], None],
        is_so: Callable[[Job], bool],
        *,
        evidence: tuple[str, ...] = (),
        detail: str = "",
    ) -> str:
        """Make a step so: return DONE, WAITING (try again at the next tick), or GIVEN_UP after MAX_TRIES.

        `detail` is kept with the step from its intent on: what a later look must know of what was meant.
        """
        before = self.journal.step(attempt, name)
        if before is not None and before.phase == "done":
            return DONE
        try:
            job = self.job(attempt)
        except FmslurmError:
            return WAITING
        if is_so(job):
            found = "found so after a restart" if before is not None else "was so already"
            self.journal.mark(attempt, name, "done", time.time(), detail or found)
            return DONE
        if before is not None and before.tries >= MAX_TRIES:
            self.journal.mark(attempt, name, "failed", time.time(), before.detail)
            return GIVEN_UP
        self.journal.mark(attempt, name, "intent", time.time(), detail)
        self.crash(f"{name}:intent")

        def confirm() -> str:
            self.crash(f"{name}:acted")
            after = self.job(attempt)
            return "" if is_so(after) else f"job is {after.state} {' '.join(after.flags)} afterwards"

        event = self.event(attempt, f"resume.{name}")._replace(evidence=evidence)
        done, wrong = trail.Journal(self.events_path, "", "").do(event, lambda: act(job), confirm)
        self.journal.mark(attempt, name, "done" if done else "failed", time.time(), detail if done else wrong)
        self.crash(f"{name}:recorded")
        return DONE if done else WAITING

    def event(self, attempt: Attempt, name: str) -> Event:
        """Return an event about a run, with its decision where there is one."""
        decision, cause = attempt.decision, attempt.cause
        return Event(
            name,
            room="resume",
            job=attempt.job_id,
            attempt=attempt.key,
            rule=decision.rule if decision else "",
            reason=one_line(decision.reason) if decision else "",
            decision=decision.action if decision else "",
            config=self.settings.source_hash[:12],
            data={
                "class": cause.cause if cause else "",
                "culprits": list(cause.culprit_nodes) if cause else [],
                "suspects": list(cause.suspects) if cause else [],
            },
        )

    def job(self, attempt: Attempt) -> Job:
        """Return the job as Slurm has it now. Raise SlurmError where Slurm knows it no longer or another has its id."""
        for job in self.slurm.jobs([attempt.job_id]):
            if job.job_id == attempt.job_id:
                if job.restarts < attempt.restarts:
                    raise SlurmError(f"job {attempt.job_id} is another one by now")
                return job
        raise SlurmError(f"Slurm knows job {attempt.job_id} no longer")

    # --- the steps

    def requeue(self, attempt: Attempt) -> str:
        """Put the job back, held, so that it cannot start before its exclusions are set."""

        beaten: list[bool] = []

        def act(job: Job) -> None:
            try:
                self.slurm.requeue(job.job_id, hold=True)
            except SlurmError as exc:
                # Slurm requeues it by itself once it has completed (a prolog failed): what it shows until then is the old end.
                if "pending execution" not in exc.message:
                    raise
                beaten.append(True)

        def is_back(job: Job) -> bool:
            return job.restarts > attempt.restarts or job.state == "PENDING" or bool(beaten)

        return self.step(attempt, "requeue", act, is_back)

    def exclude(
        self, attempt: Attempt, ours: Iterable[str] | None = None, *, step: str = "exclude", why: str = ""
    ) -> str:
        """Set ExcNodeList to the user's own and ours (those of the decision): what an earlier run left out goes with it.

        Names that Slurm no longer knows are left out, or it refuses all; and so is what the job itself requires, or it
        would wait with BadConstraints for ever.
        """
        assert attempt.decision is not None
        ours = attempt.decision.exclude if ours is None else tuple(ours)
        try:
            job = self.job(attempt)
            now = set(expand(job.excluded_nodes))
            if not ours and now == set(expand(attempt.user_excluded)):
                return DONE
            known = {node.name for node in self.slurm.nodes()}
            required = set(expand(job.required_nodes))
        except FmslurmError:
            return WAITING
        if "COMPLETING" in job.flags and job.state != "PENDING" and job.restarts <= attempt.restarts:
            return WAITING  # on its way back by Slurm's own hand: not yet a job whose nodes can be chosen
        wanted = known & {*expand(attempt.user_excluded), *(set(ours) - required)}

        def is_set(job: Job) -> bool:
            return set(expand(job.excluded_nodes)) == wanted or job.restarts > attempt.restarts + 1 or runs(job)

        def act(job: Job) -> None:
            self.slurm.update_job(job.job_id, {"ExcNodeList": fold(wanted)})

        return self.step(attempt, step, act, is_set, evidence=(*((why,) if why else ()), *sorted(wanted)))

    def give_back(self, attempt: Attempt, limit_min: int, said: str) -> str:
        """Raise a running job's TimeLimit to `limit_min` minutes; `said` (from, to, why) is kept with the step."""

        def is_so(job: Job) -> bool:
            return not runs(job) or job.time_limit_min < 0 or job.time_limit_min >= limit_min

        def act(job: Job) -> None:
            self.slurm.update_job(job.job_id, {"TimeLimit": str(limit_min)})

        return self.step(attempt, TIME_STEP, act, is_so, evidence=(said,), detail=said)

    def hold(self, attempt: Attempt) -> str:
        """Keep a pending job from starting until somebody releases it; then it starts without Slurm's two minutes of wait."""

        def is_held(job: Job) -> bool:
            return not_waiting(job) or (job.priority == 0 and job.eligible_time <= time.time() + 5)

        def act(job: Job) -> None:
            if job.priority != 0:
                self.slurm.hold(job.job_id)
            if job.eligible_time > time.time() + 5:
                self.slurm.update_job(job.job_id, {"StartTime": "now+2"})

        return self.step(attempt, "hold", act, is_held)

    def release(self, attempt: Attempt, wait_s: float) -> str:
        """Let the job start: at once, or `wait_s` seconds after its end. Not while it completes, or Slurm overwrites it."""
        try:
            job = self.job(attempt)
        except FmslurmError:
            return WAITING
        if "COMPLETING" in job.flags:
            return WAITING
        pause_s = restart_pause_s(self.slurm.version())
        start_at = max((attempt.ended or time.time()) + wait_s, time.time() + pause_s)

        # Slurm makes a requeued job wait for two minutes; that wait is what StartTime takes away.
        def may_start(now: Job) -> bool:
            if not_waiting(now):
                return True
            in_time = now.eligible_time <= time.time() + 5 if wait_s < 1 else now.eligible_time >= start_at - 5
            return now.priority > 0 and in_time

        def act(now: Job) -> None:
            left = math.ceil(start_at - time.time())
            self.slurm.update_job(now.job_id, {"StartTime": f"now+{left}" if left >= 1 else "now"})
            if now.priority == 0:
                self.slurm.release(now.job_id)

        return self.step(attempt, "release", act, may_start)

    def drain(self, attempt: Attempt, now: float) -> str:
        """Drain culprits that hard evidence convicts and that nobody has drained; mode and breaker of the gate have a say."""
        cause = attempt.cause
        if cause is None or not cause.hard or not cause.culprit_nodes or self.journal.step(attempt, "drain"):
            return DONE
        finding = Finding(*cause.finding, "drain", cause.evidence[:3])
        said = []
        for node in cause.culprit_nodes:
            outcome = drain_node(
                self.slurm,
                self.settings,
                node,
                finding,
                job=attempt.job_id,
                now=now,
                events_path=self.events_path,
            )
            said.append(f"{node}: {outcome.result}: {outcome.reason}")
        self.journal.mark(attempt, "drain", "done", now, "; ".join(said))
        return DONE


def runs(job: Job) -> bool:
    """Say whether a job has nodes and is not on its way out of them."""
    return job.state in ("RUNNING", "CONFIGURING", "SUSPENDED") and "COMPLETING" not in job.flags


def not_waiting(job: Job) -> bool:
    """Say whether a job is anything but pending: it started again, or somebody ended it."""
    return job.state != "PENDING"
