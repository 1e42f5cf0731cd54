"""TLS 1.3 between nodes: the site's keys on disk, and how a side of a connection is set up with them, or for munge.

A key is one PEM file with a private key and a certificate that signs itself, made by `slurm_ext.keys`; every node holds the
same. Both sides show it and believe nothing else: no names, no authority, exactly that certificate. For a while two may be
valid; each side shows the newest that the other side holds too, so that keys can be brought to the nodes one by one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import ssl
import stat
import time
from collections.abc import Collection, Mapping, Sequence

from slurm_ext.credential import AuthenticationError, Challenge, Side
from slurm_ext.errors import LackingError, UntrustedFileError
from slurm_ext.typed import NamedTuple

#: How many keys are valid at once: the newest, and the one before it.
VALID_KEYS = 2
_FILE = re.compile(r"channel-[0-9A-Za-z.-]+\.pem")
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
_MAX_BYTES = 64 << 10
_ID_LENGTH = 16
#: A server's certificate that is made for one process lives at most so long.
_PASSING_DAYS = 2


class NoKeyError(LackingError):
    """There is no key on this node."""


class Key(NamedTuple):
    """One key: `created` and `expires` are seconds since the epoch, `fingerprint` is the certificate's SHA-256 in hex."""

    path: str
    fingerprint: str
    created: float
    expires: float
    certificate: bytes  # DER
    pem: bytes  # with the private key: never shown, logged or sent

    @property
    def id(self) -> str:
        """A short name for people and for the other side."""
        return self.fingerprint[:_ID_LENGTH]

    def __repr__(self) -> str:
        return f"Key({self.id})"


def folder(state_dir: str) -> str:
    """Return the folder that holds a node's keys."""
    return os.path.join(state_dir, "keys")


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate (DER) in hex."""
    return hashlib.sha256(certificate).hexdigest()


def read_keys(keys_folder: str) -> tuple[Key, ...]:
    """Return all keys in a folder, newest first; empty where there is no folder.

    Raise UntrustedFileError where others than root (or we) may read, write or replace one, or where one is a link.
    """
    try:
        state = os.lstat(keys_folder)
        names = sorted(name for name in os.listdir(keys_folder) if _FILE.fullmatch(name))
    except FileNotFoundError:
        return ()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid not in (0, os.geteuid()) or state.st_mode & 0o022:
        raise UntrustedFileError(
            f"others than root may change {keys_folder}", remedy=f"chown root {keys_folder}; chmod 0700 {keys_folder}"
        )
    keys = [_read_key(os.path.join(keys_folder, name)) for name in names]
    return tuple(sorted(keys, key=lambda key: (key.created, key.fingerprint), reverse=True))


def _read_key(path: str) -> Key:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as exc:
        if os.path.islink(path):
            raise UntrustedFileError(f"{path} is a symbolic link", remedy="Put the file itself there") from exc
        raise
    with os.fdopen(descriptor, "rb") as stream:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise UntrustedFileError(f"{path} is no regular file", remedy="Remove it")
        if state.st_uid not in (0, os.geteuid()) or state.st_mode & 0o077:
            raise UntrustedFileError(
                f"{path} is not for root's eyes alone",
                remedy=f"Make a new key: others may know it; else chmod 0600 {path}",
            )
        pem = stream.read(_MAX_BYTES)
    return parse(pem, path)


def parse(pem: bytes, path: str = "") -> Key:
    """Return the key that a PEM text holds. Raise LackingError where it is none of `fmslurm key create`."""
    found = _CERTIFICATE.search(pem.decode("ascii", "replace"))
    dates = None
    if found and b"PRIVATE KEY-----" in pem:
        with contextlib.suppress(ssl.SSLError, ValueError, IndexError):
            certificate = ssl.PEM_cert_to_DER_cert(found[0])
            reader = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            reader.load_verify_locations(cadata=certificate)
            dates = [
                ssl.cert_time_to_seconds(str(reader.get_ca_certs()[0][name])) for name in ("notBefore", "notAfter")
            ]
    if dates is None:
        raise LackingError(
            f"{path or 'this text'} is no key that fmslurm made", remedy="Make one: `fmslurm key create`"
        )
    return Key(path, fingerprint(certificate), float(dates[0]), float(dates[1]), certificate, pem)


def context(*, server: bool) -> ssl.SSLContext:
    """Return a context for TLS 1.3 alone, in which both sides must show a certificate."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = made.maximum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # exactly one certificate is believed, whatever names it holds
    made.verify_mode = ssl.CERT_REQUIRED
    made.options &= ~ssl.OP_ENABLE_MIDDLEBOX_COMPAT  # records that only mislead what stands between: nothing does
    if server:
        made.num_tickets = 0  # nobody resumes a session
    return made


def load(made: ssl.SSLContext, pem: bytes) -> None:
    """Give a context a private key and certificate, by way of a file in memory: they need not lie on a disk."""
    descriptor = os.memfd_create("fmslurm-key", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(pem)
        stream.flush()
        try:
            made.load_cert_chain(f"/proc/self/fd/{descriptor}")
        except ssl.SSLError as exc:
            raise LackingError(
                "a key's private part does not fit its certificate", remedy="Make a new key: `fmslurm key rotate`"
            ) from exc


def unproven_client() -> ssl.SSLContext:
    """Return a client's context that takes any certificate: munge credentials prove afterwards which one it must be."""
    made = context(server=False)
    made.verify_mode = ssl.CERT_NONE
    return made


def passing_server() -> Side:
    """Make a certificate for this process alone, and return a server's side that shows it and asks for none.

    Raise CommandNotFoundError where there is no openssl to make it with.
    """
    from slurm_ext import keys

    key = parse(keys.make_pem(days=_PASSING_DAYS))
    made = context(server=True)
    made.verify_mode = ssl.CERT_NONE
    load(made, key.pem)
    return Side(made, key.certificate)


class KeyAuthenticator:
    """By the site's keys: both sides show one in TLS, so what they say inside needs no proof of its own."""

    name = "key"

    def __init__(self, keys_folder: str) -> None:
        """Read the keys. Raise NoKeyError where there is none, UntrustedFileError where others may know or change them."""
        found = read_keys(keys_folder)[:VALID_KEYS]
        if not found:
            raise NoKeyError(
                f"there is no key in {keys_folder}", remedy="Make one and bring it to all nodes: `fmslurm key create`"
            )
        now = time.time()
        self._keys: Sequence[Key] = [key for key in found if now < key.expires]
        if not self._keys:
            raise LackingError(f"the key {found[0].id} in {keys_folder} has expired", remedy="`fmslurm key rotate`")
        self._sides: dict[tuple[bool, str], Side] = {}

    def ids(self) -> tuple[str, ...]:
        """Return the short names of our keys, newest first."""
        return tuple(key.id for key in self._keys)

    def side(self, *, server: bool, theirs: Collection[str]) -> Side:
        """Return a side that shows the newest key that they hold too, and believes all of ours."""
        key = next((key for key in self._keys if key.id in theirs), None)
        if key is None:
            raise AuthenticationError(
                f"no key in common: we hold {', '.join(self.ids())}, they hold {', '.join(sorted(theirs)) or 'none'}",
                remedy="Bring the same keys to all nodes: `fmslurm key show` there, `fmslurm key sync`",
                reason="key",
            )
        place = (server, key.id)
        if place not in self._sides:
            made = context(server=server)
            load(made, key.pem)
            for valid in self._keys:
                made.load_verify_locations(cadata=valid.certificate)
            self._sides[place] = Side(made, key.certificate)
        return self._sides[place]

    def check(self, certificate: bytes | None, *, server: bool) -> None:
        """Believe exactly our own certificates: one that ours has signed is none of ours."""
        if not certificate or all(certificate != key.certificate for key in self._keys):
            raise AuthenticationError("shows a certificate that is none of ours", reason="key")

    def challenge(self) -> Challenge:
        """Return nothing: TLS has both sides prove that they hold the key."""
        return Challenge(b"", "")

    def answer(self, shown: bytes, binding: str) -> dict[str, str]:
        """Return nothing: TLS stands, so both hold our key."""
        return {}

    def complaint(self) -> dict[str, str]:
        """Return nothing: TLS itself tells the other side."""
        return {}

    def believe(self, said: Mapping[str, object], secret: str) -> None:
        """Believe it: it came through TLS from somebody who holds our key."""
