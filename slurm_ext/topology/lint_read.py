"""Slurm's configuration text -> lines of keys and values, as its own parser takes them (parse_config.c). Pure.

A `#` begins a comment unless a backslash stands before it; a backslash at the end of a line continues it; `Include FILE`
stands alone; keys are case-insensitive; a value may stand in double quotes; a line ends at a NUL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

#: Nobody's topology is larger, and each of these bounds what a hostile file costs.
MAX_TEXT, MAX_DEPTH, MAX_FILES = 64 << 20, 8, 200

_PAIR = re.compile(
    r'[ \t\r\n\f\v]*([A-Za-z0-9_.]+)[ \t\r\n\f\v]*[-*+/]?=[ \t\r\n\f\v]*(?:"([^"]*)"|([^ \t\r\n\f\v]+))(?:[ \t\r\n\f\v]|$)'
)
_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)#.*", re.DOTALL)
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_INCLUDE = re.compile(r"include[ \t\r\n\f\v]+([^ \t\r\n\f\v]+)", re.IGNORECASE)
_NUMBER = re.compile(r"[ \t\r\n\f\v]*\+?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)?([kK]?)")
_BLANK = " \t\r\n\f\v"


class Line(NamedTuple):
    """One logical line: its pairs (keys in lower case, in order), and what was left that is no pair."""

    file: str
    number: int
    pairs: tuple[tuple[str, str], ...]
    rest: str = ""
    include: str = ""
    #: The file that it includes is being read already.
    circle: bool = False

    def get(self, key: str) -> str | None:
        """Return the last value of a key (lower case), None where it is not there."""
        return next((value for name, value in reversed(self.pairs) if name == key), None)


def lines(name: str, text: str, includes: Mapping[str, str] | None = None) -> Iterator[Line]:
    """Yield the logical lines of a file and, where they are known, of the files it includes, in the order Slurm reads them.

    `includes` maps what stands behind an Include to the text; a line for an Include is yielded too, before what it has.
    """
    files = dict(includes or {})
    stack: list[tuple[str, Iterator[tuple[int, str]]]] = [(name, _logical(text))]
    opened = 0
    while stack:
        here, source = stack[-1]
        entry = next(source, None)
        if entry is None:
            stack.pop()
            continue
        number, words = entry
        line = _line(here, number, words)
        if line.include and line.include in (name.rpartition("/")[2], *(file for file, _ in stack)):
            yield line._replace(circle=True)
            continue
        yield line
        if line.include in files and len(stack) < MAX_DEPTH and opened < MAX_FILES:
            opened += 1
            stack.append((line.include, _logical(files[line.include])))


def is_number(text: str, most: int = (1 << 32) - 1) -> bool:
    """Say whether Slurm takes a value for a whole number (s_p_handle_uint32): decimal, 0x, octal; a k for 1024."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return text.lower() in ("unlimited", "infinite")
    digits, thousands = found[1] or "0", found[2]
    if len(digits) > 24:
        return not digits.strip("0")
    number = int(digits, 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10)
    return number * (1024 if thousands else 1) <= most


def include_names(text: str) -> list[str]:
    """Return what a file includes, in order, each once."""
    return list(dict.fromkeys(line.include for line in lines("", text) if line.include))


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) with comments gone, continuations joined and escapes undone."""
    held: list[str] = []
    first = 1
    for number, line in enumerate(text.split("\n"), 1):
        if not held:
            first = number
        if "\0" in line:
            line = line.partition("\0")[0]
        if "#" in line:
            line = _COMMENT.sub(r"\1", line)
        bare = line.rstrip(_BLANK)
        slashes = len(bare) - len(bare.rstrip("\\"))
        if slashes % 2:
            held.append(bare[:-1])
            continue
        held.append(line)
        yield from _whole(first, held)
        held = []
    yield from _whole(first, held)


def _whole(first: int, held: list[str]) -> Iterator[tuple[int, str]]:
    whole = "".join(held)
    if "\\" in whole:
        whole = _ESCAPE.sub(r"\1", whole)
    if whole.strip(_BLANK):
        yield first, whole


def _line(file: str, number: int, text: str) -> Line:
    if included := _INCLUDE.match(text):
        return Line(file, number, (), text[included.end() :].strip(_BLANK), included[1])
    pairs = []
    position = 0
    while found := _PAIR.match(text, position):
        pairs.append((found[1].lower(), found[2] if found[2] is not None else found[3]))
        position = found.end()
    return Line(file, number, tuple(pairs), text[position:].strip(_BLANK))
