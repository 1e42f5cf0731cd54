"""What follows from a verdict: only a convicted node exits 1, and only where the mode enforces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext import request as requests
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


def burnin(settings=SETTINGS, mode="enforce", on_node=8, **change):
    return decide.burnin_wanted(JOB._replace(**change), settings, mode=mode, gpus_on_node=on_node)


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
        {"start_s": 0.0, "end_s": 60.0},
    ):
        wanted, why = burnin(**change)
        assert not wanted
        assert why
    assert not decide.burnin_wanted(JOB, SETTINGS, mode="enforce", gpus_on_node=None)[0]
    # Fewer than Slurm promised is what a burn-in is for; a share of the node is not.
    assert burnin(on_node=7)[0]
    assert "8 of the 9 GPUs here" in burnin(on_node=9)[1]
    assert burnin(start_s=0.0, end_s=86400.0)[0]


def site(**burnin_settings):
    return SETTINGS._replace(burnin=SETTINGS.burnin._replace(**burnin_settings))


def test_a_policy_of_always_takes_jobs_of_one_node():
    alone = {"nodes": ("n0",)}
    assert not burnin(**alone)[0]
    assert burnin(site(min_nodes=1), **alone)[0]
    assert not burnin(site(min_nodes=5))[0]


@pytest.mark.parametrize("minutes", [1, 14, 15, 600])
def test_a_short_time_limit_is_not_spent_on_a_burn_in(minutes):
    wanted, why = burnin(start_s=1000.0, end_s=1000.0 + 60 * minutes)
    assert wanted == (minutes >= 15)
    assert wanted or f"{minutes} min" in why


@pytest.mark.parametrize("wish", [{"burnin": "skip"}, {"off": True}])
def test_what_the_site_tests_is_not_the_users_to_refuse(wish):
    assert burnin(request=Request(**wish))[0]
    assert burnin(site(user_may=()), request=Request(**wish))[0]
    assert burnin(site(user_may=("skip",)), request=Request(**wish)) == (False, "the user asked to skip it")


def test_strict_is_the_partitions_word_or_the_users_where_he_may():
    strict = Request(burnin="strict")
    assert decide.strict_wanted(JOB._replace(request=strict), SETTINGS)
    assert not decide.strict_wanted(JOB._replace(request=strict), site(user_may=("skip", "normal")))
    assert not decide.strict_wanted(JOB, SETTINGS)
    partition = site(strict_partitions=("gpu",), user_may=("normal",))
    for request in (None, strict, Request(burnin="normal"), Request(burnin="skip"), Request(off=True)):
        assert decide.strict_wanted(JOB._replace(request=request), partition)
        assert burnin(partition, request=request) == (True, "whole nodes of a batch job, strict")
    assert not decide.strict_wanted(JOB._replace(partition="other"), partition)


HOSTILE = [
    "fm:1;b=strict;b=skip",
    "fm:1;b=SKIP",
    "fm:1;b=skip%0a",
    "fm:1;b=skip;x=$(id)",
    "fm:1;b=none",
    "fm:2;b=skip",
    "xfm:1;b=skip",
    "fm:1;b=skip/../../x",
    "fm:1;b=" + "strict" * 400,
]


@pytest.mark.parametrize("comment", HOSTILE)
@pytest.mark.parametrize("user_may", [(), ("normal", "strict")])
def test_no_token_makes_the_site_test_less(comment, user_may):
    asked = requests.parse(comment)
    assert burnin(site(user_may=user_may), request=asked)[0]
    assert asked is None or asked.burnin in ("", "skip", "strict")


def test_an_earlier_pass_decides_for_one_node_and_is_told_the_others_by_more():
    one = decide.burnin_wanted(
        JOB._replace(nodes=("n0",)), site(min_nodes=1), mode="warn", gpus_on_node=8, reusable=True
    )
    assert one == (False, "it passed within 6 h")
    assert decide.burnin_wanted(JOB, SETTINGS, mode="warn", gpus_on_node=8, reusable=True)[0]


def on_burnin(
    word, culprits=(), node="n0", mode="enforce", settings=SETTINGS, findings=(), rule="burnin.x", measured=None
):
    found = verdict(word, *findings, rule=rule)
    return decide.on_burnin(found, culprits, settings, JOB._replace(node=node), mode=mode, measured=measured)


def test_only_the_culprit_drains_and_its_partners_pass_at_once():
    mine = Finding("burnin.slow", "node:n2", "drain", ("slow with each",))
    plan = on_burnin(FAIL, ("n2",), node="n2", findings=(mine,))
    assert (plan.act, plan.finding) == ("drain", mine)
    for node in ("n0", "n1", "n3"):
        assert on_burnin(FAIL, ("n2",), node=node, findings=(mine,)).act == "pass"
    assert on_burnin(FAIL, ("n2",), node="n2", mode="shadow").act == "pass"
    assert on_burnin(FAIL, ("n2",), node="n2").finding.target == "node:n2"


@pytest.mark.parametrize("word", [FAIL, UNKNOWN])
def test_without_a_culprit_the_job_is_stopped_by_one_of_three_in_turn_and_nobody_drains(word):
    plans = {node: on_burnin(word, node=node) for node in JOB.nodes}
    assert {node: (plan.act, plan.rank) for node, plan in plans.items()} == {
        "n0": ("stop", 0),
        "n1": ("stop", 1),
        "n2": ("stop", 2),
        "n3": ("pass", -1),
    }
    assert {plan.used_up for plan in plans.values() if plan.act == "stop"} == {"hold" if word == FAIL else "pass"}


@pytest.mark.parametrize("key", ["acts", "leader"])
def test_who_really_led_acts_first(key):
    measured = {key: "n2"}
    ranks = {node: on_burnin(UNKNOWN, node=node, measured=measured).rank for node in JOB.nodes}
    assert ranks == {"n2": 0, "n0": 1, "n1": 2, "n3": -1}
    assert on_burnin(UNKNOWN, measured={key: "../x"}).rank == 0
    assert on_burnin(UNKNOWN, measured={key: 7}).rank == 0


@pytest.mark.parametrize(
    ("word", "rule", "measured", "keys", "policy"),
    [
        (UNKNOWN, "burnin.deadline", {}, {}, "requeue"),
        (UNKNOWN, "burnin.deadline", {}, {"on_unknown": "hold"}, "hold"),
        (UNKNOWN, "burnin.deadline", {}, {"on_unknown": "pass"}, "pass"),
        (UNKNOWN, "burnin.deadline", {}, {"on_unknown": "pass", "on_absent": "requeue", "on_fabric": "hold"}, "pass"),
        (UNKNOWN, "burnin.peer-absent", {"passed": True}, {"on_unknown": "pass"}, "requeue"),
        (UNKNOWN, "burnin.peer-absent", {"passed": True}, {"on_absent": "pass"}, "pass"),
        (UNKNOWN, "burnin.peer-absent", {"passed": True}, {"on_absent": "hold"}, "hold"),
        # The others were not tested either: that policy speaks of jobs whose other nodes passed.
        (UNKNOWN, "burnin.peer-absent", {"passed": False}, {"on_absent": "pass"}, "requeue"),
        (UNKNOWN, "burnin.peer-absent", {}, {"on_absent": "pass", "on_unknown": "hold"}, "hold"),
        (UNKNOWN, "burnin.peer-absent", {}, {"on_absent": "hold", "on_unknown": "pass"}, "hold"),
        (FAIL, "burnin.fabric", {}, {}, "hold"),
        (FAIL, "burnin.switch", {}, {"on_fabric": "requeue"}, "requeue"),
        (FAIL, "burnin.whole-only", {}, {"on_fabric": "pass"}, "pass"),
        (FAIL, "burnin.two-nodes", {}, {"on_fabric": "pass", "on_unknown": "pass", "on_absent": "pass"}, "requeue"),
        (FAIL, "burnin.transport", {}, {"on_fabric": "pass"}, "requeue"),
    ],
)
def test_each_outcome_has_its_policy(word, rule, measured, keys, policy):
    plan = on_burnin(word, settings=site(**keys), rule=rule, measured=measured)
    assert (plan.act, plan.policy) == ("pass" if policy == "pass" else "stop", policy)
    assert plan.act == "stop" or "burnin.on_" in plan.reason
    for mode in ("shadow", "warn"):
        quiet = on_burnin(word, settings=site(**keys), rule=rule, measured=measured, mode=mode)
        assert quiet.act == "pass"
        assert quiet.would == ("" if policy == "pass" else "stop")


def test_the_absent_are_left_out_and_do_not_act():
    measured = {"absent": ["n1", "evil"], "suspects": ["n1"], "passed": True, "acts": "n1"}
    plans = {node: on_burnin(UNKNOWN, node=node, rule="burnin.peer-absent", measured=measured) for node in JOB.nodes}
    assert {node: plan.rank for node, plan in plans.items()} == {"n0": 0, "n1": -1, "n2": 1, "n3": 2}
    assert plans["n0"].suspects == ("n1",)


def test_two_nodes_alone_are_both_left_out_and_neither_drains():
    two = JOB._replace(nodes=("n0", "n1"))
    measured = {"suspects": ["n0", "n1"]}
    for rank, node in enumerate(two.nodes):
        plan = decide.on_burnin(
            verdict(FAIL, rule="burnin.two-nodes"),
            (),
            SETTINGS,
            two._replace(node=node),
            mode="enforce",
            measured=measured,
        )
        assert (plan.act, plan.rank, plan.suspects, plan.finding) == ("stop", rank, ("n0", "n1"), None)


@pytest.mark.parametrize(
    "measured", [{"absent": "n1"}, {"absent": 7, "suspects": {"n1": 1}}, {"absent": [None, ["n1"]]}]
)
def test_a_list_of_another_form_lists_nobody(measured):
    assert on_burnin(UNKNOWN, rule="burnin.peer-absent", measured=measured).suspects == ()


def test_a_warning_passes_though_something_is_suspected():
    assert on_burnin(WARN, measured={"suspects": ["n1"]}).act == "pass"


def test_actors_in_succession():
    assert decide.actors(JOB.nodes) == ("n0", "n1", "n2")
    assert decide.actors(JOB.nodes, out=("n0", "n1")) == ("n2", "n3")
    assert decide.actors(JOB.nodes, out=("n0",), leader="n0") == ("n1", "n2", "n3")
    assert decide.actors(JOB.nodes, out=JOB.nodes) == ()
    many = tuple(f"n{i:04}" for i in range(1024))
    assert decide.actors(many, out=many[:300], leader="n0900") == ("n0900", "n0300", "n0301")


@given(st.sets(st.sampled_from(JOB.nodes)), st.sampled_from((*JOB.nodes, "", "n9")))
def test_whoever_is_out_somebody_acts_and_all_agree_on_who(out, leader):
    able = decide.actors(JOB.nodes, out=out, leader=leader)
    assert len(able) == min(3, 4 - len(out)) == len(set(able))
    assert not set(able) & out
    assert not able or leader not in JOB.nodes or leader in out or able[0] == leader


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
