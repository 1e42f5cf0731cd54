"""Jobs that HyperPod's own auto-resume brings back: fmslurm explains them and does nothing; everything else is as ever."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_resume_controller import World
from test_resume_gate_jobs import stopped

from slurm_ext import shared
from slurm_ext.cli.why import lines
from slurm_ext.config.model import Mode, Settings
from slurm_ext.errors import SlurmError
from slurm_ext.resume import hyperpod
from slurm_ext.resume.story import why
from slurm_ext.slurm import site_policy

PLAIN = "#!/bin/bash\n#SBATCH -N4\nsrun python train.py\n"
AUTO = PLAIN.replace("srun ", "srun --auto-resume=1 ")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.settings = made.settings._replace(mode=Mode(gate="enforce", resume="enforce"))
    yield made
    for journal in made.opened:
        journal.close()


def on(world: World, site_type: str, script: str | None, *, defers: bool = True) -> None:
    """Put the job on a kind of site, with its batch script; None: Slurm does not give it."""
    world.settings = world.settings._replace(
        site=world.settings.site._replace(type=site_type),
        resume=world.settings.resume._replace(defer_to_hyperpod=defers),
    )

    def batch_script(_job: str) -> str:
        if script is None:
            raise SlurmError("Invalid job id specified")
        return script

    world.slurm.batch_script = batch_script  # type: ignore[method-assign]


TABLE: list[tuple[str, str, str | None, bool, bool]] = [
    # name, site.type, script, defer_to_hyperpod, left to HyperPod
    ("HyperPod's auto-resume", "hyperpod", AUTO, True, True),
    ("the site wants ours", "hyperpod", AUTO, False, False),
    ("a job without it", "hyperpod", PLAIN, True, False),
    ("its script cannot be read", "hyperpod", None, True, True),
    ("a flag of that name elsewhere", "plain", AUTO, True, False),
    ("ParallelCluster", "parallelcluster", AUTO, True, False),
    ("PCS", "pcs", AUTO, True, False),
]


@pytest.mark.parametrize(
    ("site_type", "script", "defers", "left"), [case[1:] for case in TABLE], ids=[case[0] for case in TABLE]
)
def test_who_brings_a_job_back(world: World, site_type: str, script: str | None, defers: bool, left: bool) -> None:
    on(world, site_type, script, defers=defers)
    world.tick()
    world.fail("NCCL WARN Call to ibv_poll_cq failed\n", culprit="n2")
    world.tick(2)
    acts = world.slurm.acts()
    assert bool(acts) != left, acts
    decision = json.loads(
        Path(shared.attempt_path(world.settings.site.share, "c/7-0", shared.DECISION_FILE)).read_text()
    )
    assert decision["dry_run"] == left
    assert (decision["rule"] == hyperpod.RULE) == left
    told = why(world.journal(), "7", {"7": world.slurm.job()}, time.time(), world.settings, None)
    text = " ".join(" ".join(lines(told)).split())
    assert ("not done: HyperPod's auto-resume acts" in text) == left
    assert ("left to HyperPod" in text) == left


def test_what_our_own_gate_stopped_is_let_go_on_hyperpod_too(world: World) -> None:
    """HyperPod knows nothing of a job that we hold."""
    on(world, "hyperpod", AUTO)
    world.tick()
    stopped(world)
    world.tick(3)
    assert world.slurm.job().priority != 0


@pytest.mark.parametrize(
    ("script", "asks"),
    [
        ("srun --auto-resume=1 train.sh", True),
        ("srun --auto-resume 1 train.sh", True),
        ('AUTO_RESUME="--auto-resume=1"\nsrun $AUTO_RESUME x', True),
        ("srun -N4 \\\n  --auto-resume='1' \\\n  x", True),
        ("srun --auto-resume=0 x", False),
        ("srun --auto-resume=10 x", False),
        ("# srun --auto-resume=1 x\nsrun x", False),
        ("srun x # --auto-resume=1", False),
        ("#SBATCH --comment=a\nsrun --no-auto-resume=1 x", False),
        ("srun x", False),
        ("", False),
        ("x" * (2 << 20) + " --auto-resume=1", False),
    ],
)
def test_what_a_script_asks_for(script: str, asks: bool) -> None:
    assert hyperpod.asks(script) == asks


@pytest.mark.parametrize(("mark", "kind"), [*site_policy.MARKS, ("", "plain")])
def test_auto_looks_for_the_marks_of_a_kind(tmp_path: Path, mark: str, kind: str) -> None:
    if mark:
        (tmp_path / "n1" / mark).parent.mkdir(parents=True)
        (tmp_path / "n1" / mark).touch()
    plain = Settings()
    auto = plain._replace(site=plain.site._replace(type="auto", root=str(tmp_path / "%n")))
    assert site_policy.kind(auto, "n1") == kind
    assert site_policy.kind(auto, "n2") == "plain"
    named = auto._replace(site=auto.site._replace(type="pcs"))
    assert site_policy.kind(named, "n1") == "pcs"
