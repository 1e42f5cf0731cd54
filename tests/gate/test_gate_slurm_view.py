"""What Slurm hands out against what is there: a warning, only where both are surely known."""

from __future__ import annotations

import pytest
from gpu_answers import answer

from slurm_ext.gate import slurm_view_rules, smi
from slurm_ext.gate.model import Smi
from slurm_ext.verdict import WARN

EIGHT = smi.parse_csv(answer())._replace(exit_code=0)
MIG = smi.parse_csv(answer(change={0: {"mig.mode.current": "Enabled"}}))._replace(exit_code=0)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:h100:8(S:0-1)", 8),
        ("gpu:8", 8),
        ("nvme:1,gpu:h100:4(S:0),gpu:h100:4(S:1),shard:64", 8),
        ("gpu:0", 0),
        ("gpu:h100:no_consume:8", None),
        ("gpu:h100", None),
        ("mygpu:8", None),
        ("(null)", None),
        ("", None),
        ("gpu:99999999", None),
    ],
)
def test_how_many_gpus_a_gres_has(gres: str, gpus: int | None) -> None:
    assert slurm_view_rules.gpus_in(gres) == gpus


@pytest.mark.parametrize(
    ("gpus", "told", "found", "warns"),
    [
        (8, EIGHT, (), False),
        (7, EIGHT, (), True),
        (16, EIGHT, (), True),
        (16, EIGHT, ("gpu.missing",), False),  # that is told of already
        (None, EIGHT, (), False),
        (7, None, (), False),
        (7, Smi(), (), False),
        (7, EIGHT._replace(exit_code=15), (), False),
        (7, EIGHT._replace(complete=False), (), False),
        (7, EIGHT._replace(timed_out=True), (), False),
        (56, MIG, (), False),
    ],
)
def test_a_difference_warns(gpus: int | None, told: Smi | None, found: tuple[str, ...], warns: bool) -> None:
    items = slurm_view_rules.judge(gpus, told, found)
    assert [(item.verdict, item.finding.id, item.finding.action) for item in items] == (
        [(WARN, "slurm.gres-differs", "warn")] if warns else []
    )
