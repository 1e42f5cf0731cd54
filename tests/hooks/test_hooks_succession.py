"""Who acts for a job: one after the other over the share. Slurm is not there, so whoever acts is told so, and says it."""

from __future__ import annotations

import os
import threading
import time

import pytest

from slurm_ext import shared
from slurm_ext.config.model import Settings
from slurm_ext.hooks import decide, marks, succession
from slurm_ext.hooks.decide import STOP_JOB, Plan
from slurm_ext.hooks.environment import HookJob
from slurm_ext.resume import stopped
from slurm_ext.verdict import FAIL, Verdict

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="what hooks believe on a share belongs to root")

JOB = HookJob("7", "c", 2, "n1", ("n0", "n1", "n2"), "gpu", 1000, 1000, 8, True)
STOP = Plan(STOP_JOB, "nobody came", "burnin.peer-absent", rank=1, policy="requeue", suspects=("n2",))
FOUND = Verdict(FAIL, (), "n2 is slow with each", "burnin.culprit")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(decide, "TAKE_OVER_S", 0.6)
    monkeypatch.setattr(succession, "SELF_ACT_S", 0.3)


@pytest.fixture
def settings(tmp_path):
    tmp_path.chmod(0o755)
    share = tmp_path / "share"
    (share / "ledger").mkdir(parents=True)
    plain = Settings()
    site = plain.site._replace(share=str(share), slurm_bin=str(tmp_path / "none"), log_dir=str(tmp_path / "log"))
    return plain._replace(site=site)


def stop(settings, plan=STOP, job=JOB):
    return succession.stop(job, settings, settings.site.share, plan, "burnin")


@pytest.fixture
def patient(monkeypatch):
    """Long enough for what another does meanwhile, on any machine; whoever hears of it waits no longer."""
    monkeypatch.setattr(decide, "TAKE_OVER_S", 20.0)
    monkeypatch.setattr(succession, "SELF_ACT_S", 20.0)


def later(work):
    thread = threading.Timer(0.2, work)
    thread.start()
    return thread


@pytest.mark.usefixtures("patient")
def test_whoever_comes_later_leaves_it_to_the_one_that_acted(settings):
    share = settings.site.share
    leader = JOB._replace(node="n0")
    thread = later(
        lambda: marks.tell_partners(share, leader, "n2 never came", rule="x", policy="hold", suspects=["n2"])
    )
    assert stop(settings) == (False, "stopped by n0: n2 never came")
    thread.join()
    mark = shared.read_json(shared.attempt_path(share, JOB.attempt, shared.STOPPED_FILE))
    assert {key: mark[key] for key in ("node", "rule", "policy", "suspects")} == {
        "node": "n0",
        "rule": "x",
        "policy": "hold",
        "suspects": ["n2"],
    }
    assert stop(settings, STOP._replace(rank=0)) == (False, "stopped by n0: n2 never came")


@pytest.mark.usefixtures("patient")
def test_or_let_it_go(settings):
    thread = later(lambda: marks.let_go(settings.site.share, JOB._replace(node="n0"), "burnin.on_absent is pass"))
    assert stop(settings) == (True, "let go by n0: burnin.on_absent is pass")
    thread.join()


def test_the_next_acts_where_the_first_does_not_and_says_what_came_of_it(settings):
    began = time.monotonic()
    runs, note = stop(settings)
    assert time.monotonic() - began >= 0.6
    assert runs
    assert note.startswith("passed, since it was not stopped: ")
    # Slurm could not be asked from here: the one after this may still try.
    assert marks.word(settings.site.share, JOB) is None


def test_who_did_not_hear_the_end_of_a_burn_in_that_passed_stops_nothing(settings):
    path = shared.attempt_path(settings.site.share, JOB.attempt, shared.BURNIN_FILE)
    assert shared.write_json(path, {"verdict": "pass", "node": "n0"})
    runs, note = stop(settings)
    assert (runs, note) == (True, "the burn-in passed, as n0 says, though its end was not heard here")
    assert marks.word(settings.site.share, JOB) is None


def test_an_earlier_attempt_says_nothing_of_this_one(settings):
    marks.tell_partners(settings.site.share, JOB._replace(restarts=1), "x")
    assert marks.word(settings.site.share, JOB) is None


def test_without_a_share_the_next_acts_all_the_same(settings):
    for share in ("", "/nonexistent/share"):
        runs, note = succession.stop(JOB, settings, share, STOP, "burnin")
        assert runs
        assert note.startswith("passed, since it was not stopped: ")


def stand_in(settings, share=None, rank=0):
    share = settings.site.share if share is None else share
    return succession.stand_in(JOB, settings, share, FOUND, ("n2",), rank)


@pytest.mark.usefixtures("patient")
def test_nobody_stands_in_for_a_convicted_node_that_acts_for_itself(settings):
    share, bad = settings.site.share, JOB._replace(node="n2")

    def itself():
        assert marks.claim_drain(share, bad, "n2") == "n2"
        marks.say_acted(share, bad, "n2", "drained")

    thread = later(itself)
    assert stand_in(settings) == ""
    thread.join()
    assert marks.word(share, JOB) is None


@pytest.mark.parametrize("claimed", [False, True])
def test_one_that_is_silent_or_dies_in_the_middle_is_acted_for_in_turn(settings, claimed):
    share = settings.site.share
    if claimed:  # it began, and came to nothing
        marks.claim_drain(share, JOB._replace(node="n2"), "n2")
    began = time.monotonic()
    assert stand_in(settings, rank=1).startswith("acted for n2: ")
    assert time.monotonic() - began >= 0.9
    # Slurm could not be asked from here: the one after this may still try.
    assert marks.word(share, JOB) is None
    assert marks.not_acted(share, JOB, ("n2",)) == ("n2",)


def test_where_the_share_is_silent_nobody_acts_for_another(settings):
    for share in ("", "/nonexistent/share"):
        assert stand_in(settings, share=share) == ""


def test_what_others_wrote_on_the_share_is_no_word_of_ours(settings):
    share = settings.site.share
    marks.tell_partners(share, JOB, "x")
    os.chown(shared.attempt_path(share, JOB.attempt, shared.STOPPED_FILE), 12345, 12345)
    assert marks.word(share, JOB) is None


@pytest.mark.parametrize("controller_first", [True, False])
def test_a_stop_of_ours_is_known_as_ours_though_the_controller_saw_its_effect_first(
    settings: Settings, controller_first: bool
) -> None:
    """Between the requeue and the hook's mark the controller may look, and take it for an end from outside: held for ever."""
    share = settings.site.share
    path = shared.attempt_path(share, JOB.attempt, shared.STOPPED_FILE)
    seen = {"schema": 1, "node": "controller", "by": shared.BY_CONTROLLER, "time": 1.0, "reason": "ended in its gate"}
    if controller_first:
        assert shared.decide_once(path, seen) == seen
        assert stopped.mark(settings, JOB.cluster, JOB.job_id, JOB.restarts) is None
    marks.tell_partners(share, JOB, "the agent of n1 ended", rule="burnin.agent-died", suspects=["n1"])
    shared.decide_once(path, seen)
    stop = stopped.mark(settings, JOB.cluster, JOB.job_id, JOB.restarts)
    assert stop is not None
    assert (stop.rule, stop.suspects, stop.node) == ("burnin.agent-died", ("n1",), JOB.node)


def test_of_two_hooks_that_stop_one_attempt_the_first_is_believed(settings: Settings) -> None:
    marks.tell_partners(settings.site.share, JOB, "first", rule="x")
    marks.tell_partners(settings.site.share, JOB._replace(node="n2"), "second", rule="y")
    stop = stopped.mark(settings, JOB.cluster, JOB.job_id, JOB.restarts)
    assert stop is not None
    assert stop.reason == "first"
