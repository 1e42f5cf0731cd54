"""Make, replace and hand on the site's keys (`slurm_ext.credential_tls` says what a key is and reads them).

Made by the `openssl` program: every distribution that fmslurm runs on has it with its certificates, while the
`cryptography` package would be a compiled dependency of the hook path. Files are root's alone, written whole or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence

from slurm_ext import command
from slurm_ext.credential_tls import VALID_KEYS, Key, parse, read_keys
from slurm_ext.errors import CommandNotFoundError, LackingError, UsageError
from slurm_ext.files import sync_folder, write_atomic
from slurm_ext.typed import NamedTuple

#: A key is good for five years at most; doctor asks for another after one.
KEY_DAYS = 1825
_OPENSSL_S = 20.0
#: A name of its own for each, since OpenSSL looks for a trusted certificate by its name.
_ASK = """[req]
distinguished_name = name
x509_extensions = uses
prompt = no
[name]
CN = fmslurm channel {name}
[uses]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, digitalSignature, keyCertSign
subjectKeyIdentifier = hash
"""


class Change(NamedTuple):
    """What a command does to a folder of keys: files that appear, stay, and go."""

    added: tuple[Key, ...] = ()
    kept: tuple[Key, ...] = ()
    removed: tuple[Key, ...] = ()


def make_pem(*, days: int) -> bytes:
    """Return a new private key (P-256) and its certificate as PEM text, good for so many days from now.

    Raise CommandNotFoundError where there is no openssl, LackingError where it fails. Nothing is written to a disk.
    """
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256"]
    argv += ["-days", str(days), "-config", "/dev/stdin", "-keyout", "/dev/stdout", "-out", "/dev/stdout"]
    try:
        result = command.run(argv, timeout_s=_OPENSSL_S, input_text=_ASK.format(name=secrets.token_hex(8)))
    except CommandNotFoundError as exc:
        raise CommandNotFoundError(
            "there is no openssl program to make a certificate with", remedy="Install the package openssl"
        ) from exc
    if not result.ok:
        # Its standard output may hold the key: only what it says on standard error may be shown.
        said = result.stderr.strip().splitlines()
        words = "it took too long" if result.timed_out else said[-1][:200] if said else f"exit {result.returncode}"
        raise LackingError(f"openssl cannot make a certificate: {words}", remedy="See what `openssl version` says")
    return result.stdout.encode()


def create(folder: str, *, dry_run: bool = False) -> Change:
    """Make the first key of a site. Raise UsageError where there is one already."""
    with _locked(folder, dry_run):
        keys = read_keys(folder)
        if keys:
            raise UsageError(
                f"{folder} holds the key {keys[0].id} already", remedy="`fmslurm key rotate` makes another beside it"
            )
        return _apply(folder, Change(added=() if dry_run else (_new(folder),)), dry_run)


def rotate(folder: str, *, dry_run: bool = False) -> Change:
    """Make a new key beside the one in use. Raise UsageError where there is none yet, or another rotation is not ended.

    Only two are valid, so a third would take away the one that nodes hold which were not reached since the last rotation.
    """
    with _locked(folder, dry_run):
        keys = read_keys(folder)
        if not keys:
            raise UsageError(f"there is no key in {folder} yet", remedy="`fmslurm key create`")
        stay, go = keys[: VALID_KEYS - 1], keys[VALID_KEYS - 1 :]
        now = time.time()
        if any(now < key.expires for key in go):
            raise UsageError(
                f"{keys[0].id} is new beside {go[0].id}: nodes that hold the older one alone would have none in common with "
                "the rest",
                remedy="When every node has the new one: `fmslurm key rotate --finish`, then rotate again",
            )
        if not dry_run and 0 <= now - keys[0].created < 1.0:
            time.sleep(1.0)  # certificates count in whole seconds, and the new one must be the newer one
        return _apply(folder, Change(() if dry_run else (_new(folder),), stay, go), dry_run)


def finish(folder: str, *, dry_run: bool = False) -> Change:
    """End a rotation: remove all keys but the newest. Raise UsageError where there is none."""
    with _locked(folder, dry_run):
        keys = read_keys(folder)
        if not keys:
            raise UsageError(f"there is no key in {folder} yet", remedy="`fmslurm key create`")
        return _apply(folder, Change((), keys[:1], keys[1:]), dry_run)


def sync(folder: str, source: str, *, dry_run: bool = False) -> Change:
    """Make a node's folder hold exactly the keys of another folder. Raise UsageError where that one holds none."""
    wanted = read_keys(source)[:VALID_KEYS]
    if not wanted:
        raise UsageError(f"there is no key in {source}", remedy="Name the folder that `fmslurm key create` wrote to")
    with _locked(folder, dry_run):
        have = {key.fingerprint: key for key in read_keys(folder)}
        want = {key.fingerprint for key in wanted}
        added = tuple(k._replace(path=_path(folder, k)) for k in wanted if k.fingerprint not in have)
        kept = tuple(key for key in have.values() if key.fingerprint in want)
        removed = tuple(key for key in have.values() if key.fingerprint not in want)
        return _apply(folder, Change(added, kept, removed), dry_run)


def _path(folder: str, key: Key) -> str:
    return os.path.join(folder, f"channel-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(key.created))}-{key.id}.pem")


def _new(folder: str) -> Key:
    key = parse(make_pem(days=KEY_DAYS))
    return key._replace(path=_path(folder, key))


def _apply(folder: str, change: Change, dry_run: bool) -> Change:
    """Write the new files first: at no moment is there no key, and readers take the newest two of three."""
    if not dry_run:
        for key in change.added:
            write_atomic(key.path, key.pem, mode=0o600)
        _remove(folder, change.removed)
    return change


def _remove(folder: str, keys: Sequence[Key]) -> None:
    for key in keys:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(key.path)
    if keys:
        sync_folder(folder)


@contextlib.contextmanager
def _locked(folder: str, dry_run: bool) -> Iterator[None]:
    """Hold the folder, which is made (0700) where it is missing, for one writer at a time."""
    if dry_run:
        yield
        return
    try:
        os.makedirs(os.path.dirname(folder), mode=0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        raise LackingError(
            f"{folder} cannot be used: {exc.strerror}", remedy="Run it as root, or name another folder"
        ) from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(descriptor)
        raise LackingError(f"somebody else is changing the keys in {folder}", remedy="Try again") from exc
    try:
        yield
    finally:
        os.close(descriptor)
