"""Where `fmslurm topology` and `fmslurm gres` take nodes and places from: the options, and what they come to."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import click

from slurm_ext.aws import pcluster
from slurm_ext.aws.service import Service
from slurm_ext.cli.output import say_text
from slurm_ext.config.model import CHOICES, Settings
from slurm_ext.errors import UsageError
from slurm_ext.slurm import connect
from slurm_ext.topology import place_fact
from slurm_ext.topology.build import build
from slurm_ext.topology.discover import FROM_SLURM, Discovered, discover
from slurm_ext.topology.model import Tree
from slurm_ext.topology.reach import FILE, Choice, Reach


def source_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say where nodes and places come from; `wanted_tree` and `discovered` take them."""
    options = (
        click.option(
            "--nodes", "nodes_file", default="", metavar="FILE", help="CSV: node,instance_id (topology.nodes_file)"
        ),
        click.option(
            "--source",
            type=click.Choice(CHOICES["topology", "source"]),
            help="where places come from (topology.source)",
        ),
        click.option(
            "--source-file",
            default="",
            metavar="FILE",
            help="places of the site's own, or a recorded EC2 answer (topology.source_file)",
        ),
        click.option(
            "--ec2-answer",
            default="",
            metavar="FILE",
            help="recorded DescribeInstanceTopology answer instead of a call",
        ),
        click.option(
            "--reservation",
            "reservations",
            multiple=True,
            metavar="[NODES=]ID",
            help="place nodes that do not run yet by their capacity reservation; auto: those that the list of nodes names",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def chosen(
    settings: Settings,
    nodes_file: str = "",
    source: str | None = None,
    source_file: str = "",
    ec2_answer: str = "",
    reservations: tuple[str, ...] = (),
) -> Choice:
    """Return what the options ask for, the configuration filling in what they leave out."""
    file = source_file or ec2_answer
    if file and source not in (None, FILE):
        raise UsageError(f"--source {source} reads no file", remedy="Leave out --source, or the file")
    return Choice(
        FILE if file else source or settings.topology.source,
        file or settings.topology.source_file,
        nodes_file or settings.topology.nodes_file,
        reservations,
    )


def reach(settings: Settings) -> Reach:
    """Return how this machine reaches Slurm, AWS and the share; each is made once, when it is asked for."""
    aws = settings.aws
    region = aws.region or pcluster.cluster().region
    return Reach(
        cache(lambda: connect(settings)),
        cache(lambda: Service("ec2", region=region, endpoint=aws.ec2_endpoint)),
        cache(lambda: Service("dynamodb", region=region, endpoint=aws.dynamodb_endpoint)),
        cache(lambda: place_fact.read_all(settings.site.share)),
    )


def discovered(settings: Settings, **options: Any) -> Discovered:
    """Return the places of all nodes; say on stderr what was odd."""
    found = discover(settings, chosen(settings, **options), reach(settings))
    for note in found.notes:
        say_text(f"fmslurm: {note}", err=True)
    return found


def wanted_tree(settings: Settings, **options: Any) -> tuple[Tree, str]:
    """Return the tree, and in a few words where it comes from; say on stderr what was odd."""
    return tree_of(discovered(settings, **options))


def tree_of(found: Discovered) -> tuple[Tree, str]:
    """Return the tree of what was discovered, and where that comes from. Raise UsageError where there is none."""
    try:
        return build(found.placements, named=found.origin == FROM_SLURM), found.origin
    except ValueError as exc:
        raise UsageError(f"{found.origin}: {exc}", remedy="Correct the list of nodes") from exc
