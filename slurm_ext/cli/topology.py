"""`fmslurm topology`: show and draw, generate files, diff and check against what is there; apply, watch, lint, advise beside it."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
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
from slurm_ext.errors import FindingError, LackingError, UsageError
from slurm_ext.slurm import conf_file, connect
from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.topology import drift, keep, memory, render_text
from slurm_ext.topology.look import of_slurm
from slurm_ext.topology.model import Placement
from slurm_ext.topology.order import spread
from slurm_ext.topology.running import placed, running
from slurm_ext.topology.written import DEFAULT, FILES

#: Files of more lines than this together are compared, and not shown side by side.
_MOST_LINES = 200_000


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
@click.option(
    "--force", is_flag=True, help="replace a file that somebody else wrote or changed; a copy stays beside it"
)
def generate(how: How, output: str, force: bool, **sources: Any) -> None:
    """Print where the nodes sit: as a file that Slurm reads, as commands, as a list of hosts, or as a picture."""
    settings = site_settings()
    tree, origin = wanted_tree(settings, **sources)
    if how.format in FILES and not force and not any(is_known(placement) for placement in tree.placements):
        raise LackingError(
            f"not one node has a known place, says {origin}: such a file tells Slurm nothing",
            remedy="--force writes it all the same, all nodes in a holding leaf",
        )
    text, notes = text_of(settings, how, tree, origin)
    for note in notes:
        say_text(f"fmslurm: {note}", err=True)
    if output:
        copy = _write(output, text, how.format, force)
        say_text(f"wrote {output}: {len(tree.switches)} switches, {len(tree.paths())} nodes{copy}", err=True)
    else:
        say_text(text, nl=False)


def is_known(placement: Placement) -> bool:
    """Say whether anything is known of where a node sits."""
    return bool(placement.path or placement.clique or placement.ultraserver_id or placement.capacity_block_id)


def _write(path: str, text: str, format_: str, force: bool) -> str:
    """Write a file; one of Slurm's only where it is ours, or nothing, or a person says so. Return where a copy lies, in words."""
    if format_ not in FILES and os.path.isfile(path) and conf_file.look(path).state != conf_file.FOREIGN and not force:
        raise UsageError(f"{path} is a file of Slurm's", remedy="Name another one")
    if format_ not in FILES or not os.path.isdir(os.path.dirname(os.path.realpath(path)) or ".") or os.path.isdir(path):
        write_named(path, text)
        return ""
    held = conf_file.look(path)
    conf_file.refuse_foreign(held, force=force)
    kept = conf_file.replace(held, text, when=conf_file.moment())
    return kept.words()


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
    old = conf_file.look(file).text
    new, _ = text_of(settings, how, tree, origin)
    was, now = (conf_file.bare(text).splitlines(True) for text in (old, new))
    if len(was) + len(now) > _MOST_LINES and was != now:
        say_text(f"{file} differs: {len(was)} lines, and {len(now)} would be written")
        sys.exit(1)
    text = "".join(difflib.unified_diff(was, now, file, "generated"))
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
    slurm = connect(settings)
    there = running(slurm, settings, how.format, elsewhere=True)
    found, off = of_slurm(discovered(settings, **sources), there)
    # As `apply` sees it: nodes that went keep the place that they had.
    kept = keep.keep(
        found.placements, memory.read(settings).placements, unasked=found.unasked, unheard=found.unheard, off=off
    )
    tree, origin = tree_of(found._replace(placements=kept.placements))
    wanted = wanted_paths(settings, how, tree)
    paths = placed(slurm, there.version, DEFAULT, tree=how.format != "block")
    moved = drift.moves(wanted, paths, away=kept.away)
    real = [move for move in moved if move.kind != drift.LEFT]
    paid = drift.cost(wanted, paths, _running_jobs(slurm))
    if as_json:
        rows = [{"node": move.node, "kind": move.kind, "wanted": move.now, "found": move.was} for move in moved]
        costs = {"leaves_per_leaf": round(paid.leaves_per_leaf, 4), "jobs": [job._asdict() for job in paid.jobs]}
        say_json({"nodes": len(there.known), "differences": rows, "cost": costs})
        sys.exit(1 if real else 0)
    for line in (*drift.words(moved), *drift.cost_words(paid)):
        say_text(line)
    if real:
        raise FindingError(
            f"Slurm's topology differs on {len({move.node for move in real})} of {len(there.known)} nodes",
            remedy="`fmslurm topology apply --dry-run` shows the smallest change that mends it",
        )
    say_text(f"all {len(wanted)} nodes sit in Slurm where {origin} says" if not moved else "no other node differs")


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
        _write(output, text, format_, False)
        say_text(f"wrote {output}", err=True)
    else:
        say_text(text, nl=False)


for command in (advise, apply, lint, watch):
    topology.add_command(command)
