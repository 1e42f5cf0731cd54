"""The S3 server of the tests as data, and a door before it that can be shut: what a server that is down looks like."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from slurm_ext.config.model import Settings, Tier
from slurm_ext.staging import s3

WEED = Path(sys.executable).parent / "weed"
_KEY, _SECRET, _BUCKET = "TESTKEY", "test-secret-of-loopback", "checkpoints"


class Server(NamedTuple):
    """A running S3 server: its URL, a bucket, and a credentials file."""

    endpoint: str
    bucket: str
    credentials: str

    def store(self) -> s3.Store:
        """Return a store for the bucket itself."""
        return s3.connect(Tier("s3", "s3", f"s3://{self.bucket}", self.endpoint, self.credentials), Settings())


def _free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago; all are held until all are known, so no two are the same."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextlib.contextmanager
def running(folder: Path, *, volume_mb: int = 64) -> Iterator[Server]:
    """Run SeaweedFS in `folder` on free ports of loopback, with an empty bucket, until the `with` ends; it holds 32 volumes."""
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
        str(WEED),
        "-logtostderr=true",
        "server",
        f"-dir={folder}/data",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        f"-master.volumeSizeLimitMB={volume_mb}",
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
    store, deadline = server.store(), time.monotonic() + 180
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


class Gate:
    """A TCP relay on a port of its own; while shut, connections are refused and open ones are cut."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.endpoint = f"http://127.0.0.1:{self.address[1]}"
        self.pairs: dict[socket.socket, socket.socket] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.is_open, self.closing, self.passed = True, False, 0
        self.wake, self.waker = socket.socketpair()
        self.selector.register(self.wake, selectors.EVENT_READ)
        self.thread = threading.Thread(target=self._relay, daemon=True)
        self.thread.start()

    def shut(self) -> None:
        """Cut everything and refuse what comes."""
        self.is_open = False
        self.waker.send(b"x")

    def open(self) -> None:
        """Let through again."""
        self.is_open = True

    def close(self) -> None:
        """End the relay."""
        self.closing = True
        self.waker.send(b"x")
        self.thread.join(10)

    def _drop(self, one: socket.socket) -> None:
        other = self.pairs.pop(one, None)
        for end in (one, other):
            if end is not None:
                self.pairs.pop(end, None)
                with contextlib.suppress(KeyError, ValueError):
                    self.selector.unregister(end)
                end.close()

    def _relay(self) -> None:
        while not self.closing:
            for key, _ in self.selector.select():
                source = key.fileobj
                assert isinstance(source, socket.socket)
                if source is self.wake:
                    self.wake.recv(100)
                    if not self.is_open:
                        for one in list(self.pairs):
                            self._drop(one)
                elif source is self.listener:
                    self._accept()
                elif source in self.pairs:
                    self._pass(source)
        for one in list(self.pairs):
            self._drop(one)
        for end in (self.listener, self.wake, self.waker):
            end.close()
        self.selector.close()

    def _accept(self) -> None:
        client, _ = self.listener.accept()
        if not self.is_open:
            client.close()
            return
        server = socket.create_connection(self.target)
        self.pairs[client], self.pairs[server] = server, client
        for end in (client, server):
            self.selector.register(end, selectors.EVENT_READ)

    def _pass(self, source: socket.socket) -> None:
        try:
            content = source.recv(65536)
            if not content:
                self._drop(source)
                return
            self.passed += len(content)
            self.pairs[source].sendall(content)
        except OSError:
            self._drop(source)
