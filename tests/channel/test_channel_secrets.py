"""The unique id and the site's key: never on the wire in clear, never in a word that anybody may read."""

from __future__ import annotations

import base64
import gc
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from channel_peers import Tap, kinds, pump

from slurm_ext import credential_tls, keys
from slurm_ext.channel import Hub
from slurm_ext.credential import Authenticator, MungeAuthenticator
from slurm_ext.credential_tls import KeyAuthenticator
from slurm_ext.errors import FmslurmError

Prove = Callable[[], Authenticator]


def shapes(secret: bytes) -> list[bytes]:
    """Return how a secret would look as it is, in hex and in base64 (at its three offsets)."""
    coded = [base64.b64encode(b"x" * shift + secret)[4:-4] for shift in range(3)]
    return [secret, secret.hex().encode(), secret.hex().upper().encode(), *coded]


def test_nothing_that_nodes_say_is_on_the_wire_in_clear(hubs: list[Hub], prove: Prove) -> None:
    unique = os.urandom(128)
    hubs.append(Hub(prove(), me="node-a", key="cluster-7/1-0", peers=["node-b"]))
    tap = Tap(hubs[0].listen("127.0.0.1", 0))
    try:
        hubs.append(Hub(prove(), me="node-b", key="cluster-7/1-0", peers=["node-a"]))
        hubs[1].connect("node-a", "127.0.0.1", tap.port)
        assert kinds(pump(hubs, 2)) == [["up"], ["up"]]
        order = {"t": "id", "round": 0, "id": unique.hex(), "gpu": -1}
        hubs[1].send("node-a", order)
        hubs[0].send("node-b", order)
        hubs[0].broadcast(["node-b"], order)
        seen = pump(hubs, 3)
        assert [e.body["id"] for events in seen for e in events] == [unique.hex()] * 3
        carried = bytes(tap.to_server) + bytes(tap.to_client)
    finally:
        tap.close()
    # By munge there is one word in clear: the challenge, a credential that hides what it holds.
    for shown in re.findall(rb"MUNGE:[^:]*:", carried):
        carried = carried.replace(shown, b"") + base64.b64decode(shown[6:-1])
        assert isinstance(hubs[0]._auth, MungeAuthenticator)
        held = json.loads(hubs[0]._auth.open(shown, again=True))
        assert held.keys() == {"s", "n"}
        assert not any(text.encode() in carried for text in held.values())
    assert len(bytes(tap.to_server)) > 500
    assert len(bytes(tap.to_client)) > 500
    for shape in (*shapes(unique), b"node-a", b"node-b", b"cluster-7", b'"round"', b'"t"', b"MUNGE"):
        assert shape not in carried


@pytest.mark.parametrize("content", [b"[%s]", b"%s", b'{"id": "%s"', b'{"id": "%s"}'])
def test_no_word_of_the_channel_repeats_what_a_message_held(
    hubs: list[Hub], prove: Prove, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever goes wrong with a message that carries the id: not in an event, a refusal, an exception, or a repr."""
    unique = os.urandom(128).hex().encode()
    hubs += [Hub(prove(), me="a", key="k", peers=["b"]), Hub(prove(), me="b", key="k", peers=["a"])]
    hubs[1].connect("a", "127.0.0.1", hubs[0].listen("127.0.0.1", 0))
    pump(hubs, 2)
    connection = next(iter(hubs[1]._peers.values()))
    hubs[1]._queue(connection, content % unique)
    told = [event for events in pump(hubs, 1) for event in events if event.kind != "message"]
    said = (
        repr(told) + hubs[0].last_refusal + hubs[1].last_refusal + repr(hubs) + repr(connection) + repr(connection.wire)
    )
    assert unique.decode() not in said + "".join(capfd.readouterr())


def test_an_introduction_that_is_refused_is_not_repeated(hubs: list[Hub], munge_socket: str) -> None:
    authenticator = MungeAuthenticator(munge_socket)
    hub = Hub(authenticator, me="a", key="k", peers=["b"])
    hubs.append(hub)
    secret = os.urandom(32).hex()
    client = Hub(authenticator, me=secret, key="k", peers=["a"])
    hubs.append(client)
    client.connect("a", "127.0.0.1", hub.listen("127.0.0.1", 0))
    pump(hubs, 1)
    assert hub.refused == 1
    assert secret not in hub.last_refusal + repr(hub.poll(0))


def test_a_key_that_cannot_be_used_is_not_repeated(tmp_path: Path) -> None:
    folder = str(tmp_path / "keys")
    (key,) = keys.create(folder).added
    body = "".join(line for line in key.pem.decode().splitlines() if not line.startswith("-----"))
    for text in (
        key.pem[:-60],
        key.pem.replace(b"BEGIN CERT", b"BEGIN CURT"),
        key.pem.replace(b"-----END PRIVATE", b""),
    ):
        Path(key.path).write_bytes(text)
        try:
            authenticator = KeyAuthenticator(folder)
            authenticator.side(server=True, theirs=authenticator.ids())
        except (OSError, ValueError, FmslurmError) as exc:
            chain: BaseException | None = exc
            while chain is not None:
                said = f"{chain!r} {chain}"
                assert not any(body[at : at + 24] in said for at in range(0, len(body) - 24, 8))
                chain = chain.__cause__ or chain.__context__
        else:
            pytest.fail("a broken key was taken")


def test_the_passing_certificates_key_lies_on_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What munge's server shows is made in memory: no file is opened for writing but the one in memory."""
    made: list[str] = []
    real = os.open

    def watched(path: str, flags: int, *more: int, **named: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path) != os.devnull:
            made.append(str(path))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", watched)
    side = credential_tls.passing_server()
    monkeypatch.undo()
    gc.collect()
    assert side.certificate
    assert made == []


def test_messages_are_json_and_hold_what_was_sent(hubs: list[Hub], prove: Prove) -> None:
    hubs += [Hub(prove(), me="a", key="k", peers=["b"]), Hub(prove(), me="b", key="k", peers=["a"])]
    hubs[1].connect("a", "127.0.0.1", hubs[0].listen("127.0.0.1", 0))
    pump(hubs, 2)
    body = {"text": "ü\0\n\"'", "list": [1, 2.5, None, True], "deep": {"a": {"b": []}}}
    hubs[1].send("a", body)
    assert json.loads(json.dumps(pump(hubs, 1)[0][0].body)) == body
