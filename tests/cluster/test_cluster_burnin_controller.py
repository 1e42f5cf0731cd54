"""The controller's share of the gate on a real Slurm: who is cancelled in it, who is suspect, absent, held, late or stuck."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed_lab import config_path, configure, fmslurm, installed
from test_cluster_hooks import hooks_running, read, reasons, state, submit, trail, until

from slurm_ext import shared
from slurm_ext.lab import process
from slurm_ext.lab.cluster import Lab

CHECKOUT = Path(__file__).resolve().parents[2]

#: Sleeps before our hook (Slurm runs the files of the folder from z to a) for as long as the node's file says.
LATE = """#!/bin/sh
read -r wait 2>/dev/null <"{lab}/late-$SLURMD_NODENAME" && exec sleep "$wait"
exit 0
"""

#: The daemon, with a gate that counts as stuck after so many seconds; all else is the real thing.
IMPATIENT = """
import sys
sys.path.insert(0, sys.argv[2])
from slurm_ext.resume import daemon, gates
gates.SLACK_S, gates.longest_s = 0.0, lambda _settings, _nodes: {stuck_s}
sys.exit(daemon.main(["--config", sys.argv[1]]))
"""


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab of four nodes of its own, as installed, with a controller of ours."""
    with installed(new_lab, "c") as lab:
        late = lab.path("etc", "hooks", "prolog.d", "zz-late")
        late.write_text(LATE.format(lab=lab.dir))
        late.chmod(0o755)
        start(lab)
        yield lab


@pytest.fixture(autouse=True)
def whole(site: Lab) -> Iterator[None]:
    """Put back the configuration, heal every node and resume it after each test."""
    path = config_path(site)
    before = path.read_text()
    yield
    for job in site.run(["squeue", "-h", "-t", "all", "-o", "%A"]).stdout.split()[:3]:
        print(site.run([sys.executable, "-m", "slurm_ext.cli", "why", job]).stdout)  # shown where the test failed
        print(site.run(["scontrol", "show", "job", job]).stdout)
    for node in site.nodes:
        site.path(f"late-{node}").unlink(missing_ok=True)
    site.run(["scancel", "--user=root"])
    if path.read_text() != before:
        path.write_text(before)
        fmslurm(site, "config", "push")
    for node in site.nodes:
        site.heal(node)
    until(lambda: not site.run(["squeue", "-h"]).stdout.strip(), "the queue is empty", timeout_s=90)
    until(lambda: not hooks_running(site), "no hook runs")
    for node in site.nodes:
        site.run(["scontrol", "update", f"nodename={node}", "state=resume"])


def daemons(lab: Lab) -> list[process.Found]:
    def is_one(pid: int) -> bool:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return b"slurm_ext.resume.daemon" in line or b"gates.longest_s" in line

    return [found for found in process.marked(lab.dir) if is_one(found.pid.pid)]


def start(lab: Lab, *, stuck_s: float | None = None) -> None:
    """Start a controller, in the stead of the one that runs, and wait for its sign of life."""
    assert not process.kill([found.pid for found in daemons(lab)], number=signal.SIGTERM, timeout_s=20)
    began = time.time()
    config = str(config_path(lab))
    argv = [str(CHECKOUT / "bin" / "fmslurm-controller"), "--config", config]
    if stuck_s is not None:
        argv = [sys.executable, "-c", IMPATIENT.format(stuck_s=stuck_s), config, str(CHECKOUT)]
    lab.start("fmslurm-controller", argv)

    def lives() -> bool:
        beat = shared.heartbeat(str(lab.path("share")))
        return beat is not None and beat.time > began and beat.mode == "enforce"

    until(lives, "the controller lives")


def late(lab: Lab, node: str, seconds: float) -> None:
    """Hold up a node's next prologs, before our own hook."""
    lab.path(f"late-{node}").write_text(f"{seconds}\n")


def why(lab: Lab, job: str) -> dict:
    return json.loads(fmslurm(lab, "why", job, "--json"))


def run(lab: Lab, job: str, number: int = 0) -> dict:
    """Return one run of a job's story, empty as long as nobody has decided about it."""
    found = [one for one in why(lab, job)["runs"] if one["restarts"] == number and "decision" in one]
    return found[0] if found else {}


def shown(lab: Lab, job: str, key: str) -> str:
    words = lab.run(["scontrol", "show", "job", job]).stdout.split()
    return next((word.partition("=")[2] for word in words if word.startswith(f"{key}=")), "")


def restarts(lab: Lab, job: str) -> int:
    return int(shown(lab, job, "Restarts"))


def names(lab: Lab, hostlist: str) -> set[str]:
    return set(lab.run(["scontrol", "show", "hostnames", hostlist]).stdout.split()) if hostlist else set()


def finish(lab: Lab, job: str, *, restarted: int, timeout_s: float = 90.0) -> None:
    until(lambda: state(lab, job) in ("COMPLETED", "FAILED", "CANCELLED"), f"job {job} ends", timeout_s=timeout_s)
    assert (state(lab, job), restarts(lab, job)) == ("COMPLETED", restarted)


def completing(lab: Lab) -> bool:
    said = lab.run(["sinfo", "-h", "-N", "-o", "%T"]).stdout
    return "completing" in said or "allocated" in said or "mixed" in said


@pytest.mark.parametrize("how", ["cancelled", pytest.param("requeued", marks=pytest.mark.soak)])
def test_who_ends_a_job_in_its_gate_has_all_nodes_back_at_once(
    site: Lab, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.fault(site.nodes[3], "nccl-hang", where="init")
    configure(site, deadline_s=60.0, late_s=60.0)
    job, out = submit(site, "echo ran\n", "-N4")
    until(
        lambda: why(site, job)["gate"] and why(site, job)["gate"]["phase"] not in ("local", "waiting"), "all have met"
    )
    story = why(site, job)["gate"]
    assert story["deadline"] > time.time()
    began = time.monotonic()
    site.run(["scancel", job] if how == "cancelled" else ["scontrol", "requeue", job])
    # Nothing else would free them within the minute that the hang leaves the hooks.
    until(lambda: not completing(site), "all nodes are free", timeout_s=30)
    took_s = time.monotonic() - began
    with capsys.disabled():
        print(f"\nnote: {how} in the gate: all nodes free after {took_s:.1f} s (floor 5 s), Slurm {site.slurm_version}")
    assert not hooks_running(site)
    assert reasons(site) == {}
    assert not Path(out).exists()
    assert state(site, job) == ("CANCELLED" if how == "cancelled" else "PENDING")


def test_two_suspects_are_left_out_for_this_job_and_neither_is_drained(site: Lab) -> None:
    site.fault(site.nodes[0], "slow-link", rate="3mbit")
    job, out = submit(site, "echo ran on $SLURM_JOB_NODELIST\n", "-N2")
    until(lambda: run(site, job), "it is decided")
    site.heal(site.nodes[0])  # so that a second run which a busy machine makes too slow is no endless round
    first = run(site, job)
    assert set(first["decision"]["exclude"]) == set(site.nodes[:2]) == set(first["cause"]["suspects"])
    assert first["cause"]["culprit_nodes"] == []
    until(lambda: [step["step"] for step in run(site, job)["steps"]] == ["exclude", "release"], "both are done")
    until(lambda: len(why(site, job)["runs"]) > 1, "it starts again")
    assert names(site, why(site, job)["runs"][1]["nodes"]) == set(site.nodes[2:])
    until(lambda: state(site, job) == "COMPLETED", "it runs", timeout_s=90)
    assert reasons(site) == {}
    assert "ran on" in read(out)


def test_a_job_that_requires_the_suspects_comes_back_to_them_and_never_ends_in_bad_constraints(site: Lab) -> None:
    pair = ",".join(site.nodes[:2])
    site.fault(site.nodes[0], "slow-link", rate="3mbit")
    job, _ = submit(site, "true\n", "-N2", f"--nodelist={pair}")
    until(lambda: run(site, job), "it is decided")
    site.heal(site.nodes[0])
    until(lambda: state(site, job) == "COMPLETED", "it runs where it wanted to", timeout_s=90)
    first = run(site, job)["decision"]
    assert first["exclude"] == []
    assert "required by the job itself (--nodelist)" in first["reason"]
    assert shown(site, job, "ExcNodeList") == "(null)"
    assert reasons(site) == {}


def test_where_all_nodes_look_bad_the_job_is_held_and_why_says_what_to_do(site: Lab) -> None:
    for node in site.nodes:
        site.fault(node, "slow-link", rate="3mbit")
    job, out = submit(site, "echo ran\n", "-N4")
    until(lambda: state(site, job) == "PENDING" and why(site, job).get("held"), "it is held", timeout_s=90)
    held = why(site, job)["held"]
    assert held["until"] > time.time() + 86400
    assert any(f"scontrol release {job}" in line for line in held["how"])
    assert any("fmslurm burnin run -w" in line for line in held["how"])
    assert reasons(site) == {}
    for node in site.nodes:
        site.heal(node)
    assert site.run(["scontrol", "release", job]).ok
    until(lambda: state(site, job) == "COMPLETED", "an administrator lets it go", timeout_s=90)
    assert "ran" in read(out)


def test_a_peer_that_never_comes_costs_the_job_that_node_alone(site: Lab) -> None:
    gone = site.nodes[1]
    configure(site, deadline_s=15.0, rendezvous_s=4.0, late_s=3.0)
    late(site, gone, 40)
    job, _ = submit(site, "true\n", "-N2")
    # Slurm keeps the job COMPLETING until the late node's own prolog has come and gone.
    until(lambda: run(site, job), "it is decided", timeout_s=120)
    assert run(site, job)["decision"]["exclude"] == [gone]
    finish(site, job, restarted=1)
    assert gone not in names(site, shown(site, job, "NodeList"))
    assert reasons(site) == {}


def agent_of(lab: Lab, node: str) -> list[process.Pid]:
    holder = lab.state.node(node).holder
    assert holder is not None
    found = []
    for one in process.inside(holder):
        try:
            line = Path(f"/proc/{one.pid.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"slurm_ext.burnin.agent" in line:
            found.append(one.pid)
    return found


def test_a_peer_that_dies_in_the_middle_drains_nobody_and_the_job_comes_back(site: Lab) -> None:
    if site.state.mode != "netns":
        pytest.skip("whose agent is whose is known by its namespace")
    victim = site.nodes[1]
    configure(site, sustain_s=6.0)
    job, _ = submit(site, "true\n", "-N3")
    until(lambda: (why(site, job)["gate"] or {}).get("phase") == "all", "they measure")
    assert not process.kill(agent_of(site, victim))
    configure(site, sustain_s=0.3)
    until(lambda: run(site, job), "it is decided", timeout_s=60)
    until(lambda: state(site, job) == "COMPLETED", "it comes back", timeout_s=90)
    assert restarts(site, job) >= 1
    assert reasons(site) == {}


@pytest.mark.parametrize("policy", [pytest.param("pass", marks=pytest.mark.soak), "requeue"])
def test_a_library_that_is_not_there_is_nobodys_fault_and_the_log_says_what_was_tried(site: Lab, policy: str) -> None:
    configure(site, nccl_library="/nowhere/libnccl.so.2", on_unknown=policy)
    job, out = submit(site, "echo ran\n", "-N2")
    if policy == "requeue":
        until(lambda: run(site, job), "it is sent back")
        configure(site, nccl_library=str(site.path("lib", "libnccl.so.2")))
    finish(site, job, restarted=0 if policy == "pass" else 1)
    first = trail(site, site.nodes[0], job, "gate.prolog")[0]["data"]["burnin"]  # type: ignore[index]
    assert first.get("verdict") == "unknown", first  # type: ignore[attr-defined]
    assert "/nowhere/libnccl.so.2" in json.dumps(first)
    assert reasons(site) == {}
    if policy == "pass":
        assert "/nowhere/libnccl.so.2" in read(out)


@pytest.mark.soak  # the demo has it, and test_cluster_hooks without a controller
def test_a_node_with_a_gpu_too_few_is_convicted_alone_and_the_job_runs_elsewhere(site: Lab) -> None:
    bad = site.nodes[1]
    site.fault(bad, "gpu-lost", gpu=7)
    job, _ = submit(site, "true\n", "-N2", "--comment=fm:1;r=")
    finish(site, job, restarted=1)
    assert list(reasons(site)) == [bad]
    assert reasons(site)[bad].startswith("fmslurm: gpu.lost ")
    assert bad not in names(site, shown(site, job, "NodeList"))


def test_a_job_gets_back_the_time_that_its_gate_took(site: Lab) -> None:
    for node in site.nodes[:2]:
        late(site, node, 12)
    job, _ = submit(site, "sleep 8\n", "-N2", "-t", "2", "--comment=")
    assert shown(site, job, "TimeLimit") == "00:02:00"
    until(lambda: shown(site, job, "TimeLimit") == "00:03:00", "the limit is raised")
    assert state(site, job) == "RUNNING"
    # Once; test_resume_time_back has that it is never beyond the partition's own.
    finish(site, job, restarted=0)
    assert shown(site, job, "TimeLimit") == "00:03:00"
    (step,) = [step for one in why(site, job)["runs"] for step in one["steps"] if step["step"] == "time"]
    assert step["detail"].startswith("2 min -> 3 min: the gate took 1")


@pytest.mark.parametrize(
    ("place", "how"),
    [
        pytest.param(0, "ended", marks=pytest.mark.soak),
        (1, "ended"),
        (0, "killed"),
        pytest.param(1, "killed", marks=pytest.mark.soak),
    ],
)
def test_a_slurmd_that_restarts_during_the_prolog_strands_no_job(site: Lab, how: str, place: int) -> None:
    node = site.nodes[place]
    start(site, stuck_s=20.0)
    try:
        late(site, node, 6)
        job, _ = submit(site, "true\n", "-N2", "-t", "5")
        until(lambda: asleep(site, node) and shown(site, job, "Reason") == "Prolog", "its prolog runs")
        if how == "ended":
            site.restart(node)
        else:
            site.fault(node, "slurmd-kill")
            site.heal(node)
        site.path(f"late-{node}").unlink()
        finish_anyhow(site, job)
        if how == "killed" and site.slurm_version.startswith("26.05"):  # seen there: nothing else ends that prolog
            assert run(site, job)["cause"]["rule"] == "slurm.stuck-prolog"
    finally:
        start(site)
    assert reasons(site) == {}


def asleep(lab: Lab, node: str) -> bool:
    """Say whether a node's prolog is held up by `late`."""
    holder = lab.state.node(node).holder
    assert holder is not None
    lines = []
    for one in process.inside(holder):
        with contextlib.suppress(OSError):
            lines.append(Path(f"/proc/{one.pid.pid}/cmdline").read_bytes())
    return any(line.startswith(b"sleep\0") for line in lines)


def finish_anyhow(lab: Lab, job: str) -> None:
    """Wait for a job's good end, however often it was sent back. On 26.05.5 only the controller's watch gets it there."""
    until(lambda: state(lab, job) in ("COMPLETED", "FAILED", "CANCELLED"), f"job {job} ends", timeout_s=120)
    assert state(lab, job) == "COMPLETED"
    again = restarts(lab, job)
    print(f"\nnote: slurmd restarted in the prolog: sent back {again} times, Slurm {lab.slurm_version}")


def test_addresses_and_leaves_lie_on_the_share(site: Lab) -> None:
    share = str(site.path("share"))
    until(lambda: set(shared.addresses(share)) == set(site.nodes), "the addresses are there")
    assert shared.addresses(share) == {node.name: node.address for node in site.state.nodes}
    shown_ = site.run(["scontrol", "--oneliner", "show", "topology"]).stdout
    until(lambda: set(shared.leaves(share)) == set(site.nodes), "the leaves are there")
    assert all(leaf in shown_ for leaf in shared.leaves(share).values())
