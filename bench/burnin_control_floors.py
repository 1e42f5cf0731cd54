"""What the burn-in's control plane cannot undercut on a machine: its bytes over plain sockets, its TLS handshakes in memory."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable

from slurm_ext.credential import Authenticator

#: What one node and the leader say to each other, in bytes: hello, order and id, report, verdict.
SIZES = ((False, 90), (True, 510), (False, 1050), (True, 900))


def bare(count: int) -> float:
    """Return the wall time (s) of the same bytes over plain sockets: connect, then each message in turn for all nodes."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=4096))
        started = time.perf_counter()
        pairs = []
        for _ in range(count - 1):
            client = stack.enter_context(socket.create_connection(listener.getsockname()))
            server, _ = listener.accept()
            pairs.append((stack.enter_context(server), client))
        for from_server, size in SIZES:
            content = b"x" * size
            for pair in pairs:
                pair[not from_server].sendall(content)
            for pair in pairs:
                left = size
                while left:
                    left -= len(pair[from_server].recv(left))
        return time.perf_counter() - started


def handshakes(prove: Callable[[], Authenticator], count: int) -> tuple[float, float]:
    """Return the wall time (s) of so many TLS handshakes in memory, both sides, and the CPU time (s) of the server's side."""
    ours, theirs = prove(), prove()
    server = ours.side(server=True, theirs=ours.ids()).context
    client = theirs.side(server=False, theirs=theirs.ids()).context
    kept, cpu = [], 0.0
    started = time.perf_counter()
    for _ in range(count - 1):
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        node = client.wrap_bio(to_client, to_server)
        with contextlib.suppress(ssl.SSLWantReadError):
            node.do_handshake()
        before = time.process_time()
        leader = server.wrap_bio(to_server, to_client, server_side=True)
        with contextlib.suppress(ssl.SSLWantReadError):
            leader.do_handshake()
        cpu += time.process_time() - before
        node.do_handshake()
        before = time.process_time()
        leader.do_handshake()
        cpu += time.process_time() - before
        kept.append((node, leader))  # as a leader keeps them
    return time.perf_counter() - started, cpu


def bare_python() -> float:
    """Return the wall time (s) of an interpreter that starts and ends: how fast this machine is, in one number."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)
    return time.perf_counter() - started
