"""`fmslurm burnin run` through a job of a real Slurm, and what of it every node can read afterwards."""

from __future__ import annotations

import json
import signal
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from slurm_ext.command import Result
from slurm_ext.lab.cluster import Lab
from slurm_ext.slurm.hostlist import fold


def fmslurm(lab: Lab, *arguments: str, node: str | None = None) -> Result:
    return lab.run([sys.executable, "-m", "slurm_ext.cli", *arguments], timeout_s=240, node=node)


def test_a_run_by_hand_is_in_the_history_of_every_node_and_drains_nothing(lab: Lab, tmp_path: Path) -> None:
    nodes = lab.nodes[1:4]
    done = fmslurm(lab, "burnin", "run", fold(nodes), "--json")
    assert done.returncode == 0, done.words()
    outcome = json.loads(done.stdout)
    assert outcome["verdict"] in ("pass", "warn")
    assert outcome["busbw_gbs"] > 0
    page = tmp_path / "map.html"
    said = fmslurm(lab, "burnin", "history", "--json", "--node", nodes[0])
    data = json.loads(said.stdout)
    last = data["burnins"][-1]
    assert (last["nodes"], last["busbw_gbs"], last["leads"]) == (list(nodes), outcome["busbw_gbs"], True)
    assert [(row["nodes"], row["count"]) for row in data["map"]["rows"]] == [(nodes[0], 1)]
    assert fmslurm(lab, "burnin", "history", "--html", str(page)).ok
    text = "".join(ET.fromstring(page.read_text().removeprefix("<!DOCTYPE html>\n")).itertext())
    assert fold(nodes) in text
    share = lab.path("share", "burnin", "history")
    assert {path.name for path in share.iterdir()} >= {f"{name}.jsonl" for name in nodes}
    states = lab.run(["sinfo", "-h", "-N", "-n", fold(nodes), "-o", "%T"]).stdout.split()
    assert not [state for state in states if "drain" in state or "down" in state]


def test_a_strict_run_by_hand_reaches_the_agents(lab: Lab) -> None:
    done = fmslurm(lab, "burnin", "run", fold(lab.nodes[4:6]), "--strict", "--json")
    assert done.returncode == 0, done.words()
    assert json.loads(done.stdout)["verdict"] in ("pass", "warn")


#: Ends the command once its job waits in the queue.
END_WAITING = """
trap 'kill $child 2>/dev/null' EXIT
"$@" & child=$!
until squeue -h -t PD -o %j | grep -q '^fmslurm-burnin-'; do sleep 0.1; done
kill -TERM $child; wait $child; echo "ended with $?"
"""


def test_a_run_on_busy_nodes_that_is_ended_leaves_no_job_that_takes_them_later(lab: Lab) -> None:
    node = lab.nodes[6]
    held = lab.run(["sbatch", "--parsable", "--exclusive", f"--nodelist={node}", "-o", "/dev/null", "--wrap=sleep 300"])
    assert held.ok, held.words()
    try:
        command = [sys.executable, "-m", "slurm_ext.cli", "burnin", "run", node]
        done = lab.run(["sh", "-c", END_WAITING, "sh", *command], timeout_s=240)
        assert done.stdout.split() == ["ended", "with", str(128 + signal.SIGTERM)], done.words()
        assert "fmslurm-burnin" not in lab.run(["squeue", "-h", "-t", "PD,R", "-o", "%j"]).stdout
    finally:
        lab.run(["scancel", held.stdout.strip()])


def test_a_node_that_slurm_does_not_know_is_a_usage_error_and_starts_no_job(lab: Lab) -> None:
    before = lab.run(["scontrol", "show", "config"]).stdout
    done = fmslurm(lab, "burnin", "run", f"{lab.nodes[0]},{lab.nodes[0]}x,nosuch[08-10]")
    assert done.returncode == 2
    assert f"{lab.nodes[0]}x" in done.stderr
    assert "nosuch[08-10]" in done.stderr

    def next_job(text: str) -> str:
        return next(line for line in text.splitlines() if line.startswith("NEXT_JOB_ID"))

    assert next_job(lab.run(["scontrol", "show", "config"]).stdout) == next_job(before)
