"""The S3 server of the tests as data, and a door before it that can be shut: what a server that is down looks like."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import NamedTuple

from slurm_ext.config.model import Settings, Tier
from slurm_ext.staging import s3


class Server(NamedTuple):
    """A running S3 server: its URL, a bucket, and a credentials file."""

    endpoint: str
    bucket: str
    credentials: str

    def store(self) -> s3.Store:
        """Return a store for the bucket itself."""
        return s3.connect(Tier("s3", "s3", f"s3://{self.bucket}", self.endpoint, self.credentials), Settings())


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
