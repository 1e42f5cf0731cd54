"""Floors from a survey, and the job of a step."""

from __future__ import annotations

import pytest

from slurm_ext.burnin import floors
from slurm_ext.burnin.step import job_of_step
from slurm_ext.config.model import Settings
from slurm_ext.errors import UsageError


def rounds(*groups: tuple[str, float | None]) -> dict[str, object]:
    return {
        "nodes": ["a", "b", "c", "d"],
        "rounds": [
            {"kind": kind, "groups": [{"nodes": ["a", "b"], "outcome": "ok" if speed else "slow", "busbw_gbs": speed}]}
            for kind, speed in groups
        ],
    }


def test_floors_are_the_slowest_over_the_gap() -> None:
    measured = rounds(("all", 0.3), ("pairs", 0.9), ("pairs", 0.6))
    assert floors.from_survey(measured) == {"busbw_gbs": 0.1, "pair_busbw_gbs": 0.2}
    assert floors.from_survey(measured, gap=1.0) == {"busbw_gbs": 0.3, "pair_busbw_gbs": 0.6}


def test_two_nodes_are_a_pair() -> None:
    measured = rounds(("all", 0.3)) | {"nodes": ["a", "b"]}
    assert floors.from_survey(measured) == {"pair_busbw_gbs": 0.1}


def test_no_floor_by_a_group_that_failed() -> None:
    with pytest.raises(ValueError, match="slow"):
        floors.from_survey(rounds(("all", 0.3), ("pairs", None)))


STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NODELIST": "n[01-03]",
    "SLURMD_NODENAME": "n02",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURM_CLUSTER_NAME": "lab",
    "SLURM_RESTART_COUNT": "1",
}


def test_a_step_is_a_job_of_its_own() -> None:
    job = job_of_step(STEP, Settings(), gpus=0, instance_type="p5.48xlarge", uid=0)
    assert (job.key, job.nodes, job.node, job.gpus) == ("lab/12_3-1", ("n01", "n02", "n03"), "n02", 8)


@pytest.mark.parametrize("missing", ["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURMD_NODENAME", "SLURM_GPUS_ON_NODE"])
def test_outside_a_step_it_says_what_to_do(missing: str) -> None:
    with pytest.raises(UsageError):
        job_of_step({k: v for k, v in STEP.items() if k != missing}, Settings(), gpus=0, instance_type="", uid=0)


@pytest.mark.parametrize(
    "more", [{"SLURM_STEP_NUM_TASKS": "6"}, {"SLURM_STEP_NUM_TASKS": "2"}, {"SLURM_LOCALID": "1"}], ids=str
)
def test_a_step_with_more_or_fewer_tasks_than_nodes_is_refused(more: dict[str, str]) -> None:
    """Two agents of one node share its note and folder: two nodes came out as "8 ranks on 1 node" once."""
    with pytest.raises(UsageError, match="one on each"):
        job_of_step({**STEP, **more}, Settings(), gpus=0, instance_type="", uid=0)
    job_of_step(
        {**STEP, "SLURM_STEP_NUM_TASKS": "3", "SLURM_LOCALID": "0"}, Settings(), gpus=0, instance_type="", uid=0
    )
