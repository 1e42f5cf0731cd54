"""Agents, leader and workers for real: processes on loopback, stand-in NCCL that moves data, faults of every kind."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Cluster
from fault_kinds import states

from slurm_ext.burnin import history, surroundings
from slurm_ext.burnin.model import Outcome
from slurm_ext.verdict import FAIL, PASS, UNKNOWN

Make = Callable[..., Cluster]

#: A floor far below any healthy run on a busy machine, and 10 times above a link of RATE_MBIT.
FLOOR_GBS, RATE_MBIT = 0.01, 8


def agreed(outcomes: dict[str, Outcome]) -> Outcome:
    """All hooks got the same verdict; return it."""
    kinds = {(o.verdict.verdict, o.verdict.rule, o.culprits) for o in outcomes.values()}
    assert len(kinds) == 1, {name: o.verdict for name, o in outcomes.items()}
    return next(iter(outcomes.values()))


def processes(cluster: Cluster, node: str) -> list[int]:
    """The pids that the agent of a node wrote down, the agent first."""
    notes = list((cluster.folder / node / "run/burnin").glob("*.json"))
    try:
        return [pid for pid, _ in json.loads(notes[0].read_text())["processes"]] if notes else []
    except ValueError:
        return []  # just being written


def until(look: Callable[[], Any], timeout_s: float = 120.0) -> Any:
    """Look again and again until there is something, and return it."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert found
    return found


def wait_for_agent(cluster: Cluster, node: str, *, workers: int) -> list[int]:
    return until(lambda: found if len(found := processes(cluster, node)) > workers else None)


@pytest.fixture
def meanwhile() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Do something while the hooks wait; its failure is the test's."""
    threads: list[threading.Thread] = []
    failures: list[Exception] = []

    def start(work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as exc:  # noqa: BLE001
                failures.append(exc)

        threads.append(threading.Thread(target=guarded))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(200)
    assert not failures


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_healthy_nodes_pass_together(make_cluster: Make, nodes: int) -> None:
    cluster = make_cluster(nodes)
    outcome = agreed(cluster.run())
    assert outcome.verdict.verdict == PASS, cluster.log()
    assert outcome.ranks == 2 * nodes
    assert outcome.busbw_gbs is not None
    assert "GB/s" in outcome.verdict.reason
    for name in cluster.nodes:
        # The hook has gone by now; the agent writes this down behind it.
        lines = until(lambda name=name: list(history.read(str(cluster.folder / name / "state" / history.NAME))))
        assert [(x["job"], x["verdict"], x["node"]) for x in lines] == [("c/7-0", PASS, name)]
        assert list((cluster.folder / name / "run/burnin").iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "rule", "finding"),
    [
        ({}, "burnin.all-nodes", ""),
        ({"efa": 31}, "burnin.transport", "nccl-nic-count"),
        ({"nccl__gdr": 0}, "burnin.transport", "nccl-no-gdr"),
        ({"nccl__provider": "tcp"}, "burnin.transport", "ofi-provider-tcp"),
    ],
    ids=lambda value: str(value),
)
def test_the_transport_is_proven_or_the_node_named(
    make_cluster: Make, fault: dict[str, object], rule: str, finding: str
) -> None:
    cluster = make_cluster(3, transport="efa")
    for name in cluster.nodes:
        cluster.efa_counters(name, 32)
        cluster.hardware(name, **({"efa": 32} | (fault if name == "n1" else {})))
    outcome = agreed(cluster.convict("n1") if finding else cluster.run())
    assert outcome.verdict.rule == rule, outcome
    assert outcome.verdict.verdict == (FAIL if finding else PASS)
    assert outcome.culprits == (("n1",) if finding else ())
    assert {f.id for f in outcome.verdict.findings} <= {finding, "nccl-no-gdr"} - {""}


def test_counters_that_cannot_be_read_leave_a_warning(make_cluster: Make) -> None:
    cluster = make_cluster(2, transport="efa")
    for name in cluster.nodes:
        cluster.hardware(name, efa=32)
    outcome = agreed(cluster.run())
    assert (outcome.verdict.verdict, outcome.verdict.findings[0].id) == ("warn", "efa-counters-unread")


def test_without_the_plugin_nothing_falls_back_to_tcp(make_cluster: Make) -> None:
    cluster = make_cluster(3, transport="efa")
    cluster.hardware("n1", nccl__net="socket")
    assert agreed(cluster.convict("n1")).verdict.verdict == FAIL


@pytest.mark.parametrize(
    ("culprit", "fault"), [("n0", {"gpu__0__absent": 1}), ("n1", {"gpu__1__cuda_error": 719})], ids=["absent", "error"]
)
def test_the_bad_node_and_no_other_is_named(make_cluster: Make, culprit: str, fault: dict[str, object]) -> None:
    """Two that end at once; test_burnin_faults has all the others."""
    cluster = make_cluster(4, deadline_s=40.0)
    cluster.hardware(culprit, **fault)
    outcome = agreed(cluster.convict(culprit))
    assert outcome.verdict.verdict == FAIL
    (found,) = outcome.verdict.findings
    assert (found.target, found.action, found.id) == (f"node:{culprit}", "drain", "burnin.error")


def test_of_two_nodes_a_slow_link_convicts_neither(make_cluster: Make) -> None:
    cluster = make_cluster(2, floor_busbw_gbs=FLOOR_GBS, pair_floor_busbw_gbs=FLOOR_GBS)
    cluster.hardware("n1", nccl__rate_mbit=RATE_MBIT)
    outcome = agreed(cluster.run())
    assert (outcome.verdict.verdict, outcome.verdict.rule, outcome.culprits) == (FAIL, "burnin.two-nodes", ())
    assert outcome.measured["suspects"] == ["n0", "n1"]


def test_an_absent_node_is_nobodys_fault(make_cluster: Make) -> None:
    outcome = agreed(make_cluster(3, rendezvous_s=12.0).run(absent=("n2",)))
    assert (outcome.verdict.verdict, outcome.verdict.rule) == (UNKNOWN, "burnin.peer-absent")
    assert outcome.verdict.findings[0].target == "node:n2"
    assert outcome.culprits == ()


def test_an_absent_leader_is_nobodys_fault(make_cluster: Make) -> None:
    outcome = agreed(make_cluster(3, rendezvous_s=12.0).run(absent=("n0",)))
    assert (outcome.verdict.verdict, outcome.verdict.rule) == (UNKNOWN, "burnin.peer-absent")


def test_missing_nccl_names_what_was_tried(make_cluster: Make) -> None:
    outcome = agreed(make_cluster(2, nccl_library="/nonexistent/libnccl.so.2").run())
    assert outcome.verdict.rule == "burnin.library"
    assert "/nonexistent/libnccl.so.2" in outcome.verdict.reason


def test_too_old_a_nccl_is_unknown(make_cluster: Make) -> None:
    cluster = make_cluster(2)
    cluster.hardware("n1", nccl__version=21602)
    outcome = agreed(cluster.run())
    assert (outcome.verdict.verdict, outcome.verdict.rule) == (UNKNOWN, "burnin.library")


@pytest.mark.parametrize("odd", [("n0",), ("n2",), ("n1", "n2")])
def test_nodes_with_another_nccl_are_nobodys_hardware(make_cluster: Make, odd: tuple[str, ...]) -> None:
    cluster = make_cluster(4)
    for name in odd:
        cluster.hardware(name, nccl__version=22304)
    outcome = agreed(cluster.run())
    assert (outcome.verdict.verdict, outcome.verdict.rule) == (UNKNOWN, "burnin.library"), cluster.log()
    assert outcome.culprits == ()
    assert "2.23.4" in outcome.verdict.reason
    assert {f.action for f in outcome.verdict.findings} == {"none"}


@pytest.mark.parametrize("version", [21805, 23203])
def test_the_oldest_and_the_newest_nccl_are_spoken_to(make_cluster: Make, version: int) -> None:
    cluster = make_cluster(2)
    for name in cluster.nodes:
        cluster.hardware(name, nccl__version=version)
    assert agreed(cluster.run()).verdict.verdict == PASS


@pytest.mark.parametrize("victim", ["n0", "n1"])
def test_a_killed_worker_is_only_a_bad_moment(make_cluster: Make, meanwhile: Callable, victim: str) -> None:
    cluster = make_cluster(3, iterations=100)

    def kill() -> None:
        # At once: on a quick machine the whole run is over within a moment.
        os.kill(wait_for_agent(cluster, victim, workers=2)[1], signal.SIGKILL)

    meanwhile(kill)
    outcome = agreed(cluster.run())
    assert outcome.culprits == (), outcome
    assert outcome.verdict.verdict in ("warn", PASS)


def test_a_hook_that_goes_takes_its_agent_along(make_cluster: Make, meanwhile: Callable) -> None:
    cluster = make_cluster(2, rendezvous_s=120.0)
    pids: list[int] = []
    meanwhile(lambda: pids.extend(wait_for_agent(cluster, "n1", workers=1)))
    outcome = cluster.run(absent=("n0",), deadline_s=8.0)["n1"]
    assert outcome.verdict.verdict == UNKNOWN
    assert len(pids) > 1
    # Ended, and where nobody has asked yet not collected: the hook's own end does that.
    until(lambda: all(set(states(pid)) <= {"Z"} for pid in pids))


def test_a_stranger_on_the_first_port_is_passed_by(make_cluster: Make) -> None:
    cluster = make_cluster(2)
    ports = surroundings.ports(cluster.job("n0").key, cluster.settings.burnin)
    with socket.create_server((cluster.addresses["n0"], ports[0])):
        outcome = agreed(cluster.run())
    assert outcome.verdict.verdict == PASS


def test_two_jobs_on_one_port_never_mix(make_cluster: Make) -> None:
    """The follower of another job knocks at this job's leader: refused, and neither is disturbed."""
    cluster = make_cluster(2, port=42777, rendezvous_s=12.0)
    found: dict[str, Outcome] = {}
    stray = threading.Thread(
        target=lambda: found.update(cluster.run(absent=("n0",), job_id="8"))  # its leader never comes
    )
    stray.start()
    outcome = agreed(cluster.run(job_id="7"))
    stray.join(200)
    assert outcome.verdict.verdict == PASS
    assert found["n1"].verdict.rule == "burnin.peer-absent"


def test_a_survey_measures_and_judges_nothing(make_cluster: Make) -> None:
    outcome = agreed(make_cluster(4, floor_busbw_gbs=1e9).run(survey=True))
    kinds = [(r["kind"], len(r["groups"])) for r in outcome.measured["rounds"]]
    assert kinds == [("all", 1), ("pairs", 2), ("pairs", 2)]
    assert all(g["busbw_gbs"] > 0 for r in outcome.measured["rounds"] for g in r["groups"])


def test_a_folder_that_cannot_be_written_is_unknown(make_cluster: Make, tmp_path: Path) -> None:
    cluster = make_cluster(1)
    (cluster.folder / "n0/log").write_text("in the way")
    outcome = cluster.run()["n0"]
    assert (outcome.verdict.verdict, outcome.verdict.rule) == (UNKNOWN, "burnin.cannot-start")
    assert outcome.measured["suspects"] == ["n0"]  # sent back to it, the job would meet the same again
