"""`fmslurm doctor`: one line for each check, a remedy for each that is not as it should be, and an exit code."""

from __future__ import annotations

import json
import sys

import click

from slurm_ext.cli.output import harmless, say_text
from slurm_ext.config.locate import locate
from slurm_ext.doctor.collect import collect
from slurm_ext.doctor.model import FAIL, OK
from slurm_ext.doctor.rules import examine

_COLOURS = {OK: "green", FAIL: "red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
@click.option("--strict", is_flag=True, help="exit with 1 for warnings, too")
def doctor(as_json: bool, strict: bool) -> None:
    """Say whether this cluster is set up right; exit code 1 where a check fails."""
    results = examine(collect(locate()))
    bad = [result for result in results if result.state == FAIL or (strict and result.state != OK)]
    if as_json:
        rows = [result._asdict() for result in results]
        say_text(json.dumps({"schema": 1, "ok": not bad, "results": rows}))
        sys.exit(1 if bad else 0)
    for result in results:
        word = click.style(f"{result.state:7}", fg=_COLOURS.get(result.state, "yellow"))
        say_text(f"{word} {harmless(result.id):24} {harmless(result.text)}", colours=True)
        if result.remedy and result.state != OK:
            say_text(f"{'':7} {'':24} -> {result.remedy}")
    sys.exit(1 if bad else 0)
