"""Credentials: proof of who sent a payload, to whom it may be shown, and that it is fresh. By munge, or by a key file.

munge (libmunge.so.2 through ctypes): payloads are encrypted, can be opened by our own uid only, once, within TTL_S.
Key file (where there is no munge): HMAC-SHA256 over time, nonce and payload; authentic and fresh, but **not hidden** from
who reads the wire. Standard library only: agents of the hook path import this.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import os
import secrets
import socket
import stat
import struct
import time
from collections.abc import Collection
from typing import Protocol

from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import FmslurmError, LackingError, UntrustedFileError

TTL_S = 60


class AuthenticationError(FmslurmError):
    """A message was not sent by who may send it, or not now, or not to us; the text says which."""


class Authenticator(Protocol):
    """Turns a payload into a credential and back."""

    name: str

    def seal(self, payload: bytes) -> bytes:
        """Return a credential that holds the payload."""

    def open(self, sealed: bytes) -> bytes:
        """Return the payload of a credential. Raise AuthenticationError where it must not be believed."""


# munge.h: option and result numbers of libmunge 0.5.
_OPT_TTL, _OPT_SOCKET, _OPT_UID_RESTRICTION = 4, 8, 9
_SUCCESS = 0


class MungeAuthenticator:
    """Credentials by munged. `allowed_uids`: whose messages are believed; default 0 and our effective uid."""

    name = "munge"

    def __init__(
        self, socket_path: str = "", *, ttl_s: int = TTL_S, allowed_uids: Collection[int] | None = None
    ) -> None:
        """Load libmunge and see that munged's socket answers. Raise LackingError where either is missing."""
        self.allowed_uids = frozenset({0, os.geteuid()} if allowed_uids is None else allowed_uids)
        try:
            self._lib = ctypes.CDLL("libmunge.so.2")
        except OSError as exc:
            raise LackingError(f"cannot load libmunge.so.2: {exc}", remedy="Install munge on this node") from exc
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [ctypes.c_void_p]
        self._declare()
        self._probe(socket_path or "/run/munge/munge.socket.2", required=bool(socket_path))
        self._context = ctypes.c_void_p(self._lib.munge_ctx_create())
        options: list[tuple[int, ctypes.c_int | ctypes.c_char_p]] = [
            (_OPT_TTL, ctypes.c_int(ttl_s)),
            (_OPT_UID_RESTRICTION, ctypes.c_int(os.geteuid())),
        ]
        if socket_path:
            options.append((_OPT_SOCKET, ctypes.c_char_p(os.fsencode(socket_path))))
        for option, value in options:
            code = self._lib.munge_ctx_set(self._context, ctypes.c_int(option), value)
            if code != _SUCCESS:
                raise LackingError(f"munge refuses option {option}: {self._words(code)}")

    def _declare(self) -> None:
        lib = self._lib
        lib.munge_ctx_create.restype = ctypes.c_void_p
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

    @staticmethod
    def _probe(path: str, *, required: bool) -> None:
        """See that somebody listens: libmunge itself would go on trying for seconds."""
        if not required and not os.path.exists(path):
            return  # built with another default: let libmunge look for it
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
        credential = ctypes.c_void_p()
        code = self._lib.munge_encode(ctypes.byref(credential), self._context, payload, len(payload))
        if code != _SUCCESS or not credential.value:
            raise LackingError(f"munge cannot encode: {self._words(code)}")
        try:
            return ctypes.string_at(credential.value)
        finally:
            self._free(credential)

    def open(self, sealed: bytes) -> bytes:
        """Return the payload. Raise AuthenticationError: forged, expired, replayed, for another uid, or from one."""
        if b"\0" in sealed:
            raise AuthenticationError("not a munge credential")
        buffer, length = ctypes.c_void_p(), ctypes.c_int()
        uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
        code = self._lib.munge_decode(
            sealed,
            self._context,
            ctypes.byref(buffer),
            ctypes.byref(length),
            ctypes.byref(uid),
            ctypes.byref(gid),
        )
        try:
            if code != _SUCCESS:
                raise AuthenticationError(f"munge: {self._words(code)}")
            if uid.value not in self.allowed_uids:
                raise AuthenticationError(f"sent by uid {uid.value}, which may not speak here")
            return ctypes.string_at(buffer.value, length.value) if buffer.value else b""
        finally:
            if buffer.value:
                self._free(buffer)


class KeyAuthenticator:
    """Credentials by a shared key file, root-only: HMAC-SHA256 over time, nonce and payload. The payload is not hidden."""

    name = "key"
    _HEAD = struct.Struct("!2sd16s32s")

    def __init__(self, key_path: str, *, ttl_s: float = TTL_S) -> None:
        """Read the key. Raise UntrustedFileError where others may read or write it, LackingError where it is too short."""
        descriptor = os.open(key_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as stream:
            state = os.fstat(stream.fileno())
            if state.st_uid not in (0, os.geteuid()) or state.st_mode & 0o077 or not stat.S_ISREG(state.st_mode):
                raise UntrustedFileError(f"{key_path} is not for root's eyes only", remedy=f"chmod 0600 {key_path}")
            key = stream.read(4096).strip()
        if len(key) < 32:
            raise LackingError(f"the key in {key_path} is shorter than 32 bytes", remedy="Make a new one")
        self._key = key
        self._ttl_s = ttl_s
        self._seen: dict[bytes, float] = {}

    def _digest(self, head: bytes, payload: bytes) -> bytes:
        return hmac.new(self._key, b"fmslurm-channel-1" + head + payload, hashlib.sha256).digest()

    def seal(self, payload: bytes) -> bytes:
        """Return time, nonce, digest and payload."""
        now, nonce = time.time(), secrets.token_bytes(16)
        digest = self._digest(struct.pack("!d", now) + nonce, payload)
        return self._HEAD.pack(b"K1", now, nonce, digest) + payload

    def open(self, sealed: bytes) -> bytes:
        """Return the payload. Raise AuthenticationError: forged, too old, from the future, or seen before."""
        if len(sealed) < self._HEAD.size or not sealed.startswith(b"K1"):
            raise AuthenticationError("not a credential of ours")
        _, sent, nonce, digest = self._HEAD.unpack_from(sealed)
        payload = sealed[self._HEAD.size :]
        if not hmac.compare_digest(digest, self._digest(struct.pack("!d", sent) + nonce, payload)):
            raise AuthenticationError("the digest is wrong: another key, or forged")
        now = time.time()
        if not abs(now - sent) <= self._ttl_s:
            raise AuthenticationError(f"sent {now - sent:.0f} s ago by its own clock: replayed, or clocks differ")
        if nonce in self._seen:
            raise AuthenticationError("seen before")
        if len(self._seen) > 4096:
            # What is older than two lifetimes is refused by its time stamp, so it need not be remembered.
            self._seen = {key: when for key, when in self._seen.items() if now - when <= 2 * self._ttl_s}
        self._seen[nonce] = now
        return payload


def for_site(settings: Settings, node: str) -> Authenticator:
    """Return what this site authenticates with: munge where it answers, else the root-only key `channel.key` in state_dir.

    Raise LackingError where there is neither, naming both.
    """
    try:
        return MungeAuthenticator(at_node(settings.site.munge_socket, node))
    except LackingError as exc:
        key_path = os.path.join(at_node(settings.site.state_dir, node), "channel.key")
        try:
            return KeyAuthenticator(key_path)
        except FileNotFoundError:
            raise LackingError(f"{exc.message}, and there is no key at {key_path}", remedy=exc.remedy) from exc
