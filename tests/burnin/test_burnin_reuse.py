"""An earlier pass counts only where every node of the job stands by it, whatever the order in which they come."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable

import pytest
from conftest import Cluster

from slurm_ext import __version__
from slurm_ext.burnin.leader import Leader, Terms
from slurm_ext.burnin.model import BurninJob, Outcome
from slurm_ext.verdict import PASS

Make = Callable[..., Cluster]

NODES = ("n0", "n1", "n2")


def lead(hellos: list[tuple[str, bool]]) -> tuple[Leader, list[tuple[str, str]]]:
    sent: list[tuple[str, str]] = []
    terms = Terms(NODES, 1, "p5.48xlarge", 1 << 20, 3, 0.1, 0.1, 30.0, 90.0)
    leader = Leader(terms, lambda node, message: sent.append((node, message["t"])), 0.0)
    for now, (node, reuse) in enumerate(hellos):
        hello = {"t": "hello", "version": __version__, "gpus": 1, "left_s": 80.0, "reuse": reuse}
        leader.on_message(node, hello, float(now))
    return leader, sent


@pytest.mark.parametrize("order", list(itertools.permutations(NODES)))
@pytest.mark.parametrize("against", [(), ("n0",), ("n2",), ("n0", "n1"), NODES])
def test_one_node_that_does_not_stand_by_it_has_all_of_them_tested(
    order: tuple[str, ...], against: tuple[str, ...]
) -> None:
    leader, sent = lead([(name, name not in against) for name in order])
    if against:
        assert leader.outcome is None
        assert sorted(sent) == [(name, "round") for name in NODES]
    else:
        assert leader.outcome is not None
        assert leader.outcome.verdict[::3] == (PASS, "burnin.reused")
        assert sorted(sent) == [(name, "verdict") for name in NODES]


def test_nothing_is_reused_before_the_last_node_has_come() -> None:
    leader, sent = lead([("n0", True), ("n1", True)])
    assert (leader.outcome, sent) == (None, [])
    assert leader.progress() == ("waiting", ("n2",))


def run(cluster: Cluster, against: tuple[str, ...]) -> dict[str, Outcome]:
    plain = cluster.job

    def job(node: str, job_id: str = "7", restarts: int = 0) -> BurninJob:
        return plain(node, job_id, restarts)._replace(reusable=node not in against)

    cluster.job = job  # type: ignore[method-assign]
    return cluster.run()


def test_where_all_stand_by_it_no_worker_starts_and_else_all_are_tested(make_cluster: Make) -> None:
    cluster = make_cluster(3)
    outcomes = run(cluster, ())
    assert {(o.verdict.verdict, o.verdict.rule, o.ranks) for o in outcomes.values()} == {(PASS, "burnin.reused", 0)}
    for against in (("n0",), ("n2",)):
        outcomes = run(cluster, against)
        assert {(o.verdict.verdict, o.verdict.rule, o.ranks) for o in outcomes.values()} == {
            (PASS, "burnin.all-nodes", 6)
        }, cluster.log()


def test_the_hook_can_read_what_goes_on(make_cluster: Make) -> None:
    cluster = make_cluster(3, rendezvous_s=8.0)
    seen: list[dict[str, object]] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.01):
            for path in cluster.folder.glob("n0/run/burnin/7-0.d/progress.json"):
                try:
                    data = json.loads(path.read_text())
                except OSError:
                    continue
                if not seen or seen[-1] != data:
                    seen.append(data)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        cluster.run(absent=("n2",))
    finally:
        done.set()
        watcher.join(60)
    assert ("waiting", ["n2"], 1) in [(data["phase"], data["waiting"], data["absent"]) for data in seen]
