"""What follows from a verdict: only a convicted node exits 1, and only where the mode enforces."""

from __future__ import annotations

import pytest

from slurm_ext.config.model import Settings
from slurm_ext.hooks import decide
from slurm_ext.hooks.environment import HookJob
from slurm_ext.request import Request
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Finding, Verdict

JOB = HookJob("7", "c", 0, "n0", ("n0", "n1", "n2", "n3"), "gpu", 1000, 1000, 8, True)
BAD = Finding("gpu.lost", "gpu@0000:53:00", "reboot", ("GPU is lost",))
SETTINGS = Settings()


def verdict(word, *findings, rule="x"):
    return Verdict(word, findings, f"it is {word}", rule)


@pytest.mark.parametrize("mode", ["shadow", "warn", "enforce"])
@pytest.mark.parametrize("word", [PASS, WARN])
def test_pass_and_warn_pass(mode, word):
    assert decide.on_gate(verdict(word), SETTINGS, mode=mode).act == "pass"


def test_a_conviction_acts_only_where_the_mode_enforces():
    found = verdict(FAIL, BAD, rule="gpu.lost")
    assert decide.on_gate(found, SETTINGS, mode="enforce")[:1] == ("drain",)
    for mode in ("shadow", "warn"):
        plan = decide.on_gate(found, SETTINGS, mode=mode)
        assert (plan.act, plan.would, plan.finding) == ("pass", "drain", BAD)


def test_unknown_is_policy_and_never_drains():
    unknown = verdict(UNKNOWN, Finding("gpu.smi-timeout", "node", "drain"))
    assert decide.on_gate(unknown, SETTINGS, mode="enforce").act == "pass"
    requeue = SETTINGS._replace(gate=SETTINGS.gate._replace(on_unknown="requeue"))
    assert decide.on_gate(unknown, requeue, mode="enforce").act == "stop"
    assert decide.on_gate(unknown, requeue, mode="shadow").act == "pass"


def burnin(settings=SETTINGS, mode="enforce", gpus=8, **change):
    return decide.burnin_wanted(JOB._replace(**change), settings, mode=mode, gpus_on_node=gpus)


def test_who_gets_a_burn_in():
    assert burnin() == (True, "whole nodes of a batch job")
    for change in (
        {"mode": "off"},
        {"nodes": ("n0",)},
        {"batch": False},
        {"het": "6"},
        {"gpus": 4},
        {"gpus": 0},
        {"node": "n9"},
        {"request": Request(off=True)},
        {"start_s": 0.0, "end_s": 60.0},
    ):
        wanted, why = burnin(**change)
        assert not wanted
        assert why
    assert not decide.burnin_wanted(JOB, SETTINGS, mode="enforce", gpus_on_node=None)[0]
    assert burnin(start_s=0.0, end_s=86400.0)[0]


def test_a_user_may_only_wish_for_what_the_site_allows():
    assert burnin(request=Request(burnin="skip"))[0]
    may = SETTINGS._replace(burnin=SETTINGS.burnin._replace(user_may=("skip",)))
    assert not burnin(may, request=Request(burnin="skip"))[0]
    assert "strict" in burnin(request=Request(burnin="strict"))[1]
    assert "strict" not in burnin(may, request=Request(burnin="strict"))[1]


def on_burnin(word, culprits=(), node="n0", mode="enforce", settings=SETTINGS, findings=()):
    return decide.on_burnin(
        verdict(word, *findings, rule="burnin.x"), culprits, settings, JOB._replace(node=node), mode=mode
    )


def test_only_the_culprit_drains_and_its_partners_pass_at_once():
    mine = Finding("burnin.slow", "node:n2", "drain", ("slow with each",))
    plan = on_burnin(FAIL, ("n2",), node="n2", findings=(mine,))
    assert (plan.act, plan.finding) == ("drain", mine)
    for node in ("n0", "n1", "n3"):
        assert on_burnin(FAIL, ("n2",), node=node, findings=(mine,)).act == "pass"
    assert on_burnin(FAIL, ("n2",), node="n2", mode="shadow").act == "pass"
    assert on_burnin(FAIL, ("n2",), node="n2").finding.target == "node:n2"


@pytest.mark.parametrize(("word", "culprits"), [(FAIL, ()), (UNKNOWN, ())])
def test_without_a_culprit_one_leader_stops_the_job_and_nobody_drains(word, culprits):
    acts = {node: on_burnin(word, culprits, node=node).act for node in JOB.nodes}
    assert acts == {"n0": "stop", "n1": "pass", "n2": "pass", "n3": "pass"}


def test_unknown_passes_where_the_site_says_so():
    lenient = SETTINGS._replace(burnin=SETTINGS.burnin._replace(on_unknown="pass"))
    assert on_burnin(UNKNOWN, settings=lenient).act == "pass"
    assert on_burnin(FAIL, settings=lenient).act == "stop"


def test_leaders_in_succession():
    assert decide.acting_node(JOB.nodes, ()) == "n0"
    assert decide.acting_node(JOB.nodes, ("n0", "n1")) == "n2"
    assert decide.acting_node(JOB.nodes, ("n0", "n1", "n2")) == ""


def hold(job, mode="enforce", fresh=True, settings=SETTINGS):
    return decide.hold_completing_s(job, settings, resume_mode=mode, heartbeat_fresh=fresh)


def test_completing_is_held_only_where_somebody_will_act():
    failed = JOB._replace(request=Request(resume=-1), exit_code=1)
    assert hold(failed) == SETTINGS.resume.epilog_hold_s
    assert hold(failed, fresh=False) == 0
    assert hold(failed, mode="shadow") == 0
    assert hold(failed._replace(exit_code=0)) == 0
    assert hold(failed._replace(node="n1")) == 0
    assert hold(failed._replace(request=None)) == 0
    assert hold(failed._replace(request=Request(resume=0))) == 0
    everybody = SETTINGS._replace(resume=SETTINGS.resume._replace(opt_in=False))
    assert hold(failed._replace(request=None), settings=everybody) > 0
    assert hold(failed._replace(request=Request(off=True)), settings=everybody) == 0
