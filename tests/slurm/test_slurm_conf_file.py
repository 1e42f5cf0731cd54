"""A file of Slurm's that we own: nothing of anybody's is lost, whatever fails in the middle."""

from __future__ import annotations

import errno
import os
import resource
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.errors import LackingError, UsageError
from slurm_ext.slurm import conf_file
from slurm_ext.slurm.conf_file import (
    EDITED,
    FOREIGN,
    MISSING,
    OURS,
    bare,
    look,
    refuse_foreign,
    replace,
    restore,
    stamped,
)

WHEN = "20260102T030405Z"


def entries(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_a_stamp_is_taken_off_again_and_tells_every_change(text: str) -> None:
    whole = stamped(text)
    assert bare(whole) == text
    assert conf_file.state_of(whole) == OURS
    assert conf_file.state_of(whole + "x") == EDITED
    assert conf_file.state_of(text) == FOREIGN or bare(text) != text


@pytest.mark.parametrize("over", range(-3, 4))
def test_no_file_is_a_whole_number_of_pages(over: int) -> None:
    whole = stamped("y" * (4096 - 52 + over))
    assert len(whole.encode()) % 4096
    assert conf_file.state_of(whole) == OURS


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (lambda text: text, OURS),
        (lambda text: text.replace("Nodes=n1", "Nodes=n2"), EDITED),
        (lambda text: text + "# a person's word\n", EDITED),
        (lambda text: text.split("\n", 1)[1], FOREIGN),
        (lambda text: "# a person's word\n" + text, FOREIGN),
        (lambda text: text.upper(), FOREIGN),
        (lambda text: "", FOREIGN),
    ],
)
def test_whose_a_file_is(change, state: str, tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    path.write_text(change(stamped("SwitchName=s Nodes=n1\n")))
    held = look(str(path))
    assert held.state == state
    refuse_foreign(held, force=True)
    if state == OURS:
        refuse_foreign(held, force=False)
    else:
        with pytest.raises(UsageError, match=r"topology\.conf was .*--force"):
            refuse_foreign(held, force=False)


def test_what_somebody_wrote_stays_beside_it_each_time(tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    for number in range(3):
        path.write_bytes(b"SwitchName=theirs \xff %d\n" % number)
        path.chmod(0o640)
        kept = replace(look(str(path)), stamped("SwitchName=ours\n"), when=WHEN)
        assert Path(kept.copy).read_bytes() == b"SwitchName=theirs \xff %d\n" % number
        assert path.stat().st_mode & 0o777 == 0o640
    first = f"topology.conf.before-fmslurm-{WHEN}"
    assert entries(tmp_path) == {"topology.conf", first, f"{first}-2", f"{first}-3"}


def test_ours_leaves_one_copy_and_is_put_back(tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    kept = replace(look(str(path)), stamped("one\n"), when=WHEN)
    assert kept.before.state == MISSING
    second = replace(look(str(path)), stamped("two\n"), when=WHEN)
    third = replace(look(str(path)), stamped("three\n"), when=WHEN)
    assert entries(tmp_path) == {"topology.conf", "topology.conf.fmslurm-previous"}
    assert bare(Path(third.copy).read_text()) == "two\n"
    restore(third)
    assert bare(path.read_text()) == "two\n"
    restore(second)
    assert bare(path.read_text()) == "one\n"
    restore(kept)
    assert not path.exists()
    restore(kept)  # nothing is there, as it was


def test_what_somebody_wrote_meanwhile_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    path.write_text(stamped("one\n"))
    kept = replace(look(str(path)), stamped("two\n"), when=WHEN)
    path.write_text("mine\n")
    theirs = restore(kept)
    assert Path(theirs).read_text() == "mine\n"
    assert bare(path.read_text()) == "one\n"
    assert restore(kept) == ""


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_on_a_full_disk_the_copy_itself_takes_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "topology.conf"
    path.write_text("theirs\n")
    kept = replace(look(str(path)), stamped("two\n"), when=WHEN)
    monkeypatch.setattr(conf_file, "write_atomic", full)
    restore(kept)
    assert path.read_text() == "theirs\n"


def test_what_a_killed_process_left_is_swept_up(tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    old, new, other = (tmp_path / name for name in (f".{path.name}.{'a' * 12}", f".{path.name}.{'b' * 12}", ".mine"))
    for left in (old, new, other):
        left.write_text("half")
    for left in (old, other):
        os.utime(left, (1, 1))
    replace(look(str(path)), stamped("one\n"), when=WHEN)
    assert entries(tmp_path) == {path.name, new.name, other.name}


def test_a_link_leads_to_the_file_and_stays(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    real = tmp_path / "shared" / "topology.conf"
    real.parent.mkdir()
    real.write_text(stamped("one\n"))
    (tmp_path / "etc" / "topology.conf").symlink_to(real)
    kept = replace(look(str(tmp_path / "etc" / "topology.conf")), stamped("two\n"), when=WHEN)
    assert (tmp_path / "etc" / "topology.conf").is_symlink()
    assert bare(real.read_text()) == "two\n"
    assert entries(tmp_path / "etc") == {"topology.conf"}
    restore(kept)
    assert bare(real.read_text()) == "one\n"


def test_a_change_meanwhile_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    path.write_text(stamped("one\n"))
    held = look(str(path))
    path.write_text("by somebody\n")
    with pytest.raises(UsageError, match="changed while"):
        replace(held, stamped("two\n"), when=WHEN)
    assert path.read_text() == "by somebody\n"
    assert entries(tmp_path) == {"topology.conf"}


@pytest.mark.parametrize("kind", ["folder", "fifo", "folder missing"])
def test_what_is_no_file_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path = tmp_path / "none" / "topology.conf"
        assert look(str(path)).state == MISSING
        return
    with pytest.raises(LackingError, match=r"topology\.conf"):
        look(str(path))


def _replace_where_no_room_is(path: str, said) -> None:
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # write(2) ends in EFBIG, as it does in ENOSPC
    try:
        replace(look(path), stamped("x" * 100_000), when=WHEN)
        said.put("written")
    except LackingError as exc:
        said.put(str(exc))


@pytest.mark.parametrize("before", ["", "one\n"])
def test_no_room_leaves_what_was_there(before: str, tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    if before:
        path.write_text(stamped(before))
    context = get_context("spawn")
    said = context.Queue()
    child = context.Process(target=_replace_where_no_room_is, args=(str(path), said))
    child.start()
    words = said.get(timeout=60)
    child.join(60)
    assert "is as it was" in words
    assert "Make room" in words
    if before:
        assert bare(path.read_text()) == before
    assert entries(tmp_path) <= {"topology.conf", "topology.conf.fmslurm-previous"}
