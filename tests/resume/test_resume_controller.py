"""The controller against a strict Slurm: the sequence, crashes at every point, two daemons, who is watched, what is told."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm

from slurm_ext import events, shared
from slurm_ext.config.model import Mode, Resume, Settings, Site
from slurm_ext.errors import LackingError, SlurmError
from slurm_ext.events import Event
from slurm_ext.resume import daemon
from slurm_ext.resume.controller import Controller
from slurm_ext.resume.journal import Journal
from slurm_ext.resume.story import why
from slurm_ext.slurm.model import Job

NODES = tuple(f"n{number}" for number in range(40))
XID = "NVRM: Xid (PCI:0000:53:00): 79, pid=1, name=python, GPU has fallen off the bus."


class World:
    """One job on a strict Slurm, with a share, a journal and a controller that can be started as often as one likes."""

    def __init__(self, root: Path, mode: str = "enforce") -> None:
        self.root = root
        self.opened: list[Journal] = []
        for name in ("controller", "nodes", "jobs", "ledger", "config"):
            (root / "share" / name).mkdir(parents=True)
        site = Site(cluster="c", share=str(root / "share"), state_dir=str(root / "state"), run_dir=str(root / "run"))
        site = site._replace(log_dir=str(root / "log"))
        self.settings = Settings(site=site, mode=Mode(resume=mode, gate=mode), resume=Resume(poll_s=0.1))
        now = int(time.time())
        job = Job("7", name="train", user_id=os.geteuid(), group_id=os.getegid(), partition="gpu", state="RUNNING")
        job = job._replace(nodes="n[1-4]", batch_host="n1", node_count=4, comment="mine fm:1;r=", requeue=True)
        job = job._replace(submit_time=now - 100, start_time=now - 60, std_out=str(root / "job.log"), priority=10)
        self.slurm = FakeSlurm.create(root / "slurm.json", NODES, job)

    def journal(self, *, readonly: bool = False) -> Journal:
        """Open the journal once more; the fixture closes it, also of a controller that crashed."""
        self.opened.append(Journal(daemon.journal_path(self.settings), readonly=readonly))
        return self.opened[-1]

    def controller(self, crash=lambda _point: None, **more) -> Controller:
        journal = self.journal()
        return Controller(self.settings, self.slurm, journal, cluster="c", crash=crash, settle_s=0.0, **more)

    def tick(self, times: int = 1) -> None:
        controller = self.controller()
        for _ in range(times):
            controller.tick()
        controller.journal.close()

    def fail(self, log: str, culprit: str = "") -> None:
        """Let the job end badly, with what it printed, and a kernel line on one node."""
        Path(self.slurm.job().std_out).write_text(log)
        for node in ("n1", "n2", "n3", "n4"):
            data = {"kernel": [XID] if node == culprit else []}
            key = f"c/7-{self.slurm.job().restarts}"
            shared.append_event(self.settings.site.share, node, Event("gate.epilog", node=node, attempt=key, data=data))
        self.slurm.set_job(state="FAILED", flags=("COMPLETING",), exit_code="1:0", reason="NonZeroExitCode", nodes="n1")

    def decision(self, restarts: int = 0) -> dict | None:
        return shared.read_json(shared.attempt_path(self.settings.site.share, f"c/7-{restarts}", "decision.json"))

    def trail(self) -> list[Event]:
        return list(events.read(str(self.root / "log" / "events.jsonl")))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    for journal in made.opened:
        journal.close()


def test_a_bad_node_is_excluded_and_the_job_is_back_at_once(world: World):
    world.slurm.set_job(excluded_nodes="n9")
    world.tick()
    world.fail("step: 1 loss: 2\nRuntimeError: CUDA error: unknown error\n", culprit="n3")
    world.tick()
    job = world.slurm.job()
    assert (job.state, job.priority) == ("PENDING", 0)  # held until its exclusions are set and its epilogs are done
    assert world.decision() is not None
    assert world.decision()["acted"] is True
    world.tick()
    world.slurm.finish_completing()
    world.tick()
    job = world.slurm.job()
    assert job.excluded_nodes == "n[3,9]"  # the user's own is kept
    assert world.slurm.acts() == ["requeuehold", "ExcNodeList=n[3,9]", "drain n3", "StartTime=now+2", "release"]
    world.slurm.start("n[1-2,4-5]")
    world.tick(3)
    assert len(world.slurm.acts()) == 5
    names = [(event.event, event.phase) for event in world.trail()]
    assert names.index(("resume.decision", "fact")) < names.index(("resume.requeue", "intent"))
    assert names.index(("resume.requeue", "intent")) < names.index(("resume.requeue", "done"))


def test_a_job_that_slurm_requeues_by_itself_is_not_given_up(world: World, monkeypatch: pytest.MonkeyPatch):
    world.tick()
    world.fail("step: 1 loss: 2\nRuntimeError: CUDA error: unknown error\n", culprit="n3")

    def refuse(self: FakeSlurm, job_id: str, *, hold: bool) -> None:
        raise SlurmError("scontrol: exit 1: Job is pending execution for job 7 (requeuehold 7)")

    monkeypatch.setattr(FakeSlurm, "requeue", refuse)  # it still shows the old end, and completes
    world.tick(8)
    monkeypatch.undo()
    world.slurm.requeue("7", hold=False)
    world.slurm.finish_completing()
    world.tick(2)
    job = world.slurm.job()
    assert (job.state, job.excluded_nodes) == ("PENDING", "n3")
    assert "release" in world.slurm.acts() or "StartTime=now+2" in world.slurm.acts()
    assert not [event for event in world.trail() if event.event == "resume.given-up"]


def test_an_old_slurmd_gets_time_to_forget_the_job_before_it_returns(world: World):
    world.slurm.release_number = (22, 5)
    world.tick()
    world.fail("step: 1 loss: 2\nRuntimeError: CUDA error: unknown error\n", culprit="n3")
    world.tick(2)
    world.slurm.finish_completing()
    world.tick()
    assert world.slurm.acts()[-2:] == ["StartTime=now+3", "release"]


def test_the_users_own_fault_is_left_failed(world: World):
    world.tick()
    world.fail("KeyError: 'x'\n")
    world.tick(3)
    world.slurm.finish_completing()
    world.tick()
    assert world.slurm.acts() == []
    assert world.slurm.job().state == "FAILED"
    assert world.decision()["action"] == "stop"
    journal = world.journal(readonly=True)
    told = why(journal, "7", {}, time.time(), world.settings, None)
    assert told["runs"][0]["cause"]["class"] == "user-code"
    assert why(journal, "7", {}, time.time(), world.settings, 4242)["error"]
    journal.close()


def test_a_job_that_never_asked_is_released_where_a_hook_held_it(world: World):
    world.slurm.set_job(comment="not ours")
    share = world.settings.site.share
    world.tick()
    for name, data in (
        ("stopped.json", {"reason": "two nodes disagree"}),
        ("burnin.json", {"verdict": "fail", "measured": {"suspects": ["n1", "n2"]}}),
    ):
        assert shared.write_json(shared.attempt_path(share, "c/7-0", name), data)
    world.slurm.requeue("7", hold=True)
    told = why(world.journal(), "7", {"7": world.slurm.job()}, 0.0, world.settings, None)
    assert told["stopped"] is None  # not while it completes
    world.slurm.finish_completing()
    told = why(world.journal(), "7", {"7": world.slurm.job()}, 0.0, world.settings, None)
    assert told["stopped"] == {"reason": "two nodes disagree", "times": 1, "suspects": ["n1", "n2"]}
    world.tick(2)
    assert world.slurm.acts() == ["requeuehold", "ExcNodeList=n[1-2]", "StartTime=now+2", "release"]


def test_a_job_that_the_gate_stops_again_and_again_stays_held(world: World):
    world.slurm.set_job(
        comment="", state="PENDING", priority=0, restarts=6, nodes="", reason="job_requeued_in_held_state"
    )
    for restarts in range(6):
        path = shared.attempt_path(world.settings.site.share, f"c/7-{restarts}", "stopped.json")
        assert shared.write_json(path, {"reason": "no partner came"})
    world.tick(3)
    assert world.slurm.acts() == []


def test_a_run_that_was_requeued_before_anybody_looked_is_not_booked_as_the_next(world: World):
    world.slurm.set_job(state="COMPLETING", flags=("COMPLETING",), restarts=1)
    world.tick()
    assert world.slurm.acts() == []
    with closing(Journal(daemon.journal_path(world.settings))) as journal:
        assert journal.runs("7") == []
        world.slurm.set_job(state="RUNNING", flags=())
        world.tick()
        assert [run.restarts for run in journal.runs("7")] == [1]


def test_a_hold_of_a_person_is_never_ours_to_release(world: World):
    world.slurm.set_job(comment="", state="PENDING", priority=0, restarts=1, nodes="", reason="JobHeldUser")
    assert shared.write_json(shared.attempt_path(world.settings.site.share, "c/7-0", "stopped.json"), {"reason": "x"})
    world.tick(3)
    assert world.slurm.acts() == []


def test_a_hook_that_held_the_job_finds_it_released(world: World):
    world.tick()
    event = Event("gate.prolog", attempt="c/7-0", rule="burnin.split", reason="two nodes disagree", decision="stop")
    shared.append_event(world.settings.site.share, "n1", event._replace(node="n1"))
    world.slurm.requeue("7", hold=True)
    world.slurm.finish_completing()
    world.tick(2)
    assert world.slurm.acts() == ["requeuehold", "StartTime=now+2", "release"]


def test_what_slurm_requeued_itself_starts_at_once_without_the_lost_node(world: World):
    world.tick()
    world.slurm.set_node("n2", state="DOWN", reason="Not responding", reason_user="slurm", reason_time=int(time.time()))
    Path(world.slurm.job().std_out).write_text("step: 1 loss: 2\nsrun: error: Node failure on n2\n")
    world.slurm.set_job(state="PENDING", flags=("COMPLETING", "REQUEUED"), restarts=1)
    world.tick()
    world.slurm.finish_completing()
    world.tick()
    assert world.slurm.acts() == ["ExcNodeList=n2", "StartTime=now+2"]
    world.slurm.start("n[1,3-5]")


def test_somebodys_own_requeue_and_hold_are_respected(world: World):
    world.tick()
    Path(world.slurm.job().std_out).write_text("step: 1 loss: 2\n")
    world.slurm.requeue("7", hold=True)
    world.slurm.finish_completing()
    world.tick(3)
    assert world.slurm.acts() == ["requeuehold"]
    assert world.slurm.job().priority == 0


@pytest.mark.parametrize("mode", ["shadow", "warn"])
def test_without_enforce_the_same_is_written_and_nothing_done(tmp_path: Path, mode: str):
    world = World(tmp_path, mode)
    world.tick()
    world.fail("x\n", culprit="n3")
    world.tick(3)
    assert world.slurm.acts() == []
    decided = [event for event in world.trail() if event.event == "resume.decision"]
    assert [(event.decision, event.dry_run) for event in decided] == [("requeue-exclude", True)]
    assert world.decision()["dry_run"] is True


def test_who_did_not_ask_is_not_watched(world: World):
    for comment in ("", "fm:1", "fm:1;r=3;o=1"):
        world.slurm.set_job(comment=comment)
        world.tick()
    world.fail("x\n", culprit="n3")
    world.tick(2)
    assert world.slurm.acts() == []
    journal = world.journal()
    assert journal.runs() == []
    journal.close()


def test_an_off_switch_holds_within_one_tick(world: World):
    world.tick()
    (world.root / "share" / "config" / "off").mkdir(exist_ok=True)
    from slurm_ext.config.modes import Off

    assert shared.throw_switch(world.settings.site.share, Off("resume", time.time() + 60, "night"))
    world.fail("x\n", culprit="n3")
    world.tick(2)
    assert world.slurm.acts() == []


def test_budgets_end_it(world: World):
    for restart in range(8):
        world.tick()
        world.fail(f"step: 1 loss: 2\nRuntimeError: CUDA error: uncorrectable ECC error encountered {restart}\n")
        world.tick(2)
        if world.slurm.job().state != "PENDING":
            break
        world.slurm.finish_completing()
        world.tick(2)
        world.slurm.start("n[1-4]")
    assert restart == 3  # the same root three times, then it stays failed
    assert world.slurm.acts().count("requeuehold") == 3
    world.slurm.finish_completing()
    world.tick()
    assert world.decision(3)["rule"] == "budget.same-root"


def test_a_job_id_that_is_given_out_anew_is_another_job(world: World):
    world.tick()
    world.fail("KeyError: 'x'\n")
    world.tick(2)
    now = int(time.time())
    world.slurm.set_job(state="RUNNING", flags=(), restarts=0, submit_time=now + 5, start_time=now, exit_code="0:0")
    world.slurm.set_job(nodes="n[5-6]", reason="")
    world.tick()
    journal = world.journal()
    assert [run.lineage for run in journal.runs("7")] == [
        now - 100 + (journal.runs("7")[0].lineage - (now - 100)),
        now + 5,
    ]
    assert journal.history(journal.runs("7")[-1]) == []
    journal.close()


def test_a_job_stuck_in_its_prolog_is_sent_back(world: World):
    world.slurm.set_job(reason="Prolog", start_time=int(time.time()) - 4000)
    world.tick(2)
    assert world.slurm.acts() == ["requeuehold"]
    world.slurm.finish_completing()
    world.tick(2)
    assert world.slurm.acts()[-2:] == ["StartTime=now+2", "release"]


def test_a_hold_of_ours_is_named_and_expires(world: World, monkeypatch: pytest.MonkeyPatch):
    world.tick()
    event = Event("gate.prolog", attempt="c/7-0", rule="burnin.split", reason="two nodes disagree", decision="stop")
    shared.append_event(world.settings.site.share, "n1", event._replace(node="n1"))
    world.settings = world.settings._replace(resume=Resume(poll_s=0.1, infra=0))
    world.slurm.requeue("7", hold=True)
    world.slurm.finish_completing()
    world.tick(2)
    assert world.slurm.acts() == ["requeuehold", "StartTime=now+2"]
    journal = world.journal(readonly=True)
    told = why(journal, "7", {"7": world.slurm.job()}, time.time(), world.settings, None)
    journal.close()
    assert told["held_until"] > time.time() + 86400
    monkeypatch.setattr("slurm_ext.resume.journal.HOLD_EXPIRES_S", -1.0)
    world.tick(2)
    assert world.slurm.acts()[2:] == ["StartTime=now+2", "release"]


POINTS = [f"{step}:{point}" for step in ("requeue", "exclude", "release") for point in ("intent", "acted", "recorded")]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_and_started_again_nothing_is_lost_or_done_twice(world: World, point: str):
    world.tick()
    world.fail("step: 1 loss: 2\nRuntimeError: CUDA error: unknown error\n", culprit="n3")
    died = []
    for _ in range(4):
        died.append(_tick_and_die(world, point))
        job = world.slurm.job()
        if job.state == "PENDING" and job.flags:
            world.slurm.finish_completing()
    assert signal.SIGKILL in died, f"{point} was never reached"
    world.tick(3)
    acts = world.slurm.acts()
    assert acts.count("requeuehold") == 1
    assert acts.count("ExcNodeList=n3") == 1
    assert acts.count("drain n3") == 1
    assert acts.count("release") == 1
    world.slurm.start("n[1-2,4-5]")


def _tick_and_die(world: World, point: str) -> int:
    """Tick once in a child that kills itself at a point, the first time it gets there; return the signal it died of, or 0."""
    mark = world.root / "died"
    pid = os.fork()
    if pid == 0:

        def crash(name: str) -> None:
            if name == point and not mark.exists():
                mark.write_text(name)
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            world.controller(crash).tick()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def test_a_second_daemon_is_refused_and_the_lock_dies_with_its_holder(world: World):
    held = daemon.lock(world.settings)
    with pytest.raises(LackingError, match="runs already"):
        daemon.lock(world.settings)
    os.close(held)
    os.close(daemon.lock(world.settings))


def test_a_journal_of_a_newer_version_is_refused(world: World):
    path = daemon.journal_path(world.settings)
    journal = Journal(path)
    journal.db.execute("PRAGMA user_version=99")
    journal.close()
    with pytest.raises(LackingError, match="newer"):
        Journal(path)


def test_forgetting_makes_budgets_whole(world: World):
    world.tick()
    world.fail("step: 1 loss: 2\nuncorrectable ECC error encountered\n")
    world.tick(2)
    world.slurm.finish_completing()
    world.tick(2)
    journal = world.journal()
    assert journal.forget("7") == 1
    world.slurm.start("n[1-4]")
    world.tick()
    assert journal.history(journal.runs("7")[-1]) == []
    journal.close()


def test_the_heartbeat_says_what_the_controller_may_do(world: World):
    world.tick()
    beat = json.loads((world.root / "share" / "controller" / "heartbeat.json").read_text())
    assert beat["mode"] == "enforce"
    assert abs(beat["time"] - time.time()) < 120
