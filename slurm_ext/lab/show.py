"""What the demo prints: one line a thing that happens, a live line while it waits (on a terminal), a time line at the end."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from typing import NamedTuple, TextIO

_COLOURS = {"good": "32", "bad": "31;1", "dim": "2", "head": "1", "note": "36"}


class Moment(NamedTuple):
    """One point of the time line: seconds since the start, and what happened."""

    at_s: float
    text: str


class Promise(NamedTuple):
    """One thing the demo promises: the sentence, whether it came true, and what was seen."""

    text: str
    kept: bool
    seen: str


class Show:
    """Prints the story. Plain lines where the output is no terminal; never wider than the terminal, or than 100 columns."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out if out is not None else sys.stdout
        # A dumb terminal (an editor's, a serial log) neither erases a line nor knows colours.
        self.terminal = self.out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.width = min(shutil.get_terminal_size((80, 24)).columns, 100) if self.out.isatty() else 100
        self.started = time.monotonic()
        self.moments: list[Moment] = []
        self.promises: list[Promise] = []
        self._live = ""

    def elapsed(self) -> float:
        """Return seconds since the demo began."""
        return time.monotonic() - self.started

    def title(self, text: str) -> None:
        """Print a heading."""
        self._clear()
        self._write("")
        for line in self._wrap(text):
            self._write(self._paint(line, "head"))

    def say(self, text: str, kind: str = "") -> None:
        """Print what happens now, with the time since the start, wrapped to the width."""
        self._clear()
        stamp = f"{self.elapsed():6.1f}s  "
        for number, line in enumerate(self._wrap(text, " " * len(stamp))):
            head = self._paint(stamp, "dim") if number == 0 else " " * len(stamp)
            self._write(head + self._paint(line[len(stamp) :], kind))

    def quote(self, line: str, kind: str = "") -> None:
        """Print a line that a command printed, as it is where the width allows."""
        self._clear()
        margin = " " * (len(line) - len(line.lstrip()) + 2)
        for part in self._wrap(line.strip(), margin):
            self._write(self._paint(part, kind))

    def moment(self, text: str) -> None:
        """Print what happens now and keep it for the time line."""
        self.moments.append(Moment(self.elapsed(), text))
        self.say(text)

    def waiting(self, text: str) -> None:
        """Show on a terminal what we wait for, in one line that is written over; a log gets nothing."""
        if not self.terminal:
            return
        line = f"        ... {text}"[: self.width - 1]
        if line != self._live:
            self.out.write("\r\x1b[K" + self._paint(line, "dim"))
            self.out.flush()
            self._live = line

    def promise(self, text: str, kept: bool, seen: str = "") -> bool:
        """Write down whether a promise was kept, print it, and return it."""
        self.promises.append(Promise(text, kept, seen))
        mark = "kept" if kept else "BROKEN"
        self.say(f"[{mark}] {text}" + (f": {seen}" if seen else ""), "good" if kept else "bad")
        return kept

    def summary(self, closing: str) -> bool:
        """Print the time line and one screen that sums up; return True where every promise was kept."""
        self.title("Time line")
        for moment in self.moments:
            for line in self._wrap(moment.text, f"{moment.at_s:6.1f}s  "):
                self._write(line)
        broken = [promise for promise in self.promises if not promise.kept]
        self.title(f"Summary: {len(self.promises) - len(broken)} of {len(self.promises)} promises kept")
        for promise in self.promises:
            mark = self._paint("kept  ", "good") if promise.kept else self._paint("BROKEN", "bad")
            self._write(f"{mark}  {promise.text}"[: self.width + (len(mark) - 6)])
        self._write("")
        for line in self._wrap(closing):
            self._write(line)
        return bool(self.promises) and not broken

    def _wrap(self, text: str, head: str = "") -> list[str]:
        """Return the text after `head`, in lines no wider than the output; a word that is, a path perhaps, is cut."""
        width = max(self.width, len(head) + 20)
        # Not broken at hyphens: names of files and options are there to be copied.
        wrapped = textwrap.wrap(
            text, width, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
        )
        return wrapped or [head]

    def _paint(self, text: str, kind: str) -> str:
        return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if self.terminal and kind else text

    def _clear(self) -> None:
        if self._live:
            self.out.write("\r\x1b[K")
            self._live = ""

    def _write(self, line: str) -> None:
        self.out.write(line + "\n")
        self.out.flush()
