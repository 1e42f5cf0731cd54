"""Every kind of fault, for real: the right node is named or none, the hook is back in time, and nothing is left running."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Cluster
from fault_kinds import FLOOR_GBS, KINDS, FaultKind, keys_on, left_behind, needs_frozen, states

from slurm_ext.burnin.model import Outcome
from slurm_ext.lab import frozen

Make = Callable[..., Cluster]

#: How long what a burn-in started may need to end behind the hooks: agents flush, and wait a moment for killed workers.
END_S = 60.0


def spoiled(make_cluster: Make, kind: FaultKind, stuck: Path | None) -> Cluster:
    """Return a cluster one node of which has the fault."""
    cluster = make_cluster(
        kind.nodes,
        deadline_s=kind.deadline_s,
        sustain_s=0.2,
        floor_busbw_gbs=FLOOR_GBS,
        pair_floor_busbw_gbs=FLOOR_GBS,
        transport=kind.transport,
    )
    for name in cluster.nodes:
        if kind.transport == "efa":
            cluster.efa_counters(name, 32)
        cluster.hardware(name, **{"efa": 32} | (keys_on(kind, stuck) if name == kind.culprit else {}))
    return cluster


def outcomes_of(cluster: Cluster, kind: FaultKind) -> dict[str, Outcome]:
    """Run what a kind is to be found in; the cluster's own functions look at the deadlines of hooks."""
    return cluster.convict(kind.culprit) if kind.convicted else cluster.run()


def check(cluster: Cluster, kind: FaultKind, outcomes: dict[str, Outcome]) -> None:
    """Assert what every kind must keep."""
    told = {(o.verdict.verdict, o.culprits, tuple(f.id for f in o.verdict.findings)) for o in outcomes.values()}
    assert len(told) == 1, outcomes
    outcome = outcomes["n0"]
    assert outcome.culprits == kind.convicted, (outcome, cluster.log())
    assert outcome.verdict.verdict in kind.verdicts, outcome
    drained = [f for f in outcome.verdict.findings if f.action == "drain"]
    assert {f.target for f in drained} == {f"node:{name}" for name in kind.convicted}
    assert {f.id for f in drained} <= set(kind.findings)


def until_gone(folder: Path) -> None:
    deadline = time.monotonic() + END_S
    while left := left_behind(folder):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", [k for k in KINDS if not needs_frozen(k)], ids=lambda kind: kind.name)
def test_the_right_node_is_named_in_time_and_nothing_is_left(make_cluster: Make, kind: FaultKind) -> None:
    cluster = spoiled(make_cluster, kind, None)
    check(cluster, kind, outcomes_of(cluster, kind))
    until_gone(cluster.folder)


@pytest.mark.parametrize("kind", [k for k in KINDS if needs_frozen(k)], ids=lambda kind: kind.name)
def test_a_worker_in_the_kernels_hands_holds_nobody(make_cluster: Make, kind: FaultKind, stuck: Path) -> None:
    cluster = spoiled(make_cluster, kind, stuck)
    seen: set[int] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            seen.update(pid for pid, threads in left_behind(cluster.folder).items() if "D" in threads)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        outcomes = outcomes_of(cluster, kind)
    finally:
        over.set()
        watching.join(60)
    check(cluster, kind, outcomes)
    # Killed long ago, and there: nothing but a thaw ends them.
    asleep = {pid for pid in seen if "D" in states(pid)}
    assert asleep
    deadline = time.monotonic() + END_S
    while others := set(left_behind(cluster.folder)) - asleep:
        assert time.monotonic() < deadline, others
        time.sleep(0.05)
    assert asleep == {pid for pid in asleep if "D" in states(pid)}
    frozen.thaw(stuck.parent)
    deadline = time.monotonic() + END_S
    while any(states(pid) for pid in asleep):
        assert time.monotonic() < deadline, {pid: states(pid) for pid in asleep}
        time.sleep(0.05)
