"""The trail: its line and schema, appending safely, reading what is there and skipping what is not."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext import events
from slurm_ext.errors import UntrustedFileError
from slurm_ext.events import Event, append, from_line, read, stamp, to_line

#: What a line may hold, by name: the schema that readers outside rely on. A change here is a new version.
SCHEMA_1 = {
    "schema": int,
    "time": str,
    "event": str,
    "room": str,
    "node": str,
    "instance_id": str,
    "boot_id": str,
    "job": str,
    "attempt": str,
    "rule": str,
    "reason": str,
    "evidence": list,
    "decision": str,
    "dry_run": bool,
    "phase": str,
    "config": str,
    "data": dict,
}
ALWAYS = {"schema", "time", "event", "phase", "dry_run"}

FULL = Event(
    event="node.drain",
    room="gate",
    node="n1",
    job="12",
    attempt="c/12-0",
    rule="gate.xid-79",
    reason="GPU 3 fell off the bus",
    evidence=("NVRM: Xid 79", "second"),
    decision="drain",
    phase="intent",
    dry_run=True,
    instance_id="i-1",
    boot_id="b",
    config="a" * 64,
    data={"budget": 2, "nested": {"a": [1, None]}},
    time="2031-05-01T12:00:00.123Z",
)


def test_a_full_line_has_every_field_of_the_schema_and_no_other() -> None:
    fields = json.loads(to_line(FULL))
    assert {name: type(value) for name, value in fields.items()} == SCHEMA_1
    assert set(Event._fields) == set(SCHEMA_1)


def test_a_bare_line_has_what_is_always_there() -> None:
    assert set(json.loads(to_line(Event("x")))) == ALWAYS


def test_a_line_comes_back_as_the_event_it_was() -> None:
    assert from_line(to_line(FULL)) == FULL


TEXT = st.text(max_size=30)


@given(
    st.builds(
        Event,
        event=TEXT.filter(bool),
        reason=TEXT,
        node=TEXT,
        evidence=st.lists(TEXT, max_size=3).map(tuple),
        schema=st.just(1),
        data=st.just({}),
    )
)
def test_every_line_is_one_ascii_line_and_comes_back(event: Event) -> None:
    event = event._replace(time=stamp(1e9))
    line = to_line(event)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert from_line(line) == event


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT, lambda s: st.lists(s, max_size=2)
)


@given(
    TEXT | st.dictionaries(st.sampled_from(sorted(SCHEMA_1)), ANYTHING).map(lambda d: json.dumps({**d, "schema": 1}))
)
def test_no_line_raises_and_what_comes_back_fits_the_schema(line: str) -> None:
    event = from_line(line)
    if event is not None:
        for name, kind in SCHEMA_1.items():
            assert isinstance(getattr(event, name), {list: tuple}.get(kind, kind)), name
        assert from_line(to_line(event)) == event


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        "{",
        "[]",
        "3",
        "null",
        '"x"',
        '{"event": "x"}',
        '{"schema": 1}',
        '{"schema": 2, "event": "x"}',
        '{"schema": "1", "event": "x"}',
        '{"schema": true, "event": "x"}',
        '{"schema": 1, "event": 3}',
        '{"schema": 1, "event": "x", "evidence": "y"}',
        '{"schema": 1, "event": "x", "evidence": {"a": 1}}',
        '{"schema": 1, "event": "x", "data": []}',
        '{"schema": 1, "event": "x", "node": ["n1"]}',
        '{"schema": 1, "event": "x", "dry_run": "no"}',
        '{"schema": 1, "event": "x", "time": 5}',
        "[" * 100_000,
    ],
)
def test_what_is_no_event_of_ours_is_none(line: str) -> None:
    assert from_line(line) is None


def test_fields_of_a_newer_writer_are_ignored() -> None:
    assert from_line('{"schema": 1, "event": "x", "brand_new": 1, "time": "t"}') == Event("x", time="t")


def test_evidence_is_bounded() -> None:
    fields = json.loads(to_line(Event("x", evidence=("y" * 10_000,) * 100)))
    assert len(fields["evidence"]) == events.EVIDENCE_LINES
    assert len(fields["evidence"][0]) == events.EVIDENCE_CHARS


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"x", {1, 2}, object(), Path("/x")])
def test_data_that_json_does_not_know_becomes_text_and_the_line_stays_strict(value: object) -> None:
    line = to_line(Event("x", data={"a": value}))
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1.5, "1970-01-01T00:00:01.500Z"),
        (1_900_000_000.9999999, "2030-03-17T17:46:41.000Z"),
        (1_900_000_000.9994, "2030-03-17T17:46:40.999Z"),
    ],
)
def test_times_are_utc_with_milliseconds(seconds: float, text: str) -> None:
    assert stamp(seconds) == text


@given(st.lists(st.floats(0, 4e9), min_size=2, max_size=5))
def test_times_sort_as_text_as_they_do_as_numbers(moments: list[float]) -> None:
    texts = [stamp(moment) for moment in sorted(moments)]
    assert texts == sorted(texts)


def test_now_is_now() -> None:
    before = stamp(time.time() - 0.001)
    assert before <= stamp() <= stamp(time.time() + 0.001)


def test_appended_events_are_read_in_order(tmp_path: Path) -> None:
    path = str(tmp_path / "log" / "events.jsonl")
    for number in range(3):
        written = append(path, Event("x", job=str(number)), durable=number == 1)
        assert written.time
    assert [event.job for event in read(path)] == ["0", "1", "2"]
    assert os.stat(path).st_mode & 0o022 == 0


def test_no_file_is_no_events(tmp_path: Path) -> None:
    assert list(read(str(tmp_path / "none"))) == []


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append(str(path), Event("first"))
    with path.open("a") as stream:
        stream.write('{"schema":1,"event":"torn')  # a full disk, a power cut
    append(str(path), Event("second"))
    assert [event.event for event in read(str(path))] == ["first", "second"]


def test_bytes_that_are_no_text_cost_their_line_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append(str(path), Event("first"))
    with path.open("ab") as stream:
        stream.write(b"\xff\xfe\x00\n")
    append(str(path), Event("second"))
    assert [event.event for event in read(str(path))] == ["first", "second"]


def test_a_trail_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append(str(path), Event("x"))
    path.chmod(0o666)
    with pytest.raises(UntrustedFileError, match="others"):
        append(str(path), Event("x"))


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_file_is_refused_and_holds_nobody(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises((OSError, UntrustedFileError)):
        append(str(path), Event("x"))
    assert not (tmp_path / "elsewhere").exists()


def test_many_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "events.jsonl")
    pids = []
    for writer in range(4):
        pid = os.fork()
        if pid == 0:
            for number in range(50):
                append(path, Event("x", job=f"{writer}-{number}", reason="y" * 3000))
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    assert len({event.job for event in read(path)}) == 200
