"""DynamoDB on loopback, as far as a map of nodes needs it: Scan in pages and GetItem, in the JSON protocol."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeDynamoDb:
    """Tables: name -> rows, each key -> text. `denied`: operations that nobody may call; `throttled`: so many calls first."""

    def __init__(self) -> None:
        self.tables: dict[str, list[dict[str, str]]] = {}
        self.denied: set[str] = set()
        self.throttled = 0
        self.page = 100
        self.calls: Counter[str] = Counter()

    def answer(self, operation: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and body."""
        self.calls[operation] += 1
        if self.throttled:
            self.throttled -= 1
            return _error("ProvisionedThroughputExceededException", "slow down")
        if operation in self.denied:
            words = f"User: arn:aws:sts::1:assumed-role/head/i-1 is not authorized to perform: dynamodb:{operation}"
            return _error("AccessDeniedException", f"{words} on resource: x because no identity-based policy allows it")
        rows = self.tables.get(asked["TableName"])
        if rows is None:
            return _error("ResourceNotFoundException", "Requested resource not found")
        if operation == "GetItem":
            wanted = asked["Key"]["Id"]["S"]
            row = next((row for row in rows if row["Id"] == wanted), None)
            return 200, {"Item": _item(row)} if row else {}
        start = int(asked.get("ExclusiveStartKey", {}).get("Id", {}).get("S", "0"))
        items = [_item(row) for row in rows[start : start + self.page]]
        more = {"LastEvaluatedKey": {"Id": {"S": str(start + self.page)}}} if start + self.page < len(rows) else {}
        return 200, {"Items": items, "Count": len(items), **more}


def _item(row: dict[str, str]) -> dict[str, dict[str, str]]:
    return {key: {"S": value} for key, value in row.items()}


def _error(code: str, words: str) -> tuple[int, dict[str, Any]]:
    return 400, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": words}


@contextmanager
def running() -> Iterator[tuple[FakeDynamoDb, str]]:
    """Yield a fake and the URL where it answers."""
    fake, lock = FakeDynamoDb(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                status, body = fake.answer(self.headers["X-Amz-Target"].rpartition(".")[2], asked)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield fake, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
