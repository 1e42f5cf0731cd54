"""One connection's bytes, without a socket: a greeting in clear, then TLS 1.3, and in it frames of a length and a content.

    greeting   `fmslurm METHOD [KEY ...] [CHALLENGE]` and a newline: how the sender proves who it is, and the short names of
               the keys it holds. Only a hint, to find a common key and to name a mismatch. By munge the server adds its
               challenge, a credential that root alone can open (the client's greeting has at most GREETING_MAX bytes)
    TLS 1.3    as `slurm_ext.credential` sets it up; a client that holds two keys waits for the server's greeting to choose one
    frames     4 bytes of length, big-endian, and so many bytes

Bytes go in by `feed`, come out in `outbox`; nothing here waits, and whatever came in, only our own errors come out.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import struct
from collections.abc import Collection

from slurm_ext.credential import AuthenticationError, Authenticator, Challenge
from slurm_ext.credential_tls import fingerprint

GREETING_MAX, CHALLENGE_MAX = 96, 1400
_GREETING = re.compile(rb"fmslurm ([a-z]{1,16})((?: [0-9a-f]{16}){0,4})(?: ([!-~]{24,%d}))?\n" % CHALLENGE_MAX)
_LENGTH = struct.Struct("!I")
_CHUNK = 65536

#: What OpenSSL calls a problem with the other side's certificate, or with ours in its eyes -> our word for it.
_CLOCK_WORDS = ("not yet valid", "has expired", "certificate expired")


class Wire:
    """One side of a connection. `ready`: TLS stands; `binding` then names the server's certificate, and so this talk.

    `challenge` is what the server showed; its secret is known to that side alone.
    """

    def __init__(self, authenticator: Authenticator, *, server: bool) -> None:
        self._auth, self._server = authenticator, server
        self._greeting = bytearray()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._certificate = b""
        self._inbox = bytearray()
        self.ready = False
        self.binding = ""
        self.seen = 0
        self._greeted = False
        self.challenge = Challenge(b"", "")
        self.outbox = bytearray()
        if not server:
            self.outbox += self._hello()
            if len(authenticator.ids()) <= 1:
                self._begin(authenticator.ids())

    def feed(self, data: bytes) -> None:
        """Take bytes of the other side. Raise AuthenticationError where they are not what an honest one sends.

        LackingError where we cannot prove ourselves.
        """
        self.seen += len(data)
        if not self._greeted:
            self._greeting += data
            data = self._greet()
            if not data:
                return
        assert self._tls is not None
        self._incoming.write(data)
        try:
            if not self.ready:
                self._shake_hands()
            while self.ready and (self._incoming.pending or self._tls.pending()):
                self._inbox += self._tls.read(_CHUNK)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as exc:
            raise self._refusal(exc) from exc
        finally:
            self.outbox += self._outgoing.read()

    def frame(self, limit: int) -> bytes | None:
        """Return the next whole frame, None where there is none yet. Raise AuthenticationError for one beyond `limit` bytes."""
        if len(self._inbox) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._inbox)
        if length > limit:
            raise AuthenticationError(f"a frame of {length} bytes")
        end = _LENGTH.size + length
        if len(self._inbox) < end:
            return None
        content = bytes(self._inbox[_LENGTH.size : end])
        del self._inbox[:end]
        return content

    def write(self, *contents: bytes) -> None:
        """Put frames into the outbox; only once TLS stands."""
        assert self._tls is not None
        rest = memoryview(b"".join([part for content in contents for part in (_LENGTH.pack(len(content)), content)]))
        while rest:
            rest = rest[self._tls.write(rest) :]
        self.outbox += self._outgoing.read()

    def _hello(self) -> bytes:
        words = " ".join(("fmslurm", self._auth.name, *self._auth.ids())).encode()
        return words + (b" " + self.challenge.shown if self.challenge.shown else b"") + b"\n"

    def _greet(self) -> bytes:
        """Look at the greeting; once it is whole answer it, begin TLS, and return the bytes behind it."""
        limit = GREETING_MAX if self._server else GREETING_MAX + CHALLENGE_MAX
        head = bytes(self._greeting[:limit])
        end = head.find(b"\n")
        if end < 0 and len(self._greeting) < limit and head.startswith(b"fmslurm "[: len(head)]):
            return b""
        found = _GREETING.fullmatch(head[: end + 1])
        if found is None or (self._server and found[3]):
            raise AuthenticationError("does not speak our language")
        self._greeted = True
        method = found[1].decode()
        if self._server:
            if method == self._auth.name:
                self.challenge = self._auth.challenge()
            self.outbox += self._hello()
        else:
            self.challenge = Challenge(found[3] or b"", "")
        if method != self._auth.name:
            raise AuthenticationError(
                f"the other side proves itself by {_WORDS.get(method, method)}, we by {_WORDS[self._auth.name]}",
                remedy="Let munge run on both nodes, or on neither",
                reason="method",
            )
        self._begin(found[2].decode().split())
        rest = bytes(self._greeting[end + 1 :])
        self._greeting.clear()
        return rest

    def _begin(self, theirs: Collection[str]) -> None:
        """Set up TLS with somebody who holds these keys; a client says its first word."""
        side = self._auth.side(server=self._server, theirs=theirs)
        if self._tls is None:
            self._certificate = side.certificate
            self._tls = side.context.wrap_bio(self._incoming, self._outgoing, server_side=self._server)
            if not self._server:
                with contextlib.suppress(ssl.SSLWantReadError):
                    self._tls.do_handshake()
                self.outbox += self._outgoing.read()

    def _shake_hands(self) -> None:
        assert self._tls is not None
        self._tls.do_handshake()
        theirs = self._tls.getpeercert(binary_form=True)
        self._auth.check(theirs, server=self._server)
        self.binding = fingerprint(self._certificate if self._server else theirs or b"")
        self.ready = True

    def _refusal(self, problem: ssl.SSLError) -> AuthenticationError:
        words = str(getattr(problem, "verify_message", "") or problem.reason or "closed").lower().replace("_", " ")
        if any(word in words for word in _CLOCK_WORDS):
            return AuthenticationError(f"TLS: {words}", remedy="Set the clocks, or rotate the key", reason="clock")
        certificate = "certificate" in words or "unknown ca" in words
        return AuthenticationError(f"TLS: {words}", reason="key" if certificate else "untrusted")


_WORDS = {"munge": "munge", "key": "the site's key", "none": "nothing"}
