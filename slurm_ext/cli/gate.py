"""`fmslurm gate check|list|replay`: may this node run a job?"""

from __future__ import annotations

import json
import os
from typing import Any

import click

from slurm_ext import verdict
from slurm_ext.cli.output import say_json, say_table
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.config.model import machine_name
from slurm_ext.errors import EXIT_FINDING, EXIT_OK, FmslurmError
from slurm_ext.verdict import FAIL, UNKNOWN, WARN, Verdict


def this_node() -> str:
    """Return the name Slurm knows this machine by, as far as it can be told: SLURMD_NODENAME, else the short host name."""
    return os.environ.get("SLURMD_NODENAME") or machine_name()


@click.group()
def gate() -> None:
    """May this node run a job?"""


@gate.command()
@click.option("--node", default=None, help="the node's name, where paths in the configuration hold %n")
@click.option("--strict", is_flag=True, help="exit 1 for a warning, too")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def check(node: str | None, strict: bool, as_json: bool) -> int:
    """Look at this node as the prolog would, and change nothing. Exit 1 where a job should not start here."""
    from slurm_ext.gate import local

    name = node or this_node()
    settings = site_settings()
    seen = local.look(settings, name, phase="health", job_window=None, deadline_s=settings.gate.deadline_s)
    if as_json:
        say_json({"node": name, **verdict.to_json(seen.verdict), "seconds": round(seen.seconds, 3)})
    else:
        click.echo(f"{name}: {seen.words()}: {seen.verdict.reason}")
        rows = [(f.id, f.target, f.action, f.evidence[0] if f.evidence else "") for f in seen.verdict.findings]
        if rows:
            say_table(("FINDING", "TARGET", "ACTION", "EVIDENCE"), rows)
    bad = (FAIL, WARN) if strict else (FAIL,)
    return EXIT_FINDING if seen.verdict.verdict in bad else EXIT_OK


@gate.command("list")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
@click.option("--noheader", is_flag=True, help="no line of column names")
def list_(as_json: bool, noheader: bool) -> None:
    """List what the gate looks at, and which of it this site has disabled."""
    from slurm_ext.gate.checks import every

    disabled = tuple(word for word in site_settings().gate.disabled if word)
    rows = [
        (row.id, "off" if disabled and row.id.startswith(disabled) else "on", row.what, row.means)
        for row in every()
    ]
    if as_json:
        checks = [
            {"finding": name, "state": state, "looks_at": what, "means": does} for name, state, what, does in rows
        ]
        say_json({"checks": checks, "disabled": list(disabled)})
    else:
        say_table(("FINDING", "STATE", "LOOKS AT", "MEANS"), rows, header=not noheader)


@gate.command()
@click.argument("folders", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="one JSON line for each folder, in order")
def replay(folders: tuple[str, ...], as_json: bool) -> int:
    """Judge captured folders by the rules of the live gate. Exit 0 where every folder got an answer, `unknown` included."""
    for folder in folders:
        found, error = _judge(folder)
        if as_json:
            click.echo(json.dumps(_line(folder, found, error), ensure_ascii=True))
        else:
            click.echo(f"{folder}: {found.verdict}: {error or found.reason}")
            for finding in found.findings:
                click.echo(f"  {finding.id} {finding.target}: {finding.action}")
    return EXIT_OK


def _judge(folder: str) -> tuple[Verdict, str]:
    """Return the verdict over one folder and what went wrong: one bad folder must not cost the others their answer."""
    from slurm_ext.gate import replay as room

    try:
        return room.judge(folder), ""
    except FmslurmError as exc:
        return Verdict(UNKNOWN, (), "the folder cannot be read", "replay.unreadable"), str(exc)
    except Exception as exc:  # noqa: BLE001 - a capture can hold anything; its own line says so and the next is judged
        return Verdict(UNKNOWN, (), "judging failed", "replay.internal"), f"internal error: {type(exc).__name__}: {exc}"


def _line(folder: str, found: Verdict, error: str) -> dict[str, Any]:
    """Return the line of INTERFACES: case, verdict, findings, and error where there was one."""
    line: dict[str, Any] = {"schema": 1, "case": folder, **verdict.to_json(found)}
    if error:
        line["error"] = error
        line["verdict"] = UNKNOWN
    return line
