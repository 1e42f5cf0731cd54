"""What `fmslurm topology generate` and `diff` write: one text for each format, out of the tree, the version and the options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple

import click

from slurm_ext.config.model import Settings
from slurm_ext.errors import FindingError, LackingError, SlurmError, UsageError
from slurm_ext.slurm import connect
from slurm_ext.slurm.conf_file import stamped
from slurm_ext.slurm.hostlist import HostlistError, expand, fold
from slurm_ext.slurm.model import Version
from slurm_ext.slurm.versions import has, parse_version
from slurm_ext.topology import order, render_graph, render_html, render_yaml
from slurm_ext.topology.budget import within
from slurm_ext.topology.model import Tree
from slurm_ext.topology.written import DEFAULT, FILES, Choice, plan_of, written

PICTURES = ("dot", "svg", "html")
FORMATS = ("tree", "block", "yaml", "updates", "hosts", *PICTURES)

#: What may stand in a command line, and in a node's string.
_TOPOLOGY_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

#: Formats that cannot be written without knowing who will read them.
_NEED_VERSION = ("block", "yaml", "updates")


class How(NamedTuple):
    """The options of a format."""

    format: str = "tree"
    slurm_version: str = ""
    max_switches: int | None = None
    block_size: int = 0
    capacity_blocks: bool = False
    topology_name: str = ""
    only: str | None = None
    tasks_per_node: int = 1
    job: str = ""


class JobNodes(NamedTuple):
    """A job and the nodes that it has; both empty where nobody asked for one."""

    job: str = ""
    nodes: tuple[str, ...] = ()


def _gathered(function: Callable[..., Any], options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Add options; the command gets them as one argument `how`."""

    @wraps(function)
    def gathered(**given: Any) -> Any:
        how = How(**{name: given.pop(name) for name in How._fields if name in given})
        return function(how=how, **given)

    for option in reversed(options):
        gathered = option(gathered)
    return gathered


def _format(choices: Sequence[str], words: str) -> Callable[..., Any]:
    return click.option(
        "-f", "--format", "format", type=click.Choice(choices), default="tree", show_default=True, help=words
    )


_VERSION = click.option(
    "--slurm-version", default="", metavar="VERSION", help="for this Slurm (default: the one that runs here)"
)
_TREE_AND_BLOCKS = (
    click.option(
        "--max-switches",
        type=click.IntRange(0, 65_534),
        default=None,
        metavar="N",
        help="merge leaves or give up tiers until so few are left; 0: any number (topology.max_switches)",
    ),
    click.option(
        "--block-size",
        type=click.IntRange(0, 65_536),
        default=0,
        metavar="NODES",
        help="planning base of blocks (topology.block_size, else the size of the NVLink domains)",
    ),
    click.option(
        "--capacity-blocks",
        is_flag=True,
        help="take a capacity block for one NVLink domain where nobody says better",
    ),
)


def check_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what a running Slurm is held against."""
    return _gathered(
        function, (_format(("tree", "block"), "what Slurm's topology is made of"), _VERSION, *_TREE_AND_BLOCKS)
    )


def format_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what is written."""
    words = (
        "tree or block: topology.conf; yaml: topology.yaml with both; updates: scontrol lines for running nodes; "
        "hosts: a SLURM_HOSTFILE in the order of the tree; dot, svg, html: pictures"
    )
    options = (
        click.option(
            "--topology-name",
            default="",
            metavar="NAME",
            help=f"updates: name of the tree (default: {render_yaml.TREE}, as in our topology.yaml; topology.conf's is default)",
        ),
        click.option("-w", "--only", default=None, metavar="HOSTLIST", help="hosts: only these nodes"),
        click.option(
            "--tasks-per-node",
            type=click.IntRange(1, 1024),
            default=1,
            show_default=True,
            help="hosts: lines for each node",
        ),
        click.option(
            "-j", "--job", default="", metavar="JOB", help="hosts: only the nodes of a job; pictures: mark them"
        ),
    )
    return _gathered(function, (_format(FORMATS, words), _VERSION, *_TREE_AND_BLOCKS, *options))


def job_nodes(settings: Settings, job: str) -> JobNodes:
    """Return the nodes of a job, as Slurm says. Raise UsageError where it knows none."""
    if not job:
        return JobNodes()
    found = connect(settings).jobs([job])
    if not found:
        raise UsageError(f"Slurm knows no job {job}", remedy="`squeue` lists those it knows")
    nodes = tuple(dict.fromkeys(node for one in found for node in expand(one.nodes)))
    if not nodes:
        raise UsageError(f"job {job} has no nodes ({found[0].state})", remedy="Ask again once it runs")
    return JobNodes(job, nodes)


def text_of(settings: Settings, how: How, tree: Tree, origin: str) -> tuple[str, Sequence[str]]:
    """Return what a format says of a tree, and notes for people that do not stand in it."""
    version = target(settings, how)
    choice = choice_of(settings, how)
    try:
        if how.format in FILES:
            return _file(tree, choice, origin, version)
        # Pictures and lists show what is so: fewer switches only where somebody asks for fewer.
        most = choice.max_switches if how.format == "updates" else how.max_switches or 0
        return _text(settings, how, within(tree, most), origin, version)
    except (ValueError, HostlistError) as exc:
        raise UsageError(
            f"no {how.format}: {exc}", remedy="See docs/guide/topology.md, or choose another --format"
        ) from exc


def _hosts(text: str) -> list[str]:
    try:
        return expand(text)
    except HostlistError as exc:
        raise UsageError(f"-w {text[:80]}: no hostlist: {exc}", remedy="For example n[0-3]") from exc


def choice_of(settings: Settings, how: How) -> Choice:
    """Return how a file is made: by the options, the configuration filling in what they leave out."""
    own = settings.topology
    return Choice(
        how.format,
        own.max_switches if how.max_switches is None else how.max_switches,
        how.block_size or own.block_size,
        how.capacity_blocks or own.capacity_blocks,
    )


def _file(tree: Tree, choice: Choice, origin: str, version: Version | None) -> tuple[str, Sequence[str]]:
    """Return a file of Slurm's. Raise FindingError where it would stop that Slurm's controller."""
    made = written(tree, choice, origin=origin, version=version)
    if fatal := [finding for finding in made.findings if finding.severity == "fatal"]:
        words = version.text if version is not None else "slurmctld"
        raise FindingError(f"the file would stop Slurm {words}: {fatal[0].reason}", remedy=fatal[0].remedy)
    return stamped(made.text), [*made.notes, *(f"{f.severity}: {f.reason} ({f.rule})" for f in made.findings)]


def wanted_paths(settings: Settings, how: How, tree: Tree) -> Mapping[str, tuple[str, ...]]:
    """Return node -> the switches, or the block, that a running Slurm should have it below."""
    choice = choice_of(settings, how)
    if how.format != "block":
        return within(tree, choice.max_switches).paths()
    version = target(settings, how)
    assert version is not None
    try:
        return written(tree, choice, origin="", version=version).paths[DEFAULT]
    except ValueError as exc:
        raise UsageError(f"no blocks: {exc}", remedy="See docs/guide/topology.md") from exc


def target(settings: Settings, how: How) -> Version | None:
    """Return the version to write for: the one that was named, else the one that runs here; None where nobody needs it."""
    if how.slurm_version:
        found = parse_version(how.slurm_version)
        if found is None:
            raise UsageError(f"--slurm-version {how.slurm_version}: no version of Slurm", remedy="For example 24.11.5")
        return found
    try:
        return connect(settings).version()
    except SlurmError as exc:
        if how.format not in _NEED_VERSION:
            return None
        raise LackingError(f"no Slurm here to write for: {exc}", remedy="Name one with --slurm-version") from exc


def _text(settings: Settings, how: How, tree: Tree, origin: str, version: Version | None) -> tuple[str, Sequence[str]]:
    if how.format == "hosts":
        if how.only is not None and how.job:
            raise UsageError("-w and -j name nodes both", remedy="Leave one out")
        if how.only is not None and not how.only.strip():
            raise UsageError(
                "-w names no node: outside a job SLURM_JOB_NODELIST is empty", remedy="Run it in a job, or leave out -w"
            )
        chosen = job_nodes(settings, how.job).nodes or (_hosts(how.only) if how.only is not None else None)
        known = {placement.node for placement in tree.placements}
        strange = [node for node in chosen or () if node not in known]
        notes = [f"not in this topology, and last: {fold(strange)}"] if strange else []
        return order.hostfile(order.rank_order(tree, chosen), how.tasks_per_node), notes
    plan = plan_of(tree, version, choice_of(settings, how))
    if how.format == "updates":
        assert version is not None
        if not has(version, "node-topology-update"):
            raise ValueError(f"Slurm {version.text} cannot move a running node in its topology: that came with 25.05")
        if how.topology_name and not _TOPOLOGY_NAME.fullmatch(how.topology_name):
            raise ValueError(f"--topology-name {how.topology_name!r} is no name of a topology")
        strings = render_yaml.node_strings(tree, plan, name=how.topology_name or render_yaml.TREE)
        return "".join(f"{line}\n" for line in render_yaml.updates(strings)), ()
    job = job_nodes(settings, how.job)
    if how.format == "dot":
        return render_graph.dot(tree, job_nodes=job.nodes), ()
    if how.format == "svg":
        return render_graph.svg(tree, job=job.job, job_nodes=job.nodes), ()
    return render_html.html(tree, origin=origin, plan=plan, job=job.job, job_nodes=job.nodes), ()
