"""The local half of the gate: look at this node within a deadline, and say whether a job may start here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from slurm_ext.aws import catalogue
from slurm_ext.config.model import Settings, at_node
from slurm_ext.gate import collect, gpu_growth, probes, rules
from slurm_ext.gate.model import Facts, Judged, Smi, conclude
from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import PASS, Verdict


class Look(NamedTuple):
    """One look at a node: the verdict, what it rests on, the kernel's words in the job's time, and how long it took."""

    verdict: Verdict
    facts: Facts
    in_window: tuple[str, ...]
    seconds: float
    kept: Mapping[str, Any] = {}  # name of a probe -> what it wants to see again when the job has ended
    items: tuple[Judged, ...] = ()  # each finding with its own verdict

    def words(self) -> str:
        """Return what was measured, in one short line for a job's log."""
        parts = []
        if self.facts.smi is not None and self.facts.smi.gpus:
            parts.append(f"{len(self.facts.smi.gpus)} GPUs")
        if self.facts.efa_devices:
            parts.append(f"{self.facts.efa_devices} EFA devices")
        if self.facts.kernel is not None:
            parts.append("kernel log read")
        parts += [
            f"{len(probes)} {name}"
            for name, probes in (("scratch", self.facts.scratch), ("lustre", self.facts.lustre))
            if probes
        ]
        return f"{self.verdict.verdict} in {self.seconds:.2f} s ({', '.join(parts) or 'nothing could be read'})"


class Job(NamedTuple):
    """The job whose prolog or epilog looks. `baseline` is what `Look.kept` was when it began."""

    job_id: str = ""
    uid: int = -1
    gpus: tuple[str, ...] = ()
    baseline: Mapping[str, Mapping[str, Any]] = {}
    unclear: bool = False  # Slurm says of its GPUs what we cannot read


def look(
    settings: Settings,
    node: str,
    *,
    phase: str,
    job_window: tuple[float, float] | None,
    deadline_s: float,
    job: Job = Job(),  # noqa: B008 - a NamedTuple
) -> Look:
    """Look at this node; see `check`. The kernel's words between the times of `job_window` are evidence about that job."""
    if phase not in probes.PHASES:
        raise ValueError(f"no phase is called {phase!r}; there are {', '.join(probes.PHASES)}")
    started, at_s = time.monotonic(), time.time()
    want = collect.Want(processes=True, links=phase != probes.PROLOG, left=phase != probes.PROLOG)
    here = probes.Here(
        at_node(settings.site.root, node),
        node,
        phase,
        settings,
        job.job_id,
        job.uid,
        job.gpus,
        job_window,
        job.baseline,
    )
    facts = collect.gather(settings, node, want=want, deadline_s=deadline_s, here=here)
    items = tuple(_judged(facts, settings, here, job, at_s))
    verdict = conclude(items, rule="gate.local")
    said: Sequence[str] = ()
    if job_window is not None and facts.kernel is not None:
        # By the clock as it stood when the age of the boot was read: what hung since then must not move the window.
        said = collect.within(facts.kernel, *job_window, collect.boot_time_s(facts, at_s))
    kept = {name: probed.kept for name, probed in facts.probed.items() if probed.kept}
    if phase == probes.PROLOG and (counters := gpu_growth.keep(facts.smi)):
        kept["gpu"] = {"at_s": time.time(), "gpus": counters}
    return Look(verdict, facts, tuple(said), time.monotonic() - started, kept, items)


def _judged(facts: Facts, settings: Settings, here: probes.Here, job: Job, at_s: float) -> list[Judged]:
    """Return what the facts say for this job, or for the node where nobody's job is in view.

    `at_s`: when the look began, in seconds since the epoch.
    """
    row = catalogue.find(facts.instance_type)
    count = _gpus_here(facts.smi, row)
    in_view = here.phase != probes.HEALTH and bool(job.job_id)
    # Parts of GPUs (MIG) may be many and yet lie on few of them.
    whole = not job.unclear and 0 < count <= len(job.gpus) and not any(word.startswith("MIG-") for word in job.gpus)
    items = rules.judge(facts, settings, row, rules.Job(here.phase, job.job_id, job.uid, whole_node=whole))
    if any(item.finding.id == "disk.scratch-full" for item in items):
        from slurm_ext.gate import scratch_full

        items = scratch_full.narrow(items, here)
    said: Sequence[str] = ()
    if here.phase == probes.EPILOG:
        items += rules.enabled(_growth(facts, job, at_s), settings.gate.disabled)
        if here.window is not None and facts.kernel is not None and job.job_id:
            told = collect.within(facts.kernel, *here.window, collect.boot_time_s(facts, at_s))
            said = [text for text in told if "Xid" in text]
    matters = bool(said) or any(item.verdict != PASS for item in items)
    pcis: frozenset[str] | None = None
    if in_view and not whole and matters:
        from slurm_ext.gate import gpu_scope, gpu_whose

        if not said and not any(item.verdict != PASS and gpu_scope.is_about_gpus(item) for item in items):
            return items
        scope = gpu_whose.ask(facts.smi, here, count, unclear=job.unclear)
        items = gpu_scope.narrow(items, facts.smi, scope)
        if scope.why:
            return items  # whose GPU it was must be known to name a job
        pcis = scope.pcis if scope.extent != gpu_scope.ALL else None
    if said:
        from slurm_ext.gate import kernel_job

        items += rules.enabled(kernel_job.judge(said, job.job_id, pcis), settings.gate.disabled)
    return items


def _gpus_here(smi: Smi | None, row: catalogue.InstanceType | None) -> int:
    """Return how many GPUs this node has: a list that was cut does not make a job's GPUs all there are."""
    if smi is None:
        return row.gpus if row is not None else 0
    if smi.complete and smi.exit_code == 0:
        return max(len(smi.gpus), smi.attached or 0)
    return max(len(smi.gpus), smi.attached or 0, row.gpus if row is not None else 0)


def _growth(facts: Facts, job: Job, at_s: float) -> list[Judged]:
    """Return which counters of the GPUs grew since the job began."""
    kept = job.baseline.get("gpu") or {}
    if not isinstance(kept.get("gpus"), Mapping):
        return []
    began = kept.get("at_s")
    interval_s = at_s - began if isinstance(began, (int, float)) and began < at_s else None
    return gpu_growth.judge_growth(kept["gpus"], gpu_growth.keep(facts.smi), interval_s)


def check(
    settings: Settings, node: str, *, phase: str, job_window: tuple[float, float] | None, deadline_s: float
) -> Verdict:
    """Return whether a job may start on this node (`phase` prolog, epilog or health), within `deadline_s` seconds.

    `job_window` is the job's (start, end) in seconds since the epoch. A child that hangs makes a finding unknown, never a
    failure. `verdict.rule` is the id of the finding that decided; `gate.model.decisive` returns it.
    """
    return look(settings, node, phase=phase, job_window=job_window, deadline_s=deadline_s).verdict
