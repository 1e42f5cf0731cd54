"""`fmslurm topology`: generate writes files and pictures, show draws, diff and check compare, lint finds faults."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Any

import click

from slurm_ext.cli.output import say_json, say_text, write_named
from slurm_ext.cli.topology_lint import lint
from slurm_ext.cli.topology_render import How, check_options, format_options, job_nodes, text_of, wanted_paths
from slurm_ext.cli.topology_source import source_options, wanted_tree
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.errors import FindingError
from slurm_ext.slurm import connect
from slurm_ext.topology import render_text
from slurm_ext.topology.compare import differences
from slurm_ext.topology.order import spread


@click.group(invoke_without_command=True)
@click.pass_context
def topology(context: click.Context) -> None:
    """Where the nodes sit, for Slurm and for people."""
    if context.invoked_subcommand is None:
        context.invoke(show)


@topology.command()
@source_options
@format_options
@click.option("-o", "--output", default="", help="write this file, atomically, instead of printing")
def generate(how: How, output: str, **sources: Any) -> None:
    """Print where the nodes sit: as a file that Slurm reads, as commands, as a list of hosts, or as a picture."""
    settings = site_settings()
    tree, origin = wanted_tree(settings, **sources)
    text, notes = text_of(settings, how, tree, origin)
    for note in notes:
        say_text(f"fmslurm: {note}", err=True)
    if output:
        write_named(output, text)
        say_text(f"wrote {output}: {len(tree.switches)} switches, {len(tree.paths())} nodes", err=True)
    else:
        say_text(text, nl=False)


@topology.command()
@source_options
@click.option("-j", "--job", default="", metavar="JOB", help="mark the nodes of a job")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def show(job: str, as_json: bool, **sources: Any) -> None:
    """Draw the tree: switches, counts, nodes."""
    settings = site_settings()
    tree, _ = wanted_tree(settings, **sources)
    held = job_nodes(settings, job)
    if not as_json:
        say_text(render_text.picture(tree, job=held.job, job_nodes=held.nodes), nl=False)
        return
    switches = [switch._asdict() for switch in tree.switches]
    data: dict[str, Any] = {"switches": switches, "notes": tree.notes, "paths": tree.paths()}
    if job:
        data["job"] = {"id": job, **spread(tree, held.nodes)._asdict()}
    say_json(data)


@topology.command()
@source_options
@format_options
@click.argument("file")
def diff(how: How, file: str, **sources: Any) -> None:
    """Show what `generate` would change in a file; exit code 1 where it would change something."""
    settings = site_settings()
    tree, origin = wanted_tree(settings, **sources)
    try:
        old = Path(file).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        old = ""
    new, _ = text_of(settings, how, tree, origin)
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), file, "generated")
    text = "".join(lines)
    say_text(text, nl=False)
    if text:
        sys.exit(1)


@topology.command()
@source_options
@check_options
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def check(how: How, as_json: bool, **sources: Any) -> None:
    """Hold the running Slurm's own topology against the generated one, node by node; exit code 1 on a difference.

    A topology.yaml of ours is held by its default, the tree.
    """
    settings = site_settings()
    tree, _ = wanted_tree(settings, **sources)
    wanted = wanted_paths(settings, how, tree)
    running = connect(settings).topology()
    if how.format == "block":  # what stands above a block is Slurm's own sum of neighbours
        running = {node: path[-1:] for node, path in running.items()}
    found = differences(wanted, running)
    if as_json:
        rows = [pair._asdict() for pair in found]
        say_json({"nodes": len(wanted), "differences": rows})
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


topology.add_command(lint)
