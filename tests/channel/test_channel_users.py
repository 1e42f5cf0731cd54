"""A user's process, with rights of its own alone, against the channel of root."""

from __future__ import annotations

import encodings.idna  # noqa: F401  nobody may not be able to read it later
import multiprocessing
import os
import socket
from collections.abc import Callable

import pytest
from channel_peers import LONG_S, frame, introduction, pump, refusal

from slurm_ext import credential_tls
from slurm_ext.channel import Hub
from slurm_ext.credential import AuthenticationError, Authenticator, MungeAuthenticator
from slurm_ext.credential_tls import KeyAuthenticator

Prove = Callable[[], Authenticator]
Shifted = Callable[[int], dict[str, str]]
NOBODY = 65534


@pytest.fixture
def munge_server(hubs: list[Hub], munge_socket: str) -> tuple[Hub, int]:
    hubs.append(Hub(MungeAuthenticator(munge_socket), me="a", key="c/1-0", peers=["b", "c"]))
    return hubs[0], hubs[0].listen("127.0.0.1", 0)


def _as_nobody(work: Callable[[], None]) -> multiprocessing.Process:
    def become() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()

    child = multiprocessing.get_context("fork").Process(target=become)
    child.start()
    return child


root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")


@root
@pytest.mark.parametrize("says", ["a guess", "a credential"])
def test_a_users_process_that_connects_is_refused(munge_server: tuple[Hub, int], munge_socket: str, says: str) -> None:
    """It is shown the challenge, and munged opens that for root alone; a credential of its own names its own uid."""
    hub, port = munge_server

    def connect() -> None:
        sock = socket.create_connection(("127.0.0.1", port), timeout=LONG_S)
        sock.sendall(b"fmslurm munge\n")
        shown = b""
        while not shown.endswith(b"\n"):
            shown += sock.recv(1)
        tls = credential_tls.unproven_client().wrap_socket(sock)
        binding = credential_tls.fingerprint(tls.getpeercert(binary_form=True) or b"")
        try:
            answer = MungeAuthenticator(munge_socket).answer(shown.split()[-1], binding)
        except AuthenticationError as exc:
            answer = {"n": str(exc)} if says == "a guess" else {"c": _for_root(munge_socket).seal(b"x").decode()}
        tls.sendall(frame(introduction(binding, **answer)))
        tls.recv(1)

    child = _as_nobody(connect)
    try:
        words = {"a guess": "does not know", "a credential": f"sent by uid {NOBODY}, which may not speak here"}[says]
        assert refusal(hub).startswith(words)
    finally:
        child.join(LONG_S)
    assert hub.peers() == frozenset()


def _for_root(path: str) -> MungeAuthenticator:
    """A user's authenticator whose credentials root may open."""
    made = MungeAuthenticator(path)
    import ctypes

    made._lib.munge_ctx_set(made._context, ctypes.c_int(9), ctypes.c_int(0))
    return made


@root
@pytest.mark.parametrize("method", ["munge", "key"])
def test_a_users_process_on_the_port_learns_and_wins_nothing(
    hubs: list[Hub], munge_socket: str, key_folder: str, method: str
) -> None:
    """It was there first, shows a certificate of its own and a credential of its own."""
    own = credential_tls.passing_server()
    binding = credential_tls.fingerprint(own.certificate)
    known = credential_tls.read_keys(key_folder)[0].id.encode()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            sock, _ = listener.accept()
            sock.settimeout(LONG_S)
            while sock.recv(1) != b"\n":
                pass
            named = f'{{"s": "{binding}", "n": "{"0" * 32}"}}'.encode()
            shown = _for_root(munge_socket).seal(named) if method == "munge" else known
            sock.sendall(f"fmslurm {method} ".encode() + shown + b"\n")
            tls = own.context.wrap_socket(sock, server_side=True)
            tls.sendall(frame(introduction(binding, f="a")))
            tls.recv(4096)

        child = _as_nobody(listen)
        try:
            prove: Authenticator = (
                MungeAuthenticator(munge_socket) if method == "munge" else KeyAuthenticator(key_folder)
            )
            hubs.append(Hub(prove, me="b", key="c/1-0", peers=["a"]))
            hubs[0].connect("a", "127.0.0.1", listener.getsockname()[1])
            down = pump(hubs, 1)[0]
        finally:
            child.kill()
            child.join(LONG_S)
    assert [e.kind for e in down] == ["down"]
    expected = f"sent by uid {NOBODY}" if method == "munge" else "TLS: self-signed certificate"
    assert expected in str(down[0].body["why"]).replace("self signed", "self-signed")
    assert hubs[0].peers() == frozenset()


@root
def test_a_user_cannot_read_the_key(key_folder: str) -> None:
    def read() -> None:
        try:
            KeyAuthenticator(key_folder)
        except PermissionError:
            os._exit(7)

    child = _as_nobody(read)
    child.join(LONG_S)
    assert child.exitcode == 7
