"""What the tests of the channel share: a munged of their own, hubs that are turned together, and what a wire carried."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from slurm_ext import channel_meeting
from slurm_ext.channel import Event, Hub

T = TypeVar("T")

MUNGED = shutil.which("munged", path="/usr/sbin:/sbin:/usr/bin:/usr/local/sbin")
LONG_S = 120.0


@contextlib.contextmanager
def own_munged() -> Iterator[str]:
    """Run a munged with a key of its own, in a folder that other users may enter: pytest's own may not be, and another
    pytest closes them again."""
    if MUNGED is None:
        pytest.skip("munge is not installed")
    folder = Path(tempfile.mkdtemp(prefix="fmslurm-munge-"))
    try:
        with munged(folder, os.urandom(128)) as path:
            yield path
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def munged(folder: Path, key: bytes, *, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a munged with this key and give its socket, in a folder that other users may enter."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    key_file = folder / "munge.key"
    key_file.write_bytes(key)
    key_file.chmod(0o600)
    path = folder / "munge.socket"
    argv = [str(MUNGED), "--foreground", "--force", f"--socket={path}", f"--key-file={key_file}"]
    argv += [f"--pid-file={folder}/pid", f"--seed-file={folder}/seed", f"--log-file={folder}/log"]
    daemon = subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **(env or {})}
    )
    try:
        deadline = time.monotonic() + LONG_S
        # Its socket is there before it listens, and the file with its pid comes after that.
        while not (listens(path) and (folder / "pid").exists() and (folder / "pid").read_text().strip()):
            assert daemon.poll() is None, "munged ended"
            assert time.monotonic() < deadline, "munged does not listen"
            time.sleep(0.02)
        yield str(path)
    finally:
        daemon.kill()
        daemon.wait(60)


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(LONG_S)
        return probe.connect_ex(str(path)) == 0


def pump(
    hubs: Sequence[Hub], until: int | Callable[[list[list[Event]]], bool], timeout_s: float = LONG_S
) -> list[list[Event]]:
    """Turn all hubs until so many events were seen, or until it says so, and return them per hub."""
    seen: list[list[Event]] = [[] for _ in hubs]
    deadline = time.monotonic() + timeout_s
    enough = until if callable(until) else lambda events: sum(map(len, events)) >= until
    while not enough(seen) and time.monotonic() < deadline:
        for index, hub in enumerate(hubs):
            seen[index] += hub.poll(0.005)
    return seen


def refusal(hub: Hub, others: Sequence[Hub] = (), timeout_s: float = LONG_S) -> str:
    """Turn the hubs until `hub` has refused one more connection, and return why."""
    before = hub.refused
    deadline = time.monotonic() + timeout_s
    while hub.refused == before and time.monotonic() < deadline:
        hub.poll(0.005)
        for other in others:
            other.poll(0)
    assert hub.refused > before, "nothing was refused"
    return hub.last_refusal


def kinds(events: Sequence[Sequence[Event]]) -> list[list[str]]:
    """Return what happened at each hub, in short."""
    return [[event.kind for event in of_hub] for of_hub in events]


def frame(content: bytes) -> bytes:
    return struct.pack("!I", len(content)) + content


class Tap:
    """Stands between two hubs, hands everything on, and keeps what went by; `change` may alter the client's bytes."""

    def __init__(self, port: int, change: Callable[[bytes], bytes] = bytes) -> None:
        self.to_server, self.to_client = bytearray(), bytearray()
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target = port
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            for source, sink, kept, change in (
                (client, server, self.to_server, self._change),
                (server, client, self.to_client, bytes),
            ):
                thread = threading.Thread(target=self._carry, args=(source, sink, kept, change), daemon=True)
                thread.start()
                self._threads.append(thread)

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket, kept: bytearray, change: Callable[[bytes], bytes]) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                kept += chunk
                sink.sendall(change(chunk))
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for sock in self._sockets:
            sock.close()


class Raw:
    """A client that greets and speaks TLS by itself, to say what no honest one says; `context` None stops at the greeting."""

    def __init__(self, port: int, greeting: bytes, context: ssl.SSLContext | None, hub: Hub) -> None:
        self._hub = hub
        self.plain = socket.create_connection(("127.0.0.1", port), timeout=LONG_S)
        self.plain.sendall(greeting)
        self.tls: ssl.SSLSocket | None = None
        self.shown = b""  # the last word of the server's greeting: by munge its challenge
        if context is not None:
            self.shown = self._turned(self._line).split()[-1]
            self.tls = self._turned(lambda: context.wrap_socket(self.plain))

    def _line(self) -> bytes:
        found = b""
        while not found.endswith(b"\n"):
            byte = self.plain.recv(1)
            assert byte, "no greeting"
            found += byte
        return found

    def _turned(self, work: Callable[[], T]) -> T:
        """Do something that waits for the server while the server's hub is turned."""
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            deadline = time.monotonic() + LONG_S
            while not future.done() and time.monotonic() < deadline:
                self._hub.poll(0.005)
            return future.result(0)

    def binding(self) -> str:
        assert self.tls is not None
        return hashlib.sha256(self.tls.getpeercert(binary_form=True) or b"").hexdigest()

    def send(self, content: bytes) -> None:
        assert self.tls is not None
        self.tls.sendall(content)

    def receive(self) -> bytes:
        tls = self.tls
        assert tls is not None
        return self._turned(lambda: tls.recv(4096))

    def close(self) -> None:
        (self.tls or self.plain).close()


def introduction(binding: str, **changed: object) -> bytes:
    """Return what b says of itself to a about the job c/1-0, with changes."""
    said = {"v": channel_meeting.VERSION, "k": "c/1-0", "f": "b", "s": binding, **changed}
    return json.dumps(said).encode()
