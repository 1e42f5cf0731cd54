"""A node's whole way out and back on a real Slurm: drained by us, shown, acknowledged, resumed, not drained again, drained again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from installed_lab import config_path, hooks_running, installed, put_nodes_back

from slurm_ext.lab.cluster import Lab
from slurm_ext.slurm import acks, drain_record


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab of three nodes of its own with fmslurm installed."""
    with installed(new_lab, "k", nodes=3) as lab:
        yield lab


def fm(lab: Lab, *arguments: str, code: int = 0) -> str:
    """Run a command of ours in the lab, which must end with `code`, and return what it printed."""
    done = lab.run([sys.executable, "-m", "slurm_ext.cli", *arguments], timeout_s=240)
    assert done.returncode == code, done.words()
    return done.stdout + done.stderr


def data(lab: Lab, *arguments: str) -> Any:
    return json.loads(fm(lab, *arguments, "--json"))


def until(true: Callable[[], object], what: str, *, timeout_s: float = 240.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.1)


def reasons(lab: Lab) -> dict[str, str]:
    """Return each drained node's reason."""
    said = lab.run(["sinfo", "-h", "-N", "-o", "%N|%T|%E"]).stdout
    rows = [line.split("|", 2) for line in said.splitlines()]
    return {name: reason for name, how, reason in rows if how.startswith("drain")}


def submit(lab: Lab, node: str, script: str = "echo done\n") -> str:
    """Submit a job that only this node can run."""
    path = lab.path("lustre", f"job-{time.monotonic_ns()}")
    path.write_text("#!/bin/bash\n" + script)
    options = ["--gpus-per-node=8", "-t", "5", "-N1", "-w", node, "--no-requeue", "-o", f"{path}.out"]
    done = lab.run(["sbatch", "--parsable", *options, str(path)])
    assert done.ok, done.words()
    return done.stdout.strip()


def ended(lab: Lab, job: str) -> str:
    """Wait until a job has ended and return how."""
    last = ("COMPLETED", "FAILED", "CANCELLED")
    said = ""

    def over() -> bool:
        nonlocal said
        said = lab.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip()
        return said in last

    until(over, f"job {job} ends")
    return said


def trail(lab: Lab, node: str, event: str) -> list[dict[str, Any]]:
    path = lab.path("share", "nodes", node, "events.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["event"] == event]


def drained_by_us(lab: Lab, node: str) -> None:
    """Let a job on a node with a fault drain it."""
    job = submit(lab, node)
    until(lambda: node in reasons(lab), f"{node} is drained")
    lab.run(["scancel", job])
    assert reasons(lab)[node].startswith("fmslurm: gpu.ecc-uncorrected gpu:2: ")
    # Its hook ends with 1 a moment later: a node that is resumed before that is drained again, by Slurm.
    until(lambda: not hooks_running(lab), "its hook has ended")
    # slurmd would say so every 15 s, and each time Slurm would drain the node, resumed or not: the job may not be requeued.
    assert "Retrying prolog complete" not in lab.path("log", f"slurmd.{node}.log").read_text()


def put_back(lab: Lab, node: str) -> None:
    put_nodes_back(lab)
    drain_record.remove(str(lab.path("share")), node)
    acks.remove(str(lab.path("share")), node, "gpu.ecc-uncorrected")


def test_drained_shown_acknowledged_resumed_and_not_drained_again(site: Lab) -> None:
    node, share = site.nodes[0], str(site.path("share"))
    site.fault(node, "ecc", gpu=2)
    try:
        drained_by_us(site, node)
        # What it needs is told beside Slurm's own word, and the record says who drained it.
        (listed,) = data(site, "node", "list", "--ours")["nodes"]
        assert (listed["node"], listed["finding"], listed["target"]) == (node, "gpu.ecc-uncorrected", "gpu:2")
        record = drain_record.read(share, node)
        assert record is not None
        assert listed["drain"]["owner"] == record.owner == "fmslurm gate"
        shown = fm(site, "node", "show", node)
        assert "drained for        gpu.ecc-uncorrected on gpu:2" in shown
        assert f"asks for         {record.step}" in shown
        assert fm(site, "node", "list", "--ours", "-o", "node,step", "--noheader").split() == [node, record.step]
        if record.bundle:
            assert record.bundle in fm(site, "node", "evidence", node, "-o", "path", "--noheader").split()
            verdict = json.loads(fm(site, "gate", "replay", record.bundle, "--json"))
            assert verdict["verdict"] == "fail"
        # Acknowledged for the very GPU that it was drained for.
        assert "would acknowledge" in fm(
            site, "node", "ack", "gpu.ecc-uncorrected", node, "--until", "2h", "--reason", "x", "--dry-run"
        )
        assert acks.read(share, node) == ()
        fm(site, "node", "ack", "gpu.ecc-uncorrected", "-w", node, "--until", "2h", "--reason", "one old error")
        (ack,) = acks.read(share, node)
        assert (ack.target, ack.reason) == ("gpu:2", "one old error")
        fm(site, "node", "resume", node, "--reason", "checked by hand")
        assert node not in reasons(site)
        assert drain_record.read(share, node) is None
        # The same fault again: the job runs, the node stays, and the event says who acknowledged what.
        job = submit(site, node)
        assert ended(site, job) == "COMPLETED"
        assert node not in reasons(site)
        (event,) = [line for line in trail(site, node, "gate.prolog") if line["job"] == job]
        assert event["decision"] == "pass"
        (line,) = event["data"]["acked"]
        assert f"acknowledged by {ack.actor} until" in line
        assert "one old error" in event["reason"]
        assert not [line for line in trail(site, node, "node.drain") if line["job"] == job]
        # Events of what a person did name the person.
        for name in ("node.ack", "node.resume"):
            assert trail(site, node, name)[-1]["data"]["actor"]["name"] == "root"
        # What counts as an alarm.
        (rate,) = [one for one in data(site, "gate", "stats")["findings"] if one["finding"] == "gpu.ecc-uncorrected"]
        assert (rate["drains"], rate["acks"], rate["alarm_percent"]) == (1, 1, 100.0)
        # Taken back, the same fault drains.
        fm(site, "node", "unack", "gpu.ecc-uncorrected", node)
        fm(site, "node", "unack", "gpu.ecc-uncorrected", node, code=1)
        drained_by_us(site, node)
        assert [one["acks"] for one in data(site, "gate", "stats")["findings"]] == [0]
        earlier = data(site, "node", "show", node)["nodes"][0]["earlier"]
        assert "checked by hand" in earlier[-1]["outcome"]
    finally:
        put_back(site, node)


def test_an_acknowledgement_that_has_expired_drains(site: Lab) -> None:
    node, share = site.nodes[1], str(site.path("share"))
    site.fault(node, "ecc", gpu=2)
    try:
        now = time.time()
        assert acks.write(share, acks.Ack(node, "gpu.ecc-uncorrected", "gpu:2", now - 1, "known", "alice", now - 99))
        # Neither does one of another GPU, or of another finding.
        assert acks.write(share, acks.Ack(node, "gpu.ecc-uncorrected", "gpu:5", now + 999, "known", "alice", now))
        assert acks.write(share, acks.Ack(node, "gpu.lost", "*", now + 999, "known", "alice", now))
        drained_by_us(site, node)
        # Both in one: resumed and acknowledged, for a day.
        fm(site, "node", "resume", node, "--ack", code=2)
        said = fm(site, "node", "resume", node, "--ack", "--reason", "spare is ordered")
        assert "is acknowledged until" in said
        assert ended(site, submit(site, node)) == "COMPLETED"
        assert node not in reasons(site)
    finally:
        put_back(site, node)
        acks.remove(share, node, "gpu.lost")


def test_a_node_that_the_burnin_convicts_stays_in_use_while_that_is_acknowledged(site: Lab) -> None:
    bad = site.nodes[1]
    site.fault(bad, "nccl-wrong-result", gpu=3)
    try:
        fm(site, "node", "ack", "burnin.wrong", bad, "--until", "1h", "--reason", "known to count badly")
        said: list[str] = []
        for _ in range(3):  # on a busy machine a burn-in may end without a culprit
            path = site.path("lustre", f"job-{time.monotonic_ns()}")
            path.write_text("#!/bin/bash\nsrun hostname\n")
            options = ["--gpus-per-node=8", "-t", "20", "-N3", "--no-requeue", "-o", f"{path}.out"]
            job = site.run(["sbatch", "--parsable", *options, str(path)]).stdout.strip()
            # All three nodes let it start: the culprit says so before anybody stands in for it.
            how = ended(site, job)
            told = {
                one: [
                    (e["event"], e.get("decision"))
                    for n in ("gate.prolog", "gate.prolog-acted", "node.drain")
                    for e in trail(site, one, n)
                    if e.get("job") == job
                ]
                for one in site.nodes
            }
            assert (how, reasons(site)) == ("COMPLETED", {}), told
            said += [line["decision"] for line in trail(site, bad, "gate.prolog-acted") if line["job"] == job]
            if said and said[-1].startswith("passed: burnin.wrong is acknowledged by root"):
                break
        assert said
        assert said[-1].startswith("passed: burnin.wrong is acknowledged by root"), said
        assert "known to count badly" in said[-1]
        assert not [line for line in trail(site, bad, "node.drain") if line.get("job") == job]
    finally:
        fm(site, "node", "unack", "burnin.wrong", bad)
        put_back(site, bad)


def test_slurms_own_reason_for_our_prolog_is_ours_to_clear(site: Lab) -> None:
    """Where slurmctld was quicker than we, or did not answer us, the node shows its word; our record says whose drain it is."""
    node, share = site.nodes[2], str(site.path("share"))
    site.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=Prolog error"])
    try:
        assert "foreign" in fm(site, "node", "resume", node, code=1)
        record = drain_record.DrainRecord(
            node, "gpu.lost", "gpu:1", "reboot", "fmslurm: gpu.lost gpu:1: x", time.time()
        )
        assert drain_record.write(share, record)
        (listed,) = data(site, "node", "list", "--ours")["nodes"]
        assert (listed["node"], listed["finding"]) == (node, "gpu.lost")
        fm(site, "node", "resume", node, "--reason", "rebooted")
        assert node not in reasons(site)
        assert drain_record.read(share, node) is None
    finally:
        drain_record.remove(share, node)
        site.run(["scontrol", "update", f"nodename={node}", "state=resume"])


def test_a_foreign_drain_is_not_ours_to_resume_and_leaves_no_acknowledgement(site: Lab) -> None:
    node, share = site.nodes[2], str(site.path("share"))
    site.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=theirs"])
    try:
        assert "foreign" in fm(site, "node", "resume", node, "--ack", "--reason", "x", code=1)
        assert acks.read(share, node) == ()
        assert data(site, "node", "list", "--ours")["nodes"] == []
    finally:
        site.run(["scontrol", "update", f"nodename={node}", "state=resume"])


def test_without_a_share_slurms_word_is_still_shown(site: Lab) -> None:
    text = config_path(site).read_text()
    share = str(site.path("share"))
    try:
        config_path(site).write_text(text.replace(f"share: {share}", f"share: {share}-gone"))
        said = fm(site, "node", "list")
        assert site.nodes[0] in said
        assert "does not answer" in said
        assert "does not answer" in fm(site, "node", "show", site.nodes[0])
        assert "does not answer" in fm(
            site, "node", "ack", "gpu.lost", site.nodes[0], "--until", "1h", "--reason", "x", code=3
        )
    finally:
        config_path(site).write_text(text)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("node", "ack", "gpu.lost", "--until", "1h", "--reason", "x"), 2),
        (("node", "ack", "gpu.losst", "n", "--until", "1h", "--reason", "x"), 2),
        (("node", "ack", "gpu.xid-", "n", "--until", "1h", "--reason", "x"), 2),
        (("node", "ack", "gpu.lost", "nope", "--until", "1h", "--reason", "x"), 2),
        (("node", "ack", "gpu.lost", "nope", "--until", "yesterday", "--reason", "x"), 2),
        (("node", "resume"), 2),
        (("node", "resume", "nope"), 1),
        (("node", "list", "-o", "nothing"), 2),
    ],
)
def test_wrong_use(site: Lab, arguments: tuple[str, ...], code: int) -> None:
    fm(site, *arguments, code=code)
