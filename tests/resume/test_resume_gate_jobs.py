"""What the controller does for jobs in and after their gate, asked for or not: stops, suspects, holds, time, stuck prologs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from test_resume_controller import World

from slurm_ext import shared
from slurm_ext.cli.why import lines
from slurm_ext.config.model import Mode
from slurm_ext.events import Event
from slurm_ext.resume import aftercare, gates
from slurm_ext.resume.controller import UNWATCHED
from slurm_ext.resume.story import jobs_table, why

ASKED = pytest.mark.parametrize("comment", ["mine fm:1;r=", "not ours"])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.settings = made.settings._replace(mode=Mode(gate="enforce", burnin="enforce", resume="enforce"))
    yield made
    for journal in made.opened:
        journal.close()


def in_gate(world: World, comment: str, *, since_s: int = 5, limit_min: int = 15) -> None:
    world.slurm.set_job(
        comment=comment, reason="Prolog", start_time=int(time.time()) - since_s, time_limit_min=limit_min
    )
    world.tick()


def stopped(world: World, *, policy: str = "requeue", suspects: tuple[str, ...] = (), verdict: str = "fail") -> None:
    """Do what the hooks do: stop the attempt, held, and say so on the share."""
    key = f"c/7-{world.slurm.job().restarts}"
    share = world.settings.site.share
    mark = {"node": "n1", "reason": "two nodes disagree", "rule": "burnin.split", "policy": policy}
    assert shared.write_json(shared.attempt_path(share, key, "burnin.json"), {"verdict": verdict, "measured": {}})
    assert shared.write_json(shared.attempt_path(share, key, "stopped.json"), {**mark, "suspects": list(suspects)})
    world.slurm.requeue("7", hold=True)
    world.slurm.set_job(reason="job_requeued_in_held_state")
    world.tick()
    world.slurm.finish_completing()


def told(world: World) -> dict:
    return why(world.journal(), "7", {"7": world.slurm.job()}, time.time(), world.settings, None)


@ASKED
def test_suspects_are_left_out_neither_drained_and_the_users_own_list_returns(world: World, comment: str):
    world.slurm.set_job(excluded_nodes="n9")
    in_gate(world, comment)
    stopped(world, suspects=("n1", "n2"))
    world.tick(2)
    acts = world.slurm.acts()
    assert acts == ["requeuehold", "ExcNodeList=n[1-2,9]", "StartTime=now+2", "release"]
    run = told(world)["runs"][0]
    assert (run["decision"]["action"], run["decision"]["exclude"]) == ("requeue-exclude", ["n1", "n2"])
    assert run["cause"]["culprit_nodes"] == []
    world.slurm.start("n[3-6]")
    world.tick()
    in_gate(world, comment)
    stopped(world)  # this time nobody is suspect, and the first suspicion still holds
    world.tick(2)
    assert world.slurm.job().excluded_nodes == "n[1-2,9]"


@ASKED
def test_suspects_may_be_used_again_after_a_day_while_the_job_still_waits(
    world: World, comment: str, monkeypatch: pytest.MonkeyPatch
):
    in_gate(world, comment)
    stopped(world, suspects=("n1", "n2"))
    world.tick(2)
    assert world.slurm.job().excluded_nodes == "n[1-2]"
    monkeypatch.setattr("slurm_ext.resume.exclusions.SUSPECT_EXPIRES_S", 0.0)
    world.tick(2)
    assert world.slurm.job().excluded_nodes == ""
    assert world.slurm.acts().count("ExcNodeList=") == 1


@ASKED
def test_an_exclusion_goes_when_the_nodes_that_remain_no_longer_do(world: World, comment: str):
    in_gate(world, comment)
    stopped(world, suspects=("n1", "n2"))
    world.tick(2)
    for number in range(5, 40):
        world.slurm.set_node(f"n{number}", state="DOWN")
    world.tick(2)
    assert world.slurm.job().excluded_nodes == ""  # n0 to n4 are left, and it needs four
    steps = {step["step"]: step for step in told(world)["runs"][0]["steps"]}
    assert steps[aftercare.SUSPECTS_STEP]["phase"] == "done"


@ASKED
def test_what_the_job_requires_itself_is_never_excluded(world: World, comment: str):
    world.slurm.set_job(required_nodes="n[1-4]")
    in_gate(world, comment)
    stopped(world, suspects=("n1", "n2"))
    world.tick(2)
    assert world.slurm.acts() == ["requeuehold", "StartTime=now+2", "release"]
    assert "required by the job itself" in told(world)["runs"][0]["decision"]["reason"]


@ASKED
def test_what_its_owner_requires_later_on_is_no_longer_excluded(world: World, comment: str):
    in_gate(world, comment)
    stopped(world, suspects=("n1", "n2"))
    world.tick(2)
    world.slurm.set_job(required_nodes="n1", reason="BadConstraints")
    world.tick(2)
    assert world.slurm.job().excluded_nodes == "n2"


@ASKED
def test_where_the_site_wants_it_held_it_stays_until_the_hold_expires(
    world: World, comment: str, monkeypatch: pytest.MonkeyPatch
):
    in_gate(world, comment)
    stopped(world, policy="hold")
    world.tick(3)
    assert world.slurm.acts() == ["requeuehold", "StartTime=now+2"]  # who releases it need not wait two minutes more
    assert world.slurm.job().priority == 0
    story = told(world)
    assert story["held_until"] > time.time() + 86400
    assert any("scontrol release 7" in line for line in story["held"]["how"])
    assert any("fmslurm burnin run -w n[1-4]" in line for line in story["held"]["how"])
    monkeypatch.setattr("slurm_ext.resume.journal.HOLD_EXPIRES_S", -1.0)
    world.tick(2)
    assert world.slurm.acts()[2:] == ["StartTime=now+2", "release"]


def test_a_job_that_waits_after_a_plain_requeue_of_the_gates_goes_at_once_too(world: World):
    in_gate(world, "not ours")
    key = shared.attempt_path(world.settings.site.share, "c/7-0", "stopped.json")
    assert shared.write_json(key, {"node": "n1", "reason": "n2 never came", "policy": "requeue", "suspects": ["n2"]})
    world.slurm.requeue("7", hold=False)
    world.slurm.finish_completing()
    world.tick(2)
    assert world.slurm.acts() == ["requeue", "ExcNodeList=n2", "StartTime=now+2"]


def test_a_stop_that_nobody_saw_is_found_after_the_controllers_start(world: World):
    world.slurm.set_job(reason="Prolog", start_time=int(time.time()) - 5)
    stopped(world, suspects=("n2",))
    world.tick(2)
    assert world.slurm.acts() == ["requeuehold", "ExcNodeList=n2", "StartTime=now+2", "release"]


def test_the_owners_own_budget_does_not_hold_a_job_that_the_gate_stopped(world: World):
    in_gate(world, "fm:1;r=0")
    stopped(world, suspects=("n2",))
    world.tick(2)
    assert "release" in world.slurm.acts()


def passed(world: World, seconds: float) -> None:
    """Let the gate of the present attempt end `seconds` after its start: the hooks say so, and the job runs."""
    job = world.slurm.job()
    when = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(job.start_time + seconds))
    event = Event("gate.prolog", attempt=f"c/7-{job.restarts}", time=when)
    for node in ("n1", "n2", "n3", "n4"):
        shared.append_event(world.settings.site.share, node, event._replace(node=node))
    world.slurm.set_job(reason="")


@ASKED
def test_the_time_that_the_gate_took_is_given_back_once(world: World, comment: str):
    in_gate(world, comment, since_s=70)
    world.tick()
    assert world.slurm.acts() == []
    passed(world, 65)
    world.tick(4)
    assert world.slurm.acts() == ["TimeLimit=17"]
    names = [(event.event, event.phase) for event in world.trail()]
    assert names.index(("resume.time", "intent")) < names.index(("resume.time", "done"))
    (step,) = [step for step in told(world)["runs"][0]["steps"] if step["step"] == "time"]
    assert step["detail"].startswith("15 min -> 17 min")


def test_never_beyond_the_partition_nor_where_a_room_only_observes_nor_for_a_short_gate(world: World):
    in_gate(world, "", since_s=70)
    data = world.slurm.read()
    world.slurm.write({**data, "max_time": 15})
    passed(world, 65)
    world.tick(2)
    assert world.slurm.acts() == []
    for mode, seconds in ((Mode(burnin="shadow", resume="enforce"), 65), (Mode(burnin="enforce", resume="enforce"), 4)):
        world.settings = world.settings._replace(mode=mode)
        world.slurm.write({**world.slurm.read(), "max_time": -1})
        world.slurm.set_job(restarts=world.slurm.job().restarts + 1)
        # Not looked at in the gate: only what its hooks say is known.
        world.slurm.set_job(reason="", start_time=int(time.time()) - 70)
        passed(world, seconds)
        world.tick(2)
        assert world.slurm.acts() == []


def test_a_run_after_a_requeue_starts_from_its_owners_limit_again(world: World):
    in_gate(world, "fm:1;r=", since_s=70)
    passed(world, 65)
    world.tick(2)
    world.slurm.requeue("7", hold=False)
    world.slurm.finish_completing()
    world.tick(2)
    world.slurm.set_job(eligible_time=0)
    world.slurm.start("n[1-4]")
    in_gate(world, "fm:1;r=", since_s=70, limit_min=17)
    passed(world, 65)
    world.tick(3)
    assert [act for act in world.slurm.acts() if act.startswith("TimeLimit")] == ["TimeLimit=17"]


@pytest.mark.parametrize("point", ["time:intent", "time:acted", "time:recorded"])
def test_killed_while_it_gives_time_back_it_gives_it_once(world: World, point: str):
    in_gate(world, "fm:1;r=", since_s=70)
    passed(world, 65)
    pid = os.fork()
    if pid == 0:
        try:
            world.controller(lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == point else None).tick()
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    world.tick(3)
    assert world.slurm.acts() == ["TimeLimit=17"]


@ASKED
def test_a_job_that_hangs_in_its_prolog_is_sent_back_after_the_longest_gate_and_not_before(world: World, comment: str):
    longest = gates.longest_s(world.settings, 4) + gates.SLACK_S
    in_gate(world, comment, since_s=int(longest) - 20)
    world.tick(2)
    assert world.slurm.acts() == []
    in_gate(world, comment, since_s=int(longest) + 5)
    world.tick()
    assert world.slurm.acts() == ["requeuehold"]
    world.slurm.finish_completing()
    world.tick(2)
    assert world.slurm.acts()[-2:] == ["StartTime=now+2", "release"]


def test_a_prolog_that_hangs_time_and_again_is_held_in_the_end(world: World):
    for _ in range(5):
        in_gate(world, "not ours", since_s=5000)
        world.tick()
        world.slurm.finish_completing()
        world.tick(2)
        if world.slurm.job().priority == 0:
            break
        world.slurm.start("n[1-4]")
    assert world.slurm.acts().count("release") == 3  # resume.same_root
    assert told(world)["held_until"]


def test_a_job_that_asked_for_nothing_is_left_alone_once_it_runs(world: World):
    in_gate(world, "not ours")
    world.slurm.set_job(reason="")
    world.tick(2)
    journal = world.journal()
    assert [run.outcome for run in journal.runs("7")] == [UNWATCHED]
    assert jobs_table(journal, world.settings, None) == []
    world.fail("uncorrectable ECC error encountered\n", culprit="n3")
    world.tick(2)
    world.slurm.finish_completing()
    world.tick(2)
    assert world.slurm.acts() == []


@ASKED
def test_why_says_what_the_gate_does_whom_it_waits_for_and_until_when(world: World, comment: str):
    in_gate(world, comment, since_s=20)
    story = told(world)
    assert (story["gate"]["phase"], story["gate"]["waiting"]) == ("local", [])
    since = time.time() - 12
    state = {"phase": "waiting", "since": since, "waiting": ["n3"], "absent": 1, "node": "n1", "began": since}
    path = shared.attempt_path(world.settings.site.share, "c/7-0", shared.gate_file("n1"))
    assert shared.write_json(path, state)
    story = told(world)
    assert (story["gate"]["phase"], story["gate"]["waiting"]) == ("waiting", ["n3"])
    assert abs(story["gate"]["deadline"] - world.slurm.job().start_time - gates.longest_s(world.settings, 4)) < 1
    text = lines(story)
    assert "waiting for n3 for 1" in " ".join(text)
    assert "at the latest" in " ".join(text)
    assert max(map(len, text)) <= 80
    world.slurm.set_job(reason="")
    assert told(world)["gate"] is None


def test_why_names_the_convicted_nodes_on_which_a_job_runs(world: World):
    world.slurm.set_job(reason="", state="RUNNING")
    assert told(world)["bad_nodes"] == []
    path = shared.attempt_path(world.settings.site.share, "c/7-0", f"{shared.BAD_PREFIX}n1.json")
    assert shared.write_json(path, {"node": "n1", "reason": "gpu.lost on gpu:3", "why": "drain.when_open is pass"})
    text = " ".join(" ".join(lines(told(world))).split())
    assert "it has n1, which is convicted and stays in use: gpu.lost on gpu:3; drain.when_open is pass" in text


def test_a_controller_that_only_observes_acts_on_no_stop(world: World):
    world.settings = world.settings._replace(mode=Mode(gate="enforce", burnin="enforce", resume="shadow"))
    in_gate(world, "not ours")
    stopped(world, suspects=("n1",))
    world.tick(3)
    assert world.slurm.acts() == ["requeuehold"]
    assert isinstance(world.slurm, FakeSlurm)
