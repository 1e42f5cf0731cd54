"""munge credentials: who may open them, that they hide what they hold, and what each refusal says."""

from __future__ import annotations

import base64
import ctypes
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "channel"))
from channel_peers import munged, own_munged

from slurm_ext.command import run
from slurm_ext.config.model import Settings, Site
from slurm_ext.credential import AuthenticationError, MungeAuthenticator, for_site
from slurm_ext.credential_tls import fingerprint
from slurm_ext.errors import LackingError

SECRET = b"0123456789abcdef-very-secret-unique-id"


@pytest.fixture(scope="module")
def munge_socket() -> Iterator[str]:
    """A munged in a folder that other users may enter: pytest's own may not be, and another pytest closes them again."""
    with own_munged() as path:
        yield path


def inside(credential: bytes) -> bytes:
    """Return the bytes of a credential without its armour."""
    return base64.b64decode(credential.removeprefix(b"MUNGE:").removesuffix(b":"))


def set_option(authenticator: MungeAuthenticator, option: int, value: int) -> None:
    assert authenticator._lib.munge_ctx_set(authenticator._context, ctypes.c_int(option), ctypes.c_int(value)) == 0


def test_credentials_are_hidden_and_good_once(munge_socket: str) -> None:
    ours = MungeAuthenticator(munge_socket)
    sealed = ours.seal(SECRET)
    assert SECRET not in inside(sealed)
    assert ours.open(sealed) == SECRET
    with pytest.raises(AuthenticationError, match=r"[Rr]eplayed"):
        ours.open(sealed)
    assert ours.open(sealed, again=True) == SECRET


def test_cipher_and_digest_are_ours_and_not_what_munged_is_set_to(munge_socket: str) -> None:
    """The same library with munge's cipher `none` shows what would be on the wire; its bytes say which one was used."""
    ours, bare = MungeAuthenticator(munge_socket), MungeAuthenticator(munge_socket)
    set_option(bare, 0, 0)
    set_option(bare, 2, 0)  # not compressed
    assert SECRET in inside(bare.seal(SECRET))
    version, cipher, digest = inside(ours.seal(SECRET))[:3]
    assert (version, cipher, digest) == (3, 4, 5)  # AES-128 with SHA-256, in munge's own numbers
    with pytest.raises(AuthenticationError, match="not encrypted"):
        ours.open(bare.seal(SECRET))
    # libmunge notes what it opened in its context: that must not become how we seal.
    assert SECRET not in inside(ours.seal(SECRET))
    assert tuple(inside(ours.seal(SECRET))[:3]) == (3, 4, 5)


def test_a_challenge_hides_its_secret_and_tells_it_to_who_sees_the_same_certificate(munge_socket: str) -> None:
    server, client = MungeAuthenticator(munge_socket), MungeAuthenticator(munge_socket)
    shown, secret = server.challenge()
    binding = fingerprint(server.side(server=True, theirs=()).certificate)
    assert server.challenge().shown == shown  # sealed once for many
    for text in (secret, binding):
        assert text.encode() not in shown + inside(shown)
        assert text not in repr(server.challenge())
    for _ in range(2):
        assert client.answer(shown, binding) == {"n": secret}
    server.believe(client.answer(shown, binding), secret)
    with pytest.raises(AuthenticationError, match="from another connection"):
        client.answer(shown, "0" * 64)
    with pytest.raises(AuthenticationError, match="does not know"):
        server.believe({"n": secret}, "")


def test_a_challenge_that_munged_would_send_in_clear_is_shown_to_nobody(munge_socket: str) -> None:
    bare = MungeAuthenticator(munge_socket)
    set_option(bare, 0, 0)
    with pytest.raises(AuthenticationError, match="not encrypted"):
        bare.challenge()


@pytest.mark.parametrize(
    "held", [b"", b"{}", b"[]", b"null", b'"s"', b"[" * 50_000, b"\xff", b'{"s": "x"}', b'{"n": "x"}']
)
def test_a_credential_that_is_no_challenge_is_answered_by_nothing(munge_socket: str, held: bytes) -> None:
    ours = MungeAuthenticator(munge_socket)
    with pytest.raises(AuthenticationError):
        ours.answer(ours.seal(held), "x")


def test_only_uids_that_may_speak_are_believed(munge_socket: str) -> None:
    ours, strict = MungeAuthenticator(munge_socket), MungeAuthenticator(munge_socket, allowed_uids=[4711])
    with pytest.raises(AuthenticationError, match="may not speak"):
        strict.open(ours.seal(b"x"))


def test_only_our_uid_may_open_them(munge_socket: str) -> None:
    if os.geteuid() != 0 or shutil.which("unmunge") is None:
        pytest.skip("needs root, to become somebody else, and the unmunge command")
    sealed = MungeAuthenticator(munge_socket).seal(SECRET)
    argv = [shutil.which("unmunge") or "", f"--socket={munge_socket}"]
    theirs = run(argv, timeout_s=60, user=65534, group=65534, input_text=sealed.decode())
    assert not theirs.ok
    assert "nauthorized" in theirs.stdout + theirs.stderr
    assert SECRET.decode() not in theirs.stdout
    assert SECRET.decode() in run(argv, timeout_s=60, input_text=sealed.decode()).stdout


def test_from_another_user_is_refused(munge_socket: str) -> None:
    if os.geteuid() != 0 or shutil.which("munge") is None:
        pytest.skip("needs root, to become somebody else, and the munge command")
    argv = [shutil.which("munge") or "", "-n", f"--socket={munge_socket}"]
    made = run(argv, timeout_s=60, user=65534, group=65534)
    assert made.ok, made.words()
    with pytest.raises(AuthenticationError, match="uid 65534"):
        MungeAuthenticator(munge_socket).open(made.stdout.strip().encode())


@pytest.mark.parametrize("noise", [b"", b"MUNGE:garbage:", b"MUNGE:AwQ:", b"\0", os.urandom(300), b"{}"])
def test_noise_is_no_credential(munge_socket: str, noise: bytes) -> None:
    with pytest.raises(AuthenticationError):
        MungeAuthenticator(munge_socket).open(noise)


def test_every_flipped_bit_is_seen(munge_socket: str) -> None:
    ours = MungeAuthenticator(munge_socket)
    for position in range(0, len(inside(ours.seal(SECRET)))):
        sealed = bytearray(inside(ours.seal(SECRET)))
        sealed[position] ^= 1
        with pytest.raises(AuthenticationError):
            ours.open(b"MUNGE:" + base64.b64encode(bytes(sealed)) + b":")


def test_no_munged_is_told_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(LackingError, match="does not answer"):
        MungeAuthenticator(str(tmp_path / "nowhere.socket"))
    assert time.monotonic() - started < 9, "libmunge itself would wait ten"


def test_a_munged_that_hangs_costs_one_wait_and_no_more(tmp_path: Path) -> None:
    with munged(tmp_path, os.urandom(128)) as path:
        ours = MungeAuthenticator(path)
        sealed = ours.seal(SECRET)
        pid = int((tmp_path / "pid").read_text())  # written before `munged` gives us its socket
        os.kill(pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            for work in (lambda: ours.open(sealed), lambda: ours.seal(SECRET), lambda: ours.open(sealed)):
                with pytest.raises(LackingError, match="See that munged runs"):
                    work()
            # libmunge's own patience is 10 s for one call, and three times that for three.
            assert time.monotonic() - started < 25
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_site_has_munge_or_a_key_or_an_error_that_names_both(munge_socket: str, tmp_path: Path) -> None:
    from slurm_ext import keys

    site = Site(state_dir=f"{tmp_path}/%n", munge_socket=munge_socket)
    assert for_site(Settings(site=site), "n0").name == "munge"
    site = site._replace(munge_socket=f"{tmp_path}/none")
    with pytest.raises(LackingError, match=r"munged does not answer .* and there is no key in .*/n0/keys.*key create"):
        for_site(Settings(site=site), "n0")
    keys.create(f"{tmp_path}/n0/keys")
    assert for_site(Settings(site=site), "n0").name == "key"
