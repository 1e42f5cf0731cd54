"""How commands print: one JSON object with a schema number for machines, aligned columns for people."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from slurm_ext.errors import UsageError
from slurm_ext.files import write_atomic

SCHEMA = 1

#: Control characters (C0 but newline and tab, DEL, C1), marks of direction and of no width, separators of lines, surrogates.
_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,20}m)")

Command = TypeVar("Command", bound=Callable[..., Any])


def harmless(text: str) -> str:
    """Return text without what a terminal obeys: users choose names of programs, jobs and files, and root reads them here.

    A newline and a tab stay; each other control character (also C1), mark of direction or of no width, and half of a pair
    becomes a question mark.
    """
    return text if text.isascii() and text.isprintable() else _OBEYED.sub("?", text)


def say_text(text: str = "", *, err: bool = False, nl: bool = True, colours: bool = False) -> None:
    """Print lines for people; every command prints by this or by `say_table`. `colours`: those in the text are ours, and stay."""
    parts = _COLOUR.split(text) if colours else [text]
    click.echo("".join(part if number % 2 else harmless(part) for number, part in enumerate(parts)), err=err, nl=nl)


def say_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on one line, with `schema` first."""
    say_line({"schema": SCHEMA, **data})


def say_line(data: Mapping[str, Any]) -> None:
    """Print one JSON object on one line as it is; what a terminal would obey is escaped as JSON has it."""
    click.echo(_OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(data, ensure_ascii=False)))


def say_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, header: bool = True) -> None:
    """Print rows in columns as wide as their widest cell, each on one line; no trailing blanks."""
    every = [list(head), *map(list, rows)] if header else [list(row) for row in rows]
    every = [[harmless(cell).replace("\n", " ").replace("\t", " ") for cell in row] for row in every]
    widths = [max((len(row[column]) for row in every), default=0) for column in range(len(head))]
    for row in every:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def fields_option(*known: str) -> Callable[[Command], Command]:
    """Return click's options `-o FIELDS --noheader` for a table of the columns `known`: arguments `fields` and `noheader`."""

    def checked(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
        chosen = tuple(word.strip().lower() for word in value.split(",") if word.strip())
        if unknown := [word for word in chosen if word not in known]:
            raise UsageError(f"no column is called {', '.join(unknown)}", remedy=f"There are: {', '.join(known)}")
        return chosen

    def decorate(command: Command) -> Command:
        command = click.option("--noheader", is_flag=True, help="No line of column names.")(command)
        names = f"Columns, by comma: {', '.join(known)}."
        return click.option("-o", "--fields", default="", metavar="FIELDS", callback=checked, help=names)(command)

    return decorate


def say_fields(
    rows: Sequence[Mapping[str, str]], default: Sequence[str], *, fields: Sequence[str] = (), noheader: bool = False
) -> None:
    """Print rows as a table of the columns that were chosen, else of those in `default`."""
    chosen = fields or default
    say_table([name.upper() for name in chosen], [[row[name] for name in chosen] for row in rows], header=not noheader)


def write_named(path: str, text: str) -> None:
    """Write a file that a person named, whole or not at all; a link is followed, mode and owner stay.

    Raise UsageError where its folder is not there, or where something has the name that is no file: a folder, a device, a pipe.
    """
    real = os.path.realpath(path)
    folder = os.path.dirname(real) or "."
    if not os.path.isdir(folder):
        raise UsageError(f"{path}: there is no folder {folder}", remedy="Make it, or correct the path")
    try:
        state = os.stat(real)
    except FileNotFoundError:
        write_atomic(real, text)
        return
    if stat.S_ISDIR(state.st_mode):
        raise UsageError(f"{path} is a folder", remedy="Name a file in it")
    if not stat.S_ISREG(state.st_mode):
        raise UsageError(f"{path} is no regular file", remedy="Name a file; what is printed can be sent anywhere")
    write_atomic(real, text, mode=stat.S_IMODE(state.st_mode), owner=(state.st_uid, state.st_gid))
