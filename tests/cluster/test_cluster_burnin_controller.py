"""The controller's share of the gate on a real Slurm: who is cancelled in it, who is suspect, absent, held, late or stuck."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gated_lab import agent_of, finish, names, put_back, restarts, run, shown, start, why
from installed_lab import config_path, configure, hooks_running, installed
from test_cluster_hooks import read, reasons, state, submit, trail, until

from slurm_ext import shared
from slurm_ext.cli.main import main
from slurm_ext.command import call_bounded
from slurm_ext.lab import process
from slurm_ext.lab.cluster import Lab

#: Who a job is that root did not submit.
OWNER = 65534

#: Holds up a node before our hook (Slurm runs the files of the folder from z to a): for as many seconds as its file says,
#: or as long as the file is there.
LATE = """#!/bin/sh
file="{lab}/late-$SLURMD_NODENAME"
read -r wait 2>/dev/null <"$file" || exit 0
[ "$wait" = held ] || exec sleep "$wait"
while [ -e "$file" ]; do sleep 0.2; done
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
    before = config_path(site).read_text()
    yield
    for node in site.nodes:
        site.path(f"late-{node}").unlink(missing_ok=True)
    put_back(site, before)


def late(lab: Lab, node: str, wait: float | str) -> None:
    """Hold up a node's next prologs, before our own hook: for so many seconds, or `held`: until `late` is undone."""
    lab.path(f"late-{node}").write_text(f"{wait}\n")


def completing(lab: Lab) -> bool:
    said = lab.run(["sinfo", "-h", "-N", "-o", "%T"]).stdout
    return "completing" in said or "allocated" in said or "mixed" in said


@pytest.mark.parametrize("how", ["cancelled", pytest.param("requeued", marks=pytest.mark.soak)])
def test_who_ends_a_job_in_its_gate_has_all_nodes_back_at_once(
    site: Lab, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.fault(site.nodes[3], "nccl-hang", where="init")
    configure(site, deadline_s=240.0, late_s=60.0)
    job, out = submit(site, "echo ran\n", "-N4")
    until(
        lambda: why(site, job)["gate"] and why(site, job)["gate"]["phase"] not in ("local", "waiting"), "all have met"
    )
    story = why(site, job)["gate"]
    assert story["deadline"] > time.time()
    began = time.monotonic()
    site.run(["scancel", job] if how == "cancelled" else ["scontrol", "requeue", job])
    # Nothing else would free them within the minutes that the hang leaves the hooks.
    until(lambda: not completing(site), "all nodes are free", timeout_s=90.0)
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
    until(lambda: state(site, job) == "COMPLETED", "it runs")
    assert reasons(site) == {}
    assert "ran on" in read(out)


def as_user(lab: Lab, uid: int, *arguments: str) -> tuple[int, dict]:
    """Run a command of ours as a user of the controller's machine; return its exit code and what it printed as JSON."""
    importlib.import_module(f"slurm_ext.cli.{arguments[0]}")  # the user need not be able to read this checkout

    def work() -> bytes:
        os.environ["FMSLURM_CONFIG"] = str(config_path(lab))
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            code = main([*arguments])
        return json.dumps([code, json.loads(said.getvalue() or "{}")]).encode()

    code, told = json.loads(call_bounded(work, timeout_s=240) or b"[-1, {}]")
    return code, told


def test_the_owner_of_a_job_hears_what_its_gate_does_and_no_other_user(site: Lab) -> None:
    site.fault(site.nodes[1], "nccl-hang", where="init")
    job, _ = submit(site, "true\n", "-N2", f"--uid={OWNER}", f"--gid={OWNER}")
    try:

        def phase() -> str:
            return (as_user(site, OWNER, "why", job, "--json")[1].get("gate") or {}).get("phase", "")

        until(lambda: phase() not in ("", "local", "waiting"), "it tells")
        code, told = as_user(site, OWNER, "why", job, "--json")
        assert (code, told["job"], told["gate"]["waiting"]) == (0, job, [])
        assert told["gate"]["words"].startswith("burn-in: ")
        assert told["gate"]["deadline"] > time.time()
        assert as_user(site, OWNER - 1, "why", job, "--json") == (1, {}), "the same as of a job that is not there"
    finally:
        site.run(["scancel", job])


def test_a_job_that_requires_the_suspects_comes_back_to_them_and_never_ends_in_bad_constraints(site: Lab) -> None:
    pair = ",".join(site.nodes[:2])
    site.fault(site.nodes[0], "slow-link", rate="3mbit")
    job, _ = submit(site, "true\n", "-N2", f"--nodelist={pair}")
    until(lambda: run(site, job), "it is decided")
    site.heal(site.nodes[0])
    until(lambda: state(site, job) == "COMPLETED", "it runs where it wanted to")
    first = run(site, job)["decision"]
    assert first["exclude"] == []
    assert "required by the job itself (--nodelist)" in first["reason"]
    assert shown(site, job, "ExcNodeList") == "(null)"
    assert reasons(site) == {}


def test_where_all_nodes_look_bad_the_job_is_held_and_why_says_what_to_do(site: Lab) -> None:
    for node in site.nodes:
        site.fault(node, "slow-link", rate="3mbit")
    job, out = submit(site, "echo ran\n", "-N4")
    until(lambda: state(site, job) == "PENDING" and why(site, job).get("held"), "it is held", timeout_s=600.0)
    held = why(site, job)["held"]
    assert held["until"] > time.time() + 86400
    assert any(f"scontrol release {job}" in line for line in held["how"])
    assert any("fmslurm burnin run -w" in line for line in held["how"])
    assert reasons(site) == {}
    for node in site.nodes:
        site.heal(node)
    assert site.run(["scontrol", "release", job]).ok
    until(lambda: state(site, job) == "COMPLETED", "an administrator lets it go")
    assert "ran" in read(out)


def test_a_peer_that_never_comes_costs_the_job_that_node_alone(site: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    gone, there = site.nodes[1], site.nodes[0]
    configure(site, deadline_s=15.0, rendezvous_s=4.0, late_s=3.0)
    late(site, gone, "held")
    job, _ = submit(site, "true\n", "-N2")
    until(lambda: trail(site, there, job, "gate.prolog-acted"), "the other node waits no longer")
    # The other node is free at once. Slurm keeps the job itself COMPLETING until the late node's prologs have come and gone.
    until(lambda: not busy(site, there), f"{there} is free")
    assert "COMPLETING" in state(site, job)
    began = time.monotonic()
    site.path(f"late-{gone}").unlink()
    until(lambda: run(site, job), "it is decided")
    with capsys.disabled():
        print(f"\nnote: a late node lets go of a stopped job in {time.monotonic() - began:.1f} s")
    decided = run(site, job)
    assert decided["decision"]["exclude"] == [gone]
    assert f"1 of 2 nodes did not come in time: {gone}" in json.dumps(decided)
    finish(site, job, restarted=1)
    assert gone not in names(site, shown(site, job, "NodeList"))
    assert reasons(site) == {}


def busy(lab: Lab, node: str) -> bool:
    return lab.run(["sinfo", "-h", "-N", "-n", node, "-o", "%T"]).stdout.strip() != "idle"


def test_a_peer_that_dies_in_the_middle_drains_nobody_and_the_job_comes_back(site: Lab) -> None:
    if site.state.mode != "netns":
        pytest.skip("whose agent is whose is known by its namespace")
    victim = site.nodes[1]
    configure(site, sustain_s=6.0)
    job, _ = submit(site, "true\n", "-N3")
    until(lambda: (why(site, job)["gate"] or {}).get("phase") == "all", "they measure")
    assert not process.kill(agent_of(site, victim))
    configure(site, sustain_s=0.3)
    until(lambda: run(site, job), "it is decided")
    assert run(site, job)["decision"]["exclude"] == [victim]
    # Its own hook says so, or who led, whichever stops the job first.
    said = run(site, job)["cause"]["reason"]
    assert f"the agent of {victim} ended" in said or f"did not come, or went away: {victim}" in said
    finish(site, job)
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
    until(lambda: shown(site, job, "TimeLimit") != "00:02:00", "the limit is raised")
    # Once; test_resume_time_back has that it is never beyond the partition's own.
    finish(site, job, restarted=0)
    (step,) = [step for one in why(site, job)["runs"] for step in one["steps"] if step["step"] == "time"]
    found = re.match(r"2 min -> (\d) min: the gate took (\d+) s", step["detail"])
    assert found, step
    limit_min, took_s = map(int, found.groups())
    assert took_s >= 12
    assert limit_min == 2 + math.ceil(took_s / 60)
    assert shown(site, job, "TimeLimit") == f"00:0{limit_min}:00"


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
        # However often it was sent back: on 26.05.5 only the controller's watch gets it there.
        finish(site, job)
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


def test_addresses_and_leaves_lie_on_the_share(site: Lab) -> None:
    share = str(site.path("share"))
    until(lambda: set(shared.addresses(share)) == set(site.nodes), "the addresses are there")
    assert shared.addresses(share) == {node.name: node.address for node in site.state.nodes}
    shown_ = site.run(["scontrol", "--oneliner", "show", "topology"]).stdout
    until(lambda: set(shared.leaves(share)) == set(site.nodes), "the leaves are there")
    assert all(leaf in shown_ for leaf in shared.leaves(share).values())
