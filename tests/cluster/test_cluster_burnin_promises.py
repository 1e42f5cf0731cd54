"""The gate on a real Slurm where a node is not what it was promised to be, or the job not what most jobs are."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from gated_lab import agent_of, finish, names, put_back, restarts, shown, start
from installed_lab import WELL, config_path, configure, installed
from test_cluster_hooks import read, reasons, submit, trail, until

from slurm_ext.lab import hardware
from slurm_ext.lab.cluster import Lab

#: Speed is not what is tried here: only standing still is too slow, however busy the machine is.
CRAWLING = {"floor_busbw_gbs": 0.002, "pair_floor_busbw_gbs": 0.002}

#: Our hook in a job of two nodes that it takes for one of a thousand, as Slurm writes such a list.
THOUSAND = """#!/bin/sh
SLURM_NODELIST="${{SLURM_JOB_NODELIST:-$SLURM_NODELIST}},far-[0001-0899,0901-0999]"
SLURM_JOB_NODELIST=
export SLURM_NODELIST SLURM_JOB_NODELIST
exec {hook} "$@"
"""


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab of four nodes of its own, as installed, with a controller of ours."""
    with installed(new_lab, "p") as lab:
        configure(lab, **CRAWLING)
        start(lab)
        yield lab


@pytest.fixture(autouse=True)
def whole(site: Lab) -> Iterator[None]:
    """Put everything back after each test."""
    before = config_path(site).read_text()
    yield
    put_back(site, before)


@contextlib.contextmanager
def gpus(lab: Lab, node: str, count: int) -> Iterator[None]:
    """Let a node have another number of GPUs than Slurm was told."""
    whole = hardware.read_state(lab.root(node))
    hardware.write_state(lab.root(node), {**whole, "gpus": str(count)})
    try:
        yield
    finally:
        hardware.write_state(lab.root(node), whole)


@contextlib.contextmanager
def instead(lab: Lab, node: str, name: str, content: bytes) -> Iterator[None]:
    """Let one node have another file in the place of a library."""
    if lab.state.mode != "netns":
        pytest.skip("a library of one node's own needs a mount namespace")
    library = lab.path("lib", name)
    other = lab.path("lib", f"{name}.other")
    other.write_bytes(content)
    other.chmod(0o755)
    assert lab.run(["mount", "--bind", str(other), str(library)], node=node).ok
    try:
        yield
    finally:
        lab.run(["umount", "--lazy", str(library)], node=node)
        other.unlink()


def told(lab: Lab, node: str, job: str) -> dict:
    """Return what a node's first prolog said of the burn-in of a job."""
    until(lambda: trail(lab, node, job, "gate.prolog"), f"{node} tells of job {job}")
    return trail(lab, node, job, "gate.prolog")[0]["data"].get("burnin", {})  # type: ignore[attr-defined, no-any-return]


def runs_without(lab: Lab, job: str, bad: str) -> str:
    """Wait for a job that comes back without a node, which alone is drained; return for what."""
    finish(lab, job)
    assert restarts(lab, job) >= 1  # on a busy machine more: a burn-in may end without a culprit
    assert list(reasons(lab)) == [bad]
    assert bad not in names(lab, shown(lab, job, "NodeList"))
    return reasons(lab)[bad]


def test_a_node_that_lists_a_gpu_too_few_is_drained_for_that(site: Lab) -> None:
    bad = site.nodes[1]
    with gpus(site, bad, 7):
        job, _ = submit(site, "true\n", "-N2", "--comment=fm:1;r=")
        why = runs_without(site, job, bad)
    assert why == "fmslurm: gpu.missing node: 7 of 8 GPUs of the instance type are there"


def test_where_nobody_knows_the_type_the_driver_says_which_gpu_is_not_there(site: Lab) -> None:
    bad = site.nodes[1]
    configure(site, "site", instance_type="p9.48xlarge")
    with gpus(site, bad, 7):
        job, _ = submit(site, "true\n", "-N3", "--comment=fm:1;r=")
        why = runs_without(site, job, bad)
    assert why.startswith("fmslurm: burnin.error ")
    assert "gpu 7 was promised, and the driver shows 7" in why


def test_a_driver_that_shows_fewer_gpus_than_the_node_lists_convicts_it(site: Lab) -> None:
    bad = site.nodes[1]
    # A driver that reads another description of the node: nvidia-smi goes on to list all eight.
    driver = site.path("lib", "libcuda.so.1").read_bytes()
    assert b"hardware.env" in driver
    description = site.root(bad) / hardware.STATE
    short = description.with_name("hardware.cut")
    short.write_text(description.read_text().replace("gpus=8\n", "gpus=6\n"))
    with instead(site, bad, "libcuda.so.1", driver.replace(b"hardware.env", b"hardware.cut")):
        job, _ = submit(site, "true\n", "-N3", "--comment=fm:1;r=")
        why = runs_without(site, job, bad)
    assert why.startswith("fmslurm: burnin.error ")
    assert "was promised, and the driver shows 6: 0000:53:00.0, " in why


def test_a_node_of_which_the_job_has_only_a_share_keeps_nobody_waiting(site: Lab) -> None:
    odd = site.nodes[1]
    with gpus(site, odd, 9):
        job, out = submit(site, "echo ran\n", "-N2", f"--nodelist={site.nodes[0]},{odd}")
        finish(site, job, restarted=0)
    assert reasons(site) == {}
    words = "the job has 8 of the 9 GPUs here, not the whole node"
    assert told(site, odd, job)["skipped"] == words
    assert told(site, site.nodes[0], job)["skipped"] == f"{odd}: {words}"
    assert "no burn-in: " in read(out)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"this is no library\n" * 100, "invalid ELF header"),
        (b"", "file too short"),
        ("libnvidia-ml.so.1", "it lacks ncclGetVersion"),  # a library, and another one
    ],
    ids=["text", "empty", "another"],
)
def test_a_wrong_library_on_one_node_is_named_and_drains_nobody(site: Lab, content: bytes | str, words: str) -> None:
    bad = site.nodes[1]
    configure(site, on_unknown="pass")
    file = content if isinstance(content, bytes) else site.path("lib", content).read_bytes()
    with instead(site, bad, "libnccl.so.2", file):
        job, out = submit(site, "echo ran\n", "-N3", f"--nodelist={','.join(site.nodes[:3])}")
        finish(site, job, restarted=0)
    assert reasons(site) == {}
    # Whoever is the first to let the job go says so; the others may have left the burn-in for that.
    found = [told(site, node, job) for node in site.nodes[:3]]
    assert {one.get("verdict", "unknown") for one in found} == {"unknown"}, found
    assert any("verdict" in one for one in found), found
    assert bad in json.dumps(found)
    assert words in json.dumps(found)
    assert words in read(out)


def test_a_list_of_a_thousand_names_is_read_as_slurm_writes_it(site: Lab) -> None:
    configure(site, deadline_s=20.0, rendezvous_s=4.0, late_s=0.0, on_absent="pass")
    (hook,) = site.path("etc", "hooks", "prolog.d").glob("*fmslurm*")
    aside = site.path("etc", "hooks", hook.name)
    hook.rename(aside)
    try:
        hook.write_text(THOUSAND.format(hook=aside))
        hook.chmod(0o755)
        job, out = submit(site, "echo ran\n", "-N2")
        finish(site, job, restarted=0)
    finally:
        aside.rename(hook)
    assert reasons(site) == {}
    found = next(one for node in site.nodes[:2] if "rule" in (one := told(site, node, job)))
    assert found["rule"] == "burnin.peer-absent", found
    assert found["measured"]["passed"] is True
    assert len(found["measured"]["absent"]) == 998
    assert {"far-0001", "far-0099", "far-0999"} < set(found["measured"]["absent"])
    assert "998 of 1000 nodes did not come in time: far-0001, " in json.dumps(found)
    assert "ran" in read(out)


def test_two_gates_on_one_node_at_the_same_time_do_not_meet(site: Lab) -> None:
    if site.state.mode != "netns":
        pytest.skip("whose agent is whose is known by its namespace")
    configure(site, whole_nodes_only=False, sustain_s=6.0)
    both = [
        submit(
            site, f"echo job {number}\n", "-N2", "--gpus-per-node=4", "--exclusive=user", f"-w{site.nodes[0]},{other}"
        )
        for number, other in enumerate(site.nodes[1:3])
    ]
    until(lambda: len(agent_of(site, site.nodes[0])) == 2, "both gates are there")
    for number, (job, out) in enumerate(both):
        finish(site, job, restarted=0)
        assert told(site, site.nodes[0], job)["verdict"] in WELL
        assert "2 nodes, 8 GPUs: all-reduce right" in read(out)
        assert f"job {number}\n" in read(out)
    assert reasons(site) == {}
