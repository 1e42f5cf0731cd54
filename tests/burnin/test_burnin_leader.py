"""The leader alone: no sockets, no clock; nodes are played by a function."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from slurm_ext import __version__
from slurm_ext.burnin.leader import VOICE_S, Leader, Terms
from slurm_ext.burnin.model import HANG, OK, SLOW, Outcome, RankReport
from slurm_ext.verdict import FAIL, PASS, UNKNOWN

Play = Callable[[str, Mapping[str, Any], tuple[str, ...]], str]


def terms(count: int, **more: Any) -> Terms:
    names = tuple(f"n{i}" for i in range(count))
    base = Terms(names, 1, "p5.48xlarge", 1 << 20, 3, 0.1, 0.1, 30.0, 90.0)
    return base._replace(**more)


class Fabric:
    """All nodes of a job: says hello, and answers each round by `play(node, order, group)` with a state."""

    def __init__(self, what: Terms, play: Play) -> None:
        self.terms, self.play, self.now = what, play, 1000.0
        self.orders: deque[tuple[str, Mapping[str, Any]]] = deque()
        self.rounds: list[list[tuple[str, ...]]] = []
        self.mute: tuple[str, ...] = ()
        self.busy: tuple[str, ...] = ()  # alive, and too busy to give their voice
        self.asked: dict[
            str, tuple[Mapping[str, Any], tuple[str, ...]]
        ] = {}  # the last order to each node, and its group
        self.verdicts: dict[str, Mapping[str, Any]] = {}
        self.leader = Leader(what, lambda node, message: self.orders.append((node, message)), self.now)

    def hello(self, node: str, **more: Any) -> None:
        left_s = self.terms.deadline_s + self.terms.late_s - 2.0
        message = {"t": "hello", "version": __version__, "gpus": 1, "left_s": left_s, **more}
        self.leader.on_message(node, message, self.now)

    def run(self, *, absent: tuple[str, ...] = (), hello: bool = True, turns: int = 300) -> Outcome:
        for node in self.terms.nodes if hello else ():
            if node not in absent:
                self.hello(node)
        for _ in range(turns):
            if self.leader.outcome is not None and not self.orders:
                return self.leader.outcome
            self.turn()
            self.now += 0.5
            for node in self.terms.nodes:
                if node not in (*absent, *self.mute) and self.leader.outcome is None:
                    self.leader.on_message(node, {"t": "alive"}, self.now)
            self.leader.tick(self.now)
        raise AssertionError("no outcome")

    def turn(self) -> None:
        batch, self.orders = self.orders, deque()
        started = [(node, order) for node, order in batch if order["t"] == "round"]
        groups: list[list[str]] = []
        for node, order in started:
            if order["base"] == 0:
                groups.append([])
            groups[-1].append(node)
        if groups:
            self.rounds.append([tuple(group) for group in groups])
        for node, order in batch:
            if order["t"] == "verdict":
                self.verdicts[node] = order["outcome"]
                if order["leave"]:
                    self.leader.on_message(node, {"t": "voice", "left": True}, self.now)
            elif order["t"] == "propose" and node not in (*self.mute, *self.busy):
                voice = {"t": "voice", "culprits": order["culprits"], "yes": True}
                self.leader.on_message(node, voice, self.now)
        for node, order in started:
            group = next(tuple(g) for g in groups if node in g)
            self.asked[node] = (order, group)
            state = self.play(node, order, group)
            if state == "silent":
                continue
            report = RankReport(order["base"], node, 0, state, median_ms=1.0, min_ms=1.0, max_ms=1.0, slowest_ms=9.0)
            message = {"t": "report", "round": order["round"], "ranks": [report._asdict()], "facts": {}}
            self.leader.on_message(node, message, self.now)


def test_all_pass_and_everybody_is_told() -> None:
    fabric = Fabric(terms(4), lambda node, order, group: OK)
    outcome = fabric.run()
    assert outcome.verdict.verdict == PASS
    assert set(fabric.verdicts) == set(fabric.terms.nodes)
    assert fabric.rounds == [[("n0", "n1", "n2", "n3")]]


def test_the_culprit_is_found_in_three_more_rounds() -> None:
    fabric = Fabric(terms(64), lambda node, order, group: SLOW if "n17" in group else OK)
    outcome = fabric.run()
    assert (outcome.verdict.verdict, outcome.culprits) == (FAIL, ("n17",))
    assert len(fabric.rounds) <= 4
    assert fabric.verdicts["n5"]["culprits"] == ["n17"]


def proposed(*, left_s: float = 80.0, after_s: float = 0.0) -> Fabric:
    """Return a fabric whose hooks wait `left_s`, and where `after_s` later n2 is found bad, but two are busy with their voices."""
    fabric = Fabric(terms(4), lambda node, order, group: SLOW if "n2" in group else OK)
    fabric.busy = ("n1", "n3")
    for name in fabric.terms.nodes:
        fabric.hello(name, left_s=left_s)
    fabric.now += after_s
    while not any(order["t"] == "propose" for _, order in fabric.orders):
        fabric.turn()
        assert fabric.leader.outcome is None
    return fabric


def test_nodes_that_write_their_voice_down_slowly_are_waited_for() -> None:
    fabric = proposed()
    fabric.turn()
    for _ in range(18):
        fabric.now += 0.5
        for name in fabric.terms.nodes:
            fabric.leader.on_message(name, {"t": "alive"}, fabric.now)
        fabric.leader.tick(fabric.now)
        assert fabric.leader.outcome is None
    fabric.leader.on_message("n1", {"t": "voice", "culprits": ["n2"], "yes": True}, fabric.now)
    assert fabric.leader.outcome is not None
    assert (fabric.leader.outcome.verdict.verdict, fabric.leader.outcome.culprits) == (FAIL, ("n2",))


@pytest.mark.parametrize(
    ("left_s", "after_s", "most_s"),
    [(80.0, 0.0, VOICE_S + 0.5), (8.0, 5.0, 5.0)],
    ids=["with time", "hooks are about to go"],
)
def test_voices_that_never_come_convict_nobody_and_hooks_hear_of_it_in_time(
    left_s: float, after_s: float, most_s: float
) -> None:
    """An agent whose time is up, two seconds behind what it says, would have learned nothing, and its job might start."""
    fabric = proposed(left_s=left_s, after_s=after_s)
    began = fabric.now
    outcome = fabric.run(hello=False)
    assert (outcome.verdict.verdict, outcome.verdict.rule) == (FAIL, "burnin.no-majority")
    assert (outcome.culprits, outcome.measured["suspects"]) == ((), ["n2"])
    assert {f.action for f in outcome.verdict.findings} == {"warn"}
    assert fabric.now - began <= most_s


def test_a_silent_node_is_left_out_and_the_rest_runs_again() -> None:
    fabric = Fabric(terms(4), lambda node, order, group: "silent" if node == "n2" else OK)
    fabric.mute = ("n2",)
    outcome = fabric.run()
    assert (outcome.verdict.verdict, outcome.verdict.rule, outcome.culprits) == (UNKNOWN, "burnin.peer-absent", ())
    assert outcome.verdict.findings[0].target == "node:n2"
    assert "no sign of life" in outcome.verdict.findings[0].evidence[0]
    assert (outcome.measured["absent"], outcome.measured["suspects"]) == (["n2"], ["n2"])
    assert outcome.measured["passed"] is True
    assert fabric.rounds == [[("n0", "n1", "n2", "n3")], [("n0", "n1", "n3")]]


def test_an_absent_node_is_told_at_the_end_of_the_rendezvous() -> None:
    fabric = Fabric(terms(4, rendezvous_s=3.0), lambda node, order, group: OK)
    outcome = fabric.run(absent=("n1", "n3"))
    assert outcome.verdict.rule == "burnin.peer-absent"
    assert [f.target for f in outcome.verdict.findings] == ["node:n1", "node:n3"]
    assert set(fabric.verdicts) == {"n0", "n2"}


@pytest.mark.parametrize(
    ("more", "rule"), [({"version": "9.9"}, "burnin.versions"), ({"gpus": 7}, "burnin.uneven")], ids=["version", "gpus"]
)
def test_nodes_that_differ_are_unknown(more: dict[str, Any], rule: str) -> None:
    fabric = Fabric(terms(2), lambda node, order, group: OK)
    fabric.hello("n0")
    fabric.hello("n1", **more)
    assert fabric.leader.outcome is not None
    assert fabric.leader.outcome.verdict.rule == rule


def test_an_agent_that_says_hello_twice_before_all_are_there_is_nothing() -> None:
    fabric = Fabric(terms(3), lambda node, order, group: OK)
    fabric.hello("n0")
    fabric.hello("n0")
    assert fabric.run().verdict.verdict == PASS


def test_an_agent_that_starts_anew_in_the_middle_is_tested_with_witnesses() -> None:
    fabric = Fabric(terms(5, late_s=60.0), lambda node, order, group: OK)
    for name in fabric.terms.nodes:
        fabric.hello(name)
    fabric.hello("n3")
    outcome = fabric.run(hello=False)
    assert (outcome.verdict.verdict, outcome.measured["absent"]) == (PASS, [])
    assert fabric.rounds[-1] == [("n0", "n1", "n2", "n3")]


def test_the_hook_that_waits_least_sets_the_deadline_and_a_failure_never_passes_for_it() -> None:
    fabric = Fabric(terms(4), lambda node, order, group: SLOW)
    fabric.hello("n0", left_s=2.0)
    for name in ("n1", "n2", "n3"):
        fabric.hello(name)
    fabric.now += 0.5
    fabric.turn()
    outcome = fabric.leader.outcome
    assert outcome is not None
    assert (outcome.verdict.verdict, outcome.verdict.rule, outcome.culprits) == (FAIL, "burnin.deadline", ())


def test_a_lost_connection_is_nobodys_fault_and_late_messages_get_the_verdict() -> None:
    fabric = Fabric(terms(3), lambda node, order, group: "silent" if len(fabric.rounds) == 1 else OK)
    for name in fabric.terms.nodes:
        fabric.hello(name)
    fabric.turn()
    fabric.leader.on_down("n2", "reset", fabric.now)
    for node in ("n0", "n1"):  # they obey the order to stop
        report = RankReport(0, node, 0, HANG)
        message = {"t": "report", "round": 0, "ranks": [report._asdict()], "facts": {}}
        fabric.leader.on_message(node, message, fabric.now)
    outcome = fabric.run(hello=False, absent=("n2",))
    assert (outcome.verdict.rule, outcome.measured["absent"]) == ("burnin.peer-absent", ["n2"])
    assert outcome.verdict.findings[0].evidence == ("reset",)
    fabric.leader.on_message("n1", {"t": "alive"}, fabric.now)
    assert [order["t"] for _, order in fabric.orders] == ["verdict"]


def test_a_leader_that_most_nodes_leave_at_once_does_not_think_that_they_are_gone() -> None:
    fabric = Fabric(terms(5), lambda node, order, group: "silent")
    for name in fabric.terms.nodes:
        fabric.hello(name)
    fabric.turn()
    for name in ("n1", "n2"):
        fabric.leader.on_down(name, "reset", fabric.now)
        assert not fabric.leader.isolated
    fabric.leader.on_down("n3", "reset", fabric.now)
    assert fabric.leader.isolated
    assert fabric.leader.outcome is None


def orders_of(fabric: Fabric) -> list[Mapping[str, Any]]:
    """Run it and return each round's order to the first of its nodes."""
    seen: list[Mapping[str, Any]] = []
    play = fabric.play
    fabric.play = lambda node, order, group: (seen.append(order) if order["root"] else None) or play(node, order, group)
    fabric.run()
    return seen


def test_traffic_is_sustained_with_all_nodes_and_never_while_a_culprit_is_looked_for() -> None:
    fabric = Fabric(
        terms(6, sustain_s=60.0, deadline_s=200.0), lambda node, order, group: SLOW if "n2" in group else OK
    )
    first, *others = orders_of(fabric)
    assert fabric.leader.outcome is not None
    assert fabric.leader.outcome.culprits == ("n2",)
    assert (first["sustain_s"], {order["sustain_s"] for order in others}) == (60.0, {0.0})
    assert first["limit_s"] > 60.0
    assert max(order["limit_s"] for order in others) < 40.0
    assert [order["prove"] for order in (first, *others)] == [True] + [False] * len(others)


def throttled(culprit: str, onset_s: float) -> Callable[[Fabric], None]:
    """A node slow only in traffic that lasts beyond `onset_s`."""

    def turn(fabric: Fabric) -> None:
        answer = fabric.leader.on_message

        def on_message(node: str, message: Mapping[str, Any], now: float) -> None:
            if message.get("t") == "report":
                order, group = fabric.asked[node]
                hot = culprit in group and order["sustain_s"] > onset_s
                more = {"sustain_ms": 90.0 if hot else 1.0, "sustain_steps": 9, "onset_s": onset_s}
                if order["sustain_s"]:
                    message = {**message, "ranks": [{**rank, **more} for rank in message["ranks"]]}
            answer(node, message, now)

        fabric.leader.on_message = on_message  # type: ignore[method-assign]

    return turn


@pytest.mark.parametrize("onset_s", [1.0, 3.0])
def test_what_shows_in_sustained_traffic_only_is_looked_for_in_such(onset_s: float) -> None:
    fabric = Fabric(terms(6, sustain_s=4.0), lambda node, order, group: OK)
    throttled("n2", onset_s)(fabric)
    first, *others = orders_of(fabric)
    assert fabric.leader.outcome is not None
    assert fabric.leader.outcome.culprits == ("n2",)
    assert first["sustain_s"] == 4.0
    assert all(order["sustain_s"] > onset_s / 0.75 for order in others)
    assert all(order["limit_s"] > order["sustain_s"] + 2.0 for order in others)


def test_all_together_again_is_as_strong_as_the_first_time_and_pairs_stay_short() -> None:
    fabric = Fabric(terms(6, sustain_s=4.0), lambda node, order, group: OK)
    fabric.play = lambda node, order, group: SLOW if order["prove"] else OK
    first, *pairs, again = orders_of(fabric)
    assert fabric.leader.outcome is not None
    assert fabric.leader.outcome.verdict.rule == "burnin.once"
    assert (first["sustain_s"], {order["sustain_s"] for order in pairs}, again["sustain_s"]) == (4.0, {0.0}, 4.0)
    assert (first["ranks"], again["ranks"]) == (6, 6)


def test_nvlink_between_nodes_is_tested_on_and_off() -> None:
    fabric = Fabric(terms(3, instance_type="p6e-gb200.36xlarge"), lambda node, order, group: OK)
    orders = orders_of(fabric)
    assert sorted(order["mnnvl"] for order in orders) == ["off", "on"]
    assert all(order["prove"] for order in orders)
    one = Fabric(terms(3, instance_type="p5.48xlarge"), lambda node, order, group: OK)
    assert [order["mnnvl"] for order in orders_of(one)] == [""]


def test_a_large_job_is_tested_in_groups_by_leaf_switch_then_one_node_of_each() -> None:
    leaves = {f"n{i}": f"leaf-{i % 4}" for i in range(32)}
    fabric = Fabric(terms(32, group_nodes=8, leaves=leaves), lambda node, order, group: OK)
    outcome = fabric.run()
    assert outcome.verdict.verdict == PASS
    groups, across = fabric.rounds
    assert [{leaves[name] for name in group} for group in groups] == [{f"leaf-{i}"} for i in range(4)]
    assert len(across[0]) == 4
    assert outcome.ranks == 32


def test_ids_go_to_the_group_with_their_rail() -> None:
    fabric = Fabric(terms(4), lambda node, order, group: "silent")
    for name in fabric.terms.nodes:
        fabric.hello(name)
    fabric.turn()
    fabric.leader.on_message("n0", {"t": "id", "round": 0, "id": "secret", "gpu": 3}, fabric.now)
    assert [(node, m["id"], m["gpu"]) for node, m in fabric.orders] == [(n, "secret", 3) for n in fabric.terms.nodes]


def test_who_was_refused_explains_who_is_absent_and_ends_nothing() -> None:
    fabric = Fabric(terms(3, rendezvous_s=3.0), lambda node, order, group: OK)
    fabric.leader.on_refused("clock", "192.0.2.4: sent 70 s ago")
    outcome = fabric.run(absent=("n2",))
    assert outcome.verdict.rule == "burnin.peer-absent"
    assert "sent 70 s ago" in outcome.verdict.reason


def test_a_thousand_nodes_are_no_burden() -> None:
    fabric = Fabric(terms(1024), lambda node, order, group: OK)
    started = time.process_time()
    assert fabric.run().verdict.verdict == PASS
    assert time.process_time() - started < 20.0
