"""Authenticated and encrypted messages between root processes of nodes: JSON in frames, in TLS 1.3, from peers that are known.

Who may speak: uid 0 or our own effective uid by munge, or who holds the site's key: `slurm_ext.credential` says how either
is proven, `slurm_ext.channel_wire` what goes over a connection. Inside TLS each side first sends an introduction:

    v  our VERSION           k  what the talk is about, e.g. a job attempt
    f  its own name          s  the server's certificate as the sender sees it, so that nobody can stand in between

in a munge credential (a client's is good once; the server's is the same for all and sealed once), or as it is where TLS has
proven the key of both sides. The server answers one that it believes with an empty message, and from then on both talk;
order, freshness and secrecy of what they say TLS keeps. Introductions keep their form in every version. Connections that have
proven nothing are few, short-lived and small, and never hold up others.
Standard library only: agents of the hook path import this.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from slurm_ext.channel_socket import Connection, Unproven, make_room, plain_address
from slurm_ext.credential import TTL_S, AuthenticationError, Authenticator
from slurm_ext.errors import FmslurmError

VERSION = 2
_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(separators=(",", ":")).encode

#: The largest message, in bytes of JSON.
FRAME_MAX = 4 << 20
#: Before a peer is believed it may send no more than this in all, nor take longer than HANDSHAKE_S.
STRANGER_MAX = 16 << 10
HANDSHAKE_S = 5.0
#: Strangers at once, beside the peers we expect; beyond that the address with the most of them loses its oldest.
STRANGERS_MAX = 64
#: What may wait to be sent to one peer: who reads nothing for so long is gone.
BACKLOG_MAX = 8 << 20


class Event(NamedTuple):
    """What happened: `up` (a peer is believed), `message`, `down`, `version`, `refused`, or `ready` (a file of the caller).

    `down`: a peer is lost, or was not reached: {"why": text, "reason": one word}; the word is `lost`, or as in AuthenticationError.
    `version`: a peer that proved itself speaks another version of this channel: {"version": what it says}.
    `refused`: somebody did not get in for a reason that people should know (`clock`, `key`, `method`): {"why", "reason"}, once for
    each reason. It was proven by nobody, so it explains why a peer is absent and must never end anything.
    """

    kind: str
    peer: str = ""
    body: Mapping[str, object] = {}
    data: object = None


class Hub:
    """All connections of one agent in one loop, beside files of its own; nothing here blocks longer than asked."""

    def __init__(
        self,
        authenticator: Authenticator,
        *,
        me: str,
        key: str,
        peers: Collection[str],
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        """`me` is our name, `key` what the talk is about, `peers` the only names that are believed.

        A peer that `addresses` names must come from that address: without it any node's root may give itself out for another.
        """
        self._auth, self._me, self._key = authenticator, me, key
        self._allowed = frozenset(peers)
        self._addresses = {name: plain for name, text in (addresses or {}).items() if (plain := plain_address(text))}
        self._introduction: tuple[float, str, bytes] = (0.0, "", b"")
        self._selector = selectors.EpollSelector()
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()
        self._unproven = Unproven()
        self._peers: dict[str, Connection] = {}
        self._events: list[Event] = []
        self._told: set[str] = set()
        self.refused = 0
        self.last_refusal = ""

    def listen(self, address: str, port: int) -> int:
        """Listen on one address and return the port. OSError where it is taken, LackingError where we cannot prove ourselves."""
        make_room(2 * len(self._allowed) + STRANGERS_MAX)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what it accepts inherits it
            listener.listen(1024)
            listener.setblocking(False)
            self._auth.side(server=True, theirs=self._auth.ids())  # what it takes to answer must be there now
        except (OSError, FmslurmError):
            listener.close()
            raise
        self._selector.register(listener, selectors.EVENT_READ, "listener")
        self._listener = listener
        return int(listener.getsockname()[1])

    def connect(self, peer: str, address: str, port: int, *, source: str = "") -> None:
        """Begin to connect (from our address `source`); `up` or `down` tells how it went, within HANDSHAKE_S."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        sock.setblocking(False)
        connection = self._adopt(sock, server=False, peer=peer, address=address)
        try:
            if source:
                sock.bind((source, 0))
            code = sock.connect_ex((address, port))
        except OSError as exc:
            code = exc.errno or errno.EINVAL
        if code not in (0, errno.EINPROGRESS):
            self._drop(connection, os.strerror(code))
            return
        self._flush(connection)

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

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` has something to do, for who turns several hubs."""
        return self._selector.fileno()

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
        self.broadcast((peer,), body)
        return peer in self._peers

    def broadcast(self, peers: Collection[str], body: Mapping[str, object]) -> None:
        """Send one message to many peers, put into words once; those that are not there miss it."""
        content = _encode(body).encode()
        for peer in peers:
            if (connection := self._peers.get(peer)) is not None:
                self._queue(connection, content)

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
                connection: Connection = key.data
                if mask & selectors.EVENT_WRITE:
                    self._flush(connection)
                if mask & selectors.EVENT_READ and connection in self._connections:
                    self._read(connection)
        events, self._events = self._events, []
        return events

    def flush(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until everything queued has left; what happens meanwhile stays for the next poll."""
        deadline, kept = time.monotonic() + timeout_s, list[Event]()
        while any(c.wire.outbox for c in self._connections) and (left := deadline - time.monotonic()) > 0:
            kept += self.poll(min(left, 0.05))
        self._events = kept + self._events

    def close(self) -> None:
        """Close everything."""
        for connection in list(self._connections):
            self._drop(connection, "closed", tell=False)
        if self._listener is not None:
            self._listener.close()
        self._selector.close()

    def _adopt(self, sock: socket.socket, *, server: bool, peer: str, address: str) -> Connection:
        from slurm_ext.channel_wire import Wire  # imports ssl, which an agent alone on its job never needs

        if not server:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = Wire(self._auth, server=server)
        connection = Connection(sock, wire, server=server, peer=peer, address=address, now=time.monotonic())
        self._connections.add(connection)
        self._unproven.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        return connection

    def _accept(self) -> None:
        for _ in range(64):
            if self._listener is None:
                return
            try:
                sock, where = self._listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            if self._unproven.strangers >= STRANGERS_MAX + len(self._allowed):
                self._drop(self._unproven.least_welcome(), "too many strangers")
            self._adopt(sock, server=True, peer="", address=str(where[0]))

    def _expire(self, now: float) -> None:
        while (oldest := self._unproven.oldest()) is not None and now - oldest.opened > HANDSHAKE_S:
            self._drop(oldest, "no handshake in time")

    def _refuse(self, connection: Connection, problem: FmslurmError) -> None:
        """Drop a connection for what came over it."""
        reason = getattr(problem, "reason", "untrusted")
        with contextlib.suppress(OSError):  # TLS's own word on what is wrong, where it has one
            connection.sock.send(connection.wire.outbox)
        if (
            connection.server
            and not connection.peer
            and reason in ("clock", "key", "method")
            and reason not in self._told
        ):
            self._told.add(reason)
            why = f"{connection.address}: {problem.message}"
            self._events.append(Event("refused", connection.claimed, {"why": why, "reason": reason}))
        self._drop(connection, str(problem), reason=reason)

    def _drop(self, connection: Connection, why: str, *, tell: bool = True, reason: str = "lost") -> None:
        """Forget a connection; whoever was believed or sought gets a `down`, a stranger none."""
        self._connections.discard(connection)
        self._unproven.discard(connection)
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
            self._events.append(Event("down", name, {"why": why, "reason": reason}))

    def _queue(self, connection: Connection, content: bytes) -> None:
        if len(content) > FRAME_MAX:
            self._drop(connection, f"a message of {len(content)} bytes is too large to send")
            return
        connection.wire.write(content)
        if len(connection.wire.outbox) > BACKLOG_MAX:
            self._drop(connection, "reads nothing")
            return
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        outbox = connection.wire.outbox
        while outbox:
            try:
                sent = connection.sock.send(outbox)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as exc:
                if exc.errno == errno.ENOTCONN:
                    break  # still connecting
                self._drop(connection, exc.strerror or str(exc))
                return
            del outbox[:sent]
        if connection.watches_writing != bool(outbox):
            connection.watches_writing = bool(outbox)
            mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if outbox else 0)
            self._selector.modify(connection.sock, mask, connection)

    def _read(self, connection: Connection) -> None:
        try:
            chunk = connection.sock.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self._drop(connection, exc.strerror or str(exc))
            return
        if not chunk:
            doubted = connection.introduced and not connection.peer
            self._drop(connection, "closed by the other side" + (", which does not believe us" if doubted else ""))
            return
        wire = connection.wire
        try:
            wire.feed(chunk)
            if wire.ready and not connection.introduced:
                connection.introduced = True
                wire.write(self._introduce(wire.binding, server=connection.server))
            while connection in self._connections:
                content = wire.frame(FRAME_MAX if connection.peer else STRANGER_MAX)
                if content is None:
                    break
                if connection.peer:
                    self._events.append(Event("message", connection.peer, self._body(content)))
                else:
                    self._meet(connection, content)
            if connection in self._connections and not connection.peer and wire.seen > STRANGER_MAX:
                raise AuthenticationError("says too much before it says who it is")
            if wire.outbox and not connection.watches_writing and connection in self._connections:
                self._flush(connection)
        except FmslurmError as exc:
            if connection in self._connections:
                self._refuse(connection, exc)

    @staticmethod
    def _body(content: bytes) -> dict[str, object]:
        try:
            body = _decode(content.decode())
        except (ValueError, RecursionError) as exc:
            raise AuthenticationError("sends no JSON") from exc
        if not isinstance(body, dict):
            raise AuthenticationError("sends no message")
        return body

    def _introduce(self, binding: str, *, server: bool) -> bytes:
        """Return who we are, sealed. A server says the same to all, so it is sealed once and again while it is fresh."""
        made, said, sealed = self._introduction
        now = time.monotonic()
        if not server or said != binding or now - made > TTL_S / 3:
            payload = {"v": VERSION, "k": self._key, "f": self._me, "s": binding}
            sealed = self._auth.seal(_encode(payload).encode())
            if server:
                self._introduction = (now, binding, sealed)
        return sealed

    def _meet(self, connection: Connection, sealed: bytes) -> None:
        """Check the introduction of the other side, and believe it. Raise AuthenticationError where it does not belong here.

        A client believes the server at once, but calls it up only when the server has welcomed it.
        """
        if connection.welcome:
            self._believe(connection)
            return
        said = self._body(self._auth.open(sealed, again=not connection.server))
        sender = said.get("f")
        if said.get("k") != self._key:
            raise AuthenticationError("talks about something else")
        if not isinstance(sender, str) or sender not in self._allowed:
            raise AuthenticationError("from a name that we do not expect")
        if said.get("s") != connection.wire.binding:
            raise AuthenticationError("from another connection")
        if not connection.server and sender != connection.claimed:
            raise AuthenticationError("answers in another's name")
        home = self._addresses.get(sender)
        if connection.server and home is not None and home != plain_address(connection.address):
            raise AuthenticationError(f"{sender} does not live at {connection.address}")
        if said.get("v") != VERSION:
            self._events.append(Event("version", sender, {"version": said.get("v")}))
            raise AuthenticationError("speaks another version of the channel", reason="version")
        if connection.server:
            connection.claimed = sender
            self._believe(connection)
            self._queue(connection, b"{}")
        else:
            connection.welcome = True

    def _believe(self, connection: Connection) -> None:
        sender = connection.peer = connection.claimed
        self._unproven.discard(connection)
        older = self._peers.get(sender)
        self._peers[sender] = connection
        if older is not None:
            self._drop(older, "replaced")
        self._events.append(Event("up", sender))
