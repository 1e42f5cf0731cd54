"""Reads an sbatch command line and a batch script's directives as sbatch does. Pure; every argument is kept."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from slurm_ext.errors import UsageError
from slurm_ext.resume.sbatch_options import FLAG, LONG, OPTIONAL, REQUIRED, SHORT, long_name

#: Our options: name -> whether it takes a value.
OWN: dict[str, str] = {
    "fm-resume": OPTIONAL,
    "fm-run": REQUIRED,
    "fm-ckpt": REQUIRED,
    "fm-burnin": REQUIRED,
    "fm-check": FLAG,
    "fm-print": FLAG,
    "fm-off": FLAG,
}


class Given(NamedTuple):
    """One option as given: its long name and its value (None: none)."""

    name: str
    value: str | None = None


class CommandLine(NamedTuple):
    """An sbatch command line, read: `rest` is everything that is not ours, in order; additions go in at `insert_at`."""

    rest: tuple[str, ...]
    insert_at: int
    own: tuple[Given, ...] = ()
    given: tuple[Given, ...] = ()
    script: str = ""  # empty: --wrap or standard input
    heterogeneous: bool = False
    unknown: str = ""  # the option at which reading stopped

    def last(self, name: str) -> str | None:
        """Return the value of the last option of that name, as sbatch takes it; None where it was not given."""
        values = [one.value for one in self.given if one.name == name]
        return values[-1] if values else None

    def has(self, *names: str) -> bool:
        """Say whether one of the options was given."""
        return any(one.name in names for one in self.given)


class Script(NamedTuple):
    """The directives of a batch script: its #SBATCH options and our #FMSLURM ones."""

    given: tuple[Given, ...] = ()
    own: tuple[Given, ...] = ()
    heterogeneous: bool = False


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """Read sbatch's arguments up to the script, as getopt_long does. Raise UsageError for a wrong option of ours."""
    rest: list[str] = []
    own: list[Given] = []
    given: list[Given] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word in ("--", ":") or not word.startswith("-") or word == "-":
            tail = list(arguments[position:])
            script = (tail[1] if len(tail) > 1 else "") if word == "--" else word
            het = word == ":"
            return CommandLine((*rest, *tail), len(rest), tuple(own), tuple(given), "" if het else script, het)
        if word.startswith("--fm-"):
            option, used = _read_own(word, arguments[position + 1 :])
            own.append(option)
            position += used
            continue
        options, used = _read_option(word, arguments[position + 1 :])
        if not used:
            return CommandLine((*rest, *arguments[position:]), len(rest), tuple(own), tuple(given), unknown=word)
        given += options
        rest += arguments[position : position + used]
        position += used
    return CommandLine(tuple(rest), len(rest), tuple(own), tuple(given))


def _read_own(word: str, following: Sequence[str]) -> tuple[Given, int]:
    """Return one option of ours and how many arguments it took."""
    name, equals, value = word[2:].partition("=")
    kind = OWN.get(name)
    if kind is None:
        near = difflib.get_close_matches(name, OWN, 1)
        raise UsageError(
            f"no option --{name}", remedy=f"Did you mean --{near[0]}?" if near else "See fmslurm submit -h"
        )
    if kind == FLAG and equals:
        raise UsageError(f"--{name} takes no value")
    if kind == REQUIRED and not equals:
        if not following:
            raise UsageError(f"--{name} needs a value")
        return Given(name, following[0]), 2
    return Given(name, value if equals else None), 1


def _read_option(word: str, following: Sequence[str]) -> tuple[list[Given], int]:
    """Return the options in one word of sbatch's (short ones cluster) and how many arguments they took; 0: not known."""
    if word.startswith("--"):
        text, equals, value = word[2:].partition("=")
        name = long_name(text)
        if name is None:
            return ([Given(text, value)], 1) if equals else ([], 0)
        if equals:
            return [Given(name, value)], 1
        if LONG[name] != REQUIRED:
            return [Given(name)], 1
        return ([Given(name, following[0])], 2) if following else ([], 0)
    found: list[Given] = []
    for index, letter in enumerate(word[1:], start=2):
        name = SHORT.get(letter)
        if name is None:
            return [], 0
        if LONG[name] == FLAG:
            found.append(Given(name))
            continue
        if word[index:]:
            return [*found, Given(name, word[index:])], 1
        if LONG[name] == OPTIONAL:
            return [*found, Given(name)], 1
        return ([*found, Given(name, following[0])], 2) if following else ([], 0)
    return found, 1


def read_script(text: str) -> Script:
    """Return the directives of a batch script: those above its first line that is neither comment nor blank.

    Raise UsageError for a wrong option of ours in an #FMSLURM line; what is wrong in an #SBATCH line is for sbatch to say.
    """
    given: list[Given] = []
    own: list[Given] = []
    heterogeneous = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith("#SBATCH"):
            words = split_directive(line[len("#SBATCH") :]) or []
            heterogeneous = heterogeneous or words[:1] in (["hetjob"], ["packjob"])
            if not heterogeneous:  # what comes behind belongs to another component
                given += _all_options(words)
        elif line.startswith("#FMSLURM"):
            own += _own_line(line[len("#FMSLURM") :], number)
    return Script(tuple(given), tuple(own), heterogeneous)


def split_directive(text: str) -> list[str] | None:
    """Split the text of an #SBATCH line as sbatch does: quotes, backslashes, `#` ends it. None where a quote stays open."""
    words: list[str] = []
    current: list[str] | None = None
    quote = ""
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            current = [*(current or []), next(letters, "")]
        elif quote:
            if letter == quote:
                quote = ""
            else:
                current = [*(current or []), letter]
        elif letter in "\"'":
            quote, current = letter, current or []
        elif letter == "#":
            break
        elif letter.isspace():
            if current is not None:
                words.append("".join(current))
            current = None
        else:
            current = [*(current or []), letter]
    if quote:
        return None
    return [*words, "".join(current)] if current is not None else words


def _all_options(words: Sequence[str]) -> list[Given]:
    found: list[Given] = []
    position = 0
    while position < len(words) and words[position].startswith("-"):
        options, used = _read_option(words[position], words[position + 1 :])
        if not used:
            break
        found += options
        position += used
    return found


def _own_line(text: str, number: int) -> list[Given]:
    words = split_directive(text)
    if words is None:
        raise UsageError(f"line {number} of the script: a quote stays open in #FMSLURM")
    found: list[Given] = []
    position = 0
    while position < len(words):
        if not words[position].startswith("--fm-"):
            raise UsageError(f"line {number} of the script: #FMSLURM takes options --fm-..., not {words[position]!r}")
        try:
            option, used = _read_own(words[position], words[position + 1 :])
        except UsageError as exc:
            raise UsageError(f"line {number} of the script: {exc.message}", remedy=exc.remedy) from exc
        found.append(option)
        position += used
    return found
