"""`fmslurm gate check|list|stats|explain|prove|replay`: may this node run a job?"""

from __future__ import annotations

import json
import os
from typing import Any

import click

from slurm_ext import verdict
from slurm_ext.cli.gate_explain import explain
from slurm_ext.cli.gate_list import list_checks, stats
from slurm_ext.cli.gate_prove import prove
from slurm_ext.cli.output import fields_option, say_fields, say_json, say_text
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.config.model import machine_name
from slurm_ext.errors import EXIT_FINDING, EXIT_OK, FmslurmError
from slurm_ext.verdict import FAIL, UNKNOWN, WARN, Verdict

CHECK_COLUMNS = ("check", "result", "target", "action", "evidence")


def this_node() -> str:
    """Return the name Slurm knows this machine by, as far as it can be told: SLURMD_NODENAME, else the short host name."""
    return os.environ.get("SLURMD_NODENAME") or machine_name()


@click.group()
def gate() -> None:
    """May this node run a job?"""


gate.add_command(list_checks)
gate.add_command(stats)
gate.add_command(explain)
gate.add_command(prove)


@gate.command()
@click.option("--node", default=None, help="The node's name, where paths in the configuration hold %n.")
@click.option(
    "--phase", default="health", type=click.Choice(["prolog", "health"]), show_default=True, help="Look as this hook."
)
@click.option("--all", "every", is_flag=True, help="A row for each check, those that passed, too.")
@click.option("--strict", is_flag=True, help="Exit 1 for a warning or for what could not be told, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@fields_option(*CHECK_COLUMNS)
def check(
    node: str | None, phase: str, every: bool, strict: bool, as_json: bool, fields: tuple[str, ...], noheader: bool
) -> int:
    """Look at this node as the hooks would, and change nothing. Exit 1 where a job should not start here."""
    from slurm_ext.gate import local, results

    name = node or this_node()
    settings = site_settings()
    seen = local.look(settings, name, phase=phase, job_window=None, deadline_s=settings.gate.deadline_s)
    rows = results.of_look(seen, settings, phase)
    root = os.geteuid() == 0
    if as_json:
        say_json(
            {
                "node": name,
                **verdict.to_json(seen.verdict),
                "seconds": round(seen.seconds, 3),
                "phase": phase,
                "root": root,
                "counts": results.counted(rows),
                "checks": [row._asdict() for row in rows],
                "unread": list(seen.facts.unread),
            }
        )
    else:
        say_text(f"{name}: {seen.words()}: {verdict.one_line(seen.verdict.reason, 500)}")
        say_text(f"{results.words(rows)}, phase {phase}")
        if shown := _shown(seen, rows, every=every):
            say_fields(shown, CHECK_COLUMNS, fields=fields, noheader=noheader)
        if seen.items:
            say_text("`fmslurm explain ID` says what a finding means and what to do", err=True)
        if seen.facts.unread:
            say_text(f"could not be read: {', '.join(seen.facts.unread)}", err=True)
        if not root:
            say_text("not root: what only root may read is told as unknown; sudo shows what the hooks see", err=True)
    bad = (FAIL, WARN, UNKNOWN) if strict else (FAIL,)
    return EXIT_FINDING if seen.verdict.verdict in bad else EXIT_OK


def _shown(seen: Any, rows: Any, *, every: bool) -> list[dict[str, str]]:
    """Return the table: each finding, and what could not be looked at; with `every` the other checks, too."""
    shown = [
        {
            "check": item.finding.id,
            "result": item.verdict,
            "target": item.finding.target,
            "action": item.finding.action,
            "evidence": item.finding.evidence[0] if item.finding.evidence else "",
        }
        for item in seen.items
    ]
    found = [item.finding.id for item in seen.items]
    rest = [row for row in rows if not any(id_.startswith(row.check) for id_ in found)]
    if every:
        return shown + [_line_of(row.check, row) for row in rest]
    blind: dict[str, list[Any]] = {}
    for row in rest:
        if row.result == UNKNOWN:
            blind.setdefault(row.why, []).append(row)
    return shown + [
        _line_of(some[0].check + (f" and {len(some) - 1} more" if len(some) > 1 else ""), some[0])
        for some in blind.values()
    ]


def _line_of(name: str, row: Any) -> dict[str, str]:
    return {"check": name, "result": row.result, "target": "", "action": "", "evidence": row.why}


@gate.command()
@click.argument("folders", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON line for each folder, in order.")
def replay(folders: tuple[str, ...], as_json: bool) -> int:
    """Judge captured folders by the rules of the live gate. Exit 0 where every folder got an answer, `unknown` included."""
    for folder in folders:
        found, error = _judge(folder)
        if as_json:
            say_text(json.dumps(_line(folder, found, error), ensure_ascii=True))
        else:
            say_text(f"{folder}: {found.verdict}: {error or found.reason}")
            for finding in found.findings:
                say_text(f"  {finding.id} {finding.target}: {finding.action}")
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
