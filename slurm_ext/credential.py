"""Who may speak on the channel between nodes, and how a side proves that it is such a one: by munge, or by the site's key.

Both ways the talk itself runs in TLS 1.3 (`slurm_ext.channel`), so everything on the wire is encrypted and none of it can
be played back. munge (libmunge.so.2 through ctypes): the server shows a certificate that it made for this one process, and a
munge credential for root alone that names it and holds a secret; the client opens it, and tells the secret inside TLS. The
site's key (where there is no munge): each side shows the certificate that `fmslurm key create` made, see
`slurm_ext.credential_tls`. Standard library only: agents of the hook path import this.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import FmslurmError, LackingError

if TYPE_CHECKING:
    import ssl

TTL_S = 60

#: libmunge tries for 10 s to reach a munged that hangs: whoever found that out asks no more for so long (seconds).
MUNGE_REST_S = 60.0


class AuthenticationError(FmslurmError):
    """A message was not sent by who may send it, or not now, or not to us; the text says which.

    `reason` is one word for programs: `clock` (the clocks of both sides differ), `key` (they hold different keys),
    `method` (one has munge, the other the site's key), or `untrusted` (everything else).
    """

    def __init__(self, message: str, *, remedy: str = "", reason: str = "untrusted") -> None:
        super().__init__(message, remedy=remedy)
        self.reason = reason


class Side(NamedTuple):
    """How one side of a TLS connection is set up: its context, and the certificate it shows (DER; empty for none)."""

    context: ssl.SSLContext
    certificate: bytes


class Challenge(NamedTuple):
    """What a server shows in clear, and the secret in it that only who may speak can read; both empty where TLS proves all."""

    shown: bytes
    secret: str

    def __repr__(self) -> str:
        return "Challenge()"


class Authenticator(Protocol):
    """Proves who we are, and checks who they are."""

    name: str

    def ids(self) -> tuple[str, ...]:
        """Return the names of the keys we hold, newest first; empty where a method has none. No secrets."""

    def side(self, *, server: bool, theirs: Collection[str]) -> Side:
        """Return our side of a TLS connection with somebody who holds the keys `theirs`. Raise AuthenticationError."""

    def check(self, certificate: bytes | None, *, server: bool) -> None:
        """Look at the certificate (DER) that the other side showed to us. Raise AuthenticationError where it is wrong."""

    def challenge(self) -> Challenge:
        """Return what a server shows now."""

    def answer(self, shown: bytes, binding: str) -> dict[str, str]:
        """Return how a client proves itself to the server that showed this, and whose certificate has this fingerprint.

        Raise AuthenticationError where that server is none to talk to.
        """

    def complaint(self) -> dict[str, str]:
        """Return how a client shows to a server what came between them: clocks that differ, or keys."""

    def believe(self, said: Mapping[str, object], secret: str) -> None:
        """Check what a client said as an answer to the challenge with this secret. Raise AuthenticationError."""


class Alone:
    """Stands where an authenticator would for who talks to nobody, such as the burn-in of a single node."""

    name = "none"

    def ids(self) -> tuple[str, ...]:
        """Return nothing."""
        return ()

    def _nobody(self, *_: object, **__: object) -> NoReturn:
        raise LackingError("nothing to prove who we are with: this side talks to nobody")

    side = check = challenge = answer = complaint = believe = _nobody


# munge.h: option and result numbers of libmunge 0.5.
_OPT_CIPHER, _OPT_MAC, _OPT_TTL, _OPT_ENCODED, _OPT_DECODED, _OPT_SOCKET, _OPT_UID_RESTRICTION = 0, 1, 4, 6, 7, 8, 9
_CIPHER_NONE, _CIPHER_AES128, _MAC_SHA256 = 0, 4, 5
_SUCCESS, _SOCKET, _TIMEOUT, _INVALID, _EXPIRED, _REWOUND, _REPLAYED = 0, 6, 7, 14, 15, 16, 17


class MungeAuthenticator:
    """Credentials by munged. `allowed_uids`: whose messages are believed; default 0 and our effective uid."""

    name = "munge"

    def __init__(
        self, socket_path: str = "", *, ttl_s: int = TTL_S, allowed_uids: Collection[int] | None = None
    ) -> None:
        """Load libmunge and see that munged's socket answers. Raise LackingError where either is missing."""
        self.allowed_uids = frozenset({0, os.geteuid()} if allowed_uids is None else allowed_uids)
        self._challenge: tuple[float, Challenge] | None = None
        self._server_side: Side | None = None
        self._client_side: Side | None = None
        self._rests_until = 0.0
        try:
            self._lib = ctypes.CDLL("libmunge.so.2")
        except OSError as exc:
            raise LackingError(f"cannot load libmunge.so.2: {exc}", remedy="Install munge on this node") from exc
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [ctypes.c_void_p]
        self._declare()
        self._context = ctypes.c_void_p(self._lib.munge_ctx_create())
        self._probe(socket_path or self._default_socket())
        # Whatever munged's defaults are: with cipher "none" it would sign our secrets and send them in clear.
        options: list[tuple[int, ctypes.c_int | ctypes.c_char_p]] = [
            (_OPT_CIPHER, ctypes.c_int(_CIPHER_AES128)),
            (_OPT_MAC, ctypes.c_int(_MAC_SHA256)),
            (_OPT_TTL, ctypes.c_int(ttl_s)),
            (_OPT_UID_RESTRICTION, ctypes.c_int(os.geteuid())),
        ]
        if socket_path:
            options.append((_OPT_SOCKET, ctypes.c_char_p(os.fsencode(socket_path))))
        for option, value in options:
            code = self._lib.munge_ctx_set(self._context, ctypes.c_int(option), value)
            if code != _SUCCESS:
                raise LackingError(f"munge refuses option {option}: {self._words(code)}")
        # Opening a credential writes its options, cipher too, into the context: what seals must never be what opens.
        self._opening = ctypes.c_void_p(self._lib.munge_ctx_copy(self._context))

    def _declare(self) -> None:
        lib = self._lib
        lib.munge_ctx_create.restype = lib.munge_ctx_copy.restype = ctypes.c_void_p
        lib.munge_strerror.restype = ctypes.c_char_p
        lib.munge_encode.argtypes = [
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_int,
        ]
        lib.munge_decode.argtypes = [
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.POINTER(ctypes.c_int),
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.POINTER(ctypes.c_uint32),
        ]

    def _default_socket(self) -> str:
        path = ctypes.c_char_p()
        self._lib.munge_ctx_get(self._context, ctypes.c_int(_OPT_SOCKET), ctypes.byref(path))
        return os.fsdecode(path.value or b"/run/munge/munge.socket.2")

    @staticmethod
    def _probe(path: str) -> None:
        """See that somebody listens: libmunge itself would go on trying for seconds."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(path)
            except OSError as exc:
                raise LackingError(f"munged does not answer at {path}: {exc}", remedy="Start munged") from exc

    def _words(self, code: int) -> str:
        text = self._lib.munge_strerror(code)
        return text.decode("ascii", "replace") if text else f"munge error {code}"

    def seal(self, payload: bytes) -> bytes:
        """Return a munge credential that our own uid alone can open."""
        self._see_that_munged_answers()
        credential = ctypes.c_void_p()
        code = self._lib.munge_encode(ctypes.byref(credential), self._context, payload, len(payload))
        if code != _SUCCESS or not credential.value:
            raise self._refusal(code)
        try:
            return ctypes.string_at(credential.value)
        finally:
            self._free(credential)

    def ids(self) -> tuple[str, ...]:
        """Return nothing: munge's key is munged's affair."""
        return ()

    def side(self, *, server: bool, theirs: Collection[str]) -> Side:
        """Return a side without a certificate for a client, with one made for this process alone for a server."""
        from slurm_ext import credential_tls

        if not server:
            if self._client_side is None:
                self._client_side = Side(credential_tls.unproven_client(), b"")
            return self._client_side
        if self._server_side is None:
            self._server_side = credential_tls.passing_server()
        return self._server_side

    def check(self, certificate: bytes | None, *, server: bool) -> None:
        """Believe any certificate for now: the server's credential names its own, and settles it."""
        if not server and not certificate:
            raise AuthenticationError("shows no certificate")

    def challenge(self) -> Challenge:
        """Return a credential that names our certificate and holds a secret, the same for all, and a new one while it is fresh.

        Opened once by us, so that a munged which would send the secret in clear is found out. Raise LackingError.
        """
        now = time.monotonic()
        if self._challenge is None or now - self._challenge[0] > TTL_S / 3:
            from slurm_ext.credential_tls import fingerprint

            secret = os.urandom(16).hex()
            binding = fingerprint(self.side(server=True, theirs=()).certificate)
            shown = self.seal(json.dumps({"s": binding, "n": secret}).encode())
            self.open(shown)
            self._challenge = now, Challenge(shown, secret)
        return self._challenge[1]

    def answer(self, shown: bytes, binding: str) -> dict[str, str]:
        """Return the secret, once a credential of root's has named this very certificate. Raise AuthenticationError."""
        if not shown:
            raise AuthenticationError("munge: shows no credential")
        try:
            held = json.loads(self.open(shown, again=True))
            named, secret = str(held["s"]), str(held["n"])
        except (ValueError, TypeError, KeyError, RecursionError) as exc:
            raise AuthenticationError("munge: a credential that is none of this channel's") from exc
        if named != binding:
            raise AuthenticationError("from another connection")
        return {"n": secret}

    def complaint(self) -> dict[str, str]:
        """Return a credential of ours, which the server can open no better than we could its own.

        Not an empty one, as Slurm's own once were: nothing of ours shall pass for an order of root's.
        """
        return {"c": self.seal(b"fmslurm").decode("ascii")}

    def believe(self, said: Mapping[str, object], secret: str) -> None:
        """Believe who knows the secret: root, on a node with our munge key. Raise AuthenticationError."""
        from hmac import compare_digest

        if isinstance(complaint := said.get("c"), str):
            self.open(complaint.encode("ascii", "replace"))
            raise AuthenticationError("cannot open what we sealed")
        told = str(said.get("n", "")).encode("ascii", "replace")
        if not secret or not compare_digest(told, secret.encode()):
            raise AuthenticationError("does not know what root alone can open")

    def open(self, sealed: bytes, *, again: bool = False) -> bytes:
        """Return the payload. Raise AuthenticationError: forged, expired, replayed, in clear, for another uid, or from one.

        `again` takes a credential that was opened on this machine before: for those that are sealed once for many.
        """
        if b"\0" in sealed:
            raise AuthenticationError("not a munge credential")
        self._see_that_munged_answers()
        buffer, length = ctypes.c_void_p(), ctypes.c_int()
        uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
        code = self._lib.munge_decode(
            sealed,
            self._opening,
            ctypes.byref(buffer),
            ctypes.byref(length),
            ctypes.byref(uid),
            ctypes.byref(gid),
        )
        try:
            if code != _SUCCESS and not (again and code == _REPLAYED):
                raise self._refusal(code)
            if uid.value not in self.allowed_uids:
                raise AuthenticationError(f"sent by uid {uid.value}, which may not speak here")
            if self._option(_OPT_CIPHER, ctypes.c_int()) == _CIPHER_NONE:
                raise AuthenticationError("munge: a credential that is not encrypted")
            return ctypes.string_at(buffer.value, length.value) if buffer.value else b""
        finally:
            if buffer.value:
                self._free(buffer)

    def _option(self, option: int, value: ctypes.c_int | ctypes.c_long) -> int:
        """Return what munge noted about the credential that was opened last."""
        self._lib.munge_ctx_get(self._opening, ctypes.c_int(option), ctypes.byref(value))
        return value.value

    def _see_that_munged_answers(self) -> None:
        if time.monotonic() < self._rests_until:
            raise LackingError("munge: munged did not answer before", remedy="See that munged runs")

    def _refusal(self, code: int) -> FmslurmError:
        words = f"munge: {self._words(code)}"
        if code in (_SOCKET, _TIMEOUT):
            self._rests_until = time.monotonic() + MUNGE_REST_S
            return LackingError(words, remedy="See that munged runs")
        if code in (_EXPIRED, _REWOUND):
            made = self._option(_OPT_ENCODED, ctypes.c_long()) - self._option(_OPT_DECODED, ctypes.c_long())
            words += f": made {abs(made)} s {'before' if made < 0 else 'after'} it was read, so the clocks of both nodes differ"
            return AuthenticationError(words, remedy="Set the clocks (chronyc tracking)", reason="clock")
        if code == _INVALID:
            return AuthenticationError(
                words, remedy="Is munge.key the same on all nodes? `munge -n | ssh NODE unmunge`", reason="key"
            )
        return AuthenticationError(words)


def for_site(settings: Settings, node: str) -> Authenticator:
    """Return what this site authenticates with: munge where it answers, else the keys in the folder `keys` of state_dir.

    Raise LackingError where there is neither, naming both.
    """
    try:
        return MungeAuthenticator(at_node(settings.site.munge_socket, node))
    except LackingError as exc:
        from slurm_ext import credential_tls  # imports ssl, which munge's users need later, and not for every question

        folder = credential_tls.folder(at_node(settings.site.state_dir, node))
        try:
            return credential_tls.KeyAuthenticator(folder)
        except credential_tls.NoKeyError:
            raise LackingError(
                f"{exc.message}, and there is no key in {folder}",
                remedy=f"{exc.remedy}, or make a key: `fmslurm key create`",
            ) from exc
