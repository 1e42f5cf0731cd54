"""Manifests: written and read back, hostile ones refused, trees walked, shards merged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from staging_trees import write_tree

from slurm_ext.staging import manifest as manifests
from slurm_ext.staging.model import FOLDER, LINK, CheckpointRefused, Entry, Manifest, is_attempt, slug

_NAME = st.text(st.characters(blacklist_characters="/\0"), min_size=1, max_size=12).filter(
    lambda text: text not in (".", "..") and not text.startswith(".fmslurm-")
)
_PATH = st.lists(_NAME, min_size=1, max_size=4).map("/".join)
_ENTRY = st.one_of(
    st.builds(
        Entry,
        path=_PATH,
        size=st.integers(0, 1 << 50),
        mode=st.integers(0, 0o777),
        mtime_ns=st.integers(-(1 << 62), 1 << 62),
        checksum=st.sampled_from(["", "crc64nvme:0123456789abcdef"]),
        shard=st.integers(0, 9),
        kind=st.just("file"),
        target=st.just(""),
        key=st.just(""),
    ),
    st.tuples(_PATH, st.text(st.characters(blacklist_characters="\0"))).map(lambda x: Entry(x[0], LINK, target=x[1])),
    st.tuples(_PATH, st.integers(0, 0o777)).map(lambda x: Entry(x[0], FOLDER, mode=x[1])),
)


@given(entries=st.lists(_ENTRY, unique_by=lambda entry: entry.path, max_size=8), step=st.integers(0, 10**15))
def test_what_is_written_is_read_back(entries: list[Entry], step: int) -> None:
    written = Manifest("run", step, "lab/12-0", 2, 1, "n0", "/ckpt", 5.0, tuple(entries))
    assert manifests.parse(manifests.render(written)) == written


@given(content=st.binary(max_size=200))
def test_no_bytes_crash_the_parser(content: bytes) -> None:
    with pytest.raises(ValueError):
        manifests.parse(content)


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"schema": 1, "created": 1' + b"0" * 400 + b"}"])
def test_what_is_too_deep_or_too_large_is_refused_as_any_other(content: bytes) -> None:
    with pytest.raises(ValueError):
        manifests.parse(content)


_GOOD = json.loads(manifests.render(Manifest("run", 5, "lab/12-0", 2, 1, entries=(Entry("a", size=1),))))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", 2),
        ("run", "../up"),
        ("run", ""),
        ("step", -1),
        ("step", "5"),
        ("step", True),
        ("attempt", "a/../b"),
        ("attempt", ""),
        ("world", 0),
        ("shard", 2),
        ("checkpoint_dir", "relative"),
        ("checkpoint_dir", "/with\0nul"),
        ("files", "none"),
        ("files", [5]),
        ("files", [{"path": "../a", "kind": "file", "mode": 0, "shard": 0, "size": 0, "mtime_ns": 0}]),
        ("files", [{"path": "/a", "kind": "file", "mode": 0, "shard": 0, "size": 0, "mtime_ns": 0}]),
        ("files", [{"path": ".fmslurm-x/a", "kind": "dir", "mode": 0, "shard": 0}]),
        ("files", [{"path": "a", "kind": "device", "mode": 0, "shard": 0}]),
        ("files", [{"path": "a", "kind": "file", "mode": 0, "shard": 0, "size": -1, "mtime_ns": 0}]),
        ("files", [{"path": "a", "kind": "dir", "mode": 0, "shard": 0}] * 2),
    ],
)
def test_a_hostile_manifest_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError):
        manifests.parse(json.dumps({**_GOOD, key: value}).encode())


def test_a_set_user_id_bit_does_not_travel() -> None:
    files = [{"path": "a", "kind": "file", "mode": 0o4755, "shard": 0, "size": 0, "mtime_ns": 0}]
    assert manifests.parse(json.dumps({**_GOOD, "files": files}).encode()).entries[0].mode == 0o755


def test_walk_takes_links_as_links_and_odd_names(tmp_path: Path) -> None:
    write_tree(str(tmp_path))
    entries = {entry.path: entry for entry in manifests.walk(str(tmp_path))}
    assert entries["dangling"].target == "/nowhere/at all"
    assert entries["empty folder"] == Entry("empty folder", FOLDER, mode=0o750)
    assert entries["sparse"].size == (3 << 20) + 3
    assert os.fsdecode(b"odd-\xff\xfe") in entries
    assert manifests.missing(str(tmp_path), Manifest("run", 1, "a", entries=tuple(entries.values()))) == ""


@pytest.mark.parametrize("kind", ["pipe", "ours", "ours deep"])
def test_walk_refuses_what_no_tier_can_hold(tmp_path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "pipe")
    else:
        folder = tmp_path / "sub" if kind == "ours deep" else tmp_path
        folder.mkdir(exist_ok=True)
        (folder / ".fmslurm-x").touch()
    with pytest.raises(CheckpointRefused) as refused:
        manifests.walk(str(tmp_path))
    assert refused.value.reason == "invalid"


def test_reading_follows_no_link_and_waits_for_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    for name in ("pipe", "link"):
        with pytest.raises(ValueError):
            manifests.read(str(tmp_path / name))
    assert manifests.read(str(tmp_path / "none")) is None


def _shard(number: int, *entries: Entry, world: int = 2, attempt: str = "a") -> Manifest:
    return Manifest("run", 1, attempt, world, number, entries=entries)


def test_merge_puts_all_shards_together() -> None:
    one = _shard(0, Entry("a", size=1, checksum="crc32:1"), Entry("d", FOLDER))
    two = _shard(1, Entry("b", size=2, checksum="crc32:2", shard=1), Entry("d", FOLDER, shard=1))
    whole = manifests.merge([two, one])
    assert [entry.path for entry in whole.entries] == ["a", "b", "d"]
    assert (whole.shard, whole.world, whole.size) == (-1, 2, 3)


@pytest.mark.parametrize(
    ("shards", "reason"),
    [
        ([_shard(0)], "invalid"),
        ([_shard(0), _shard(0)], "invalid"),
        ([_shard(0), _shard(1, attempt="b")], "invalid"),
        ([_shard(0, world=2), _shard(1, world=3)], "invalid"),
        ([_shard(0, Entry("a", checksum="crc32:1")), _shard(1, Entry("a", checksum="crc32:2"))], "conflict"),
        ([_shard(0, Entry("a")), _shard(1, Entry("a"))], "conflict"),  # same size, content not known
        ([_shard(0, Entry("a", FOLDER)), _shard(1, Entry("a", LINK))], "conflict"),
    ],
)
def test_merge_refuses_what_does_not_fit(shards: list[Manifest], reason: str) -> None:
    with pytest.raises(CheckpointRefused) as refused:
        manifests.merge(shards)
    assert refused.value.reason == reason


def test_equal_files_of_two_shards_are_one() -> None:
    same = Entry("config.json", size=3, checksum="crc32:1")
    assert len(manifests.merge([_shard(0, same), _shard(1, same._replace(shard=1))]).entries) == 1


@pytest.mark.parametrize(
    ("text", "good"), [("lab/12-0", True), ("manual", True), ("../x", False), ("", False), ("/a", False)]
)
def test_attempts(text: str, good: bool) -> None:
    assert is_attempt(text) is good
    assert "/" not in slug(text)
