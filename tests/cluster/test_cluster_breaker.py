"""Every node of a real cluster fails its gate in one moment: the breaker holds, and each job comes back without its node."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from gated_lab import controllers, finish, names, put_back, restarts, shown, start
from installed_lab import config_path, configure, fmslurm, hooks_running, installed
from test_cluster_hooks import reasons, submit, trail, until

from slurm_ext.lab import process
from slurm_ext.lab.cluster import Lab
from slurm_ext.slurm import ledger

COUNT = 24
LIMIT = 2


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab of many nodes with the gate alone, and no budget for first jobs since boot."""
    with installed(new_lab, "b", nodes=COUNT) as lab:
        configure(lab, "mode", burnin="off")
        # Of 24 nodes 1 % is none: it is the other limit that counts.
        configure(lab, "drain", max_per_hour=LIMIT, max_percent_per_hour=1.0, first_boot_budget=0)
        yield lab


@pytest.fixture(autouse=True)
def whole(site: Lab) -> Iterator[None]:
    """Put everything back after each test, the ledger too."""
    before = config_path(site).read_text()
    yield
    put_back(site, before)
    for path in site.path("share", "ledger").glob("*.json"):
        path.unlink()


def in_trails(lab: Lab, event: str) -> list[dict]:
    found = []
    for node in lab.nodes:
        path = lab.path("share", "nodes", node, "events.jsonl")
        lines = path.read_text().splitlines() if path.exists() else []
        found += [line for line in map(json.loads, lines) if line["event"] == event]
    return found


@pytest.mark.parametrize("controlled", [True, False], ids=["controller", "no controller"])
def test_all_nodes_fail_at_once_with_a_job_each(site: Lab, controlled: bool) -> None:
    if controlled:
        start(site)
    else:
        assert not process.kill([found.pid for found in controllers(site)], number=signal.SIGTERM, timeout_s=240)
        site.path("share", "controller", "heartbeat.json").unlink(missing_ok=True)
    before = len(in_trails(site, "breaker.open"))
    for node in site.nodes:
        site.fault(node, "ecc", gpu=1)
    jobs = {str(number): submit(site, "echo ran\n", "-N1", "--exclusive")[0] for number in range(COUNT)}
    until(lambda: all(restarts(site, job) == 1 for job in jobs.values()), "all jobs are back", timeout_s=240)
    until(lambda: not hooks_running(site), "all hooks have ended")
    # Just as many as are allowed are out, all for our reason, and none through an exit code that nobody entered.
    out = reasons(site)
    assert len(out) == LIMIT
    assert all(reason.startswith("fmslurm: gpu.ecc-uncorrected gpu:1: ") for reason in out.values())
    entries = ledger.entries(str(site.path("share")))
    assert entries is not None
    assert {entry.node for entry in entries} == set(out)
    # One page, and the list of those that are bad and in use.
    assert len(in_trails(site, "breaker.open")) == before + 1
    listed = json.loads(fmslurm(site, "status", "--json"))["breaker"]
    assert listed["open"] is True
    assert {one["node"] for one in listed["suppressed"]} == set(site.nodes) - set(out)

    # Nobody's job is lost: it waits, and may not come to the node again that failed for it.
    def kept_away() -> list[set[str]]:
        return [names(site, shown(site, job, "ExcNodeList").replace("(null)", "")) for job in jobs.values()]

    until(lambda: sum(bool(nodes) for nodes in kept_away()) >= COUNT - LIMIT, "all are kept away")
    # Repaired, the nodes run them all.
    for node in site.nodes:
        site.heal(node)
    for job in jobs.values():
        site.run(["scontrol", "update", f"jobid={job}", "StartTime=now+4"])
    for job in jobs.values():
        finish(site, job, timeout_s=240)


def test_one_job_of_many_nodes_that_all_fail(site: Lab) -> None:
    """Its hooks stop it once; a controller keeps it away from those that stay in use."""
    start(site)
    bad = site.nodes[:6]
    for node in bad:
        site.fault(node, "ecc", gpu=1)
    job, _ = submit(site, "echo ran\n", "-N6")
    until(lambda: restarts(site, job) == 1, "the job is back")
    until(lambda: not hooks_running(site), "all hooks have ended")
    out = reasons(site)
    assert len(out) == LIMIT
    assert set(out) <= set(bad)
    finish(site, job, timeout_s=240)
    ran_on = names(site, shown(site, job, "NodeList"))
    assert not ran_on & set(bad)
    assert {node for node in bad if trail(site, node, job, "node.drain")} == set(bad)
