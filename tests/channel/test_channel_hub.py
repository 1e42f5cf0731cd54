"""Honest peers: hubs in one process over loopback, by a real munged and by a real key."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest
from channel_peers import kinds, pump, refusal

from slurm_ext import channel, channel_meeting
from slurm_ext.channel import Hub
from slurm_ext.credential import Alone, Authenticator
from slurm_ext.errors import LackingError

Prove = Callable[[], Authenticator]


def two(hubs: list[Hub], prove: Prove, key: str = "c/1-0") -> int:
    hubs += [Hub(prove(), me="a", key="c/1-0", peers=["b", "c"]), Hub(prove(), me="b", key=key, peers=["a"])]
    port = hubs[0].listen("127.0.0.1", 0)
    hubs[1].connect("a", "127.0.0.1", port)
    return port


def test_messages_go_both_ways_in_order(hubs: list[Hub], prove: Prove) -> None:
    two(hubs, prove)
    assert kinds(pump(hubs, 2)) == [["up"], ["up"]]
    for number in range(5):
        assert hubs[1].send("a", {"number": number})
    assert hubs[0].send("b", {"text": "x" * 2_000_000})
    seen = pump(hubs, 6)
    assert [e.body["number"] for e in seen[0]] == [0, 1, 2, 3, 4]
    assert len(str(seen[1][0].body["text"])) == 2_000_000
    hubs[1].close()
    hubs.pop()
    assert [(e.kind, e.peer, e.body["reason"]) for e in pump(hubs, 1)[0]] == [("down", "b", "lost")]
    assert not hubs[0].send("b", {})


@pytest.mark.parametrize("end", ["forget", "close", "flush"])
def test_what_waits_for_the_next_turn_is_sent_before_an_end(hubs: list[Hub], prove: Prove, end: str) -> None:
    two(hubs, prove)
    pump(hubs, 2)
    for number in range(3):
        assert hubs[0].send("b", {"n": number})
    if end == "forget":
        hubs[0].forget("b")
    elif end == "close":
        hubs.pop(0).close()
    else:
        hubs[0].flush(0)
    seen = pump(hubs[-1:], 3)[0]
    assert [e.body["n"] for e in seen if e.kind == "message"] == [0, 1, 2]


def test_one_text_goes_to_many(hubs: list[Hub], prove: Prove) -> None:
    names = [f"n{i}" for i in range(1, 9)]
    hubs += [Hub(prove(), me="n0", key="k", peers=names), *(Hub(prove(), me=n, key="k", peers=["n0"]) for n in names)]
    port = hubs[0].listen("127.0.0.1", 0)
    for hub in hubs[1:]:
        hub.connect("n0", "127.0.0.1", port)
    pump(hubs, 16)
    assert hubs[0].peers() == set(names)
    hubs[0].broadcast([*names[:4], "nobody"], {"t": "verdict"})
    seen = pump(hubs, 4)
    assert [len(events) for events in seen] == [0, 1, 1, 1, 1, 0, 0, 0, 0]


def test_a_message_beyond_all_bounds_is_not_sent(hubs: list[Hub], prove: Prove) -> None:
    two(hubs, prove)
    pump(hubs, 2)
    assert not hubs[1].send("a", {"text": "x" * channel.FRAME_MAX})
    seen = pump(hubs, 2)
    assert kinds(seen) == [["down"], ["down"]]
    assert "too large" in str(seen[1][0].body["why"])


def test_who_reads_nothing_is_gone(hubs: list[Hub], prove: Prove) -> None:
    two(hubs, prove)
    pump(hubs, 2)
    sent = 0
    while hubs[0].send("b", {"text": "x" * 1_000_000}):
        sent += 1
        assert sent < 200
    assert [str(e.body["why"]) for e in hubs[0].poll(0)] == ["reads nothing"]


def test_talk_about_another_job_is_refused(hubs: list[Hub], prove: Prove) -> None:
    two(hubs, prove, key="c/1-1")
    seen = pump(hubs, 1)
    assert kinds(seen) == [[], ["down"]]
    assert hubs[0].refused == 1
    assert hubs[0].last_refusal == "talks about something else"


def test_a_second_job_on_the_node_does_not_take_the_first_ones_peers(hubs: list[Hub], prove: Prove) -> None:
    port = two(hubs, prove)
    other = Hub(prove(), me="b", key="c/2-0", peers=["a"])
    hubs.append(other)
    other.connect("a", "127.0.0.1", port)
    seen = pump(hubs, 3)
    assert kinds(seen) == [["up"], ["up"], ["down"]]
    assert hubs[0].send("b", {"for": "the first"})
    assert pump(hubs, 1)[1][0].body == {"for": "the first"}


def test_an_unexpected_name_is_refused(hubs: list[Hub], prove: Prove) -> None:
    hubs += [Hub(prove(), me="a", key="k", peers=["b"]), Hub(prove(), me="z", key="k", peers=["a"])]
    hubs[1].connect("a", "127.0.0.1", hubs[0].listen("127.0.0.1", 0))
    assert kinds(pump(hubs, 1)) == [[], ["down"]]
    assert hubs[0].last_refusal == "from a name that we do not expect"
    assert hubs[0].peers() == frozenset()


def test_a_server_with_another_name_is_refused(hubs: list[Hub], prove: Prove) -> None:
    hubs += [Hub(prove(), me="z", key="k", peers=["b"]), Hub(prove(), me="b", key="k", peers=["a", "z"])]
    hubs[1].connect("a", "127.0.0.1", hubs[0].listen("127.0.0.1", 0))
    down = pump([hubs[1], hubs[0]], lambda seen: bool(seen[0]))[0]
    assert [(e.kind, e.peer, e.body["why"]) for e in down] == [("down", "a", "answers in another's name")]


def test_a_node_that_claims_anothers_name_must_come_from_its_address(hubs: list[Hub], prove: Prove) -> None:
    where = {"b": "127.0.0.3", "c": "127.0.0.4"}
    hubs += [Hub(prove(), me="a", key="k", peers=["b", "c"], addresses=where)]
    port = hubs[0].listen("127.0.0.1", 0)
    hubs += [Hub(prove(), me="b", key="k", peers=["a"]) for _ in range(2)]
    hubs[1].connect("a", "127.0.0.1", port, source="127.0.0.4")
    assert refusal(hubs[0], hubs[1:]) == "b does not live at 127.0.0.4"
    hubs[2].connect("a", "127.0.0.1", port, source="127.0.0.3")
    pump([hubs[0], hubs[2]], 2)
    assert hubs[0].peers() == {"b"}


@pytest.mark.parametrize("listed", ["0:0:0:0:0:0:0:1", "::0001", "::1", "node-b.example"])
def test_an_address_counts_however_it_is_written_and_a_name_is_none(hubs: list[Hub], prove: Prove, listed: str) -> None:
    hubs += [Hub(prove(), me="a", key="k", peers=["b"], addresses={"b": listed})]
    try:
        port = hubs[0].listen("::1", 0)
    except OSError:
        pytest.skip("there is no IPv6 here")
    hubs += [Hub(prove(), me="b", key="k", peers=["a"])]
    hubs[1].connect("a", "::1", port)
    assert kinds(pump(hubs, 2)) == [["up"], ["up"]]


def test_the_newer_connection_of_a_peer_takes_the_place_of_the_older(hubs: list[Hub], prove: Prove) -> None:
    port = two(hubs, prove)
    pump(hubs, 2)
    again = Hub(prove(), me="b", key="c/1-0", peers=["a"])
    hubs.append(again)
    again.connect("a", "127.0.0.1", port)
    assert kinds(pump(hubs, 3)) == [["up"], ["down"], ["up"]]
    hubs[0].send("b", {"n": 1})
    assert kinds(pump(hubs, 1)) == [[], [], ["message"]]


def test_another_version_is_told_to_both_sides(hubs: list[Hub], prove: Prove, monkeypatch: pytest.MonkeyPatch) -> None:
    hubs += [Hub(prove(), me="a", key="k", peers=["b"]), Hub(prove(), me="b", key="k", peers=["a"])]
    port = hubs[0].listen("127.0.0.1", 0)
    hubs[1].connect("a", "127.0.0.1", port)
    ours = channel_meeting.VERSION
    seen: list[list[channel.Event]] = [[], []]
    for _ in range(2000):
        for place, version in ((0, ours), (1, ours + 1)):
            monkeypatch.setattr(channel_meeting, "VERSION", version)
            seen[place] += hubs[place].poll(0.005)
        if seen[0] and len(seen[1]) >= 2:
            break
    assert [(e.kind, e.peer, e.body.get("version")) for e in seen[0]] == [("version", "b", ours + 1)]
    assert [(e.kind, e.peer) for e in seen[1]] == [("version", "a"), ("down", "a")]
    assert seen[1][0].body == {"version": ours}
    assert seen[1][1].body["reason"] == "version"
    assert hubs[0].peers() == hubs[1].peers() == frozenset()


def test_nobody_there_is_down_at_once(hubs: list[Hub], prove: Prove) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        hubs.append(Hub(prove(), me="b", key="k", peers=["a"]))
        hubs[0].connect("a", "127.0.0.1", unused.getsockname()[1])
        assert kinds(pump(hubs, 1)) == [["down"]]


def test_an_address_that_is_none_of_ours_is_down_at_once(hubs: list[Hub], prove: Prove) -> None:
    hubs.append(Hub(prove(), me="b", key="k", peers=["a"]))
    hubs[0].connect("a", "127.0.0.1", 1, source="192.0.2.1")
    assert kinds(pump(hubs, 1)) == [["down"]]


def test_a_server_that_never_answers_is_down_in_time(
    hubs: list[Hub], prove: Prove, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        hubs.append(Hub(prove(), me="b", key="k", peers=["a"]))
        hubs[0].connect("a", "127.0.0.1", mute.getsockname()[1])
        assert [(e.kind, e.body["why"]) for e in pump(hubs, 1)[0]] == [("down", "no handshake in time")]


def test_forget_and_stop_listening(hubs: list[Hub], prove: Prove) -> None:
    port = two(hubs, prove)
    pump(hubs, 2)
    hubs[0].stop_listening()
    late = Hub(prove(), me="c", key="c/1-0", peers=["a"])
    hubs.append(late)
    late.connect("a", "127.0.0.1", port)
    assert kinds(pump(hubs, 1)) == [[], [], ["down"]]
    hubs[0].forget("b")
    assert kinds(pump(hubs, 1)) == [[], ["down"], []]
    assert hubs[0].peers() == frozenset()


def test_flush_sends_everything_and_keeps_what_came_meanwhile(hubs: list[Hub], prove: Prove) -> None:
    two(hubs, prove)
    pump(hubs, 2)
    hubs[1].send("a", {"n": 1})
    for number in range(5):
        hubs[0].send("b", {"n": number, "text": "x" * 1_000_000})
    got: list[channel.Event] = []
    reader = threading.Thread(target=lambda: got.extend(pump([hubs[1]], 5)[0]))
    reader.start()
    hubs[0].flush(120.0)
    reader.join()
    assert [e.body["n"] for e in got] == [0, 1, 2, 3, 4]
    assert [e.body for e in hubs[0].poll(0)] == [{"n": 1}]


def test_who_is_alone_cannot_listen(hubs: list[Hub]) -> None:
    hubs.append(Hub(Alone(), me="a", key="k", peers=[]))
    with pytest.raises(LackingError):
        hubs[0].listen("127.0.0.1", 0)
    assert hubs[0].poll(0) == []
