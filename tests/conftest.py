"""What holds for all tests, and what many of them need."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from slurm_ext.lab import standins

# A loaded machine makes any example slow: how long one takes says nothing here.
settings.register_profile("fmslurm", deadline=None)
settings.load_profile("fmslurm")


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the stand-ins once for all tests of a run; return the folder above `lib` and `bin`."""
    folder = tmp_path_factory.mktemp("standins")
    standins.build(str(folder / "lib"), str(folder / "bin"))
    return folder
