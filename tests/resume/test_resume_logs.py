"""Logs of any size and encoding: windows, cleaning, runs, time stamps."""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ext.resume import logs
from slurm_ext.resume.attribute import attribute
from slurm_ext.resume.model import Evidence, SlurmFacts


def test_colours_and_progress_bars_leave_the_message():
    text = "\x1b[31mred\x1b[0m\n 10%|#  | 1/10 [00:01<00:09]\r 20%|## | 2/10 [00:02<00:08]\rTraceback\r\nend\n"
    assert logs.lines(text) == ["red", "Traceback", "end"]


def test_utf16_and_broken_utf8_are_read():
    assert logs.decode("KeyError".encode("utf-16")) == "KeyError"
    assert "ok" in logs.decode(b"\xff\xfa\x00 ok")


def test_a_huge_log_is_read_at_both_ends(tmp_path):
    path = tmp_path / "job.log"
    with path.open("wb") as stream:
        stream.write(b"first line\n")
        stream.truncate(64 << 20)
        stream.seek(0, os.SEEK_END)
        stream.write(b"\nlast line\n")
    text, size, _ = logs.read_window(str(path))
    assert size > 64 << 20
    assert len(text) < 6 << 20
    assert text.startswith("first line")
    assert text.rstrip().endswith("last line")


def test_only_what_came_after_the_last_run_is_read(tmp_path):
    path = tmp_path / "job.log"
    path.write_text("old run\nnew run\n")
    assert logs.read_window(str(path), start=8)[0] == "new run\n"
    assert logs.read_window(str(path), start=999)[0] == "old run\nnew run\n"  # truncated by a new run


def test_a_log_that_a_new_run_wrote_over_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "job.log"
    path.write_text("old run\n")
    old = logs.read_window(str(path))
    path.write_text("new run\n")
    assert logs.read_window(str(path), start=old.size, mark=old.mark).text == "new run\n"
    path.write_text("new run, and a longer one\n")
    assert logs.read_window(str(path), start=old.size, mark=old.mark).text.startswith("new run, and")
    path.write_text("old run\nappended\n")
    assert logs.read_window(str(path), start=old.size, mark=old.mark).text == "appended\n"
    path.write_text("old run\n")
    assert logs.read_window(str(path), start=old.size, mark=old.mark, since=2e9 * 2).text == ""


def test_a_pipe_and_a_missing_file_say_nothing(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert logs.read_window(str(tmp_path / "pipe")) == ("", -1, "")
    assert logs.read_window(str(tmp_path / "none")) == ("", -1, "")


def test_a_file_the_user_may_not_read_stays_unread(tmp_path):
    path = tmp_path / "secret"
    path.write_text("root only")
    path.chmod(0o600)
    if os.geteuid() == 0:
        assert logs.read_window(str(path), uid=65534, gid=65534) == ("", -1, "")


def test_runs_are_parted_by_the_restart_count():
    log = ["SLURM_RESTART_COUNT=0", "a", "SLURM_RESTART_COUNT=1 x", "b", "SLURM_RESTART_COUNT=1 y", "c"]
    assert [len(part) for part in logs.runs(log)] == [2, 4]


def test_stamps():
    assert logs.time_of("[Mon Mar 21 13:34:33 2022] x") == logs.time_of("2022-03-21T13:34:33 x")
    assert logs.time_of("[rank5]:[E0402 17:26:09.5 x", year=2026) == logs.time_of("2026-04-02 17:26:09,5")
    assert logs.time_of("[E0402 17:26:09.5 x") is None
    assert logs.time_of("2022-13-41T25:61:61") is None


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=2000))
def test_any_bytes_give_a_verdict(data):
    cause = attribute(Evidence(SlurmFacts(state="FAILED", nodes=("a", "b")), tuple(logs.lines(logs.decode(data)))))
    assert cause.rule
