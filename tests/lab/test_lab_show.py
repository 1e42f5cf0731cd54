"""What the demo prints, on terminals of all kinds and in a log."""

from __future__ import annotations

import io
import re

import pytest

from slurm_ext.lab.show import Show

LONG = "/a/path/" + "x" * 90


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


def play(out: io.StringIO) -> str:
    show = Show(out)
    show.title("a title that is wider than eighty columns, " * 3)
    show.say("words " * 40, "note")
    show.say(f"$ command {LONG} --option")
    show.quote("    STEP  SIZE      FILES  AGE    NVME(a-machine)  LUSTRE  S3     ATTEMPT  " + "MORE  " * 9)
    show.waiting("something that takes its time " * 5)
    show.waiting("something else")
    show.moment("a moment " * 20)
    show.promise("a promise " * 12, True, LONG)
    show.promise("another", False)
    assert not show.summary("a closing that is wider than eighty columns as well " * 3)
    return out.getvalue()


def plain(text: str) -> list[str]:
    """Return what stands on the screen at one time or another."""
    return re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;]*[mK]", "", text))


def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for columns in (40, 80, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = play(Terminal())
        assert max(map(len, plain(text))) <= columns
        assert "\r\x1b[K" in text
        assert "\x1b[32m" in text


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_dumb_terminal_gets_plain_lines_of_its_width(term: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    if term is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", term)
    text = play(Terminal())
    assert "\x1b" not in text
    assert "\r" not in text
    assert "something else" not in text
    assert max(map(len, plain(text))) <= 80


def test_a_log_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    text = play(io.StringIO())
    assert "\x1b" not in text
    assert "something else" not in text
    assert 80 < max(map(len, plain(text))) <= 100


def test_a_demo_that_promised_nothing_kept_nothing() -> None:
    assert not Show(io.StringIO()).summary("the end")


def test_what_a_command_printed_keeps_its_form() -> None:
    out = io.StringIO()
    show = Show(out)
    show.quote("STEP  SIZE      FILES")
    show.quote("")
    show.quote("  240   20.0 KiB  4   ")
    assert out.getvalue().splitlines() == ["  STEP  SIZE      FILES", "  ", "    240   20.0 KiB  4"]
