"""`fmslurm topology`: generate prints topology.conf, show draws it, diff and check hold it against the running Slurm."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

import click

from slurm_ext.cli.output import say_text, write_named
from slurm_ext.cli.topology_source import source_options, wanted_tree
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.errors import FindingError
from slurm_ext.slurm import connect
from slurm_ext.topology import render, render_text
from slurm_ext.topology.compare import differences


@click.group(invoke_without_command=True)
@click.pass_context
def topology(context: click.Context) -> None:
    """Where the nodes sit, for Slurm and for people."""
    if context.invoked_subcommand is None:
        context.invoke(show)


@topology.command()
@source_options
@click.option("-o", "--output", default="", help="write this file, atomically, instead of printing")
def generate(nodes_file: str, ec2_answer: str, output: str) -> None:
    """Print topology.conf for topology/tree."""
    tree, origin = wanted_tree(site_settings(), nodes_file, ec2_answer)
    text = render.topology_conf(tree, origin=origin)
    if output:
        write_named(output, text)
        say_text(f"wrote {output}: {len(tree.switches)} switches, {len(tree.paths())} nodes", err=True)
    else:
        say_text(text, nl=False)


@topology.command()
@source_options
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def show(nodes_file: str, ec2_answer: str, as_json: bool) -> None:
    """Draw the tree: switches, counts, nodes."""
    tree, _ = wanted_tree(site_settings(), nodes_file, ec2_answer)
    if as_json:
        switches = [switch._asdict() for switch in tree.switches]
        say_text(json.dumps({"schema": 1, "switches": switches, "notes": tree.notes, "paths": tree.paths()}))
    else:
        say_text(render_text.picture(tree), nl=False)


@topology.command()
@source_options
@click.argument("topology_conf")
def diff(nodes_file: str, ec2_answer: str, topology_conf: str) -> None:
    """Show what `generate` would change in a topology.conf; exit code 1 where it would change something."""
    tree, origin = wanted_tree(site_settings(), nodes_file, ec2_answer)
    try:
        old = Path(topology_conf).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        old = ""
    new = render.topology_conf(tree, origin=origin)
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), topology_conf, "generated")
    text = "".join(lines)
    say_text(text, nl=False)
    if text:
        sys.exit(1)


@topology.command()
@source_options
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def check(nodes_file: str, ec2_answer: str, as_json: bool) -> None:
    """Hold the running Slurm's own topology against the generated one, node by node; exit code 1 on a difference."""
    settings = site_settings()
    tree, _ = wanted_tree(settings, nodes_file, ec2_answer)
    wanted = tree.paths()
    found = differences(wanted, connect(settings).topology())
    if as_json:
        rows = [pair._asdict() for pair in found]
        say_text(json.dumps({"schema": 1, "nodes": len(wanted), "differences": rows}))
        sys.exit(1 if found else 0)
    for pair in found:
        say_text(
            f"{pair.node}: wanted {'/'.join(pair.wanted) or 'nothing'}, Slurm has {'/'.join(pair.found) or 'nothing'}"
        )
    if found:
        raise FindingError(
            f"Slurm's topology differs on {len(found)} of {len(wanted)} nodes",
            remedy="Write topology.conf with `fmslurm topology generate -o` and restart or reconfigure slurmctld",
        )
    say_text(f"all {len(wanted)} nodes sit in Slurm where EC2 says")
