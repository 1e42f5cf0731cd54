"""The linter: files as text, a target release -> findings. Pure; no text makes it fail.

Each file is one of three kinds, told by its name or by what it holds; what two of them say of the same thing is compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_ext.topology import lint_block, lint_slurm, lint_topologies, lint_tree
from slurm_ext.topology.lint_model import Finding, Given, Release, Unit
from slurm_ext.topology.lint_read import Line, lines
from slurm_ext.topology.lint_report import Report

CONF, YAML, SLURM = "topology.conf", "topology.yaml", "slurm.conf"

_OLDEST = (22, 5)
_OF_SLURM_CONF = re.compile(r"^\s*(nodename|partitionname|topologyplugin|clustername|slurmctldhost)\s*=", re.I | re.M)
_OF_TOPOLOGY_CONF = re.compile(r"^\s*(switchname|blockname|blocksizes|blocklevels)\s*=", re.I | re.M)
_OF_YAML = re.compile(r"^\s*-?\s*[\"']?topology[\"']?\s*:", re.M)
_TREE_KEYS = ("switchname", "nodes", "switches", "linkspeed")
_BLOCK_KEYS = ("blockname", "nodes")


class Source(NamedTuple):
    """One file to look at; `kind` is CONF, YAML or SLURM, or empty to be told from name and text."""

    name: str
    text: str
    kind: str = ""
    includes: Mapping[str, str] = {}


class _Conf(NamedTuple):
    """What a topology.conf turned out to hold: `tree`, `block` or nothing, and the roots of a tree."""

    kind: str
    roots: dict[str, str]


def kind_of(name: str, text: str) -> str:
    """Return which kind of file it is."""
    base = name.rpartition("/")[2].lower()
    if base.endswith((".yaml", ".yml")):
        return YAML
    if _OF_TOPOLOGY_CONF.search(text) or base == "topology.conf":
        return CONF
    if _OF_SLURM_CONF.search(text) or base.startswith("slurm"):
        return SLURM
    return YAML if _OF_YAML.search(text) else CONF


def lint(sources: Sequence[Source], given: Given) -> list[Finding]:
    """Return everything that is wrong with the files, for one release of Slurm."""
    report = Report(given)
    kinds = [(source, source.kind or kind_of(source.name, source.text)) for source in sources]
    conf: lint_slurm.SlurmConf | None = None
    for source, kind in kinds:
        if kind == SLURM and conf is None:
            conf = lint_slurm.read(report, _lines(report, source), source.name)
            lint_slurm.check(report, conf)
    if conf is not None and not given.nodes:
        report.given = given = given._replace(nodes=frozenset(conf.weights), weights=conf.weights)
    held: _Conf | None = None
    found: lint_topologies.Found | None = None
    for source, kind in kinds:
        if kind == CONF:
            held = _topology_conf(report, source, conf)
        elif kind == YAML:
            found = lint_topologies.check(report, source.text, source.name)
    if conf is not None:
        _together(report, conf, held, found)
    if sources:
        _release(report, sources[0].name, given.release)
    return report.sorted()


def _lines(report: Report, source: Source) -> list[Line]:
    entries = list(lines(source.name, source.text, source.includes))
    for entry in entries:
        if "*" in entry.include:
            report.add("conf.glob", entry.file, entry.number, what=entry.include)
        elif entry.include and entry.include not in source.includes:
            report.add("conf.include", entry.file, entry.number, what=entry.include)
        if entry.rest:
            report.add("conf.parse", entry.file, entry.number, what=entry.rest[:60])
    return entries


def _topology_conf(report: Report, source: Source, conf: lint_slurm.SlurmConf | None) -> _Conf:
    switches: list[Unit] = []
    blocks: list[Unit] = []
    sizes: lint_block.Sizes | None = None
    entries = _lines(report, source)
    firsts = {entry.pairs[0][0] for entry in entries if entry.pairs}
    wanted = conf.plugin() if conf is not None else ""
    # What the file holds decides; where it holds both, what slurm.conf wants.
    of_blocks = bool(firsts & {"blockname", "blocksizes", "blocklevels"})
    of_blocks = of_blocks and ("switchname" not in firsts or wanted == "block")
    of_blocks = of_blocks or (wanted == "block" and "switchname" not in firsts)
    sizes_key = "blocklevels" if report.given.release.feature < (24, 5) else "blocksizes"
    known_firsts = ("blockname", sizes_key) if of_blocks else ("switchname",)
    inside = _BLOCK_KEYS if of_blocks else _TREE_KEYS
    if "blockname" in firsts and "switchname" in firsts:
        where = next(e for e in entries if e.pairs and e.pairs[0][0] == ("switchname" if of_blocks else "blockname"))
        report.add("conf.mixed", where.file, where.number)
    for entry in entries:
        if not entry.pairs:
            continue
        first, name = entry.pairs[0]
        if first == "switchname":
            switches.append(Unit(name, entry.file, entry.number, entry.get("nodes"), entry.get("switches")))
            if entry.get("linkspeed") is not None:
                report.add("tree.link-speed", entry.file, entry.number)
        elif first == "blockname":
            blocks.append(Unit(name, entry.file, entry.number, entry.get("nodes")))
        elif first in ("blocksizes", "blocklevels"):
            sizes = lint_block.Sizes(first, name, entry.number)
        others = inside[1:] if first == known_firsts[0] else ()
        for number, (key, _) in enumerate(entry.pairs):
            mixed = first in ("switchname", "blockname") and first not in known_firsts
            if not mixed and key not in (others if number else known_firsts):
                report.add(
                    "conf.unknown-key", entry.file, entry.number, key=key, known=", ".join(known_firsts + inside[1:])
                )
    if of_blocks:
        lint_block.check(report, blocks, sizes, source.name)
        return _Conf("block", {})
    return _Conf("tree", lint_tree.check(report, switches, source.name))


def _together(
    report: Report, conf: lint_slurm.SlurmConf, held: _Conf | None, found: lint_topologies.Found | None
) -> None:
    """Report where slurm.conf and the topology files do not go together."""
    plugin = conf.plugin()
    reads_yaml = report.given.release.feature >= (25, 5)
    uses_yaml = found is not None and reads_yaml
    what = conf.get("topologyplugin") or "not set"
    where = conf.where("topologyplugin")
    if held is not None and uses_yaml:
        report.add("slurm.yaml-wins", *where, what=what)
    elif held is not None and held.kind != plugin:
        rule = "slurm.plugin-other" if plugin in ("tree", "block") else "slurm.plugin-unset"
        report.add(rule, *where, what=what, kind="blocks" if held.kind == "block" else "switches", wanted=held.kind)
    for partition in conf.partitions:
        if partition.topology and reads_yaml:
            names = found.names if found is not None else ("default",) if held is not None else None
            if names is not None and partition.topology not in names:
                rule = "slurm.topology-unknown" if uses_yaml else "slurm.topology-conf"
                report.add(rule, partition.file, partition.line, name=partition.name, what=partition.topology,
                           known=", ".join(names))  # fmt: skip
    roots = found.roots if uses_yaml and found is not None else held.roots if held is not None else {}
    for partition in conf.partitions:
        above = {roots[node] for node in partition.nodes if node in roots}
        if len(above) > 1 and not partition.topology:
            report.add("slurm.partition-roots", partition.file, partition.line, name=partition.name, count=len(above))
    if len(set(roots.values())) > 1 and "routetree" in conf.get("topologyparam").lower():
        report.add("slurm.route-forest", *conf.where("topologyparam"))


def _release(report: Report, file: str, release: Release) -> None:
    if release.feature < _OLDEST:
        report.add("release.old", file, 0, release=release.words())
    if release.feature == (25, 11):
        if release.patch < 0:
            what = "25.11.0 to 25.11.2 lose topology at power-down, up to 25.11.5 a topology.yaml of whole pages is refused"
            report.add("release.unknown-patch", file, 0, release=release.words(), what=what)
        elif release.patch <= 2:
            report.add("release.unsupported", file, 0, release=release.words())
