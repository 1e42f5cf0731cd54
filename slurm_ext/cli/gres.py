"""`fmslurm gres generate`: gres.conf and the node lines that belong to it, from the types of the instances."""

from __future__ import annotations

import csv

import click

from slurm_ext.aws import catalogue
from slurm_ext.cli.output import say_text, write_named
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.errors import UsageError
from slurm_ext.gres.render import Offer, gres_conf, node_lines
from slurm_ext.topology.sources import node_map, recorded


def _offers(nodes_file: str, ec2_answer: str, default_type: str) -> dict[str, Offer]:
    """Return what each node of the list offers. Raise UsageError for a node whose type nobody knows."""
    types: dict[str, str] = {}
    if ec2_answer:
        types = {instance.instance_id: instance.instance_type for instance in recorded(ec2_answer)}
    ids = node_map(nodes_file)
    offers: dict[str, Offer] = {}
    with open(nodes_file, newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            node = (row["node"] or "").strip()
            name = (row.get("instance_type") or "").strip() or types.get(ids[node], "") or default_type
            found = catalogue.find(name)
            if found is None:
                known = ", ".join(sorted(catalogue.CATALOGUE))
                raise UsageError(
                    f"{nodes_file}: node {node}: the catalogue has no instance type {name or '(none given)'!r}",
                    remedy=f"Give a column instance_type or --type; known are {known}",
                )
            port = (row.get("port") or "").strip()
            if port and not port.isdigit():
                raise UsageError(
                    f"{nodes_file}: node {node}: port {port!r} is no number", remedy="Leave it out or correct it"
                )
            offers[node] = Offer(found, (row.get("address") or "").strip(), int(port or 0))
    return offers


@click.group()
def gres() -> None:
    """GPU definitions for Slurm."""


@gres.command()
@click.option("--nodes", "nodes_file", default="", help="CSV file: node,instance_id[,address,port,instance_type]")
@click.option("--ec2-answer", default="", help="recorded EC2 answer that names the instances' types")
@click.option("--type", "default_type", default="", help="instance type of nodes that no source knows")
@click.option("--device-dir", default="/dev", show_default=True, help="where the nvidia device files are")
@click.option("--output", default="", help="write gres.conf here, atomically")
@click.option("--nodes-output", default="", help="write the NodeName lines here, atomically")
def generate(
    nodes_file: str, ec2_answer: str, default_type: str, device_dir: str, output: str, nodes_output: str
) -> None:
    """Print gres.conf and the NodeName lines, or write them."""
    settings = site_settings()
    nodes_file = nodes_file or settings.topology.nodes_file
    if not nodes_file:
        raise UsageError("no list of nodes", remedy="Give --nodes FILE or set topology.nodes_file")
    answer = ec2_answer or (settings.topology.source_file if settings.topology.source == "file" else "")
    if not default_type and settings.site.instance_type != "auto":
        default_type = settings.site.instance_type
    offers = _offers(nodes_file, answer, default_type)
    for path, text in ((output, gres_conf(offers, device_dir=device_dir)), (nodes_output, node_lines(offers))):
        if path:
            write_named(path, text)
            say_text(f"wrote {path}: {len(offers)} nodes", err=True)
        else:
            say_text(text, nl=False)
