"""One tick of the daemon: observe, attribute, decide, journal, act, confirm. Everything it knows is in the journal and Slurm."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Sequence

from slurm_ext import events, request, shared
from slurm_ext.config.model import Settings
from slurm_ext.config.modes import Heartbeat
from slurm_ext.errors import FmslurmError
from slurm_ext.resume import aftercare, hyperpod, logs, observe, policy, stopped
from slurm_ext.resume import gates as gate
from slurm_ext.resume.acts import DONE, GIVEN_UP, WAITING, Acts, runs
from slurm_ext.resume.attribute import attribute
from slurm_ext.resume.gates import Gates
from slurm_ext.resume.journal import CLOSED, DECIDED, WATCHED, Attempt, Journal
from slurm_ext.resume.model import COMES_BACK, HOLD, NONE, REQUEUE, Cause, Past
from slurm_ext.resume.tick import Tick, listed, mode, of_partition, usable, with_nodes
from slurm_ext.slurm import expiry
from slurm_ext.slurm.model import Job
from slurm_ext.slurm.protocol import Slurm

#: How long (seconds) a verdict waits for the epilogs of all nodes to tell what they saw; they hold the job longer than that.
SETTLE_S = 4.0

ACTIVE = ("RUNNING", "CONFIGURING", "SUSPENDED")
OVER = (
    "COMPLETED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "CANCELLED",
    "PREEMPTED",
    "BOOT_FAIL",
    "OUT_OF_MEMORY",
    "DEADLINE",
)


#: The rule about a job whose prolog never ends.
STUCK = "slurm.stuck-prolog"

#: How the row of a job ends that only its gate was ours of.
UNWATCHED = "its gate is over; it did not ask to be watched"


class Controller:
    """The daemon without its loop. `crash` is called at named points of acting; tests end the process there."""

    def __init__(
        self,
        settings: Settings,
        slurm: Slurm,
        journal: Journal,
        *,
        cluster: str,
        crash: Callable[[str], None] = lambda _point: None,
        settle_s: float = SETTLE_S,
    ) -> None:
        """Take everything from outside; nothing is asked of Slurm yet."""
        self.settings, self.slurm, self.journal, self.cluster = settings, slurm, journal, cluster
        self.settle_s = settle_s
        self.events_path = os.path.join(settings.site.log_dir.replace("%n", "controller"), "events.jsonl")
        self.acts = Acts(slurm, settings, journal, self.events_path, crash)
        self.jobs: dict[str, Job] = {}
        self.seen_at = 0.0
        self.gates = Gates()
        self._reviewed_at = 0.0
        self._reminded_at = 0.0

    def use(self, settings: Settings) -> None:
        """Go on with other settings: what was pushed or switched since the last tick."""
        self.settings = settings
        self.acts = self.acts._replace(settings=settings)

    def tick(self) -> None:
        """Look once and do what is due. Raise FmslurmError where Slurm does not answer: nothing is decided then."""
        now = time.time()
        off = shared.switches(self.settings.site.share) or ()
        tick = Tick(now, (), off)
        self._beat(tick)
        jobs = self.slurm.jobs()
        self.jobs = {job.job_id: job for job in jobs}
        self.seen_at = now
        if now - self._reminded_at >= expiry.LOOK_EVERY_S:
            self._reminded_at = now
            expiry.remind(self.settings, self.events_path, now=now)
            expiry.unrecorded(self.settings, self.slurm.nodes(), self.events_path, now=now)
        if self.settings.mode.burnin != "off":
            self.gates.tell(jobs, self.settings, self.cluster, now)
        if mode(self.settings, tick, next(iter(self.settings.mode.partitions), "")) == "off":
            return
        gated = {attempt.job_id for attempt in self.journal.unfinished()}
        reviews = now - self._reviewed_at >= aftercare.REVIEW_S
        self._reviewed_at = now if reviews else self._reviewed_at
        for job in jobs:
            if job.state == "PENDING" and job.restarts > 0 and not job.flags:
                attempt = self.journal.latest(self.cluster, job) if reviews or job.priority == 0 else None
                if attempt is not None:
                    tick = aftercare.review(self.acts, attempt, job, tick, exclusions_too=reviews)
            if self._is_ours(job):
                tick = self._watch(job, tick)
            elif job.het_job_id in ("", job.job_id) and (job.job_id in gated or gate.in_gate(job) or job.restarts > 0):
                tick = self._guard(job, tick)
        for attempt in self.journal.unfinished():
            if attempt.job_id not in self.jobs and attempt.cluster == self.cluster:
                self.journal.finish(attempt, "Slurm no longer knows the job")
        self._beat(tick)

    def _beat(self, tick: Tick) -> None:
        rung = mode(self.settings, tick, next(iter(self.settings.mode.partitions), ""))
        shared.beat(self.settings.site.share, Heartbeat(time.time(), rung, os.getpid()))

    def _is_ours(self, job: Job) -> bool:
        """Say whether a job asked to be brought back (or the site watches all), and can be: batch jobs that may requeue."""
        wish = request.parse(job.comment)
        if wish is not None and wish.off:
            return False
        if job.het_job_id and job.het_job_id != job.job_id:
            return False  # the leader stands for all components
        asked = wish is not None and wish.resume is not None
        return asked or (not self.settings.resume.opt_in and job.requeue and bool(job.std_out))

    def _watch(self, job: Job, tick: Tick) -> Tick:
        """Bring the journal up to date with one job and do what follows."""
        attempt = self.journal.latest(self.cluster, job)
        if attempt is None and job.restarts > 0 and job.state in ("PENDING", "COMPLETING"):
            # Its run was over before we looked: what is known of it lies in the trails of nodes that we cannot name. A
            # requeue counts at once, so a job that still completes shows the number of the run to come. What a hook of
            # ours held is let go all the same.
            return self._guard(job, tick)
        if attempt is None or (job.restarts > attempt.restarts and attempt.phase == CLOSED):
            if job.state not in ACTIVE and job.state not in OVER and "COMPLETING" not in job.flags:
                return tick
            if job.restarts > 0 and "REQUEUED" in job.flags and attempt is None:
                return tick
            if job.state == "PENDING":
                return tick
            attempt = self.journal.begin(self.cluster, job, tick.now)
        if attempt.phase == WATCHED:
            attempt, tick = self._judge(attempt, job, tick)
        if attempt.phase == DECIDED:
            self._act(attempt, job, tick)
        return tick

    def _judge(self, attempt: Attempt, job: Job, tick: Tick) -> tuple[Attempt, Tick]:
        """Decide about a run that is over; one that goes on is only kept up to date."""
        back = job.restarts > attempt.restarts
        completing = "COMPLETING" in job.flags
        if not back and runs(job):
            if gate.is_stuck(job, self.settings, tick.now):
                return self._decide_stuck(attempt, tick), tick
            if job.nodes != attempt.job.nodes or job.start_time != attempt.job.start_time:
                attempt = self.journal.begin(self.cluster, job, tick.now)
            if not gate.in_gate(job):
                aftercare.give_back(self.acts, self.gates, attempt, job, tick)
            return attempt, tick
        state = _state_behind(job) if back else _state_of(job)
        if not back and (state == "PENDING" or (completing and state not in OVER)):
            return attempt, tick  # not known yet how it ends
        if state == "COMPLETED":
            return self.journal.finish(self._remember_end(attempt, job, tick, state, back), "completed"), tick
        if attempt.ended is None:
            attempt = self._remember_end(attempt, job, tick, state, back)
        tick = with_nodes(tick, self.slurm)
        nodes = observe.nodes_of(attempt.job)
        trail = observe.trails(self.settings.site.share, nodes, attempt.key)
        history = self.journal.history(attempt)
        evidence, window = observe.evidence(attempt, history, trail, tick.nodes)
        cause = attribute(evidence)
        settled = observe.reported(trail, nodes) or tick.now - (attempt.ended or tick.now) >= self.settle_s
        if not settled and completing and not (cause.hard or cause.rule.startswith("slurm.")):
            return attempt, tick
        if back and (cause.rule == stopped.RULE or cause.cause == "unknown"):
            stop = stopped.mark(self.settings, self.cluster, attempt.job_id, attempt.restarts)
            cause = stopped.cause(stop) if stop is not None else cause
        if back and cause.cause == "unknown":
            # No node failed and no hook stopped it: a person requeued the job, and knows why.
            said = cause.evidence
            cause = Cause("scheduler", NONE, "slurm.requeued", 0.6, evidence=said, reason="somebody requeued the job")
        return self._decide(attempt, history, cause, tick, window), tick

    def _remember_end(self, attempt: Attempt, job: Job, tick: Tick, state: str, back: bool) -> Attempt:
        """Keep how the run ended, with the nodes it had: Slurm forgets them, one by one while it completes."""
        if not back:
            kept = attempt.job
            nodes = kept.nodes or job.nodes
            merged = job._replace(nodes=nodes, batch_host=kept.batch_host or job.batch_host)
            self.journal.begin(self.cluster, merged, tick.now)
        return self.journal.end(attempt, tick.now, state, by_slurm=back)

    def _guard(self, job: Job, tick: Tick) -> Tick:
        """Do for a job that asked for nothing what our own gate owes it: let it go where a hook stopped it, give it its time
        back, free it where its gate hangs. Its later fate is its own."""
        attempt = self.journal.latest(self.cluster, job)
        handled = attempt is not None and attempt.restarts == job.restarts - 1 and attempt.phase != WATCHED
        stuck = job.requeue and gate.is_stuck(job, self.settings, tick.now)
        if gate.in_gate(job) and job.std_out and (stuck or self.settings.mode.burnin != "off"):
            if attempt is None or job.restarts > attempt.restarts:
                attempt = self.journal.begin(self.cluster, job, tick.now)
            if attempt.phase == WATCHED and stuck:
                attempt = self._decide_stuck(attempt, tick)
        elif not handled and (stop := stopped.find(self.settings, self.cluster, job, self._parts(job))) is not None:
            if attempt is None or attempt.restarts < job.restarts - 1:
                attempt = self.journal.begin(self.cluster, job, tick.now, restarts=job.restarts - 1)
            if attempt.phase == WATCHED and attempt.restarts == job.restarts - 1:
                tick = with_nodes(tick, self.slurm)
                attempt = self.journal.end(attempt, tick.now, "", by_slurm=True)
                window = logs.Window("", attempt.log_start, attempt.log_start_mark)
                history = self.journal.history(attempt)
                attempt = self._decide(attempt, history, stopped.cause(stop), tick, window, stop.times)
        elif attempt is not None and attempt.phase == WATCHED:
            if runs(job) and job.restarts == attempt.restarts:
                if aftercare.give_back(self.acts, self.gates, attempt, job, tick):
                    self.journal.finish(attempt, UNWATCHED)
            elif job.state in OVER and "COMPLETING" not in job.flags:
                self.journal.finish(attempt, UNWATCHED)
        if attempt is not None and attempt.phase == DECIDED:
            self._act(attempt, job, tick)
        return tick

    def _parts(self, job: Job) -> list[str]:
        """Return the ids of a heterogeneous job's other components: a stop goes to the leader, whichever of them it befell."""
        if not job.het_job_id:
            return []
        return [one.job_id for one in self.jobs.values() if one.het_job_id == job.job_id and one.job_id != job.job_id]

    def _decide_stuck(self, attempt: Attempt, tick: Tick) -> Attempt:
        tick = with_nodes(tick, self.slurm)
        attempt = self.journal.end(attempt, tick.now, "RUNNING", by_slurm=False)
        minutes = (tick.now - attempt.job.start_time) / 60
        said = (f"reason Prolog for {minutes:.0f} min",)
        cause = Cause("scheduler", REQUEUE, STUCK, 0.8, evidence=said, reason="the prolog never ended", root=STUCK)
        kept = logs.Window("", attempt.log_start, attempt.log_start_mark)
        return self._decide(attempt, self.journal.history(attempt), cause, tick, kept)

    def _decide(
        self,
        attempt: Attempt,
        history: Sequence[Attempt],
        cause: Cause,
        tick: Tick,
        window: logs.Window,
        times: int = 1,
    ) -> Attempt:
        """Weigh the cause against history and budgets, and journal the decision with its event.

        `times`: so many runs in a row ended like this by the marks on the share, whoever saw them.
        """
        wish = request.parse(attempt.job.comment)
        # What our own gate did to a job counts by the site's word, whatever budget its owner asked for.
        requested = wish.resume if wish is not None and wish.resume is not None and cause.rule != stopped.RULE else -1
        past = tuple(_past(old, tick.now) for old in history if old.decision and old.decision.action in COMES_BACK)
        unseen = max(times - 1 - len(past), 0)
        decision = policy.decide(
            cause,
            policy.Situation(
                self.settings.resume,
                (*(Past(cause.cause, "") for _ in range(unseen)), *past),
                requested,
                len(of_partition(tick.nodes, attempt.job.partition)),
                attempt.job.node_count or 1,
                attempt.by_slurm
                or cause.rule == STUCK,  # what hangs in its gate is not over: only a hold frees its nodes
                (zlib.crc32(attempt.key.encode()) % 1000) / 1000,
                usable(attempt.job, attempt.user_excluded, tick),
                listed(attempt.job.required_nodes),
            ),
        )
        # What our own gate stopped, or what hangs in it, HyperPod knows nothing of.
        is_gates = cause.rule in (stopped.RULE, STUCK)
        left = "" if is_gates else hyperpod.left_to_it(self.settings, self.slurm, attempt.job_id)
        if left:
            decision = decision._replace(reason=f"{decision.reason}; {left}", rule=hyperpod.RULE)
        dry_run = bool(left) or mode(self.settings, tick, attempt.job.partition) != "enforce"
        attempt = self.journal.decide(
            attempt, cause, decision, dry_run=dry_run, log_end=window.size, log_mark=window.mark
        )
        event = self.acts.event(attempt, "resume.decision")
        more = {"confidence": cause.confidence, "exclude": list(decision.exclude), "wait_s": decision.wait_s}
        event = event._replace(evidence=cause.evidence, dry_run=dry_run, data={**event.data, **more})
        try:
            events.append(self.events_path, event, durable=True)
        except (OSError, FmslurmError):
            if not dry_run:
                raise  # what cannot be written down is not done
        return attempt

    def _act(self, attempt: Attempt, job: Job, tick: Tick) -> None:
        """Take the steps a decision needs, as far as they can be taken now."""
        decision = attempt.decision
        assert decision is not None
        if attempt.dry_run:
            self._tell(attempt, acted=False)
            why = "HyperPod acts" if decision.rule == hyperpod.RULE else "mode is not enforce"
            self.journal.finish(attempt, f"would {decision.action}: {why}")
            return
        outcome = self._steps(attempt, job, tick)
        if outcome == WAITING:
            return
        if outcome == GIVEN_UP:
            event = self.acts.event(attempt, "resume.given-up")
            events.append(self.events_path, event._replace(phase="failed"), durable=True)
        self._tell(attempt, acted=outcome == DONE)
        self.journal.finish(attempt, {DONE: decision.action, GIVEN_UP: "given up: Slurm refused"}[outcome])

    def _steps(self, attempt: Attempt, job: Job, tick: Tick) -> str:
        decision = attempt.decision
        assert decision is not None
        acts = self.acts
        if decision.action not in COMES_BACK:
            if decision.action != HOLD:
                return DONE
            first = DONE if attempt.by_slurm else acts.requeue(attempt)
            self._tell_once(attempt, first)
            if first != DONE or "COMPLETING" in job.flags:
                return first if first != DONE else WAITING
            return acts.hold(attempt)
        first = DONE if attempt.by_slurm else acts.requeue(attempt)
        self._tell_once(attempt, first)
        if first != DONE:
            return first
        set_aside = acts.exclude(attempt)
        acts.drain(attempt, tick.now)
        if set_aside == WAITING:
            return WAITING
        if attempt.by_slurm and job.priority == 0 and job.reason in ("JobHeldUser", "JobHeldAdmin"):
            return DONE  # a person holds it, and a person releases it
        return acts.release(attempt, decision.wait_s)

    def _tell_once(self, attempt: Attempt, step: str) -> None:
        """Free the epilog, which keeps the job completing until we have acted."""
        if step != WAITING and self.journal.step(attempt, "told") is None:
            self._tell(attempt, acted=True)
            self.journal.mark(attempt, "told", "done", time.time())

    def _tell(self, attempt: Attempt, *, acted: bool) -> None:
        """Write the decision where the epilog waits for it and where people and tools find it."""
        decision = attempt.decision
        assert decision is not None
        path = shared.attempt_path(self.settings.site.share, attempt.key, shared.DECISION_FILE)
        shared.write_json(
            path,
            {
                "schema": 1,
                "attempt": attempt.key,
                "action": decision.action,
                "rule": decision.rule,
                "reason": decision.reason,
                "acted": acted,
                "dry_run": attempt.dry_run,
                "time": time.time(),
            },
        )


def _past(old: Attempt, now: float) -> Past:
    """Return an earlier run that came back, as far as policy weighs it."""
    cause, decision = old.cause, old.decision
    if cause is None or decision is None:
        return Past("unknown", "")
    culprits = cause.culprit_nodes if decision.exclude else ()
    suspects = tuple(node for node in cause.suspects if node in decision.exclude)
    return Past(cause.cause, cause.root, culprits, suspects, now - (old.ended or old.first_seen))


def _state_behind(job: Job) -> str:
    """Return how the run before ended, as far as the requeued job still tells."""
    return "PREEMPTED" if "reempt" in job.reason else ""


#: scancel ends a job with SIGTERM or SIGKILL; these a program gives itself.
_OWN_SIGNALS = ("4", "6", "7", "8", "11")


def _state_of(job: Job) -> str:
    """Return how a run ends: a completing job that a signal of its own killed will be FAILED, though Slurm says nothing yet."""
    if job.state == "COMPLETING" and job.exit_code.partition(":")[2] in _OWN_SIGNALS:
        return "FAILED"
    return job.state
