"""One connection's bytes, in any pieces and of any kind: what comes out is what went in, or AuthenticationError."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_ext import keys
from slurm_ext.channel_wire import CHALLENGE_MAX, GREETING_MAX, Wire
from slurm_ext.credential import AuthenticationError
from slurm_ext.credential_tls import KeyAuthenticator, read_keys

FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LIMIT = 1 << 20


def pieces(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut bytes into pieces of these sizes, over and over."""
    cut, at, place = [], 0, 0
    while at < len(data):
        size = sizes[place % len(sizes)] if sizes else len(data)
        cut.append(data[at : at + size])
        at, place = at + size, place + 1
    return cut


def carry(source: Wire, sink: Wire, sizes: Sequence[int] = ()) -> bool:
    """Take what `source` has to send to `sink`, in pieces; say whether there was something."""
    data = bytes(source.outbox)
    source.outbox.clear()
    for piece in pieces(data, sizes):
        sink.feed(piece)
    return bool(data)


def joined(folder: str, sizes: Sequence[int] = ()) -> tuple[Wire, Wire]:
    """Return both sides of a connection that stands."""
    server, client = Wire(KeyAuthenticator(folder), server=True), Wire(KeyAuthenticator(folder), server=False)
    while carry(client, server, sizes) | carry(server, client, sizes):
        pass
    assert server.ready
    assert client.ready
    assert server.binding == client.binding != ""
    return server, client


@FUZZ
@given(st.lists(st.integers(1, 700), max_size=5), st.lists(st.binary(max_size=40_000), max_size=5))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    key_folder: str, sizes: list[int], contents: list[bytes]
) -> None:
    server, client = joined(key_folder, sizes)
    for source, sink in ((client, server), (server, client)):
        for content in contents:
            source.write(content)
        carry(source, sink, sizes)
        assert [sink.frame(LIMIT) for _ in contents] == contents
        assert sink.frame(LIMIT) is None


@FUZZ
@given(st.binary(max_size=600), st.lists(st.integers(1, 100), max_size=4), st.booleans())
def test_any_bytes_from_a_stranger_are_refused_or_waited_for(
    key_folder: str, data: bytes, sizes: list[int], server: bool
) -> None:
    wire = Wire(KeyAuthenticator(key_folder), server=server)
    try:
        for piece in pieces(data, sizes):
            wire.feed(piece)
        assert not wire.ready
        assert len(data) < GREETING_MAX + (0 if server else CHALLENGE_MAX)
        assert wire.frame(LIMIT) is None
    except AuthenticationError:
        assert not wire.ready


@FUZZ
@given(st.binary(max_size=2000), st.booleans())
def test_any_bytes_behind_a_right_greeting_make_no_frame(key_folder: str, data: bytes, server: bool) -> None:
    wire = Wire(KeyAuthenticator(key_folder), server=server)
    wire.feed(f"fmslurm key {read_keys(key_folder)[0].id}\n".encode())
    with contextlib.suppress(AuthenticationError):
        wire.feed(data)
    assert not wire.ready
    assert wire.frame(LIMIT) is None


@FUZZ
@given(st.data())
def test_a_changed_byte_anywhere_yields_no_other_message(key_folder: str, data: st.DataObject) -> None:
    server, client = joined(key_folder)
    client.write(b"the message")
    stream = bytearray(client.outbox)
    stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        server.feed(bytes(stream))
        assert server.frame(LIMIT) is None
    except AuthenticationError:
        assert server.frame(LIMIT) is None


@FUZZ
@given(st.data())
def test_records_that_are_lost_twice_or_out_of_order_yield_nothing_more(key_folder: str, data: st.DataObject) -> None:
    server, client = joined(key_folder)
    records = []
    for number in range(4):
        client.write(bytes([number]))
        records.append(bytes(client.outbox))
        client.outbox.clear()
    order = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    got = []
    try:
        for number in order:
            server.feed(records[number])
            got.append(server.frame(LIMIT))
    except AuthenticationError:
        pass
    assert got == [bytes([number]) for number in range(len(got))]


@FUZZ
@given(st.binary(min_size=4, max_size=64), st.integers(0, 100))
def test_any_bytes_inside_tls_are_a_frame_or_too_long_or_not_whole(key_folder: str, data: bytes, limit: int) -> None:
    server, client = joined(key_folder)
    assert client._tls is not None
    client._tls.write(data)
    server.feed(client._outgoing.read())
    (length,) = struct.unpack_from("!I", data)
    if length > limit:
        with pytest.raises(AuthenticationError, match=f"a frame of {length} bytes"):
            server.frame(limit)
    else:
        assert server.frame(limit) == (data[4 : 4 + length] if len(data) >= 4 + length else None)


def test_the_greeting_that_is_one_byte_too_long_is_refused(key_folder: str) -> None:
    wire = Wire(KeyAuthenticator(key_folder), server=True)
    long = b"fmslurm key" + b" 0123456789abcdef" * 4 + b" 0123456789abcdef\n"
    with pytest.raises(AuthenticationError):
        wire.feed(long)


def test_a_client_shows_no_challenge(key_folder: str) -> None:
    wire = Wire(KeyAuthenticator(key_folder), server=True)
    with pytest.raises(AuthenticationError, match="does not speak our language"):
        wire.feed(b"fmslurm key " + b"A" * 30 + b"\n")


def test_a_client_with_two_keys_waits_for_the_servers(tmp_path: object) -> None:
    folder = f"{tmp_path}/keys"
    keys.create(folder)
    keys.rotate(folder)
    server, client = Wire(KeyAuthenticator(folder), server=True), Wire(KeyAuthenticator(folder), server=False)
    assert bytes(client.outbox).endswith(b"\n")
    assert bytes(server.outbox) == b""
    while carry(client, server) | carry(server, client):
        pass
    assert server.ready
    assert client.ready
