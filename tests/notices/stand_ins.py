"""Real receivers on loopback, in whatever mood a test wants, and programs that stand in for a site's own."""

from __future__ import annotations

import http.server
import json
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ENOUGH_S = 60.0


class Receiver:
    """An HTTP server that keeps what it is sent, and answers as `mood` says: a status, or one of the words below."""

    def __init__(self, mood: object = 200, *, tls: tuple[str, str] | None = None) -> None:
        self.mood = mood
        self.headers: dict[str, str] = {}
        self.said = b"ok"
        self.got: list[dict[str, Any]] = []
        self.posts: list[tuple[str, dict[str, str], bytes]] = []
        self.over = threading.Event()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.answer(self)

            def log_message(self, *_words: object) -> None:
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_about: object) -> None:
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.secure = tls is not None
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http{'s' if self.secure else ''}://127.0.0.1:{self.port}/services/sEcReTsEcReT"

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.thread.join(ENOUGH_S)
        self.server.server_close()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        self.posts.append((request.path, dict(request.headers), body))
        if request.headers["Content-Type"] == "application/json":
            self.got.append(json.loads(body))
        if self.mood == "hang":
            self.over.wait(ENOUGH_S)
            return
        if self.mood == "close":
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        request.send_response(self.mood if isinstance(self.mood, int) else 200)
        for name, value in self.headers.items():
            request.send_header(name, value)
        if self.mood == "endless":
            request.end_headers()
            while not self.over.is_set():
                request.wfile.write(b"x" * 65536)
            return
        if self.mood == "drops":
            request.send_header("Content-Length", "1000000")
            request.end_headers()
            while not self.over.wait(0.05):
                request.wfile.write(b"x")
                request.wfile.flush()
            return
        request.send_header("Content-Length", str(len(self.said)))
        request.end_headers()
        request.wfile.write(self.said)


@contextmanager
def receiver(mood: object = 200, *, tls: tuple[str, str] | None = None) -> Iterator[Receiver]:
    made = Receiver(mood, tls=tls)
    try:
        yield made
    finally:
        made.close()


SNS_ANSWER = b"""<PublishResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><PublishResult>
<MessageId>94f20ce6-13c5-43a0-9a9e-ca52d816e90b</MessageId></PublishResult>
<ResponseMetadata><RequestId>f187a3c1-376f-11df-8963-01868b7c937a</RequestId></ResponseMetadata></PublishResponse>"""

SNS_REFUSAL = b"""<ErrorResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><Error><Type>Sender</Type>
<Code>AuthorizationError</Code><Message>User is not authorized to perform: SNS:Publish</Message></Error>
<RequestId>f187a3c1-376f-11df-8963-01868b7c937a</RequestId></ErrorResponse>"""


def fields(post: tuple[str, dict[str, str], bytes]) -> dict[str, str]:
    """Return the fields of a call in AWS's query protocol."""
    return {name: values[0] for name, values in urllib.parse.parse_qs(post[2].decode()).items()}


def program(path: Path, body: str) -> Path:
    """Write a program of root's."""
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(0o755)
    return path


def until(is_so: Any, what: str, *, timeout_s: float = ENOUGH_S) -> None:
    give_up = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < give_up, f"not so within {timeout_s:g} s: {what}"
        time.sleep(0.02)
