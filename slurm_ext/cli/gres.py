"""`fmslurm gres`: what GPUs the nodes offer, as a table, as gres.conf with its node lines, and held against what is there."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import click

from slurm_ext.cli.gres_apply import apply
from slurm_ext.cli.gres_check import check
from slurm_ext.cli.gres_offers import offer_options, offers_of
from slurm_ext.cli.gres_refresh import refresh
from slurm_ext.cli.output import say_json, say_line, say_table, say_text, write_named
from slurm_ext.cli.topology_source import chosen, reach
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.config.model import Settings, at_node, machine_name
from slurm_ext.errors import LackingError, SlurmError, UsageError
from slurm_ext.gres import told
from slurm_ext.gres.model import NodeFacts
from slurm_ext.gres.read_conf import ranges
from slurm_ext.gres.render import Offer, by_shape, files, gres_conf, no_cores, node_lines, pcs_groups
from slurm_ext.slurm import conf_file
from slurm_ext.slurm.hostlist import fold
from slurm_ext.topology.backing import all_nodes

#: A folder as it may stand in gres.conf, where a bracket is a list and a blank ends a value.
_DEVICE_DIR = re.compile(r"(/[A-Za-z0-9_.+-]+)+/?|/")

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
@offer_options
@click.option("--here", is_flag=True, help="what this node itself shows: its GPUs, at which sockets they hang")
@click.option("--root", default="", metavar="DIR", help="with --here: read below DIR (site.root)")
@click.option("--node", default="", help="with --here: the node's name in Slurm (this machine's)")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def show(here: bool, root: str, node: str, as_json: bool, **sources: Any) -> None:
    """Show what GPUs the nodes offer, by instance type, or what this node shows."""
    settings = site_settings()
    if here:
        _show_here(settings, root, node or machine_name(), as_json)
        return
    groups = by_shape(offers_of(settings, **sources))
    if as_json:
        rows = []
        for offer, nodes in groups:
            split = [{"files": files(part), "cores": part.cores} for part in offer.parts]
            row = offer.instance_type
            told_of = {"type": row.name, "nodes": nodes, "gpu": row.gpu_type, "gpus": row.gpus, "parts": split}
            rows.append(told_of | {"by": "the nodes" if offer.seen is not None else "the catalogue"})
        say_json({"types": rows})
        return
    cells = []
    for offer, nodes in groups:
        row = offer.instance_type
        gpus = f"gpu:{row.gpu_type}:{row.gpus}" if row.gpus else "none"
        cores = "; ".join(f"{files(part)} {part.cores}" for part in offer.parts if part.cores)
        cells.append((row.name, str(len(nodes)), fold(nodes), gpus, cores or no_cores(offer) or "-"))
    say_table(("TYPE", "COUNT", "NODES", "GRES", "CORES"), cells)


def _show_here(settings: Settings, root: str, node: str, as_json: bool) -> None:
    facts = told.here(root or at_node(settings.site.root, node))
    if facts is None:
        raise LackingError("this node's /proc or sysfs gives no answer", remedy="Is the driver stuck? Look at `dmesg`")
    if settings.site.instance_type != "auto":
        facts = facts._replace(instance_type=settings.site.instance_type)
    if as_json:
        say_line(told.to_data(told.Told(node, facts)))
        return
    for path in facts.unread:
        say_text(f"fmslurm: {path} cannot be read", err=True)
    shape = f"Sockets={facts.sockets} CoresPerSocket={facts.cores_per_socket} ThreadsPerCore={facts.threads_per_core}"
    say_text(f"{node}: {facts.instance_type or 'type not known'}, {shape}")
    rows = [
        (f"nvidia{gpu.number}", gpu.model, gpu.bus, str(gpu.numa_node), _near(facts, gpu.numa_node))
        for gpu in facts.gpus
    ]
    say_table(("GPU", "MODEL", "PCI", "NUMA", "CORES"), rows)


def _near(facts: NodeFacts, numa: int) -> str:
    return ranges(facts.numa_cores.get(numa, ())) or "-"


@gres.command()
@offer_options
@_device_option
@click.option("--format", "form", type=click.Choice(("conf", "pcs")), default="conf", help="pcs: JSON for AWS PCS")
@click.option("--autodetect", type=click.Choice(("nvml", "nvidia")), help="instead of File= lines; not for cloud nodes")
@click.option("--cloud", is_flag=True, help="node lines with State=CLOUD")
@click.option("--output", default="", help="write gres.conf here, atomically")
@click.option("--nodes-output", default="", help="write the NodeName lines here, atomically")
@click.option(
    "--force", is_flag=True, help="replace files that somebody else wrote or changed; a copy stays beside each"
)
def generate(
    device_dir: str,
    form: str,
    autodetect: str | None,
    cloud: bool,
    output: str,
    nodes_output: str,
    force: bool,
    **sources: Any,
) -> None:
    """Print gres.conf and the NodeName lines, or write them."""
    if not _DEVICE_DIR.fullmatch(device_dir):
        raise UsageError(f"--device-dir {device_dir!r} is no folder that gres.conf can name", remedy="For example /dev")
    settings = site_settings()
    offers = offers_of(settings, **sources)
    if form == "pcs":
        text = json.dumps(pcs_groups(offers, device_dir=device_dir), indent=2) + "\n"
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
    if not any(offer.instance_type.gpus for offer in offers.values()):
        raise LackingError(
            "none of these nodes has a GPU: gres.conf would be empty", remedy="Are these the nodes, and types?"
        )
    targets = [(path, text) for path, text in ((output, conf), (nodes_output, lines)) if path]
    if len({os.path.realpath(path) for path, _ in targets}) < len(targets):
        raise UsageError("--output and --nodes-output name one file", remedy="Name two")
    # Both are looked at before the first is written: half a pair is worse than none.
    held = [conf_file.look(path) for path, _ in targets]
    for one in held:
        if not os.path.isdir(os.path.dirname(one.path) or "."):
            raise UsageError(f"there is no folder {os.path.dirname(one.path)}", remedy="Make it, or correct the path")
        conf_file.refuse_foreign(one, force=force)
    when = conf_file.moment()
    for one, (path, text) in zip(held, targets, strict=True):
        kept = conf_file.replace(one, conf_file.stamped(text), when=when)  # so that it is known for ours
        say_text(f"wrote {path}: {len(offers)} nodes{kept.words()}", err=True)
    for path, text in ((output, conf), (nodes_output, lines)):
        if not path:
            say_text(text, nl=False)


def _has_cloud(settings: Settings, offers: dict[str, Offer], sources: dict[str, Any]) -> bool:
    """Say whether one of the nodes is a cloud node: by ParallelCluster's names, else by what Slurm says of it."""
    from slurm_ext.aws.pcluster import node_name

    if any(node_name(node) is not None for node in offers):
        return True
    try:
        return any("CLOUD" in node.flags for node in all_nodes(reach(settings).slurm()) if node.name in offers)
    except SlurmError:
        given = {key: value for key, value in sources.items() if key not in ("default_type", "facts")}
        if chosen(settings, **given).nodes_file:
            return False  # a cluster that is not up yet: the list is all there is
        raise


for command in (check, apply, refresh):
    gres.add_command(command)
