"""`fmslurm gres check`: GPU definitions held against this node's GPUs, the running cluster, ParallelCluster's files, or EC2's table."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from slurm_ext.aws import catalogue
from slurm_ext.aws.ec2_types import compare, instance_types
from slurm_ext.cli.gres_refresh import say_compared
from slurm_ext.cli.output import say_json, say_text
from slurm_ext.cli.topology_source import reach
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.config.model import Settings, at_node, machine_name
from slurm_ext.errors import FindingError, LackingError, UsageError
from slurm_ext.gres import fleet, read_conf, rules, told
from slurm_ext.gres.model import GresLine, NodeLine, Trouble
from slurm_ext.site.detect import detect
from slurm_ext.slurm import conf_file

#: Where ParallelCluster's head node keeps the files that it generates.
PCLUSTER = "/opt/slurm/etc/pcluster"

#: ParallelCluster's includes lie two deep; of files below one another, of all that one file includes, and of their bytes.
INCLUDES_MAX, FILES_MAX, BYTES_MAX = 4, 1024, 128 << 20

_NUMA_AS_SOCKET = re.compile(r"^[ \t]*slurmdparameters[ \t]*=[^#\n]*numa_node_as_socket", re.IGNORECASE | re.MULTILINE)


@click.command()
@click.option("--ec2", is_flag=True, help="compare the catalogue with DescribeInstanceTypes; writes nothing")
@click.option(
    "--pcluster", "folder", default="", metavar="DIR", help=f"ParallelCluster's generated files, e.g. {PCLUSTER}"
)
@click.option("--cluster", is_flag=True, help="the node lines of slurm.conf against gres.conf, all nodes")
@click.option("--root", default="", metavar="DIR", help="read the node's facts below DIR (site.root)")
@click.option("--gres-conf", default="", metavar="FILE", help="compare with this gres.conf")
@click.option("--node", default="", help="the node's name in Slurm (this machine's)")
@click.option("--type", "kind", default="", help="the node's instance type (what the machine says)")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def check(
    ec2: bool, folder: str, cluster: bool, root: str, gres_conf: str, node: str, kind: str, as_json: bool
) -> None:
    """Hold GPU definitions against what is there: this node's GPUs, the cluster's node lines, or EC2's own table."""
    settings = site_settings()
    if ec2:
        say_compared(compare(instance_types(reach(settings).ec2())), as_json)
        return
    unread: tuple[str, ...] = ()
    if folder:
        troubles = _check_pcluster(Path(folder))
    elif cluster:
        troubles = _check_cluster(settings, gres_conf)
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
    below = root or at_node(settings.site.root, node)
    facts = told.here(below)
    if facts is None:
        raise LackingError("this node's /proc or sysfs gives no answer", remedy="Is the driver stuck? Look at `dmesg`")
    kind = kind or (settings.site.instance_type if settings.site.instance_type != "auto" else facts.instance_type)
    row = catalogue.with_gpus(kind)
    for path in facts.unread:
        say_text(f"fmslurm: {path} cannot be read", err=True)
    if row is None:
        say_text(
            f"fmslurm: the catalogue has no instance type {kind or '(none told)'!r}: nothing is compared with it",
            err=True,
        )
    slurm_conf = detect(settings).slurm_conf if not root else ""
    if not conf and slurm_conf:
        conf = os.path.join(os.path.dirname(slurm_conf), "gres.conf")
        conf = conf if os.path.exists(conf) else ""
    lines = gres_lines(conf) if conf else []
    if row is None and not lines:
        raise LackingError(
            "there is nothing to compare this node with: no row of its type, and no gres.conf",
            remedy="Give --type TYPE or --gres-conf FILE",
        )
    if not facts.gpus and facts.unread and any(line.files and (not line.nodes or node in line.nodes) for line in lines):
        raise LackingError(
            f"gres.conf offers GPUs on {node}, and nothing of them can be read below {below}",
            remedy="Is the driver loaded? `nvidia-smi`; on a head node: `fmslurm gres check --cluster`",
        )
    as_socket = bool(slurm_conf) and has_numa_sockets(slurm_conf)
    return rules.node(facts, row, lines, node, numa_as_socket=as_socket), facts.unread


def has_numa_sockets(slurm_conf: str) -> bool:
    """Say whether a slurm.conf makes each NUMA node a socket (SlurmdParameters=numa_node_as_socket)."""
    return any(_NUMA_AS_SOCKET.search(text) for _, text in texts(slurm_conf))


def _check_cluster(settings: Settings, conf: str) -> list[Trouble]:
    slurm_conf = detect(settings).slurm_conf
    if not slurm_conf:
        raise LackingError("there is no slurm.conf here", remedy="Run this on the head node, or set site.slurm_conf")
    return fleet.cluster(
        slurm_nodes(slurm_conf), gres_lines(conf or os.path.join(os.path.dirname(slurm_conf), "gres.conf"))
    )


def slurm_nodes(path: str) -> list[NodeLine]:
    """Return the NodeName lines of a slurm.conf and of what it includes."""
    return [line for name, text in texts(path) for line in read_conf.node_lines(name, text)]


def gres_lines(path: str) -> list[GresLine]:
    """Return the lines of a gres.conf and of what it includes. Raise UsageError for a file that cannot be read."""
    return [line for name, text in texts(path) for line in read_conf.gres_lines(name, text)]


def texts(path: str) -> list[tuple[str, str]]:
    """Return path and text of a configuration file and of all that it includes, at most so deep and so many as there may be."""
    found: list[tuple[str, str]] = []

    def read(name: str, most: int) -> None:
        text = _text(name)
        found.append((name, text))
        for included in read_conf.includes(text):
            if most <= 0 or len(found) >= FILES_MAX or sum(len(one) for _, one in found) > BYTES_MAX:
                raise UsageError(
                    f"{name}: more than {INCLUDES_MAX} includes below one another, {FILES_MAX} files, or {BYTES_MAX >> 20} MiB",
                    remedy="Does it include itself?",
                )
            read(os.path.join(os.path.dirname(name), included), most - 1)

    read(path, INCLUDES_MAX)
    return found


def _check_pcluster(folder: Path) -> list[Trouble]:
    nodes, lines = [], []
    paths = sorted(folder.glob("slurm_parallelcluster_*.conf")) if folder.is_dir() else []
    for path in map(str, paths):
        if path.endswith("_gres.conf"):
            lines += read_conf.gres_lines(path, _text(path))
        elif path.endswith("_partition.conf"):
            nodes += read_conf.node_lines(path, _text(path))
    if not nodes:
        raise UsageError(
            f"{folder}: no slurm_parallelcluster_QUEUE_partition.conf there",
            remedy=f"Name the folder, usually {PCLUSTER}",
        )
    # What holds for every node stands in the files above that include these (AutoDetect on a line by itself).
    for name in ("gres.conf", "slurm_parallelcluster_gres.conf"):
        if (above := folder.parent / name).is_file():
            lines += [line for line in read_conf.gres_lines(str(above), _text(str(above))) if not line.nodes]
    return fleet.parallelcluster(nodes, lines, catalogue.with_gpus)


def _text(path: str) -> str:
    """Return a file's text. Raise UsageError for none, LackingError for what is no regular file, too large, or not to be read."""
    if "\0" in path:
        raise UsageError(f"{path[:200]!r} is no path", remedy="Correct the include")
    held = conf_file.look(path)
    if held.state == conf_file.MISSING:
        raise UsageError(f"{path}: there is no such file", remedy="Name a readable file")
    return held.text
