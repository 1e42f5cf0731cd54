"""`fmslurm gres`: what GPUs the nodes offer, as a table, as gres.conf with its node lines, and held against what is there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from slurm_ext.aws import catalogue
from slurm_ext.aws.ec2 import InstanceTopology
from slurm_ext.aws.ec2_types import Compared, compare, instance_types
from slurm_ext.cli.output import say_json, say_table, say_text, write_named
from slurm_ext.cli.topology_source import chosen, discovered, reach, source_options
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.config.model import Settings, at_node, machine_name
from slurm_ext.errors import FindingError, LackingError, UsageError
from slurm_ext.gres import collect, read_conf, rules
from slurm_ext.gres.model import GresLine, Trouble
from slurm_ext.gres.render import Offer, by_type, gres_conf, no_cores, node_lines, parts, pcs_settings
from slurm_ext.site.detect import detect
from slurm_ext.slurm.hostlist import fold
from slurm_ext.topology.backing import all_nodes
from slurm_ext.topology.reach import FILE
from slurm_ext.topology.sources import Listed, node_list, read_file

#: Where ParallelCluster's head node keeps the files that it generates.
PCLUSTER = "/opt/slurm/etc/pcluster"

MAX_BYTES, INCLUDES_MAX = 16 << 20, 4


def _offers(settings: Settings, default_type: str, **options: Any) -> dict[str, Offer]:
    """Return what each node offers. Raise UsageError for a node whose type nobody knows."""
    choice = chosen(settings, **options)
    if not default_type and settings.site.instance_type != "auto":
        default_type = settings.site.instance_type
    if choice.nodes_file:
        listed = node_list(choice.nodes_file)
        answer = read_file(choice.source_file) if choice.source == FILE and choice.source_file else []
        recorded = answer if isinstance(answer, list) else []
        types = {one.instance_id: one.instance_type for one in recorded if isinstance(one, InstanceTopology)}
        kinds = {node: one.instance_type or types.get(one.instance_id, "") for node, one in listed.items()}
        origin = choice.nodes_file
    else:
        found = discovered(settings, **options)
        kinds, listed = {one.node: one.instance_type for one in found.placements}, {}
        origin = found.origin
    offers: dict[str, Offer] = {}
    for node, kind in kinds.items():
        row = catalogue.find(kind or default_type)
        if row is None:
            known = ", ".join(sorted(catalogue.CATALOGUE))
            raise UsageError(
                f"{origin}: node {node}: the catalogue has no instance type {kind or default_type or '(none given)'!r}",
                remedy=f"Give a column instance_type or --type; known are {known}",
            )
        one = listed.get(node, Listed())
        offers[node] = Offer(row, one.address, one.port)
    return offers


_type_option = click.option("--type", "default_type", default="", help="instance type of nodes that no source knows")
_device_option = click.option(
    "--device-dir", default="/dev", show_default=True, help="where the nvidia device files are"
)


@click.group(invoke_without_command=True)
@click.pass_context
def gres(context: click.Context) -> None:
    """GPU definitions for Slurm."""
    if context.invoked_subcommand is None:
        context.invoke(show)


@gres.command()
@source_options
@_type_option
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def show(default_type: str, as_json: bool, **sources: Any) -> None:
    """Show what GPUs the nodes offer, by instance type."""
    offers = _offers(site_settings(), default_type, **sources)
    rows = []
    for row, nodes in by_type(offers):
        split = [{"files": f"nvidia{part.files}", "cores": part.cores} for part in parts(row)]
        rows.append({"type": row.name, "nodes": nodes, "gpu": row.gpu_type, "gpus": row.gpus, "parts": split})
    if as_json:
        say_json({"types": rows})
        return
    cells = []
    for row, nodes in by_type(offers):
        gpus = f"gpu:{row.gpu_type}:{row.gpus}" if row.gpus else "none"
        cores = "; ".join(f"nvidia{part.files} {part.cores}" for part in parts(row) if part.cores)
        cells.append((row.name, str(len(nodes)), fold(nodes), gpus, cores or no_cores(row) or "-"))
    say_table(("TYPE", "COUNT", "NODES", "GRES", "CORES"), cells)


@gres.command()
@source_options
@_type_option
@_device_option
@click.option("--format", "form", type=click.Choice(("conf", "pcs")), default="conf", help="pcs: JSON for AWS PCS")
@click.option("--autodetect", type=click.Choice(("nvml", "nvidia")), help="instead of File= lines; not for cloud nodes")
@click.option("--cloud", is_flag=True, help="node lines with State=CLOUD")
@click.option("--output", default="", help="write gres.conf here, atomically")
@click.option("--nodes-output", default="", help="write the NodeName lines here, atomically")
def generate(
    default_type: str,
    device_dir: str,
    form: str,
    autodetect: str | None,
    cloud: bool,
    output: str,
    nodes_output: str,
    **sources: Any,
) -> None:
    """Print gres.conf and the NodeName lines, or write them."""
    settings = site_settings()
    offers = _offers(settings, default_type, **sources)
    if form == "pcs":
        groups = {row.name: pcs_settings(row, device_dir=device_dir) for row, _ in by_type(offers) if row.gpus}
        text = json.dumps(groups, indent=2) + "\n"
        if output:
            write_named(output, text)
        else:
            say_text(text, nl=False)
        return
    if autodetect and (cloud or _has_cloud(settings, offers, sources)):
        raise UsageError(
            "AutoDetect cannot be used for cloud nodes: one that is powered down has nothing to detect",
            remedy="Leave out --autodetect: File= lines are right for them (gres.conf(5))",
        )
    conf = gres_conf(offers, device_dir=device_dir, autodetect=autodetect or "")
    lines = node_lines(offers, state="CLOUD" if cloud else "UNKNOWN")
    for path, text in ((output, conf), (nodes_output, lines)):
        if path:
            write_named(path, text)
            say_text(f"wrote {path}: {len(offers)} nodes", err=True)
        else:
            say_text(text, nl=False)


def _has_cloud(settings: Settings, offers: dict[str, Offer], sources: dict[str, Any]) -> bool:
    """Say whether one of the nodes is a cloud node: by ParallelCluster's names, else by what Slurm says of it."""
    from slurm_ext.aws.pcluster import node_name
    from slurm_ext.errors import SlurmError

    if any(node_name(node) is not None for node in offers):
        return True
    try:
        return any("CLOUD" in node.flags for node in all_nodes(reach(settings).slurm()) if node.name in offers)
    except SlurmError:
        if chosen(settings, **sources).nodes_file:
            return False  # a cluster that is not up yet: the list is all there is
        raise


@gres.command()
@click.option("--ec2", is_flag=True, help="compare the catalogue with DescribeInstanceTypes; writes nothing")
@click.option(
    "--pcluster", "folder", default="", metavar="DIR", help=f"ParallelCluster's generated files, e.g. {PCLUSTER}"
)
@click.option("--root", default="", metavar="DIR", help="read the node's facts below DIR (site.root)")
@click.option("--gres-conf", default="", metavar="FILE", help="compare with this gres.conf")
@click.option("--node", default="", help="the node's name in Slurm (this machine's)")
@click.option("--type", "kind", default="", help="the node's instance type (what the machine says)")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def check(ec2: bool, folder: str, root: str, gres_conf: str, node: str, kind: str, as_json: bool) -> None:
    """Hold GPU definitions against what is there: this node's GPUs, ParallelCluster's files, or EC2's own table."""
    settings = site_settings()
    if ec2:
        _check_catalogue(compare(instance_types(reach(settings).ec2())), as_json)
        return
    unread: tuple[str, ...] = ()
    if folder:
        troubles = _check_pcluster(Path(folder))
    else:
        troubles, unread = _check_node(settings, root, gres_conf, node or machine_name(), kind)
    if as_json:
        say_json({"troubles": [trouble._asdict() for trouble in troubles], "unread": unread})
    for trouble in () if as_json else troubles:
        say_text(f"{trouble.id}: {trouble.words}\n  costs: {trouble.cost}\n  do: {trouble.remedy}")
    if bad := [trouble for trouble in troubles if not trouble.harmless]:
        raise FindingError(f"{len(bad)} of {len(troubles)} findings do more than cost speed", remedy="See above")
    if not as_json and not troubles:
        say_text("nothing is wrong" + (" in what could be read" if unread else ""))


def _check_node(
    settings: Settings, root: str, conf: str, node: str, kind: str
) -> tuple[list[Trouble], tuple[str, ...]]:
    """Return what is wrong on this node, and what could not be read. Raise LackingError where nothing can be compared."""
    facts = collect.facts(root or at_node(settings.site.root, node))
    kind = kind or (settings.site.instance_type if settings.site.instance_type != "auto" else facts.instance_type)
    row = catalogue.find(kind)
    for path in facts.unread:
        say_text(f"fmslurm: {path} cannot be read", err=True)
    if row is None:
        say_text(
            f"fmslurm: the catalogue has no instance type {kind or '(none told)'!r}: nothing is compared with it",
            err=True,
        )
    if not conf and not root:
        conf = os.path.join(os.path.dirname(detect(settings).slurm_conf or "/"), "gres.conf")
        conf = conf if os.path.exists(conf) else ""
    lines = _gres_lines(Path(conf), INCLUDES_MAX) if conf else []
    if row is None and not lines:
        raise LackingError(
            "there is nothing to compare this node with: no row of its type, and no gres.conf",
            remedy="Give --type TYPE or --gres-conf FILE",
        )
    return rules.node(facts, row, lines, node), facts.unread


def _gres_lines(path: Path, most: int) -> list[GresLine]:
    """Return the lines of a gres.conf and of what it includes, `most` files deep at most: ParallelCluster's includes two deep."""
    text = _text(path)
    lines = read_conf.gres_lines(str(path), text)
    for name in read_conf.includes(text):
        if most <= 0:
            raise UsageError(
                f"{path}: more than {INCLUDES_MAX} includes below one another", remedy="Does it include itself?"
            )
        lines += _gres_lines(path.parent / name, most - 1)
    return lines


def _check_pcluster(folder: Path) -> list[Trouble]:
    nodes, lines = [], []
    paths = sorted(folder.glob("slurm_parallelcluster_*.conf")) if folder.is_dir() else []
    for path in paths:
        if path.name.endswith("_gres.conf"):
            lines += read_conf.gres_lines(str(path), _text(path))
        elif path.name.endswith("_partition.conf"):
            nodes += read_conf.node_lines(str(path), _text(path))
    if not nodes:
        raise UsageError(
            f"{folder}: no slurm_parallelcluster_QUEUE_partition.conf there",
            remedy=f"Name the folder, usually {PCLUSTER}",
        )
    return rules.parallelcluster(nodes, lines, catalogue.CATALOGUE)


def _check_catalogue(found: Compared, as_json: bool) -> None:
    if as_json:
        say_json(
            {
                "different": [one._asdict() for one in found.different],
                "filled_in": [one._asdict() for one in found.filled_in],
                "new": [one._asdict() for one in found.new],
                "absent": found.absent,
            }
        )
    else:
        for one in found.different:
            say_text(f"{one.type}: {one.figure} is {one.ours} in the catalogue and {one.theirs} at EC2")
        for one in found.filled_in:
            say_text(f"{one.type}: {one.figure} is not in the catalogue, and {one.theirs} at EC2")
        for new in found.new:
            say_text(
                f"{new.name}: not in the catalogue: "
                + ", ".join(f"{k} {v}" for k, v in new._asdict().items() if v and k != "name")
            )
        if found.absent:
            say_text(f"EC2 does not tell of {', '.join(found.absent)}: the region may not have them")
    if found.different:
        raise FindingError(
            f"{len(found.different)} figures differ from EC2's", remedy="Tell us, or correct aws/catalogue.py"
        )
    if not as_json and not found.filled_in and not found.new:
        say_text("the catalogue agrees with EC2")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError as exc:
        raise UsageError(f"{path}: {exc.strerror}", remedy="Name a readable file") from exc
