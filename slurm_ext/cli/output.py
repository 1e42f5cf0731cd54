"""How commands print: one JSON object with a schema number for machines, aligned columns for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

SCHEMA = 1


def say_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on one line, with `schema` first."""
    click.echo(json.dumps({"schema": SCHEMA, **data}, ensure_ascii=False))


def say_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, header: bool = True) -> None:
    """Print rows in columns as wide as their widest cell; no trailing blanks."""
    every = [list(head), *map(list, rows)] if header else [list(row) for row in rows]
    widths = [max((len(row[column]) for row in every), default=0) for column in range(len(head))]
    for row in every:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
