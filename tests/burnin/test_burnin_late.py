"""Nodes whose prolog comes late, never, or when all is over; and an attempt that is cancelled in its gate."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from conftest import OVERRUN_S, Cluster
from test_burnin_agents import until
from test_burnin_leader import Fabric, terms

from slurm_ext import shared
from slurm_ext.burnin.gate import longest_s, run_burnin
from slurm_ext.burnin.model import OK, SLOW, Outcome
from slurm_ext.verdict import FAIL, PASS, UNKNOWN

Make = Callable[..., Cluster]


class Hooks:
    """Hooks of one job, each started when a test says so. They wait as long as the settings want it, or `late_s` beyond."""

    def __init__(self, cluster: Cluster, *, job_id: str = "7", late_s: float | None = None) -> None:
        self.cluster, self.job_id = cluster, job_id
        self.deadline_s = (
            longest_s(cluster.settings, nodes=len(cluster.nodes))
            if late_s is None
            else cluster.settings.burnin.deadline_s + late_s
        )
        self._pool = ThreadPoolExecutor(len(cluster.nodes))
        self.futures: dict[str, Future[Outcome]] = {}

    def start(self, node: str) -> None:
        job = self.cluster.job(node, self.job_id)
        self.futures[node] = self._pool.submit(
            run_burnin, job, self.cluster.settings, deadline_s=self.deadline_s, cgroups=False
        )

    def results(self) -> dict[str, Outcome]:
        found = {name: future.result(self.deadline_s + 60) for name, future in self.futures.items()}
        self._pool.shutdown()
        assert all(o.seconds < self.deadline_s + OVERRUN_S for o in found.values()), "a hook outlived its deadline"
        return found

    def run(self, nodes: tuple[str, ...]) -> dict[str, Outcome]:
        for name in nodes:
            self.start(name)
        return self.results()

    def progress(self, node: str) -> str:
        """What a node that leads says goes on; empty where it does not lead."""
        path = self.cluster.folder / node / f"run/burnin/{self.job_id}-0.d/progress.json"
        try:
            return str(json.loads(path.read_text())["phase"])
        except (OSError, ValueError):
            return ""


# The leader alone.


def late_fabric(count: int, bad: tuple[str, ...] = (), **more: object) -> Fabric:
    return Fabric(
        terms(count, rendezvous_s=3.0, **{"late_s": 60.0, **more}),  # type: ignore[arg-type]
        lambda node, order, group: SLOW if set(bad) & set(group) and len(group) > 1 else OK,
    )


def come_late(fabric: Fabric, late: tuple[str, ...]) -> Outcome:
    """Let all but `late` come, run until only late nodes are waited for, then let these come and run to the end."""
    for name in fabric.terms.nodes:
        if name not in late:
            fabric.hello(name)
    for _ in range(40):
        fabric.now += 0.5
        fabric.turn()
        fabric.leader.tick(fabric.now)
        for name in fabric.leader.joined:
            fabric.leader.on_message(name, {"t": "alive"}, fabric.now)
    assert fabric.leader.outcome is None
    for name in late:
        fabric.hello(name)
    return fabric.run(hello=False)


def test_those_that_passed_may_go_but_for_the_leader_and_two_witnesses() -> None:
    fabric = late_fabric(8)
    outcome = come_late(fabric, ("n5", "n7"))
    assert (outcome.verdict.verdict, outcome.culprits, outcome.measured["absent"]) == (PASS, (), [])
    assert fabric.rounds == [[("n0", "n1", "n2", "n3", "n4", "n6")], [("n0", "n1", "n2", "n5", "n7")]]
    first = fabric.verdicts["n6"]
    assert (first["verdict"], first["measured"]["absent"]) == (PASS, ["n5", "n7"])
    assert first["measured"]["tested"] == ["n0", "n1", "n2", "n3", "n4", "n6"]
    assert "tested" not in fabric.verdicts["n0"]["measured"]  # all of them


def test_a_bad_late_node_is_convicted_by_known_good_ones_and_those_that_went_count() -> None:
    outcome = come_late(late_fabric(12, bad=("n9",)), ("n9",))
    assert (outcome.verdict.verdict, outcome.culprits) == (FAIL, ("n9",))


def test_a_bad_late_node_of_three_is_convicted_and_of_two_nobody() -> None:
    outcome = come_late(late_fabric(3, bad=("n2",)), ("n2",))
    assert (outcome.verdict.verdict, outcome.culprits) == (FAIL, ("n2",))
    outcome = come_late(late_fabric(2, bad=("n1",)), ("n1",))
    assert (outcome.verdict.verdict, outcome.verdict.rule, outcome.culprits) == (FAIL, "burnin.two-nodes", ())


def test_without_a_majority_nobody_is_convicted() -> None:
    """Two of five never come: one of the other three is slow, and two voices of five would be too few."""
    fabric = late_fabric(5, bad=("n2",))
    fabric.mute = ("n2",)
    outcome = fabric.run(absent=("n3", "n4"))
    assert outcome.culprits == ()


def test_a_late_node_that_never_comes_is_named_and_the_others_passed() -> None:
    fabric = late_fabric(5)
    outcome = fabric.run(absent=("n4",))
    assert (outcome.verdict.verdict, outcome.verdict.rule) == (UNKNOWN, "burnin.peer-absent")
    assert [outcome.measured[k] for k in ("absent", "suspects", "passed", "acts")] == [["n4"], ["n4"], True, "n0"]
    assert fabric.now - 1000.0 > 90.0  # it was waited for beyond the deadline of those that were there
    assert fabric.verdicts["n3"]["verdict"] == PASS


def test_one_node_of_two_runs_alone_meanwhile() -> None:
    fabric = late_fabric(2)
    assert come_late(fabric, ("n1",)).verdict.verdict == PASS
    assert fabric.rounds == [[("n0",)], [("n0", "n1")]]


def test_a_first_cohort_that_fails_ends_it_for_all() -> None:
    fabric = late_fabric(6, bad=("n1",))
    outcome = fabric.run(absent=("n5",))
    assert (outcome.verdict.verdict, outcome.culprits, outcome.measured["absent"]) == (FAIL, ("n1",), ["n5"])


def test_a_late_node_of_another_version_is_unknown() -> None:
    fabric = late_fabric(4)
    for name in ("n0", "n1", "n2"):
        fabric.hello(name)
    for _ in range(20):
        fabric.now += 0.5
        fabric.turn()
        fabric.leader.tick(fabric.now)
    fabric.hello("n3", version="9.9")
    assert fabric.leader.outcome is not None
    assert fabric.leader.outcome.verdict.rule == "burnin.versions"


def test_an_attempt_that_ended_elsewhere_ends_for_all() -> None:
    fabric = late_fabric(4)
    for name in ("n0", "n1", "n2"):
        fabric.hello(name)
    fabric.leader.on_message("n2", {"t": "over", "reason": "cancelled"}, fabric.now)
    fabric.turn()
    assert {v["rule"] for v in fabric.verdicts.values()} == {"burnin.ended-elsewhere"}
    assert set(fabric.verdicts) == {"n0", "n1", "n2"}


def test_a_thousand_nodes_of_which_a_hundred_come_late() -> None:
    fabric = late_fabric(1024)
    late = tuple(f"n{i}" for i in range(0, 1000, 10))[1:]
    started = time.process_time()
    assert come_late(fabric, late).verdict.verdict == PASS
    assert time.process_time() - started < 60.0


# Agents for real.

OPTIONS = {"rendezvous_s": 12.0, "late_s": 60.0, "deadline_s": 40.0}


def test_a_late_node_is_tested_with_witnesses_and_the_job_passes(make_cluster: Make) -> None:
    cluster = make_cluster(5, **OPTIONS)
    hooks = Hooks(cluster)
    for name in cluster.nodes[:4]:
        hooks.start(name)
    first = hooks.futures["n3"].result(60)  # it may go before the late one is there
    assert (first.verdict.verdict, first.measured["absent"]) == (PASS, ["n4"]), cluster.log()
    assert [name for name, future in hooks.futures.items() if future.done()] == ["n3"]
    hooks.start("n4")
    outcomes = hooks.results()
    assert {o.verdict.verdict for o in outcomes.values()} == {PASS}, (outcomes, cluster.log())
    assert [outcomes[name].measured["absent"] for name in ("n0", "n1", "n2", "n4")] == [[]] * 4
    kinds = [(r["kind"], r["groups"][0]["nodes"]) for r in outcomes["n4"].measured["rounds"]]
    assert kinds == [("all", ["n0", "n1", "n2", "n3"]), ("all", ["n0", "n1", "n2", "n4"])]


def test_a_bad_late_node_is_convicted_by_the_witnesses(make_cluster: Make) -> None:
    cluster = make_cluster(5, **OPTIONS)
    cluster.hardware("n4", gpu__1__lost=1)
    hooks = Hooks(cluster)
    for name in cluster.nodes[:4]:
        hooks.start(name)
    hooks.futures["n3"].result(60)
    hooks.start("n4")
    outcomes = hooks.results()
    third = outcomes.pop("n3")
    assert third.verdict.verdict == PASS, (third, cluster.log())
    assert {(o.verdict.verdict, o.culprits) for o in outcomes.values()} == {(FAIL, ("n4",))}, (outcomes, cluster.log())


def on_share(cluster: Cluster) -> str:
    """Give a cluster a share, and return its path."""
    share = cluster.folder / "share"
    (share / "ledger").mkdir(mode=0o755, parents=True)
    cluster.settings = cluster.settings._replace(site=cluster.settings.site._replace(share=str(share)))
    return str(share)


def test_a_node_that_never_comes_costs_nobody_a_drain_and_who_comes_too_late_reads_what_became_of_it(
    make_cluster: Make,
) -> None:
    cluster = make_cluster(4, rendezvous_s=6.0, late_s=2.0, deadline_s=20.0)
    share = on_share(cluster)
    outcomes = Hooks(cluster).run(("n0", "n1", "n2"))
    assert {(o.verdict.verdict, o.verdict.rule) for o in outcomes.values()} == {(UNKNOWN, "burnin.peer-absent")}
    assert {tuple(o.measured["suspects"]) for o in outcomes.values()} == {("n3",)}
    assert {o.measured["passed"] for o in outcomes.values()} == {True}
    path = shared.attempt_path(share, "c/7-0", shared.BURNIN_FILE)
    until(lambda: os.path.exists(path))
    for late in ("n3", "n0"):
        hooks = Hooks(cluster)
        outcome = hooks.run((late,))[late]
        assert (outcome.verdict.rule, outcome.measured["absent"]) == ("burnin.peer-absent", ["n3"]), cluster.log()
        assert outcome.seconds < 18.0, "it does not wait for anybody"


def test_what_is_old_on_the_share_is_about_another_job(make_cluster: Make) -> None:
    cluster = make_cluster(2, rendezvous_s=1.5)
    share = on_share(cluster)
    path = shared.attempt_path(share, "c/7-0", shared.BURNIN_FILE)
    old = {"time": 1e9, "verdict": "unknown", "rule": "burnin.deadline", "reason": "", "findings": []}
    assert shared.write_json(path, old)
    outcomes = Hooks(cluster, late_s=0.0).run(("n0",))
    assert outcomes["n0"].verdict.rule == "burnin.peer-absent"


def hook_process(cluster: Cluster, node: str) -> int:
    """Start a hook in a process of its own, as slurmd does, and return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            run_burnin(cluster.job(node), cluster.settings, deadline_s=240.0, cgroups=False)
        finally:
            os._exit(0)
    return pid


@pytest.mark.parametrize("first_to_see_it", ["n0", "n2"])
def test_a_cancelled_attempt_frees_nodes_whose_share_does_not_tell(make_cluster: Make, first_to_see_it: str) -> None:
    """One hook sees the file and goes; its agent tells the leader, and the leader all others."""
    cluster = make_cluster(4, rendezvous_s=200.0, deadline_s=240.0)
    share = on_share(cluster)
    pid = hook_process(cluster, first_to_see_it)
    hooks = Hooks(cluster, late_s=0.0)
    others = [name for name in cluster.nodes[:3] if name != first_to_see_it]  # the fourth never comes
    for name in others:
        hooks.start(name)
    until(lambda: hooks.progress("n0") == "waiting")
    joined = cluster.folder / "n0/run/burnin/7-0.d/progress.json"
    until(lambda: json.loads(joined.read_text())["waiting"] == ["n3"])
    path = shared.attempt_path(share, "c/7-0", shared.STOPPED_FILE)
    assert shared.write_json(path, {"schema": 1, "node": "the controller", "reason": "cancelled", "time": time.time()})
    started = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    outcomes = hooks.results()
    assert time.monotonic() - started < 60.0, "long before anybody gives up"
    assert {o.verdict.rule for o in outcomes.values()} == {"burnin.ended-elsewhere"}, cluster.log()
    assert "cancelled" in outcomes[others[0]].verdict.reason
    until(lambda: not any((cluster.folder / name / "run/burnin/7-0.json").exists() for name in cluster.nodes[:3]))
