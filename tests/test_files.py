"""Files that root decides by: whole or not at all, and only what root alone could have written."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm_ext import files
from slurm_ext.errors import UntrustedFileError


def test_a_write_is_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "f"
    previous = os.umask(0o077)
    try:
        files.write_atomic(str(path), "one")
        files.write_atomic(str(path), b"two", mode=0o755)
    finally:
        os.umask(previous)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o755
    assert [entry.name for entry in path.parent.iterdir()] == ["f"]


def test_a_write_that_fails_keeps_the_old_and_no_temporary(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with pytest.raises(OSError, match="directory"):
        files.write_atomic(str(tmp_path / "f"), "x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_a_link_at_the_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("theirs")
    (tmp_path / "f").symlink_to("real")
    files.write_atomic(str(tmp_path / "f"), "ours")
    assert (tmp_path / "real").read_text() == "theirs"
    assert not (tmp_path / "f").is_symlink()


def test_one_of_many_exclusive_writers_wins_and_is_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "d" / "f")
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda number: files.write_exclusive(path, str(number) * 5000), range(8)))
    assert sorted(won) == [False] * 7 + [True]
    assert Path(path).read_text() == str(won.index(True)) * 5000
    assert [entry.name for entry in (tmp_path / "d").iterdir()] == ["f"]


def test_a_growing_file_is_cut_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 10)
    path.chmod(0o600)
    assert files.read_trusted(str(path), max_bytes=10) == b"x" * 10
    with pytest.raises(files.UntrustedFileError, match="10 bytes, 9"):
        files.read_trusted(str(path), max_bytes=9)


def test_only_a_regular_file_is_opened_and_nothing_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("theirs")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name in ("link", "fifo", "folder"):
        with pytest.raises(UntrustedFileError, match="no regular file"):
            files.open_regular(str(tmp_path / name), os.O_RDONLY)
    for name in ("link", "fifo"):
        with pytest.raises(UntrustedFileError, match="no regular file"):
            files.open_regular(str(tmp_path / name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    assert (tmp_path / "real").read_text() == "theirs"
    with pytest.raises(FileNotFoundError):
        files.open_regular(str(tmp_path / "none"), os.O_RDONLY)
    os.close(files.open_regular(str(tmp_path / "new"), os.O_WRONLY | os.O_CREAT))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_a_passing_file_replaces_what_lies_there(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("theirs")
    for name in ("f", "f~"):
        (tmp_path / name).symlink_to("real")
    files.write_passing(str(tmp_path / "f"), "ours")
    assert ((tmp_path / "real").read_text(), (tmp_path / "f").read_text()) == ("theirs", "ours")
    (tmp_path / "f").unlink()
    for name in ("f", "f~"):
        os.mkfifo(tmp_path / name)
    files.write_passing(str(tmp_path / "f"), "again")
    assert (tmp_path / "f").read_text() == "again"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["f", "real"]
