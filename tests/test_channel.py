"""The channel against honest peers, strangers, forgers and floods: two hubs in one process over loopback, a real munged."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_ext import channel
from slurm_ext.channel import Event, Hub
from slurm_ext.command import run
from slurm_ext.credential import AuthenticationError, Authenticator, KeyAuthenticator, MungeAuthenticator
from slurm_ext.errors import LackingError, UntrustedFileError


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "channel.key"
    path.write_bytes(os.urandom(48).hex().encode())
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def munge_socket() -> Iterator[str]:
    """A munged of our own, with its own key, in a folder that other users may enter."""
    if shutil.which("munged") is None and not os.path.exists("/usr/sbin/munged"):
        pytest.skip("munge is not installed")
    folder = Path(tempfile.mkdtemp(prefix="fmslurm-munge-"))
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    daemon = subprocess.Popen(
        [
            shutil.which("munged") or "/usr/sbin/munged",
            "--foreground",
            "--force",
            f"--socket={folder}/munge.socket",
            f"--key-file={key}",
            f"--pid-file={folder}/munged.pid",
            f"--seed-file={folder}/munged.seed",
            f"--log-file={folder}/munged.log",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 10
    while not (folder / "munge.socket").exists() and time.monotonic() < deadline and daemon.poll() is None:
        time.sleep(0.02)
    try:
        yield str(folder / "munge.socket")
    finally:
        daemon.terminate()
        daemon.wait(10)
        shutil.rmtree(folder)


@pytest.fixture(params=["key", "munge"])
def pair(request: pytest.FixtureRequest, key_file: Path) -> tuple[Authenticator, Authenticator]:
    """Two authenticators that believe each other."""
    if request.param == "key":
        return KeyAuthenticator(str(key_file)), KeyAuthenticator(str(key_file))
    path = request.getfixturevalue("munge_socket")
    return MungeAuthenticator(path), MungeAuthenticator(path)


def pump(hubs: list[Hub], until: int, timeout_s: float = 5.0) -> list[list[Event]]:
    """Turn all hubs until `until` events were seen, and return them per hub."""
    seen: list[list[Event]] = [[] for _ in hubs]
    deadline = time.monotonic() + timeout_s
    while sum(map(len, seen)) < until and time.monotonic() < deadline:
        for index, hub in enumerate(hubs):
            seen[index] += hub.poll(0.01)
    return seen


@pytest.fixture
def hubs() -> Iterator[list[Hub]]:
    made: list[Hub] = []
    yield made
    for hub in made:
        hub.close()


def two(hubs: list[Hub], pair: tuple[Authenticator, Authenticator], key: str = "c/1-0") -> int:
    hubs += [Hub(pair[0], me="a", key="c/1-0", peers=["b", "c"]), Hub(pair[1], me="b", key=key, peers=["a"])]
    port = hubs[0].listen("127.0.0.1", 0)
    hubs[1].connect("a", "127.0.0.1", port)
    return port


def test_messages_go_both_ways_in_order(hubs: list[Hub], pair: tuple[Authenticator, Authenticator]) -> None:
    two(hubs, pair)
    up = pump(hubs, 2)
    assert [e.kind for e in up[0] + up[1]] == ["up", "up"]
    for number in range(5):
        assert hubs[1].send("a", {"number": number})
    assert hubs[0].send("b", {"text": "x" * 200_000})
    seen = pump(hubs, 6)
    assert [e.body["number"] for e in seen[0]] == [0, 1, 2, 3, 4]
    assert len(str(seen[1][0].body["text"])) == 200_000
    hubs[1].close()
    hubs.pop()
    assert [(e.kind, e.peer) for e in pump(hubs, 1)[0]] == [("down", "b")]


def test_talk_about_another_job_is_refused(hubs: list[Hub], pair: tuple[Authenticator, Authenticator]) -> None:
    two(hubs, pair, key="c/1-1")
    seen = pump(hubs, 1)
    assert [e.kind for e in seen[1]] == ["down"]
    assert seen[0] == []
    assert hubs[0].last_refusal == "talks about something else"


def test_an_unexpected_name_is_refused(hubs: list[Hub], pair: tuple[Authenticator, Authenticator]) -> None:
    hubs += [Hub(pair[0], me="a", key="k", peers=["b"]), Hub(pair[1], me="z", key="k", peers=["a"])]
    hubs[1].connect("a", "127.0.0.1", hubs[0].listen("127.0.0.1", 0))
    assert [e.kind for e in pump(hubs, 1)[1]] == ["down"]
    assert hubs[0].peers() == frozenset()


def test_a_wrong_key_is_refused(hubs: list[Hub], key_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    other.write_bytes(b"y" * 40)
    other.chmod(0o600)
    two(hubs, (KeyAuthenticator(str(key_file)), KeyAuthenticator(str(other))))
    pump(hubs, 1)
    assert "digest is wrong" in hubs[0].last_refusal
    assert hubs[0].peers() == frozenset()


def frame(payload: bytes) -> bytes:
    return struct.pack("!I", len(payload)) + payload


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.0\r\n\r\n", frame(b"MUNGE:AwQ:"), frame(b""), b"\xff\xff\xff\xff", frame(b"K1" + b"\0" * 60)],
    ids=["http", "munge-ish", "empty", "huge", "forged"],
)
def test_a_stranger_is_dropped_and_blocks_nobody(
    hubs: list[Hub], pair: tuple[Authenticator, Authenticator], noise: bytes
) -> None:
    port = two(hubs, pair)
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    try:
        for stranger in strangers:
            stranger.sendall(noise)
        kinds = [e.kind for events in pump(hubs, 2) for e in events]
        assert kinds == ["up", "up"]
        pump(hubs, 1, timeout_s=0.1)
        strangers[0].settimeout(2)
        assert strangers[0].recv(1) == b""
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_flood_of_silent_connections_lets_the_honest_peer_in(hubs: list[Hub], key_file: Path) -> None:
    auth = KeyAuthenticator(str(key_file))
    server = Hub(auth, me="a", key="k", peers=["b"])
    hubs.append(server)
    port = server.listen("127.0.0.1", 0)
    flood = []
    try:
        for _ in range(3 * channel.STRANGERS_MAX):
            flood.append(socket.create_connection(("127.0.0.1", port), timeout=2))
            server.poll(0)
        client = Hub(KeyAuthenticator(str(key_file)), me="b", key="k", peers=["a"])
        hubs.append(client)
        client.connect("a", "127.0.0.1", port)
        seen = pump(hubs, 2)
        assert [e.kind for events in seen for e in events] == ["up", "up"]
        assert len(server._connections) <= channel.STRANGERS_MAX + 2
    finally:
        for sock in flood:
            sock.close()


def test_a_recorded_hello_never_becomes_a_peer(hubs: list[Hub], key_file: Path) -> None:
    sealer = KeyAuthenticator(str(key_file))
    server = Hub(KeyAuthenticator(str(key_file)), me="a", key="k", peers=["b"])
    hubs.append(server)
    port = server.listen("127.0.0.1", 0)
    hello = {"v": 1, "k": "k", "f": "b", "t": "a", "s": "0" * 24, "n": 0, "b": {}}
    proof = {**hello, "n": 1}
    recorded = frame(sealer.seal(json.dumps(hello).encode()))
    with socket.create_connection(("127.0.0.1", port)) as first, socket.create_connection(("127.0.0.1", port)) as again:
        first.sendall(recorded)
        pump(hubs, 1, timeout_s=0.1)
        again.sendall(recorded)
        pump(hubs, 1, timeout_s=0.1)
        assert server.last_refusal == "seen before"
        first.sendall(frame(sealer.seal(json.dumps(proof).encode())))  # without the server's nonce
        pump(hubs, 1, timeout_s=0.1)
        assert server.last_refusal == "from another session"
    assert server.peers() == frozenset()


def test_nobody_there_is_down_at_once(hubs: list[Hub], key_file: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        hub = Hub(KeyAuthenticator(str(key_file)), me="b", key="k", peers=["a"])
        hubs.append(hub)
        hub.connect("a", "127.0.0.1", port)
        assert [e.kind for e in pump(hubs, 1)[0]] == ["down"]


def test_a_server_that_never_answers_is_down_in_time(
    hubs: list[Hub], key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        hub = Hub(KeyAuthenticator(str(key_file)), me="b", key="k", peers=["a"])
        hubs.append(hub)
        hub.connect("a", "127.0.0.1", mute.getsockname()[1])
        events = pump(hubs, 1, timeout_s=2)[0]
        assert [(e.kind, e.body["why"]) for e in events] == [("down", "no handshake in time")]


def test_keys_that_others_may_read_or_that_are_short_are_refused(key_file: Path) -> None:
    key_file.chmod(0o640)
    with pytest.raises(UntrustedFileError):
        KeyAuthenticator(str(key_file))
    key_file.chmod(0o600)
    key_file.write_bytes(b"short")
    with pytest.raises(LackingError):
        KeyAuthenticator(str(key_file))
    link = key_file.with_name("link")
    link.symlink_to(key_file)
    with pytest.raises(OSError):
        KeyAuthenticator(str(link))


def test_a_key_credential_is_good_once_and_for_a_while(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two_ = KeyAuthenticator(str(key_file)), KeyAuthenticator(str(key_file))
    sealed = one.seal(b"payload")
    assert two_.open(sealed) == b"payload"
    with pytest.raises(AuthenticationError, match="seen before"):
        two_.open(sealed)
    for position in range(len(sealed)):
        broken = bytearray(sealed)
        broken[position] ^= 1
        with pytest.raises(AuthenticationError):
            KeyAuthenticator(str(key_file)).open(bytes(broken))
    now = time.time()
    monkeypatch.setattr("slurm_ext.credential.time.time", lambda: now + 3600)
    with pytest.raises(AuthenticationError, match="clocks differ"):
        KeyAuthenticator(str(key_file)).open(sealed)


def test_munge_credentials_are_restricted_hidden_and_good_once(munge_socket: str) -> None:
    ours, strict = MungeAuthenticator(munge_socket), MungeAuthenticator(munge_socket, allowed_uids=[4711])
    sealed = ours.seal(b"very secret text")
    assert b"secret" not in sealed
    assert ours.open(sealed) == b"very secret text"
    with pytest.raises(AuthenticationError, match=r"[Rr]eplayed"):
        ours.open(sealed)
    with pytest.raises(AuthenticationError, match="may not speak"):
        strict.open(ours.seal(b"x"))
    with pytest.raises(AuthenticationError):
        ours.open(b"MUNGE:garbage:")


def test_munge_from_another_user_is_refused(munge_socket: str) -> None:
    if os.geteuid() != 0 or shutil.which("munge") is None:
        pytest.skip("needs root, to become somebody else, and the munge command")
    made = run(
        [shutil.which("munge") or "munge", "-n", f"--socket={munge_socket}"], timeout_s=10, user=65534, group=65534
    )
    if not made.ok:
        pytest.skip(f"uid 65534 cannot reach the socket: {made.words()}")
    with pytest.raises(AuthenticationError, match="uid 65534"):
        MungeAuthenticator(munge_socket).open(made.stdout.strip().encode())


def test_no_munged_is_told_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(LackingError, match="does not answer"):
        MungeAuthenticator(str(tmp_path / "nowhere.socket"))
    assert time.monotonic() - started < 1.5
