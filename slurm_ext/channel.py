"""Authenticated messages between root processes of nodes: length-prefixed JSON, each message in a credential of its own.

Who may speak: uid 0 or our own effective uid, proven as `slurm_ext.credential` says. Every message names sender,
receiver, key (what the talk is about, e.g. a job attempt), session and number, so that none fits anywhere else or twice:

    client -> server   session = client nonce                    (number 0, empty body)
    server -> client   session = client nonce + server nonce     (number 0, empty body)
    then both ways     the same session, numbers 1, 2, 3 ...

The server believes a peer only after its first message under the server's own nonce. Unauthenticated connections are
few, short-lived and small, and never hold up others. Standard library only: agents of the hook path import this.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from slurm_ext.credential import AuthenticationError, Authenticator
from slurm_ext.errors import FmslurmError

VERSION = 1

#: A frame is a 4-byte length and a credential. munge itself refuses more than 1 MiB.
FRAME_MAX = 1 << 20
#: Before a peer is believed it may send no more than this, nor take longer than HANDSHAKE_S.
FRAME_MAX_STRANGER = 8 << 10
HANDSHAKE_S = 5.0
#: Strangers at once, beside the peers we expect: the oldest is dropped for the newest.
STRANGERS_MAX = 64
#: What may wait to be sent to one peer: who reads nothing for so long is gone.
BACKLOG_MAX = 8 << 20


class Event(NamedTuple):
    """What happened: `up` (a peer is believed), `message`, `down` (body: {"why": text}), `version` (a peer of ours speaks
    another version of this channel, body: {"version": what it says}), or `ready` (a file of the caller)."""

    kind: str
    peer: str = ""
    body: Mapping[str, object] = {}
    data: object = None


class _Connection:
    """One socket with its place in the handshake; `peer` is empty until the name is proven."""

    def __init__(self, sock: socket.socket, *, server: bool, peer: str, now: float) -> None:
        self.sock, self.server, self.opened = sock, server, now
        self.claimed, self.peer = peer, ""
        self.session, self.nonce = "", secrets.token_hex(12)
        self.sent = self.received = 0
        self.inbox, self.outbox = bytearray(), bytearray()


class Hub:
    """All connections of one agent in one loop, beside files of its own; nothing here blocks longer than asked."""

    def __init__(self, authenticator: Authenticator, *, me: str, key: str, peers: Collection[str]) -> None:
        """`me` is our name, `key` what the talk is about, `peers` the only names that are believed."""
        self._auth, self._me, self._key = authenticator, me, key
        self._allowed = frozenset(peers)
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._connections: set[_Connection] = set()
        self._peers: dict[str, _Connection] = {}
        self._events: list[Event] = []
        self.refused = 0
        self.last_refusal = ""

    def listen(self, address: str, port: int) -> int:
        """Listen on one address and return the port. OSError where it is taken."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(1024)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self._selector.register(listener, selectors.EVENT_READ, "listener")
        self._listener = listener
        return int(listener.getsockname()[1])

    def connect(self, peer: str, address: str, port: int) -> None:
        """Begin to connect; `up` or `down` tells how it went. A handshake that takes longer than HANDSHAKE_S is down."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        sock.setblocking(False)
        connection = _Connection(sock, server=False, peer=peer, now=time.monotonic())
        connection.session = connection.nonce
        self._adopt(connection)
        code = sock.connect_ex((address, port))
        if code not in (0, errno.EINPROGRESS):
            self._drop(connection, os.strerror(code))
            return
        self._queue(connection, {})

    def stop_listening(self) -> None:
        """Take no new connections; those that are there stay."""
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def forget(self, peer: str) -> None:
        """Close what is, or is about to be, a connection with a peer; there will be no `down` for it."""
        for connection in [c for c in self._connections if peer in (c.peer, "" if c.server else c.claimed)]:
            self._drop(connection, "forgotten", tell=False)

    def register(self, descriptor: int, data: object) -> None:
        """Watch a file of the caller's for reading; poll answers `ready` with `data`."""
        self._selector.register(descriptor, selectors.EVENT_READ, ("file", data))

    def unregister(self, descriptor: int) -> None:
        """Stop watching it."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)

    def peers(self) -> frozenset[str]:
        """Return the names of all peers that are believed now."""
        return frozenset(self._peers)

    def send(self, peer: str, body: Mapping[str, object]) -> bool:
        """Queue a message and send what the socket takes; False where the peer is not (or no longer) there."""
        connection = self._peers.get(peer)
        if connection is None:
            return False
        self._queue(connection, body)
        return peer in self._peers

    def broadcast(self, peers: Collection[str], body: Mapping[str, object]) -> None:
        """Send one message to many peers, put into words once; those that are not there miss it."""
        text = json.dumps(body, separators=(",", ":"))
        for peer in peers:
            if (connection := self._peers.get(peer)) is not None:
                self._queue(connection, text)

    def poll(self, timeout_s: float) -> list[Event]:
        """Wait at most `timeout_s` for something to happen and return it in order."""
        self._expire(time.monotonic())
        ready = self._selector.select(0 if self._events else max(timeout_s, 0.0))
        for key, mask in ready:
            if key.data == "listener":
                self._accept()
            elif isinstance(key.data, tuple):
                self._events.append(Event("ready", data=key.data[1]))
            else:
                connection: _Connection = key.data
                if mask & selectors.EVENT_WRITE:
                    self._flush(connection)
                if mask & selectors.EVENT_READ and connection in self._connections:
                    self._read(connection)
        events, self._events = self._events, []
        return events

    def flush(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until everything queued has left; what happens meanwhile stays for the next poll."""
        deadline = time.monotonic() + timeout_s
        while any(c.outbox for c in self._connections) and (left := deadline - time.monotonic()) > 0:
            self._events.extend(self.poll(min(left, 0.05)))

    def close(self) -> None:
        """Close everything."""
        for connection in list(self._connections):
            self._drop(connection, "closed", tell=False)
        if self._listener is not None:
            self._listener.close()
        self._selector.close()

    def _adopt(self, connection: _Connection) -> None:
        with contextlib.suppress(OSError):
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(connection)
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(64):
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            strangers = [c for c in self._connections if c.server and not c.peer]
            if len(strangers) >= STRANGERS_MAX + len(self._allowed):
                self._drop(min(strangers, key=lambda c: c.opened), "too many strangers")
            self._adopt(_Connection(sock, server=True, peer="", now=time.monotonic()))

    def _expire(self, now: float) -> None:
        for connection in list(self._connections):
            if not connection.peer and now - connection.opened > HANDSHAKE_S:
                self._drop(connection, "no handshake in time")

    def _drop(self, connection: _Connection, why: str, *, tell: bool = True) -> None:
        """Forget a connection; whoever was believed or sought gets a `down`, a stranger none."""
        self._connections.discard(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.sock.close()
        name = connection.peer or ("" if connection.server else connection.claimed)
        if connection.peer and self._peers.get(connection.peer) is connection:
            del self._peers[connection.peer]
        elif connection.peer:
            return  # a newer connection of the same peer has taken its place
        if not name:
            self.refused += 1
            self.last_refusal = why
        elif tell:
            self._events.append(Event("down", name, {"why": why}))

    def _queue(self, connection: _Connection, body: Mapping[str, object] | str) -> None:
        payload = {
            "v": VERSION,
            "k": self._key,
            "f": self._me,
            "t": connection.claimed,
            "s": connection.session,
            "n": connection.sent,
        }
        connection.sent += 1
        text = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"))
        try:
            sealed = self._auth.seal(f'{json.dumps(payload, separators=(",", ":"))[:-1]},"b":{text}}}'.encode())
        except FmslurmError as exc:
            self._drop(connection, str(exc))
            return
        connection.outbox += struct.pack("!I", len(sealed)) + sealed
        if len(connection.outbox) > BACKLOG_MAX:
            self._drop(connection, "reads nothing")
            return
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        while connection.outbox:
            try:
                sent = connection.sock.send(memoryview(connection.outbox)[:65536])
            except (BlockingIOError, InterruptedError):
                break
            except OSError as exc:
                if exc.errno == errno.ENOTCONN:
                    break  # still connecting
                self._drop(connection, exc.strerror or str(exc))
                return
            del connection.outbox[:sent]
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outbox else 0)
        self._selector.modify(connection.sock, mask, connection)

    def _read(self, connection: _Connection) -> None:
        try:
            chunk = connection.sock.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self._drop(connection, exc.strerror or str(exc))
            return
        if not chunk:
            self._drop(connection, "closed by the other side")
            return
        connection.inbox += chunk
        while connection in self._connections and len(connection.inbox) >= 4:
            (length,) = struct.unpack_from("!I", connection.inbox)
            if length > (FRAME_MAX if connection.peer else FRAME_MAX_STRANGER):
                self._drop(connection, f"a frame of {length} bytes")
                return
            if len(connection.inbox) < 4 + length:
                return
            sealed = bytes(connection.inbox[4 : 4 + length])
            del connection.inbox[: 4 + length]
            try:
                self._take(connection, json.loads(self._auth.open(sealed)))
            except (FmslurmError, ValueError, RecursionError) as exc:
                self._drop(connection, str(exc))

    def _take(self, connection: _Connection, payload: object) -> None:
        """Check one opened payload and act on it. Raise AuthenticationError where it does not belong here."""
        if not isinstance(payload, dict):
            raise AuthenticationError("speaks another version of the channel")
        sender, body, session = payload.get("f"), payload.get("b"), payload.get("s")
        if payload.get("k") != self._key:
            raise AuthenticationError("talks about something else")
        if payload.get("v") != VERSION:
            if isinstance(sender, str) and sender in self._allowed:
                self._events.append(Event("version", sender, {"version": payload.get("v")}))
                if connection.server:
                    connection.claimed = sender
                    self._queue(connection, {})  # so that it learns the same of us
            raise AuthenticationError("speaks another version of the channel")
        if sender not in self._allowed or not isinstance(body, dict) or not isinstance(session, str):
            raise AuthenticationError("from a name that we do not expect")
        first = connection.received == 0
        if payload.get("t") != self._me:
            raise AuthenticationError("for somebody else")
        if payload.get("n") != connection.received:
            raise AuthenticationError("out of order")
        connection.received += 1
        if first and connection.server:
            if not 16 <= len(session) <= 64:
                raise AuthenticationError("no session")
            connection.claimed, connection.session = sender, session + connection.nonce
            self._queue(connection, {})
            return
        if first:
            if sender != connection.claimed or not session.startswith(connection.nonce) or len(session) > 128:
                raise AuthenticationError("answers somebody else")
            connection.session = session
            self._believe(connection)
            self._queue(connection, {})  # the proof that we know the server's nonce
            return
        if session != connection.session or sender != connection.claimed:
            raise AuthenticationError("from another session")
        if not connection.peer:
            self._believe(connection)
            return
        self._events.append(Event("message", sender, body))

    def _believe(self, connection: _Connection) -> None:
        connection.peer = connection.claimed
        older = self._peers.get(connection.peer)
        self._peers[connection.peer] = connection
        if older is not None:
            self._drop(older, "replaced")
        self._events.append(Event("up", connection.peer))
