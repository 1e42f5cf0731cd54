"""What of topology runs on this cluster: Slurm's version and plugin, its files, and where it has each node."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slurm_ext.config.model import Settings
from slurm_ext.errors import LackingError, SlurmError
from slurm_ext.slurm import conf_file, site_policy
from slurm_ext.slurm.model import TopologyUnit, Version
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.slurm.versions import has
from slurm_ext.topology.backing import all_nodes
from slurm_ext.topology.change import Seen
from slurm_ext.topology.node_map import is_backed
from slurm_ext.topology.render_yaml import TREE
from slurm_ext.topology.written import DEFAULT, FILES, Written

#: `topology.format: auto` means: as what runs.
AUTO = "auto"

#: What Slurm says of a topology of a name that it does not have (26.05.5).
_NO_SUCH = "Requested topology configuration is not available"

#: A listener on a machine that lives answers within this (seconds).
_CONNECT_S = 2.0


class Running(NamedTuple):
    """The cluster: `folder` of its slurm.conf, `format` of the file that it reads or could read, `known` all its nodes,
    `off` those with no instance behind them, as Slurm says."""

    version: Version
    plugin: str
    folder: str
    format: str
    known: frozenset[str]
    off: frozenset[str] = frozenset()
    controllers: tuple[tuple[str, int], ...] = ()


def running(slurm: Slurm, settings: Settings, wanted_format: str = AUTO, *, elsewhere: bool = False) -> Running:
    """Return what runs. Raise LackingError where this machine cannot change it (no slurmctld here, PCS), unless `elsewhere`."""
    config = slurm.config()
    version = slurm.version()
    folder = os.path.dirname(config.get("SLURM_CONF", "") or settings.site.slurm_conf) or "/etc/slurm"
    if not elsewhere:
        _here(settings, config.get("SlurmctldHost", ""), folder)
    plugin = config.get("TopologyPlugin", "")
    found = wanted_format
    if found == AUTO:
        found = _format(version, plugin, folder)
    nodes = all_nodes(slurm)
    known = frozenset(node.name for node in nodes)
    off = frozenset(node.name for node in nodes if not is_backed(node))
    return Running(version, plugin, folder, found, known, off, _controllers(config))


def _controllers(config: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Return (address, port) of each slurmctld, as slurm.conf has them: `SlurmctldHost=name(address)`, a port or a range."""
    ports = re.match(r"[0-9]{1,5}", config.get("SlurmctldPort", ""))
    found = []
    for word in config.get("SlurmctldHost", "").split(","):
        name, _, address = word.strip().partition("(")
        if ports and (host := address.rstrip(")") or name):
            found.append((host, int(ports[0])))
    return tuple(found)


def refuses(controllers: Iterable[tuple[str, int]]) -> bool:
    """Say whether nobody listens where slurmctlds do; one that is busy listens, and a host that is silent says nothing."""
    answers = []
    for controller in controllers:
        try:
            socket.create_connection(controller, timeout=_CONNECT_S).close()
        except ConnectionRefusedError:
            answers.append(True)
        except OSError:
            continue
        else:
            return False
    return bool(answers)


def _format(version: Version, plugin: str, folder: str) -> str:
    yaml_is_read = has(version, "topology-yaml")
    if yaml_is_read and os.path.exists(os.path.join(folder, FILES["yaml"])):
        return "yaml"
    if plugin in ("topology/tree", "topology/block"):
        return plugin.partition("/")[2]
    # It needs no line in slurm.conf.
    return "yaml" if yaml_is_read else "tree"


def _here(settings: Settings, controllers: str, folder: str) -> None:
    """Raise LackingError where Slurm's files are not this machine's to write."""
    if site_policy.kind(settings) == "pcs":
        raise LackingError(
            "on PCS the controller's files are AWS's own",
            remedy="`fmslurm topology generate --format hosts` orders the ranks of a job instead",
        )
    names = {word.partition("(")[0].strip() for word in controllers.split(",")} - {""}
    own = socket.gethostname()
    if names and not names & {own, own.partition(".")[0], socket.getfqdn()}:
        raise LackingError(
            f"slurmctld runs on {', '.join(sorted(names))}, and this is {own}", remedy="Run this where slurmctld runs"
        )
    if not os.path.isdir(folder):
        raise LackingError(f"there is no folder {folder}, where Slurm reads its files", remedy="Run this where it is")


def seen(slurm: Slurm, found: Running, wanted: Written) -> Seen:
    """Return what the plan needs to know of the running Slurm and of its file."""
    path = os.path.join(found.folder, FILES[wanted.format])
    wins = ""
    if wanted.format != "yaml" and has(found.version, "topology-yaml"):
        yaml = os.path.join(found.folder, FILES["yaml"])
        wins = yaml if os.path.exists(yaml) else ""
    paths = {name: placed(slurm, found.version, name, tree=_is_tree(wanted, name)) for name in wanted.paths}
    stale = 0
    if has(found.version, "node-topology-update"):
        stale = sum(not unit.nodes for name, held in paths.items() if held for unit in _units(slurm, name))
    held = conf_file.look(path)
    beside = ""
    if (
        wanted.format == "yaml"
        and held.state == conf_file.MISSING
        and found.plugin in ("topology/tree", "topology/block")
    ):
        conf = conf_file.look(os.path.join(found.folder, FILES["tree"]))
        beside = conf.path if conf.state in (conf_file.FOREIGN, conf_file.EDITED) else ""
    return Seen(found.version, found.plugin, paths, found.known, held, wins, beside, stale, found.controllers)


def _units(slurm: Slurm, name: str) -> list[TopologyUnit]:
    return slurm.topology_units("" if name == DEFAULT else name)


def _is_tree(wanted: Written, name: str) -> bool:
    return name == TREE or (name == DEFAULT and wanted.format == "tree")


def placed(slurm: Slurm, version: Version, name: str, *, tree: bool) -> dict[str, tuple[str, ...]]:
    """Return node -> its switches from the root down, or its block; nothing where Slurm has no topology of that name."""
    try:
        found = slurm.topology("" if name == DEFAULT or not has(version, "topology-by-name") else name)
    except SlurmError as exc:
        if _NO_SUCH in exc.message:
            return {}  # there is none of that name yet
        raise
    # What stands above a block is Slurm's own sum of neighbours.
    return {node: path if tree else path[-1:] for node, path in found.items()}
