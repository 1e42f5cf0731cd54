"""Authenticated and encrypted messages between root processes of nodes: JSON in frames, in TLS 1.3, from peers that are known.

Who may speak: uid 0 or our own effective uid by munge, or who holds the site's key: `slurm_ext.credential` says how either
is proven, `slurm_ext.channel_wire` what goes over a connection, `slurm_ext.channel_meeting` what each side first says in it.
Order, freshness and secrecy of what they say TLS keeps. Connections that have proven nothing are few, short-lived and small,
and never hold up others. Standard library only: agents of the hook path import this.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Collection, Mapping

from slurm_ext.channel_meeting import Meeting, decoded, encoded
from slurm_ext.channel_socket import Connection, Unproven, make_room
from slurm_ext.credential import AuthenticationError, Authenticator
from slurm_ext.errors import FmslurmError
from slurm_ext.typed import NamedTuple

#: The largest message, in bytes of JSON.
FRAME_MAX = 4 << 20
#: Before a peer is believed it may send no more than this in all, nor take longer than HANDSHAKE_S.
STRANGER_MAX = 16 << 10
HANDSHAKE_S = 5.0
#: Strangers at once, beside the peers we expect; beyond that the address with the most of them loses its oldest.
STRANGERS_MAX = 64
#: What may wait to be sent to one peer: who reads nothing for so long is gone. Messages wait for the next turn, to go together,
#: unless there are so many bytes of them.
BACKLOG_MAX = 8 << 20
TOGETHER_MAX = 64 << 10


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
        self._auth = authenticator
        self._meeting = Meeting(authenticator, me, key, peers, addresses or {})
        self._expected = len(peers)
        self._epoll = select.epoll()
        self._files: dict[int, object] = {}  # what the caller said of its own files
        self._listener: socket.socket | None = None
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._unsent: dict[Connection, None] = {}
        self._unproven = Unproven()
        self._peers: dict[str, Connection] = {}
        self._events: list[Event] = []
        self._told: set[str] = set()
        self.refused = 0
        self.last_refusal = ""

    def listen(self, address: str, port: int) -> int:
        """Listen on one address and return the port. OSError where it is taken, LackingError where we cannot prove ourselves."""
        make_room(2 * self._expected + STRANGERS_MAX)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what it accepts inherits it
            listener.listen(1024)
            listener.setblocking(False)
            self._auth.side(server=True, theirs=self._auth.ids())  # what it takes to answer must be there now
            self._auth.challenge()
        except (OSError, FmslurmError):
            listener.close()
            raise
        self._epoll.register(listener.fileno(), select.EPOLLIN)
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
            self._epoll.unregister(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def forget(self, peer: str) -> None:
        """Close what is, or is about to be, a connection with a peer; there will be no `down` for it."""
        self._flush_unsent()
        for connection in [c for c in self._connections.values() if peer in (c.peer, "" if c.server else c.claimed)]:
            self._drop(connection, "forgotten", tell=False)

    def fileno(self) -> int:
        """Return a descriptor that is readable when something happened, for who turns several hubs; `flush(0)` sends."""
        return self._epoll.fileno()

    def register(self, descriptor: int, data: object) -> None:
        """Watch a file of the caller's for reading; poll answers `ready` with `data`."""
        self._epoll.register(descriptor, select.EPOLLIN)
        self._files[descriptor] = data

    def unregister(self, descriptor: int) -> None:
        """Stop watching it."""
        if self._files.pop(descriptor, self) is not self:
            with contextlib.suppress(OSError):  # closed before
                self._epoll.unregister(descriptor)

    def peers(self) -> frozenset[str]:
        """Return the names of all peers that are believed now."""
        return frozenset(self._peers)

    def send(self, peer: str, body: Mapping[str, object]) -> bool:
        """Queue a message for the next turn (`poll`, `flush`); False where the peer is not (or no longer) there."""
        self.broadcast((peer,), body)
        return peer in self._peers

    def broadcast(self, peers: Collection[str], body: Mapping[str, object]) -> None:
        """Queue one message for many peers, put into words once; those that are not there miss it."""
        content = encoded(body)
        for peer in peers:
            if (connection := self._peers.get(peer)) is not None:
                self._queue(connection, content)

    def poll(self, timeout_s: float) -> list[Event]:
        """Send what waits, wait at most `timeout_s` for something to happen, and return it in order."""
        self._expire(time.monotonic())
        self._flush_unsent()
        for descriptor, mask in self._epoll.poll(0 if self._events else max(timeout_s, 0.0)):
            connection = self._connections.get(descriptor)
            if connection is not None:
                if mask & ~select.EPOLLIN:
                    self._flush(connection)
                if mask & ~select.EPOLLOUT and not connection.gone:
                    self._read(connection)
            elif descriptor in self._files:
                self._events.append(Event("ready", data=self._files[descriptor]))
            else:
                self._accept()
        events, self._events = self._events, []
        return events

    def flush(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until everything queued has left; what happens meanwhile stays for the next poll."""
        deadline, kept = time.monotonic() + timeout_s, list[Event]()
        self._flush_unsent()
        while (left := deadline - time.monotonic()) > 0 and any(
            c.wire.outbox or c.waiting for c in self._connections.values()
        ):
            kept += self.poll(min(left, 0.05))
        self._events = kept + self._events

    def close(self) -> None:
        """Close everything."""
        self._flush_unsent()
        for connection in list(self._connections.values()):
            self._drop(connection, "closed", tell=False)
        if self._listener is not None:
            self._listener.close()
        self._epoll.close()

    def _adopt(self, sock: socket.socket, *, server: bool, peer: str, address: str) -> Connection:
        from slurm_ext.channel_wire import Wire  # imports ssl, which an agent alone on its job never needs

        if not server:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = Wire(self._auth, server=server)
        connection = Connection(sock, wire, server=server, peer=peer, address=address, now=time.monotonic())
        self._connections[connection.descriptor] = connection
        self._unproven.add(connection)
        self._epoll.register(connection.descriptor, select.EPOLLIN)
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
            if self._unproven.strangers >= STRANGERS_MAX + self._expected:
                self._drop(self._unproven.least_welcome(), "too many strangers")
            self._adopt(sock, server=True, peer="", address=str(where[0]))

    def _expire(self, now: float) -> None:
        while (oldest := self._unproven.oldest()) is not None and now - oldest.opened > HANDSHAKE_S:
            self._drop(oldest, "no handshake in time")

    def _refuse(self, connection: Connection, problem: FmslurmError) -> None:
        """Drop a connection for what came over it."""
        reason = getattr(problem, "reason", "untrusted")
        with contextlib.suppress(OSError):  # TLS's own word on what is wrong, where it has one, or ours
            connection.push()
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
        if connection.gone:
            return
        connection.gone = True
        del self._connections[connection.descriptor]
        self._unproven.discard(connection)
        self._unsent.pop(connection, None)
        self._epoll.unregister(connection.descriptor)
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
        connection.queue(content)
        self._unsent[connection] = None
        if connection.waits > TOGETHER_MAX:
            self._flush(connection)
            if len(connection.wire.outbox) > BACKLOG_MAX:
                self._drop(connection, "reads nothing")

    def _flush_unsent(self) -> None:
        unsent, self._unsent = self._unsent, {}
        for connection in unsent:
            self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        """Send what the socket takes."""
        if connection.gone:
            return
        self._unsent.pop(connection, None)
        try:
            whole = connection.push()
        except OSError as exc:
            self._drop(connection, exc.strerror or str(exc))
            return
        if connection.watches_writing == whole:
            connection.watches_writing = not whole
            self._epoll.modify(connection.descriptor, select.EPOLLIN | (0 if whole else select.EPOLLOUT))

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
                if not connection.server:
                    self._meeting.introduce(connection)
            while not connection.gone:
                content = wire.frame(FRAME_MAX if connection.peer else STRANGER_MAX)
                if content is None:
                    break
                if connection.peer:
                    self._events.append(Event("message", connection.peer, decoded(content)))
                else:
                    self._meeting.check(connection, content, self._tell_version)
                    self._believe(connection)
            if not connection.peer and wire.seen > STRANGER_MAX and not connection.gone:
                raise AuthenticationError("says too much before it says who it is")
            if (wire.outbox or connection.waiting) and not connection.watches_writing:
                self._flush(connection)
        except FmslurmError as exc:
            if not connection.gone:
                self._refuse(connection, exc)

    def _tell_version(self, peer: str, version: object) -> None:
        self._events.append(Event("version", peer, {"version": version}))

    def _believe(self, connection: Connection) -> None:
        sender = connection.peer = connection.claimed
        self._unproven.discard(connection)
        older = self._peers.get(sender)
        self._peers[sender] = connection
        if older is not None:
            self._drop(older, "replaced")
        self._events.append(Event("up", sender))
