"""How two sides of a connection meet inside TLS: what each says of itself, and whom it believes.

The client first sends an introduction, and the server answers one that it believes with its own; from then on both talk:

    v  our VERSION           k  what the talk is about, e.g. a job attempt
    f  its own name          s  the server's certificate as the sender sees it, so that nobody can stand in between
    n  the secret of the server's challenge, where TLS has not proven the client; c instead: why it could not be opened

Greetings (`slurm_ext.channel_wire`) and introductions keep their form in every version from 3 on.
Standard library only: agents of the hook path import this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping

from slurm_ext.channel_socket import Connection, plain_address
from slurm_ext.credential import AuthenticationError, Authenticator

VERSION = 3
_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(separators=(",", ":")).encode


def encoded(body: Mapping[str, object]) -> bytes:
    """Return a message as it goes into a frame."""
    return _encode(body).encode()


def decoded(content: bytes) -> dict[str, object]:
    """Return the message of a frame. Raise AuthenticationError where it is none; what it held is in no word of that."""
    try:
        body = _decode(content.decode())
    except (ValueError, RecursionError) as exc:
        raise AuthenticationError("sends no JSON") from exc
    if not isinstance(body, dict):
        raise AuthenticationError("sends no message")
    return body


class Meeting:
    """What one agent says of itself to whoever it meets, and how it checks what they say."""

    def __init__(
        self, authenticator: Authenticator, me: str, key: str, names: Collection[str], addresses: Mapping[str, str]
    ) -> None:
        """`names` alone are believed; a client that `addresses` names only from there."""
        self._auth, self._me, self._key = authenticator, me, key
        self._names = frozenset(names)
        self._addresses = {name: plain for name, text in addresses.items() if (plain := plain_address(text))}

    def introduce(self, connection: Connection) -> None:
        """Tell a server who we are. Raise AuthenticationError where it has not proven itself: then it hears nothing.

        But for what may be a fault of either side, which both should know.
        """
        wire = connection.wire
        try:
            proof = self._auth.answer(wire.challenge.shown, wire.binding)
        except AuthenticationError as exc:
            if exc.reason in ("clock", "key"):
                connection.queue(encoded({"v": VERSION, **self._auth.complaint()}))
            raise
        self._say(connection, proof)

    def _say(self, connection: Connection, proof: Mapping[str, str]) -> None:
        said = {"v": VERSION, "k": self._key, "f": self._me, "s": connection.wire.binding, **proof}
        connection.queue(encoded(said))

    def check(self, connection: Connection, content: bytes, tell_version: Callable[[str, object], None]) -> None:
        """Take the introduction of the other side, and answer a client. Raise AuthenticationError for whom we do not believe.

        `tell_version` gets the name and version of who is proven and speaks another.
        """
        said, wire = decoded(content), connection.wire
        if connection.server:
            self._auth.believe(said, wire.challenge.secret)
        sender = said.get("f")
        if said.get("k") != self._key:
            raise AuthenticationError("talks about something else")
        if not isinstance(sender, str) or sender not in self._names:
            raise AuthenticationError("from a name that we do not expect")
        if said.get("s") != wire.binding:
            raise AuthenticationError("from another connection")
        if not connection.server and sender != connection.claimed:
            raise AuthenticationError("answers in another's name")
        home = self._addresses.get(sender)
        if connection.server and home is not None and home != plain_address(connection.address):
            raise AuthenticationError(f"{sender} does not live at {connection.address}")
        if connection.server:
            self._say(connection, {})
        if said.get("v") != VERSION:
            tell_version(sender, said.get("v"))
            raise AuthenticationError("speaks another version of the channel", reason="version")
        connection.claimed = sender
