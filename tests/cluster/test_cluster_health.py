"""HealthCheckProgram on a real Slurm: a node is drained for its fault, comes back on proof, and else stays where it is."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from installed_lab import configure, fmslurm, installed
from test_cluster_hooks import finish, reasons, submit, until

from slurm_ext.gate import undrain
from slurm_ext.lab import hardware
from slurm_ext.lab.cluster import Lab
from slurm_ext.slurm import drain_record
from slurm_ext.slurm.drain_record import DrainRecord

ECC = "fmslurm: gpu.ecc-uncorrected gpu:3: "


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab whose slurmd run the health check every other second, which a site has it do every five minutes."""
    with installed(new_lab, "g", nodes=3) as lab:
        fmslurm(lab, "install", "--health-check")
        fragment = lab.path("etc", "slurm", "fmslurm.conf")
        text = fragment.read_text()
        assert "HealthCheckNodeState=IDLE,CYCLE" in text
        # As installed, but for its pace; CYCLE would spread the three nodes over the interval.
        fragment.write_text(
            text.replace("HealthCheckInterval=300", "HealthCheckInterval=2").replace("=IDLE,CYCLE", "=IDLE")
        )
        configure(lab, "drain", max_per_hour=1000)
        lab.restart()
        yield lab


@pytest.fixture(autouse=True)
def whole(site: Lab) -> Iterator[None]:
    yield
    for node in site.nodes:
        print(node, [(event["event"], event.get("decision"), event.get("reason")) for event in trail(site, node)])
        site.heal(node)
        instance(site, node, site.state.node(node).instance_id)
        hardware.reboot(site.root(node))
        site.run(["scontrol", "update", f"nodename={node}", "state=resume"])
        drain_record.remove(str(site.path("share")), node)
    until(lambda: not reasons(site), "nothing is drained")


def trail(lab: Lab, node: str, *names: str) -> list[dict[str, Any]]:
    path = lab.path("share", "nodes", node, "events.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if not names or line["event"] in names]


def record(lab: Lab, node: str) -> DrainRecord | None:
    return drain_record.read(str(lab.path("share")), node)


def outcomes(lab: Lab, node: str) -> list[str]:
    return [past.outcome for past in drain_record.history(str(lab.path("share")), node) or ()]


def instance(lab: Lab, node: str, instance_id: str) -> None:
    (lab.root(node) / "sys/class/dmi/id/board_asset_tag").write_text(instance_id + "\n")


def mend(lab: Lab, node: str) -> None:
    """Make a node's GPUs whole without a reboot, as a reset of them does."""
    root = lab.root(node)
    state = hardware.read_state(root)
    hardware.write_state(root, {key: value for key, value in state.items() if not key.startswith("gpu.")})


def drained(lab: Lab, node: str, kind: str, **options: Any) -> DrainRecord:
    """Let a node be drained for a fault by its own health check."""
    lab.fault(node, kind, **options)
    until(lambda: node in reasons(lab), f"{node} is drained")
    until(lambda: record(lab, node) is not None, "it is on record")
    found = record(lab, node)
    assert found is not None
    assert reasons(lab)[node] == found.reason
    return found


def stays_out(lab: Lab, found: DrainRecord, words: str) -> None:
    """Wait until the node has said of this drain why it stays out, and see that it does."""

    def said() -> bool:
        events = trail(lab, found.node, "node.stays-out")
        return any(words in one["reason"] and one["data"]["record"]["since_s"] == found.since_s for one in events)

    until(said, f"it says: {words}")
    assert found.node in reasons(lab)


def test_a_fault_drains_an_idle_node_and_its_reset_brings_it_back(site: Lab) -> None:
    node = site.nodes[0]
    found = drained(site, node, "ecc", gpu=3)
    assert found.reason.startswith(ECC)
    assert (found.step, found.owner, found.tries) == ("reset-gpu", "fmslurm gate", 1)
    assert found.instance_id == site.state.node(node).instance_id
    assert Path(found.bundle).is_dir()
    stays_out(site, found, "the gate fails here")
    mend(site, node)
    until(lambda: node not in reasons(site), f"{node} is back")
    until(lambda: record(site, node) is None, "its record is gone")
    assert "looked for again on the same boot and not found" in outcomes(site, node)[-1]
    # A job may start there again, and does.
    job, _ = submit(site, "true\n", "-N1", f"--nodelist={node}")
    finish(site, job)
    # The same finding on the same GPU again: a reset was not enough.
    again = drained(site, node, "ecc", gpu=3)
    assert (again.step, again.tries) == ("reboot", 2)
    mend(site, node)
    stays_out(site, again, "it needs a reboot")
    hardware.reboot(site.root(node))
    until(lambda: node not in reasons(site), f"{node} is back")


def test_a_lost_gpu_needs_a_reboot_to_come_back(site: Lab) -> None:
    node = site.nodes[0]
    found = drained(site, node, "gpu-lost", gpu=2)
    assert found.step == "reboot"
    mend(site, node)
    stays_out(site, found, "it needs a reboot")
    hardware.reboot(site.root(node))
    until(lambda: record(site, node) is None, "its record is gone")
    assert node not in reasons(site)
    assert "looked for again on another boot and not found" in outcomes(site, node)[-1]


def test_a_reason_that_somebody_else_set_is_kept_though_the_node_is_whole(site: Lab) -> None:
    node = site.nodes[1]
    found = drained(site, node, "ecc", gpu=3)
    done = site.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=cable tests, ada"])
    assert done.ok, done.words()
    mend(site, node)
    stays_out(site, found, "the reason is not the one we set")
    assert reasons(site)[node] == "cable tests, ada"
    # Resumed by its owner, it is nobody's, and its record is forgotten once it is old enough to be no drain that is being done.
    share = str(site.path("share"))
    assert drain_record.write(share, found._replace(since_s=found.since_s - undrain.SETTLED_S))
    site.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    until(lambda: record(site, node) is None, "its record is gone")
    assert outcomes(site, node)[-1] == "somebody resumed it"


def test_another_instance_under_the_name_voids_the_drain(site: Lab) -> None:
    node = site.nodes[1]
    found = drained(site, node, "gpu-lost", gpu=1)
    mend(site, node)
    stays_out(site, found, "it needs a reboot")
    instance(site, node, f"i-{uuid.uuid4().hex[:17]}")
    until(lambda: record(site, node) is None, "its record is gone")
    assert node not in reasons(site)
    assert "another instance (i-" in outcomes(site, node)[-1]


def test_the_first_run_of_a_slurmd_asks_nothing_and_the_node_registers(site: Lab) -> None:
    node = site.nodes[2]
    site.fault(node, "slurmd-kill")
    site.fault(node, "ecc", gpu=3)
    seen = len(trail(site, node))
    site.heal(node, "slurmd-kill")  # waits until Slurm has the node
    until(lambda: node in reasons(site), f"{node} is drained")
    news = [event for event in trail(site, node)[seen:] if event["event"].startswith(("gate.health", "node."))]
    first = next(event for event in news if event["event"] == "gate.health")
    assert first["decision"] == "drain, once this slurmd has registered"
    assert news.index(first) == 0, "before it, nothing was done"


def test_a_job_ends_a_slow_check_and_gets_the_gpus(site: Lab) -> None:
    node = site.nodes[0]
    dcgmi = site.root(node) / "usr/bin/dcgmi"
    ran = site.path("lustre", "dcgmi-ran")
    dcgmi.write_text(f"#!/bin/sh\n[ $1 = diag ] || exit 1\necho $$ >{ran}\nexec sleep 600\n")
    dcgmi.chmod(0o755)
    configure(site, "gate", slow_check="dcgm-r1", dcgm_health="off")
    try:
        until(ran.exists, "the slow check runs")
        job, out = submit(site, "echo here\n", "-N1", f"--nodelist={node}")
        finish(site, job)
        assert Path(out).read_text().count("here") == 1
        (last,) = [path for path in Path(site.dir).rglob("slow.json") if node in str(path)]
        assert json.loads(last.read_text())["outcome"] == "ended"
        assert not (last.parent / "slow-running.json").exists()
        (event,) = [one for one in trail(site, node, "gate.prolog") if one["job"] == job]
        assert event["decision"] == "pass"
        assert event["data"]["gate"]["rule"] != "dcgm.stays"
    finally:
        configure(site, "gate", slow_check="off", dcgm_health="watch")
        dcgmi.unlink()


def test_another_number_of_gpus_in_slurm_is_told_and_drains_nobody(site: Lab) -> None:
    """Slurm is asked once for each slurmd: the change is seen after its next start, as a site's own change is."""
    node, nodes = site.nodes[1], site.path("etc", "slurm", "nodes.conf")
    text = nodes.read_text()
    line = next(line for line in text.splitlines() if line.startswith(f"NodeName={node} "))
    try:
        nodes.write_text(text.replace(line, line.replace("gpu:h100:8", "gpu:h100:7")))
        site.restart()

        def told() -> list[dict[str, Any]]:
            found = trail(site, node, "gate.health")
            return [
                one for one in found if "slurm.gres-differs" in [each["id"] for each in one["data"]["gate"]["findings"]]
            ]

        until(told, "it is told")
        (finding,) = [each for each in told()[-1]["data"]["gate"]["findings"] if each["id"] == "slurm.gres-differs"]
        assert finding["evidence"] == ["Slurm hands out 7 GPUs here (Gres), nvidia-smi lists 8"]
        assert reasons(site) == {}
        assert not [one for one in trail(site, node, "node.drain") if "gres" in one["reason"]]
    finally:
        nodes.write_text(text)
        site.restart()
