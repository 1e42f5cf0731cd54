"""A munged, a site's key, and hubs that are closed at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from channel_peers import MUNGED, munged

from slurm_ext import keys
from slurm_ext.channel import Hub
from slurm_ext.credential import Authenticator, MungeAuthenticator
from slurm_ext.credential_tls import KeyAuthenticator


@pytest.fixture(scope="session")
def munge_socket() -> Iterator[str]:
    """A munged of our own, with its own key, in a folder that other users may enter."""
    if MUNGED is None:
        pytest.skip("munge is not installed")
    folder = Path(tempfile.mkdtemp(prefix="fmslurm-munge-"))
    try:
        with munged(folder, os.urandom(128)) as path:
            yield path
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def key_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with one key."""
    folder = tmp_path_factory.mktemp("site") / "keys"
    keys.create(str(folder))
    return str(folder)


@pytest.fixture(scope="session")
def other_key_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with another site's key."""
    folder = tmp_path_factory.mktemp("other") / "keys"
    keys.create(str(folder))
    return str(folder)


@pytest.fixture(params=["key", "munge"])
def prove(request: pytest.FixtureRequest, key_folder: str) -> Callable[[], Authenticator]:
    """A way to make authenticators that believe each other."""
    if request.param == "key":
        return lambda: KeyAuthenticator(key_folder)
    path = request.getfixturevalue("munge_socket")
    return lambda: MungeAuthenticator(path)


@pytest.fixture
def hubs() -> Iterator[list[Hub]]:
    made: list[Hub] = []
    yield made
    for hub in made:
        hub.close()
