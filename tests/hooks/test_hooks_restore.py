"""All nodes of a job start from one step: the first decision on the share wins, whatever a node sees itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_ext import shared
from slurm_ext.config.model import Settings, Site
from slurm_ext.hooks import restore
from slurm_ext.hooks.environment import HookJob
from slurm_ext.request import Request


def job_on(node: str, nodes: tuple[str, ...], folder: Path) -> HookJob:
    return HookJob(
        job_id="7",
        node=node,
        nodes=nodes,
        cluster="c",
        restarts=1,
        uid=os.geteuid(),
        request=Request(-1, "run", str(folder)),
    )


@pytest.fixture
def share(tmp_path: Path) -> str:
    folder = tmp_path / "share"
    (folder / "ledger").mkdir(mode=0o755, parents=True)
    return str(folder)


def test_who_sees_no_checkpoint_starts_from_the_step_that_was_decided(tmp_path: Path, share: str) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    settings = Settings(site=Site(share=share, run_dir=str(tmp_path / "run")))
    job = job_on("n2", ("n1", "n2"), folder)
    assert shared.decide_once(shared.attempt_path(share, job.attempt, "restore.json"), {"step": 40, "node": "n1"})
    told, lines = restore.exports(job, settings, share=share, staging_mode="off")
    assert (told["FMSLURM_RESTORE_DIR"], told["FMSLURM_RESUME_STEP"]) == (str(folder / "step-40"), "40")
    assert lines == [f"starts from step 40, {folder / 'step-40'}"]


def test_a_fresh_start_is_decided_for_all_nodes(tmp_path: Path, share: str) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    settings = Settings(site=Site(share=share, run_dir=str(tmp_path / "run")))
    for node in ("n1", "n2"):
        told, _ = restore.exports(job_on(node, ("n1", "n2"), folder), settings, share=share, staging_mode="off")
        assert told["FMSLURM_RESTORE_DIR"] == ""
        assert "FMSLURM_RESUME_STEP" not in told


def test_a_decision_that_cannot_be_read_is_none(tmp_path: Path, share: str) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    settings = Settings(site=Site(share=share, run_dir=str(tmp_path / "run")))
    job = job_on("n2", ("n1", "n2"), folder)
    shared.decide_once(shared.attempt_path(share, job.attempt, "restore.json"), {"step": "40; rm -rf /"})
    told, lines = restore.exports(job, settings, share=share, staging_mode="off")
    assert "FMSLURM_RESTORE_DIR" not in told
    assert "could not be decided" in lines[0]
