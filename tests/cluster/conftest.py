"""Fixtures for tests on a real Slurm: one lab of eight nodes for the whole run, taken down whatever happens."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_controller import BareController

from slurm_ext.lab import daemons
from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.model import LabOptions
from slurm_ext.slurm.model import Version
from slurm_ext.slurm.versions import parse_version


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder `cluster`, so that nobody can forget it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def new_lab() -> type[Lab]:
    """Return the Lab class, for tests that bring up labs of their own; skips where a lab cannot be."""
    if lacking := daemons.missing():
        pytest.skip(f"no lab here: it needs {', '.join(lacking)}")
    return Lab


@pytest.fixture(scope="module")
def version() -> Version:
    """Return the version of the Slurm that is here; skips where there is none."""
    if lacking := daemons.missing():
        pytest.skip(f"no Slurm here: it needs {', '.join(lacking)}")
    found = parse_version(daemons.slurm_version()[1])
    assert found is not None
    return found


@pytest.fixture(scope="module")
def controller(version: Version) -> Iterator[BareController]:
    """Return a slurmctld alone, for the tests of one file."""
    with tempfile.TemporaryDirectory(prefix="fmtopo-", dir="/var/tmp") as folder, BareController(Path(folder)) as made:
        yield made


@pytest.fixture(scope="session")
def lab(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab of eight nodes with GPUs, two leaf switches and S3; shared by all tests, so heal what you break."""
    with tempfile.TemporaryDirectory(prefix="fmlab-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)  # jobs of any user pass through
        # Ctrl-C during `up` is cleaned by `up` itself, afterwards by the finalizer.
        made = new_lab.up(LabOptions(dir=f"{folder}/lab", ready=True, s3="background"), print)
        try:
            yield made
        finally:
            made.down()


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Return a folder whose path is short enough for a lab's sockets, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="fmlab-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
