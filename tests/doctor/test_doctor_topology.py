"""Does the topology's watch look, and does Slurm have what it sees?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_ext.config.model import Settings
from slurm_ext.doctor.model import OK, WARN
from slurm_ext.doctor.topology import Watched, collect, rule
from slurm_ext.topology import memory
from slurm_ext.topology.change import Past
from slurm_ext.topology.memory import Memory


@pytest.mark.parametrize(
    ("mode", "found", "results"),
    [
        ("off", Watched(9e9), []),
        ("shadow", Watched(), []),
        ("enforce", Watched(), [("topology.watch", WARN)]),
        ("shadow", Watched(60.0), [("topology.drift", OK)]),
        ("shadow", Watched(901.0), [("topology.watch", WARN)]),
        ("enforce", Watched(60.0, 600.0), [("topology.drift", WARN)]),
        ("enforce", Watched(60.0, 0.0, True), [("topology.drift", WARN)]),
    ],
)
def test_what_doctor_says_of_the_watch(mode: str, found: Watched, results: list[tuple[str, str]]) -> None:
    settings = Settings()
    settings = settings._replace(mode=settings.mode._replace(topology=mode))
    said = list(rule(settings, found))
    assert [(one.id, one.state) for one in said] == results
    assert all(one.remedy for one in said if one.state == WARN)


def test_what_the_watch_left_is_found(tmp_path: Path) -> None:
    settings = Settings()
    settings = settings._replace(site=settings.site._replace(state_dir=str(tmp_path)))
    assert collect(settings) == Watched()
    memory.looked(settings, Memory(Past(differs="d", differs_since=1.0)))
    found = collect(settings)
    assert found.looked_s is not None
    assert found.looked_s < 3600
    assert found.differs_s > 1e9
    os.utime(tmp_path / "topology.json", (1.0, 1.0))
    assert (collect(settings).looked_s or 0) > 1e9
    memory.looked(settings, Memory(Past(differs="d", differs_since=1.0)))
    assert (collect(settings).looked_s or 0) < 3600
