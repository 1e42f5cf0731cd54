"""The gate on a real Slurm where something breaks while it runs: a disk fills up, a daemon stops or dies, a link is cut."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from gated_lab import agent_of, finish, names, phase, put_back, restarts, run, shown, start
from installed_lab import WELL, config_path, configure, hooks_running, installed, own_munged
from test_cluster_hooks import read, reasons, submit, trail, until

from slurm_ext.lab import daemons, process
from slurm_ext.lab.cluster import Lab

#: Speed is not what is tried here: only standing still is too slow, however busy the machine is.
CRAWLING = {"floor_busbw_gbs": 0.002, "pair_floor_busbw_gbs": 0.002}

#: Long enough (seconds) to break something while all nodes measure together.
LONG = {"sustain_s": 6.0, "deadline_s": 40.0}

#: Puts small disks of their own in the place of a node's folders, with what is in them.
SMALL = 'for d in "$@"; do cp -a "$d" "$d.was" && mount -t tmpfs -o size=1m,mode=755 none "$d" && cp -a "$d.was/." "$d" || exit; done'
FILL = 'for d in "$@"; do head -c 2m /dev/zero >"$d/filler"; done; df "$@" | grep -c 100%'
AWAY = 'for d in "$@"; do umount --lazy "$d"; rm -r "$d.was"; done'


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab of four nodes of its own, as installed, with a controller of ours."""
    with installed(new_lab, "m") as lab:
        if lab.state.mode != "netns":
            pytest.skip("what breaks on one node alone needs namespaces")
        configure(lab, **CRAWLING, **LONG)
        start(lab)
        yield lab


@pytest.fixture(autouse=True)
def whole(site: Lab) -> Iterator[None]:
    """Put everything back after each test."""
    before = config_path(site).read_text()
    yield
    put_back(site, before)


def measuring(lab: Lab, job: str) -> None:
    """Wait until all nodes of a job measure together, and see to it that its next run is shorter."""
    until(lambda: phase(lab, job) == "all", "they measure")
    configure(lab, sustain_s=0.3)


def all_well(lab: Lab, job: str, count: int) -> bool:
    """Say whether all nodes of a job's first run, `count` of them, said that they had passed together."""
    found = [trail(lab, node, job, "gate.prolog") for node in lab.nodes]
    told = [one[0]["data"]["burnin"]["verdict"] for one in found if one]  # type: ignore[index]
    return len(told) == count and set(told) <= set(WELL)


def goes_on_without(lab: Lab, job: str, lost: str, *words: str) -> None:
    """Wait for a job that its gate stopped for a node that went: it comes back without that one, and nobody is drained."""
    until(lambda: run(lab, job), "it is decided")
    story = run(lab, job)
    assert story["decision"]["exclude"] == [lost]
    assert any(word in json.dumps(story) for word in words), story
    lab.heal(lost)
    finish(lab, job)
    assert restarts(lab, job) >= 1
    assert lost not in names(lab, shown(lab, job, "NodeList"))
    assert reasons(lab) == {}
    until(lambda: not hooks_running(lab), "no hook waits any longer")


@pytest.mark.parametrize("culprit", [False, True])
def test_disks_that_fill_up_in_the_gate_change_nobodys_verdict(site: Lab, culprit: bool) -> None:
    """Run, log and state folder of a node at once: of an innocent one, and of the one that is to be convicted."""
    full = site.nodes[1]
    folders = [str(site.path("nodes", full, name)) for name in ("run", "log", "state")]
    if culprit:
        site.fault(full, "nccl-wrong-result", gpu=3)
    assert site.run(["sh", "-c", SMALL, "sh", *folders], node=full).ok
    try:
        job, out = submit(site, "echo ran\n", "-N3", "--comment=fm:1;r=")
        until(lambda: phase(site, job) not in ("", "waiting"), "they measure")
        filled = site.run(["sh", "-c", FILL, "sh", *folders], node=full)
        assert filled.stdout.strip() == "3", filled
        finish(site, job, restarted=None if culprit else 0)
        assert not culprit or restarts(site, job) >= 1  # on a busy machine more: a burn-in may end without a culprit
    finally:
        site.run(["sh", "-c", AWAY, "sh", *folders], node=full)
    assert "ran" in read(out)
    assert list(reasons(site)) == ([full] if culprit else [])
    if culprit:
        assert reasons(site)[full].startswith("fmslurm: burnin.")
        assert f"node:{full}" in reasons(site)[full]
        assert full not in names(site, shown(site, job, "NodeList"))
    else:
        assert all_well(site, job, 3)


def test_a_slurmd_that_stands_still_in_the_gate_takes_no_part_in_it(site: Lab) -> None:
    stopped = site.nodes[1]
    pids = daemons.find(site.state, site.state.node(stopped), "slurmd")
    assert pids
    job, out = submit(site, "echo ran\n", "-N3")
    measuring(site, job)
    for pid in pids:
        os.kill(pid.pid, signal.SIGSTOP)
    try:
        until(lambda: trail(site, stopped, job, "gate.prolog"), "its gate ends all the same")
        assert not Path(out).exists()  # Slurm has not heard of that
    finally:
        for pid in pids:
            os.kill(pid.pid, signal.SIGCONT)
    finish(site, job)
    assert all_well(site, job, 3)
    assert reasons(site) == {}
    assert "all-reduce right" in read(out)


def test_a_munged_that_dies_in_the_gate_drains_nobody(site: Lab) -> None:
    victim = site.nodes[1]
    with own_munged(site, victim) as daemon:
        job, out = submit(site, "echo ran\n", "-N3")
        measuring(site, job)
        daemon.kill()
        daemon.wait(20)
        finish(site, job)
    assert reasons(site) == {}
    assert "ran" in read(out)
    # Who has met needs munge no more: what follows is signed with what they agreed upon.
    assert all_well(site, job, 3)
    assert restarts(site, job) == 0


def test_an_agent_that_stands_still_costs_the_job_that_node_alone_and_is_gone_afterwards(site: Lab) -> None:
    lost = site.nodes[1]
    job, _ = submit(site, "true\n", "-N3", "--comment=fm:1;r=")
    measuring(site, job)
    agents = agent_of(site, lost)  # and its workers, which are forked from it
    assert len(agents) > 1
    for pid in agents:
        os.kill(pid.pid, signal.SIGSTOP)
    goes_on_without(site, job, lost, f"went away: {lost}", "no sign of life")
    # It cannot see that nobody waits for it: whoever cleans up behind the job ends it.
    until(lambda: not any(process.alive(pid) for pid in agents), "nothing of it is left")


@pytest.mark.parametrize("place", [1, pytest.param(0, marks=pytest.mark.soak)])
def test_a_link_that_is_cut_in_the_gate_costs_the_job_that_node_alone(site: Lab, place: int) -> None:
    lost = site.nodes[place]
    job, _ = submit(site, "true\n", "-N3", "--comment=fm:1;r=")
    measuring(site, job)
    site.fault(lost, "cut")
    goes_on_without(site, job, lost, "went away", "no sign of life")


def test_a_node_that_dies_in_the_gate_costs_the_job_that_node_alone(site: Lab) -> None:
    lost = site.nodes[1]
    job, _ = submit(site, "true\n", "-N3", "--comment=fm:1;r=")
    measuring(site, job)
    site.fault(lost, "node-death")
    goes_on_without(site, job, lost, "went away", "no sign of life")
