"""When a job gets its burn-in, and what becomes of the job, on a real Slurm: each of the cases that are not the plain one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gated_lab import names, restarts, shown
from installed_lab import WELL, config_path, configure, fmslurm, hooks_running, installed
from test_cluster_hooks import finish, read, reasons, state, submit, trail, until

from slurm_ext import shared
from slurm_ext.lab.cluster import Lab


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab of four nodes of its own, as installed."""
    with installed(new_lab, "w") as lab:
        yield lab


@pytest.fixture(autouse=True)
def whole(site: Lab) -> Iterator[None]:
    """Put back the configuration, heal every node and resume it after each test."""
    path = config_path(site)
    before = path.read_text()
    yield
    if path.read_text() != before:
        path.write_text(before)
        fmslurm(site, "config", "push")
    for node in site.nodes:
        site.heal(node)
    until(lambda: is_idle(site), "the queue is empty and no hook runs")
    for node in site.nodes:
        site.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    until(lambda: set(site.run(["sinfo", "-h", "-N", "-o", "%T"]).stdout.split()) == {"idle"}, "all nodes are idle")


def is_idle(lab: Lab) -> bool:
    # Again and again: a job that still completes behind its requeue is not cancelled by the first (22.05.8).
    lab.run(["scancel", "--user=root"])
    return not lab.run(["squeue", "-h"]).stdout.strip() and not hooks_running(lab)


def told(lab: Lab, node: str, job: str) -> dict[str, object]:
    """Return what a node's prolog said of the burn-in of a job."""
    until(lambda: trail(lab, node, job, "gate.prolog"), f"{node} tells of job {job}")
    return trail(lab, node, job, "gate.prolog")[-1]["data"].get("burnin", {})  # type: ignore[attr-defined, no-any-return]


def each(lab: Lab, job: str, *, count: int = 2) -> list[dict[str, object]]:
    last = names(lab, shown(lab, job, "NodeList"))  # on a busy machine a job may have come back
    found = [node for node in lab.nodes if node in last and trail(lab, node, job, "gate.prolog")]
    assert len(found) == count
    return [told(lab, node, job) for node in found]


def worker(lab: Lab, node: str) -> int | None:
    """Return the pid of what works for the prolog hook of a node: the child of the one that slurmd waits for."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line, environ = (entry / "cmdline").read_text(), (entry / "environ").read_bytes()
            status = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if "fmslurm-hook\0prolog" in line and lab.dir in line and f"SLURMD_NODENAME={node}\0".encode() in environ:
            parents[int(entry.name)] = int(status[1])
    hooks = [pid for pid, parent in parents.items() if parent not in parents]
    return next((pid for pid, parent in parents.items() if parent in hooks), None)


def test_a_short_time_limit_is_not_spent_on_a_burn_in(site: Lab) -> None:
    configure(site, min_time_limit_min=15)
    job, out = submit(site, "echo ran\n", "-N2", "-t", "14")
    finish(site, job)
    assert "no burn-in: a time limit of 14 min is below burnin.min_time_limit_min" in read(out)
    assert all("a time limit of 14 min" in str(one["skipped"]) for one in each(site, job))
    job, out = submit(site, "echo ran\n", "-N2", "-t", "15")
    finish(site, job)
    assert "all-reduce right" in read(out)


@pytest.mark.parametrize("may", [["normal", "strict"], ["skip"]])
def test_a_user_gets_what_the_site_allows(site: Lab, may: list[str]) -> None:
    configure(site, user_may=may, strict_sustain_s=0.5)
    jobs = {
        wish: submit(site, "true\n", "-N2", f"--comment=mine fm:1;{wish}")[0] for wish in ("b=skip", "b=strict", "o=1")
    }
    for job in jobs.values():
        finish(site, job)
    for wish in ("b=skip", "o=1"):
        assert all(("skipped" in one) == (may == ["skip"]) for one in each(site, jobs[wish]))
    assert [one["strict"] for one in each(site, jobs["b=strict"])] == [may != ["skip"]] * 2
    assert reasons(site) == {}


def test_hostile_tokens_neither_skip_nor_run_anything(site: Lab) -> None:
    marker = site.path("when-marker")
    comment = f"fm:1;b=skip;n=$(touch {marker})\nfm:1;b=`touch {marker}`\n--fm-burnin=skip fm:1;b=none;c=/../etc"
    job, _ = submit(site, "true\n", "-N2", f"--comment={comment}")
    finish(site, job)
    assert all(one["verdict"] in WELL for one in each(site, job))
    assert not marker.exists()


def test_a_pass_counts_again_on_all_nodes_or_on_none(site: Lab) -> None:
    configure(site, reuse_pass_h=6.0)

    def run(script: str = "true\n", nodes: int = 2) -> tuple[str, str]:
        job, out = submit(site, script, f"-N{nodes}")
        until(lambda: state(site, job) in ("COMPLETED", "FAILED"), f"job {job} ends")
        rules = {str(one["rule"]) for one in each(site, job, count=nodes)}
        assert len(rules) == 1, rules
        until(lambda: all(trail(site, node, job, "gate.epilog") for node in site.nodes[:2]), "the epilogs are done")
        return rules.pop(), out

    assert run()[0] == "burnin.all-nodes"
    rule, out = run()
    assert rule == "burnin.reused"
    assert "2 nodes, 16 GPUs: not measured again: they passed together 0 min ago" in read(out)
    # The second node alone has heard of something: both are tested again.
    site.fault(site.nodes[1], "gpu-xid", xid=31)
    void = site.path("nodes", site.nodes[1], "run", "burnin", "void.json")
    void.write_text(json.dumps({"schema": 1, "at": time.clock_gettime(time.CLOCK_BOOTTIME), "boot_id": "", "why": "x"}))
    assert run()[0] == "burnin.all-nodes"
    assert run(nodes=3)[0] == "burnin.all-nodes"


def test_a_heterogeneous_job_gets_local_checks_and_is_stopped_as_a_whole(site: Lab) -> None:
    script = site.path("lustre", "het.sh")
    script.write_text(f"#!/bin/bash\nsleep 30\necho finished >> {script}.out\n")
    argv = ["sbatch", "--parsable", "-o", "/dev/null", "-t", "5", "-N2", "--gpus-per-node=8", ":", "-N1"]
    bad = site.nodes[2]
    site.fault(bad, "gpu-lost", gpu=3)
    done = site.run([*argv, "--gpus-per-node=8", str(script)])
    assert done.ok, done.words()
    leader = done.stdout.strip()
    until(lambda: bad in reasons(site), f"{bad} is drained")
    assert list(reasons(site)) == [bad]
    assert reasons(site)[bad].startswith("fmslurm: gpu.lost gpu@0000:86:00: ")
    until(lambda: restarts(site, leader) == 1, "the leader of the job was sent back")
    # By the hook of the component's own node, before it failed and Slurm could leave the rest running.
    acted = trail(site, bad, leader, "job.requeue")
    assert [event["phase"] for event in acted] == ["intent", "done"]
    assert "heterogeneous" in str(told(site, site.nodes[0], leader)["skipped"])
    # Slurm starts the script when its own component has passed (DeferBatch covers that alone): it began, and was stopped.
    assert not Path(f"{script}.out").exists()
    until(
        lambda: "COMPLETING" not in site.run(["squeue", "-h", "-t", "all", "-o", "%T"]).stdout, "its epilogs are done"
    )


def test_two_gates_one_after_the_other_on_the_same_nodes(site: Lab) -> None:
    first, _ = submit(site, "true\n", "-N2", f"--nodelist={site.nodes[0]},{site.nodes[1]}")
    second, _ = submit(site, "true\n", "-N2", f"--nodelist={site.nodes[1]},{site.nodes[2]}")
    for job in (first, second):
        finish(site, job)
        assert told(site, site.nodes[1], job)["verdict"] in WELL
    assert reasons(site) == {}
    for node in site.nodes[:3]:
        folder = site.path("nodes", node, "run", "burnin")
        until(lambda folder=folder: not list(folder.glob("*-0.*")), f"nothing of a burn-in is left on {node}")


def test_who_requeues_in_the_gate_gets_one_new_attempt(site: Lab) -> None:
    for node in site.nodes[:2]:
        site.fault(node, "nccl-hang", where="init")
    configure(site, deadline_s=240.0)
    job, out = submit(site, "echo attempt $FMSLURM_ATTEMPT\n", "-N2")
    until(lambda: worker(site, site.nodes[0]), "the gate has begun")
    time.sleep(1.5)  # into the burn-in
    assert site.run(["scontrol", "requeue", job]).ok
    for node in site.nodes[:2]:
        site.heal(node)
    until(lambda: not hooks_running(site), "no hook waits for the old attempt", timeout_s=90.0)
    assert restarts(site, job) == 1
    assert reasons(site) == {}
    site.run(["scontrol", "update", f"jobid={job}", "StartTime=now+4"])
    finish(site, job)
    assert f"attempt {site.state.cluster}/{job}-1" in read(out)


def test_what_the_gate_does_can_be_asked_while_it_runs(site: Lab) -> None:
    site.fault(site.nodes[1], "nccl-hang", where="init")
    job, _ = submit(site, "true\n", "-N2")
    share, attempt = str(site.path("share")), f"{site.state.cluster}/{job}-0"
    until(lambda: shared.gate_state(share, attempt), "the gate tells")
    found = shared.gate_state(share, attempt)
    assert found is not None
    assert shared.gate_words(found, now=time.time()).startswith("burn-in: ")
    site.run(["scancel", job])


def test_the_next_node_acts_where_the_leaders_hook_dies(site: Lab) -> None:
    configure(site, deadline_s=20.0, rendezvous_s=8.0, late_s=4.0, on_unknown="requeue")
    for node in site.nodes[:3]:
        site.fault(node, "nccl-hang", where="init")
    job, out = submit(site, "echo ran\n", "-N3")
    until(lambda: worker(site, site.nodes[0]), "the gate has begun")
    time.sleep(1.0)
    pid = worker(site, site.nodes[0])
    assert pid is not None
    os.kill(pid, signal.SIGKILL)  # the hook itself lets the job pass then, as it must
    until(lambda: restarts(site, job) == 1, "the job was sent back")
    assert not Path(out).exists()
    by = [
        node
        for node in site.nodes[:3]
        if trail(site, node, job, "job.requeuehold") + trail(site, node, job, "job.requeue")
    ]
    assert len(by) == 1
    assert by != [site.nodes[0]]
    until(lambda: not hooks_running(site), "all hooks have gone")
    assert restarts(site, job) == 1
    assert reasons(site) == {}


def test_a_convicted_node_whose_hook_is_stuck_is_drained_by_another(site: Lab) -> None:
    bad = site.nodes[1]
    site.fault(bad, "nccl-wrong-result")
    job, out = submit(site, "echo ran\n", "-N4", f"--nodelist={','.join(site.nodes)}")
    until(site.path("nodes", bad, "run", "burnin", f"{job}-0.json").exists, "its agent has begun")
    pid = worker(site, bad)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # its agent goes on: it lives in a session of its own
    try:
        until(lambda: bad in reasons(site), f"{bad} is drained")
        until(lambda: restarts(site, job) == 1, "the job was sent back")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert list(reasons(site)) == [bad]
    assert reasons(site)[bad].startswith("fmslurm: burnin.")
    mark = shared.attempt_path(str(site.path("share")), f"{site.state.cluster}/{job}-0", f"acted-{bad}.json")
    # The first of the others, or on a busy machine the next: what both do is done once.
    until(lambda: shared.read_json(mark), "whoever did it says so")
    assert (shared.read_json(mark) or {})["by"] in set(site.nodes) - {bad}
    until(lambda: not hooks_running(site), "all hooks have gone")
    assert not Path(out).exists()
    assert restarts(site, job) == 1


def test_a_restart_of_slurmd_in_the_middle_of_the_gate_loses_no_job(site: Lab) -> None:
    configure(site, strict_sustain_s=6.0)
    job, _ = submit(site, "echo ran\n", "-N2", "--comment=fm:1;b=strict")
    until(lambda: worker(site, site.nodes[1]), "the gate has begun")
    time.sleep(1.0)
    site.restart(site.nodes[1])
    until(lambda: not hooks_running(site), "no hook runs")
    time.sleep(1.0)
    assert state(site, job) in ("PENDING", "RUNNING", "COMPLETED", "CONFIGURING")
    assert reasons(site) == {}


def test_a_disk_that_fills_up_in_the_gate_drains_nothing(site: Lab) -> None:
    if site.state.mode != "netns":
        pytest.skip("a full disk for one node needs a mount namespace")
    bad = site.nodes[1]
    configure(site, on_unknown="pass", rendezvous_s=8.0)
    folder = site.path("nodes", bad, "run")
    # The folder is full from before the agent begins, which is the worst that a disk can do to it.
    fill = f"mount -t tmpfs -o size=16k,mode=755 none {folder}; head -c 1m /dev/zero > {folder}/filler; true"
    assert site.run(["sh", "-c", fill], node=bad).ok
    try:
        job, out = submit(site, "echo ran\n", "-N2")
        finish(site, job)
        assert "ran" in read(out)
        assert reasons(site) == {}
        assert told(site, bad, job)["verdict"] in (*WELL, "unknown")
    finally:
        site.run(["umount", "-l", str(folder)], node=bad)
    assert subprocess.run(["mountpoint", "-q", str(folder)]).returncode != 0
