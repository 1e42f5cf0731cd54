"""`fmslurm node`: which nodes are out, why, and what is needed to come back; drain, resume and acknowledge by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from slurm_ext.cli import breaker, node_rows
from slurm_ext.cli.node_ack import ack, unack
from slurm_ext.cli.node_act import drain, resume
from slurm_ext.cli.node_evidence import evidence
from slurm_ext.cli.node_options import AS_JSON, HOSTS, NODES, nodes_of
from slurm_ext.cli.node_rows import as_data, state_words, whose
from slurm_ext.cli.node_versions import node_versions
from slurm_ext.cli.output import fields_option, say_fields, say_json, say_text
from slurm_ext.cli.times import local
from slurm_ext.config.locate import settings as located_settings
from slurm_ext.errors import UsageError
from slurm_ext.slurm import connect, drain_record

__all__ = ["as_data", "node", "state_words", "whose"]


@click.group(invoke_without_command=True)
@click.pass_context
def node(context: click.Context) -> None:
    """Nodes: who is out, for what, by whom, and how they come back. Without a command: list."""
    if context.invoked_subcommand is None:
        context.invoke(list_nodes)


for _command in (drain, resume, ack, unack, evidence, node_versions):
    node.add_command(_command)


@node.command("list")
@NODES
@HOSTS
@click.option("--drained", is_flag=True, help="Only those that somebody drained.")
@click.option("--ours", is_flag=True, help="Only those that fmslurm drained.")
@AS_JSON
@fields_option(*node_rows.COLUMNS)
def list_nodes(
    names: Sequence[str] = (),
    nodelist: str = "",
    drained: bool = False,
    ours: bool = False,
    as_json: bool = False,
    fields: Sequence[str] = (),
    noheader: bool = False,
) -> None:
    """List nodes with their state, whose reason it is, and for those that fmslurm drained what they need to come back."""
    settings = located_settings()
    found = nodes_of(connect(settings), names, nodelist)
    known, now = node_rows.gather(settings.site.share), time.time()
    held = breaker.look(settings, found, now=now)
    chosen = [one for one in found if one.drained or not (drained or ours)]
    if ours:
        chosen = [one for one in chosen if node_rows.drained_for(one, known)[0]]
    if as_json:
        trouble = known.trouble(settings.site.share)
        told = [as_data(one, known, now) for one in chosen]
        say_json({"nodes": told, "breaker": breaker.as_data(held), "trouble": trouble})
        return
    rows = [node_rows.row(one, known, now) for one in chosen]
    say_fields(rows, node_rows.SHOWN, fields=fields, noheader=noheader)
    if not fields and not noheader:
        for line in breaker.words(held, settings.site.share):
            say_text(line)
    if trouble := known.trouble(settings.site.share):
        say_text(trouble, err=True)


@node.command()
@NODES
@HOSTS
@AS_JSON
def show(names: Sequence[str], nodelist: str, as_json: bool) -> None:
    """Show everything Slurm and fmslurm know of a node: why it is out, what it needs, its earlier drains."""
    if not names and not nodelist:
        raise UsageError("which node?", remedy="fmslurm node show n3, or -w 'n[0-3]'")
    settings = located_settings()
    share = settings.site.share
    found = nodes_of(connect(settings), names, nodelist)
    known, now = node_rows.gather(share), time.time()
    if as_json:
        listed = []
        for one in found:
            past = drain_record.history(share, one.name)
            told = [
                {**node_rows.record_data(each.record), "ended": node_rows.stamp(each.ended_s), "outcome": each.outcome}
                for each in past or ()
            ]
            listed.append({**as_data(one, known, now), "earlier": None if past is None else told})
        say_json({"nodes": listed, "trouble": known.trouble(share)})
        return
    for one in found:
        for line in node_rows.told(one, known, now):
            say_text(line)
        for each in (drain_record.history(share, one.name) or ())[-5:]:
            record = each.record
            when = f"{local(record.since_s)} to {local(each.ended_s)}"
            say_text(f"  earlier            {when}: {record.finding} on {record.target}: {each.outcome}")
    if trouble := known.trouble(share):
        say_text(trouble, err=True)
