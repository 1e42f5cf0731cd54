"""The connections of a hub, and which of them have proven nothing yet. Standard library only: agents of the hook path import this."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket

from slurm_ext.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_ext.channel_wire import Wire


class Connection:
    """One socket with its place in the handshake; `peer` is empty until the name is proven."""

    def __init__(self, sock: socket.socket, wire: Wire, *, server: bool, peer: str, address: str, now: float) -> None:
        self.sock, self.wire, self.server, self.opened = sock, wire, server, now
        self.descriptor = sock.fileno()
        self.claimed, self.peer, self.address = peer, "", address
        self.introduced = self.watches_writing = self.gone = False
        self.waiting: list[bytes] = []  # messages that are not encrypted yet
        self.waits = 0  # their bytes

    def queue(self, content: bytes) -> None:
        """Take a message, to be sent together with others."""
        self.waiting.append(content)
        self.waits += len(content)

    def push(self) -> bool:
        """Send what the socket takes, and say whether that was all. OSError where the connection is broken."""
        wire = self.wire
        if self.waiting:
            wire.write(*self.waiting)
            self.waiting.clear()
            self.waits = 0
        outbox = wire.outbox
        while outbox:
            try:
                sent = self.sock.send(outbox)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as exc:
                if exc.errno == errno.ENOTCONN:
                    return False  # still connecting
                raise
            del outbox[:sent]
        return True


class Unproven:
    """Connections that have proven nothing: ours to others, and those of strangers, counted by where they come from."""

    def __init__(self) -> None:
        self._all: dict[Connection, None] = {}  # oldest first
        self._by_address: dict[str, dict[Connection, None]] = {}  # strangers alone, oldest first
        self.strangers = 0

    def add(self, connection: Connection) -> None:
        """Count a new connection among them."""
        self._all[connection] = None
        if connection.server:
            self._by_address.setdefault(connection.address, {})[connection] = None
            self.strangers += 1

    def discard(self, connection: Connection) -> None:
        """Count one no longer, if it was: it has proven itself, or is gone."""
        if connection not in self._all:
            return
        del self._all[connection]
        if connection.server:
            same = self._by_address[connection.address]
            del same[connection]
            if not same:
                del self._by_address[connection.address]
            self.strangers -= 1

    def oldest(self) -> Connection | None:
        """Return the one that has been here longest, None where there is none."""
        return next(iter(self._all), None)

    def least_welcome(self) -> Connection:
        """Return the oldest stranger of the address that most come from; there must be one."""
        most = max(self._by_address.values(), key=len)
        return next(iter(most))


def plain_address(address: str) -> str:
    """Return an address in its one usual form, empty for what is none: a name that somebody wrote there proves nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.inet_ntop(family, socket.inet_pton(family, address.partition("%")[0]))
    except OSError:
        return ""


def make_room(sockets: int) -> None:
    """Let this process open so many sockets beside what it has, as far as it may: the usual limit is 1,024 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(sockets + 512, hard if hard != resource.RLIM_INFINITY else 1 << 20)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
