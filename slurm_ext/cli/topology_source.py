"""Where `fmslurm topology` and `fmslurm gres` take nodes and places from: the options, and what they come to."""

from __future__ import annotations

from collections.abc import Callable

import click

from slurm_ext.aws.ec2_topology import instance_places
from slurm_ext.aws.service import Service
from slurm_ext.cli.output import say_text
from slurm_ext.config.model import Settings
from slurm_ext.errors import UsageError
from slurm_ext.topology.build import build
from slurm_ext.topology.model import Tree
from slurm_ext.topology.sources import join, node_map, recorded


def source_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say where nodes and places come from."""
    nodes = click.option("--nodes", "nodes_file", default="", help="CSV: node,instance_id (topology.nodes_file)")
    answer = click.option(
        "--ec2-answer",
        default="",
        help="recorded DescribeInstanceTopology answer instead of a call (topology.source_file)",
    )
    return answer(nodes(function))


def wanted_tree(settings: Settings, nodes_file: str, ec2_answer: str) -> tuple[Tree, str]:
    """Return the tree, and in a few words where it comes from; say on stderr what was odd."""
    nodes_file = nodes_file or settings.topology.nodes_file
    if not nodes_file:
        raise UsageError("no list of nodes", remedy="Give --nodes FILE or set topology.nodes_file")
    nodes = node_map(nodes_file)
    answer = ec2_answer or (settings.topology.source_file if settings.topology.source == "file" else "")
    if answer:
        instances, origin = recorded(answer), f"the recorded EC2 answer {answer}"
    else:
        wanted = [instance_id for instance_id in nodes.values() if instance_id]
        places = instance_places(Service("ec2", region=settings.aws.region, endpoint=settings.aws.ec2_endpoint), wanted)
        instances, origin = list(places.instances), "EC2 DescribeInstanceTopology"
    placements, notes = join(nodes, instances)
    for note in notes:
        say_text(f"fmslurm: {note}", err=True)
    try:
        return build(placements), origin
    except ValueError as exc:
        raise UsageError(f"{nodes_file}: {exc}", remedy="Correct the list of nodes") from exc
