"""`fmslurm topology`: show and draw, generate files, diff and check against what is there; apply, watch, lint, advise beside it."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from pathlib import Path
from typing import Any

import click

from slurm_ext.cli.output import say_json, say_text, write_named
from slurm_ext.cli.topology_advise import advise
from slurm_ext.cli.topology_apply import apply, watch
from slurm_ext.cli.topology_lint import lint
from slurm_ext.cli.topology_render import (
    PICTURES,
    How,
    check_options,
    format_options,
    job_nodes,
    text_of,
    wanted_paths,
)
from slurm_ext.cli.topology_source import discovered, source_options, tree_of, wanted_tree
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.errors import FindingError, UsageError
from slurm_ext.slurm import connect
from slurm_ext.slurm.conf_file import bare
from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.topology import drift, render_text
from slurm_ext.topology.order import spread
from slurm_ext.topology.running import running
from slurm_ext.topology.written import FILES


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
@click.argument("file", default="", required=False)
def diff(how: How, file: str, **sources: Any) -> None:
    """Show what `generate` would change in FILE (default: the running Slurm's); exit code 1 where it would change something."""
    settings = site_settings()
    tree, origin = wanted_tree(settings, **sources)
    if not file:
        if how.format not in FILES:
            raise UsageError(f"which file is to be compared with {how.format}?", remedy="Name one")
        found = running(connect(settings), settings, how.format, elsewhere=True)
        file = os.path.join(found.folder, FILES[how.format])
    try:
        old = Path(file).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        old = ""
    new, _ = text_of(settings, how, tree, origin)
    lines = difflib.unified_diff(bare(old).splitlines(True), bare(new).splitlines(True), file, "generated")
    text = "".join(lines)
    say_text(text, nl=False)
    if text:
        sys.exit(1)


@topology.command()
@source_options
@check_options
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def check(how: How, as_json: bool, **sources: Any) -> None:
    """Drift: hold the running Slurm's topology against where nodes sit, and say what it costs jobs; exit code 1 on a difference.

    A topology.yaml of ours is held by its default, the tree. Nodes that do not run now and sit nowhere are no difference.
    """
    settings = site_settings()
    found = discovered(settings, **sources)
    tree, _ = tree_of(found)
    wanted = wanted_paths(settings, how, tree)
    slurm = connect(settings)
    paths = slurm.topology()
    if how.format == "block":  # what stands above a block is Slurm's own sum of neighbours
        paths = {node: path[-1:] for node, path in paths.items()}
    away = {one.node for one in found.placements if not one.path and not one.instance_id} - found.unasked
    moved = drift.moves(wanted, paths, away=away)
    real = [move for move in moved if move.kind != drift.LEFT]
    paid = drift.cost(wanted, paths, _running_jobs(slurm))
    if as_json:
        rows = [{"node": move.node, "kind": move.kind, "wanted": move.now, "found": move.was} for move in moved]
        costs = {"leaves_per_leaf": round(paid.leaves_per_leaf, 4), "jobs": [job._asdict() for job in paid.jobs]}
        say_json({"nodes": len(wanted), "differences": rows, "cost": costs})
        sys.exit(1 if real else 0)
    for line in (*drift.words(moved), *drift.cost_words(paid)):
        say_text(line)
    if real:
        raise FindingError(
            f"Slurm's topology differs on {len({move.node for move in real})} of {len(wanted)} nodes",
            remedy="`fmslurm topology apply --dry-run` shows the smallest change that mends it",
        )
    say_text(
        f"all {len(wanted)} nodes sit in Slurm where {found.origin} says" if not moved else "no other node differs"
    )


def _running_jobs(slurm: Slurm) -> dict[str, list[str]]:
    """Return the nodes of each running job of several nodes; one that we cannot read is left out."""
    found: dict[str, list[str]] = {}
    for job in slurm.jobs():
        if job.state not in ("RUNNING", "SUSPENDED") or not job.nodes:
            continue
        with contextlib.suppress(HostlistError):
            found[job.job_id] = expand(job.nodes)
    return {job: nodes for job, nodes in found.items() if len(nodes) > 1}


@topology.command()
@source_options
@click.option(
    "-f", "--format", "format_", type=click.Choice(PICTURES), default="svg", show_default=True, help="which picture"
)
@click.option("-j", "--job", default="", metavar="JOB", help="mark the nodes of a job")
@click.option("-o", "--output", default="", help="write this file instead of printing")
def draw(format_: str, job: str, output: str, **sources: Any) -> None:
    """Draw where the nodes sit: SVG, one HTML page that unfolds, or Graphviz. `show` draws in the terminal."""
    settings = site_settings()
    tree, origin = wanted_tree(settings, **sources)
    text, _ = text_of(settings, How(format=format_, job=job), tree, origin)
    if output:
        write_named(output, text)
        say_text(f"wrote {output}", err=True)
    else:
        say_text(text, nl=False)


for command in (advise, apply, lint, watch):
    topology.add_command(command)
