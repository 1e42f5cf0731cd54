"""Strangers, forgers and eavesdroppers against a hub on a real socket, with a real munged and real certificates."""

from __future__ import annotations

import multiprocessing
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from channel_peers import LONG_S, Raw, Tap, frame, introduction, kinds, munged, pump, refusal

from slurm_ext import channel, credential_tls, keys
from slurm_ext.channel import Hub
from slurm_ext.credential import Authenticator, MungeAuthenticator
from slurm_ext.credential_tls import KeyAuthenticator

Prove = Callable[[], Authenticator]
Shifted = Callable[[int], dict[str, str]]
NOBODY = 65534


@pytest.fixture
def server(hubs: list[Hub], prove: Prove) -> tuple[Hub, int]:
    """A hub a that expects b and c, and its port."""
    hubs.append(Hub(prove(), me="a", key="c/1-0", peers=["b", "c"]))
    return hubs[0], hubs[0].listen("127.0.0.1", 0)


@pytest.fixture
def munge_server(hubs: list[Hub], munge_socket: str) -> tuple[Hub, int]:
    hubs.append(Hub(MungeAuthenticator(munge_socket), me="a", key="c/1-0", peers=["b", "c"]))
    return hubs[0], hubs[0].listen("127.0.0.1", 0)


@pytest.fixture
def raws() -> Iterator[list[Raw]]:
    made: list[Raw] = []
    yield made
    for raw in made:
        raw.close()


def honest(hubs: list[Hub], prove: Prove, port: int, name: str = "b") -> Hub:
    """Let an honest peer in, and return its hub."""
    hubs.append(Hub(prove(), me=name, key="c/1-0", peers=["a"]))
    hubs[-1].connect("a", "127.0.0.1", port)
    pump([hubs[0], hubs[-1]], lambda _: name in hubs[0].peers() and bool(hubs[-1].peers()))
    assert name in hubs[0].peers()
    return hubs[-1]


def test_a_recorded_stream_plays_no_second_time(hubs: list[Hub], prove: Prove, server: tuple[Hub, int]) -> None:
    hub, port = server
    tap = Tap(port)
    try:
        client = honest(hubs, prove, tap.port)
        client.send("a", {"t": "report", "ok": True})
        pump([hub, client], 1)
        client.close()
        hubs.remove(client)
        pump([hub], 1)
        with socket.create_connection(("127.0.0.1", port)) as again:
            again.sendall(bytes(tap.to_server))
            assert refusal(hub).startswith("TLS:")
    finally:
        tap.close()
    assert hub.peers() == frozenset()
    assert hub.poll(0.05) == []


@pytest.mark.parametrize("at", [40, 150])
def test_a_flipped_bit_on_the_way_in_keeps_the_peer_out(
    hubs: list[Hub], prove: Prove, server: tuple[Hub, int], at: int
) -> None:
    hub, port = server
    tap = Tap(port, lambda chunk: chunk[:at] + bytes([chunk[at] ^ 1]) + chunk[at + 1 :] if at < len(chunk) else chunk)
    try:
        hubs.append(Hub(prove(), me="b", key="c/1-0", peers=["a"]))
        hubs[-1].connect("a", "127.0.0.1", tap.port)
        seen = pump(hubs, lambda events: bool(events[1]))
        assert hub.peers() == frozenset()
        assert kinds(seen)[1] == ["down"]
    finally:
        tap.close()


def test_a_flipped_bit_in_a_message_ends_the_talk(hubs: list[Hub], prove: Prove, server: tuple[Hub, int]) -> None:
    hub, port = server
    armed = [False]
    tap = Tap(port, lambda chunk: chunk[:-1] + bytes([chunk[-1] ^ 1]) if armed[0] else chunk)
    try:
        client = honest(hubs, prove, tap.port)
        armed[0] = True
        client.send("a", {"t": "report", "ok": False})
        seen = pump([hub, client], lambda events: bool(events[0]))
        assert kinds(seen)[0] == ["down"]
        assert "TLS: " in str(seen[0][0].body["why"])
    finally:
        tap.close()


def test_a_credential_opens_the_door_once(munge_server: tuple[Hub, int], munge_socket: str, raws: list[Raw]) -> None:
    hub, port = munge_server
    context = credential_tls.unproven_client()
    for _ in range(2):
        raws.append(Raw(port, b"fmslurm munge\n", context, hub))
    sealed = MungeAuthenticator(munge_socket).seal(introduction(raws[0].binding()))
    raws[0].send(frame(sealed))
    assert kinds([pump([hub], 1)[0]]) == [["up"]]
    raws[1].send(frame(sealed))
    assert "eplayed" in refusal(hub)
    assert hub.peers() == {"b"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"k": "c/2-0"}, "talks about something else"),
        ({"f": "z"}, "from a name that we do not expect"),
        ({"f": "a"}, "from a name that we do not expect"),
        ({"f": ["b"]}, "from a name that we do not expect"),
        ({"s": "0" * 64}, "from another connection"),
    ],
)
def test_an_introduction_that_fits_elsewhere_is_refused(
    munge_server: tuple[Hub, int], munge_socket: str, raws: list[Raw], changed: dict[str, object], words: str
) -> None:
    hub, port = munge_server
    raws.append(Raw(port, b"fmslurm munge\n", credential_tls.unproven_client(), hub))
    raws[0].send(frame(MungeAuthenticator(munge_socket).seal(introduction(raws[0].binding(), **changed))))
    assert refusal(hub) == words


def test_who_stands_in_between_with_a_certificate_of_his_own_is_seen(
    hubs: list[Hub], munge_server: tuple[Hub, int], munge_socket: str, raws: list[Raw]
) -> None:
    """He hands the honest server's introduction on, inside a TLS connection of his own."""
    hub, port = munge_server
    raws.append(Raw(port, b"fmslurm munge\n", credential_tls.unproven_client(), hub))
    genuine = raws[0].receive()
    own = credential_tls.passing_server()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Hub(MungeAuthenticator(munge_socket), me="b", key="c/1-0", peers=["a"])
        hubs.append(client)
        client.connect("a", "127.0.0.1", listener.getsockname()[1])
        caught: list[bytes] = []

        def between() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.settimeout(LONG_S)
                while not caught or not caught[0].endswith(b"\n"):
                    caught[:] = [(caught[0] if caught else b"") + sock.recv(1)]
                sock.sendall(b"fmslurm munge\n")
                with own.context.wrap_socket(sock, server_side=True) as tls:
                    caught.append(tls.recv(4096))
                    tls.sendall(genuine)
                    tls.recv(1)

        thread = threading.Thread(target=between, daemon=True)
        thread.start()
        down = pump([client], 1)[0]
        thread.join(LONG_S)
    assert [(e.kind, e.body["why"]) for e in down] == [("down", "from another connection")]
    # And what the client said of itself to the man in between fits the honest server no better.
    raws[0].send(caught[1])
    assert refusal(hub) == "from another connection"


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
def test_a_users_process_that_connects_is_refused(munge_server: tuple[Hub, int], munge_socket: str) -> None:
    hub, port = munge_server

    def connect() -> None:
        sock = socket.create_connection(("127.0.0.1", port), timeout=LONG_S)
        sock.sendall(b"fmslurm munge\n")
        while sock.recv(1) != b"\n":
            pass
        tls = credential_tls.unproven_client().wrap_socket(sock)
        binding = credential_tls.fingerprint(tls.getpeercert(binary_form=True) or b"")
        tls.sendall(frame(_for_root(munge_socket).seal(introduction(binding))))
        tls.recv(1)

    child = _as_nobody(connect)
    try:
        assert refusal(hub) == f"sent by uid {NOBODY}, which may not speak here"
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
    said = f"fmslurm {method}{'' if method == 'munge' else ' ' + credential_tls.read_keys(key_folder)[0].id}\n".encode()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            sock, _ = listener.accept()
            sock.settimeout(LONG_S)
            while sock.recv(1) != b"\n":
                pass
            sock.sendall(said)
            tls = own.context.wrap_socket(sock, server_side=True)
            binding = credential_tls.fingerprint(own.certificate)
            payload = introduction(binding, f="a")
            tls.sendall(frame(_for_root(munge_socket).seal(payload) if method == "munge" else payload) + frame(b"{}"))
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


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"fmslurm " + b"a" * 200,
        b"fmslurm MUNGE\n",
        b"fmslurm munge\n" + os.urandom(300),
        b"fmslurm key\n" + b"\xff" * 300,
        b"fmslurm none\n",
        b"\0" * 64,
        struct.pack("!I", 0xFFFFFFFF),
    ],
    ids=["http", "tls", "ssh", "long", "shouting", "garbage-after", "ones-after", "none", "zeros", "huge"],
)
def test_noise_is_dropped_at_once_and_blocks_nobody(
    hubs: list[Hub], prove: Prove, server: tuple[Hub, int], noise: bytes
) -> None:
    hub, port = server
    strangers = [socket.create_connection(("127.0.0.1", port), timeout=LONG_S) for _ in range(3)]
    try:
        for stranger in strangers:
            stranger.sendall(noise)
        honest(hubs, prove, port)
        pump([hub], lambda _: hub.refused >= 3)
        assert hub.refused == 3
    finally:
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize(
    "content", [struct.pack("!I", channel.FRAME_MAX + 1), struct.pack("!I", channel.STRANGER_MAX + 1)]
)
def test_a_huge_frame_is_refused_before_it_is_sent(
    munge_server: tuple[Hub, int], raws: list[Raw], content: bytes
) -> None:
    hub, port = munge_server
    raws.append(Raw(port, b"fmslurm munge\n", credential_tls.unproven_client(), hub))
    raws[0].send(content)
    assert refusal(hub).startswith("a frame of ")


def test_a_peer_that_is_believed_may_send_no_endless_frame_either(
    hubs: list[Hub], prove: Prove, server: tuple[Hub, int]
) -> None:
    hub, port = server
    client = honest(hubs, prove, port)
    connection = next(iter(client._peers.values()))
    assert connection.wire._tls is not None
    connection.wire._tls.write(struct.pack("!I", channel.FRAME_MAX + 1))
    connection.wire.outbox += connection.wire._outgoing.read()
    client._flush(connection)
    assert [(e.kind, e.body.get("why")) for e in pump([hub], 1)[0]] == [
        ("down", f"a frame of {channel.FRAME_MAX + 1} bytes")
    ]


@pytest.mark.parametrize("content", [b"[]", b"nonsense", b"\xff\xfe", b"[" * 100_000])
def test_a_peer_that_sends_no_message_is_gone(
    hubs: list[Hub], prove: Prove, server: tuple[Hub, int], content: bytes
) -> None:
    hub, port = server
    client = honest(hubs, prove, port)
    client._queue(next(iter(client._peers.values())), content)
    assert [(e.kind, e.peer) for e in pump([hub, client], lambda events: bool(events[0]))[0]] == [("down", "b")]


def test_who_drips_byte_by_byte_is_dropped_in_time(
    hubs: list[Hub], prove: Prove, server: tuple[Hub, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, port = server
    monkeypatch.setattr(channel, "HANDSHAKE_S", 1.0)
    greeting = b"fmslurm munge\n" if hub._auth.name == "munge" else b"fmslurm key 0123456789abcdef\n"
    with socket.create_connection(("127.0.0.1", port), timeout=LONG_S) as loris:
        honest(hubs, prove, port)
        started = time.monotonic()
        for byte in greeting[:-1] * 100:
            try:
                loris.sendall(bytes([byte]))
            except OSError:
                break
            hub.poll(0.05)
            if hub.refused:
                break
        assert hub.refused == 1
        assert time.monotonic() - started < 10.0
        assert hub.last_refusal in ("no handshake in time", "does not speak our language")


def test_a_flood_lets_the_honest_peers_in(hubs: list[Hub], prove: Prove, server: tuple[Hub, int]) -> None:
    """Processes that connect as fast as they can, all the while: silent ones, and ones that talk."""
    hub, port = server
    stop = multiprocessing.get_context("fork").Event()

    def flood(word: bytes) -> None:
        kept: list[socket.socket] = []
        while not stop.is_set():
            try:
                kept.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                kept[-1].sendall(word)
            except OSError:
                pass
            if len(kept) > 300:
                kept.pop(0).close()

    flooders = [
        multiprocessing.get_context("fork").Process(target=flood, args=(word,)) for word in (b"", b"fmslurm munge\n")
    ]
    for process in flooders:
        process.start()
    try:
        pump([hub], lambda _: hub.refused > 2 * channel.STRANGERS_MAX)
        most = 0
        for name in ("b", "c"):
            hubs.append(Hub(prove(), me=name, key="c/1-0", peers=["a"]))
        tries, deadline = {"b": 0.0, "c": 0.0}, time.monotonic() + 2 * LONG_S
        while hub.peers() != {"b", "c"} and time.monotonic() < deadline:
            for client in hubs[1:]:
                if not client.peers() and time.monotonic() >= tries[client._me]:
                    tries[client._me] = time.monotonic() + 1.0  # as an agent does
                    client.connect("a", "127.0.0.1", port)
                client.poll(0)
            hub.poll(0.005)
            most = max(most, len(hub._connections))
        assert hub.peers() == {"b", "c"}
        assert most <= channel.STRANGERS_MAX + 2 + 2 + 1
    finally:
        stop.set()
        for process in flooders:
            process.join(10)
            process.kill()


def test_the_address_that_floods_is_the_one_that_loses(hubs: list[Hub], prove: Prove, server: tuple[Hub, int]) -> None:
    hub, port = server
    with socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.9", 0)) as quiet:
        pump([hub], lambda _: len(hub._connections) == 1)
        flood = []
        try:
            for _ in range(2 * channel.STRANGERS_MAX):
                flood.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                hub.poll(0)
            pump([hub], lambda _: hub.refused >= channel.STRANGERS_MAX - 2)
            assert {c.address for c in hub._connections} == {"127.0.0.1", "127.0.0.9"}
            quiet.sendall(b"x")
            assert refusal(hub) == "does not speak our language"
        finally:
            for sock in flood:
                sock.close()


def tls_pair(hubs: list[Hub], server_folder: str, client_folder: str) -> tuple[Hub, Hub]:
    hubs += [
        Hub(KeyAuthenticator(server_folder), me="a", key="k", peers=["b"]),
        Hub(KeyAuthenticator(client_folder), me="b", key="k", peers=["a"]),
    ]
    hubs[1].connect("a", "127.0.0.1", hubs[0].listen("127.0.0.1", 0))
    return hubs[0], hubs[1]


def test_another_sites_key_is_named_on_both_sides(hubs: list[Hub], key_folder: str, other_key_folder: str) -> None:
    tls_pair(hubs, key_folder, other_key_folder)
    seen = pump(hubs, 2)
    assert [(e.kind, e.body["reason"]) for e in seen[0]] == [("refused", "key")]
    assert [(e.kind, e.body["reason"]) for e in seen[1]] == [("down", "key")]
    assert "no key in common" in str(seen[1][0].body["why"])


def by_hand(key_folder: str, pem: bytes | None) -> ssl.SSLContext:
    """A client's context that shows what it likes, and believes anybody."""
    made = credential_tls.unproven_client()
    if pem is not None:
        credential_tls.load(made, pem)
    return made


@pytest.mark.parametrize("shown", ["nothing", "another", "child", "expired"])
def test_only_the_sites_own_certificate_gets_in(
    hubs: list[Hub],
    key_folder: str,
    raws: list[Raw],
    shown: str,
    tmp_path: Path,
    shifted: Shifted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = credential_tls.read_keys(key_folder)[0]
    authenticator = KeyAuthenticator(key_folder)
    pem: bytes | None = None
    if shown == "another":
        pem = keys.make_pem(days=2)
    elif shown == "child":
        pem = _child_of(own.pem, str(tmp_path))
    elif shown == "expired":
        monkeypatch.setattr(keys.command, "CLEAN_ENV", {**keys.command.CLEAN_ENV, **shifted(-5 * 86_400)})
        pem = keys.make_pem(days=2)
        monkeypatch.undo()
        expired = credential_tls.parse(pem)
        # Known to the server as one of its own: only its dates speak against it.
        authenticator._keys = [own, expired]
    hubs.append(Hub(authenticator, me="a", key="c/1-0", peers=["b"]))
    port = hubs[0].listen("127.0.0.1", 0)
    raws.append(Raw(port, f"fmslurm key {own.id}\n".encode(), by_hand(key_folder, pem), hubs[0]))
    pump(hubs, lambda _: hubs[0].refused > 0)
    words = {
        "nothing": "peer did not return a certificate",
        "another": "self-signed certificate",
        "child": "shows a certificate that is none of ours",
        "expired": "certificate has expired",
    }[shown]
    assert words in hubs[0].last_refusal.replace("self signed", "self-signed")
    assert hubs[0].peers() == frozenset()


def _child_of(pem: bytes, folder: str) -> bytes:
    """Return a key whose certificate the site's key has signed: OpenSSL would believe it."""
    from slurm_ext.command import run

    with open(f"{folder}/ca.pem", "wb") as stream:
        stream.write(pem)
    argv = [
        "openssl",
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        "/CN=child",
    ]
    assert run([*argv, "-keyout", f"{folder}/child.key", "-out", f"{folder}/child.csr"], timeout_s=20).ok
    argv = [
        "openssl",
        "x509",
        "-req",
        "-in",
        f"{folder}/child.csr",
        "-CA",
        f"{folder}/ca.pem",
        "-CAkey",
        f"{folder}/ca.pem",
    ]
    made = run([*argv, "-days", "2", "-set_serial", "7", "-out", f"{folder}/child.pem"], timeout_s=20)
    assert made.ok, made.words()
    with open(f"{folder}/child.key", "rb") as key, open(f"{folder}/child.pem", "rb") as certificate:
        return key.read() + certificate.read()


def test_tls_before_1_3_is_refused(hubs: list[Hub], key_folder: str, raws: list[Raw]) -> None:
    own = credential_tls.read_keys(key_folder)[0]
    hubs.append(Hub(KeyAuthenticator(key_folder), me="a", key="k", peers=["b"]))
    port = hubs[0].listen("127.0.0.1", 0)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    credential_tls.load(old, own.pem)
    with pytest.raises((ssl.SSLError, OSError)):
        raws.append(Raw(port, f"fmslurm key {own.id}\n".encode(), old, hubs[0]))
    assert "protocol" in hubs[0].last_refusal


@pytest.mark.parametrize("server_has", ["munge", "key"])
def test_munge_on_one_side_only_is_named_on_both(
    hubs: list[Hub], munge_socket: str, key_folder: str, server_has: str
) -> None:
    by: dict[str, Authenticator] = {"munge": MungeAuthenticator(munge_socket), "key": KeyAuthenticator(key_folder)}
    other = "key" if server_has == "munge" else "munge"
    hubs += [Hub(by[server_has], me="a", key="k", peers=["b"]), Hub(by[other], me="b", key="k", peers=["a"])]
    hubs[1].connect("a", "127.0.0.1", hubs[0].listen("127.0.0.1", 0))
    seen = pump(hubs, 2)
    assert [(e.kind, e.body["reason"]) for e in seen[0]] == [("refused", "method")]
    assert [(e.kind, e.peer, e.body["reason"]) for e in seen[1]] == [("down", "a", "method")]
    assert "munge" in str(seen[1][0].body["why"])
    assert "the site's key" in str(seen[1][0].body["why"])


@pytest.mark.parametrize("shift_s", [-3600, 3600], ids=["behind", "ahead"])
def test_clocks_that_differ_are_named_on_both_sides(
    hubs: list[Hub], tmp_path: Path, shifted: Shifted, shift_s: int
) -> None:
    key = os.urandom(128)
    with munged(tmp_path / "a", key) as here, munged(tmp_path / "b", key, env=shifted(shift_s)) as there:
        hubs += [
            Hub(MungeAuthenticator(here), me="a", key="k", peers=["b"]),
            Hub(MungeAuthenticator(there), me="b", key="k", peers=["a"]),
        ]
        hubs[1].connect("a", "127.0.0.1", hubs[0].listen("127.0.0.1", 0))
        seen = pump(hubs, 2)
        for hub in hubs:
            hub.close()
        hubs.clear()
    assert [(e.kind, e.body["reason"]) for e in seen[0]] == [("refused", "clock")]
    assert [(e.kind, e.peer, e.body["reason"]) for e in seen[1]] == [("down", "a", "clock")]
    assert "clocks of both nodes differ" in str(seen[1][0].body["why"])
    assert "3600 s" in str(seen[1][0].body["why"]).replace("3599 s", "3600 s").replace("3601 s", "3600 s")


def test_another_munge_key_is_named_on_both_sides(hubs: list[Hub], tmp_path: Path) -> None:
    with munged(tmp_path / "a", os.urandom(128)) as here, munged(tmp_path / "b", os.urandom(128)) as there:
        hubs += [
            Hub(MungeAuthenticator(here), me="a", key="k", peers=["b"]),
            Hub(MungeAuthenticator(there), me="b", key="k", peers=["a"]),
        ]
        hubs[1].connect("a", "127.0.0.1", hubs[0].listen("127.0.0.1", 0))
        seen = pump(hubs, 2)
        for hub in hubs:
            hub.close()
        hubs.clear()
    assert [(e.kind, e.body["reason"]) for e in seen[0]] == [("refused", "key")]
    assert [(e.kind, e.body["reason"]) for e in seen[1]] == [("down", "key")]


def test_a_key_that_is_not_valid_yet_is_a_matter_of_clocks(
    hubs: list[Hub], tmp_path: Path, shifted: Shifted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys.command, "CLEAN_ENV", {**keys.command.CLEAN_ENV, **shifted(86_400)})
    keys.create(str(tmp_path / "keys"))
    monkeypatch.undo()
    tls_pair(hubs, str(tmp_path / "keys"), str(tmp_path / "keys"))
    seen = pump(hubs, lambda events: bool(events[1]))
    assert [(e.kind, e.body["reason"]) for e in seen[1]] == [("down", "clock")]
    assert "not yet valid" in str(seen[1][0].body["why"])


def test_while_a_key_is_replaced_nodes_with_and_without_the_new_one_meet(hubs: list[Hub], tmp_path: Path) -> None:
    old, both, new = (str(tmp_path / name / "keys") for name in ("old", "both", "new"))
    keys.create(old)
    keys.sync(both, old)
    keys.rotate(both)
    keys.sync(new, both)
    keys.finish(new)
    for one, other, meet in (
        (old, both, True),
        (both, old, True),
        (both, both, True),
        (both, new, True),
        (old, new, False),
    ):
        pair = list(tls_pair([], one, other))
        try:
            seen = pump(pair, 2)
            assert kinds(seen) == ([["up"], ["up"]] if meet else [["refused"], ["down"]])
        finally:
            for hub in pair:
                hub.close()


def test_munged_that_stops_answering_is_a_clear_error(
    hubs: list[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with munged(tmp_path / "m", os.urandom(128)) as path:
        hubs += [Hub(MungeAuthenticator(path), me=me, key="k", peers=["a", "b"]) for me in ("a", "b")]
        port = hubs[0].listen("127.0.0.1", 0)
    hubs[1].connect("a", "127.0.0.1", port)
    seen = pump(hubs, lambda events: bool(events[1]))
    assert [e.kind for e in seen[1]] == ["down"]
    assert "munge" in hubs[0].last_refusal + str(seen[1][0].body["why"])
