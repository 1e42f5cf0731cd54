"""Strangers, forgers and eavesdroppers against a hub on a real socket, with a real munged and real certificates."""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from channel_peers import LONG_S, Raw, Tap, frame, introduction, kinds, pump, refusal

from slurm_ext import channel, credential_tls
from slurm_ext.channel import Hub
from slurm_ext.credential import Authenticator, MungeAuthenticator

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


def secret_of(raw: Raw, munge_socket: str) -> str:
    """Open the challenge that the server showed, as root can."""
    return MungeAuthenticator(munge_socket).answer(raw.shown, raw.binding())["n"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "does not know what root alone can open"),
        ({"n": ""}, "does not know what root alone can open"),
        ({"n": None}, "does not know what root alone can open"),
        ({"n": ["x"]}, "does not know what root alone can open"),
        ({"n": "\ud800"}, "does not know what root alone can open"),
        ({"n": "0" * 32}, "does not know what root alone can open"),
        ({"c": "\ud800"}, "munge: "),
        ({"c": ""}, "munge: "),
        ({"c": "MUNGE:AwQ:"}, "munge: "),
    ],
)
def test_who_cannot_open_the_challenge_is_refused(
    munge_server: tuple[Hub, int], raws: list[Raw], said: dict[str, object], words: str
) -> None:
    hub, port = munge_server
    raws.append(Raw(port, b"fmslurm munge\n", credential_tls.unproven_client(), hub))
    raws[0].send(frame(introduction(raws[0].binding(), **said)))
    assert refusal(hub).startswith(words)
    assert hub.peers() == frozenset()


def test_a_credential_of_roots_own_is_no_answer(
    munge_server: tuple[Hub, int], munge_socket: str, raws: list[Raw]
) -> None:
    """What opens here proves nothing: any credential of root's, such as Slurm's own, would."""
    hub, port = munge_server
    raws.append(Raw(port, b"fmslurm munge\n", credential_tls.unproven_client(), hub))
    sealed = MungeAuthenticator(munge_socket).complaint()
    raws[0].send(frame(introduction(raws[0].binding(), n=secret_of(raws[0], munge_socket), **sealed)))
    assert refusal(hub) == "cannot open what we sealed"
    assert hub.peers() == frozenset()


def test_a_secret_is_good_on_the_connections_that_it_was_shown_to(
    munge_server: tuple[Hub, int], munge_socket: str, raws: list[Raw]
) -> None:
    hub, port = munge_server
    assert isinstance(hub._auth, MungeAuthenticator)
    raws.append(Raw(port, b"fmslurm munge\n", credential_tls.unproven_client(), hub))
    hub._auth._challenge = None  # a third of a credential's time later
    raws.append(Raw(port, b"fmslurm munge\n", credential_tls.unproven_client(), hub))
    assert raws[0].shown != raws[1].shown
    old, new = (secret_of(raw, munge_socket) for raw in raws)
    raws[1].send(frame(introduction(raws[1].binding(), f="c", n=old)))
    assert refusal(hub) == "does not know what root alone can open"
    raws[0].send(frame(introduction(raws[0].binding(), n=old)))
    assert kinds([pump([hub], 1)[0]]) == [["up"]]
    assert old != new


@pytest.mark.parametrize("shown", ["nothing", "another server's", "a credential of root's", "garbage"])
def test_a_server_that_shows_no_challenge_of_its_own_hears_nothing(
    hubs: list[Hub], munge_server: tuple[Hub, int], munge_socket: str, raws: list[Raw], shown: str
) -> None:
    _, port = munge_server
    raws.append(Raw(port, b"fmslurm munge\n", credential_tls.unproven_client(), munge_server[0]))
    word = {
        "nothing": b"",
        "another server's": b" " + raws[0].shown,
        "a credential of root's": b" " + MungeAuthenticator(munge_socket).complaint()["c"].encode(),
        "garbage": b" MUNGE:" + b"A" * 200 + b":",
    }[shown]
    why, heard = in_between(hubs, munge_socket, b"fmslurm munge" + word + b"\n")
    assert (why, heard) == (
        {
            "nothing": "munge: shows no credential",
            "another server's": "from another connection",
            "a credential of root's": "munge: a credential that is none of this channel's",
            "garbage": why,
        }[shown],
        b"" if shown != "garbage" else heard,
    )
    # Of one that it cannot open the client says so, as both may be to blame; who it is and what about it does not say.
    assert not any(word in heard for word in (b"c/1-0", b'"f"', b'"n"'))


def in_between(hubs: list[Hub], munge_socket: str, greeting: bytes) -> tuple[str, bytes]:
    """Let an honest client meet a server with a certificate of its own; return why the client left, and what it said."""
    own = credential_tls.passing_server()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Hub(MungeAuthenticator(munge_socket), me="b", key="c/1-0", peers=["a"])
        hubs.append(client)
        client.connect("a", "127.0.0.1", listener.getsockname()[1])
        heard: list[bytes] = []

        def between() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.settimeout(LONG_S)
                while sock.recv(1) != b"\n":
                    pass
                sock.sendall(greeting)
                with own.context.wrap_socket(sock, server_side=True, suppress_ragged_eofs=True) as tls:
                    try:
                        heard.append(tls.recv(4096))
                    except OSError:
                        heard.append(b"")

        thread = threading.Thread(target=between, daemon=True)
        thread.start()
        down = pump([client], 1)[0]
        thread.join(LONG_S)
    assert [(e.kind, e.peer) for e in down] == [("down", "a")]
    return str(down[0].body["why"]), heard[0]


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
    raws[0].send(frame(introduction(raws[0].binding(), n=secret_of(raws[0], munge_socket), **changed)))
    assert refusal(hub) == words
    assert hub.peers() == frozenset()


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
    greeting = b"fmslurm munge\n" if hub._auth.name == "munge" else b"fmslurm key 0123456789abcdef\n"
    with socket.create_connection(("127.0.0.1", port), timeout=LONG_S) as loris:
        honest(hubs, prove, port)
        monkeypatch.setattr(channel, "HANDSHAKE_S", 1.0)
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
        assert time.monotonic() - started < 60.0
        assert hub.last_refusal in ("no handshake in time", "does not speak our language")


def test_a_flood_lets_the_honest_peers_in(hubs: list[Hub], prove: Prove, server: tuple[Hub, int]) -> None:
    """Processes that connect as fast as they can, all the while: silent ones, and ones that talk."""
    hub, port = server
    stop = multiprocessing.get_context("fork").Event()

    def flood(word: bytes) -> None:
        kept: list[socket.socket] = []
        while not stop.is_set():
            try:
                kept.append(socket.create_connection(("127.0.0.1", port), timeout=LONG_S))
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
            for name, client in zip(("b", "c"), hubs[1:], strict=True):
                if not client.peers() and time.monotonic() >= tries[name]:
                    tries[name] = time.monotonic() + 1.0  # as an agent does
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
                flood.append(socket.create_connection(("127.0.0.1", port), timeout=LONG_S))
                hub.poll(0)
            pump([hub], lambda _: hub.refused >= channel.STRANGERS_MAX - 2)
            assert {c.address for c in hub._connections.values()} == {"127.0.0.1", "127.0.0.9"}
            quiet.sendall(b"x")
            assert refusal(hub) == "does not speak our language"
        finally:
            for sock in flood:
                sock.close()
