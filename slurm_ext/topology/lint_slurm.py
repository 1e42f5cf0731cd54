"""What of slurm.conf matters to topology: plugin, parameters, weights, partitions. Reads it, and holds rules to it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.topology.lint_model import Release
from slurm_ext.topology.lint_read import Line, is_number
from slurm_ext.topology.lint_report import MAX_NAMES, Report, folded

_LAST = (99, 99)
#: plugin -> the first release that has it, and the first that does not. (3d_torus was for a Cray's three dimensions alone.)
PLUGINS: Mapping[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "tree": ((0, 0), _LAST),
    "none": ((0, 0), (23, 11)),
    "hypercube": ((0, 0), (23, 11)),
    "3d_torus": ((0, 0), (25, 5)),
    "default": ((23, 11), (25, 5)),
    "block": ((23, 11), _LAST),
    "flat": ((25, 5), _LAST),
    "ring": ((26, 5), _LAST),
    "torus3d": ((26, 5), _LAST),
}
#: An old name -> from which release on it is taken for another, and which. (23.11 and 24.x read `none` as their default.)
RENAMED: Mapping[str, tuple[tuple[tuple[int, int], str], ...]] = {
    "none": (((23, 11), "default"), ((25, 5), "flat")),
    "default": (((25, 5), "flat"),),
}
#: Word of TopologyParam -> the first release that knows it (slurm.conf(5) of each release).
PARAMS: Mapping[str, tuple[int, int]] = {
    "dragonfly": (0, 0),
    "topooptional": (0, 0),
    "switchasnoderank": (23, 2),
    "routepart": (23, 11),
    "routetree": (23, 11),
    "topomaxsizeunroll": (24, 11),
    "blockasnoderank": (25, 11),
    "noinaddrany": (0, 0),
    "noctldinaddrany": (0, 0),
}
#: Key of a PartitionName line that has to do with topology -> the first release that knows it.
PARTITION_KEYS: Mapping[str, tuple[int, int]] = {"exclusivetopo": (24, 5), "exclusive": (26, 5)}
#: T23827 is fixed from these patches on, and in every release after them.
_OVERFLOW_FIXED: Mapping[tuple[int, int], int] = {(25, 5): 6, (25, 11): 1}
_LARGEST_INT = (1 << 31) - 1
_DEFAULT_TREE_WIDTH = 16


class Partition(NamedTuple):
    """One PartitionName line; `topology` is None where it names none."""

    name: str
    nodes: tuple[str, ...]
    topology: str | None
    file: str
    line: int


class NodeTopology(NamedTuple):
    """The Topology= of one NodeName line."""

    nodes: str
    text: str
    file: str
    line: int


class SlurmConf(NamedTuple):
    """What a slurm.conf says: values by lower-case key with their line, nodes with their weight, partitions."""

    file: str
    values: Mapping[str, tuple[str, str, int]]
    weights: Mapping[str, int]
    partitions: tuple[Partition, ...]
    node_topologies: tuple[NodeTopology, ...] = ()

    def get(self, key: str, default: str = "") -> str:
        """Return a value."""
        return self.values[key][0] if key in self.values else default

    def where(self, key: str) -> tuple[str, int]:
        """Return file and line of a key."""
        return self.values[key][1:] if key in self.values else (self.file, 1)

    def plugin(self) -> str:
        """Return the plugin's name in short, empty where none is set."""
        return self.get("topologyplugin").lower().removeprefix("topology/")


def read(report: Report, entries: Iterable[Line], file: str) -> SlurmConf:
    """Return what matters of a slurm.conf; report keys that the release does not have."""
    values: dict[str, tuple[str, str, int]] = {}
    weights: dict[str, int] = {}
    partitions: list[tuple[Line, str, str | None]] = []
    strings: list[NodeTopology] = []
    sets: dict[str, tuple[str, str]] = {}
    features: dict[str, set[str]] = {}
    default_features = ""
    default_weight, default_nodes, left = 1, "", MAX_NAMES
    default_topology: str | None = None
    for entry in entries:
        first = entry.pairs[0][0] if entry.pairs else ""
        if first == "nodename":
            string = entry.get("topology")
            if string is not None:
                report.add("slurm.topology-key", entry.file, entry.number, kind="NodeName")
                strings.append(NodeTopology(entry.pairs[0][1], string, entry.file, entry.number))
            weight = entry.get("weight")
            if weight is not None and not is_number(weight):
                report.add("slurm.number", entry.file, entry.number, key="Weight", what=weight)
            number = (
                int(weight[:12]) if weight is not None and weight.isascii() and weight.isdigit() else default_weight
            )
            told = entry.get("feature") or entry.get("features") or default_features
            if entry.pairs[0][1].upper() == "DEFAULT":
                default_weight, default_features = number, told
                continue
            names = _expanded(entry.pairs[0][1], left)
            left -= len(names)
            weights.update(dict.fromkeys(names, number))
            for feature in filter(None, told.split(",")):
                features.setdefault(feature, set()).update(names)
        elif first == "partitionname":
            topology = entry.get("topology")
            if topology is not None:
                report.add("slurm.topology-key", entry.file, entry.number, kind="PartitionName")
            for key, since in PARTITION_KEYS.items():
                if entry.get(key) is not None and report.given.release.feature < since:
                    report.add("slurm.partition-key", entry.file, entry.number, key=key, since=_words(since))
            nodes = entry.get("nodes")
            if entry.pairs[0][1].upper() == "DEFAULT":
                default_nodes = nodes if nodes is not None else default_nodes
                default_topology = topology if topology is not None else default_topology
                continue
            topology = topology if topology is not None else default_topology
            partitions.append((entry, nodes if nodes is not None else default_nodes, topology))
        elif first == "nodeset":
            sets[entry.pairs[0][1]] = entry.get("nodes") or "", entry.get("feature") or ""
        elif first not in ("downnodes", "switchname", "frontendname"):
            values.update((key, (value, entry.file, entry.number)) for key, value in entry.pairs)
    # Sets and nodes may stand behind the partitions that have them.
    members = {name: {*_expanded(nodes, left), *features.get(feature, ())} for name, (nodes, feature) in sets.items()}
    found, everybody = [], tuple(weights)
    for entry, text, topology in partitions:
        every = text.strip().upper() == "ALL"
        names = everybody if every else _expanded(text, left)
        if not every and any(name in members for name in names):
            more = sum(len(members.get(name, ())) for name in names)
            names = () if more > left else tuple({node: None for name in names for node in members.get(name, {name})})
            left -= more
        left -= 0 if every else len(names)
        found.append(Partition(entry.pairs[0][1], names, topology, entry.file, entry.number))
    return SlurmConf(file, values, weights, tuple(found), tuple(strings))


def _expanded(text: str, limit: int) -> tuple[str, ...]:
    try:
        return tuple(expand(text, limit=max(limit, 0)))
    except HostlistError:  # slurmctld says so itself, and NodeSet names are no nodes
        return ()


def check(report: Report, conf: SlurmConf, *, yaml: bool = False) -> None:
    """Report what is wrong with the settings themselves. `yaml`: a topology.yaml is there, and then the plugin is not read."""
    release = report.given.release
    feature = release.feature
    plugin = conf.plugin()
    if "topologyplugin" in conf.values and not yaml:
        _plugin(report, conf, plugin, release)
    width = conf.get("treewidth", "1")
    if not is_number(width, 0xFFFF) or width[-1:].lower() == "k":
        report.add("slurm.number", *conf.where("treewidth"), key="TreeWidth", what=width)
    since = {word: first for word, first in PARAMS.items() if first <= feature}
    for word in conf.get("topologyparam").split(","):
        name = word.strip().partition("=")[0].lower()
        if name and name not in since:
            when = f" (since {_words(PARAMS[name])})" if name in PARAMS else ""
            report.add("slurm.param", *conf.where("topologyparam"), what=word.strip(), release=release.words(),
                       since=when, known=", ".join(since))  # fmt: skip
    if conf.get("routeplugin"):
        report.add("slurm.route-plugin", *conf.where("routeplugin"))
    if conf.get("selecttype").lower() == "select/linear" and plugin == "tree":
        report.add("slurm.linear", *conf.where("selecttype"))
    _routes(report, conf, release)
    if plugin in ("tree", "block") or yaml:
        _weights(report, conf)


def _words(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]:02}"


def _plugin(report: Report, conf: SlurmConf, plugin: str, release: Release) -> None:
    feature = release.feature
    what = conf.get("topologyplugin")
    renamed = [pair for pair in RENAMED.get(plugin, ()) if feature >= pair[0]]
    if renamed:
        since, new = renamed[-1]
        report.add(
            "slurm.plugin-renamed", *conf.where("topologyplugin"), what=what, new=f"topology/{new}", since=_words(since)
        )
        return
    first, gone = PLUGINS.get(plugin, (_LAST, _LAST))
    bare, case = not what.lower().startswith("topology/"), what != what.lower()
    if first <= feature < gone and not bare and not case and plugin != "3d_torus":
        return
    when = ": it lacks topology/ in front" if bare else ": it is written in small letters" if case else ""
    if plugin in PLUGINS and not when:
        when = f" (since {_words(first)})" if feature < first else f" (gone since {_words(gone)})"
        if first <= feature < gone:
            when = ": it is for a Cray alone"
    known = [f"topology/{name}" for name, (start, end) in PLUGINS.items() if start <= feature < end]
    report.add(
        "slurm.plugin",
        *conf.where("topologyplugin"),
        what=what,
        release=release.words(),
        since=when,
        known=", ".join(known),
    )


def _routes(report: Report, conf: SlurmConf, release: Release) -> None:
    words = {word.strip().lower() for word in conf.get("topologyparam").split(",")}
    if "routetree" not in words and "tree" not in conf.get("routeplugin").lower():
        return
    key = "topologyparam" if "routetree" in words else "routeplugin"
    if conf.get("maxnodecount"):
        report.add("slurm.route-dynamic", *conf.where("maxnodecount"))
    width = conf.get("treewidth")
    wide = int(width[:9]) if width.isascii() and width.isdigit() else _DEFAULT_TREE_WIDTH
    fixed = _OVERFLOW_FIXED.get(release.feature)
    # topology_p_split_hostlist() multiplies in 32 bits.
    if len(conf.weights) * (wide - 1) + 1 > _LARGEST_INT and (fixed is None or release.patch < fixed):
        doubt = "warning" if fixed is not None and release.patch < 0 else ""
        report.add("slurm.route-overflow", *conf.where(key), severity=doubt, width=wide, count=len(conf.weights))


def _weights(report: Report, conf: SlurmConf) -> None:
    for partition in conf.partitions:
        groups: dict[int, list[str]] = {}
        for node in partition.nodes:
            if node in conf.weights:
                groups.setdefault(conf.weights[node], []).append(node)
        if len(groups) > 1:
            what = ", ".join(f"{weight}: {folded(nodes)}" for weight, nodes in sorted(groups.items())[:3])
            report.add("slurm.weights", partition.file, partition.line, name=partition.name, what=what)
