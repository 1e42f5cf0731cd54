"""Fixtures of the lab's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_ext.lab import standins


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the stand-ins once; return the folder above `lib` and `bin`."""
    folder = tmp_path_factory.mktemp("standins")
    standins.build(str(folder / "lib"), str(folder / "bin"))
    return folder
