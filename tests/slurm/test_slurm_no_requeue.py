"""Jobs that Slurm does not requeue, on a convicted node: sent back as long as nothing of them has run, else as the site says."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from folder_slurm import FolderSlurm

from slurm_ext import shared
from slurm_ext.config.model import Settings
from slurm_ext.errors import SlurmError
from slurm_ext.hooks import act, jobfile, no_requeue, not_begun, prolog
from slurm_ext.hooks.decide import DRAIN, Plan
from slurm_ext.hooks.environment import HookJob
from slurm_ext.resume import story
from slurm_ext.slurm.model import Job
from slurm_ext.verdict import Finding

PLAN = Plan(
    DRAIN, "gpu.lost on gpu:3: GPU is lost", "gpu.lost", Finding("gpu.lost", "gpu:3", "reboot", ("GPU is lost",))
)
#: The second node of a job of two; n0 runs its batch script.
JOB = HookJob("77", "c", 0, "n1", ("n0", "n1"), "gpu", 1000, 1000, 8, True)


@dataclasses.dataclass
class Site:
    """A cluster of three nodes in whose node n1 the gate convicts, with one job that may not be requeued."""

    slurm: FolderSlurm
    settings: Settings
    job: HookJob = JOB

    def hook(self) -> tuple[int, bool, str, dict[str, object]]:
        told: dict[str, object] = {}
        passed = prolog.Passed(PLAN, (), {}, boot_id="boot")
        return *prolog._drain(self.job, self.settings, self.settings.site.share, passed, "gate", told), told

    def breaker(self, *, is_open: bool, when_open: str = "requeue") -> None:
        limit = 0 if is_open else 2
        self.settings = self.settings._replace(
            drain=self.settings.drain._replace(max_per_hour=limit, max_percent_per_hour=0.0, when_open=when_open)
        )

    def acts(self) -> list[str]:
        return [one for one in self.slurm.acts() if not one.startswith("drain")]

    def now(self) -> Job:
        return self.slurm.jobs(["77"])[0]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    tmp_path.chmod(0o755)
    (tmp_path / "share/ledger").mkdir(mode=0o755, parents=True)
    for node in ("n0", "n1"):
        (tmp_path / f"run/{node}").mkdir(parents=True)
        jobfile.job_starts(str(tmp_path / f"run/{node}"), "boot")
    plain = Settings()
    places = {"share": "share", "run_dir": "run/%n", "log_dir": "log/%n", "root": "root"}
    settings = plain._replace(
        site=plain.site._replace(**{key: str(tmp_path / name) for key, name in places.items()}),
        mode=plain.mode._replace(gate="enforce"),
    )
    job = Job("77", nodes="n[0-1]", partition="gpu", state="RUNNING", priority=10, reason="Prolog", batch_host="n0")
    slurm = FolderSlurm.create(tmp_path / "slurm", ["n0", "n1", "n2"], [job])
    monkeypatch.setattr(act, "connect", lambda *_args, **_more: slurm)
    return Site(slurm, settings)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("when_open", ["requeue", "hold", "cancel"])
def test_one_that_has_not_begun_goes_back_and_stays_one_that_may_not_be_requeued(
    site: Site, is_open: bool, when_open: str
) -> None:
    site.breaker(is_open=is_open, when_open=when_open)
    code, runs, said, told = site.hook()
    assert (code, runs) == (0, False), said
    assert "sent back" in said
    assert site.acts() == ["requeue 77"]
    after = site.now()
    assert (after.requeue, after.restarts, after.state) == (False, 1, "PENDING")
    assert "runs_on_bad" not in told
    assert [node.drained for node in site.slurm.nodes(["n1"])] == [not is_open]


#: What makes it unknown whether the script has begun, or impossible to send the job back.
BEGUN: dict[str, Callable[[Site], None]] = {
    "no DeferBatch": lambda site: setattr(site.slurm, "prolog_flags", "Alloc,Contain"),
    "no reason": lambda site: site.slurm.set_job("77", reason=""),
    "salloc": lambda site: setattr(site, "job", JOB._replace(batch=False)),
    "part of a het job": lambda site: setattr(site, "job", JOB._replace(het="77")),
}


@pytest.mark.parametrize("what", sorted(BEGUN))
@pytest.mark.parametrize("when_open", ["requeue", "hold", "cancel", "pass"])
def test_one_that_may_have_begun_is_not_started_twice(site: Site, what: str, when_open: str) -> None:
    site.breaker(is_open=True, when_open=when_open)
    BEGUN[what](site)
    code, runs, said, told = site.hook()
    assert code == 0, "to fail would be a drain"
    assert site.now().restarts == 0
    assert not any(node.drained for node in site.slurm.nodes())
    if when_open == "cancel":
        assert not runs
        assert site.acts() == ["cancel 77"]
        assert "job cancelled" in said
        assert "runs_on_bad" not in told
        return
    assert runs
    assert site.acts() == []
    line = str(told["runs_on_bad"])
    assert line.startswith("NOT WELL: n1 is convicted and runs this job all the same: gpu.lost on gpu:3")
    # Its owner finds the same in `fmslurm why`.
    (bad,) = story.bad_nodes(site.settings, "c", site.now())
    assert (bad["node"], bad["reason"]) == ("n1", PLAN.reason)
    assert bad["why"] in line
    if when_open == "pass":
        assert bad["why"] == "drain.when_open is pass"
    else:
        assert ("no batch job" in bad["why"]) == (what == "salloc")
        assert ("may not be requeued" in bad["why"]) == (what != "salloc")
    assert story.bad_nodes(site.settings, "c", site.now()._replace(restarts=1)) == []


def test_the_batch_host_knows_by_itself_that_the_script_has_not_begun(site: Site) -> None:
    BEGUN["no DeferBatch"](site)
    site.job = JOB._replace(node="n0")
    site.breaker(is_open=True)
    assert site.hook()[1] is False
    assert site.acts() == ["requeue 77"]


@pytest.mark.parametrize("what", ["no DeferBatch", "no reason", "salloc", "part of a het job"])
def test_with_the_breaker_closed_one_that_may_have_begun_is_cancelled(site: Site, what: str) -> None:
    BEGUN[what](site)
    code, runs, said, _ = site.hook()
    assert (code, runs) == (0, False)
    assert said == "drained; the job may not be requeued and is cancelled"
    assert site.acts() == ["cancel 77"]


@pytest.mark.parametrize("is_open", [True, False])
def test_many_hooks_send_it_back_once(site: Site, is_open: bool) -> None:
    """Slurm calls it one that may be requeued while one of them sends it back: no other may take that for the truth."""
    site.breaker(is_open=is_open)
    inside, go_on = threading.Event(), threading.Event()
    plain = site.slurm.requeue

    def slowly(job_id: str, *, hold: bool) -> None:
        inside.set()
        assert go_on.wait(60)
        plain(job_id, hold=hold)

    site.slurm.requeue = slowly  # type: ignore[method-assign]
    found: list[tuple[int, bool, str, dict[str, object]]] = []
    first = threading.Thread(target=lambda: found.append(site.hook()))
    first.start()
    assert inside.wait(60)
    assert site.now().requeue, "for this moment"
    other = Site(site.slurm, site.settings, JOB._replace(node="n0"))
    said = no_requeue.end_for_good(other.settings, other.job, reason="x", rule="x.y", room="gate")
    assert said == "the job may not be requeued, and goes back already"
    go_on.set()
    first.join(60)
    assert [one[:2] for one in found] == [(0, False)]
    assert other.hook()[:2] == (0, False)
    assert site.acts() == ["requeue 77"]
    assert not site.now().requeue


def test_slurm_that_falls_silent_in_between_leaves_a_word(site: Site) -> None:
    site.breaker(is_open=True)
    plain = site.slurm.update_job

    def update(job_id: str, fields: dict[str, str]) -> None:
        if fields == {"Requeue": "0"}:
            raise SlurmError("no answer within 5.0 s")
        plain(job_id, fields)

    site.slurm.update_job = update  # type: ignore[assignment,method-assign]
    assert site.hook()[:2] == (0, False)
    lines = [
        json.loads(line) for line in Path(site.settings.site.share, "nodes/n1/events.jsonl").read_text().splitlines()
    ]
    (fact,) = [line for line in lines if line["event"] == "job.requeue" and line["phase"] == "fact"]
    assert "may be requeued from now on" in fact["reason"]


def test_what_is_not_known_is_no_proof_that_nothing_has_run(site: Site) -> None:
    says = not_begun.of(site.slurm, site.settings.site.share, JOB)
    plain = site.now()
    assert says(plain)
    assert not says(plain._replace(restarts=1))
    assert not says(plain._replace(state="PENDING"))
    assert shared.attempt_names(site.settings.site.share, JOB.attempt) == {not_begun.FILE}
