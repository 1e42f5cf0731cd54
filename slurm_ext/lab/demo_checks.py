"""What the demo looks up before it says that a promise was kept: in the trail, in Slurm, in files, never in an answer."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

from slurm_ext import command
from slurm_ext.events import Event
from slurm_ext.lab.stage import FMSLURM, Stage

MANIFEST = ".fmslurm-manifest.json"


def attempts(stage: Stage, name: str) -> list[Event]:
    """Return the events of one name about the demo's job, in order of time."""
    return [event for event in stage.find(name) if event.attempt.rpartition("/")[2].rpartition("-")[0] == stage.job]


def restarts(event: Event) -> str:
    """Return which start of the job an event is about, counted from 0."""
    return event.attempt.rpartition("-")[2]


def burnin_of(event: Event) -> dict[str, Any]:
    """Return the burn-in's outcome in an event of the prolog; empty where there was none."""
    found = event.data.get("burnin")
    return found if isinstance(found, dict) and "verdict" in found else {}


def passed_burnin(stage: Stage, restart: str) -> str:
    """Return in words what the burn-in of one start measured, once every node of the job has passed; else nothing."""
    rows = [e for e in attempts(stage, "gate.prolog") if restarts(e) == restart]
    found = [burnin_of(event) for event in rows]
    good = [row for row in found if row and row["verdict"] == "pass"]
    nodes = {int(str(event.data.get("nodes", 0))) for event in rows}
    if not good or nodes != {len(good)}:
        return ""
    first = good[0]
    return f"{len(good)} nodes, {first['ranks']} GPUs, {first['busbw_gbs']:.3f} GB/s bus bandwidth in {first['seconds']:.1f} s"


def leaves(stage: Stage, nodes: list[str]) -> list[str]:
    """Return the leaf switches of these nodes, as the running Slurm tells them."""
    found = json.loads(stage.run(FMSLURM, "topology", "show", "--json").stdout)
    leaf_of = {node: path[-1] for node, path in found["paths"].items()}
    return sorted({leaf_of[node] for node in nodes})


def newest_on_lustre(stage: Stage) -> int | None:
    """Return the newest step whose manifest says that it is whole on Lustre."""
    assert stage.lab is not None
    steps = [
        int(manifest.parent.name.removeprefix("step-"))
        for manifest in stage.lab.path("lustre", "checkpoints").glob(f"step-*/{MANIFEST}")
    ]
    return max(steps, default=None)


def cause(stage: Stage) -> Event | None:
    """Return the controller's first attribution of the job's death."""
    return next(iter(attempts(stage, "resume.decision")), None)


def culprits(event: Event) -> list[str]:
    """Return the nodes that an event convicts."""
    named = event.data.get("culprits")
    if isinstance(named, list):
        return [str(name) for name in named]
    return [str(name) for name in burnin_of(event).get("culprits", [])]


def burnin_conviction(stage: Stage) -> Event | None:
    """Return the first event of a prolog whose burn-in convicts a node."""
    rows = [event for event in attempts(stage, "gate.prolog") if burnin_of(event).get("culprits")]
    return rows[0]._replace(reason=burnin_of(rows[0])["reason"]) if rows else None


def restored(stage: Stage) -> None:
    """Check in the job's own log that its last start began where the newest whole checkpoint was."""
    assert stage.lab is not None
    log = stage.lab.path("lustre", "train.log").read_text(errors="replace").splitlines()
    restores = [line for line in log if ": restored step " in line]
    saved = [int(line.split()[1]) for line in log if line.startswith("step ")]
    step = int(restores[-1].split("restored step ")[1].split()[0]) if restores else 0
    stage.show.promise(
        "the job restored a whole checkpoint from the nearest tier", step > 0, restores[-1] if restores else ""
    )
    again = len([number for number in saved if number <= step]) - len({number for number in saved if number <= step})
    stage.show.promise("no step before it was computed twice", again == 0, f"{again} steps again")


def weights(stage: Stage, reference: subprocess.Popen[bytes]) -> None:
    """Compare the final weights with those of the uninterrupted run, bit for bit."""
    assert stage.lab is not None
    reference.wait(timeout=120)
    ours, theirs = stage.lab.path("lustre", "weights.npy"), stage.lab.path("reference.npy")
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "" for path in (ours, theirs)]
    kept = bool(digests[0]) and digests[0] == digests[1]
    stage.show.promise("the weights equal the uninterrupted run's bit for bit", kept, digests[0][:16] or "no weights")


def why_and_checkpoints(stage: Stage, culprit: str, slow: str) -> None:
    """Ask `why`, list the checkpoints, and read the last one back from S3."""
    assert stage.lab is not None
    stage.show.title("9. The story, as anybody may ask for it")
    told = stage.fmslurm("why", stage.job)
    for line in told.stdout.splitlines():
        stage.show.quote(line)
    kept = (
        culprit in told.stdout and slow in told.stdout and "xid-79" in told.stdout.lower().replace("xid 79", "xid-79")
    )
    stage.show.promise("fmslurm why tells the story with evidence", kept)
    folder = str(stage.lab.path("lustre", "checkpoints"))
    last = newest_on_lustre(stage)
    listing = stage.wait("the last checkpoint to be whole on S3", lambda: _on_s3(stage, folder, last), 90)
    for line in stage.fmslurm("ckpt", "list", "--run", "demo", "--dir", folder).stdout.splitlines():
        stage.show.quote(line)
    stage.show.promise("fmslurm ckpt list shows where each checkpoint lies", bool(listing))
    # The nearest copy is lost: what comes back can only come from S3.
    whole = stage.lab.path("lustre", "checkpoints", f"step-{last}")
    aside = whole.rename(stage.lab.path("lustre", "aside"))
    stage.show.say(f"step {last} is taken away from Lustre")
    stage.fmslurm("ckpt", "restore", "--run", "demo", "--dir", folder, "--step", str(last))
    same = _same_files(aside, whole)
    stage.show.promise(
        "S3 holds the last checkpoint, whole", same > 0, f"step {last}: {same} files came back and are the same"
    )


def _on_s3(stage: Stage, folder: str, step: int | None) -> bool:
    arguments = ("ckpt", "list", "--run", "demo", "--dir", folder, "--json")
    result = stage.run(FMSLURM, *arguments, check=False)
    try:
        rows = json.loads(result.stdout)["checkpoints"]
    except (ValueError, KeyError):
        return False
    return any(row["step"] == step and row["tiers"].get("s3") == "whole" for row in rows)


def _same_files(wanted: Path, found: Path) -> int:
    """Return how many files are in both folders with the same bytes; 0 where any differs or is missing."""
    names = [path.relative_to(wanted) for path in wanted.rglob("*") if path.is_file() and path.name[0] != "."]
    same = [(found / name).is_file() and (found / name).read_bytes() == (wanted / name).read_bytes() for name in names]
    return len(names) if names and all(same) else 0


def explain(stage: Stage) -> None:
    """Where the story broke, print what a person would look at next."""
    if stage.lab is None:
        return
    lines = []
    for argv in (["squeue", "-t", "all"], ["sinfo", "-N", "-o", "%N %T %E"]):
        result = command.run(argv, timeout_s=15, env=stage.env())
        lines += (result.stdout or result.words()).splitlines()
    log = stage.lab.path("lustre", "train.log")
    if log.exists():
        lines += log.read_text(errors="replace").splitlines()[-15:]
    recent = sorted(stage.trail(), key=lambda event: event.time)[-15:]
    lines += [f"{e.time} {e.event} {e.node} {e.job} {e.phase} {e.decision} {e.reason}" for e in recent]
    for line in lines:
        stage.show.quote(line, "dim")
