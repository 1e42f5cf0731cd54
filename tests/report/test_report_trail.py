"""One stream out of many trails: merged by time, each line once, read forward, filtered, never held by a share."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext import events, shared
from slurm_ext.config.hostlist import HostlistError
from slurm_ext.config.model import Settings, Site
from slurm_ext.errors import LackingError
from slurm_ext.events import Event
from slurm_ext.report import trail
from slurm_ext.report.trail import Trails, Wanted, since_text, takes

NOW = 1_900_000_000.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "share/ledger").mkdir(mode=0o755, parents=True)
    return Settings(site=Site(log_dir=f"{tmp_path}/log/%n", share=f"{tmp_path}/share"))


def local(settings: Settings, node: str, event: Event) -> Event:
    return events.append(f"{settings.site.log_dir.replace('%n', node)}/events.jsonl", event)


def names(found: list[Event]) -> list[str]:
    return [event.event for event in found]


def test_trails_are_merged_by_time_and_each_line_counts_once(settings: Settings) -> None:
    second = local(settings, "n1", Event("second", time=events.stamp(2)))
    shared.append_event(settings.site.share, "n1", second)
    shared.append_event(settings.site.share, "n2", Event("first", time=events.stamp(1)))
    local(settings, "head", Event("third", time=events.stamp(3)))
    trails = Trails(settings)
    assert names(trails.fresh()) == ["first", "second", "third"]
    assert trails.fresh() == []


def test_what_is_added_comes_once_and_half_a_line_waits_for_its_end(settings: Settings, tmp_path: Path) -> None:
    trails = Trails(settings)
    assert trails.fresh() == []
    local(settings, "n1", Event("first"))
    assert names(trails.fresh()) == ["first"]
    path = tmp_path / "log/n1/events.jsonl"
    line = events.to_line(Event("second", time=events.stamp(5))) + "\n"
    with path.open("a") as stream:
        stream.write(line[:20])
        stream.flush()
        assert trails.fresh() == []
        stream.write(line[20:])
    assert names(trails.fresh()) == ["second"]


@pytest.mark.parametrize("how", ["rotated", "truncated"])
def test_a_trail_that_begins_anew_is_read_anew(how: str, settings: Settings, tmp_path: Path) -> None:
    trails = Trails(settings)
    local(settings, "n1", Event("first", reason="x" * 500))
    trails.fresh()
    path = tmp_path / "log/n1/events.jsonl"
    if how == "rotated":
        path.rename(path.with_suffix(".1"))
    else:
        os.truncate(path, 0)
    local(settings, "n1", Event("second"))
    assert names(trails.fresh()) == ["second"]


def test_strange_files_cost_nothing(settings: Settings, tmp_path: Path) -> None:
    local(settings, "n1", Event("good"))
    for name in ("fifo", "folder", "link"):
        (tmp_path / "log" / name).mkdir()
    os.mkfifo(tmp_path / "log/fifo/events.jsonl")
    (tmp_path / "log/folder/events.jsonl").mkdir()
    (tmp_path / "log/link/events.jsonl").symlink_to("/nowhere")
    assert names(Trails(settings).fresh()) == ["good"]


def test_a_share_that_hangs_is_said_in_time(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "_read_new", lambda *_: os.kill(os.getpid(), 19))
    begin = time.monotonic()
    with pytest.raises(LackingError, match=r"within 0\.2 s"):
        Trails(settings, timeout_s=0.2).fresh()
    assert time.monotonic() - begin < 40


EVENT = Event("node.drain", node="n3", job="12", attempt="c/12-1", time="2031-05-01T12:00:00.000Z")


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        (Wanted(), True),
        (Wanted(job="12"), True),
        (Wanted(job="1"), False),
        (Wanted(nodes="n[1-4]"), True),
        (Wanted(nodes="n4"), False),
        (Wanted(event="node.drain"), True),
        (Wanted(event="node.*"), True),
        (Wanted(event="node"), False),
        (Wanted(since="2031-05-01T12:00:00.000Z"), True),
        (Wanted(since="2031-05-01T12:00:00.001Z"), False),
        (Wanted(job="12", nodes="n4"), False),
    ],
)
def test_what_is_wanted(wanted: Wanted, taken: bool) -> None:
    assert takes(wanted, EVENT) is taken


def test_an_attempt_names_its_job_and_no_node_is_no_match() -> None:
    assert takes(Wanted(job="12"), EVENT._replace(job=""))
    assert not takes(Wanted(job="2"), EVENT._replace(job=""))
    assert not takes(Wanted(nodes="n3"), EVENT._replace(node=""))
    with pytest.raises(HostlistError):
        takes(Wanted(nodes="n["), EVENT)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("10 min", 600), ("2h", 7200), ("1.5h", 5400), ("1d", 86400), ("30s", 30)],
)
def test_spans_count_back_from_now(text: str, seconds: float) -> None:
    assert since_text(text, now=NOW) == events.stamp(NOW - seconds)


def test_moments_are_local_or_utc() -> None:
    assert since_text("2031-05-01T12:00Z", now=NOW) == "2031-05-01T12:00:00.000Z"
    assert since_text("2031-05-01Z", now=NOW) == "2031-05-01T00:00:00.000Z"
    local_noon = time.mktime(time.strptime("2031-05-01T12:00:00", "%Y-%m-%dT%H:%M:%S"))
    assert since_text("2031-05-01T12:00:00", now=NOW) == events.stamp(local_noon)


@given(st.text(max_size=20))
def test_other_text_is_no_time(text: str) -> None:
    if not text.strip()[:1].isdigit():
        with pytest.raises(ValueError, match="expected"):
            since_text(text, now=NOW)
