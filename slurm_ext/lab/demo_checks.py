"""What the demo looks up before it says that a promise was kept: in the trail, in Slurm, in files, never in an answer."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

from slurm_ext import command
from slurm_ext.config import yaml_file
from slurm_ext.events import Event
from slurm_ext.lab.stage import CHECKPOINT_EVERY, FMSLURM, RUN, STEPS, BrokenStoryError, Stage
from slurm_ext.slurm import connect

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


def passed_burnin(stage: Stage, restart: str) -> dict[str, Any]:
    """Return the burn-in's outcome of one start, once it has passed on every node of the job; else nothing."""
    rows = [e for e in attempts(stage, "gate.prolog") if restarts(e) == restart]
    good = [found for event in rows if (found := burnin_of(event)) and found["verdict"] == "pass"]
    nodes = {int(str(event.data.get("nodes", 0))) for event in rows}
    return good[0] if good and nodes == {len(good)} else {}


def bandwidth(stage: Stage, outcome: dict[str, Any]) -> str:
    """Check that a burn-in measured a bus bandwidth above the lab's own floor, and return what it measured in words."""
    assert stage.lab is not None
    busbw_gbs, floor_gbs = outcome["busbw_gbs"] or 0.0, stage.lab.state.floors["busbw_gbs"]
    words = f"{outcome['ranks']} GPUs, {busbw_gbs:.3f} GB/s bus bandwidth in {outcome['seconds']:.1f} s"
    kept = busbw_gbs >= floor_gbs > 0
    stage.show.promise(
        "the all-reduce over the job's nodes is above the floor", kept, f"{words}, floor {floor_gbs:.3f}"
    )
    return words


def leaves(stage: Stage, nodes: list[str]) -> list[str]:
    """Return the leaf switches of these nodes, as the running Slurm tells them."""
    assert stage.lab is not None
    paths = connect(yaml_file.load(str(stage.lab.path("etc/fmslurm/fmslurm.yaml")))).topology()
    return sorted({paths[node][-1] for node in nodes})


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


def restored(stage: Stage, whole: int | None) -> None:
    """Check in the job's own log that its last start began at `whole`, the newest whole step before it, from Lustre."""
    assert stage.lab is not None
    log = stage.lab.path("lustre", "train.log").read_text(errors="replace").splitlines()
    places = [place for place, line in enumerate(log) if ": restored step " in line]
    said = log[places[-1]] if places else "nothing was restored"
    wanted = f": restored step {whole} from {stage.lab.path('lustre', 'checkpoints', f'step-{whole}')}"
    stage.show.promise("the job restored the newest whole checkpoint, from Lustre", said.endswith(wanted), said)
    cut = places[0] if places else len(log)
    before, after = (
        [int(line.split()[1]) for line in part if line.startswith("step ")] for part in (log[:cut], log[cut:])
    )
    kept = bool(before) and bool(after) and whole is not None and min(after) > whole
    seen = f"seen before: up to step {max(before, default=0)}; from {min(after, default=0)} on afterwards"
    stage.show.promise("only what came after that checkpoint was computed again", kept, seen)


def weights(stage: Stage, reference: subprocess.Popen[bytes]) -> None:
    """Compare the final weights with those of the uninterrupted run, bit for bit."""
    assert stage.lab is not None
    try:
        reference.wait(timeout=120)
    except subprocess.TimeoutExpired as exc:
        raise BrokenStoryError("the uninterrupted run does not end") from exc
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
    last = newest_on_lustre(stage) or 0
    stage.wait(
        "the last checkpoint to be whole on S3", lambda: _tiers(stage, folder).get(last, {}).get("s3") == "whole", 90
    )
    for line in stage.fmslurm("ckpt", "list", "--run", RUN, "--dir", folder).stdout.splitlines():
        stage.show.quote(line)
    found = _tiers(stage, folder)
    kept = set(found) == set(range(CHECKPOINT_EVERY, STEPS + 1, CHECKPOINT_EVERY)) and all(
        "whole" in tiers.values() for tiers in found.values()
    )
    seen = f"{len(found)} checkpoints, each whole somewhere" if kept else str(found)
    stage.show.promise("fmslurm ckpt list shows where each checkpoint lies", kept, seen)
    # The nearest copy is lost: what comes back can only come from S3.
    whole = stage.lab.path("lustre", "checkpoints", f"step-{last}")
    aside = whole.rename(stage.lab.path("lustre", "aside"))
    stage.show.say(f"step {last} is taken away from Lustre")
    stage.fmslurm("ckpt", "restore", "--run", RUN, "--dir", folder, "--step", str(last))
    same = _same_files(aside, whole)
    stage.show.promise(
        "S3 holds the last checkpoint, whole", same > 0, f"step {last}: {same} files came back and are the same"
    )


def _tiers(stage: Stage, folder: str) -> dict[int, dict[str, str]]:
    """Return for each step what `ckpt list` says of each tier."""
    result = stage.run(FMSLURM, "ckpt", "list", "--run", RUN, "--dir", folder, "--json", check=False)
    try:
        return {int(row["step"]): dict(row["tiers"]) for row in json.loads(result.stdout)["checkpoints"]}
    except (ValueError, KeyError):
        return {}


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
