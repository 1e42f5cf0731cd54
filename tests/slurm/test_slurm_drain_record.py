"""The record of a drain: written whole, read back as it was, never believed where it has another form, and remembered after."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext import events
from slurm_ext.config.model import Settings
from slurm_ext.slurm import drain_record, expiry
from slurm_ext.slurm.drain_record import DrainRecord
from slurm_ext.slurm.model import Node

NOW = 1_900_000_000.0

RECORD = DrainRecord(
    node="n1",
    finding="gpu.ecc-uncorrected",
    target="gpu:3",
    action="reset-gpu",
    reason="fmslurm: gpu.ecc-uncorrected gpu:3: 2 errors",
    since_s=NOW,
    expires_s=NOW + 7 * 86_400,
    boot_id="b1",
    instance_id="i-1",
    owner="fmslurm gate",
    step="reset-gpu",
    tries=2,
    bundle="/share/evidence/n1/1",
    needs="reset the GPU",
)


@pytest.fixture
def share(tmp_path: Path) -> str:
    folder = tmp_path / "share"
    (folder / "ledger").mkdir(mode=0o755, parents=True)
    return str(folder)


def test_a_record_is_read_as_it_was_written_and_gone_when_removed(share: str) -> None:
    assert drain_record.read(share, "n1") is None
    assert drain_record.read_all(share) == {}
    assert drain_record.write(share, RECORD)
    assert drain_record.write(share, RECORD._replace(node="n2"))
    assert drain_record.read(share, "n1") == RECORD
    assert drain_record.read_all(share) == {"n1": RECORD, "n2": RECORD._replace(node="n2")}
    assert drain_record.remove(share, "n1")
    assert drain_record.remove(share, "n1"), "none is there any more, however often it is asked"
    assert drain_record.read(share, "n1") is None
    assert drain_record.history(share, "n1") == (), "a drain that was not done is no history"


def test_what_came_of_a_drain_is_remembered_oldest_first_and_no_more_than_enough(
    share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_record, "HISTORY_LINES", 12)
    for number in range(drain_record.HISTORY_LINES + 3):
        assert drain_record.write(share, RECORD._replace(since_s=NOW + number))
        assert drain_record.remove(share, "n1", outcome=f"resumed {number}", now=NOW + number + 0.5)
    past = drain_record.history(share, "n1")
    assert past is not None
    assert [one.outcome for one in past] == [f"resumed {number}" for number in range(3, drain_record.HISTORY_LINES + 3)]
    assert past[0].record == RECORD._replace(since_s=NOW + 3)
    assert past[0].ended_s == NOW + 3.5


def test_a_record_that_was_still_there_is_remembered_as_superseded_and_an_update_is_not(share: str) -> None:
    assert drain_record.write(share, RECORD)
    assert drain_record.write(share, RECORD._replace(needs="something else"))
    assert drain_record.history(share, "n1") == ()
    assert drain_record.write(share, RECORD._replace(since_s=NOW + drain_record.SAME_S + 1))
    past = drain_record.history(share, "n1")
    assert past is not None
    assert [(one.record.since_s, one.outcome) for one in past] == [(NOW, drain_record.SUPERSEDED)]


def test_that_a_drain_stands_too_long_is_told_once_a_day_by_whoever_is_first(share: str, tmp_path: Path) -> None:
    late = RECORD._replace(expires_s=NOW + 60)
    assert drain_record.overdue(late, now=NOW) == ""
    assert drain_record.overdue(late._replace(expires_s=0.0), now=NOW + 1e9) == ""
    words = drain_record.overdue(late, now=NOW + 86_400)
    assert words == (
        "n1 has been drained by fmslurm gate for 1.0 days for gpu.ecc-uncorrected on gpu:3, longer than drain.expires_d; it needs"
        " reset the GPU"
    )
    assert drain_record.first_to_tell(share, late, now=NOW)
    assert not drain_record.first_to_tell(share, late, now=NOW + 86_399)
    assert drain_record.first_to_tell(share, late, now=NOW + 86_400)
    assert drain_record.first_to_tell(share, late._replace(since_s=NOW + 1), now=NOW + 86_500), "another drain"
    assert drain_record.first_to_tell(share, late, now=NOW), "the clock was turned back"
    assert not drain_record.first_to_tell("", late, now=NOW)
    assert not drain_record.first_to_tell(str(tmp_path / "none"), late, now=NOW)


def test_the_controller_tells_of_drains_of_ours_that_nobody_has_a_record_of(share: str, tmp_path: Path) -> None:
    settings = Settings()._replace(site=Settings().site._replace(share=share))
    assert drain_record.write(share, RECORD._replace(node="n1"))
    nodes = [
        Node(name, "IDLE", flags, reason, "root", int(NOW) - age)
        for name, flags, reason, age in (
            ("n1", ("DRAIN",), "fmslurm: gpu.lost gpu:3: gone", 9_000),  # on record
            ("n2", ("DRAIN",), "fmslurm: gpu.lost gpu:3: gone", 9_000),
            ("n3", ("DRAIN",), "fmslurm: gpu.lost gpu:3: gone", 60),  # its record may be under way
            ("n4", ("DRAIN",), "ticket 7", 9_000),
            ("n5", ("DRAIN",), "fmslurm: node.manual node: disk swap", 9_000),
            ("n6", (), "fmslurm: gpu.lost gpu:3: gone", 9_000),  # resumed: the reason stays
        )
    ]
    path = str(tmp_path / "events.jsonl")
    assert expiry.unrecorded(settings, nodes, path, now=NOW) == ("n2",)
    assert expiry.unrecorded(settings, nodes, path, now=NOW + 60) == ()
    (event,) = events.read(path)
    assert (event.event, event.node, event.rule) == ("node.drain-unrecorded", "n2", "gpu.lost")
    assert "fmslurm node resume" in event.reason
    assert expiry.unrecorded(settings, nodes, path, now=NOW + 86_500) == ("n2", "n3")
    assert expiry.unrecorded(Settings(), nodes, path, now=NOW) == (), "without a share nobody knows of any record"


def test_the_controller_tells_of_nodes_that_are_silent_and_no_node_tells_it_again(share: str, tmp_path: Path) -> None:
    settings = Settings()._replace(site=Settings().site._replace(share=share))
    for node in ("n1", "n2", "n3"):
        assert drain_record.write(share, RECORD._replace(node=node, expires_s=NOW + (1e9 if node == "n3" else 60)))
    assert drain_record.first_to_tell(share, RECORD._replace(node="n2"), now=NOW + 100)
    path = str(tmp_path / "events.jsonl")
    assert expiry.remind(settings, path, now=NOW + 120) == ("n1",)
    assert expiry.remind(settings, path, now=NOW + 180) == ()
    (event,) = events.read(path)
    assert (event.event, event.node, event.rule, event.decision) == (
        "node.drain-expired",
        "n1",
        "gpu.ecc-uncorrected",
        "report",
    )
    assert expiry.remind(Settings(), path, now=NOW) == ()


def test_without_a_share_nothing_is_done_and_nothing_known(tmp_path: Path) -> None:
    for share in ("", str(tmp_path / "share")):
        assert not drain_record.write(share, RECORD)
        assert drain_record.read(share, "n1") is None
        assert drain_record.read_all(share) is None
        assert not drain_record.remove(share, "n1")
        assert drain_record.history(share, "n1") is None
    assert list(tmp_path.iterdir()) == [], "a share that is not mounted is not made on the disk below it"


@pytest.mark.parametrize("name", ["../n1", "n1/..", "", ".n1", "n 1"])
def test_a_name_that_is_none_touches_no_file(share: str, name: str) -> None:
    assert not drain_record.write(share, RECORD._replace(node=name))
    assert drain_record.read(share, name) is None
    assert not drain_record.remove(share, name)
    assert os.listdir(share) == ["ledger"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": 2}',
        "[" * 100_000,
        json.dumps({**drain_record.to_data(RECORD), "schema": 9}),
        json.dumps({**drain_record.to_data(RECORD), "since_s": "yesterday"}),
        json.dumps({**drain_record.to_data(RECORD), "since_s": True}),
        json.dumps({**drain_record.to_data(RECORD), "tries": 1.5}),
        json.dumps({**drain_record.to_data(RECORD), "reason": ""}),
        json.dumps({**drain_record.to_data(RECORD), "node": "n2"}),
        json.dumps(drain_record.to_data(RECORD)).replace(str(NOW), "NaN"),
        "x" * (drain_record.RECORD_BYTES + 1),
    ],
    ids=lambda content: content[:20],
)
def test_what_has_another_form_is_no_record(share: str, content: str) -> None:
    path = Path(drain_record.record_path(share, "n1"))
    path.parent.mkdir()
    path.write_text(content)
    assert drain_record.read(share, "n1") is None
    assert drain_record.read_all(share) == {}


def test_what_others_may_write_or_a_link_is_no_record(share: str, tmp_path: Path) -> None:
    assert drain_record.write(share, RECORD)
    path = Path(drain_record.record_path(share, "n1"))
    path.chmod(0o666)
    assert drain_record.read(share, "n1") is None
    real = tmp_path / "elsewhere.json"
    path.rename(real)
    real.chmod(0o644)
    path.symlink_to(real)
    assert drain_record.read(share, "n1") is None


def test_a_torn_history_loses_only_its_torn_line(share: str) -> None:
    assert drain_record.write(share, RECORD)
    assert drain_record.remove(share, "n1", outcome="resumed", now=NOW + 1)
    path = Path(drain_record.history_path(share, "n1"))
    path.write_text(path.read_text() + '{"schema": 1, "node"')
    past = drain_record.history(share, "n1")
    assert past is not None
    assert [one.outcome for one in past] == ["resumed"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(DrainRecord._fields), inner),
        max_leaves=12,
    )
)
def test_any_data_is_a_record_or_none(data: Any) -> None:
    found = drain_record.from_data({"schema": 1, **data} if isinstance(data, dict) else data)
    assert found is None or drain_record.from_data(drain_record.to_data(found)) == found
