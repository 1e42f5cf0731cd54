"""Who leads, and that two who do never convict different nodes: orders of messages by hypothesis, then agents for real."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from conftest import Cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from test_burnin_agents import until, wait_for_agent
from test_burnin_late import Hooks

from slurm_ext import __version__
from slurm_ext.burnin.leader import Leader, Terms
from slurm_ext.burnin.model import ERROR, LOCAL, OK, RankReport
from slurm_ext.burnin.succession import Poll, Succession, Voice, prevails
from slurm_ext.verdict import FAIL, PASS, UNKNOWN

Make = Callable[..., Cluster]


def made(nodes: int, me: int) -> Succession:
    return Succession([f"n{i}" for i in range(nodes)], f"n{me}", 100.0, step_s=4.0, ask_s=1.0)


@pytest.mark.parametrize(
    ("me", "refused", "leads_at"),
    [
        (0, ("n1", "n2"), 100.0),  # nobody leads, so it may at once
        (0, ("n1",), 101.0),  # the other one is silent: asked for a while
        (1, ("n0", "n2"), 104.0),
        (1, (), 105.0),
        (2, ("n0", "n1"), 108.0),
        (3, ("n0", "n1", "n2"), None),
    ],
)
def test_candidates_lead_one_after_the_other(me: int, refused: tuple[str, ...], leads_at: float | None) -> None:
    one = made(5, me)
    for name in refused:
        one.refused(name)
    if leads_at is None:
        assert not one.leads(10_000.0)
    else:
        assert (one.leads(leads_at - 0.01), one.leads(leads_at)) == (False, True)


def test_after_a_loss_the_next_one_leads_and_the_lost_one_never_again() -> None:
    second, third = made(5, 1), made(5, 2)
    for one in (second, third):
        one.lost("n0", 200.0)
        assert "n0" not in one.targets()
    second.refused("n2")
    assert second.leads(200.0)
    third.refused("n1")
    assert not third.leads(201.0)
    assert third.leads(202.0)
    third.lost("n1", 210.0)
    assert (third.targets(), third.leads(210.0)) == ((), True)
    assert made(1, 0).leads(100.0)


@given(st.integers(0, 9), st.integers(0, 9), st.permutations(["n0", "n1", "n2"]))
def test_of_two_leaders_exactly_one_stays(mine: int, other: int, names: list[str]) -> None:
    order = ("n0", "n1", "n2")
    first, second = names[:2]
    assert prevails(mine, first, other, second, order) != prevails(other, second, mine, first, order)


@settings(max_examples=600, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(2, 3))
def test_no_order_of_messages_carries_two_different_convictions(data: st.DataObject, size: int, leaders: int) -> None:
    """Messages may be lost, late and doubled, and a node may ask to be let go by anybody, at any time."""
    nodes = [f"n{i}" for i in range(size)]
    voices = {name: Voice() for name in nodes}
    polls = [Poll(nodes) for _ in range(leaders)]
    for number, poll in enumerate(polls):
        poll.put({nodes[number % size], f"other {number}"})
    kept: list[tuple[int, str, frozenset[str] | None, bool]] = []

    def deliver(to: int, sender: str, about: frozenset[str] | None, yes: bool) -> None:
        if about is None:
            polls[to].left(sender)
        else:
            polls[to].answer(sender, about, yes=yes)

    what = st.sampled_from(["ask", "ask", "ask", "leave", "restart", "lose", "late"])
    step = st.tuples(st.integers(0, leaders - 1), st.sampled_from(nodes), what)
    for leader, node, kind in data.draw(st.lists(step, min_size=10, max_size=60)):
        wanted = polls[leader].culprits
        assert wanted is not None
        if kind in ("ask", "lose"):
            kept.append((leader, node, wanted, voices[node].ask(wanted)))
        elif kind == "leave" and voices[node].leave(f"leader {leader}"):
            kept.append((leader, node, None, True))
        elif kind == "restart":  # its agent starts anew, and finds what the last one wrote down
            voices[node] = Voice.from_json(voices[node].to_json())
        if kind in ("ask", "leave") and kept:
            deliver(*kept[-1])
        elif kind == "late" and kept:
            deliver(*kept[data.draw(st.integers(0, len(kept) - 1))])
        assert len({poll.culprits for poll in polls if poll.carried}) <= 1


class Half:
    """A leader with its queues: it reaches the nodes that are with it, whose GPUs fail by themselves where `bad` says so."""

    def __init__(self, me: str, terms: Terms, bad: str) -> None:
        self.me, self.bad, self.out = me, bad, deque[tuple[str, Mapping[str, Any]]]()
        self.leader = Leader(terms._replace(me=me), lambda node, message: self.out.append((node, message)), 0.0)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(3, 7))
def test_two_leaders_of_one_job_never_convict_different_nodes(data: st.DataObject, size: int) -> None:
    """Nodes go over from one leader to the other at any time, and each leader is shown another culprit."""
    nodes = tuple(f"n{i}" for i in range(size))
    terms = Terms(nodes, 1, "", 1 << 20, 1, 0.0, 0.0, 1.0, 60.0)
    bad = data.draw(st.lists(st.sampled_from(nodes), min_size=2, max_size=2))
    halves = [Half("n0", terms, bad[0]), Half("n1", terms, bad[1])]
    voices = {name: Voice() for name in nodes}
    follows = {name: data.draw(st.sampled_from([0, 1])) for name in nodes} | {"n0": 0, "n1": 1}
    now = 0.0

    def join(node: str) -> None:
        hello = {"t": "hello", "version": __version__, "gpus": 1, "left_s": 500.0}
        halves[follows[node]].leader.on_message(node, hello, now)

    for name in nodes:
        join(name)
    for _ in range(400):
        now += 0.5
        for index, half in enumerate(halves):
            batch, half.out = half.out, deque()
            for node, message in data.draw(st.permutations(list(batch))) if len(batch) < 8 else batch:
                if follows[node] != index:
                    continue
                if message["t"] == "propose":
                    yes = voices[node].ask(message["culprits"])
                    half.leader.on_message(node, {"t": "voice", "culprits": message["culprits"], "yes": yes}, now)
                elif message["t"] == "verdict" and message["leave"] and voices[node].leave(half.me):
                    half.leader.on_message(node, {"t": "voice", "left": True}, now)
                elif message["t"] == "round":
                    state = (ERROR, LOCAL) if node == half.bad else (OK, "")
                    report = RankReport(message["base"], node, 0, *state, median_ms=1.0, min_ms=1.0, max_ms=1.0)
                    answer = {"t": "report", "round": message["round"], "ranks": [report._asdict()], "facts": {}}
                    half.leader.on_message(node, answer, now)
            for node in nodes:
                if follows[node] == index and half.leader.outcome is None:
                    half.leader.on_message(node, {"t": "alive"}, now)
            half.leader.tick(now)
        if data.draw(st.integers(0, 9)) == 0 and len(nodes) > 2:
            node = data.draw(st.sampled_from(nodes[2:]))
            halves[follows[node]].leader.on_down(node, "went over", now)
            follows[node] = 1 - follows[node]
            join(node)
        if all(half.leader.outcome is not None or half.leader.isolated for half in halves):
            break
    outcomes = [half.leader.outcome for half in halves if half.leader.outcome is not None]
    assert outcomes
    assert len({o.culprits for o in outcomes if o.culprits}) <= 1
    assert all(o.verdict.verdict in (FAIL, UNKNOWN) for o in outcomes if not o.measured["passed"])


def test_an_absent_leader_is_followed_by_the_next(make_cluster: Make) -> None:
    cluster = make_cluster(4, rendezvous_s=12.0, late_s=1.0)
    outcomes = Hooks(cluster, late_s=0.0).run(cluster.nodes[1:])
    for outcome in outcomes.values():
        assert (outcome.verdict.verdict, outcome.verdict.rule) == (UNKNOWN, "burnin.peer-absent"), cluster.log()
        assert (outcome.measured["absent"], outcome.measured["suspects"]) == (["n0"], ["n0"])
        assert (outcome.measured["leader"], outcome.measured["acts"]) == ("n1", "n1")
        assert outcome.measured["passed"] is True
        assert outcome.ranks == 6


def test_two_absent_leaders_are_followed_by_the_third_and_none_by_nobody(make_cluster: Make) -> None:
    cluster = make_cluster(5, rendezvous_s=12.0)
    outcome = Hooks(cluster, late_s=0.0).run(("n2", "n3"))["n3"]
    assert (outcome.measured["leader"], outcome.measured["absent"]) == ("n2", ["n0", "n1", "n4"]), cluster.log()
    outcome = Hooks(cluster, late_s=0.0, job_id="8").run(("n3", "n4"))["n4"]
    assert (outcome.verdict.verdict, outcome.verdict.rule) == (UNKNOWN, "burnin.peer-absent")
    assert outcome.measured["absent"] == ["n0", "n1", "n2"]


def test_the_first_node_comes_late_and_follows(make_cluster: Make) -> None:
    cluster = make_cluster(4, rendezvous_s=16.0)
    hooks = Hooks(cluster)
    for name in cluster.nodes[1:]:
        hooks.start(name)
    until(lambda: hooks.progress("n1"))  # it leads
    hooks.start("n0")
    outcomes = hooks.results()
    assert {o.verdict.verdict for o in outcomes.values()} == {PASS}, cluster.log()
    assert {o.measured["leader"] for o in outcomes.values()} == {"n1"}
    assert {o.ranks for o in outcomes.values()} == {8}


def strike(cluster: Cluster, hooks: Hooks, victim: str, number: signal.Signals) -> None:
    """Kill or stop the agent of a node, and let its hook go when all others have."""
    agent = wait_for_agent(cluster, victim, workers=2)[0]
    os.kill(agent, number)
    for name, future in hooks.futures.items():
        if name != victim:
            assert future.result(cluster.settings.burnin.deadline_s).seconds < cluster.settings.burnin.deadline_s / 1.25
    if number == signal.SIGSTOP:
        assert not hooks.futures[victim].done()
        os.kill(agent, signal.SIGKILL)  # nothing but its own deadline would end that wait


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.soak), signal.SIGSTOP])
def test_a_dead_or_frozen_follower_holds_nobody(make_cluster: Make, number: signal.Signals) -> None:
    cluster = make_cluster(3, sustain_s=3.0, deadline_s=100.0)
    hooks = Hooks(cluster, late_s=0.0)
    for name in cluster.nodes:
        hooks.start(name)
    until(lambda: hooks.progress("n0") == "all")
    strike(cluster, hooks, "n1", number)
    outcomes = hooks.results()
    assert {o.culprits for o in outcomes.values()} == {()}, outcomes
    assert outcomes["n1"].verdict.verdict == UNKNOWN
    # The rest has run again.
    assert {outcomes[name].verdict.verdict for name in ("n0", "n2")} <= {UNKNOWN, PASS}
    assert all(outcomes[name].measured["passed"] for name in ("n0", "n2"))


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.soak)])
def test_a_leader_lost_in_the_middle_is_followed_by_the_next(make_cluster: Make, number: signal.Signals) -> None:
    cluster = make_cluster(4, sustain_s=4.0, deadline_s=100.0)
    hooks = Hooks(cluster, late_s=0.0)
    for name in cluster.nodes:
        hooks.start(name)
    until(lambda: hooks.progress("n0") == "all")
    strike(cluster, hooks, "n0", number)
    outcomes = hooks.results()
    assert outcomes["n0"].verdict.verdict == UNKNOWN
    others = [outcomes[name] for name in cluster.nodes[1:]]
    assert {o.measured.get("leader") for o in others} == {"n1"}, (outcomes, cluster.log())
    assert {o.verdict.verdict for o in others} == {UNKNOWN}
    assert {tuple(o.measured["absent"]) for o in others} == {("n0",)}
    assert {o.culprits for o in outcomes.values()} == {()}


def test_a_leader_lost_while_a_late_node_is_awaited_takes_no_proof_along(make_cluster: Make) -> None:
    """The workers of the others live on, and so do their logs, which prove their transport to the next leader."""
    cluster = make_cluster(4, transport="efa", rendezvous_s=12.0, late_s=60.0)
    for name in cluster.nodes:
        cluster.efa_counters(name, 32)
        cluster.hardware(name, efa=32)
    hooks = Hooks(cluster, late_s=60.0)
    for name in cluster.nodes[:3]:
        hooks.start(name)
    until(lambda: hooks.progress("n0") == "all")
    until(lambda: hooks.progress("n0") == "waiting")  # for the fourth
    os.kill(wait_for_agent(cluster, "n0", workers=2)[0], signal.SIGKILL)
    hooks.start("n3")
    outcomes = hooks.results()
    others = [outcomes[name] for name in cluster.nodes[1:]]
    assert {o.verdict.rule for o in others} == {"burnin.peer-absent"}, (outcomes, cluster.log())
    assert {tuple(o.measured["absent"]) for o in others} == {("n0",)}
    assert {o.culprits for o in others} == {()}


def test_a_frozen_leader_that_wakes_does_not_think_that_all_others_are_gone(make_cluster: Make) -> None:
    cluster = make_cluster(4, sustain_s=10.0, deadline_s=70.0)
    hooks = Hooks(cluster, late_s=0.0)
    for name in cluster.nodes:
        hooks.start(name)
    until(lambda: hooks.progress("n0") == "all")
    agent = wait_for_agent(cluster, "n0", workers=2)[0]
    os.kill(agent, signal.SIGSTOP)
    until(lambda: hooks.progress("n1"))  # the next one leads
    os.kill(agent, signal.SIGCONT)
    outcomes = hooks.results()
    assert {o.culprits for o in outcomes.values()} == {()}
    for outcome in outcomes.values():
        # On a busy machine the round may be over before it wakes, and all have told it that they passed.
        if outcome.measured.get("leader") == "n0":
            assert (outcome.verdict.verdict, outcome.measured["absent"]) == (PASS, []), outcomes


def test_two_jobs_on_the_same_nodes_do_not_disturb_each_other(make_cluster: Make) -> None:
    cluster = make_cluster(3)
    both = [Hooks(cluster, job_id=str(number)) for number in (7, 8)]
    for name in cluster.nodes:
        for hooks in both:
            hooks.start(name)
    for hooks in both:
        assert {o.verdict.verdict for o in hooks.results().values()} == {PASS}, cluster.log()


def test_another_version_is_unknown_and_nobody_takes_it_for_absent(make_cluster: Make) -> None:
    cluster = make_cluster(3)
    hooks = Hooks(cluster)
    seen: list[str] = []
    threads = []
    for name in cluster.nodes[:2]:
        hooks.start(name)
    thread = threading.Thread(target=lambda: seen.append(_say_hello_of_another_version(cluster, "n2")))
    thread.start()
    threads.append(thread)
    outcomes = hooks.results()
    thread.join(120)
    assert {(o.verdict.verdict, o.verdict.rule) for o in outcomes.values()} == {(UNKNOWN, "burnin.versions")}
    assert seen == ["burnin.versions"]


def _say_hello_of_another_version(cluster: Cluster, node: str) -> str:
    """Be a node whose fmslurm is an older one, and return the rule of the verdict that it gets."""
    from slurm_ext.burnin import surroundings
    from slurm_ext.channel import Hub
    from slurm_ext.credential import for_site

    job = cluster.job(node)
    hub = Hub(for_site(cluster.settings, node), me=node, key=job.key, peers=cluster.nodes[:2])
    ports = surroundings.ports(job.key, cluster.settings.burnin)
    deadline = time.monotonic() + 120
    tries = 0
    there, here = cluster.addresses["n0"], cluster.addresses[node]
    hub.connect("n0", there, ports[0], source=here)
    while time.monotonic() < deadline:
        for event in hub.poll(0.1):
            if event.kind == "up":
                hub.send("n0", {"t": "hello", "version": "0.0.1", "gpus": 2, "left_s": 20.0})
            elif event.kind == "down":
                tries += 1
                time.sleep(0.1)
                hub.connect("n0", there, ports[tries % len(ports)], source=here)
            elif event.kind == "message" and event.body.get("t") == "verdict":
                hub.close()
                outcome = event.body["outcome"]
                assert isinstance(outcome, dict)
                return str(outcome["rule"])
    return "none"


@pytest.mark.parametrize(
    ("blind", "leads"), [pytest.param(("n1",), "n0", marks=pytest.mark.soak), (("n1", "n2", "n3"), "n1")]
)
def test_two_that_lead_find_each_other_and_the_smaller_part_gives_up(
    make_cluster: Make, blind: tuple[str, ...], leads: str
) -> None:
    """Some nodes know no address of the first one: they cannot reach it, and the second one leads them."""
    cluster = make_cluster(4)
    table = (cluster.folder / "addresses").read_text()
    for name in cluster.nodes:
        own = cluster.folder / name / "addresses"
        own.write_text(table.replace(f"n0 {cluster.addresses['n0']}\n", "") if name in blind else table)
    burnin = cluster.settings.burnin._replace(addresses=f"{cluster.folder}/%n/addresses", rendezvous_s=16.0)
    site = cluster.settings.site._replace(slurm_bin="/nonexistent")
    cluster.settings = cluster.settings._replace(burnin=burnin, site=site)
    outcomes = Hooks(cluster, late_s=0.0).run(cluster.nodes)
    assert {(o.verdict.verdict, o.measured.get("leader")) for o in outcomes.values()} == {(PASS, leads)}, {
        name: (o.verdict, o.measured.get("leader"), o.seconds) for name, o in outcomes.items()
    }
    assert {o.ranks for o in outcomes.values()} == {8}
