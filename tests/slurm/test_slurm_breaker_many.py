"""200 real processes convict their nodes in one moment: never more drains than allowed, and no job lost.

Each goes the prolog's own way (`hooks.prolog._drain`), with a ledger and a trail on one share, and a Slurm that may be slow,
may not answer, or may cost a hook its life.
"""

from __future__ import annotations

import json
import os
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from folder_slurm import FolderSlurm

from slurm_ext import events, shared
from slurm_ext.config.model import Settings
from slurm_ext.config.modes import Heartbeat
from slurm_ext.errors import SlurmError
from slurm_ext.hooks import act, jobfile, prolog
from slurm_ext.hooks.decide import DRAIN, Plan
from slurm_ext.hooks.environment import HookJob
from slurm_ext.resume import stopped
from slurm_ext.slurm import ledger, suppressed
from slurm_ext.slurm.hostlist import expand
from slurm_ext.slurm.model import Job
from slurm_ext.verdict import Finding

COUNT = 200
NODES = tuple(f"n{number:03}" for number in range(COUNT))
FINDING = Finding("gpu.lost", "gpu:3", "reboot", ("GPU is lost",))
PLAN = Plan(DRAIN, "gpu.lost on gpu:3: GPU is lost", "gpu.lost", FINDING)


class Site:
    """One share, one Slurm, and hooks of many nodes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, one_job: bool = False) -> None:
        self.folder, self.one_job, self.boot_id = folder, one_job, "boot"
        (folder / "share/ledger").mkdir(mode=0o755, parents=True)
        plain = Settings()
        self.settings = plain._replace(
            site=plain.site._replace(
                share=str(folder / "share"), run_dir=str(folder / "run/%n"), log_dir=str(folder / "log/%n")
            ),
            mode=plain.mode._replace(gate="enforce"),
        )
        running = {"partition": "gpu", "state": "RUNNING", "priority": 10, "requeue": True}
        jobs = [Job("1000", nodes=f"n[000-{COUNT - 1}]", **running)]
        if not one_job:
            jobs = [Job(str(1000 + number), nodes=node, **running) for number, node in enumerate(NODES)]
        self.slurm = FolderSlurm.create(folder / "slurm", (*NODES, "spare"), jobs)
        monkeypatch.setattr(act, "connect", lambda *_args, **_more: self.slurm)
        monkeypatch.setattr(shared, "TIMEOUT_S", 60.0)
        for call in (ledger.claim, suppressed.note, shared.append_event, shared.decide_once):
            monkeypatch.setitem(call.__kwdefaults__, "timeout_s", 60.0)

        for node in NODES:
            (folder / "run" / node).mkdir(parents=True)
            jobfile.job_starts(str(folder / "run" / node), "boot")  # a job has run here: this is nobody's first

    @property
    def share(self) -> str:
        return self.settings.site.share

    def job_of(self, number: int) -> HookJob:
        job_id = "1000" if self.one_job else str(1000 + number)
        nodes = NODES if self.one_job else (NODES[number],)
        return HookJob(job_id, "c", 0, NODES[number], nodes, "gpu", 1000, 1000, 8, True)

    def hook(self, number: int) -> str:
        job = self.job_of(number)
        passed = prolog.Passed(PLAN, (), {}, boot_id=self.boot_id)
        return json.dumps(prolog._drain(job, self.settings, self.share, passed, "gate", {}))

    def all_at_once(self, count: int = COUNT, *, behind: Callable[[set[int]], None] | None = None) -> dict[str, list]:
        """Start all hooks at the same moment; return what each came to, by node. Who died has nothing to say.

        `behind` is called once all but those that wait for it have ended.
        """
        gate, opener = os.pipe()
        results = self.folder / "results"
        results.mkdir(exist_ok=True)
        pids = {}
        for number in range(count):
            pid = os.fork()
            if pid == 0:
                try:
                    os.close(opener)
                    os.read(gate, 1)
                    answer = self.hook(number)
                    (results / NODES[number]).write_text(answer)
                except BaseException:  # noqa: BLE001 - told by the parent
                    (self.folder / "broke").write_text(traceback.format_exc())
                finally:
                    os._exit(0)
            pids[pid] = number
        os.close(gate)
        os.close(opener)
        while pids:
            if behind is not None and len(pids) <= 2:
                behind(set(pids.values()))
                behind = None
            pid, _ = os.wait()
            pids.pop(pid, None)
        assert not (self.folder / "broke").exists(), (self.folder / "broke").read_text()
        return {path.name: json.loads(path.read_text()) for path in results.iterdir()}

    def drained(self) -> list[str]:
        return [node.name for node in self.slurm.nodes() if node.drained]

    def trail(self, event: str) -> list[events.Event]:
        found = []
        for path in (self.folder / "share/nodes").glob("*/events.jsonl"):
            found += [one for one in events.read(str(path)) if one.event == event]
        return found


def outcome(answers: dict[str, list]) -> Counter:
    return Counter((code, runs) for code, runs, _ in answers.values())


def test_200_nodes_with_a_job_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch)
    answers = site.all_at_once()
    assert outcome(answers) == {(1, False): 2, (0, False): COUNT - 2}
    assert len(site.drained()) == 2
    assert {node for node, answer in answers.items() if answer[0] == 1} == set(site.drained())
    # No job is lost: each that was not drained for is back in the queue, and may not come to that node again.
    for number, node in enumerate(NODES):
        (job,) = site.slurm.jobs([str(1000 + number)])
        if node not in site.drained():
            assert (job.state, expand(job.excluded_nodes)) == ("PENDING", [node])
    # One page, the suppressed by name, and each in the trail.
    assert len(site.trail("breaker.open")) == 1
    assert site.trail("breaker.open")[0].data["nodes"]
    held_back = suppressed.read_all(site.share, now=shared_now(site))
    assert held_back is not None
    assert set(held_back) == set(NODES) - set(site.drained())
    last = max((int(str(one.data["count"])) for one in site.trail("breaker.more")), default=0)
    assert last >= 100
    assert len([one for one in site.trail("node.drain") if one.decision == "suppressed"]) == COUNT - 2


def shared_now(site: Site) -> float:
    return max(path.stat().st_mtime for path in (site.folder / "share/suppressed").rglob("*.json"))


def test_nodes_at_their_first_job_since_boot_have_a_budget_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobfile, "FIRST_JOB_S", 1e9)
    site = Site(tmp_path, monkeypatch)
    site.boot_id = "next boot"
    assert outcome(site.all_at_once(16))[(1, False)] == 4
    budgets = Counter(entry.budget for entry in ledger.entries(site.share) or ())
    assert budgets == {"first-boot": 2, "hourly": 2}


def test_one_job_whose_nodes_fail_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch, one_job=True)
    shared.beat(site.share, Heartbeat(9e9, "enforce", 1))  # from the future: not fresh, so hooks look after the job
    answers = site.all_at_once(80)
    assert outcome(answers)[(1, False)] == 2
    assert len(site.drained()) == 2
    (job,) = site.slurm.jobs(["1000"])
    assert (job.state, job.restarts) == ("PENDING", 1)
    assert [one for one in site.slurm.acts() if "requeue" in one] == ["requeue 1000"]
    # The controller learns of every node that it should be kept away from.
    stop = stopped.mark(site.settings, "c", "1000", 0)
    assert stop is not None
    assert set(stop.suspects) == set(NODES[:80]) - set(site.drained())
    assert stop.policy == "requeue"


def test_a_slurm_that_is_slow_to_drain_lets_nobody_else_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that may drain hang in scontrol until all others have ended."""
    site = Site(tmp_path, monkeypatch)
    reader, writer = os.pipe()

    def hang(_: str) -> None:
        os.close(writer)
        os.read(reader, 1)

    site.slurm.before_drain = hang
    waited: list[set[int]] = []

    def go_on(numbers: set[int]) -> None:
        waited.append(numbers)
        os.close(writer)

    answers = site.all_at_once(24, behind=go_on)
    assert outcome(answers) == {(1, False): 2, (0, False): 22}
    assert {NODES[number] for number in waited[0]} == set(site.drained())


def test_a_slurm_that_refuses_and_hooks_that_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch)

    def fail(node: str) -> None:
        if int(node[1:]) % 2:
            os._exit(1)
        raise SlurmError("Unable to contact slurm controller")

    site.slurm.before_drain = fail
    answers = site.all_at_once(24)
    # Slurm drains who exits 1: never more than are in the ledger, which were allowed; who died has counted.
    failed = [node for node, answer in answers.items() if answer[0] == 1]
    found = ledger.entries(site.share)
    assert found is not None
    assert set(failed) <= {entry.node for entry in found}
    assert len({entry.node for entry in found}) == 2
    assert len(answers) + len({entry.node for entry in found} - set(failed)) == 24
    assert site.drained() == []


def test_without_an_answer_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch)

    def silent(*_: object, **__: object) -> None:
        raise SlurmError("Unable to contact slurm controller")

    monkeypatch.setattr(FolderSlurm, "nodes", silent)
    monkeypatch.setattr(FolderSlurm, "jobs", silent)
    answers = site.all_at_once(24)
    # Two exit 1, by which Slurm drains them once it answers; the others pass, for their jobs cannot be stopped.
    assert outcome(answers) == {(1, False): 2, (0, True): 22}


def test_a_hold_is_what_the_site_wants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch)
    site.settings = site.settings._replace(drain=site.settings.drain._replace(max_per_hour=0, max_percent_per_hour=0.0))
    site.settings = site.settings._replace(drain=site.settings.drain._replace(when_open="hold"))
    assert site.hook(0).startswith("[0, false")
    stop = stopped.mark(site.settings, "c", "1000", 0)
    assert stop is not None
    assert (stop.policy, stop.suspects) == ("hold", (NODES[0],))


@pytest.mark.parametrize(
    ("excluded", "required", "count", "words"),
    [
        ("", "", 1, "kept away from n000"),
        ("", "n000", 1, "it asks for n000 itself"),
        ("n[100-199]", "", 101, "not kept away from n000: 100 nodes would be left, and it needs 101"),
        ("n[100-199]", "", 100, "kept away from n000"),
    ],
)
def test_kept_away_only_where_it_can_run_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, excluded: str, required: str, count: int, words: str
) -> None:
    site = Site(tmp_path, monkeypatch)
    site.slurm.set_job("1000", state="PENDING", excluded_nodes=excluded, required_nodes=required)
    job = site.job_of(0)._replace(nodes=NODES[:count])
    said = act.leave_out(site.settings, job, ["n000"], reason="x", rule="y", room="gate")
    assert said == words
    (after,) = site.slurm.jobs(["1000"])
    kept = set(expand(excluded))
    assert set(expand(after.excluded_nodes)) == (kept | {"n000"} if words.startswith("kept") else kept)


def test_a_live_controller_keeps_it_away_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch)
    import time

    shared.beat(site.share, Heartbeat(time.time(), "enforce", 1))
    said = act.leave_out(site.settings, site.job_of(0), NODES[:7], reason="x", rule="y", room="gate")
    assert said == "the controller keeps it away from n000, n001, n002, n003, n004 and 2 more"
    assert site.slurm.acts() == []
