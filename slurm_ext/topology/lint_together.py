"""Rules of what slurm.conf and the topology files say of the same thing. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from slurm_ext.topology.lint_report import Report, short
from slurm_ext.topology.lint_slurm import NodeTopology, SlurmConf
from slurm_ext.topology.lint_topologies import Found, Topology

#: What a topology.conf's topology is called (Slurm 25.05 and later).
DEFAULT = "default"


def check(report: Report, conf: SlurmConf, held: Found | None, found: Found | None) -> None:
    """Report where they do not go together; `held` is what topology.conf holds, `found` what topology.yaml does."""
    plugin = conf.plugin()
    names_topologies = report.given.release.feature >= (25, 5)
    uses_yaml = found is not None and names_topologies
    what = conf.get("topologyplugin") or "not set"
    where = conf.where("topologyplugin")
    if held is not None and uses_yaml:
        report.add("slurm.yaml-wins", *where, what=what)
    elif held is not None and held.kinds[0] != plugin:
        kind = held.kinds[0]
        rule = "slurm.plugin-other" if plugin in ("tree", "block", "ring", "torus3d") else "slurm.plugin-unset"
        report.add(rule, *where, what=what, kind="blocks" if kind == "block" else "switches", wanted=kind)
    read = found if uses_yaml else held
    if names_topologies and read is not None:
        _names(report, conf, read, yaml=uses_yaml)
    _roots(report, conf, read.roots if read is not None else {})


def _names(report: Report, conf: SlurmConf, read: Found, *, yaml: bool) -> None:
    for partition in conf.partitions:
        if partition.topology is not None and partition.topology not in read.names:
            rule = "slurm.topology-unknown" if yaml else "slurm.topology-conf"
            report.add(rule, partition.file, partition.line, name=partition.name, what=partition.topology,
                       known=", ".join(read.names))  # fmt: skip
    by_name = {topology.name: topology for topology in read.topologies}
    for string in conf.node_topologies:
        _node_string(report, string, by_name)


def _node_string(report: Report, string: NodeTopology, by_name: Mapping[str, Topology]) -> None:
    words = {"what": string.text, "nodes": short(string.nodes)}
    named = set()
    for part in string.text.split(","):
        if not part:
            continue
        name, _, path = part.partition(":")
        named.add(name)
        why = "" if name in by_name else f"there is no topology {name}" if name else "a topology without a name"
        # strtok() passes over what stands between two colons, but blocks are compared with all of it.
        path = path if not why and by_name[name].kind == "block" else ":".join(filter(None, path.split(":")))
        if not why and not path and by_name[name].kind != "block":
            report.add("slurm.node-topology-none", string.file, string.line, **words)
            continue
        why = why or _refused(by_name[name], path)
        if why:
            report.add("slurm.node-topology", string.file, string.line, why=why, **words)
            return
    others = [name for name, topology in by_name.items() if name not in named and topology.units]
    if named and others:
        report.add("slurm.node-topology-leaves", string.file, string.line, others=" and ".join(others), **words)


def _refused(topology: Topology, place: str) -> str:
    """Return why slurmctld refuses a place; a tree makes switches below one that it has and that has no nodes."""
    known = topology.units
    if topology.kind == "block":
        return "" if place in known else f"there is no block {place}"
    if topology.kind != "tree":
        return ""
    path = place.split(":")
    if path[0] not in known:
        return f"there is no switch {path[0]}"
    for above, name in itertools.pairwise(path):
        if name not in known and above in known and known[above].nodes:
            return f"{above} has nodes, so there is no room for {name} below it"
    last = known.get(path[-1])
    return f"{path[-1]} has switches below it" if last is not None and last.children and last.nodes is None else ""


def _roots(report: Report, conf: SlurmConf, roots: Mapping[str, str]) -> None:
    for partition in conf.partitions:
        above = {roots[node] for node in partition.nodes if node in roots}
        if len(above) > 1 and not partition.topology:
            report.add("slurm.partition-roots", partition.file, partition.line, name=partition.name, count=len(above))
    release = report.given.release
    # From 26.05.2 on each root without a parent gets messages of its own.
    old = release.feature < (26, 5) or (release.feature == (26, 5) and 0 <= release.patch < 2)
    if old and len(set(roots.values())) > 1 and "routetree" in conf.get("topologyparam").lower():
        report.add("slurm.route-forest", *conf.where("topologyparam"))
